"""All ranks leave State.sync with the newest state that is whole."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer does it in its first step, which each rank would wait for
from gloo_ranks import Me, run, run_until
from torch import nn

from softrun.runtime.live.world import LiveWorld
from softrun.runtime.sampler import ElasticSampler
from softrun.runtime.state.plan import StateLostError
from softrun.runtime.state.state import State

WIDTH = 16


def build(seed: int, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, width: int = WIDTH) -> State:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    made = optimizer(model.parameters(), lr=0.01)
    return State(
        model=model,
        optimizer=made,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(made, [2, 4]),
        sampler=ElasticSampler(range(100), 10, seed=3),
        step=0,
    )


def compute(state: State) -> None:
    draw = torch.Generator().manual_seed(state.step)
    state.optimizer.zero_grad()
    state.model(torch.randn(8, WIDTH, generator=draw)).square().mean().backward()


def train(state: State, steps: int) -> None:
    for _ in range(steps):
        compute(state)
        state.optimizer.step()
        state.scheduler.step()
        state.commit()


def interrupted(state: State) -> None:
    nn.init.zeros_(state.model[0].weight)
    raise KeyboardInterrupt


def everything(state: State) -> Any:
    """As one value, in which equal states are equal."""
    view = state._contents.view()
    return view.digest(), state.step, state.sampler.steps


def test_at_the_beginning_all_take_the_first_ranks() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=me.rank)
        received = state.sync()
        return received, everything(state)

    first, *others = run(work, 3)
    assert first[0] == 0
    assert all(received > 0 for received, _ in others)
    assert {rest for _, rest in others} == {first[1]}


def test_at_the_beginning_nothing_is_sent_to_ranks_that_have_the_same() -> None:
    def work(me: Me) -> Any:
        me.build()
        return build(seed=5).sync()

    assert run(work, 3) == [0, 0, 0]


class Back(LiveWorld):
    """The world of a block, as a worker sees it that was left behind, or another one."""

    round = 7

    def __init__(self, came_back: bool) -> None:
        self._came_back = came_back

    @property
    def came_back(self) -> bool:
        return self._came_back


def test_what_a_rank_that_was_left_behind_has_done_meanwhile_is_void() -> None:
    """It has committed as many steps as the others, but its last one differs."""

    def work(me: Me) -> Any:
        state = build(seed=7)
        train(state, 5)
        if me.rank == 0:
            nn.init.zeros_(state.model[0].weight)
        before = everything(state)
        me.build()
        state.sync(Back(came_back=me.rank == 0))
        return before, everything(state)

    (_, left_behind), (before, after), _ = run(work, 3)
    assert left_behind == before == after


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_newcomer_gets_everything(size: int) -> None:
    def work(me: Me) -> Any:
        is_new = me.rank == size - 1
        state = build(seed=7 + is_new)
        if not is_new:
            train(state, 5)
        before = everything(state)
        me.build()
        received = state.sync()
        after = everything(state)
        train(state, 2)
        return received, before, after, everything(state)

    *old, new = run(work, size)
    assert all(received == 0 and before == after for received, before, after, _ in old)
    assert new[0] > 0
    assert new[1] != new[2] == old[0][2]
    assert {later for *_, later in [*old, new]} == {old[0][3]}, "all train alike from there"


def test_if_nobody_lacks_anything_nothing_is_sent() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1)
        state.sync()
        train(state, 3)
        before = everything(state)
        return state.sync(), before == everything(state)

    assert run(work, 3) == [(0, True)] * 3


def test_a_rank_that_is_a_step_behind_and_one_in_a_torn_step_are_healed() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1)
        state.sync()
        train(state, 3)
        if me.rank == 0:  # its optimizer was interrupted half-way
            with pytest.raises(KeyboardInterrupt):
                state.optimizer.step(lambda: interrupted(state))
        elif me.rank != 1:
            train(state, 1)
        return state.sync() > 0, everything(state)

    found = run(work, 4)
    assert [healed for healed, _ in found] == [True, True, False, False]
    assert {rest for _, rest in found} == {found[2][1]}
    assert found[0][1][1] == 4


def test_a_step_that_is_complete_but_committed_by_nobody_is_committed() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1)
        state.sync()
        train(state, 3)
        compute(state)
        state.optimizer.step()
        return state.sync(), state.step, state.sampler.steps

    assert run(work, 2) == [(0, 4, 4)] * 2


def test_whoever_is_interrupted_in_its_commit_is_healed() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1)
        state.sync()
        train(state, 3)
        if me.rank == 1:
            state.sampler.commit = lambda: interrupted(state)
            with pytest.raises(KeyboardInterrupt):
                train(state, 1)
            del state.sampler.commit
        else:
            train(state, 1)
        return state.sync() > 0, everything(state)

    found = run(work, 3)
    assert [healed for healed, _ in found] == [False, True, False]
    assert {rest for _, rest in found} == {found[0][1]}


def test_if_all_are_torn_it_says_so() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1)
        state.sync()
        train(state, 1)
        state.optimizer.step()
        state.optimizer.step()
        with pytest.raises(StateLostError, match=r"interrupted on the ranks \[0, 1\]") as error:
            state.sync()
        return str(error.value)

    assert "load a checkpoint" in run(work, 2)[0]


MISMATCHES = {
    "another shape": (
        lambda: build(9, width=WIDTH + 1),
        r"model.0.weight is float32\[17, 17\] here and float32\[16, 16\]",
    ),
    "another name": (
        lambda: State(net=nn.Linear(2, 2), step=0),
        r"has the parts \['net'\], and what should come has \['model', 'optimizer', 'sampler', 'scheduler'\]",
    ),
}


@pytest.mark.parametrize(("other", "message"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_what_does_not_fit_is_refused_and_nothing_is_changed(other: Callable[[], State], message: str) -> None:
    def work(me: Me) -> Any:
        me.build()
        if me.rank == 0:
            state = build(seed=1)
            train(state, 1)
            return state.sync()
        state = other()
        before = state._contents.view().digest()
        with pytest.raises(ValueError, match=message):
            state.sync()
        return state._contents.view().digest() == before

    assert run_until(work, 2, rank=1)


def test_a_dataset_of_another_length_is_refused_before_a_tensor_is_touched() -> None:
    def work(me: Me) -> Any:
        me.build()
        torch.manual_seed(me.rank)
        state = State(model=nn.Linear(2, 2), sampler=ElasticSampler(range(100 + me.rank), 10))
        before = copy.deepcopy(state.model.state_dict())
        if me.rank == 0:
            return state.sync()
        with pytest.raises(ValueError, match="length"):
            state.sync()
        return all(torch.equal(tensor, before[name]) for name, tensor in state.model.state_dict().items())

    assert run_until(work, 2, rank=1)


def test_large_tensors_come_in_pieces_from_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softrun.runtime.state.transfer.PIECE_BYTES", 1000)

    def work(me: Me) -> Any:
        me.build()
        is_new = me.rank >= 3
        draw = torch.Generator().manual_seed(0)
        kinds = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float64]
        tensors = {
            f"{kind} {shape}": (torch.rand(shape, generator=draw) * 200).to(kind)
            for kind in kinds
            for shape in ((), (0,), (3,), (700,), (31, 33), (2, 3, 4, 50))
        }
        tensors["in another order"] = torch.rand((4, 5, 30, 6), generator=draw).to(memory_format=torch.channels_last)
        tensors["transposed"] = torch.rand((40, 50), generator=draw).T
        here = {name: tensor.clone().zero_() if is_new else tensor for name, tensor in tensors.items()}
        state = State(tensors=here)
        if not is_new:
            state.commit()
        seen = []
        state.sync(on_progress=lambda healing: seen.append((healing.received, healing.total, healing.sources)))
        mine = state.tensors
        return all(torch.equal(mine[name], tensor) for name, tensor in tensors.items()), seen

    found = run(work, 5)
    assert all(is_equal for is_equal, _ in found)
    for rank in (3, 4):
        seen = found[rank][1]
        assert seen[-1][0] == seen[-1][1]
        assert len(seen) > 10
        assert sorted(seen[0][2]) == [0, 1, 2]


def test_more_newcomers_than_survivors() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=me.rank)
        if me.rank == 2:
            train(state, 3)
        state.sync()
        return everything(state)

    assert len(set(run(work, 5))) == 1


VALUES: list[Any] = [
    {"a": 1, 2: (3.5, None, float("inf")), "c": [True, "text", {"x", "y"}], ("t", 1): b"bytes"},
    torch.float16,
    torch.device("cpu"),
    random.Random(3).getstate(),
]


def test_plain_values_come_as_they_were() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = State(values=VALUES if me.rank == 0 else None, best=0.5 * (me.rank == 0))
        if me.rank == 0:
            state.commit()
        state.sync()
        return state.values == VALUES, state.best

    assert run(work, 2) == [(True, 0.5)] * 2


def test_what_cannot_be_sent_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"callback\.1 is a function, which cannot be sent"):
        State(callback=[1, lambda: None])

    class Half:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="half is a Half without load_state_dict"):
        State(half=Half())
    with pytest.raises(ValueError, match="State has a method 'commit'"):
        State(commit=1)
    with pytest.raises(AttributeError, match="this State has no 'stpe', only step"):
        _ = State(step=0).stpe
