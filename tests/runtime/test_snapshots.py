"""Snapshots: which one is whole, who stores what, and what comes back from memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, run
from hypothesis import given
from hypothesis import strategies as st
from keepers import keepers, on_node
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from softrun.runtime.groups.groups import leave_groups
from softrun.runtime.groups.leftovers import meshes
from softrun.runtime.snapshots.images import Address, Image, Listing, divided, neighbours_of, newest_whole
from softrun.runtime.snapshots.keeper import STARTED, LocalKeeper, SnapshotError
from softrun.runtime.snapshots.wire import VARIABLE
from softrun.runtime.state.state import State

A, B, C = (("a", 1), ("b", 1), ("c", 1))


def images(commits: int, ranks: list[int], size: int = 2, round_: int = 1) -> list[Image]:
    return [Image(state="s", commits=commits, round=round_, rank=rank, world_size=size) for rank in ranks]


def test_the_newest_snapshot_of_which_no_image_is_missing() -> None:
    """Of the newest, rank 1's image was on the node that is gone, and had no copy yet."""
    listings = [
        Listing(address=A, images=[*images(20, [0]), *images(10, [0, 1])]),
        Listing(address=B, images=[*images(10, [1])]),
    ]
    found = newest_whole(listings, "s")
    assert found is not None
    assert (found.commits, found.round) == (10, 1)
    assert [(image.rank, holders) for image, holders in found.images] == [(0, [A]), (1, [A, B])]


def test_images_of_different_worlds_are_no_snapshot() -> None:
    listings = [Listing(address=A, images=[*images(20, [0]), *images(20, [1], round_=2), *images(20, [1], size=3)])]
    assert newest_whole(listings, "s") is None
    assert newest_whole([Listing(address=A, images=images(20, [0, 1]))], "of another State") is None


@pytest.mark.parametrize(
    ("addresses", "neighbours"),
    [
        ([A, A], [None, None]),
        ([A, A, B, B], [B, B, A, A]),
        ([A, B, C], [B, C, A]),
        ([B, A, B, C], [A, C, A, B]),
    ],
)
def test_the_copy_goes_to_the_next_node(addresses: list[Address], neighbours: list[Address | None]) -> None:
    assert neighbours_of(addresses) == neighbours


@given(st.lists(st.integers(0, 1 << 30), max_size=50), st.integers(1, 8))
def test_ranks_with_the_same_tensors_share_them(sizes: list[int], count: int) -> None:
    loads = [0] * count
    for size, owner in zip(sizes, divided(sizes, count), strict=True):
        loads[owner] += size
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max(sizes, default=0)


# --- with real keepers


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[str]]:
    """Where the keepers of two nodes are."""
    with keepers(tmp_path, 2) as places:
        yield places


def replicated() -> State:
    """Each rank's weights differ until they are synced."""
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    return State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1), step=0, note="")


def train(state: State, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.linspace(-1, state.step, 20).view(4, 5)).square().mean().backward()
        state.optimizer.step()
        state.note = f"step {state.step}"
        state.commit()


def weights(state: State) -> list[Any]:
    found = list(state.model.state_dict().values())
    found += [state.optimizer.state[parameter]["exp_avg"] for parameter in state.model.parameters()]
    return [getattr(each, "full_tensor", lambda each=each: each)().tolist() for each in found]


def taken(state: State, commits: int) -> None:
    """Take a snapshot of the step after so many, and wait until all of it is safe."""
    assert state.snapshot(every=commits)
    wait_until_safe(state)


def wait_until_safe(state: State) -> None:
    while state._snapshots._verdict() == 0:
        pass
    assert state._snapshots._verdict() == 1
    dist.barrier()


def begin(me: Me, round_: int, size: int | None = None) -> Any:
    """The next world begins."""
    leave_groups(in_trouble=False)
    meshes.begin_world(round_)
    me.build(f"world {round_}", size=size)
    return SimpleNamespace(round=round_)


def test_all_ranks_that_begin_again_go_on_from_the_newest(nodes: list[str]) -> None:
    def work(me: Me) -> Any:
        on_node(nodes, me.rank // 2)
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 5)
        taken(state, 5)
        train(state, 2)
        assert not state.snapshot(every=5)
        train(state, 3)
        taken(state, 5)
        kept = weights(state)
        train(state, 3)  # is lost
        world = begin(me, 2)
        state = replicated()
        received = state.sync(world)
        back = weights(state) == kept, state.step, state.note, received > 0
        train(state, 5)
        assert state.snapshot(every=5)
        return back

    assert run(work, 4) == [(True, 10, "step 9", True)] * 4


