"""A policy counts by its table, whatever its name: a third party's with hard's table is treated as hard is."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler

from softrun.agent.errors import UsageError
from softrun.agent.local_agent import LocalElasticAgent
from softrun.agent.store.settings import RendezvousSettings
from softrun.policies import HardRestartPolicyStrategy, SoftRestartPolicyStrategy, load_policy


class Firm(HardRestartPolicyStrategy):
    """Somebody else's."""


class Gentle(SoftRestartPolicyStrategy):
    """Somebody else's."""


class ForeignHandler(RendezvousHandler):  # type: ignore[misc]
    def get_backend(self) -> str:
        return "foreign"

    def next_rendezvous(self) -> Any:
        raise AssertionError("nobody meets here")

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "job"

    def shutdown(self) -> bool:
        return True


class EntryPoint:
    def __init__(self, name: str, policy: type) -> None:
        self.name, self.load = name, lambda: policy


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("firm", Firm), EntryPoint("gentle", Gentle)]
    monkeypatch.setattr(
        "softrun.policies.registry.entry_points",
        lambda group, name=None: [point for point in points if name in (None, point.name)],
    )


@pytest.mark.parametrize(("name", "wait_s"), [("hard", 30), ("firm", 30), ("soft", 0.3), ("gentle", 0.3)])
def test_the_last_call_is_long_where_growth_restarts_all_workers(name: str, wait_s: float) -> None:
    assert RendezvousSettings.parse({}, load_policy(name)).last_call_timeout == wait_s
    assert RendezvousSettings.parse({"last_call_timeout": 2}, load_policy(name)).last_call_timeout == 2


@pytest.mark.parametrize(("name", "allowed"), [("hard", True), ("firm", True), ("soft", False), ("gentle", False)])
def test_a_handler_of_torchs_kind_takes_what_restarts_everybody(name: str, allowed: bool) -> None:
    spec = WorkerSpec(role="default", local_world_size=1, rdzv_handler=ForeignHandler(), entrypoint=print)

    def make() -> LocalElasticAgent:
        return LocalElasticAgent(spec, DefaultLogsSpecs(), restart_policy=name)

    if allowed:
        make()
    else:
        with pytest.raises(UsageError, match="can only restart every worker"):
            make()
