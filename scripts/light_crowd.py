"""Hundreds of light agents in a few processes, so that more than one core has a part in it. See `light_agents`.

Each process is a hall; it obeys commands that come over a pipe, and ends with it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from light_agents import LightAgent, Tally
from softrun.agent.protocol.model import Address, JobSettings
from softrun.agent.store.base import Store

if TYPE_CHECKING:
    from typing_extensions import Self

HALLS = 16
TURN_S = 0.1  # or hundreds of threads that wait for their turn wake up 200 times a second each to ask for it

OpenStore = Callable[[str, Tally], Store]
"""Opens the store for the agent of that name."""


@dataclass(frozen=True)
class Told:
    """All agents that live have been told of a world."""

    at: float  # when the last one was
    leader: str  # the node of rank 0
    listeners: tuple[str, ...]  # the nodes that listen at an endpoint


class Crowd:
    """A job of that many light agents, of whom a few may go. `prepare` is called in each hall before anything starts.

    Without `open_store` the agents keep the record themselves, and meet at `endpoints`.
    Forks: use it in a process that has no threads. Nothing outlives it.
    """

    def __init__(
        self,
        nodes: int,
        open_store: OpenStore | None = None,
        prepare: Callable[[Tally], None] | None = None,
        endpoints: tuple[Address, ...] = (),
        may_go: int = 3,
    ) -> None:
        job = JobSettings(nodes - may_go, nodes, "soft", "no-replace")
        halls = min(HALLS, nodes)
        names = [[f"light-{i}" for i in range(first, nodes, halls)] for first in range(halls)]
        self._hall_of = {name: hall for hall, group in enumerate(names) for name in group}
        self._gone: set[str] = set()
        self._pipes: list[Connection] = []
        fork = multiprocessing.get_context("fork")
        gc.freeze()  # or each hall would copy all of it when it collects garbage
        for group in names:
            ours, theirs = fork.Pipe()
            args = (theirs, [*self._pipes, ours], group, job, open_store, prepare, endpoints)
            process = fork.Process(target=_hall, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
        self._all("ready", 60.0)

    def start(self) -> float:
        """All agents start; returns when."""
        at = time.monotonic()
        self._all("start", 60.0)
        return at

    def told(self, size: int, timeout_s: float = 120.0) -> Told:
        """Wait until all that live have been told of a world of that size."""
        told = self._all("told", timeout_s + 10.0, size, time.monotonic() + timeout_s)
        if any(isinstance(one, str) for one in told):
            raise TimeoutError(f"no world of {size} in {timeout_s:g} s: {sorted(map(str, told))[0]}")
        leaders = [leader for _, leader, _ in told if leader]
        listeners = [listener for *_, listeners in told for listener in listeners]
        return Told(max(at for at, *_ in told), leaders[0], tuple(listeners))

    def die(self, name: str) -> float:
        """That agent's process dies; returns when."""
        return float(self._one(name, "die"))

    def leave(self, name: str) -> float:
        """That agent gets SIGTERM; returns when."""
        return float(self._one(name, "leave"))

    def counts(self) -> Counter[str]:
        return sum(self._all("counts", 60.0), Counter())

    def names(self) -> Sequence[str]:
        return [name for name in self._hall_of if name not in self._gone]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in multiprocessing.active_children():
            process.join(10.0)
            process.kill()

    def _all(self, *command: Any) -> list[Any]:
        name, timeout_s, *args = command
        for pipe in self._pipes:
            pipe.send((name, *args))
        return [_answer(pipe, name, timeout_s) for pipe in self._pipes]

    def _one(self, name: str, command: str) -> Any:
        self._gone.add(name)
        pipe = self._pipes[self._hall_of[name]]
        pipe.send((command, name))
        return _answer(pipe, command, 60.0)


def _answer(pipe: Connection, command: str, timeout_s: float) -> Any:
    if not pipe.poll(timeout_s):
        raise TimeoutError(f"a hall does not answer {command!r} within {timeout_s:g} s")
    return pipe.recv()


def _hall(
    pipe: Connection,
    others: Sequence[Connection],
    names: Sequence[str],
    job: JobSettings,
    open_store: OpenStore | None,
    prepare: Callable[[Tally], None] | None,
    endpoints: tuple[Address, ...],
) -> None:
    for other in others:
        other.close()  # or nobody would see it closed
    sys.setswitchinterval(TURN_S)
    tally = Tally()
    if prepare is not None:
        prepare(tally)
    opens = None if open_store is None else lambda name: open_store(name, tally)
    agents = {name: LightAgent(name, job, opens, tally, endpoints) for name in names}
    living = dict(agents)
    try:
        while True:
            command, *args = pipe.recv()
            match command:
                case "start":
                    for agent in agents.values():
                        agent.start()
                    pipe.send(None)
                case "told":
                    pipe.send(_told(living, *args))
                case "die" | "leave":
                    agent = living.pop(args[0])
                    at = time.monotonic()
                    (agent.die if command == "die" else agent.leave)()
                    pipe.send(at)
                case "counts":
                    pipe.send(tally.counts())
                case "ready":
                    pipe.send(None)
    finally:
        os._exit(0)  # without waiting for any thread


def _told(agents: dict[str, LightAgent], size: int, deadline: float) -> tuple[float, str, list[str]] | str:
    waiting = list(agents.values())
    while waiting:
        waiting = [a for a in waiting if not (a.worlds and a.worlds[-1][1] == size)]
        ended = [f"{a.name} has ended: {a.result}" for a in waiting if a.has_ended]
        if ended or (waiting and time.monotonic() >= deadline):
            return (ended or [f"{a.name} was told of {a.worlds[-1:]}" for a in waiting])[0]
        time.sleep(0.005)
    firsts = [next(at for _, told, at in agent.worlds if told == size) for agent in agents.values()]
    leader = next((agent.name for agent in agents.values() if agent.rank == 0), "")
    return max(firsts, default=0.0), leader, [agent.name for agent in agents.values() if agent.listens]
