"""One engine alone: what it says of itself, and what it does about its own workers, step by step.

How engines get on with each other is the business of the scenarios and of the simulation.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_engine import Agent, looked, paused, shown, signals, spawned, working
from values import member, opened, sealed

from softrun.agent.core.engine import SILENCE_S
from softrun.agent.core.local_workers import COMES_S
from softrun.agent.core.progress_watchdog import LEAVE
from softrun.agent.core.stages import Stage
from softrun.agent.core.worker_health import BLAME_S, OBEY_S
from softrun.agent.core.worker_slot import ABANDON_S, SHOW_S, SIGKILL, SIGTERM
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import (
    Round,
    Worker,
)
from softrun.agent.rendezvous import transitions
from softrun.runtime.events import ProgressLimits, WorkerFault, WorkerState

SOFT = ProgressLimits(soft=2.0, hard=4.0, grace=0.2)
HARD_ONLY = ProgressLimits(hard=3.0)
UNLIMITED = ProgressLimits()


# --- words


@pytest.mark.parametrize(
    ("after_s", "asks", "named"), [(SILENCE_S, False, True), (SILENCE_S - 1, False, False), (SILENCE_S, True, False)]
)
def test_a_worker_that_never_asks_for_its_world_is_named(after_s: float, asks: bool, named: bool) -> None:
    agent = Agent()
    agent.record(sealed(member("a")))
    if asks:
        agent.say()
    agent.now = after_s
    effects = agent.record(sealed(member("a"), member("b"), number=2))
    assert any(isinstance(effect, do.Tell) for effect in effects), "the world has changed"
    said = [effect.text for effect in effects if isinstance(effect, do.Note) and effect.warning]
    assert any("worker 0 has not asked" in text for text in said) == named


# --- faults


def fault(round_: int = 1, depth: int = 0, text: str = "", last_call_wait: float = 0.0) -> WorkerFault:
    return WorkerFault(round=round_, depth=depth, text=text, last_call_wait=last_call_wait)


def test_a_fault_is_said_at_once() -> None:
    agent = working()
    agent.say(fault=fault(text="ValueError"))
    assert agent.fault() == fault(text="ValueError")


def test_a_fault_of_another_world_is_not_said() -> None:
    agent = working()
    agent.say(fault=fault(round_=2))
    assert agent.fault() is None


def test_faults_of_several_workers_are_all_named() -> None:
    agent = working(2)
    agent.say(0, fault=fault(text="fault of rank 0: Traceback\n  line\nValueError: one", last_call_wait=0.5))
    agent.say(1, fault=fault(text="fault of rank 1: Traceback\n  line\nValueError: two"))
    agent.say(0, fault=fault(text="fault of rank 0: Traceback\n  line\nValueError: one", last_call_wait=0.5))
    said = agent.fault()
    assert said is not None
    text = "fault of rank 0: Traceback\n  line\nValueError: one\nalso fault of rank 1: ValueError: two"
    assert (said.text, said.last_call_wait) == (text, 0.5)


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_of_several_faults_here_the_outermost_wrapper_counts(first: int, second: int) -> None:
    agent = working(2)
    agent.say(0, fault=fault(depth=first, text="first"))
    agent.say(1, fault=fault(depth=second))
    said = agent.fault()
    assert said is not None
    assert said.depth == 1, "there the ranks meet again"
    agent.say(1, fault=fault(depth=0))
    said = agent.fault()
    assert said is not None
    assert said.depth == 0, "the leader may not have decided yet"


def test_a_fault_that_a_lost_process_has_told_is_not_heard() -> None:
    agent = working()
    agent.say(launch=2, fault=fault())
    assert agent.fault() is None


# --- failures


@pytest.mark.parametrize(
    ("after_s", "exitcode", "outcome"),
    [
        (0.5, 3, do.Outcome.WORKERS_FAILED),
        (0.5, 0, do.Outcome.SUCCEEDED),
        (2.5, -SIGKILL, do.Outcome.SUCCEEDED),
    ],
    ids=["it fails", "it ends well", "it is killed when its time is over"],
)
def test_who_has_left_its_call_tells_by_its_exit_code_how_its_node_has_fared(
    after_s: float, exitcode: int, outcome: do.Outcome
) -> None:
    """The others have completed the call meanwhile."""
    agent = working(failure="record")
    agent.say(gone=True, ends=True)
    left = sealed(member("b"), number=2)
    agent.record(left)
    agent.record(transitions.close(left, ""))
    agent.go_on(after_s)
    (end,) = (e for e in agent.see(saw.WorkerExited(0, 1, exitcode)) if isinstance(e, do.End))
    assert end.result.outcome is outcome


@pytest.mark.parametrize("unmet", [True, False])
@pytest.mark.parametrize("ends_first", [True, False])
def test_what_a_recorded_failure_beside_finished_work_means_does_not_hang_on_when_it_comes(
    ends_first: bool, unmet: bool
) -> None:
    """One has left its call, unfit or because its peers were not there in time; its process takes its time to end."""
    agent = working(2, failure="record")
    agent.say(1, gone=True, ends=True, unmet=unmet)
    smaller = sealed(member("a", workers=1), member("b"), number=2)
    agent.record(smaller)
    if ends_first:
        agent.see(saw.WorkerExited(1, 1, 1))
    seen = agent.see(saw.WorkerExited(0, 1, 0))
    seen += agent.record(transitions.close(smaller, ""))
    if not ends_first:
        assert not any(isinstance(e, do.End) for e in seen)
        seen = agent.see(saw.WorkerExited(1, 1, 1))
    (end,) = (e for e in seen if isinstance(e, do.End))
    assert end.result.outcome is (do.Outcome.WORKERS_FAILED if unmet else do.Outcome.SUCCEEDED)


@pytest.mark.parametrize("worked", [True, False])
def test_the_death_of_a_peer_explains_no_failure_of_one_that_had_not_begun_to_work(worked: bool) -> None:
    """It may fail so every time, also before it asks for its world, as those before it have done."""
    agent = working()
    agent.say(worked=1 if worked else 0)

    def fails(launch: int) -> int:
        """Returns how many restarts are left when the next one starts."""
        before = agent.now
        effects = agent.see(saw.LinkDown("b", refused=True), saw.WorkerExited(0, launch, 1))
        effects += agent.go_on(before + 1.0)
        lives = launch + 1
        effects += agent.record(sealed(member("a", incarnation=lives, lives=lives), number=lives))
        (spawn,) = [effect for effect in effects if isinstance(effect, do.Spawn)]
        return spawn.restarts_left

    assert fails(1) == (3 if worked else 2)
    assert fails(2) == (2 if worked else 1)


# --- hangs, under soft


def test_one_that_stands_still_is_told_to_leave_with_all_others_here() -> None:
    agent = working(2, SOFT)
    effects = agent.go_on(2.0)
    assert looked(effects) == [0, 1]
    effects = agent.progress(0.0, 0)
    assert shown(effects) == [0]
    assert paused(effects) == [0, 1]
    assert agent.engine.stage is Stage.WAITING
    assert agent.report is not None
    assert agent.report.broken_round == 1
    assert agent.fault() is None, "nobody knows yet who it was"
    assert agent.engine.deadline() == pytest.approx(2.0 + OBEY_S)


def test_one_that_goes_on_is_not_asked_to() -> None:
    agent = working(1, SOFT)
    agent.go_on(2.0)
    assert paused(agent.progress(1.5)) == []
    assert agent.engine.stage is Stage.WORKING
    assert looked(agent.go_on(3.4)) == []
    assert looked(agent.go_on(3.5)) == [0]


def test_who_leaves_was_well_and_nobody_is_blamed() -> None:
    agent = working(1, SOFT)
    agent.go_on(2.0)
    agent.progress(0.0)
    agent.say(applied=2, limits=SOFT)
    assert looked(agent.go_on(2.0 + OBEY_S)) == []
    assert agent.workers() == (Worker(0, 1),)
    assert agent.fault() is None


def test_who_does_not_leave_and_makes_progress_is_waited_for() -> None:
    agent = working(1, SOFT)
    agent.go_on(2.0)
    agent.progress(0.0)
    assert looked(agent.go_on(2.0 + OBEY_S)) == [0]
    agent.progress(2.05)
    assert agent.workers() == (Worker(0, 1),)


def stuck(limits: ProgressLimits = SOFT, workers: int = 2, **job: str) -> Agent:
    """Worker 0 hangs since 0.0; the others have left."""
    agent = working(workers, limits, **job)
    at = limits.soft or limits.hard or 0.0
    agent.go_on(at)
    agent.progress(0.0, *range(workers))
    for local_rank in range(1, workers):
        agent.say(local_rank, applied=2, limits=limits)
        agent.progress(at, local_rank)
    assert looked(agent.go_on(at + OBEY_S)) == [0]
    agent.progress(0.0)
    return agent


def test_who_does_not_leave_is_left_out_and_blamed() -> None:
    agent = stuck()
    assert agent.workers() == (Worker(1, 1),)
    blamed = agent.fault()
    assert blamed is not None
    assert (blamed.round, blamed.depth) == (1, 0)
    assert "worker 0 has made no progress for 2.1 s on host-a" in blamed.text
    assert signals(agent.go_on(3.9)) == []


@pytest.mark.parametrize(("peers", "waits_s"), [("", OBEY_S), ("b", BLAME_S)])
def test_where_all_were_well_the_wait_itself_is_the_fault_once_other_agents_had_their_time(
    peers: str, waits_s: float
) -> None:
    agent = Agent(1)
    agent.record(sealed(member("a"), *map(member, peers)))
    agent.say(0, limits=SOFT)
    agent.go_on(2.0)
    agent.progress(0.0)
    agent.say(applied=2, limits=SOFT)
    agent.go_on(2.0 + waits_s - 0.01)
    assert agent.fault() is None
    agent.go_on(2.0 + waits_s)
    assert agent.fault() is not None


def test_who_was_stopped_by_a_signal_cannot_leave_and_is_not_waited_for() -> None:
    agent = working(2, SOFT)
    agent.go_on(2.0)
    agent.progress(0.0, 1)
    agent.progress(0.0, 0, stopped=True)
    assert agent.workers() == (Worker(1, 1),)
    assert "worker 0 has made no progress" in (blamed.text if (blamed := agent.fault()) else "")
    agent.say(0, applied=2, limits=SOFT)
    assert agent.workers() == (Worker(0, 1), Worker(1, 1)), "it goes on"


def test_the_answer_to_an_earlier_look_judges_nobody() -> None:
    agent = working(1, SOFT)
    agent.go_on(2.0)
    agent.progress(0.0)
    agent.now = 2.05
    agent.progress(0.0)
    assert agent.workers() == (Worker(0, 1),)


def test_who_is_left_out_comes_back_when_it_obeys() -> None:
    agent = stuck()
    agent.record(sealed(member("b"), replace(member("a"), workers=(Worker(1, 1),)), number=2))
    agent.say(0, applied=2, limits=SOFT)
    assert agent.workers() == (Worker(0, 1), Worker(1, 1))


def test_a_node_all_of_whose_workers_were_left_out_comes_back_when_they_obey() -> None:
    agent = stuck(workers=1)
    assert agent.workers() == ()
    agent.record(sealed(member("b"), number=2))
    assert agent.report is not None
    assert agent.report.member.incarnation == 2
    agent.say(0, applied=2, limits=SOFT)
    assert (agent.report.member.incarnation, agent.workers()) == (2, (Worker(0, 1),))


def test_who_is_stuck_beyond_its_hard_limit_is_ended() -> None:
    agent = stuck()
    assert 0 in looked(agent.go_on(4.0))
    agent.progress(0.0)
    assert 0 in looked(agent.go_on(4.0 + OBEY_S))
    assert signals(agent.progress(0.0)) == [(0, SIGTERM)]
    assert signals(agent.go_on(4.2)) == []
    assert signals(agent.go_on(4.4)) == [(0, SIGKILL)], "after its own grace of 0.2 s"
    effects = agent.see(saw.WorkerExited(0, 1, -SIGKILL))
    assert (1, SIGTERM) in signals(effects), "under no-replace its node restarts"


def test_its_failure_is_answered_by_the_policy() -> None:
    agent = stuck(failure="replace")
    agent.record(sealed(member("b"), replace(member("a"), workers=(Worker(1, 1),)), number=2))
    agent.go_on(4.0)
    agent.progress(0.0)
    agent.go_on(4.0 + OBEY_S)
    agent.progress(0.0)
    agent.go_on(4.2)
    effects = agent.see(saw.WorkerExited(0, 1, 0))
    assert spawned(effects) == [(0, WorkerState.PAUSED)], "whatever its exit code"
    assert signals(effects) == []


def test_one_that_no_signal_ends_has_failed_all_the_same() -> None:
    agent = stuck(failure="replace")
    agent.go_on(4.0)
    agent.progress(0.0)
    agent.go_on(4.0 + OBEY_S)
    agent.progress(0.0)
    killed = agent.go_on(4.5)
    assert (0, SIGKILL) in signals(killed)
    agent.record(sealed(member("b"), replace(member("a"), workers=(Worker(1, 1),)), number=2))
    effects = agent.go_on(4.6 + ABANDON_S)
    assert spawned(effects) == [(0, WorkerState.PAUSED)], "it is given up, and replaced"


@pytest.mark.parametrize("leaves_after_s", [0.3, 0.9])
def test_a_hard_limit_alone_does_not_end_who_leaves(leaves_after_s: float) -> None:
    """To leave a world can take longer than OBEY_S, where NCCL's communicators are torn down."""
    agent = working(1, HARD_ONLY)
    agent.go_on(3.0)
    assert paused(agent.progress(0.0)) == [0]
    effects: list[do.Effect] = []
    while agent.now < 3.0 + leaves_after_s:
        effects += agent.go_on(agent.now + 0.05)
        effects += agent.progress(0.0)
    assert signals(effects) == []
    agent.say(applied=2, limits=HARD_ONLY)
    assert agent.workers() == (Worker(0, 1),)


