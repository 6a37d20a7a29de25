"""Launchers that are forked from one process which has imported torch (`nursery_main`), and so are their fork servers.

To import torch costs a launcher more than all that it does in most tests, and its fork server as much again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nursery_main import MESSAGE_BYTES, alike

from local_cluster import COMMON_ENV, Process, begin

if TYPE_CHECKING:
    from typing_extensions import Self

MAIN = Path(__file__).with_name("nursery_main.py")
FOR_EVER_S = 1e6
PROGRAM = [sys.executable, "-m", "softrun"]
PADDING = "-" * 4096
"""Room for the command lines and environments of its forks, which they show."""


class Nursery:
    """Starts launchers in a moment. Use it as a context manager."""

    def __init__(self) -> None:
        self._env = {**os.environ, **COMMON_ENV}
        self._begun = 0
        self._ended: dict[int, int] = {}
        """The exit codes, by the launchers' numbers: another one may have the process id of one that has ended."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(MAIN), str(theirs.fileno()), PADDING],
                env={**self._env, "PADDING": PADDING * 4},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def fits(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether a fork that runs this command cannot be told from a process of its own."""
        return list(command[:3]) == PROGRAM and alike(dict(env), self._env)

    def begin(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
        """Start a command whose output goes to `log`, in a session of its own."""
        if not self.fits(command, env):
            return begin(command, env, log)
        log.write_bytes(b"")
        ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # what a process inherits
        self._begun += 1
        order = {
            "number": self._begun,
            "args": command[3:],
            "env": dict(env),
            "here": str(Path.cwd()),
            "log": str(log),
            "ignores_sigint": ignores,
        }
        self._socket.send(json.dumps(order).encode())
        while True:
            news = json.loads(self._socket.recv(MESSAGE_BYTES))
            if "pid" in news:
                return Forked(self, self._begun, news["pid"])
            self._ended[news["ended"]] = news["code"]

    def code_of(self, number: int, wait_s: float) -> int | None:
        """The exit code of a launcher, once it has ended; None if it has not within `wait_s`."""
        until = time.monotonic() + wait_s
        while number not in self._ended:
            readable, _, _ = select.select([self._socket], [], [], max(until - time.monotonic(), 0.0))
            if not readable:
                return None
            news = json.loads(self._socket.recv(MESSAGE_BYTES))
            self._ended[news["ended"]] = news["code"]
        return self._ended[number]


class Forked:
    """One of its launchers, with as much of `subprocess.Popen` as the tests need."""

    def __init__(self, nursery: Nursery, number: int, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery, self._number = nursery, number

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.code_of(self._number, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._nursery.code_of(self._number, FOR_EVER_S if timeout is None else timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(PROGRAM, timeout or 0.0)
        return self.returncode
