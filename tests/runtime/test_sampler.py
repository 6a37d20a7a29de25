"""Each sample of an epoch is taken once, whatever the world does between two steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from softrun.runtime.sampler import MOST_IDLE, ElasticSampler
from softrun.runtime.share import share_of

TEN = range(10)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """`place(rank, world_size)`: this worker's place from now on."""

    def place(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return place


def parts(samplers: Sequence[ElasticSampler]) -> list[list[list[int]]]:
    """What each rank of a world of so many finds in a pass."""
    found = []
    for rank, sampler in enumerate(samplers):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(len(samplers)))
            found.append(list(sampler))
    return found


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 20),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    worlds=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 5)), min_size=1, max_size=12),
)
def test_whatever_worlds_follow_each_sample_of_an_epoch_is_committed_once(
    length: int, batch: int, shuffle: bool, drop_last: bool, worlds: list[tuple[int, int]]
) -> None:
    """`worlds`: how many ranks each has, and how many steps."""
    batch = min(batch, length) if drop_last else batch
    state = ElasticSampler(range(length), batch, shuffle, 3, drop_last).state_dict()
    committed: list[tuple[int, int]] = []
    for ranks, steps in [*worlds, (3, length + 1)]:
        samplers = [ElasticSampler(range(length), batch, shuffle, 3, drop_last) for _ in range(ranks)]
        for sampler in samplers:
            sampler.load_state_dict(state)
        for step, of_ranks in enumerate(zip(*parts(samplers), strict=True)):
            if step == steps:
                break  # the world has changed: what was loaded is given back
            size = samplers[0].batch_size
            weights = [share_of(size, rank, ranks).weight for rank in range(ranks)]
            taken = [index for part, weight in zip(of_ranks, weights, strict=True) if weight for index in part]
            assert len(taken) == size, "with those of the weight 0 left out"
            committed += [(samplers[0].epoch, index) for index in taken]
            for sampler in samplers:
                sampler.commit()
        state = samplers[0].state_dict()
        if state["epoch"]:
            break
    first = [index for epoch, index in committed if epoch == 0]
    assert len(set(first)) == len(first)
    assert len(first) == (length - length % batch if drop_last else length)
    assert drop_last or sorted(first) == list(range(length))


@given(batch=st.integers(1, 1000), ranks=st.integers(1, 64))
def test_the_parts_of_a_batch_are_all_of_it_and_their_weighted_average_is_its_mean(batch: int, ranks: int) -> None:
    shares = [share_of(batch, rank, ranks) for rank in range(ranks)]
    assert [index for share in shares for index in range(share.start, share.stop)] == list(range(batch))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    losses = [float(index) ** 2 for index in range(batch)]
    means = [sum(losses[s.start : s.stop]) / len(s) if len(s) else 0.0 for s in shares]
    average = sum(mean * share.weight for mean, share in zip(means, shares, strict=True)) / ranks
    assert average == pytest.approx(sum(losses) / batch)


def test_an_epoch_has_its_own_order_which_no_world_changes() -> None:
    sampler, again = ElasticSampler(range(100), 10), ElasticSampler(range(100), 10)
    first = [batch for (batch,) in zip(*parts([sampler]), strict=True)]
    two = zip(*parts([again, ElasticSampler(range(100), 10)]), strict=True)
    assert first == [left + right for left, right in two]
    for _ in range(10):
        sampler.commit()
    assert (sampler.epoch, sampler.steps, len(sampler)) == (1, 10, 10)
    second = parts([sampler])[0]
    assert second != first
    assert sorted(index for part in second for index in part) == list(range(100))
    assert parts([ElasticSampler(range(100), 10, seed=1)])[0] != first
    assert parts([ElasticSampler(range(100), 10, shuffle=False)])[0][0] == list(range(10))


