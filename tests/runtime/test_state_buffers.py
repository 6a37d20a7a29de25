"""What an interrupted step has changed before its optimizer began is put back, on every rank."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer does it in its first step, which each rank would wait for
from gloo_ranks import Me, run
from torch import nn

from softrun.runtime.sampler import ElasticSampler
from softrun.runtime.state import buffers
from softrun.runtime.state.buffers import Buffers, forget_gradients
from softrun.runtime.state.messages import to_bytes
from softrun.runtime.state.random_numbers import RandomNumbers
from softrun.runtime.state.state import State

WIDTH = 6
POWERS = {"4.parametrizations.weight.0._u", "4.parametrizations.weight.0._v"}
"""The vectors of a spectral norm, which come to rest."""


class Counting(nn.Module):
    """Its forward pass changes buffers in all ways that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("by_data", torch.zeros(2), persistent=False)
        self.register_buffer("other_data", torch.zeros(2))
        self.register_buffer("grows", torch.zeros(0), persistent=False)
        self.register_buffer("resized", torch.zeros(1), persistent=False)
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("shared_elements", torch.arange(3).expand(4, 3))
        self.register_buffer("sparse", torch.eye(3).to_sparse(), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.in_place += 1
            self.replaced = self.replaced + 1
            self.by_data.data.add_(1)
            self.other_data.data = self.other_data + 1
            self.grows = torch.cat([self.grows, self.replaced[None]])
            self.resized.resize_(len(self.resized) + 1).fill_(2)
            self.late = torch.ones(2) if self.late is None else self.late + 1
        return inputs


def found_in(module: nn.Module) -> dict[str, Any]:
    return {name: None if each is None else each.to_dense().tolist() for name, each in buffers_of(module)}


def buffers_of(module: nn.Module) -> list[tuple[str, Any]]:
    return [(f"{name}.{key}", each) for name, part in module.named_modules() for key, each in part._buffers.items()]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(WIDTH)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, Counting(), norm, spectral, nn.LazyBatchNorm1d())


def test_whatever_a_forward_pass_does_to_buffers_is_put_back(model: nn.Module) -> None:
    kept = Buffers()
    model(torch.randn(4, WIDTH))
    kept.look({"model": model})
    for steps in (0, 1, 2):
        for _ in range(steps):
            model(torch.randn(4, WIDTH))
            kept.keep()
        before = found_in(model)
        for interrupted in (1, 2):  # one after the other
            for _ in range(interrupted):
                model(torch.randn(4, WIDTH))
            still = {name for name, each in found_in(model).items() if each == before[name]}
            assert still - POWERS == {"2.shared_elements", "2.sparse"}, "those that nothing can write to"
            kept.put_back()
            assert found_in(model) == before


def test_what_is_put_back_goes_into_the_same_memory(model: nn.Module) -> None:
    """A view of it, or a graph that was captured, goes on to be right."""
    model(torch.randn(4, WIDTH))
    kept, norm = Buffers(), model[1]
    kept.look({"model": model})
    mean, address = norm.running_mean, norm.running_mean.data_ptr()
    model(torch.randn(4, WIDTH))
    kept.put_back()
    assert norm.running_mean is mean
    assert mean.data_ptr() == address


