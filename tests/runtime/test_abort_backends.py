"""What is not gloo's is aborted by its own means: a third party's groups, other backends, buffers."""

from __future__ import annotations

import logging
import sys
import threading
import types
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, run
from torch.distributed import distributed_c10d

from local_cluster import PATIENCE_S
from softrun.runtime.groups import abort, group_registry
from softrun.runtime.groups.abort import AbortTransformerEngine, abort_groups, track_groups


class ToyGroup(dist.ProcessGroup):
    """A third party's process group, which is its own backend."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def abort_toys(me: Me) -> None:
    toys: list[ToyGroup] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> ToyGroup:
        toys.append(ToyGroup(rank, size))
        return toys[-1]

    track_groups()
    dist.Backend.register_backend("toy", create, devices=["cpu"])
    dist.init_process_group("toy", store=me.store("toys"), rank=0, world_size=1)
    dist.new_group([0])
    for thread in abort_groups():
        thread.join(PATIENCE_S)
    assert [toy.aborted for toy in toys] == [True, True]
    assert dist.is_initialized(), "torch's registries are left alone"
    assert list(group_registry.registered_groups()) == toys


@pytest.mark.processes
def test_a_group_of_a_third_party_is_aborted_by_its_own_abort() -> None:
    run(abort_toys)


def test_other_backends_are_aborted_by_their_own_abort_all_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As NCCL's, which cannot be had here: what a group of torch's has for each device, once."""
    all_in_abort = threading.Barrier(2)

    class Backend:
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1
            all_in_abort.wait(PATIENCE_S)

    class Broken:
        def abort(self) -> None:
            raise LookupError("a bug of the backend")

    class Checked:
        def __init__(self, backend: Backend) -> None:
            self.wrapped_pg = backend

    class Group:
        def __init__(self, **backends: Any) -> None:
            self._device_types = [torch.device(name) for name in backends]
            self._backends = backends

        def _get_backend(self, device: torch.device) -> Any:
            return self._backends[device.type]

    one, other = Backend(), Backend()
    groups = [Group(cpu=one, cuda=one), Group(cuda=Checked(other)), Group(cuda=Broken())]
    monkeypatch.setattr(distributed_c10d, "ProcessGroup", Group)
    monkeypatch.setattr(abort, "registered_groups", lambda: dict.fromkeys(groups))
    with caplog.at_level(logging.ERROR, "softrun.runtime"):
        for thread in abort_groups():
            thread.join(PATIENCE_S)
    assert [one.aborted, other.aborted] == [1, 1]
    assert not all_in_abort.broken
    assert "a bug of the backend" in caplog.text


def test_the_buffers_of_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    AbortTransformerEngine()()
    destroyed: list[int] = []
    module = types.ModuleType("transformer_engine.pytorch.module.base")
    module.__dict__["destroy_ub"] = lambda: destroyed.append(1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert AbortTransformerEngine()("state") == "state"
    assert destroyed == [1]
