"""The agent's side of its reapers. There are two, and each can do the work alone, in case one is killed with the agent.
A reaper that ends is replaced."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from softrun.agent.workers import orphan_reaper_main as reaper

_COUNT = 2
_STARTS = 10
_FAREWELL_S = 1.0

logger = logging.getLogger("softrun")


class OrphanReapers:
    """Starts the reapers. With the descriptors of its listening socket and testament they answer for the agent."""

    def __init__(
        self, token: str, directory: Path, selector: selectors.BaseSelector, descriptors: Sequence[int] = ()
    ) -> None:
        self._command = [sys.executable, "-I", "-S", reaper.__file__, token, str(directory), str(os.getpid())]
        self._command += map(str, descriptors)
        self._descriptors = descriptors
        self._selector = selector
        self._starts = 0
        self._living: dict[int, subprocess.Popen[bytes]] = {}  # by pidfd
        try:
            for _ in range(_COUNT):
                self._start()
        except OSError:
            self.close(all_is_well=True)
            raise

    def close(self, all_is_well: bool) -> None:
        """Let the reapers end, and answer for this agent before. Unless `all_is_well`, they kill what is left."""
        for process in self._living.values():
            if process.stdin is None:
                raise AssertionError("an orphan reaper was started without its pipe")
            with suppress(OSError):
                if all_is_well:
                    process.stdin.write(reaper.ALL_IS_WELL)
                process.stdin.close()
        for process in self._living.values() if not self._descriptors else ():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_FAREWELL_S)
        for pidfd in list(self._living):
            self._forget(pidfd)

    def _start(self) -> None:
        self._starts += 1
        # No mark of another agent, inside whose worker this one may run: see orphan_reaper_main.py.
        env = {name: value for name, value in os.environ.items() if name != reaper.VARIABLE}
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=env, start_new_session=True, pass_fds=self._descriptors
        )
        pidfd = os.pidfd_open(process.pid)
        self._living[pidfd] = process
        self._selector.register(pidfd, selectors.EVENT_READ, lambda _mask: self._ended(pidfd))

    def _ended(self, pidfd: int) -> None:
        self._forget(pidfd).communicate()
        if self._starts < _STARTS:
            self._start()
        else:
            logger.warning("an orphan reaper does not stay up: if this agent is killed, its workers may outlive it")

    def _forget(self, pidfd: int) -> subprocess.Popen[bytes]:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        return self._living.pop(pidfd)
