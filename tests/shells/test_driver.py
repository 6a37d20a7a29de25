"""The order in which the loop of an agent looks at things, on a clock that the test moves."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from softrun.agent.loop.driver import CALLS_S, Driver
from softrun.agent.loop.observation_queue import ObservationQueue
from softrun.agent.loop.ready_files import handle_ready
from softrun.agent.protocol.effects import Effect, End, Outcome, Result
from softrun.agent.protocol.observations import Observation, Signalled, Tick
from softrun.agent.workers.call_lines import ONLY_CALLS

DONE = Result(Outcome.SUCCEEDED)
STEP_S = 0.001  # a call comes as often


class Calm(selectors.DefaultSelector):
    """Whatever comes, comes at once; what a handler returns is said by the test."""

    def __init__(self, comes: Callable[[float | None], list[object]]) -> None:
        super().__init__()
        self._comes = comes
        self._ready: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        came = enumerate(self._comes(timeout))
        self._ready = {fd: selectors.SelectorKey(fd, fd, 1, lambda _, what=what: what) for fd, what in came}
        return [(key, 1) for key in self._ready.values()]

    def get_map(self) -> Any:
        return self._ready


class Agent:
    """A driver on a clock, and when it looked at what."""

    def __init__(self, comes: Callable[[float], list[object]], due: float, until: float) -> None:
        self.now, self.until, self.due = 0.0, until, due
        self.swept: list[float] = []
        self.listened: list[float] = []
        self.ticked: list[float] = []

        def select(timeout: float | None) -> list[object]:
            came = comes(self.now)
            self.now += STEP_S if came or timeout is None else max(timeout, STEP_S)
            return came

        selector = Calm(select)
        self.queue = ObservationQueue(selector)
        due = lambda: None if self.ticked[1:] else self.due  # noqa: E731
        engine = SimpleNamespace(observe=self._observe, deadline=due, last_words=None)
        links: Any = SimpleNamespace(
            flush=lambda: None, deadline=lambda: None, sweep=lambda: self.swept.append(self.now)
        )
        supervisor: Any = SimpleNamespace(listen=lambda: self.listened.append(self.now))
        anything: Any = SimpleNamespace()
        self.driver = Driver(
            engine, selector, self.queue, None, links, anything, supervisor, anything, lambda: self.now
        )  # type: ignore[arg-type]

    def _observe(self, observation: Observation, now: float) -> list[Effect]:
        if isinstance(observation, Tick):
            self.ticked.append(now)
        return [End(DONE)] if now >= self.until else []


@pytest.mark.parametrize("comes", [[ONLY_CALLS], [ONLY_CALLS, ONLY_CALLS]])
def test_calls_without_end_starve_nothing(comes: list[object]) -> None:
    """The links, the channels and the engine's deadline wait for 5 ms at most, while calls come in each millisecond."""
    agent: Agent

    def come(now: float) -> list[object]:
        agent.queue.put(Tick() if now >= agent.until else Signalled(0))
        return comes

    agent = Agent(come, due=0.0505, until=0.2)
    assert agent.driver.run() == DONE
    for looks in (agent.swept, agent.listened):
        gaps = [after - before for before, after in zip([0.0, *looks], [*looks, agent.until], strict=True)]
        assert max(gaps) <= CALLS_S + 2 * STEP_S
        assert len(looks) <= 0.2 / CALLS_S + 1, "and no more often than that"
    assert 0.0505 <= agent.ticked[1] <= 0.0505 + CALLS_S + 2 * STEP_S


def test_whatever_else_comes_is_looked_at_at_once() -> None:
    agent: Agent

    def come(now: float) -> list[object]:
        if now >= agent.until:
            agent.queue.put(Tick())
        return [ONLY_CALLS, None]

    agent = Agent(come, due=1.0, until=0.02)
    assert agent.driver.run() == DONE
    assert len(agent.listened) >= 19


def test_when_calls_cease_all_is_looked_at_soon() -> None:
    """And then nothing before it is due."""
    agent: Agent

    def come(now: float) -> list[object]:
        if now >= agent.until:
            agent.queue.put(Tick())
        return [ONLY_CALLS] if now < 0.003 or now >= agent.until else []

    agent = Agent(come, due=0.5, until=0.5)
    assert agent.driver.run() == DONE
    assert [at for at in agent.listened if 0.003 < at <= 0.003 + CALLS_S + 2 * STEP_S]
    assert len(agent.listened) <= 4


@pytest.mark.parametrize("first", [0, 1])
def test_a_file_that_is_closed_when_another_is_ready_is_left_alone(first: int) -> None:
    """As a worker's exit closes the pipe on which its function says that it has returned; both may be ready at once."""
    with selectors.DefaultSelector() as selector:
        pairs = [socket.socketpair() for _ in range(2)]
        called: list[int] = []

        def ready(number: int) -> int:
            called.append(number)
            for ours, theirs in pairs:
                selector.unregister(ours)
                ours.close()
                theirs.close()
            return number

        for number in (first, 1 - first):
            ours, theirs = pairs[number]
            selector.register(ours, selectors.EVENT_READ, lambda _mask, number=number: ready(number))
            theirs.send(b"ready")
        assert handle_ready(selector, 1.0) == {*called}
        assert len(called) == 1


def test_another_file_of_the_same_number_is_not_taken_for_it() -> None:
    with selectors.DefaultSelector() as selector:
        (ours, theirs), (second, its), (new, news) = (socket.socketpair() for _ in range(3))
        called: list[str] = []

        def ready(other: socket.socket) -> None:
            called.append("first")
            number = other.fileno()
            selector.unregister(other)
            os.dup2(new.fileno(), number)
            selector.register(number, selectors.EVENT_READ, lambda _mask: called.append("another"))

        selector.register(ours, selectors.EVENT_READ, lambda _mask: ready(second) if not called else None)
        selector.register(second, selectors.EVENT_READ, lambda _mask: ready(ours) if not called else None)
        theirs.send(b"ready")
        its.send(b"ready")
        handle_ready(selector, 1.0)
        assert called == ["first"]
        for each in (ours, theirs, second, its, new, news):
            each.close()
