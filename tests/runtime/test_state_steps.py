"""Whether an optimizer's step was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import nn

from softrun.runtime.state.steps import Phase, Steps


@pytest.fixture
def one() -> torch.optim.Optimizer:
    return optimizer()


def optimizer() -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def break_off(one: torch.optim.Optimizer) -> None:
    """In the middle of its step."""
    with pytest.raises(KeyboardInterrupt), patch("torch.optim.sgd.sgd", side_effect=KeyboardInterrupt):
        one.step()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_computes_before_the_step_begins(one: torch.optim.Optimizer, by_name: bool) -> None:
    """Lightning runs the forward and the backward pass in it; to be interrupted there changes no parameter."""
    steps, seen, begins = Steps(lambda: begins.append(len(seen))), [], []

    def closure() -> torch.Tensor:
        seen.append(steps.phase)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return torch.zeros(())

    def step() -> None:
        one.step(closure=closure) if by_name else one.step(closure)  # type: ignore[arg-type]

    steps.watch("optimizer", one)
    step()
    assert (seen, steps.phase, begins) == ([Phase.WHOLE], Phase.COMPLETE, [1])
    steps.commit()
    with pytest.raises(KeyboardInterrupt):
        step()
    assert (seen[1], steps.phase) == (Phase.WHOLE, Phase.WHOLE)
    step()
    assert steps.phase is Phase.COMPLETE


def test_a_closure_that_is_called_more_than_once_begins_one_step() -> None:
    parameter = nn.Parameter(torch.tensor([3.0]))
    one, phases = torch.optim.LBFGS([parameter], max_iter=3), []
    steps = Steps(lambda: None)
    steps.watch("optimizer", one)

    def closure() -> torch.Tensor:
        phases.append(steps.phase)
        one.zero_grad()
        loss = (parameter**4).sum()
        loss.backward()
        return loss

    one.step(closure)  # type: ignore[arg-type]
    assert phases[0] is Phase.WHOLE
    assert set(phases[1:]) == {Phase.TORN}
    assert steps.phase is Phase.COMPLETE


def test_the_phases_of_a_step(one: torch.optim.Optimizer) -> None:
    steps = Steps(lambda: None)
    steps.watch("optimizer", one)
    assert steps.phase is Phase.WHOLE
    one.step()
    assert steps.phase is Phase.COMPLETE
    steps.commit()
    assert steps.phase is Phase.WHOLE
    break_off(one)
    assert steps.phase is Phase.TORN
    steps.forget()
    assert steps.phase is Phase.WHOLE


def test_several_steps_of_several_optimizers_between_two_commits(one: torch.optim.Optimizer) -> None:
    steps, two = Steps(lambda: None), optimizer()
    steps.watch("one", one)
    steps.watch("two", two)

    def takes(*order: torch.optim.Optimizer) -> list[Phase]:
        phases = []
        for each in order:
            each.step()
            phases.append(steps.phase)
        steps.commit()
        return phases

    assert takes(one, two) == [Phase.TORN, Phase.COMPLETE]
    takes(one, one, two)
    assert takes(one, two, one) == [Phase.TORN, Phase.TORN, Phase.COMPLETE], "as often as the last time"


def test_a_wrapped_optimizer_is_watched_and_a_scheduler_is_not(one: torch.optim.Optimizer) -> None:
    class Wrapped:
        param_groups = one.param_groups
        optimizer = one

    steps = Steps(lambda: None)
    steps.watch("optimizer", Wrapped())
    steps.watch("scheduler", torch.optim.lr_scheduler.ExponentialLR(optimizer(), 0.9))
    steps.watch("epoch", 3)
    one.step()
    assert steps.phase is Phase.COMPLETE


@pytest.mark.parametrize("again", [lambda _: optimizer(), lambda one: one], ids=["another", "the same"])
def test_a_replaced_optimizer_is_watched_once(
    one: torch.optim.Optimizer, again: Callable[[torch.optim.Optimizer], torch.optim.Optimizer]
) -> None:
    steps, second = Steps(lambda: None), again(one)
    steps.watch("optimizer", one)
    steps.watch("optimizer", second)
    second.step()
    assert steps.phase is Phase.COMPLETE
