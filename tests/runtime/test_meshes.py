"""Device meshes through changes of the world: none of a world that is over is taken for one of the new world."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fake_agent import FakeAgent, Worker
from softrun.runtime.events import WorldChangeEvent

pytestmark = pytest.mark.processes

# The groups are numbered differently in every world, so a group that is taken from another one is a wrong one.
MESH = """
import os, resource, sys, time, torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from softrun.runtime import worlds
torch.set_num_threads(1)
whole = torch.arange(64.0).reshape(8, 8)
thread = ThreadPoolExecutor(1)

def directly(mesh):
    rows = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    columns = distribute_tensor(whole, mesh, [Shard(1), Replicate()])
    product = (rows @ columns + rows.redistribute(mesh, [Shard(0), Shard(1)])).full_tensor()
    return product.equal(whole @ whole + whole) and rows.sum().full_tensor().item() == whole.sum()

def in_a_thread(mesh):  # torch has caches for each thread: with CUDA, threads that live on run the backward
    return thread.submit(directly, mesh).result()

@torch.compile(backend="eager")
def sum_over(shards, mesh):
    return shards.to_local().sum() + dist._functional_collectives.all_reduce(torch.ones(1), "sum", (mesh, 1))

def compiled(mesh):
    shards = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    return sum_over(shards, mesh).item() == whole[4 * mesh.get_local_rank(1):][:4].sum() + 2

is_right = globals()[sys.argv[1]]
for world in worlds():
    with world.process_group():
        for _ in range(world.round % 3):
            dist.new_group()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for _ in range(100):
            mesh["shard"]
        from softrun.runtime.groups.leftovers import meshes
        assert 1 <= len(meshes._meshes) < 100, "what nobody holds is not kept"
        print("right" if is_right(mesh) else "wrong", "in world", world.round)
        while True:
            time.sleep(0.005)
            world.check()
"""


# A model that is spread over the ranks makes the same steps as a whole one, in worlds of different sizes.
MODEL = """
import copy, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from softrun.runtime import worlds
torch.set_num_threads(1)
torch.manual_seed(0)
batch = torch.randn(12, 8)
whole = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
state = copy.deepcopy(whole.state_dict())  # what is kept from world to world

def sharded(size):
    mesh = init_device_mesh("cpu", (size,))
    model = copy.deepcopy(whole)
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model, dist.get_rank(), size

def tensor_parallel(size):
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(copy.deepcopy(whole), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model, mesh.get_local_rank("data"), size // 2

def full(tensor):
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()

def step(model, part, parts):
    model(batch[part::parts]).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    model.zero_grad()

for world in worlds():
    with world.process_group():
        for _ in range(world.round % 3):
            dist.new_group()
        for value in state.values():
            dist.broadcast(value, src=0)
        model, part, parts = KIND(world.world_size)
        for name, value in model.state_dict().items():
            value.copy_(distribute_tensor(state[name], value.device_mesh, value.placements))
        if KIND is tensor_parallel:
            step(model, 0, 1)  # each replica has the whole batch
        else:
            step(model, part, parts)
        whole.load_state_dict(state)
        step(whole, 0, 1)
        state = {name: full(value) for name, value in model.state_dict().items()}
        right = all(value.allclose(state[name], atol=1e-6) for name, value in whole.state_dict().items())
        print("right" if right else "wrong", "in world", world.round)
        dist.barrier()
        world.wait_for_change()
"""


def say_in_each_world(agent: FakeAgent, workers: list[Worker], times: int) -> None:
    for _ in range(times):
        agent.form(workers)
        for worker in workers:
            worker.says(f"right in world {agent.round}")
        agent.pause(workers, WorldChangeEvent.SCALE_DOWN)


KEPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from softrun.runtime import worlds
torch.set_num_threads(1)

def a_mesh():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    return lambda: distribute_tensor(torch.ones(4), mesh, [Shard(0)]).sum().full_tensor()

def a_group():
    group = dist.new_group()
    return lambda: dist.all_reduce(torch.ones(1), group=group)

def a_model():
    parallel = DistributedDataParallel(torch.nn.Linear(2, 2))
    return lambda: parallel(torch.ones(1, 2)).sum().backward()

use = None
for world in worlds():
    with world.process_group():
        use = use or KEPT()
        dist.barrier()  # the first to use what it kept is gone then, while its peer may still be connecting
        if world.round in USED_IN:
            use()
        print("was in world", world.round)
        while True:
            time.sleep(0.005)
            world.check()
"""


@pytest.mark.parametrize(
    "way",
    [pytest.param("directly", marks=pytest.mark.slow), "in_a_thread", pytest.param("compiled", marks=pytest.mark.slow)],
)
def test_a_mesh_is_built_again_in_each_world(agent: FakeAgent, way: str) -> None:
    script = MESH.replace("sys.argv[1]", repr(way))
    say_in_each_world(agent, [agent.start(script) for _ in range(4)], 4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sizes"), [("sharded", (4, 3, 4)), ("tensor_parallel", (4, 2, 4))])
def test_a_model_is_spread_anew_in_each_world(agent: FakeAgent, kind: str, sizes: tuple[int, ...]) -> None:
    workers = [agent.start(MODEL.replace("KIND", kind)) for _ in range(4)]
    for size in sizes:
        say_in_each_world(agent, workers[:size], 1)


@pytest.mark.parametrize(
    ("kept", "what"),
    [
        ("a_mesh", "of DeviceMesh((data=2), 'cpu', stride=(1,)), which was built in world 1: "),
        (
            "a_group",
            "RuntimeError: the process group '1' of 2 ranks, which was built in an earlier world, was used again: ",
        ),
        (
            "a_model",
            "RuntimeError: the process group '0' of 2 ranks, which was built in an earlier world, was used again: ",
        ),
    ],
)
@pytest.mark.parametrize("again_in", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_was_kept_from_a_world_that_is_over_is_refused(
    agent: FakeAgent, kept: str, what: str, again_in: int
) -> None:
    script = KEPT.replace("KEPT", kept).replace("USED_IN", f"(1, {again_in})")
    workers = [agent.start(script) for _ in range(2)]
    for world in range(1, again_in):
        agent.form(workers)
        for worker in workers:
            worker.says(f"was in world {world}")
        agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
    agent.form(workers)
    assert [worker.ends() for worker in workers] == [1, 1]
    for worker in workers:
        last = worker.output.splitlines()[-1]
        assert what in last
        assert last.endswith("in each world"), "it says what to do"


def test_a_world_ends_without_an_import() -> None:
    """An import would take longer than the rest of a recovery. In this release of torch every cache is found."""
    script = (
        "import sys, torch.distributed.tensor\n"
        "from softrun.runtime.groups.leftovers import meshes\n"
        "before = set(sys.modules)\n"
        "for clear in meshes._CLEARS: clear()\n"
        "meshes.end_world()\n"
        "print(set(sys.modules) - before)"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
