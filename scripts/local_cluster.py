"""Several nodes on one machine: starts launchers, kills them as faults do, and reads what the workers logged.

Used by the demo, the benchmark and the tests. It works for softrun and for torchrun alike: a node is a launcher process
and everything that it has started; a worker is known by the lines that it writes into the step log.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

STEP_LOG = "SOFTRUN_STEP_LOG"
PORTS = range(12_000, 32_000)
POLL_S = 0.05  # what happens meanwhile has its own times, and looking costs those who are looked at
PATIENCE_S = 100.0  # for whatever ends by itself, however busy the machine is: only a failure takes as long
COMMON_ENV = {
    "OMP_NUM_THREADS": "1",
    # A name service that drops reverse look-ups costs every TCPStore connection 5 s without this.
    "RES_OPTIONS": "timeout:1 attempts:1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch's warnings of lost peers have a stack of C++ each
}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Step:
    """One line of a step log: a worker has completed a step. `mono` is comparable between processes of one machine."""

    mono: float
    pid: int
    rank: int
    world_size: int
    round: int
    step: int
    begun: int = 0
    """How many steps the process had begun; from the benchmark's trainers alone, as what follows."""
    cpu_s: float = 0.0
    """The processor time that all threads of the process had taken."""
    own_s: float = 0.0
    """As much of it as the main thread took for the steps themselves."""


class Process(Protocol):
    """As much of `subprocess.Popen` as a node needs."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


Begin = Callable[[Sequence[str], Mapping[str, str], Path], Process]
"""Starts a command in an environment and in a session of its own; its output goes to a file."""


def begin(command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)


@dataclass
class Node:
    """A launcher, in a session of its own."""

    name: str
    process: Process
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> list[int]:
        """The launcher and all its living descendants."""
        return [self.process.pid, *descendants(self.process.pid)]

    def kill(self) -> float:
        """Kill the agent and all that it has started, but for its orphan reapers, which tell its peers.

        Returns when, by the monotonic clock.
        """
        return self._kill([pid for pid in self.family() if not _is_reaper(pid)])

    def kill_all(self) -> float:
        """Kill the orphan reapers as well, so that nobody can tell of the end of this node."""
        family = self.family()
        for pid in family:
            send(pid, signal.SIGSTOP)  # or a reaper tells of the agent's end before its own comes
        return self._kill(family)

    def _kill(self, pids: list[int]) -> float:
        at = time.monotonic()
        for pid in pids:
            send(pid, signal.SIGKILL)
        self.process.wait()
        return at

    def signal_family(self, signum: int) -> float:
        family = self.family()
        at = time.monotonic()
        for pid in family:
            send(pid, signum)
        return at

    def signal(self, signum: int) -> float:
        at = time.monotonic()
        send(self.process.pid, signum)
        return at

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code. Raises TimeoutError, with the end of the log."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} has not ended within {timeout_s:g} s\n{self.output()[-3000:]}") from None


class LocalCluster:
    """A directory of logs and the nodes that write there. Use it as a context manager: nothing outlives it."""

    def __init__(self, directory: Path, env: dict[str, str] | None = None, begin: Begin = begin) -> None:
        self.directory = directory
        self._begin = begin
        self.steps_directory = directory / "steps"
        self.steps_directory.mkdir(parents=True, exist_ok=True)
        self.nodes: list[Node] = []
        self.while_waiting: Callable[[], None] = lambda: None
        """Called about 20 times a second while `wait_for` waits: a program can show there that it is alive."""
        self._steps: list[Step] = []
        self._read: dict[Path, int] = {}  # how far each log was read
        self._env = {
            **os.environ,
            STEP_LOG: str(self.steps_directory),
            "SOFTRUN_CHANNEL_ROOT": str(directory),
            **COMMON_ENV,
            **(env or {}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            for pid in node.family():
                send(pid, signal.SIGKILL)
        for node in self.nodes:
            node.process.wait()
        for pid in self._left():
            send(pid, signal.SIGKILL)

    def start(self, name: str, command: Sequence[str], env: dict[str, str] | None = None) -> Node:
        log = self.directory / f"{name}.log"
        node = Node(name, self._begin(command, self._env | (env or {}), log), log)
        self.nodes.append(node)
        return node

    def steps(self) -> list[Step]:
        """All lines so far, in the order of time."""
        before = len(self._steps)
        for path in self.steps_directory.glob("*.jsonl"):
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                *lines, _unfinished = log.read().split(b"\n")
            self._read[path] = self._read.get(path, 0) + sum(len(line) + 1 for line in lines)
            for line in lines:
                fields = json.loads(line)
                known = {name: value for name, value in fields.items() if name in Step.__dataclass_fields__}
                self._steps.append(Step(**known))
        if len(self._steps) > before:
            self._steps.sort(key=lambda step: step.mono)
        return list(self._steps)

    def orphans(self) -> list[int]:
        """Processes that belong to this cluster and whose launcher has ended, but for its orphan reapers: they go on
        for a while to tell of that."""
        return [pid for pid in self._left() if not _is_reaper(pid)]

    def _left(self) -> list[int]:
        living = {pid for node in self.nodes for pid in node.family() if alive(pid)}
        return [pid for pid in all_pids() if pid not in living and marked(pid, str(self.steps_directory))]

    def wait_for(self, what: str, condition: Callable[[], _T | None], timeout_s: float = PATIENCE_S) -> _T:
        """Ask `condition` until it answers; its answer. Raises TimeoutError, with the ends of all logs."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = condition()
            if answer:
                return answer
            self.while_waiting()
            if time.monotonic() >= deadline:
                logs = "\n".join(f"--- {node.name}\n{node.output()[-3000:]}" for node in self.nodes)
                raise TimeoutError(f"not within {timeout_s:g} s: {what}\n{logs}")
            time.sleep(POLL_S)

    def wait_for_steps(
        self, workers: int, after: float = 0.0, each: int = 3, timeout_s: float = PATIENCE_S
    ) -> list[Step]:
        """Until `workers` processes have each logged `each` steps in one world of just that size after `after`."""

        def ready() -> list[Step] | None:
            recent = [s for s in self.steps() if s.mono > after and s.world_size == workers]
            newest = max((s.round for s in recent), default=0)
            counts: dict[int, int] = {}
            for s in recent:
                if s.round == newest:
                    counts[s.pid] = counts.get(s.pid, 0) + 1
            return recent if sum(count >= each for count in counts.values()) == workers else None

        return self.wait_for(f"{workers} workers step", ready, timeout_s)


