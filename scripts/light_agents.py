"""Many agents in one process: the real engine, driver, links and store, with workers that only pretend to run.

For counting and timing what many nodes cost, in the benchmark and the tests.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from softrun.agent import effects as do
from softrun.agent.driver import Driver
from softrun.agent.engine import Engine, EngineConfig
from softrun.agent.links import Links
from softrun.agent.mailbox import Mailbox
from softrun.agent.model import JobSettings
from softrun.agent.observations import Observation, Signalled, WorkerExited, WorkerStoreOpened
from softrun.agent.store import Store, StoreThreads
from softrun.agent.supervisor import Supervisor
from softrun.agent.worker_stores import WorkerStores
from softrun.policies import load_policy

SIGTERM = 15


class LightAgent:
    """One agent in a thread of its own, with one pretended worker. `open_store` is given its node's name."""

    def __init__(self, name: str, job: JobSettings, open_store: Callable[[str], Store]) -> None:
        self.worlds: list[tuple[int, int, float]] = []  # number, world size, when the worker was told
        self.result: do.Result | None = None
        self._selector = selectors.DefaultSelector()
        self._mailbox = Mailbox(self._selector)
        self._links = Links(self._selector, "light", name, "127.0.0.1", self._mailbox.put)
        self._store = StoreThreads(lambda: open_store(name), self._mailbox.post)
        config = EngineConfig(job, name, "127.0.0.1", self._links.port, "light", 1, 0)
        engine = Engine(replace(config, grace_s=1.0), load_policy(job.restart_policy), time.monotonic())
        self._driver = Driver(
            engine,
            self._selector,
            self._mailbox,
            self._store,
            self._links,
            cast("WorkerStores", _PretendedStores(self._mailbox.post)),
            cast("Supervisor", _PretendedWorkers(self)),
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._mailbox.post(Signalled(SIGTERM))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if not self.has_ended:
            raise TimeoutError(f"{self._thread.name} does not end")

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def post(self, observation: Observation) -> None:
        self._mailbox.post(observation)

    def _run(self) -> None:
        self.result = self._driver.run()
        self._links.close()
        self._store.close()
        self._mailbox.close()
        self._selector.close()


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
        self._agent.worlds.append((tell.round, tell.info.world_size, time.monotonic()))

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


def count_calls(client: Any) -> Callable[[], int]:
    """Count what all clients of this class ask of etcd from now on."""
    counted = []
    original = client._until_answered

    def counting(self: Any, ask: Callable[[Any], Any]) -> Any:
        counted.append(None)
        return original(self, ask)

    client._until_answered = counting
    return lambda: len(counted)