@pytest.mark.slow
def test_what_is_copied_aside_is_of_the_step_of_the_snapshot(nodes: list[str]) -> None:
    """The optimizer goes on at once, and a buffer that a forward pass changes was copied before."""

    def work(me: Me) -> Any:
        on_node(nodes, 0)
        world = begin(me, 1)
        state = replicated()
        state.model.append(nn.Linear(3, 1 << 20, bias=False))  # it takes a while to copy
        state.optimizer.add_param_group({"params": state.model[-1].parameters()})
        state.sync(world)
        train(state, 1)
        kept = [weights(state)[:8], state.model[-1].weight.sum().item()]
        state.snapshot()
        train(state, 1)
        wait_until_safe(state)
        world = begin(me, 2)
        state.model.zero_grad()
        fresh = replicated()
        fresh.model.append(nn.Linear(3, 1 << 20, bias=False))
        fresh.optimizer.add_param_group({"params": fresh.model[-1].parameters()})
        fresh.sync(world)
        return fresh.step, [weights(fresh)[:8], fresh.model[-1].weight.sum().item()] == kept

    assert run(work, 2) == [(1, True)] * 2


def sharded(size: int) -> State:
    torch.manual_seed(dist.get_rank())
    model = fully_shard(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), mesh=init_device_mesh("cpu", (size,)))
    return State(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1), step=0, note="")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_shards_that_no_survivor_has_are_divided_anew_among_the_ranks_of_now(nodes: list[str], size: int) -> None:
    """Rank 3 of four is lost; two, three or four go on."""

    def work(me: Me) -> Any:
        on_node(nodes, me.rank // 2)
        world = begin(me, 1)
        state = sharded(4)
        state.sync(world)
        train(state, 2)
        taken(state, 2)
        kept = weights(state)
        train(state, 1)
        if me.rank >= size:
            return True
        world = begin(me, 2, size)
        state.model, state.optimizer = (found := sharded(size)).model, found.optimizer
        if me.rank == size - 1:
            state = found
        state.sync(world)
        after = weights(state)
        assert state.step == 2
        train(state, 2)
        return after == kept

    assert run(work, 4) == [True] * 4


def test_a_damaged_image_is_not_loaded_and_its_copy_is(nodes: list[str]) -> None:
    def work(me: Me) -> Any:
        on_node(nodes, me.rank)
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 2)
        taken(state, 2)
        kept = weights(state)
        keeper = state._snapshots._keeper
        assert keeper is not None
        if me.rank == 0:
            for memory in keeper._mapped.values():
                memory[0] ^= 1
        world = begin(me, 2)
        state = replicated()
        state.sync(world)
        return state.step, weights(state) == kept

    assert run(work, 2) == [(2, True)] * 2


def test_parts_of_another_shape_are_refused_with_their_key(nodes: list[str]) -> None:
    def work(me: Me) -> Any:
        on_node(nodes, 0)
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 2)
        taken(state, 2)
        world = begin(me, 2)
        state = replicated()
        state.model[0] = nn.Linear(5, 9)
        before = [parameter.tolist() for parameter in state.model.parameters()]
        with pytest.raises(ValueError, match=r"model\.0\.weight is float32\[9, 5\] here and float32\[7, 5\]"):
            state.sync(world)
        return [parameter.tolist() for parameter in state.model.parameters()] == before

    assert run(work, 2) == [True, True]


def test_a_second_state_in_the_same_world_does_not_go_on_from_the_first(nodes: list[str]) -> None:
    def work(me: Me) -> Any:
        on_node(nodes, 0)
        world = begin(me, 1)
        first = replicated()
        first.sync(world)
        train(first, 2)
        taken(first, 2)
        second = replicated()
        second.sync(world)
        return second.step

    assert run(work, 2) == [0, 0]


def test_without_room_all_ranks_say_so(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalKeeper, owner: str, size: int, *, copies: bool) -> None:
        raise SnapshotError(f"no room for {size} bytes of {owner}{' and copies' * copies}")

    def work(me: Me) -> str:
        on_node(nodes, me.rank)
        if me.rank == 0:
            monkeypatch.setattr(LocalKeeper, "make_room", refuse)
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 1)
        with pytest.raises(SnapshotError) as refused:
            state.snapshot(10)
        return str(refused.value)

    own, other = run(work, 2)
    assert own.startswith("no room for ")
    assert own.endswith(" bytes of worker 0 and copies")
    assert other == "there is no room for the snapshots of the ranks [0], whose logs say more"


def test_without_an_agent_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    def work(me: Me) -> Any:
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 1)
        return [state.snapshot(), state.snapshot()], caplog.text.count("no snapshots are taken: the ranks [0, 1]")

    assert run(work, 2) == [([False, False], 1)] * 2


def test_a_keeper_that_is_gone_costs_its_snapshots_and_nothing_else(nodes: list[str]) -> None:
    def work(me: Me) -> Any:
        on_node(nodes, me.rank)
        world = begin(me, 1)
        state = replicated()
        state.sync(world)
        train(state, 1)
        taken(state, 1)
        keeper = state._snapshots._keeper
        assert keeper is not None
        if me.rank == 0:
            os.kill(int(Path(os.environ[VARIABLE] + STARTED).read_text()), signal.SIGKILL)
            keeper._sock.recv(1)  # it has ended
        train(state, 1)
        dist.barrier()
        began = state.snapshot()  # in a keeper that was started again
        while state._snapshots._verdict() == 0:
            pass
        dist.barrier()
        train(state, 1)
        state = replicated()
        state.sync(begin(me, 2))
        return began, state.step

    assert run(work, 2) == [(True, 2)] * 2
