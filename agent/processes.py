"""One worker process: a program, or a function in a Python of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from softrun.agent.elastic import (
    NumaOptions,
    bind_to_numa,
    get_subprocess_handler,
    record,
    redirect_stderr,
    redirect_stdout,
)
from softrun.agent.values import ReturnedValue


class Process(Protocol):
    """A started worker. It leads a session of its own, so a signal to its group reaches its children as well."""

    pid: int

    def end(self) -> int:
        """A new descriptor, which can be read when the process has ended. To be asked for before `reap`."""

    def reap(self, timeout_s: float = 0.0) -> int | None:
        """Its exit code, negative for a signal, once it has ended; None if that is not known within the time."""

    def value(self) -> Any:
        """After it has exited 0: what the function returned; None for a program. Raises SoftrunError where that cannot
        be read."""


class Program:
    """A program, started by torch's own handler."""

    def __init__(
        self,
        entrypoint: str,
        args: tuple[str, ...],
        env: dict[str, str],
        out: str,
        err: str,
        local_rank: int,
        numa_options: NumaOptions | None,
    ) -> None:
        # The process alone is kept: the handler keeps the files open to which the output is redirected.
        self._process = get_subprocess_handler(
            entrypoint=entrypoint,
            args=args,
            env=env,
            stdout=out,
            stderr=err,
            local_rank_id=local_rank,
            numa_options=numa_options,
        ).proc
        self.pid: int = self._process.pid

    def end(self) -> int:
        return os.pidfd_open(self.pid)

    def reap(self, timeout_s: float = 0.0) -> int | None:
        try:
            return int(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return None

    def value(self) -> None:
        return None


class Function:
    """A function, started through multiprocessing."""

    def __init__(
        self,
        start_method: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        env: dict[str, str],
        out: str,
        err: str,
        local_rank: int,
        numa_options: NumaOptions | None,
    ) -> None:
        context = multiprocessing.get_context(start_method)
        self._has_server = start_method == "forkserver"
        self._value = ReturnedValue()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_call,
            args=(function, args, env, out, err, local_rank, numa_options, self._value, start_method == "fork"),
            daemon=False,
        )
        # A child has its first environment from us, and the warden knows its own by that one.
        with _environment(env):
            self._process.start()
        self.pid: int = self._process.pid

    def end(self) -> int:
        # The server's child is not ours: it says the exit code when it has it. The children of one that is ours may go
        # on to hold what the library waits for.
        return os.dup(self._process.sentinel) if self._has_server else os.pidfd_open(self.pid)

    def reap(self, timeout_s: float = 0.0) -> int | None:
        if timeout_s:
            self._process.join(timeout_s)
        return None if self._process.exitcode is None else int(self._process.exitcode)

    def value(self) -> Any:
        return self._value.read()


def _call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    env: Mapping[str, str],
    out: str,
    err: str,
    local_rank: int,
    numa_options: NumaOptions | None,
    value: ReturnedValue,
    forked: bool,
) -> None:
    os.setsid()
    _die_with_parent()
    if forked:
        gc.freeze()  # what came along with the fork is not collected here, where its threads are not
        _forget_the_agents_files(value)
    os.environ.update(env)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL if signum != signal.SIGINT else signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    with ExitStack() as stack:
        if out:
            stack.enter_context(redirect_stdout(out))
        if err:
            stack.enter_context(redirect_stderr(err))
        bound = bind_to_numa(function, local_rank, numa_options)
        record(value.write)(record(bound)(*args))


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


def _forget_the_agents_files(value: ReturnedValue) -> None:
    """A forked child has all the agent's descriptors: while it holds them, nobody sees the agent's end.

    The numbers stay taken, by something harmless: objects that came along with the fork close theirs when they are
    collected, whoever has that number then.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise AssertionError("called in the agent itself")
    kept = {0, 1, 2, value.fileno(), int(parent.sentinel)}
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a pathlib.Path would follow the links
        number = int(name)
        if number not in kept and number != nothing:
            with suppress(OSError):  # the listing's own is closed by now
                os.fstat(number)
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _die_with_parent() -> None:
    """A forked child has its parent's environment, by which the warden does not know it: the kernel ends it instead."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def signal_group(pid: int, signum: int) -> None:
    """Signal the worker and its children; one that has ended meanwhile is no error."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)  # it has not made its session yet


def signal_main_thread(pid: int, signum: int) -> None:
    """Signal that thread of the process, where its system knows how to: else any; one that has ended is no error."""
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
