"""What the benchmark reads out of a step log, on logs that a person can follow."""

from __future__ import annotations

import pytest

from bench_suite.figures import around, first_of_all, gap, members, toll
from bench_suite.steady import block_of
from local_cluster import Step

SURVIVORS = {10, 11}


def world(round_: int, pids: list[int], times: list[float], first_step: int, begun: int | None = None) -> list[Step]:
    """Each process completes a step at each of these times, in the order of the ranks."""
    return [
        Step(
            mono=at + rank * 0.001,
            pid=pid,
            rank=rank,
            world_size=len(pids),
            round=round_,
            step=first_step + number,
            begun=(first_step if begun is None else begun) + number,
        )
        for number, at in enumerate(times)
        for rank, pid in enumerate(pids)
    ]


BEFORE = world(1, [10, 11, 12], [0.0, 0.01, 0.02], 1)
FAULT_AT = 0.025


def test_a_gap_ends_with_the_last_survivors_first_step_in_a_later_world() -> None:
    steps = [*BEFORE, *world(2, [10, 11], [0.1, 0.11], 4)]
    assert gap(steps, FAULT_AT, 2) == pytest.approx(0.101 - FAULT_AT)
    assert gap(steps, FAULT_AT, 3) is None, "there is no later world of three"
    assert gap(steps[:-3], FAULT_AT, 2) is None, "one of two has not stepped yet"


def test_steps_of_the_broken_world_do_not_end_a_gap() -> None:
    late = [Step(mono=0.03, pid=pid, rank=pid - 10, world_size=3, round=1, step=4) for pid in (10, 11, 12)]
    assert gap([*BEFORE, *late], FAULT_AT, 2) is None


def test_a_larger_world_ends_a_gap_when_all_of_it_step() -> None:
    steps = [*BEFORE, *world(2, [20, 21, 22], [0.5], 3)]
    assert gap(steps[:-1], FAULT_AT, 2) is None
    assert gap(steps, FAULT_AT, 2) == pytest.approx(0.502 - FAULT_AT)


def test_a_cold_start_has_no_world_before_it() -> None:
    assert first_of_all(BEFORE, -2.0, 3) == pytest.approx(2.002)
    assert gap([], 0.0, 1) is None


def test_the_toll_of_survivors_that_keep_their_process() -> None:
    """Each has begun step 4 in the old world and begins it once more; nothing is lost or repeated."""
    steps = [*BEFORE, *world(2, [10, 11], [0.1, 0.11], 4, begun=5)]
    found = toll(steps, SURVIVORS)
    assert (found.kept, found.repeated, found.lost, found.broken) == (2, 0, 0, 1)
    assert found.pause_s == pytest.approx(0.08)
    assert found.longest_s == pytest.approx(0.08)


def test_steps_are_repeated_and_lost() -> None:
    assert toll([*BEFORE, *world(2, [10, 11], [0.1], 2)], SURVIVORS).repeated == 2
    assert toll([*BEFORE, *world(2, [10, 11], [0.1], 3)], SURVIVORS).repeated == 1
    assert toll([*BEFORE, *world(2, [10, 11], [0.1], 6)], SURVIVORS).lost == 2


def test_the_worst_survivor_counts() -> None:
    """Process 11 has completed a step that process 10, whose state all take, has not."""
    ahead = Step(mono=0.024, pid=11, rank=1, world_size=3, round=1, step=4, begun=4)
    found = toll([*BEFORE, ahead, *world(2, [10, 11], [0.1], 4)], SURVIVORS)
    assert (found.repeated, found.lost) == (1, 0)


def test_where_processes_were_not_kept_survivors_are_ranks() -> None:
    found = toll([*BEFORE, *world(2, [20, 21], [5.0], 3)], SURVIVORS)
    assert (found.kept, found.repeated, found.broken) == (0, 1, None)
    assert found.pause_s == pytest.approx(4.98)


def test_a_slow_step_within_a_world_is_no_pause() -> None:
    steps = [*BEFORE, *world(2, [10, 11], [0.1, 0.9], 4)]
    assert toll(steps, SURVIVORS).pause_s == pytest.approx(0.08)
    assert toll(steps, SURVIVORS).longest_s == pytest.approx(0.8)


def test_worlds_that_ended_before_the_fault_do_not_count() -> None:
    earlier = world(0, [10, 11], [-0.4], 0)
    assert around([*earlier, *BEFORE], FAULT_AT, 0.5) == BEFORE
    assert members([*earlier, *BEFORE]) == {10, 11, 12}


def test_a_block_tells_the_step_and_what_is_beside_it() -> None:
    steps = [
        Step(mono=at, pid=pid, rank=0, world_size=2, round=1, step=0, cpu_s=number * 0.006, own_s=number * 0.005)
        for number, at in enumerate((0.0, 0.01, 0.02, 0.05))
        for pid in (10, 11)
    ]
    block = block_of(steps, launcher_s=0.008)
    assert block.clock_s == pytest.approx(0.01)
    assert block.processor_s == pytest.approx(0.006 + 0.008 / 8)
    assert block.beside_s == pytest.approx(0.001 + 0.008 / 8)