def recovery(steps: Sequence[Step], at: float, survivors: set[int]) -> float | None:
    """Seconds from the fault at `at` to the first step that every survivor completed in a later world than the one
    that the fault ended; None if one of them has not yet."""
    before = max((s.round for s in steps if s.mono <= at), default=0)
    firsts: dict[int, float] = {}
    for s in steps:
        if s.mono > at and s.round > before and s.pid in survivors:
            firsts.setdefault(s.pid, s.mono)
    return max(firsts.values()) - at if survivors <= set(firsts) else None


def softrun_command(
    *flags: str, script: str | Path, args: Sequence[str] = (), python: str = sys.executable
) -> list[str]:
    return [python, "-m", "softrun", *flags, str(script), *args]


def end_in_order_on_sigterm() -> None:
    """Make SIGTERM leave the `with` blocks, so that no node outlives the script that started it."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not break off what ends the nodes
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def free_port() -> int:
    """Return a free port outside the range from which the kernel gives ports."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def send(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def alive(pid: int) -> bool:
    """It runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_ended(pid: int, within_s: float = 10.0) -> bool:
    """Waits for it."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def marked(pid: int, mark: str) -> bool:
    """It runs, and has the mark in its environment."""
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes() and alive(pid)
    except OSError:
        return False


def shown_by(pid: int) -> str:
    """Its command line as `ps` shows it; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").rstrip()
    except OSError:
        return ""


def _is_reaper(pid: int) -> bool:
    return shown_by(pid).startswith("orphan reaper of") or "orphan_reaper_main" in shown_by(pid)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for other in all_pids():
        try:
            parent = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(other)
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
