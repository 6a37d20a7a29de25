"""Each checker passes a good run, and finds what is wrong with a bad one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from storm import checkers
from storm.evidence import Evidence, Line
from storm.plan import MANY_RESTARTS, Fault, Plan, Slot

KILL = Fault(0, "kill", Slot("a", 1), "step", steps=3)
STEPS = 50
Check = Callable[[Evidence], Iterator[str]]


def plan(*faults: Fault, policy: str = "replace", layout: str = "1x4", hurries: bool = False) -> Plan:
    return Plan(0, "rfc", layout, "c10d", policy, MANY_RESTARTS, hurries, faults or (KILL,))


class Story:
    """The lines of a run as it should be: a/1 is killed in world 1 and replaced in world 3."""

    def __init__(self, of: Plan | None = None) -> None:
        self.plan = of or plan()
        self.lines: list[Line] = []
        for rank in range(4):
            self.says(rank, "started")
            self.says(rank, "entered", round=1, size=4)
        self.says(1, "fault", number=0)
        self.says(1, "started", pid=201)
        for rank, pid in ((0, 100), (1, 201), (2, 102), (3, 103)):
            self.says(rank, "step", pid=pid, step=STEPS, weight=checkers.weight_of(STEPS), round=3, size=4)
        for rank, pid in ((0, 100), (1, 201), (2, 102), (3, 103)):
            self.says(rank, "complete", pid=pid, step=STEPS, weight=checkers.weight_of(STEPS))

    def says(self, local_rank: int, what: str, pid: int = 0, **more: float) -> None:
        slot = Slot("a", local_rank)
        self.lines.append(Line(float(len(self.lines)), pid or 100 + local_rank, slot, what, **more))  # type: ignore[arg-type]

    def run(self) -> Evidence:
        return Evidence(self.plan, self.lines, codes={"a": 0}, rounds=3, log_bytes={"a": 1000})


@pytest.fixture
def story() -> Story:
    return Story()


def complaint(check: Check, run: Evidence) -> str:
    assert list(check(Story().run())) == [], "a good run"
    assert check in checkers.ALL
    [found] = check(run)
    return found


def test_a_good_run_passes_all(story: Story) -> None:
    assert checkers.complaints(story.run()) == []


def test_a_run_that_is_overdue(story: Story) -> None:
    run = replace(story.run(), overdue="it did not end within 60 s")
    assert complaint(checkers.ended_in_time, run) == "it did not end within 60 s"


def test_a_wrong_exit_code(story: Story) -> None:
    run = replace(story.run(), codes={"a": 1})
    assert complaint(checkers.exit_codes_are_right, run) == "the launcher of a ended with 1, not 0"


def test_work_that_nobody_has_done(story: Story) -> None:
    story.lines = [line for line in story.lines if line.what != "complete"]
    assert complaint(checkers.work_was_done, story.run()) == "nobody has completed the work"


def test_a_loop_that_gives_up(story: Story) -> None:
    story.says(2, "gave up", step=7)
    assert complaint(checkers.work_was_done, story.run()) == "a/2 gave up at step 7"


def test_too_many_worlds(story: Story) -> None:
    assert complaint(checkers.worlds_are_few, replace(story.run(), rounds=8)) == "8 worlds for 1 faults: more than 7"
    assert list(checkers.worlds_are_few(replace(story.run(), rounds=7))) == []


def test_a_healthy_process_is_started_again(story: Story) -> None:
    story.says(3, "started", pid=303)
    assert "a/3 was healthy and did not keep its process" in complaint(checkers.healthy_live, story.run())


def test_a_healthy_process_ends_early(story: Story) -> None:
    story.lines = [line for line in story.lines if not (line.what == "complete" and line.pid == 102)]
    assert "a/2 was healthy" in complaint(checkers.healthy_live, story.run())


def test_no_replace_may_end_its_whole_node() -> None:
    story = Story(plan(policy="no-replace"))
    story.says(3, "started", pid=303)
    assert list(checkers.healthy_live(story.run())) == []


def test_finished_work_is_run_again(story: Story) -> None:
    story.says(2, "step", pid=302, step=1, weight=1.0, round=4, size=1)
    found = complaint(checkers.work_was_done_once, story.run())
    assert found == f"a/2 did step 1 again after a/0 had completed {STEPS}"


def test_the_last_step_may_be_taken_by_some_alone(story: Story) -> None:
    story.says(2, "step", step=STEPS, weight=checkers.weight_of(STEPS), round=4, size=1)
    assert list(checkers.work_was_done_once(story.run())) == []


def test_a_step_that_was_lost_or_taken_twice(story: Story) -> None:
    story.says(2, "step", step=9, weight=checkers.weight_of(8), round=3, size=4)
    assert complaint(checkers.work_was_exact, story.run()) == "a/2 has weight 22 after step 9, not 24"


def test_a_sum_over_others_than_the_world(story: Story) -> None:
    story.says(2, "corrupt", step=9, round=2)
    assert complaint(checkers.work_was_exact, story.run()) == "a/2 got a wrong sum in step 9 of world 2"


def test_ranks_that_end_apart(story: Story) -> None:
    story.says(2, "complete", step=STEPS + 1, weight=checkers.weight_of(STEPS + 1))
    assert complaint(checkers.work_was_exact, story.run()) == f"ranks completed different steps: [{STEPS}, {STEPS + 1}]"


def test_the_weight_is_the_sum_of_all_steps() -> None:
    assert [checkers.weight_of(step) for step in range(9)] == [0, 1, 3, 6, 10, 15, 21, 21, 22]


def test_what_is_left(story: Story) -> None:
    assert complaint(checkers.nothing_is_left, replace(story.run(), orphans=2)) == "2 orphans are left"
    left = replace(story.run(), left=("channels/x",))
    assert complaint(checkers.nothing_is_left, left) == "1 files are left: channels/x"


def test_a_log_without_a_limit(story: Story) -> None:
    run = replace(story.run(), log_bytes={"a": 1 << 20})
    assert complaint(checkers.logs_are_short, run) == "the log of a has 1048576 bytes"
