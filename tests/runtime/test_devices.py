"""Which device a group is bound to, and what is said if this torch or this machine cannot build it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, run
from torch.distributed.device_mesh import init_device_mesh

from softrun.runtime.groups.devices import check_backend, own_device
from softrun.runtime.groups.leftovers import meshes


@pytest.mark.parametrize(
    ("version", "switch", "backend", "device"),
    [
        ("2.13.0", None, "nccl", None),
        ("2.14.1", None, "nccl", None),
        ("2.14.1", "1", "nccl", "cuda:3"),
        ("2.15.0", None, "nccl", "cuda:3"),
        ("2.15.0", None, "cpu:gloo,cuda:nccl", "cuda:3"),
        ("2.15.0", "0", "nccl", None),
        ("2.15.0", "0", "nccl2", "cuda:3"),
        ("2.15.0", None, "nccl-legacy", None),
        ("2.15.0", None, "gloo", None),
    ],
)
def test_a_backend_that_would_guess_its_device_is_told(
    monkeypatch: pytest.MonkeyPatch, version: str, switch: str | None, backend: str, device: str | None
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    if switch is not None:
        monkeypatch.setenv("TORCH_DIST_USE_NCCL2", switch)
    assert own_device(backend, 3) == (None if device is None else torch.device(device))


def test_a_backend_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error of NCCL's, which would be taken for a lost peer's."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        with pytest.raises(ValueError, match=r"^the backend 'nccl': torch .* is built without it; it has gloo: name"):
            check_backend(backend, None)
    with pytest.raises(ValueError, match="the backend 'glo': "):
        check_backend("glo", None)
    check_backend("gloo", None)
    check_backend("cpu:gloo", None)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_backend("nccl", torch.device("cuda", 1))
    with pytest.raises(ValueError, match=r"^the device cuda:2: torch finds 2 CUDA devices here; start at most as many"):
        check_backend("nccl", torch.device("cuda", 2))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="take the backend gloo"):
        check_backend("nccl", None)


@pytest.mark.processes
def test_a_mesh_that_the_world_cannot_hold() -> None:
    def build(_me: Me) -> None:
        meshes.begin_world(3)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with pytest.raises(
            RuntimeError,
            match=r"DeviceMesh\(\(replicate=2, shard=2\), 'cpu', .*\) is for 4 ranks, but world 3 has 1: build it from",
        ):
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        assert init_device_mesh("cpu", (1,)).size() == 1

    run(build)
