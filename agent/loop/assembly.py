"""One agent put together: the engine and the shells around it, for one run.

Importing this module imports torch.
"""

from __future__ import annotations

import resource
import selectors
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.links.links import Links
from softrun.agent.loop.driver import Driver
from softrun.agent.loop.observation_queue import ObservationQueue, SignalsToQueue
from softrun.agent.proof.testament import Testament
from softrun.agent.protocol.effects import Result
from softrun.agent.protocol.observations import Observation
from softrun.agent.snapshots.keeper import SnapshotKeeper
from softrun.agent.store.backends import Backend
from softrun.agent.store.base import StoreThreads
from softrun.agent.workers.stores import WorkerStores
from softrun.agent.workers.supervisor import Supervisor
from softrun.policies import RestartPolicyStrategy
from softrun.runtime.calls import NODE_VARIABLE
from softrun.runtime.clock import boottime

SWITCH_INTERVAL_S = 0.0005

Observe = Callable[[Observation], None]


def run_agent(
    config: EngineConfig,
    policy: RestartPolicyStrategy,
    backend: Backend,
    signals: Iterable[str],
    supervised: Callable[[selectors.BaseSelector, Observe, Observe, Sequence[int]], Supervisor],
) -> tuple[Result, Supervisor]:
    """Run an agent until it ends; returns its result and its supervisor, all of whose workers have ended."""
    _allow_many_files()
    selector = selectors.DefaultSelector()
    observations = ObservationQueue(selector)
    with _threads_in_turns(), SignalsToQueue(signals, observations):
        links = Links(
            selector,
            job=backend.job,
            node=config.node,
            host=config.host,
            observe=observations.put,
            secret=backend.secret,
            bind=backend.bind,
            listens=backend.listens,
            is_only_host=backend.is_only_host,
        )
        store = StoreThreads(backend.open, observations.put_threadsafe) if backend.open is not None else None
        relay = links.relay_to if backend.named_store is not None else None
        testament = Testament(links.about)
        worker_stores = WorkerStores(observations.put_threadsafe, backend.bind, relay)
        has_peers = config.job.max_nodes > 1
        descriptors = (links.descriptor, testament.descriptor) if has_peers else ()
        supervisor = supervised(selector, observations.put, observations.put_threadsafe, descriptors)
        keeper = SnapshotKeeper(supervisor.directory, config.host, backend.bind, selector)
        supervisor.add_to_environments({**keeper.environment, NODE_VARIABLE: config.node})
        engine = Engine(replace(config, port=links.port), policy, boottime())
        driver = Driver(engine, selector, observations, store, links, worker_stores, supervisor, testament.write)
        try:
            return driver.run(), supervisor
        except BaseException:
            supervisor.give_up()
            raise
        finally:
            links.close()
            if store is not None:
                store.close()
            worker_stores.close_all()
            keeper.close()
            supervisor.close()
            testament.close()
            observations.close()
            selector.close()


@contextmanager
def _threads_in_turns() -> Iterator[None]:
    """Switch threads more often than every 5 ms, Python's default: a store's answer must not wait for a busy loop."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _allow_many_files() -> None:
    """A leader holds a connection for every node, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
