"""A worker that another launcher has started, and that has started this agent for itself (`softrun.agent.adopt`).

    agent ──the path of its channel──▶ worker     when it is to enter its first world
    agent ◀──its exit code──────────── worker     when its call is over; its process goes on

Each is a line on a socket that the worker has made. A worker whose process ends without a word has died.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from softrun.agent.workers.processes import Start
from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE
from softrun.runtime.clock import boottime
from softrun.runtime.events import WorkerInfo

_DIED = -int(signal.SIGKILL)
"""Nobody but its parent can know how it died."""
_WORD_BYTES = 64


@dataclass(frozen=True)
class Adoption:
    """The entry point of an agent that starts no process. `local_rank` and so on are as its launcher gave them."""

    pid: int
    connection: socket.socket
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int

    def __post_init__(self) -> None:
        """It is named in reports, as a function is."""
        for name in ("__name__", "__qualname__"):
            object.__setattr__(self, name, "an adopted worker")

    def __call__(self) -> NoReturn:
        """Entry points can be called. The worker of this one runs already."""
        raise AssertionError("an adopted worker is not called")

    def place(self, info: WorkerInfo) -> WorkerInfo:
        """The worker's place, as far as its launcher has given it one: each agent has just one worker."""
        told = {
            "local_rank": self.local_rank,
            "local_world_size": self.local_world_size,
            "group_rank": self.group_rank,
            "group_world_size": self.group_world_size,
        }
        return info.model_copy(update=told)


class Adopted:
    """The worker. It does not end with this agent, and is signalled only if it hangs."""

    def __init__(self, adoption: Adoption, start: Start) -> None:
        self.pid = adoption.pid
        self._connection = adoption.connection
        self._process = os.pidfd_open(self.pid)
        self._either = select.epoll()
        self._either.register(self._process, select.EPOLLIN)
        self._either.register(self._connection, select.EPOLLIN)
        with suppress(OSError):  # it has died, which is noticed next
            self._connection.sendall(f"{start.env[ENVIRONMENT_VARIABLE]}\n".encode())

    def exit_fd(self) -> int:
        return os.dup(self._either.fileno())

    def reap(self, timeout_s: float = 0.0) -> int | None:
        end = boottime() + timeout_s
        while True:
            if (word := self._word()) is not None:
                return int(word) if word.strip() else _DIED
            if select.select([self._process], [], [], 0)[0]:
                return _DIED
            if (left := end - boottime()) <= 0:
                return None
            self._either.poll(left)

    def value(self) -> None:
        return None

    def _word(self) -> bytes | None:
        """What it has said; empty if it will say nothing, None if it may."""
        try:
            return self._connection.recv(_WORD_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return b""