def test_a_hard_limit_alone_ends_who_does_not_leave() -> None:
    agent = working(1, HARD_ONLY)
    agent.go_on(3.0)
    agent.progress(0.0)
    effects: list[do.Effect] = []
    while agent.now < 5.5:
        effects += agent.go_on(agent.now + 0.05)
        effects += agent.progress(0.0)
    assert (0, SIGTERM) in signals(effects)


def test_who_says_nothing_of_limits_is_never_judged() -> None:
    agent = working(1, None)
    agent.record(sealed(member("a"), number=2))
    assert looked(agent.go_on(1000.0)) == []


def test_without_limits_of_its_own_one_has_as_long_as_it_likes_until_its_world_ends() -> None:
    agent = working(1, UNLIMITED)
    assert looked(agent.go_on(100.0)) == []
    agent.record(sealed(member("a"), number=2))
    assert LEAVE.soft is not None
    assert looked(agent.go_on(100.0 + LEAVE.soft)) == [0]


def test_where_peers_are_added_one_may_take_its_time() -> None:
    agent = working(1, UNLIMITED)
    agent.record(sealed(member("a"), member("b"), member("c"), number=2))
    assert looked(agent.go_on(100.0)) == []


def test_a_suspicion_ends_with_the_process() -> None:
    agent = working(2, SOFT)
    agent.go_on(2.0)
    agent.progress(0.0, 0)
    agent.see(saw.WorkerExited(0, 1, 1))
    assert looked(agent.go_on(2.0 + OBEY_S)) == []


