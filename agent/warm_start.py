"""Warm starts, the agent's side: workers are forked from a template, where that comes to the same as starting them.

Where it does not, `WarmStarts.start` says why, once, and the worker is to be started by itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softrun.agent import template

ANSWER_S = 5.0
PRELOADED = ("torch", "softrun.runtime")
PADDING = "-" * 4096

# What Python may be given before a script, and a template can be given as well.
_FLAGS = frozenset({"-u", "-B", "-O", "-OO", "-E", "-I", "-s", "-S", "-b", "-bb", "-q", "-P"})
_FLAGS_WITH_VALUE = ("-W", "-X")
# With these Python does at its start or its end what a fork cannot make up for.
_UNFIT_VARIABLES = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")
# These differ from worker to worker, and are read when they are used.
_OF_A_WORKER = (
    *("TORCHELASTIC_", "SOFTRUN_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "RANK", "WORLD_SIZE"),
    *("TORCH_NCCL_", "CUDA_VISIBLE_DEVICES"),
)

logger = logging.getLogger("softrun")


@dataclass(frozen=True)
class Script:
    """A Python script, or a module, and what stands around it on its command line."""

    flags: tuple[str, ...]
    is_module: bool
    name: str
    args: tuple[str, ...]

    @classmethod
    def of(cls, program: str, args: Sequence[str]) -> Script | None:
        """None where that runs no script with this Python."""
        words = list(args)
        if program != sys.executable:
            return None
        flags: list[str] = []
        while words and (words[0] in _FLAGS or words[0].startswith(_FLAGS_WITH_VALUE)):
            flags.append(words.pop(0))
            if flags[-1] in _FLAGS_WITH_VALUE and words:
                flags.append(words.pop(0))
        is_module = words[:1] == ["-m"]
        words = words[is_module:]
        if not words or words[0].startswith("-"):
            return None
        return cls(tuple(flags), is_module, words[0], tuple(words[1:]))

    @property
    def is_source(self) -> bool:
        path = Path(self.name)
        return self.is_module or (path.is_file() and path.suffix != ".pyc" and not zipfile.is_zipfile(path))


class WarmStarts:
    """One template, which is started with this and ends with it."""

    def __init__(self, flags: Sequence[str], env: Mapping[str, str], preload: Sequence[str] = ()) -> None:
        """`env`: above the agent's environment, what all workers have."""
        self._environment = {**os.environ, **env}
        self.is_getting_ready = True  # nothing can be started yet: `listen` when it has something to say
        self.is_gone = False
        self._forked: list[int] = []  # process ids that were not asked for yet
        self._ended: dict[int, int] = {}  # exit codes by process id
        self._told: set[str] = set()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, *flags, template.__file__, str(theirs.fileno()), PADDING]
            self._process = subprocess.Popen(
                [*command, *PRELOADED, *preload],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, args: Sequence[str], env: Mapping[str, str], out: str, err: str) -> WarmProcess | None:
        """Fork a worker that runs this Python with these arguments, with `env` above the agent's environment, and its
        output in the files `out` and `err`, or where the agent's goes. None where it must be started by itself."""
        script = Script.of(sys.executable, args)
        environment = {**os.environ, **env}
        if script is None or not script.is_source:
            self._tell(f"{' '.join(args[:2])} is no source file")
            return None
        if unfit := self._unfit_names(environment):
            self._tell(f"the template started with another value of {unfit}, or Python cannot heed it after a fork")
            return None
        order = {
            "is_module": script.is_module,
            "script": script.name,
            "argv": ["-m" if script.is_module else script.name, *script.args],
            "command": [sys.executable, *args],
            "environment": environment,
            "directory": str(Path.cwd()),
            "out": out,
            "err": err,
        }
        if self.is_gone or not self._send(order):
            return None
        until = time.monotonic() + ANSWER_S
        while not self._forked and self.listen(until - time.monotonic()):
            pass
        return WarmProcess(self, self._forked.pop(0)) if self._forked else None

    def exit_code(self, pid: int, timeout_s: float | None) -> int | None:
        """Of a process that was forked; None if it has not ended within the time."""
        until = time.monotonic() + (ANSWER_S if timeout_s is None else timeout_s)
        while pid not in self._ended and self.listen(until - time.monotonic()):
            pass
        if pid not in self._ended and self.is_gone:
            return -signal.SIGKILL  # nobody knows how: the template that had it was killed
        return self._ended.pop(pid, None)

    def close(self) -> None:
        """After every worker has ended."""
        self.is_gone = True
        self._control.close()
        self._process.wait()

    def _unfit_names(self, environment: Mapping[str, str]) -> str:
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

    def fileno(self) -> int:
        """Of what becomes readable when there is something to listen to."""
        return self._control.fileno()

    def listen(self, for_s: float = 0.0) -> bool:
        """Take in one thing that the template says; False if it says nothing in that time, or nothing any more."""
        if self.is_gone:
            return False
        self._control.settimeout(max(0.001, for_s))
        try:
            message = self._control.recv(template.MESSAGE_BYTES)
        except TimeoutError:
            return False
        except OSError:
            message = b""
        said: dict[str, Any] = json.loads(message) if message else {}
        match said:
            case {"ready": True}:
                self.is_getting_ready = False
            case {"pid": int(pid)}:
                self._forked.append(pid)
            case {"ended": int(pid), "code": int(code)}:
                self._ended[pid] = code
            case _:
                self.is_gone, self.is_getting_ready = True, False
                self._tell(said.get("unfit", "the template has ended"))
        return not self.is_gone

    def _send(self, order: dict[str, Any]) -> bool:
        try:
            self._control.send(json.dumps(order).encode())
        except OSError as error:
            self._tell(f"the template cannot be asked ({error.strerror})")
            return False
        return True


class WarmProcess:
    """A worker that was forked from the template, whose child it is."""

    def __init__(self, template: WarmStarts, pid: int) -> None:
        self._template = template
        self.pid = pid

    def reap(self, timeout_s: float | None = None) -> int | None:
        return self._template.exit_code(self.pid, timeout_s)

    def value(self) -> None:
        return None
