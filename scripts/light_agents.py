"""Many agents in one process: the real engine, driver, links and store, with workers that only pretend to run.

They keep the record themselves, or a store does.

For counting and timing what many nodes cost, in the benchmark and the tests. `light_crowd` spreads them over processes.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.links.connection import Connection
from softrun.agent.links.links import Links
from softrun.agent.loop.driver import Driver
from softrun.agent.loop.observation_queue import ObservationQueue
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.model import Address, JobSettings
from softrun.agent.protocol.observations import Observation, Signalled, Tick, WorkerExited, WorkerStoreOpened
from softrun.agent.store.base import Store, StoreThreads
from softrun.agent.workers.stores import WorkerStores
from softrun.agent.workers.supervisor import Supervisor
from softrun.policies import load_policy

SIGTERM = 15


class Tally:
    """Counts things by name, from any thread."""

    def __init__(self) -> None:
        self._seen: deque[str] = deque()

    def add(self, name: str) -> None:
        self._seen.append(name)  # which is atomic, as adding one to a number is not

    def counts(self) -> Counter[str]:
        return Counter(self._seen.copy())


class LightAgent:
    """One agent in a thread of its own, with one pretended worker.

    `open_store` is given its node's name; with None the agents keep the record themselves, and meet at `endpoints`.
    """

    def __init__(
        self,
        name: str,
        job: JobSettings,
        open_store: Callable[[str], Store] | None,
        tally: Tally | None = None,
        endpoints: tuple[Address, ...] = (),
    ) -> None:
        self.name = name
        self.worlds: list[tuple[int, int, float]] = []  # number, world size, when the worker was told
        self.rank = -1
        self.result: do.Result | None = None
        self._dies = False
        self._selector = selectors.DefaultSelector()
        self._observations = ObservationQueue(self._selector)
        self._links = _CountedLinks(
            tally or Tally(),
            self._selector,
            job="light",
            node=name,
            host="127.0.0.1",
            observe=self._observations.put,
        )
        self._store = (
            StoreThreads(partial(open_store, name), self._observations.put_threadsafe)
            if open_store is not None
            else None
        )
        config = EngineConfig(job, name, "127.0.0.1", self._links.port, "light", 1, 0, endpoints=endpoints)
        # The first world is that of all: its workers complete no step, so others might wait for ever to join it.
        config = replace(config, grace_s=1.0, last_call_s=60.0)
        engine = Engine(config, load_policy(job.restart_policy), time.monotonic())
        self._driver = Driver(
            engine,
            self._selector,
            self._observations,
            self._store,
            self._links,
            cast("WorkerStores", _PretendedStores(self._observations.put_threadsafe)),
            cast("Supervisor", _PretendedWorkers(self)),
            keep=lambda _last_words: None,  # nothing outlives one of these
            clock=self._clock,
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._observations.put_threadsafe(Signalled(SIGTERM))

    def die(self) -> None:
        """As a process that is killed: the kernel closes its sockets, and nobody hears a word."""
        self._dies = True
        self._observations.put_threadsafe(Tick())

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if not self.has_ended:
            raise TimeoutError(f"{self._thread.name} does not end")

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def listens(self) -> bool:
        """Whether it listens at an endpoint, for the others to find it."""
        return self._links.endpoint_port is not None

    def post(self, observation: Observation) -> None:
        self._observations.put_threadsafe(observation)

    def _clock(self) -> float:
        if self._dies:
            raise _DiedError
        return time.monotonic()

    def _run(self) -> None:
        with suppress(_DiedError):
            self.result = self._driver.run()
        self._links.close()
        if self._dies:
            return  # nor does the store hear of it
        if self._store is not None:
            self._store.close()
        self._observations.close()
        self._selector.close()


class _DiedError(Exception):
    pass


class _CountedLinks(Links):
    """Every line that is sent is counted: the messages, by kind, and the greetings."""

    def __init__(self, tally: Tally, *args: Any, **settings: Any) -> None:
        self._tally = tally
        super().__init__(*args, **settings)

    def _send(self, connection: Connection, line: bytes) -> None:
        self._tally.add(f"message {line.partition(b' ')[0].decode()}" if connection.up else "greeting")
        super()._send(connection, line)


class _PretendedStores:
    def __init__(self, post: Callable[[Observation], None]) -> None:
        self._post = post

    def open(self) -> None:
        self._post(WorkerStoreOpened(1))

    def close(self, port: int) -> None:
        pass


class _PretendedWorkers:
    def __init__(self, agent: LightAgent) -> None:
        self._agent = agent

    def spawn(self, order: do.Spawn) -> None:
        for tell in order.tell:
            self.tell(tell)

    def tell(self, tell: do.Tell) -> None:
        self._agent.rank = tell.info.rank
        self._agent.worlds.append((tell.round, tell.info.world_size, time.monotonic()))

    def allow(self, hold_at: float, leave_at: float) -> None:
        pass

    def listen(self) -> None:
        pass

    def signal(self, local_rank: int, launch: int, signum: int) -> None:
        self._agent.post(WorkerExited(local_rank, launch, -signum))


def join_all(nodes: int, open_store: Callable[[str], Store], timeout_s: float = 60.0) -> tuple[list[LightAgent], float]:
    """Start that many agents at once; returns them and the seconds until the last worker was told of their world."""
    job = JobSettings(nodes, nodes, "soft", "no-replace")
    agents = [LightAgent(f"light-{i}", job, open_store) for i in range(nodes)]
    began = time.monotonic()
    for agent in agents:
        agent.start()
    while not all(agent.worlds and agent.worlds[-1][1] == nodes for agent in agents):
        ended = [agent.result for agent in agents if agent.has_ended]
        if ended or time.monotonic() - began > timeout_s:
            worlds = Counter(agent.worlds[-1][:2] if agent.worlds else None for agent in agents)
            raise TimeoutError(f"no world of {nodes} in {timeout_s:g} s: ended are {ended}, in worlds {worlds}")
        time.sleep(0.002)
    return agents, max(agent.worlds[-1][2] for agent in agents) - began


def end_all(agents: Sequence[LightAgent]) -> None:
    for agent in agents:
        agent.leave()
    for agent in agents:
        agent.join(30)


def count_etcd(client: Any, tally: Tally) -> None:
    """Count what all clients of this class ask of etcd from now on, by what is done to which key."""
    call, keep_alive = client.call, client.keep_alive

    def counted_call(self: Any, service: str, method: str, request: Any) -> Any:
        key = bytes(getattr(request, "key", b"")).decode().split("/")
        swaps = method == "Txn" and len(request.compare) > 0
        tally.add(" ".join(["Swap" if swaps else method, *key[2:3]]))
        return call(self, service, method, request)

    def counted_keep_alive(self: Any, lease: int) -> Any:
        tally.add("LeaseKeepAlive")
        return keep_alive(self, lease)

    client.call, client.keep_alive = counted_call, counted_keep_alive


def count_calls(client: Any) -> Callable[[], int]:
    """Count what all clients of this class ask of etcd from now on."""
    counted = []
    original = client._ask

    def counting(self: Any, ask: Callable[[Any], Any]) -> Any:
        counted.append(None)
        return original(self, ask)

    client._ask = counting
    return lambda: len(counted)
