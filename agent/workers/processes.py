"""One worker process: a program, or a function in a Python of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from softrun.agent.torch_elastic.elastic import (
    NumaOptions,
    SubprocessHandler,
    bind_to_numa,
    record,
    redirect_stderr,
    redirect_stdout,
)
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.lifeline import Lifeline, tie
from softrun.agent.workers.return_values import ReturnedValue
from softrun.runtime.groups.sockets import descriptors


@dataclass(frozen=True)
class Start:
    """What a worker is started with. `env` goes on top of the agent's environment; no `out` or `err` leaves that
    stream the agent's own."""

    entrypoint: Callable[..., Any] | str
    args: tuple[Any, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    out: str = ""
    err: str = ""
    local_rank: int = 0
    numa_options: NumaOptions | None = None


class Process(Protocol):
    """A started worker. It leads a session of its own, so a signal to its group reaches its children as well."""

    pid: int

    def exit_fd(self) -> int:
        """A new descriptor, which can be read when the process has ended. To be asked for before `reap`."""

    def reap(self, timeout_s: float = 0.0) -> int | None:
        """Its exit code, negative for a signal, once it has ended; None if that is not known within the time."""

    def value(self) -> Any:
        """After it has exited 0: what the function returned; None for a program. Raises SoftrunError if that cannot
        be read."""


class Program:
    """A program, started by torch's own handler."""

    def __init__(self, start: Start) -> None:
        self._lifeline = Lifeline()
        try:
            with _marked(start.env.get(reaper.VARIABLE)):
                # The process alone is kept: the handler keeps the files open to which the output is redirected.
                self._process = _Handler(
                    self._lifeline,
                    entrypoint=str(start.entrypoint),
                    args=start.args,
                    env=start.env,
                    stdout=start.out,
                    stderr=start.err,
                    local_rank_id=start.local_rank,
                    numa_options=start.numa_options,
                ).proc
        except BaseException:
            self._lifeline.cut()
            raise
        self.pid: int = self._process.pid

    def exit_fd(self) -> int:
        return os.pidfd_open(self.pid)

    def reap(self, timeout_s: float = 0.0) -> int | None:
        try:
            code = int(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None
        self._lifeline.cut()
        return code

    def value(self) -> None:
        return None


class _Handler(SubprocessHandler):
    """torch's, whose process gets a lifeline as well."""

    def __init__(self, lifeline: Lifeline, **what: Any) -> None:
        self._lifeline = lifeline
        super().__init__(**what)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            args,
            env=env,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
            pass_fds=[self._lifeline.theirs],
            preexec_fn=self._lifeline.tie_a_fork,
        )


class Function:
    """A function, started through multiprocessing."""

    def __init__(self, start_method: str, start: Start) -> None:
        context = multiprocessing.get_context(start_method)
        self._has_server = start_method == "forkserver"
        self._value = ReturnedValue()
        self._lifeline = Lifeline()
        held = Connection(os.dup(self._lifeline.theirs), writable=False)
        forked = start_method == "fork"
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_call,
            args=(start, self._value, held, forked),
            daemon=False,
        )
        # A child has its first environment from us, and the reapers know it by that one until it has taken its mark.
        try:
            with _environment(start.env):
                self._process.start()
        except BaseException:
            self._lifeline.cut()
            raise
        finally:
            held.close()
        self.pid: int = self._process.pid

    def exit_fd(self) -> int:
        # The server's child is not ours: it says the exit code when it has it. The children of one that is ours may go
        # on to hold what the library waits for.
        return os.dup(self._process.sentinel) if self._has_server else os.pidfd_open(self.pid)

    def reap(self, timeout_s: float = 0.0) -> int | None:
        if timeout_s:
            self._process.join(timeout_s)
        if self._process.exitcode is None:
            return None
        self._lifeline.cut()
        return int(self._process.exitcode)

    def value(self) -> Any:
        return self._value.read()


def _call(start: Start, value: ReturnedValue, lifeline: Connection, forked: bool) -> None:
    if isinstance(start.entrypoint, str):
        raise AssertionError("called for a program")
    os.setsid()
    if reaper.VARIABLE in start.env:
        reaper.set_limits(*reaper.limits_with(start.env[reaper.VARIABLE]))
    if forked:
        gc.freeze()  # what the fork copied is not collected here: its threads are not here
        _forget_the_agents_files(value, lifeline)
    tie(lifeline.fileno())
    os.environ.update(start.env)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL if signum != signal.SIGINT else signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    with ExitStack() as stack:
        if start.out:
            stack.enter_context(redirect_stdout(start.out))
        if start.err:
            stack.enter_context(redirect_stderr(start.err))
        bound = bind_to_numa(start.entrypoint, start.local_rank, start.numa_options)
        record(value.write)(record(bound)(*start.args))


@contextmanager
def _marked(mark: str | None) -> Iterator[None]:
    """Who is started in the block has the mark from its first instruction on."""
    before = resource.getrlimit(reaper.LIMIT)
    if mark is not None:
        reaper.set_limits(*reaper.limits_with(mark))
    try:
        yield
    finally:
        reaper.set_limits(*before)


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """The process's environment with some variables set, for the time of the block."""
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _forget_the_agents_files(*but: ReturnedValue | Connection) -> None:
    """A forked child has all the agent's descriptors: while it holds them, nobody sees the agent's end.

    The numbers stay taken, by something harmless: objects that came along with the fork close theirs when they are
    collected, whoever has that number then.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise AssertionError("called in the agent itself")
    kept = {0, 1, 2, int(parent.sentinel), *(each.fileno() for each in but)}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors():
        if number not in kept and number != nothing:
            with suppress(OSError):  # the listing's own is closed by now
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def signal_group(pid: int, signum: int) -> None:
    """Signal the worker and its children; one that has ended meanwhile is not an error."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)  # it has not made its session yet


def signal_main_thread(pid: int, signum: int) -> None:
    """Signal that thread of the process, or any if the system cannot; one that has ended is not an error."""
    to_thread = getattr(ctypes.CDLL(None), "tgkill", None)
    with suppress(ProcessLookupError, PermissionError):
        if to_thread is None:
            os.kill(pid, signum)
        else:
            to_thread(pid, pid, signum)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process. One that is being debugged is not meant."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