class Queue(nn.Module):
    """One that is large and changes, and one that is large and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(2000))
        self.register_buffer("mask", torch.zeros(2000))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def forward(self, _: Any = None) -> None:
        self.queue[self.pointer] = 1
        self.pointer += 1


def test_large_ones_are_copied_if_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "SMALL_BYTES", 1000)
    copied: list[int] = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda to, of: [copied.extend(each.numel() for each in to), copy(to, of)]
    )
    module, kept = Queue(), Buffers()
    kept.look({"module": module})
    module()
    kept.keep()
    kept.keep()
    module()
    kept.put_back()
    kept.put_back()
    assert [size for size in copied if size > 1] == [2000, 2000], "once into the copy, and once back"
    assert (module.queue.sum(), module.pointer) == (1, 1)


def test_no_more_than_the_bound_is_kept_and_the_log_says_what_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "softrun.runtime")
    monkeypatch.setattr(buffers, "MOST_BYTES", 7999)
    module, kept = Queue(), Buffers()
    kept.look({"model": nn.Sequential(Counting(), module)})
    kept.keep()
    assert not caplog.records, "what never changes need not be kept"
    for _ in range(3):
        module()
        kept.keep()
        kept.look({"model": nn.Sequential(Counting(), module)})
    (record,) = caplog.records
    assert "the steps change the buffer model.1.queue, and" in record.getMessage()
    module()
    kept.put_back()
    assert module.pointer == 3


# --- in a State


def build(seed: int = 1, **more: Any) -> State:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(), nn.Linear(WIDTH, 1))
    return State(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        sampler=ElasticSampler(range(100), 10, seed=3),
        random=RandomNumbers(seed=1, per_rank=False),
        step=0,
        **more,
    )


def compute(state: State) -> None:
    state.model(torch.randn(8, WIDTH)).square().mean().backward()


def train(state: State, steps: int) -> None:
    for _ in range(steps):
        compute(state)
        state.optimizer.step()
        state.commit()
        state.optimizer.zero_grad()


def everything(state: State) -> Any:
    view = state._contents.view()
    tensors = sorted((name, to_bytes(tensor)) for name, tensor in zip(view.specs, view.local, strict=True))
    return hashlib.sha256(repr(tensors).encode()).hexdigest(), state.step, state.sampler.steps


@cache
def undisturbed(steps: int) -> Any:
    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.sync()
        train(state, steps)
        return everything(state)

    return run(work)[0]


def forward(state: State) -> None:
    state.model(torch.randn(8, WIDTH))


INTERRUPTED: dict[str, list[Callable[[State], Any] | None]] = {
    "in the forward pass": [forward, forward, None],
    "in the backward pass": [compute, forward, compute],
    "before the step begins": [compute, compute, compute],
    "while others have committed": [compute, lambda state: train(state, 1), forward],
    "twice over": [lambda state: [forward(state), compute(state)], None, None],
}


@pytest.mark.parametrize("begun", INTERRUPTED.values(), ids=INTERRUPTED.keys())
def test_ranks_that_are_interrupted_train_as_if_they_had_not_been(begun: list[Callable[[State], Any] | None]) -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build(seed=1 + me.rank)
        state.sync()
        train(state, 2)
        if (begin := begun[me.rank]) is not None:
            begin(state)
        state.sync()
        if state.step == 2:
            compute(state)  # and once more, before anything was committed in this world
            state.sync()
        train(state, 5 - state.step)
        return everything(state)

    assert set(run(work, 3)) == {undisturbed(5)}


@pytest.mark.parametrize("ready", [True, False])
def test_a_step_that_others_have_taken_is_taken_with_the_buffers_of_its_forward_pass(ready: bool) -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.sync()
        train(state, 2)
        compute(state)
        if ready:
            state.ready()
        if me.rank == 0:
            state.optimizer.step()
        state.sync()
        train(state, 5 - state.step)
        return everything(state)

    assert set(run(work, 2)) == {undisturbed(5)}


class Passes(nn.Module):
    """Counts its forward passes, and does not tell others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return inputs


@pytest.mark.parametrize("committed", [True, False])
def test_a_rank_that_is_healed_has_made_the_forward_pass_of_the_step_that_others_have_taken(committed: bool) -> None:
    """What is in no state_dict comes from nobody else."""

    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.model.append(Passes())
        state.sync()
        train(state, 2)
        compute(state)
        if me.rank == 1:
            state.optimizer.step()
            if committed:
                state.commit()
        state.sync()
        train(state, 5 - state.step)
        compute(state)
        state.sync()
        return state.step, state.model[-1].count.item()

    assert run(work, 2) == [(5, 5)] * 2


def test_a_model_that_is_built_again_goes_on_with_the_buffers_of_the_commit() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.sync()
        train(state, 2)
        compute(state)
        again = build(seed=7)
        state.model, state.optimizer = again.model, again.optimizer
        state.sync()
        train(state, 3)
        return everything(state)

    assert set(run(work, 2)) == {undisturbed(5)}


def test_an_average_of_the_weights_is_left_as_it_is() -> None:
    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.average = torch.optim.swa_utils.AveragedModel(state.model)
        state.sync()
        train(state, 1)
        state.average.update_parameters(state.model)  # after the commit
        compute(state)
        state.sync()
        return state.average.n_averaged.item(), state.model[1].num_batches_tracked.item()

    assert run(work, 2) == [(1, 1)] * 2


def test_gradients_of_an_interrupted_step_are_dropped_and_can_be_scaled_again() -> None:
    state = build(scaler=torch.amp.GradScaler("cpu"))
    state.scaler.scale(state.model(torch.randn(8, WIDTH)).sum()).backward()
    state.scaler.unscale_(state.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        state.scaler.unscale_(state.optimizer)
    forget_gradients([state.scaler, state.optimizer])
    assert all(parameter.grad is None for parameter in state.model.parameters())
    state.scaler.scale(state.model(torch.randn(8, WIDTH)).sum()).backward()
    state.scaler.unscale_(state.optimizer)
    state.scaler.step(state.optimizer)
    state.scaler.update()


def test_what_was_loaded_is_not_put_back(tmp_path: Any) -> None:
    """Nor are the buffers from before it."""

    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.sync()
        train(state, 1)
        state.save(tmp_path)
        train(state, 2)
        state.load(tmp_path)
        state.sync()
        train(state, 4)
        return everything(state)

    assert set(run(work, 2)) == {undisturbed(5)}
