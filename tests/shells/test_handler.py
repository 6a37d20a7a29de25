"""softrun's rendezvous handler in the hands of others, and agents that override what torch's run calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters

from local_cluster import free_port
from softrun import LocalElasticAgent, get_rendezvous_handler
from softrun.agent.errors import UsageError
from softrun.agent.torch_elastic.handler import SoftrunRendezvousHandler


@pytest.fixture
def handler_for() -> Callable[..., SoftrunRendezvousHandler]:
    endpoint = f"localhost:{free_port()}"

    def new(backend: str = "c10d", **config: object) -> SoftrunRendezvousHandler:
        handler = get_rendezvous_handler(RendezvousParameters(backend, endpoint, "job", 1, 1, **config))
        assert isinstance(handler, SoftrunRendezvousHandler)
        return handler

    return new


def spec_for(handler: SoftrunRendezvousHandler, entrypoint: Callable[[], object] = print) -> WorkerSpec:
    return WorkerSpec("x", 1, handler, max_restarts=1, entrypoint=entrypoint, monitor_interval=0.05)


def test_a_closed_job_is_closed_for_all_its_handlers_until_the_one_that_closed_it_is_gone(
    handler_for: Callable[..., SoftrunRendezvousHandler],
) -> None:
    handler, second = handler_for(), handler_for()
    assert not second.is_closed()
    handler.set_closed()
    for closed in (handler, second):
        assert closed.is_closed()
        with pytest.raises(RendezvousClosedError, match="choose another run id"):
            LocalElasticAgent(spec_for(closed), DefaultLogsSpecs()).run()
        with pytest.raises(RendezvousClosedError):
            closed.next_rendezvous()
    del handler, closed
    assert not second.is_closed()


def test_closing_a_static_job_does_nothing_as_in_torch(handler_for: Callable[..., SoftrunRendezvousHandler]) -> None:
    handler = handler_for("static", rank=0)
    handler.set_closed()
    assert not handler.is_closed()


@pytest.mark.parametrize(("backend", "config"), [("c10d", {}), ("static", {"rank": 0})])
def test_agents_of_another_kind_meet_as_torchs_do(
    backend: str, config: dict[str, object], handler_for: Callable[..., SoftrunRendezvousHandler]
) -> None:
    handler = handler_for(backend, **config)
    met = handler.next_rendezvous()
    assert (met.rank, met.world_size) == (0, 1)
    assert handler.num_nodes_waiting() == 0
    assert handler.use_agent_store
    handler.set_closed()
    assert handler.is_closed() == (backend == "c10d")
    assert handler.shutdown()


def test_torch_has_no_rendezvous_for_etcd3(handler_for: Callable[..., SoftrunRendezvousHandler]) -> None:
    with pytest.raises(UsageError, match="torch's agents"):
        handler_for("etcd3").next_rendezvous()


class Mine(LocalElasticAgent):
    """A program's own, which sees its workers start."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.started = 0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.started += 1
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started


def seven() -> int:
    return 7


def test_methods_that_a_program_overrides_are_called(handler_for: Callable[..., SoftrunRendezvousHandler]) -> None:
    agent = Mine(spec_for(handler_for(), seven), DefaultLogsSpecs(), start_method="fork")
    assert agent.run().return_values == {0: 7}
    assert agent.started == 1


def test_a_method_that_is_replaced_on_the_agent_itself_is_called(
    handler_for: Callable[..., SoftrunRendezvousHandler],
) -> None:
    agent = LocalElasticAgent(spec_for(handler_for(), seven), DefaultLogsSpecs(), start_method="fork")
    right, stopped = agent._stop_workers, []

    def stop(group: WorkerGroup) -> None:
        stopped.append(group)
        right(group)

    agent._stop_workers = stop  # type: ignore[method-assign]
    agent._exit_barrier = lambda: stop(agent.get_worker_group())  # type: ignore[method-assign]
    assert agent.run().return_values == {0: 7}
    assert stopped


def test_a_policy_that_would_not_call_them_refuses_them(handler_for: Callable[..., SoftrunRendezvousHandler]) -> None:
    with pytest.raises(UsageError, match="Mine overrides _start_workers"):
        Mine(spec_for(handler_for()), DefaultLogsSpecs(), restart_policy="soft")