# --- hangs, under hard


def test_under_hard_it_is_ended_at_once_and_keeps_its_place() -> None:
    agent = working(2, SOFT, policy="hard")
    agent.go_on(2.0)
    effects = agent.progress(0.0, 0)
    assert shown(effects) == [0]
    assert agent.workers() == (Worker(0, 1), Worker(1, 1)), "everybody meets once, in the world that follows"
    assert signals(agent.go_on(2.0 + SHOW_S)) == [(0, SIGTERM)]
    effects = agent.see(saw.WorkerExited(0, 1, -SIGTERM))
    assert signals(effects) == [(1, SIGTERM)]
    assert agent.engine.stage is Stage.RESTARTING
    agent.see(saw.WorkerExited(1, 1, -SIGTERM))
    agent.go_on(5.0)
    effects = agent.record(sealed(member("a", workers=2), member("b", workers=2), number=2))
    (spawn,) = [effect for effect in effects if isinstance(effect, do.Spawn)]
    assert spawn.restarts_left == 2, "a failure of its own"


# --- warm starts


def joining(workers: int = 2, **job: str) -> tuple[Agent, list[do.Effect]]:
    """A node that finds others at work."""
    agent = Agent(workers, **job)
    return agent, agent.record(sealed(member("b")))


def test_who_joins_others_at_work_starts_outside_and_is_offered_with_all_workers() -> None:
    agent, effects = joining()
    assert spawned(effects) == [(0, WorkerState.PAUSED), (1, WorkerState.PAUSED)]
    assert agent.workers() == ()
    agent.say(0)
    assert agent.workers() == ()
    agent.say(1)
    assert agent.workers() == (Worker(0, 1), Worker(1, 1))


