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
    """What a worker is started with. `env` goes on top of the agent's environment. An empty `out` or `err` means the
    agent's own stream."""

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
        """Return a new descriptor, which becomes readable when the process ends. Call this before `reap`."""

    def reap(self, timeout_s: float = 0.0) -> int | None:
        """Return its exit code, negative for a signal; None if it is not known within `timeout_s` seconds."""

    def value(self) -> Any:
        """Return what the function returned, after it has exited 0; None for a program. Raises SoftrunError if it
        cannot be read."""


class Program:
    """A program, started by torch's own handler."""

    def __init__(self, start: Start) -> None:
        self._lifeline = Lifeline()
        try:
            with _marked(start.env.get(reaper.VARIABLE)):
                # Keep only the process: the handler would keep the files of the redirected output open.
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
    """torch's handler, whose process gets a lifeline as well."""

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
    """A function, started through multiprocessing. When it has returned, its process lives until it is released."""

    def __init__(self, start_method: str, start: Start) -> None:
        context = multiprocessing.get_context(start_method)
        self._has_server = start_method == "forkserver"
        self._value = ReturnedValue()
        self._lifeline = Lifeline()
        held = Connection(os.dup(self._lifeline.theirs), writable=False)
        self.gate, gate = context.Pipe()
        """Readable when the function has returned, or the process has ended."""
        forked = start_method == "fork"
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_call,
            args=(start, self._value, held, gate, forked),
            daemon=False,
        )
        # A child starts with our environment, and the reapers know it by that until it has taken its mark.
        try:
            with _environment(start.env):
                self._process.start()
        except BaseException:
            self._lifeline.cut()
            self.gate.close()
            raise
        finally:
            held.close()
            gate.close()
        self.pid: int = self._process.pid

    def has_returned(self) -> bool:
        """Whether the function has, once `gate` is readable; otherwise the process has ended."""
        try:
            self.gate.recv_bytes()
        except (EOFError, OSError):
            return False
        return True

    def release(self) -> None:
        """Let the process end."""
        with suppress(OSError):  # it has ended
            self.gate.send_bytes(b"end")

    def exit_fd(self) -> int:
        # A fork server's child is not ours: the server reports its exit code. The sentinel of our own child may be held
        # open by its children.
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


def _call(start: Start, value: ReturnedValue, lifeline: Connection, gate: Connection, forked: bool) -> None:
    if isinstance(start.entrypoint, str):
        raise AssertionError("called for a program")
    os.setsid()
    if reaper.VARIABLE in start.env:
        reaper.set_limits(*reaper.limits_with(start.env[reaper.VARIABLE]))
    if forked:
        gc.freeze()  # do not collect what the fork has copied: its threads are not here
        _forget_the_agents_files(value, lifeline, gate)
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
        with suppress(EOFError, OSError):
            gate.send_bytes(b"returned")
            gate.recv_bytes()


@contextmanager
def _marked(mark: str | None) -> Iterator[None]:
    """Processes that start in the block carry the mark from their first instruction on."""
    before = resource.getrlimit(reaper.LIMIT)
    if mark is not None:
        reaper.set_limits(*reaper.limits_with(mark))
    try:
        yield
    finally:
        reaper.set_limits(*before)


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Set some variables of the environment during the block."""
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
    """Replace the agent's descriptors in a forked child: as long as it holds them, nobody sees the agent's end.

    The numbers stay taken by something harmless, because copied objects close their number when they are collected,
    whatever it leads to by then.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise AssertionError("called in the agent itself")
    kept = {0, 1, 2, int(parent.sentinel), *(each.fileno() for each in but)}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in descriptors():
        if number not in kept and number != nothing:
            with suppress(OSError):  # the descriptor of the listing is closed by now
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def signal_group(pid: int, signum: int) -> None:
    """Signal the worker and its children; it may have ended meanwhile."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)  # it has not started its session yet


def signal_main_thread(pid: int, signum: int) -> None:
    """Signal the main thread, or any thread if the system cannot choose; the process may have ended."""
    to_thread = getattr(ctypes.CDLL(None), "tgkill", None)
    with suppress(ProcessLookupError, PermissionError):
        if to_thread is None:
            os.kill(pid, signum)
        else:
            to_thread(pid, pid, signum)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; a debugger's stop does not count."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
