"""The systems that are compared: a launcher with its settings, and which measures mean something for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import peers
from measuring import Record, cluster

from bench_suite.dlrover_job import DlroverJob
from bench_suite.job import Job, Shape, Work
from bench_suite.nvrx import nvrx
from bench_suite.softrun_job import SoftrunJob
from bench_suite.torchft_job import TorchftJob
from bench_suite.torchrun_job import TorchrunJob

OF_RANKS = ("cold_start", "worker_killed")
OF_NODES = ("scale_up", "node_killed", "come_back", "agent_killed", "node_stopped", "leave")
"""In this order: a node that has left is not let in again by all systems."""
COMPARED = (*OF_RANKS, *OF_NODES)
OF_TORCHFT = tuple(measure for measure in COMPARED if measure != "agent_killed")
"""The agent of its replicas is a part of theirs."""
QUICK_OF_PEERS = ("scale_up", "node_killed")
QUICK = (*OF_RANKS, "scale_up", "node_killed", "leave")


@dataclass(frozen=True)
class System:
    name: str
    make: Callable[..., Job] | None
    """Of a LocalCluster, a Shape and Work, a job; None where `take` does without."""
    measures: tuple[str, ...]
    quick: tuple[str, ...]
    """The measures that are taken if there is little time."""
    patience_s: float
    """How long to wait for what may never happen."""
    peer: str | None = None
    """The environment that it needs, see peers.py."""
    slow: bool = False
    """It mostly waits for its timeouts: it is measured less often, beside others of its kind."""
    take: Callable[[str, float], Record] | None = None
    """Takes a measure without a job, within its patience."""

    @contextmanager
    def job(self, shape: Shape, work: Work | None = None) -> Iterator[Job]:
        if self.make is None:
            raise AssertionError(f"{self.name} has no jobs")
        with cluster() as here:
            yield self.make(here, shape, work or Work())


SYSTEMS = (
    System("softrun", partial(SoftrunJob, replace=True), COMPARED, QUICK, 60),
    System("softrun hard", partial(SoftrunJob, policy="hard"), OF_RANKS, OF_RANKS, 60),
    System("torchrun fastest", TorchrunJob, COMPARED, QUICK, 60),
    System("torchft tuned", partial(TorchftJob, settings="tuned"), OF_TORCHFT, QUICK_OF_PEERS, 60, "torchft"),
    System("DLRover tuned", partial(DlroverJob, tuned=True), COMPARED, ("node_killed",), 60, "dlrover"),
    System("nvrx fastest", None, ("worker_killed",), ("worker_killed",), 15, "nvrx", take=partial(nvrx, "fastest")),
    System("torchrun default", partial(TorchrunJob, fastest=False), ("worker_killed", *OF_NODES), (), 150, slow=True),
    System(
        "torchft default",
        partial(TorchftJob, settings="default"),
        OF_TORCHFT,
        (),
        150,
        "torchft",
        slow=True,
    ),
    System(
        "DLRover default",
        partial(DlroverJob, tuned=False),
        ("worker_killed", *OF_NODES),
        (),
        150,
        "dlrover",
        slow=True,
    ),
    System("nvrx default", None, ("worker_killed",), (), 95, "nvrx", slow=True, take=partial(nvrx, "default")),
)


def named(name: str) -> System:
    return next(system for system in SYSTEMS if system.name == name)


def available(chosen: Sequence[System], say: Callable[[str], None]) -> list[System]:
    """Those that can be had here; of the others, says in a line why not."""
    missing: dict[str, str] = {}
    for peer in {system.peer: None for system in chosen if system.peer}:
        try:
            peers.python_of(peer)
        except peers.UnavailableError as why:
            missing[peer] = str(why)
            say(f"without {peer}, which cannot be had here: {why}")
    return [system for system in chosen if system.peer not in missing]
