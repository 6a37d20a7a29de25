"""Sharded models: each rank gets its shard from a replica that has it, on the new world's mesh."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer does it in its first step, which each rank would wait for
import torch.distributed as dist
from gloo_ranks import Me, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from softrun.runtime.groups.groups import leave_groups
from softrun.runtime.groups.leftovers import meshes
from softrun.runtime.state.messages import to_bytes
from softrun.runtime.state.plan import StateLostError
from softrun.runtime.state.state import State

SHARDS = 2


def trained(me: Me) -> State:
    """A state after three steps of the first world."""
    state = new()
    enter(state, me, 1, me.rank)
    state.sync()
    train(state)
    return state


def new() -> State:
    return State(step=0, decay={"next": 1.0})


def enter(state: State, me: Me, world: int, rank: int) -> None:
    """Leave the last world, and build the model on the next one's mesh."""
    leave_groups(in_trouble=False)
    meshes.begin_world(world)
    me.build(f"world {world}", rank)
    build(state)


def build(state: State) -> None:
    """The model and its optimizer on the mesh of a new world."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(dist.get_rank())
    state.model = fully_shard(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), mesh=mesh)
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=0.1)


def train(state: State) -> None:
    for _ in range(3):
        compute(state)
        update(state)


def compute(state: State) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(2, 5) * (state.step + 1)).square().mean().backward()


def update(state: State) -> None:
    state.optimizer.step()
    state.decay = {"next": state.decay["next"] / 2}
    state.commit()


def after_four_steps(me: Me) -> Any:
    state = trained(me)
    compute(state)
    update(state)
    return outcome(state)


def outcome(state: State) -> Any:
    return state.step, state.decay["next"], whole(state)


def whole(state: State) -> str:
    """A digest of the whole weights, and of the optimizer's means of them."""
    found = hashlib.sha256()
    for parameter in state.model.parameters():
        for tensor in (parameter, state.optimizer.state[parameter]["exp_avg"]):
            found.update(to_bytes(tensor.full_tensor().detach()))
    return found.hexdigest()


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_newcomer_gets_the_shard_of_its_place_and_survivors_change_places(lost: int) -> None:
    def work(me: Me) -> Any:
        state = trained(me)
        before = whole(state)
        state = new() if me.rank == lost else state
        enter(state, me, 2, place_after(lost, me))
        received = state.sync()
        after = whole(state)
        train(state)
        return before, after, state.step, received, whole(state)

    found = run(work, 4)
    assert len({digest for before, after, *_ in found for digest in (before, after)}) == 1
    assert {step for _, _, step, _, _ in found} == {6}
    assert found[lost][3] > 0, "the newcomer"
    assert len({later for *_, later in found}) == 1


def place_after(lost: int, me: Me) -> int:
    """Who comes after the lost rank moves up, and its replacement is the last."""
    return (me.rank - lost - 1) % me.size


@pytest.mark.parametrize("lost", [0, 3])
def test_ranks_that_are_ready_take_the_step_that_others_have_taken(lost: int) -> None:
    def work(me: Me) -> Any:
        state = trained(me)
        compute(state)
        state.ready()
        if me.rank % SHARDS == lost % SHARDS:  # the others' shard of this step is nowhere
            update(state)
        state = new() if me.rank == lost else state
        enter(state, me, 2, place_after(lost, me))
        state.sync()
        return outcome(state)

    assert set(run(work, 4)) == set(run(after_four_steps, 4))


def test_the_step_is_taken_once_even_if_the_world_ends_meanwhile() -> None:
    def work(me: Me) -> Any:
        state = trained(me)
        compute(state)
        state.ready()
        if me.rank % SHARDS == 0:
            update(state)
        enter(state, me, 2, me.rank)
        take = state._take_the_step
        state._take_the_step = lambda *args: [take(*args), 1 / 0]
        with pytest.raises(ZeroDivisionError):
            state.sync()
        state._take_the_step = take
        enter(state, me, 3, me.rank)
        state.sync()
        return outcome(state)

    assert set(run(work, 4)) == set(run(after_four_steps, 4))


def test_a_shard_that_nobody_has_is_lost() -> None:
    def work(me: Me) -> Any:
        state = trained(me)
        state = new() if me.rank in (0, 2) else state
        enter(state, me, 2, me.rank)
        with pytest.raises(StateLostError, match="the part of the state that rank 0 needs are gone") as error:
            state.sync()
        return str(error.value)

    assert len(set(run(work, 4))) == 1
