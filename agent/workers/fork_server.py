"""Warm starts, the agent's side: workers are forked from a fork server if they cannot tell the difference.

If they could, `ForkServer.ask` says why, once, and the worker must be started by itself. One difference remains: a
script that changes its environment before it imports torch finds torch imported already.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from softrun.agent.store.settings import PASSWORD_VARIABLE, TOKEN_VARIABLE
from softrun.agent.workers import fork_server_main as program
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.lifeline import Lifeline

PRELOADED = ("torch", "softrun.runtime", "softrun.agent.workers.lifeline", "watchdog.observers")
LISTEN_S, SEND_S = 0.001, 1.0
TOKEN_BYTES = 5
PADDING = "-" * 4096
SCRIPT_FLAGS = ("-u",)
"""The flags that torch's command line gives to Python."""

# Flags of Python that a fork server can be given as well.
_FLAGS = frozenset({"-u", "-B", "-O", "-OO", "-E", "-I", "-s", "-S", "-b", "-bb", "-q", "-P"})
_FLAGS_WITH_VALUE = ("-W", "-X")
# With these Python does things at its start or its end that a fork cannot imitate.
_UNFIT_VARIABLES = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")
# These differ between workers, and are read only when they are used.
_OF_A_WORKER = (
    *("TORCHELASTIC_", "SOFTRUN_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE"),
    *("TORCH_NCCL_", "CUDA_VISIBLE_DEVICES"),
)

logger = logging.getLogger("softrun")


@dataclass(frozen=True)
class Script:
    """A Python script or module, with the flags before it and the arguments after it."""

    flags: tuple[str, ...]
    is_module: bool
    name: str
    args: tuple[str, ...]

    @classmethod
    def of(cls, entrypoint: str, args: Sequence[str]) -> Script | None:
        """Read a command line; None if it does not run a script or a module with this Python."""
        words = list(args)
        if entrypoint != sys.executable:
            return None
        flags: list[str] = []
        while words and (words[0] in _FLAGS or words[0].startswith(_FLAGS_WITH_VALUE)):
            flags.append(words.pop(0))
            if flags[-1] in _FLAGS_WITH_VALUE and words:
                flags.append(words.pop(0))
            if flags[-1].endswith("importtime"):
                return None  # the flag is about imports, which a fork skips
        is_module = words[:1] == ["-m"]
        words = words[is_module:]
        if not words or words[0].startswith("-"):
            return None
        return cls(tuple(flags), is_module, words[0], tuple(words[1:]))

    def names(self, modules: Sequence[str]) -> bool:
        """Whether its text names one of these packages. A module is not looked for: it may."""
        try:
            text = b"" if self.is_module else Path(self.name).read_bytes()
        except OSError:
            return True
        return self.is_module or any(os.fsencode(name.partition(".")[0]) in text for name in modules)

    @property
    def is_source(self) -> bool:
        """Whether it is Python source: only that runs in a fork as it does in a new process."""
        path = Path(self.name)
        return self.is_module or (path.is_file() and path.suffix != ".pyc" and not zipfile.is_zipfile(path))


class Process(Protocol):
    """What is asked of a fork server's process."""

    def kill(self) -> None:
        """End it."""

    def wait(self) -> int:
        """Wait for its end."""


def start(command: list[str], environment: dict[str, str], descriptor: int) -> Process:
    """Start a fork server, in a session of its own, which has this descriptor."""
    return subprocess.Popen(command, env=environment, pass_fds=[descriptor], start_new_session=True)