def test_a_worker_that_says_something_else_first_is_not_ready() -> None:
    agent, _ = joining(1)
    agent.say(0, applied=0, ready=False, limits=UNLIMITED)
    assert agent.workers() == ()


@pytest.mark.parametrize(
    "round_", [opened(member("b")), sealed(member("b"), finishing=True)], ids=["open", "finishing"]
)
def test_nobody_is_started_where_nobody_works_or_nobody_is_admitted(round_: Round) -> None:
    assert spawned(Agent().record(round_)) == []


def test_under_hard_nobody_is_started_before_there_is_a_world_for_it() -> None:
    _, effects = joining(policy="hard")
    assert spawned(effects) == []


def test_a_world_begins_with_the_processes_that_are_warm() -> None:
    agent, _ = joining(1)
    agent.say(0)
    effects = agent.record(sealed(member("b"), member("a"), number=2))
    assert spawned(effects) == []
    (tell,) = [effect for effect in effects if isinstance(effect, do.Tell)]
    assert (tell.state, tell.change, tell.round) == (WorkerState.HEALTHY, None, 2)


def test_who_joins_does_not_wait_for_ever_for_a_worker_that_never_asks() -> None:
    agent, _ = joining()
    agent.now = 10.0  # they were long in coming, which is nobody's fault
    agent.say(0, applied=0, limits=ProgressLimits(soft=2.0))
    agent.go_on(9.9 + COMES_S)
    assert agent.workers() == ()
    agent.go_on(10.1 + COMES_S)
    assert agent.workers() == (Worker(0, 1),)
    agent.say(1, applied=0)
    assert agent.workers() == (Worker(0, 1), Worker(1, 1))


