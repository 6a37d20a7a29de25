"""What each step draws depends on the seed, the step and the rank."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from softrun.runtime.state.random_numbers import RandomNumbers


def draws(numbers: RandomNumbers, rank: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, ...]:
    monkeypatch.setenv("RANK", str(rank))
    numbers.resume()
    return torch.rand(1).item(), random.random(), numpy.random.random()


def test_a_step_that_is_done_again_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = RandomNumbers(seed=3)
    first = draws(numbers, 1, monkeypatch)
    assert draws(numbers, 1, monkeypatch) == first
    numbers.commit()
    assert draws(numbers, 1, monkeypatch) != first


def test_ranks_draw_different_numbers_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws(RandomNumbers(), 0, monkeypatch) != draws(RandomNumbers(), 1, monkeypatch)
    alike = [draws(RandomNumbers(per_rank=False), rank, monkeypatch) for rank in range(2)]
    assert alike[0] == alike[1]
    assert draws(RandomNumbers(seed=1), 0, monkeypatch) != draws(RandomNumbers(seed=2), 0, monkeypatch)


def test_a_newcomer_goes_on_where_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = RandomNumbers(seed=3), RandomNumbers(seed=3)
    for _ in range(4):
        old.commit()
    new.load_state_dict(old.state_dict())
    assert draws(new, 2, monkeypatch) == draws(old, 2, monkeypatch)
    with pytest.raises(ValueError, match=r"RandomNumbers\(seed=4\) here, and 3"):
        RandomNumbers(seed=4).load_state_dict(old.state_dict())