def test_a_rank_without_a_sample_takes_part_with_one_that_counts_for_nothing() -> None:
    samplers = [ElasticSampler(TEN, 4, shuffle=False) for _ in range(3)]
    found = parts(samplers)
    assert [part[-1] for part in found] == [[8], [8], [9]], "the last batch has two samples"
    assert [share_of(2, rank, 3).weight for rank in range(3)] == [0.0, 1.5, 1.5]


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index * index


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_has_fetched_ahead_is_given_back(place: Callable[[int, int], None], workers: int) -> None:
    sampler = ElasticSampler(Squares(), 8, shuffle=False)
    loader = DataLoader(Squares(), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    place(1, 2)
    batches = iter(loader)
    assert next(batches).tolist() == [16, 25, 36, 49]
    sampler.commit()
    next(batches)  # and the world changes: this step is not committed
    place(0, 1)
    found = []
    for batch in loader:
        found += batch.tolist()
        sampler.commit()
    assert found == [index * index for index in range(8, 40)]
    assert sampler.epoch == 1


def test_a_state_of_other_data_is_refused_in_one_line_and_changes_nothing() -> None:
    sampler = ElasticSampler(range(100), 10)
    sampler.commit()
    for other, what in (
        (ElasticSampler(range(99), 10), "length 99, this one 100"),
        (ElasticSampler(range(100), 20), "global_batch_size 20, this one 10"),
        (ElasticSampler(range(100), 10, seed=7), "seed 7, this one 0"),
        (ElasticSampler(range(100), 10, shuffle=False), "shuffle False, this one True"),
        (ElasticSampler(range(100), 10, drop_last=True), "drop_last True, this one False"),
    ):
        with pytest.raises(ValueError, match=what) as refused:
            sampler.load_state_dict(other.state_dict())
        assert "\n" not in str(refused.value)
    for damage in ({"epoch": -1}, {"batch": 10}, {"batch": "3"}):
        with pytest.raises(ValueError, match="damaged"):
            sampler.load_state_dict(sampler.state_dict() | damage)
    with pytest.raises(ValueError, match="length None"):
        sampler.load_state_dict({})
    assert sampler.steps == 1
    sampler.load_state_dict(json.loads(json.dumps(ElasticSampler(range(100), 10).state_dict())))
    assert sampler.steps == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((iter(TEN), 4), TypeError, "has no length"),
        ((TEN, 0), ValueError, "at least 1, not 0"),
        ((TEN[:0], 4), ValueError, "a dataset of 0 samples has no batch of 4"),
        ((TEN, 11, True, 0, True), ValueError, "or drop_last=False"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ElasticSampler(*arguments)


def test_who_never_commits_does_not_take_the_same_epoch_for_ever() -> None:
    sampler = ElasticSampler(TEN, 4)
    for _ in range(MOST_IDLE):
        list(sampler)
    with pytest.raises(RuntimeError, match="call commit"):
        iter(sampler)
    sampler.commit()
    list(sampler)


def test_a_batch_that_does_not_divide_gives_the_gradient_of_the_whole_batch() -> None:
    """As DistributedDataParallel averages it."""
    torch.manual_seed(0)
    inputs = torch.randn(7, 3)
    whole = torch.zeros(3, requires_grad=True)
    (inputs @ whole - 1).square().mean().backward()
    gradients = []
    for rank in range(3):
        share, own = share_of(7, rank, 3), torch.zeros(3, requires_grad=True)
        ((inputs[share.start : share.stop] @ own - 1).square().mean() * share.weight).backward()
        gradients.append(own.grad)
    assert whole.grad is not None
    average = torch.stack([gradient for gradient in gradients if gradient is not None]).mean(0)
    assert torch.allclose(average, whole.grad)


def test_it_needs_no_launcher() -> None:
    script = dedent(
        """
        import softrun
        sampler = softrun.ElasticSampler(range(6), 4, shuffle=False)
        assert list(sampler) == [[0, 1, 2, 3], [4, 5]]
        """
    )
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)


# --- pieces of a batch


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 20),
    micro=st.integers(1, 8),
    ranks=st.integers(1, 7),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    done=st.integers(0, 3),
)
def test_the_pieces_of_all_ranks_are_the_global_batch(
    length: int, batch: int, micro: int, ranks: int, shuffle: bool, drop_last: bool, done: int
) -> None:
    batch = min(batch, length) if drop_last else batch
    whole = ElasticSampler(range(length), batch, shuffle, 3, drop_last)
    for _ in range(done):
        whole.commit()
    (batches,) = parts([whole])
    found = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(ranks))
            sampler = ElasticSampler(range(length), batch, shuffle, 3, drop_last, micro_batch_size=micro)
            sampler.load_state_dict(whole.state_dict())
            assert len(sampler) == len(list(sampler))
            found.append(list(sampler.accumulated(sampler)))
    assert {len(steps) for steps in found} == {len(batches)}
    for number, expected in enumerate(batches):
        pieces = [piece for steps in found for piece in steps[number]]
        assert len({len(steps[number]) for steps in found}) == 1, "as many on each rank"
        assert all(1 <= len(piece.data) <= micro for piece in pieces)
        assert sorted(sample for piece in pieces if piece.weight for sample in piece.data) == sorted(expected)
        weighed = sum(sum(piece.data) / len(piece.data) * piece.weight for piece in pieces) / ranks
        assert weighed == pytest.approx(sum(expected) / len(expected)), "the mean over the global batch"
        assert [piece.is_last for piece in found[0][number]] == [False] * (len(found[0][number]) - 1) + [True]


