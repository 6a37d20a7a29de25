"""launch_agent from programs."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig as TorchLaunchConfig

from launching import one_node
from local_cluster import free_port
from softrun import LaunchConfig, Leave, PreemptedError, RestartPolicy, get_worker_info, launch_agent, on_leave, worlds
from softrun.agent.errors import UsageError
from softrun.agent.local_agent import _by_rank
from softrun.agent.protocol.effects import Outcome, Result
from softrun.agent.store.addresses import address_towards
from softrun.runtime.channel.channel import ChannelError, EventWriter

pytestmark = pytest.mark.processes


def place(offset: int) -> int:
    return offset + get_worker_info().rank


def large(size: int) -> bytes:
    return b"x" * size


_served: list[TCPStore] = []


def serve_or_ask(port: int) -> str:
    """Rank 0 serves the others, and returns first."""
    serves = os.environ["RANK"] == "0"
    _served.append(TCPStore("127.0.0.1", port, 2, is_master=serves, timeout=timedelta(seconds=60)))
    if serves:
        return "served"
    time.sleep(1)  # rank 0 has returned
    _served[0].set("key", "value")
    return str(_served[0].get("key").decode())


def fail_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("only rank 1")
    get_worker_info()
    time.sleep(600)  # until it is ended because of rank 1: when it returned before, rank 1 would be rank 0 by then


def fail_at_first(directory: str) -> str:
    rank = get_worker_info().rank
    marker = Path(directory) / str(rank)
    if not marker.exists():
        marker.touch()
        raise ValueError("the first time")
    return "the second time"


config = partial(one_node, restart_policy=RestartPolicy.SOFT, start_method="fork")
"""Of processes that need not import torch anew."""


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_functions_results_come_back_by_global_rank(start_method: str) -> None:
    assert launch_agent(config(start_method=start_method), place, [100]) == {0: 100, 1: 101}


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(RestartPolicy))
def test_what_a_function_serves_stays_until_all_have_returned(policy: RestartPolicy) -> None:
    assert launch_agent(config(restart_policy=policy), serve_or_ask, [free_port()]) == {0: "served", 1: "value"}


def test_a_large_result_comes_back() -> None:
    results = launch_agent(config(nproc_per_node=1), large, [5_000_000])
    assert len(results[0]) == 5_000_000


@pytest.mark.slow
def test_a_function_that_raises_is_a_child_failed_error_with_its_traceback() -> None:
    with pytest.raises(ChildFailedError) as caught:
        launch_agent(config(), fail_on_rank_1, [])
    rank, failure = caught.value.get_first_failure()  # rank 0 is stopped, and is in the report, too
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert "only rank 1" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [RestartPolicy.SOFT, RestartPolicy.HARD])
def test_a_function_that_was_restarted_returns_its_last_result(tmp_path: Path, policy: RestartPolicy) -> None:
    again = config(nproc_per_node=1, max_restarts=1, restart_policy=policy)
    assert launch_agent(again, fail_at_first, [str(tmp_path)]) == {0: "the second time"}


def return_or_fail_first(directory: str) -> str:
    marker = Path(directory) / "failed"
    if os.environ["LOCAL_RANK"] == "0":
        return "zero"
    if not marker.exists():
        marker.touch()
        raise ValueError("the first time")
    return "the second time"


def test_two_that_had_the_same_rank_both_have_a_place() -> None:
    ended = Result(Outcome.SUCCEEDED, ranks=((0, 0), (1, 0), (2, 1)))
    assert _by_rank({0: "a", 1: "b", 2: "c"}, ended) == {0: "a", 2: "b", 1: "c"}
    assert _by_rank({1: "b", 0: "a"}, ended) == {0: "b", 2: "a"}, "who is named first has the rank"


def work_until_told(directory: Path) -> None:
    def save(leave: Leave) -> None:
        (directory / f"saved-{os.environ['RANK']}").write_text(f"{leave.reason}, {leave.step} steps")

    on_leave(save)
    for world in worlds():
        with world.process_group("gloo"):
            for step in itertools.count(1):
                if step == 20 and world.rank == 0:
                    os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(0.01)
                world.check(step)


@pytest.mark.slow
def test_a_job_that_is_told_to_end_is_a_preempted_error(tmp_path: Path) -> None:
    with pytest.raises(PreemptedError, match=r"^the job was told to end \(signal 15\)") as raised:
        launch_agent(config(shutdown_timeout=60), work_until_told, [tmp_path])
    assert isinstance(raised.value, SignalException)
    first, second = (path.read_text() for path in tmp_path.glob("saved-*"))
    assert first == second
    assert first.startswith("signal 15, ")


@pytest.mark.slow
def test_nobodys_result_is_lost_where_two_had_the_same_rank(tmp_path: Path) -> None:
    """Where the first is done before the second fails, each has been rank 0, the second alone in the next world."""
    again = config(max_restarts=1, restart_policy=RestartPolicy.HARD)
    results = launch_agent(again, return_or_fail_first, [str(tmp_path)])
    assert sorted(results.values()) == ["the second time", "zero"]


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text("import os, sys, pathlib; pathlib.Path(sys.argv[1], os.environ['RANK']).touch()")
    assert launch_agent(config(), str(script), [str(tmp_path)]) == {0: None, 1: None}
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "writes.py"}


def test_no_worker_starts_without_its_first_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_writer: EventWriter, _event: object) -> None:
        raise ChannelError("no space is left")

    monkeypatch.setattr(EventWriter, "write", full)
    with pytest.raises(ChannelError, match="no space is left"):
        launch_agent(config(), "touch", [str(tmp_path / "started")])
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_no_python(tmp_path: Path) -> None:
    touched = tmp_path / "rank-${local_rank}"
    launch_agent(config(), "touch", [str(touched)])
    assert {path.name for path in tmp_path.iterdir()} == {"rank-0", "rank-1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"min_nodes": 0}, "--nnodes 0:1"),
        ({"nproc_per_node": 0}, "--nproc_per_node 0"),
        ({"max_restarts": -1}, "--max_restarts -1"),
        ({"shutdown_timeout": -1}, "--shutdown_timeout -1"),
    ],
)
def test_a_wrong_config(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config(**changes)


def test_what_cannot_be_launched() -> None:
    with pytest.raises(UsageError, match="--event_log_handler 'nobody' is not registered"):
        launch_agent(config(event_log_handler="nobody"), place, [1])
    with pytest.raises(UsageError, match="make it of softrun's LaunchConfig"):
        launch_agent(TorchLaunchConfig(1, 1, 1), place, [])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="entrypoint None cannot be run"):
        launch_agent(config(), None, [])  # type: ignore[arg-type]


def test_torch_is_imported_only_by_what_launches() -> None:
    names = "get_worker_event, get_worker_info, on_world_change, worlds, RestartPolicyStrategy"
    code = f"import sys; from softrun import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_config_has_every_field_of_torchs_in_its_order() -> None:
    ours = [field.name for field in dataclasses.fields(LaunchConfig)]
    theirs = [field.name for field in dataclasses.fields(TorchLaunchConfig)]
    assert ours[: len(theirs)] == theirs


def test_a_machine_that_knows_its_own_name_as_loopback_is_known_to_others_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"node1": "127.0.1.1", "localhost": "127.0.0.1"}

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (known.get(host, host), port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert address_towards([("node1", 29400)], 0) == "node1"
    assert address_towards([("localhost", 29400)], 0) == "127.0.0.1"
    assert address_towards([("127.0.0.1", 29400)], 0) == "127.0.0.1"
