"""One agent put together: the engine, the shells around it, and what comes of its run.

Importing this module imports torch.
"""

from __future__ import annotations

import resource
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from softrun.agent.driver import Driver
from softrun.agent.effects import Outcome, Result
from softrun.agent.elastic import ChildFailedError, DefaultLogsSpecs, SignalException
from softrun.agent.engine import Engine, EngineConfig
from softrun.agent.errors import JobFailedError, RendezvousError, StoreLostError, UsageError
from softrun.agent.links import Links
from softrun.agent.mailbox import Mailbox, SignalsToMailbox
from softrun.agent.store import Store, StoreThreads
from softrun.agent.supervisor import Supervisor, WorkerSpec
from softrun.agent.worker_stores import WorkerStores
from softrun.policies import RestartPolicyStrategy

if TYPE_CHECKING:
    from softrun.agent.launch import LaunchConfig


def run_agent(
    config: LaunchConfig,
    engine_config: EngineConfig,
    policy: RestartPolicyStrategy,
    open_store: Callable[[], Store],
    entrypoint: str | Callable[..., Any],
    args: tuple[Any, ...],
) -> dict[int, Any]:
    """Run an agent until it ends; returns what its workers returned by global rank, or raises how it failed."""
    spec = WorkerSpec(
        entrypoint=entrypoint,
        args=args,
        role=config.role,
        local_world_size=config.nproc_per_node,
        run_id=config.run_id,
        max_restarts=config.max_restarts,
        start_method=config.start_method,
        logs_specs=config.logs_specs or DefaultLogsSpecs(),
        log_line_prefix_template=config.log_line_prefix_template,
        numa_options=config.numa_options,
    )
    _allow_many_files()
    selector = selectors.DefaultSelector()
    mailbox = Mailbox(selector)
    node = engine_config.node
    with SignalsToMailbox(config.signals_to_handle.split(","), mailbox):
        links = Links(selector, config.run_id, node, engine_config.host, mailbox.put)
        store = StoreThreads(open_store, mailbox.post)
        worker_stores = WorkerStores(mailbox.post)
        supervisor = Supervisor(spec, node, selector, mailbox.put, mailbox.post)
        engine = Engine(replace(engine_config, port=links.port), policy, time.monotonic())
        driver = Driver(engine, selector, mailbox, store, links, worker_stores, supervisor)
        try:
            result = driver.run()
            return _outcome(result, supervisor, _name(entrypoint, args))
        finally:
            links.close()
            store.close()
            worker_stores.close_all()
            supervisor.close()
            mailbox.close()
            selector.close()


def _allow_many_files() -> None:
    """A leader holds a connection for every node, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _outcome(result: Result, supervisor: Supervisor, name: str) -> dict[int, Any]:
    match result.outcome:
        case Outcome.SUCCEEDED:
            values = supervisor.values()
            return {rank: values.get(local_rank) for local_rank, rank in result.ranks}
        case Outcome.WORKERS_FAILED:
            failures = {
                failure.rank: supervisor.failure(failure.local_rank, failure.launch, failure.exitcode)
                for failure in result.failures
            }
            raise ChildFailedError(name, failures)
        case Outcome.SIGNALLED:
            raise SignalException(f"this agent got signal {result.signum}", signal.Signals(result.signum))
        case Outcome.RENDEZVOUS_FAILED:
            raise RendezvousError(result.reason)
        case Outcome.STORE_LOST:
            raise StoreLostError(result.reason)
        case Outcome.JOB_FAILED:
            raise JobFailedError(f"the job was ended by the failure of another node ({result.reason}): look at its log")
        case Outcome.USAGE:
            raise UsageError(result.reason)


def _name(entrypoint: str | Callable[..., Any], args: tuple[Any, ...]) -> str:
    """What torch's launcher calls the entry point in its report."""
    if callable(entrypoint):
        return entrypoint.__qualname__
    return next((str(arg) for arg in args if not str(arg).startswith("-")), entrypoint)