def test_a_replacement_is_started_at_once_and_offered_when_it_is_ready() -> None:
    agent = working(2, failure="replace")
    effects = agent.see(saw.WorkerExited(0, 1, 1))
    assert spawned(effects) == [(0, WorkerState.PAUSED)]
    assert agent.workers() == (Worker(1, 1),)
    agent.say(0, launch=2)
    assert agent.workers() == (Worker(0, 2), Worker(1, 1))


def test_a_replacement_that_is_not_ready_does_not_keep_its_node_from_coming_back() -> None:
    agent = working(2, failure="replace")
    agent.see(saw.WorkerExited(0, 1, 1))
    agent.record(sealed(member("b"), number=2))
    assert agent.report is not None
    assert agent.report.member.incarnation == 2, "it was taken for dead"
    assert agent.workers() == (Worker(1, 1),), "which has its state, and waits"


def test_one_that_is_outside_and_fails_is_answered_by_the_policy() -> None:
    agent, _ = joining(failure="replace")
    effects = agent.see(saw.WorkerExited(0, 1, 1))
    assert spawned(effects) == [(0, WorkerState.PAUSED)]


def test_under_record_a_newcomer_goes_on_without_the_worker_that_failed() -> None:
    agent, _ = joining(failure="record")
    agent.see(saw.WorkerExited(0, 1, 1))
    assert agent.engine.stage is Stage.WAITING, "the other one imports"
    agent.say(1)
    assert agent.workers() == (Worker(1, 1),)


