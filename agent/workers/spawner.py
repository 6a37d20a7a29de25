"""How workers start: forked from a fork server if they cannot tell the difference, otherwise each by itself.

A start takes time: the fork server must get ready, and then fork. The agent waits for neither. A worker waits until the
fork server is ready if its script imports what is loaded there; another would only lose time.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from dataclasses import replace

from softrun.agent.errors import SoftrunError
from softrun.agent.torch_elastic.elastic import WorkerSpec, macros
from softrun.agent.workers.adopted import Adopted, Adoption
from softrun.agent.workers.fork_server import Forked, ForkServer
from softrun.agent.workers.processes import Function, Process, Program, Start

Key = tuple[int, int]
"""The local rank and the launch of a worker."""


class Spawner:
    """Starts workers. In the driver's thread it calls `started` when one runs, and `reapable` when exit codes may be
    known."""

    def __init__(
        self,
        spec: WorkerSpec,
        start_method: str,
        fork_server: ForkServer | None,
        selector: selectors.BaseSelector,
        started: Callable[[Key, Process], None],
        reapable: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._start_method = start_method
        self._fork_server = fork_server
        self._selector = selector
        self._started = started
        self._reapable = reapable
        self._waiting: dict[Key, Start] = {}  # for the fork server to get ready
        self._asked: dict[Key, Start] = {}  # of the fork server, which forks them in this order
        if fork_server is not None:
            selector.register(fork_server, selectors.EVENT_READ, lambda _mask: self._listen())

    def start(self, key: Key, env: dict[str, str], out: str, err: str) -> None:
        """Start a worker, now or later. Raises SoftrunError if that cannot be done."""
        local_rank, _ = key
        spec = self._spec
        args = tuple(macros.substitute(list(spec.args), str(local_rank)))
        entrypoint = spec.entrypoint if callable(spec.entrypoint) else str(spec.entrypoint)
        self._waiting[key] = Start(entrypoint, args, env, out, err, local_rank, spec.numa_options)
        self._go_on()

    def renew(self, key: Key, env: dict[str, str]) -> bool:
        """Give a waiting worker the variables of a newer world; returns False if its start has begun."""
        start = self._waiting.get(key)
        if start is not None:
            self._waiting[key] = replace(start, env=start.env | env)
        return start is not None

    def cancel(self, key: Key) -> bool:
        """Do not start a waiting worker; returns False if its start has begun."""
        return self._waiting.pop(key, None) is not None

    def close(self) -> None:
        """Call this after every worker has ended."""
        if self._fork_server is not None:
            if not self._fork_server.is_gone:
                self._selector.unregister(self._fork_server)
            self._fork_server.close()

    def _go_on(self) -> None:
        fork_server = self._fork_server
        while self._waiting:
            args = [str(arg) for arg in next(iter(self._waiting.values())).args]
            if fork_server is not None and fork_server.is_awaited(args):
                return
            key, start = _take_first(self._waiting)
            forks = fork_server is not None and fork_server.is_ready
            if fork_server is not None and forks and fork_server.ask(args, start.env, start.out, start.err):
                self._asked[key] = start
            else:
                self._started(key, self._by_itself(start))

    def _listen(self) -> None:
        fork_server = self._fork_server
        if fork_server is None:
            raise AssertionError("listens to a fork server that is not there")
        said = fork_server.listen()
        if said is not None:
            key, start = _take_first(self._asked)
            self._started(key, said if isinstance(said, Forked) else self._by_itself(start))
        if fork_server.is_gone:
            self._selector.unregister(fork_server)
            self._waiting = self._asked | self._waiting
            self._asked = {}
        self._go_on()
        self._reapable()

    def _by_itself(self, start: Start) -> Process:
        if isinstance(start.entrypoint, Adoption):
            return Adopted(start.entrypoint, start)
        try:
            return Function(self._start_method, start) if callable(start.entrypoint) else Program(start)
        except Exception as error:  # including what the library that binds to processors raises
            reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
            raise SoftrunError(
                f"worker {start.local_rank} could not be started ({start.entrypoint}: {reason}): look at this "
                "machine's limits and at --numa_binding, or correct the program"
            ) from error


def _take_first(starts: dict[Key, Start]) -> tuple[Key, Start]:
    key = next(iter(starts))
    return key, starts.pop(key)