class ForkServer:
    """Starts a fork server, which ends with this object. Register it with a selector for reading, and call `listen`
    when it is readable."""

    def __init__(self, flags: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """`flags` are Python's. `env` goes on top of the agent's environment."""
        self.token = secrets.token_hex(TOKEN_BYTES)
        """The token by which the reapers know the workers that are forked from it."""
        self.flags = tuple(flags)
        self._modules = list(PRELOADED)
        self.is_ready = False
        self.is_gone = False
        self._environment = {**os.environ, **(env or {}), reaper.VARIABLE: reaper.mark_of(self.token, 0)}
        for secret in (PASSWORD_VARIABLE, TOKEN_VARIABLE):
            self._environment.pop(secret, None)  # only for the agent, which may not have taken it yet
        self._ended: dict[int, int] = {}  # exit codes by process id
        self._told: set[str] = set()
        self._lifelines: deque[Lifeline] = deque()  # of the workers that were asked for, in order
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, *flags, program.__file__, str(theirs.fileno()), PADDING, *PRELOADED]
            self._process = start(command, self._environment, theirs.fileno())

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self._control.fileno()

    def load(self, modules: Sequence[str]) -> None:
        """Have it import these modules as well. Only then is it ready."""
        self._modules += modules
        self._send({"modules": list(modules)})

    def is_awaited(self, args: Sequence[str]) -> bool:
        """Whether a worker that runs this Python should wait until this is ready: it imports what is being loaded."""
        script = Script.of(sys.executable, args)
        return not (self.is_ready or self.is_gone) and script is not None and script.names(self._modules)

    def ask(self, args: Sequence[str], env: Mapping[str, str], out: str, err: str) -> bool:
        """Fork a worker that runs this Python with these arguments. `env` goes on top of the agent's environment; its
        output goes to the files `out` and `err`, or to the agent's own. `listen` returns the workers in the order in
        which they were asked for. Returns False if the worker must be started by itself."""
        if self.is_gone:
            return False
        script = Script.of(sys.executable, args)
        environment = {**os.environ, **env}
        own = self._environment
        directory = _directory()
        if directory is None:
            self._tell("the working directory is gone")
        elif script is None or not script.is_source:
            self._tell(f"{' '.join(args[:2])} is not a source file")
        elif names := self.differing(environment):
            self._tell(
                f"{names} is not what it was for the process that they would be forked from, or is for one alone"
            )
        else:
            return self._send_with_lifeline(
                {
                    "is_module": script.is_module,
                    "script": script.name,
                    "argv": ["-m" if script.is_module else script.name, *script.args],
                    "command": [sys.executable, *args],
                    "set": {name: value for name, value in environment.items() if own.get(name) != value},
                    "unset": sorted(own.keys() - environment.keys()),
                    "limits": [
                        (resource.RLIMIT_NOFILE, *resource.getrlimit(resource.RLIMIT_NOFILE)),
                        (reaper.LIMIT, *reaper.limits_with(environment[reaper.VARIABLE])),
                    ],
                    "signals": [signum for signum in signal.valid_signals() if callable(signal.getsignal(signum))],
                    "directory": directory,
                    "out": out,
                    "err": err,
                }
            )
        return False

    def listen(self, for_s: float = 0.0) -> Forked | Refused | None:
        """Take in one message, if there is one within `for_s` seconds. Returns the worker if it was forked, Refused if
        not, and None for other messages or none."""
        self._control.settimeout(for_s or LISTEN_S)
        try:
            message, pidfds, _, _ = socket.recv_fds(self._control, program.MESSAGE_BYTES, 1)
        except TimeoutError:
            return None
        except OSError:
            message, pidfds = b"", []
        said: dict[str, Any] = json.loads(message) if message else {}
        match said:
            case {"ready": True}:
                self.is_ready = True
            case {"pid": int(pid)} if pidfds:
                return Forked(self, pid, pidfds[0], self._lifelines.popleft())
            case {"ended": int(pid), "code": int(code)}:
                self._ended[pid] = code
            case {"refused": str(why)}:
                self._lifelines.popleft().cut()
                self._tell(why)
                return Refused()
            case _:
                self._gone()
                self._tell(said.get("unfit", "the process that they are forked from has ended"))
        return None

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a process that was forked; None until the fork server has reported it."""
        if pid not in self._ended and self.is_gone:
            return -signal.SIGKILL  # nobody knows: the fork server was killed
        return self._ended.pop(pid, None)

    def close(self) -> None:
        """End it, and forget the workers that were asked for."""
        self._gone()
        self._control.close()
        self._process.kill()  # it may be busy importing
        self._process.wait()

    def differing(self, environment: Mapping[str, str]) -> str:
        """The names of the variables that keep a process with this environment from being forked from it."""
        return ", ".join(
            sorted(
                name
                for name in environment.keys() | self._environment.keys()
                if name in _UNFIT_VARIABLES
                or (environment.get(name) != self._environment.get(name) and not name.startswith(_OF_A_WORKER))
            )
        )

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            logger.warning("workers start cold, each with its own imports: %s", why)

    def _gone(self) -> None:
        self.is_gone = True
        while self._lifelines:
            self._lifelines.pop().cut()

    def _send_with_lifeline(self, order: dict[str, Any]) -> bool:
        lifeline = Lifeline()
        sent = self._send(order, lifeline.theirs)
        if sent:
            self._lifelines.append(lifeline)
        else:
            lifeline.cut()
        return sent

    def _send(self, order: dict[str, Any], *descriptors: int) -> bool:
        self._control.settimeout(SEND_S)
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            self._tell(f"the process that they are forked from cannot be asked ({error})")
            return False
        return True


def _directory() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None


class Forked:
    """A worker that was forked from the fork server, and is its child."""

    def __init__(self, fork_server: ForkServer, pid: int, pidfd: int, lifeline: Lifeline) -> None:
        self._fork_server = fork_server
        self._pidfd = pidfd
        self._lifeline = lifeline
        self.pid = pid

    def exit_fd(self) -> int:
        return self._pidfd

    def reap(self, _timeout_s: float = 0.0) -> int | None:
        code = self._fork_server.exit_code(self.pid)
        if code is not None:
            self._lifeline.cut()
        return code

    def value(self) -> None:
        return None


class Refused:
    """A worker that was asked for, and must be started by itself."""


_begun: list[ForkServer] = []


@contextmanager
def begun(env: Mapping[str, str]) -> Iterator[None]:
    """Start a fork server before it is known what the workers are, so that it imports torch while the agent does. `env`
    is what the agent's environment will have. If nobody has taken it at the end of the block, it is ended."""
    with suppress(OSError):  # reported when one is needed
        _begun.append(ForkServer(SCRIPT_FLAGS, env))
    try:
        yield
    finally:
        while _begun:
            _begun.pop().close()


def fork_server_for(entrypoint: str, args: Sequence[str], preload: Sequence[str]) -> ForkServer | None:
    """The fork server for workers that run this program: the one that was begun, or a new one. None if they cannot be
    forked; the log then says why."""
    script = Script.of(entrypoint, args)
    if script is None:
        logger.warning("workers start cold, each with its own imports: %s is not a Python script", entrypoint)
        return None
    try:
        fork_server = _begun.pop() if _begun else ForkServer(script.flags)
        if fork_server.flags != script.flags or fork_server.differing(dict(os.environ)):
            fork_server.close()
            fork_server = ForkServer(script.flags)
    except OSError as error:
        logger.warning("workers start cold, each with its own imports: the fork server did not start (%s)", error)
        return None
    fork_server.load(preload)
    return fork_server