def test_under_record_a_node_leaves_when_the_last_one_has_failed() -> None:
    agent, _ = joining(failure="record")
    agent.see(saw.WorkerExited(0, 1, 1))
    agent.see(saw.WorkerExited(1, 1, 1))
    assert agent.engine.stage is Stage.ENDED


def test_one_that_ends_before_it_was_in_a_world_breaks_none() -> None:
    agent, _ = joining(1)
    agent.say(0, applied=0, ready=False, limits=UNLIMITED)
    effects = agent.see(saw.WorkerExited(0, 1, 0))
    (end,) = [effect for effect in effects if isinstance(effect, do.End)]
    assert end.result.outcome is do.Outcome.SUCCEEDED


def test_a_node_that_finished_while_a_world_was_made_says_that_nobody_comes_to_it() -> None:
    agent = working(1)
    agent.say(worked=1)
    agent.see(saw.WorkerExited(0, 1, 0))
    agent.record(sealed(member("a"), member("b"), member("c"), number=2))
    assert agent.engine.stage is Stage.FINISHED
    assert agent.report is not None
    assert (agent.report.broken_round, agent.report.missed_round) == (2, 2)


def test_who_is_outside_is_dismissed_when_the_work_here_is_done() -> None:
    agent = working(2, failure="replace")
    agent.say(1, worked=1)
    agent.see(saw.WorkerExited(0, 1, 1))
    effects = agent.see(saw.WorkerExited(1, 1, 0))
    assert signals(effects) == [(0, SIGTERM)]
    agent.see(saw.WorkerExited(0, 2, -SIGTERM))
    assert agent.engine.stage is Stage.FINISHED


def test_one_that_has_left_before_it_worked_dismisses_nobody() -> None:
    agent = working(2, failure="replace")
    agent.see(saw.WorkerExited(0, 1, 1))
    assert not signals(agent.see(saw.WorkerExited(1, 1, 0)))
    agent.say(0, launch=2)
    assert agent.workers() == (Worker(0, 2), Worker(1, 1))


def test_one_that_was_dismissed_and_does_not_end_does_not_hold_up_the_job() -> None:
    agent = working(2, failure="replace")
    agent.say(1, worked=1)
    agent.see(saw.WorkerExited(0, 1, 1))
    agent.see(saw.WorkerExited(1, 1, 0))
    effects = agent.go_on(2.1 + ABANDON_S)
    assert signals(effects) == [(0, SIGKILL)]
    assert agent.engine.stage is Stage.FINISHED


