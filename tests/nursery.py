"""Programs that are forked from one process which has imported torch (`nursery_main`), and so are their fork servers.

To import torch costs a worker more than all that it does in most tests, and a launcher and its fork server twice that.
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

from local_cluster import COMMON_ENV, PATIENCE_S, Process, begin

if TYPE_CHECKING:
    from typing_extensions import Self

MAIN = Path(__file__).with_name("nursery_main.py")
FOR_EVER_S = 1e6
IN_NETWORK = ["ip", "netns", "exec"]
PADDING = "-" * 4096
"""Room for the command lines and environments of its forks, which they show."""


class Nursery:
    """Starts launchers and workers in a moment. Use it as a context manager."""

    def __init__(self) -> None:
        self._env = {**os.environ, **COMMON_ENV}
        self._begun = 0
        self._ended: dict[int, int] = {}
        """The exit codes, by the processes' numbers: another one may have the process id of one that has ended."""
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

    def run(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends, in this folder, where its output is left in hidden files."""
        out, err = folder / ".out", folder / ".err"
        environment = {**os.environ, **COMMON_ENV, **(env or {})}
        code = self.begin(command, environment, out, err, folder).wait(PATIENCE_S)
        texts = (log.read_text(errors="surrogateescape") for log in (out, err))
        return subprocess.CompletedProcess(command, code, *texts)

    def begin(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        errors: Path | None = None,
        here: Path | None = None,
    ) -> Process:
        """Start a command in a session of its own. Its output goes to `log`, that for errors to `errors` if given."""
        network, words = split(command)
        if not words or not alike(dict(env), self._env):
            if words and not alike({**os.environ, **COMMON_ENV}, self._env):
                raise AssertionError("a test has changed what Python or torch reads in the environment, for all others")
            if errors is not None:
                raise AssertionError(f"no fork can stand for {command}")
            return begin(command, env, log)
        for file in (log, errors or log):
            file.write_bytes(b"")
        # What a process inherits; the tests interrupt workers, whatever shell started pytest.
        ignores = words[0] != "-c" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self._begun += 1
        order = {
            "number": self._begun,
            "words": words,
            "network": network,
            "env": dict(env),
            "here": str(here or Path.cwd()),
            "log": str(log),
            "errors": str(errors or log),
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


def split(command: Sequence[str]) -> tuple[str, list[str]]:
    """The network namespace that a command is to run in, if any, and what Python is to run there.

    Nothing, if a fork that runs it could be told from a process of its own.
    """
    words, network = list(command), ""
    if words[: len(IN_NETWORK)] == IN_NETWORK:
        network, *words = words[len(IN_NETWORK) :]
    if words[:1] != [sys.executable]:
        return "", []
    words = words[2:] if words[1:2] == ["-u"] else words[1:]
    return (network, words) if words[:1] in (["-c"], ["-m"]) or (words[:1] and words[0].endswith(".py")) else ("", [])


class Forked:
    """One of the processes, with as much of `subprocess.Popen` as the tests need."""

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
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode
