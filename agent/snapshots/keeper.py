"""The agent's side of its keeper of snapshots: the socket at which workers ask, and the process, from when one does."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.runtime.snapshots.keeper import STARTED
from softrun.runtime.snapshots.wire import VARIABLE

NAME = "snapshots"
BACKLOG = 64
STARTS = 3
_FAREWELL_S = 1.0

logger = logging.getLogger("softrun")


class SnapshotKeeper:
    """Starts the keeper when the first worker connects to it, and lets it end with the agent.

    `directory` is one that only this user can enter. Other nodes reach the keeper at `host`; it listens at `bind`.
    """

    def __init__(self, directory: Path, host: str, bind: str, selector: selectors.BaseSelector) -> None:
        self._path = directory / NAME
        self._place = (host, bind)
        self._selector = selector
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._listener: socket.socket | None = None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            listener.listen(BACKLOG)
        except OSError as error:
            logger.warning(
                "this node keeps no snapshots: %s: %s: set SOFTRUN_CHANNEL_ROOT to a short path on a local file system",
                self._path,
                error,
            )
            listener.close()
            return
        self._listener = listener
        self._wait_for_workers()

    @property
    def environment(self) -> dict[str, str]:
        """What tells a worker where the keeper is."""
        return {VARIABLE: str(self._path)} if self._listener is not None else {}

    def close(self) -> None:
        """Let the keeper end."""
        if self._listener is None:
            return
        if self._process is None:
            self._selector.unregister(self._listener)
        else:
            self._end(self._process)
        self._listener.close()
        for path in (self._path, Path(f"{self._path}{STARTED}")):
            path.unlink(missing_ok=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._forget()
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_for_workers(self) -> None:
        if self._listener is None:
            raise AssertionError("waits for workers without a socket")
        self._selector.register(self._listener, selectors.EVENT_READ, lambda _mask: self._start(self._listener))

    def _start(self, listener: socket.socket | None) -> None:
        if listener is None:
            raise AssertionError("starts a keeper without a socket")
        self._selector.unregister(listener)
        self._starts += 1
        command = [sys.executable, "-m", "softrun.agent.snapshots.keeper_main", str(listener.fileno()), *self._place]
        env = {name: value for name, value in os.environ.items() if name != reaper.VARIABLE}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=env, pass_fds=[listener.fileno()], start_new_session=True
            )
        except OSError as error:
            logger.warning("the keeper of this node's snapshots cannot be started, there will be none: %s", error)
            self._give_up()
            return
        self._pidfd = os.pidfd_open(self._process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ, lambda _mask: self._ended())

    def _ended(self) -> None:
        self._forget()
        if self._process is not None:
            self._process.communicate()
        self._process = None
        Path(f"{self._path}{STARTED}").unlink(missing_ok=True)
        if self._starts < STARTS:
            logger.warning("the keeper of this node's snapshots has died, and they are lost with it")
            self._wait_for_workers()
        else:
            logger.warning("the keeper of this node's snapshots does not stay up: there will be none")
            self._give_up()

    def _give_up(self) -> None:
        """Let nobody connect any more: who waits is hung up on."""
        if self._listener is not None:
            self._listener.close()
        with suppress(OSError):
            self._path.unlink()
        self._listener = None

    def _forget(self) -> None:
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