@pytest.mark.parametrize("failure", ["no-replace", "replace"])
def test_one_that_leaves_for_good_is_not_started_again(failure: str) -> None:
    """Its failure is recorded, whatever the policy: what a wrapper's callbacks have decided, no restart would mend."""
    agent = working(2, failure=failure)
    agent.say(0, applied=2, ends=True, final=True)
    effects = agent.see(saw.WorkerExited(0, 1, 1))
    assert spawned(effects) == []
    assert signals(effects) == []
    assert agent.workers() == (Worker(1, 1),)
    agent.say(1, applied=2, ends=True, final=True)
    agent.see(saw.WorkerExited(1, 1, 1))
    assert agent.engine.stage is Stage.ENDED
    assert spawned(agent.effects) == []


def test_one_that_shows_progress_again_after_a_call_is_looked_at_again() -> None:
    """Between two wrapped calls it shows none, so the look that was due then has no answer."""
    agent = working(limits=SOFT)
    agent.say(applied=1, ends=True, limits=SOFT)
    assert 0 in looked(agent.go_on(100.0))
    assert looked(agent.go_on(200.0)) == [], "it was asked already"
    agent.say(applied=1, ends=False, limits=SOFT)
    assert 0 in looked(agent.go_on(300.0))


def test_a_later_lease_gives_no_time_in_the_world_in_which_the_earlier_one_expired() -> None:
    """The others may have gone on meanwhile, and a worker that has yet to leave must not go on as well."""
    agent = Agent()
    agent.record(sealed(member("a")))
    agent.say()
    effects = agent.see(saw.LeaseRenewed(until=20.0, lease_number=1, granted_s=20.0))
    assert [effect for effect in effects if isinstance(effect, do.Allow)]
    agent.now = 30.0
    agent.see(saw.LeaseRenewed(until=50.0, lease_number=2, granted_s=20.0))
    agent.now = 34.0
    effects = agent.see(saw.LeaseRenewed(until=54.0, lease_number=2, granted_s=20.0))
    assert not [effect for effect in effects if isinstance(effect, do.Allow)]
    effects = agent.say(applied=2)
    assert [effect.leave_at for effect in effects if isinstance(effect, do.Allow)] == [53.5]


def test_workers_are_told_to_stop_before_the_lease_in_the_store_can_have_expired() -> None:
    agent = Agent()
    agent.record(sealed(member("a")))
    agent.say()
    agent.see(saw.LeaseRenewed(until=20.0, lease_number=1, granted_s=20.0))
    assert not paused(agent.go_on(17.9))
    assert paused(agent.go_on(18.0)) == [0]


# --- told to leave again


def test_a_stop_that_is_repeated_is_no_hurry() -> None:
    """Supervisors repeat their signals, and the workers may be saving. The limit is the grace time."""
    agent = working(policy="hard")
    assert signals(agent.see(saw.Signalled(SIGTERM))) == [(0, SIGTERM)]
    agent.now += 1.0
    said = [note.text for note in agent.see(saw.Signalled(SIGTERM), saw.Signalled(1)) if isinstance(note, do.Note)]
    assert len(said) == 1, "once"
    assert "SIGQUIT, or Ctrl-C three times within a second" in said[0]


@pytest.mark.parametrize(("signums", "kills"), [((3,), True), ((2, 2), False), ((2, 2, 2), True), ((1, 2, 2), False)])
def test_a_person_who_will_not_wait_is_obeyed(signums: tuple[int, ...], kills: bool) -> None:
    agent = working(policy="hard")
    agent.see(saw.Signalled(SIGTERM))
    agent.now += 0.1
    assert signals(agent.see(*map(saw.Signalled, signums))) == ([(0, SIGKILL)] if kills else [])


def test_three_interrupts_are_one_wish_only_within_a_second() -> None:
    agent = working(policy="hard")
    assert signals(agent.see(saw.Signalled(2))) == [(0, 2)]
    for _ in range(3):
        agent.now += 0.6
        assert signals(agent.see(saw.Signalled(2))) == []
