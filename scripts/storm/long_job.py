"""A job to which ten faults happen, each once all are at work again: what `ledger` and `live` have in common."""

from __future__ import annotations

import signal
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from local_cluster import LocalCluster, Node, free_port, listens, send, shown_by, softrun_command
from softrun.runtime.channel.progress import STACKS_SIGNAL
from storm.job import Job

TRAINERS = Path(__file__).parent / "trainers"
FAULTS_EACH = 10
MOST_NODES = 3
PATIENCE_S = 120.0
STACKS_S = 1.0
STRIKES_S = 5.0  # for a worker to come to a phase, which it may never


class LongJob(Job):
    """One job, its nodes, and what can happen to them."""

    KINDS: ClassVar[tuple[str, ...]]
    """The faults, each as often as it is to be drawn."""
    STEPS: ClassVar[tuple[int, ...]]
    """How many steps there may be from all being at work to the next fault."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        self.directory = cluster.directory / self.NAME
        self.directory.mkdir()
        self.nodes: list[Node] = []
        self.nproc = 2
        self._port, self._named, self.runs = 0, 0, 0

    # --- what each kind of job says

    @abstractmethod
    def begin(self) -> None:
        """Draw what it is like, and start its first nodes."""

    @abstractmethod
    def flags(self) -> tuple[str, ...]:
        """What the command line says besides."""

    @abstractmethod
    def arguments(self) -> tuple[str, ...]:
        """Of the trainer."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Of the trainer."""

    @abstractmethod
    def befall(self, kind: str, one: Node, workers: list[int]) -> None:
        """Carry out a fault of a kind that only this job knows."""

    @abstractmethod
    def judge(self) -> None:
        """Look at what was written down, and put it into the verdict."""

    # --- nodes

    def start(self, nodes: int) -> None:
        """Start the job, or start it again."""
        self._port, self.runs, self.nodes = free_port(), self.runs + 1, []
        for _ in range(nodes):
            self.come()

    def come(self) -> None:
        """Start another node."""
        self._named += 1
        command = softrun_command(
            f"--nnodes=1:{MOST_NODES}",
            f"--nproc_per_node={self.nproc}",
            "--max_restarts=1000",
            "--rdzv_backend=c10d",
            f"--rdzv_endpoint=127.0.0.1:{self._port}",
            f"--rdzv_id={self.NAME}{self.verdict.seed}-{self.runs}",
            "--shutdown_timeout=20",
            *self.flags(),
            script=TRAINERS / f"{self.NAME}.py",
            args=(str(self.directory), *self.arguments()),
        )
        self.nodes.append(self.cluster.start(f"n{self._named}", command, self.environment()))
        if len(self.nodes) == 1:
            self.cluster.wait_for("the first node listens", lambda: listens(self._port), PATIENCE_S)

    def at_work(self, steps: int) -> list[int]:
        """Wait until all workers of all nodes have made so many steps together, from now on; returns them."""
        before, size = time.monotonic(), self.nproc * len(self.nodes)
        seen = self.cluster.wait_for_steps(size, before, steps, PATIENCE_S)
        newest = max(step.round for step in seen)
        return sorted({step.pid for step in seen if step.round == newest})

    # --- faults

    def play(self) -> None:
        self.begin()
        try:
            for kind in self.draw.choices(self.KINDS, k=FAULTS_EACH):
                self._strike(kind)
            self._finish()
        except (TimeoutError, AssertionError) as error:
            self.fails(error)
            self._show_stacks()
        self.judge()
        self.keep_story()

    def _strike(self, kind: str) -> None:
        """The next fault, once all are at work."""
        workers = self.at_work(self.draw.choice(self.STEPS))
        self.verdict.faults.append(kind)
        one = self.draw.choice(self.nodes)
        match kind:
            case "worker":
                send(self.draw.choice(workers), signal.SIGKILL)
            case "all workers":
                for pid in workers:
                    send(pid, signal.SIGKILL)
            case "come":
                if len(self.nodes) < MOST_NODES:
                    self.come()
            case _:
                self.befall(kind, one, workers)

    @contextmanager
    def striking(self, what: str) -> Iterator[None]:
        """Have the first worker that comes to this phase suffer it; meanwhile the caller may bring that about."""
        self.verdict.faults[-1] += f" {what}"
        strike = self.directory / what
        strike.touch()
        yield
        end = time.monotonic() + STRIKES_S
        while strike.exists() and time.monotonic() < end:
            time.sleep(0.01)
        strike.unlink(missing_ok=True)

    def _show_stacks(self) -> None:
        """Where each worker is, in the logs."""
        for node in self.nodes:
            for pid in node.family():
                if f"{self.NAME}.py" in shown_by(pid) and "softrun" not in shown_by(pid):
                    send(pid, STACKS_SIGNAL)
        time.sleep(STACKS_S)

    def _finish(self) -> None:
        """No more faults: let it come to its end."""
        self.at_work(3)
        (self.directory / "finish").touch()
        codes = [node.wait(PATIENCE_S) for node in self.nodes]
        assert set(codes) == {0}, f"at the end, the nodes have exited with {codes}"