def test_a_rank_without_a_sample_takes_part_with_the_first_one(place: Callable[[int, int], None]) -> None:
    place(0, 4)
    sampler = ElasticSampler(TEN, 3, shuffle=False, micro_batch_size=1)
    ((piece,), *_) = sampler.accumulated(sampler)
    assert (piece.data, piece.weight) == ([0], 0)


def test_a_loader_that_makes_the_batches_itself(place: Callable[[int, int], None]) -> None:
    place(1, 2)
    sampler = ElasticSampler(range(24), 8, shuffle=False, micro_batch_size=2)
    loader = DataLoader(range(24), sampler=sampler.indices, batch_size=2, num_workers=1)  # type: ignore[arg-type]
    assert [each.tolist() for each in loader] == [[4, 5], [6, 7], [12, 13], [14, 15], [20, 21], [22, 23]]
    assert len(loader) == 6
    sampler.commit()
    steps = [[piece.data.tolist() for piece in pieces] for pieces in sampler.accumulated(loader)]
    assert steps == [[[12, 13], [14, 15]], [[20, 21], [22, 23]]]


def test_a_loader_that_makes_the_batches_itself_needs_full_ones(place: Callable[[int, int], None]) -> None:
    place(0, 3)
    with pytest.raises(ValueError, match=r"a piece of 1 samples is no batch of 2: let the global batch be a multiple"):
        list(ElasticSampler(range(24), 8, shuffle=False, micro_batch_size=2).indices)
    with pytest.raises(ValueError, match="micro_batch_size is not given"):
        list(ElasticSampler(range(24), 8).indices)
    with pytest.raises(ValueError, match="micro_batch_size is at least 1, not 0"):
        ElasticSampler(range(24), 8, micro_batch_size=0)


def test_the_size_of_pieces_is_no_part_of_the_state() -> None:
    sampler = ElasticSampler(TEN, 4, micro_batch_size=2)
    sampler.load_state_dict(ElasticSampler(TEN, 4).state_dict())


def test_torchdatas_loader_gives_back_what_was_not_committed(place: Callable[[int, int], None]) -> None:
    place(0, 2)
    sampler = ElasticSampler(range(24), 4, shuffle=False)
    loader = StatefulDataLoader(range(24), batch_sampler=sampler, num_workers=2)
    for number, samples in enumerate(loader):
        assert samples.tolist() == [4 * number, 4 * number + 1]
        if number == 2:
            break
        sampler.commit()
    place(1, 2)
    assert next(iter(loader)).tolist() == [10, 11]
