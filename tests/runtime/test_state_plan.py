"""Who heals whom, from the rows of all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.state.plan import (
    MOST_SOURCES,
    NOTHING,
    TORN,
    Row,
    StateLostError,
    behind,
    disowned,
    newest_of,
    sources_for,
)


def rows(*progress: int) -> list[Row]:
    return [Row(each, 0, 0) for each in progress]


@pytest.mark.parametrize(
    ("progress", "newest", "sources"),
    [
        ((8, 8, 8), 8, {}),
        ((8, NOTHING, 8), 8, {1: (0, 2)}),
        ((8, 6, TORN), 8, {1: (0,), 2: (0,)}),
        ((8, 9, 8, 9), 9, {0: (1, 3), 2: (3, 1)}),
        ((9, 10, TORN), 10, {0: (1,), 2: (1,)}),
        ((NOTHING, NOTHING, NOTHING), NOTHING, {1: (0,), 2: (0,)}),
        ((NOTHING, 0), 0, {0: (1,)}),
    ],
)
def test_the_newest_whole_state_counts(progress: tuple[int, ...], newest: int, sources: dict[int, object]) -> None:
    assert newest_of(rows(*progress)) == newest
    assert sources_for(rows(*progress)) == sources


def test_only_ranks_that_are_ready_take_the_step_that_others_have_taken() -> None:
    assert behind([Row(8, 0, 0), Row(6, 0, 0, 1), Row(6, 0, 0), Row(8, 0, 0, 1), Row(4, 0, 0, 1)]) == [1]
    assert behind([Row(9, 0, 0), Row(8, 0, 0, 1)]) == [1]
    assert behind([Row(8, 1, 1), Row(7, 2, 2), Row(7, 0, 0), Row(5, 2, 2)]) == [1], "its shard has nobody else"
    assert behind([Row(0, 0, 0), Row(NOTHING, 0, 0, 1)]) == []


@pytest.mark.parametrize("progress", [(TORN,), (TORN, TORN), (NOTHING, TORN)])
def test_a_state_that_is_torn_everywhere_is_lost(progress: tuple[int, ...]) -> None:
    with pytest.raises(StateLostError, match="load a checkpoint"):
        newest_of(rows(*progress))


def test_each_rank_takes_its_part_from_a_rank_that_holds_it() -> None:
    first, second = 11, 22
    assert sources_for(
        [Row(4, first, first), Row(4, second, second), Row(4, first, second), Row(NOTHING, first, first)]
    ) == {2: (1,), 3: (2, 0)}
    with pytest.raises(StateLostError, match="the part of the state that rank 1 needs"):
        sources_for([Row(4, first, first), Row(NOTHING, second, second)])


@given(st.lists(st.sampled_from([NOTHING, TORN, 2, 4, 5]), min_size=1, max_size=40))
def test_only_who_lacks_something_receives_and_only_from_who_has_it(progress: list[int]) -> None:
    try:
        newest = newest_of(rows(*progress))
    except StateLostError:
        assert max(progress) == TORN or TORN in progress
        return
    found = sources_for(rows(*progress))
    lacking = {rank for rank, each in enumerate(progress) if each != newest}
    assert set(found) == (lacking if newest != NOTHING else set(range(1, len(progress))))
    for sources in found.values():
        assert 1 <= len(set(sources)) == len(sources) <= MOST_SOURCES
        assert all(progress[source] == newest for source in sources)


@pytest.mark.parametrize(
    ("progress", "void", "counts"),
    [
        ((8, 8, 8), (False, True, False), (8, TORN, 8)),  # it may have taken the last step with others
        ((8, 10), (False, True), (8, TORN)),
        ((8, 8), (True, True), (8, 8)),  # nobody else has a state
        ((NOTHING, 8), (False, True), (NOTHING, 8)),
        ((TORN, 8), (False, True), (TORN, 8)),
    ],
)
def test_what_a_rank_has_that_was_left_behind_counts_if_nobody_else_has_it(
    progress: tuple[int, ...], void: tuple[bool, ...], counts: tuple[int, ...]
) -> None:
    assert disowned(rows(*progress), void) == rows(*counts)


def test_the_only_shard_counts_even_if_its_rank_was_left_behind() -> None:
    shards = [Row(8, 0, 0), Row(8, 1, 1)]
    assert disowned(shards, (False, True)) == shards
