"""Until when an agent may be sure that the others have not gone on without it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.agent.consensus.leases import DRIFT, Leases
from softrun.agent.protocol.model import Beat
from softrun.agent.rendezvous.liveness import Liveness

GRANT_S = 5.0
TOLERANCE_S = 4.0
LEASE_S = GRANT_S * (1 - DRIFT)


def nobody(_: str) -> bool:
    return False


def leases_of(node: str = "a", members: str = "abc") -> Leases:
    leases = Leases(node, TOLERANCE_S, lambda: GRANT_S)
    join(leases, members)
    return leases


def join(leases: Leases, members: str, since: float = -inf, now: float = 0.0, *, accepted_by_all: bool = False) -> bool:
    """There is a record with these members."""
    return leases.join(tuple(members), since, now, accepted_by_all=accepted_by_all)


def granted(echo: float, *, leads: bool = False, grant_s: float = GRANT_S) -> Beat:
    """A beat of another agent, which has heard the one that was sent at `echo`."""
    return Beat(at=1000.0 + echo, echo=echo, grant_s=grant_s, leads=leads)


def leading(*followers: str, at: float = 10.0, members: str = "abc") -> Leases:
    """A leader's, with the leases of these."""
    leases = leases_of(members=members)
    for node in followers:
        leases.heard(node, granted(at), at + 0.1)
    leases.lead(nobody, at + 0.1)
    return leases


# --- beats


def test_a_beat_returns_the_last_one_of_its_receiver() -> None:
    leases = leases_of()
    assert leases.beat("b", 10.0, leads=False, follows=True, asks=True).echo == 0.0, "it has heard none"
    assert leases.heard("b", Beat(at=777.0), 10.5)
    assert not leases.heard("b", Beat(at=778.0), 11.5)
    beat = leases.beat("b", 12.0, leads=False, follows=True, asks=False)
    assert beat == Beat(at=12.0, echo=778.0, grant_s=GRANT_S, leads=False, asks=False)
    assert leases.beat("c", 12.0, leads=False, follows=False, asks=False).echo == 0.0


def test_after_a_link_is_lost_the_next_beat_is_the_first_again() -> None:
    leases = leases_of()
    leases.heard("b", Beat(at=777.0), 10.5)
    leases.forget("b")
    leases.forget("c")
    assert leases.beat("b", 12.0, leads=False, follows=True, asks=False).echo == 0.0, "it may have been sent long ago"
    assert leases.heard("b", Beat(at=3.0), 12.5)


def test_who_neither_leads_nor_follows_grants_nothing() -> None:
    assert leases_of().beat("b", 10.0, leads=False, follows=False, asks=True).grant_s == 0.0


# --- a follower's lease


def test_a_lease_counts_from_the_beat_that_is_returned_whenever_the_answer_comes() -> None:
    leases = leases_of()
    assert leases.until == -inf
    leases.heard("b", granted(10.0, leads=True), 10.2)
    assert leases.until == pytest.approx(10.0 + LEASE_S)
    late = leases_of()
    late.heard("b", granted(10.0, leads=True), 14.0)
    assert late.until == leases.until


@pytest.mark.parametrize("grant_s", [9e15, 1e300, 2.1 * TOLERANCE_S])
def test_nobody_is_believed_who_promises_more_than_anybody_does(grant_s: float) -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=True, grant_s=grant_s), 10.2)
    assert leases.until <= 10.0 + 2 * TOLERANCE_S


def test_it_is_shorter_than_what_was_granted_because_another_clock_may_run_faster() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=True, grant_s=4.0), 10.2)
    assert leases.until < 10.0 + 4.0 / (1 + DRIFT), "by then the other has counted 4 seconds"


def test_one_that_arrives_late_does_not_shorten_it() -> None:
    leases = leases_of()
    leases.heard("b", granted(12.0, leads=True), 12.2)
    leases.heard("b", granted(10.0, leads=True), 12.3)
    assert leases.until == pytest.approx(12.0 + LEASE_S)


@pytest.mark.parametrize("echo", [0.0, -3.0, 10.3])
def test_a_beat_that_returns_none_of_this_agents_grants_nothing(echo: float) -> None:
    for leads in (True, False):
        leases = leases_of(members="ab")
        leases.heard("b", granted(echo, leads=leads), 10.2)
        leases.lead(nobody, 10.2)
        assert leases.until == -inf


def test_a_leader_that_grants_nothing_does_not_move_the_time_when_the_lease_ended() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=True), 10.1)
    for at in (20.0, 30.0):
        leases.heard("b", granted(at, leads=True, grant_s=0.0), at + 0.1)
    assert leases.until == 10.0 + LEASE_S


def test_the_first_beat_of_one_that_grants_nothing_says_that_there_is_no_lease() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=True, grant_s=0.0), 10.1)
    assert leases.until == 10.0


def test_what_a_follower_grants_is_no_lease_of_a_leader() -> None:
    """It leads nobody: others may follow another that has taken this agent for dead."""
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=False), 10.2)
    assert leases.until == -inf


# --- a leader's lease


def test_a_leader_has_a_lease_once_all_members_have_granted_one() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0), 10.2)
    assert not leases.lead(nobody, 10.2)
    assert leases.until == -inf
    leases.heard("c", granted(11.0), 11.2)
    assert leases.lead(nobody, 11.2), "all that follow get theirs at once"
    assert not leases.lead(nobody, 11.3), "it stood before"


def test_it_ends_with_the_first_of_theirs() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0), 10.2)
    leases.heard("c", granted(11.0), 11.2)
    leases.lead(nobody, 11.2)
    assert leases.until == pytest.approx(10.0 + LEASE_S)
    leases.heard("c", granted(14.0), 14.1)
    leases.lead(nobody, 14.1)
    assert leases.until == pytest.approx(10.0 + LEASE_S), "b has not granted another"
    leases.heard("b", granted(14.0), 14.1)
    leases.lead(nobody, 14.3)
    assert leases.until == pytest.approx(14.0 + LEASE_S)


def test_it_is_renewed_while_it_stands_but_not_at_every_beat() -> None:
    """There are as many beats as members, and each is looked at."""
    leases = leases_of()
    for node in "bc":
        leases.heard(node, granted(10.0), 10.1)
    leases.lead(nobody, 10.1)
    for at in (10.11, 10.4):
        for node in "bc":
            leases.heard(node, granted(at), at)
        leases.lead(nobody, at)
        assert leases.until == pytest.approx((10.0 if at == 10.11 else at) + LEASE_S)


def test_one_that_has_ended_counts_no_more() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0), 10.2)
    leases.heard("c", granted(1.0), 10.2)
    assert not leases.lead(nobody, 10.2)
    assert leases.until == -inf


def test_whoever_is_no_member_need_not_grant_one() -> None:
    assert leading("b", members="ab").until == pytest.approx(10.0 + LEASE_S)
    leases = leading("b", members="ab")
    join(leases, "abc", since=11.5, now=11.6)
    leases.heard("b", granted(14.0), 14.1)
    leases.lead(nobody, 14.1)
    assert leases.until == pytest.approx(10.0 + LEASE_S), "it stands, and is renewed when c has granted one, too"


def test_a_leader_grants_no_more_than_it_has() -> None:
    leases = leading("b", "c", at=10.0)
    beat = leases.beat("b", 12.0, leads=True, follows=False, asks=False)
    assert 12.0 + beat.grant_s <= 10.0 + LEASE_S
    assert leases.beat("b", 20.0, leads=True, follows=False, asks=False).grant_s == 0.0
    assert leases_of().beat("b", 10.0, leads=True, follows=False, asks=False).grant_s == 0.0


def test_what_the_last_leader_had_granted_it_passes_on_unless_that_only_refused() -> None:
    """That one may lead still, and have called dead who follows this agent now."""
    leases = leases_of("b")
    leases.heard("a", granted(10.0, leads=True), 10.1)

    def grant_s(refused: bool) -> float:
        return leases.beat("c", 11.0, leads=True, follows=False, asks=False, refused=refused).grant_s

    assert grant_s(refused=False) == pytest.approx(LEASE_S - 1.0)
    assert grant_s(refused=True) == 0.0
    for node in "ac":
        leases.heard(node, granted(10.5), 10.9)
    leases.lead(nobody, 10.9)
    assert grant_s(refused=True) == pytest.approx(LEASE_S - 0.5), "its own, which all have granted it"
    left_behind(leases, "b", 11.0)
    assert grant_s(refused=True) == 0.0


def test_nor_more_than_the_time_after_which_it_takes_one_for_dead() -> None:
    alone = leases_of(members="a")
    assert alone.until == inf
    assert alone.beat("b", 10.0, leads=True, follows=False, asks=False).grant_s == GRANT_S, "to a newcomer"


def test_who_is_the_only_member_needs_nobody_until_there_are_others() -> None:
    leases = leases_of(members="a")
    assert leases.until == inf
    assert not leases.lead(nobody, 10.0)
    join(leases, "ab", since=10.0, now=10.1)
    assert leases.until == -inf


# --- records


def test_a_record_is_a_lease_for_the_leader_that_has_proposed_it() -> None:
    """Whoever accepted it has heard the leader then, and whoever joins with it hears of it later."""
    leases = leases_of()
    assert not join(leases, "abc", since=9.0, now=9.5), "one of its members has not accepted it"
    assert leases.until == -inf
    assert join(leases, "abc", since=10.0, now=10.5, accepted_by_all=True), "all that follow get theirs at once"
    assert leases.until == pytest.approx(10.0 + TOLERANCE_S * (1 - DRIFT))
    assert not join(leases, "ab", since=11.0, now=11.5, accepted_by_all=True), "it stood before"


def test_it_is_none_if_it_was_decided_late() -> None:
    leases = leases_of()
    assert not join(leases, "abc", since=10.0, now=10.0 + TOLERANCE_S, accepted_by_all=True)
    assert leases.beat("b", 10.0 + TOLERANCE_S, leads=True, follows=False, asks=False).grant_s == 0.0


def test_members_that_join_end_each_older_lease() -> None:
    """They have promised nothing, and may take the leader for dead a tolerance after they have heard of the record."""
    leases = leading("b", "c", at=10.0)
    join(leases, "abcd", since=10.2, now=10.3)
    assert leases.until == pytest.approx(10.2 + TOLERANCE_S * (1 - DRIFT))
    join(leases, "abc", since=13.0, now=13.1)
    assert leases.until == pytest.approx(10.2 + TOLERANCE_S * (1 - DRIFT)), "nobody joined"


def test_who_did_not_accept_the_record_by_which_others_join_has_no_lease() -> None:
    leases = leading("b", "c", at=10.0)
    join(leases, "abcd", now=10.3)
    assert leases.until == -inf


def left_behind(leases: Leases, node: str, at: float) -> None:
    leases.left_behind_at = lambda each: at if each == node else None


def test_whom_a_record_under_way_leaves_behind_is_granted_nothing() -> None:
    leases = leading("b", "c", at=10.0)
    left_behind(leases, "b", 11.0)
    assert leases.beat("b", 11.1, leads=True, follows=False, asks=False).grant_s == 0.0
    assert leases.beat("c", 11.1, leads=True, follows=False, asks=False).grant_s > 0.0


def test_who_has_accepted_to_be_left_behind_trusts_no_lease() -> None:
    leases = leading("b", "c", at=10.0)
    left_behind(leases, "a", 11.0)
    assert leases.until == 11.0
    leases.part("b", 11.1)
    assert not leases.parted(["b"])
    leases.left_behind_at = lambda _: None
    assert leases.until == pytest.approx(10.0 + LEASE_S)


# --- deaths


def test_one_that_died_while_the_lease_stood_is_excused_as_long_as_it_is_dead() -> None:
    leases = leading("b", "c", at=10.0)
    leases.part("c", 12.0)
    leases.heard("b", granted(14.0), 14.1)
    leases.lead("c".__eq__, 14.1)
    assert leases.until == pytest.approx(14.0 + LEASE_S)
    leases.heard("b", granted(18.0), 18.1)
    leases.lead(nobody, 18.1)
    assert leases.until == pytest.approx(14.0 + LEASE_S), "it is not certain that c is dead, after all"


def test_one_that_died_later_is_not() -> None:
    """It may have taken this agent for dead before."""
    leases = leading("b", "c", at=10.0)
    leases.part("c", 10.0 + LEASE_S)
    leases.heard("b", granted(16.0), 16.1)
    assert not leases.lead("c".__eq__, 16.1)
    assert leases.until == pytest.approx(10.0 + LEASE_S)


def test_parted_are_those_that_died_while_the_lease_stood() -> None:
    leases = leading("b", "c", at=10.0)
    leases.part("b", 12.0)
    assert leases.parted(["b"])
    assert leases.parted([])
    assert not leases.parted(["b", "c"])
    leases.part("c", 20.0)
    assert not leases.parted(["c"]), "it had ended by then"
    assert leases.parted(["b"]), "and b stays what it was"


@pytest.mark.parametrize("leads", [True, False])
def test_what_a_leader_was_promised_is_owed_to_all_once_it_has_died(leads: bool) -> None:
    """It may have granted them so much."""
    leases = leases_of("b")
    leases.heard("a", Beat(at=777.0, leads=leads), 10.0)
    leases.beat("a", 10.1, leads=not leads, follows=leads, asks=False)
    assert leases.owed("c") == -inf
    leases.part("a", 11.0)
    assert leases.owed("c") == (10.0 + GRANT_S if leads else -inf)


def test_without_a_lease_nobody_is_parted() -> None:
    leases = leases_of()
    leases.part("b", 10.0)
    assert not leases.parted(["b"])


def test_a_followers_lease_will_do_as_well() -> None:
    leases = leases_of()
    leases.heard("b", granted(10.0, leads=True), 10.2)
    leases.part("b", 11.0)
    assert leases.parted(["b"])


def test_who_is_met_again_is_parted_no_more() -> None:
    leases = leading("b", "c", at=10.0)
    leases.part("b", 12.0)
    leases.meet("b")
    leases.meet("x")
    assert not leases.parted(["b"])


# --- whatever comes


@given(st.lists(st.tuples(st.sampled_from("bc"), st.floats(0, 100), st.floats(0, 9), st.booleans()), max_size=30))
def test_a_lease_never_falls_and_is_never_longer_than_the_last_beat_and_what_is_granted(
    beats: list[tuple[str, float, float, bool]],
) -> None:
    leases, before = leases_of(), -inf
    longest = -inf
    for node, echo, grant_s, leads in beats:
        leases.heard(node, granted(echo, leads=leads, grant_s=grant_s), 50.0)
        leases.lead(nobody, 50.0)
        if 0 < echo <= 50.0:
            longest = max(longest, echo + grant_s)
        assert before <= leases.until <= longest
        before = leases.until


second = st.floats(0.001, 400.0)
happens = st.tuples(st.sampled_from(["beats", "beats", "answers", "wakes"]), st.floats(0.0, 3.0), second)


@given(st.floats(0.01, 40.0), st.integers(2, 6), st.lists(happens, max_size=60))
def test_nobody_is_dead_who_was_promised_more_time(
    interval_s: float, intervals: int, story: list[tuple[str, float, float]]
) -> None:
    """However late beats came, and however long ago that was."""
    promises_hold(interval_s, intervals, story)


def test_nor_who_was_promised_it_when_beats_came_late() -> None:
    promises_hold(10.0, 2, [("beats", 0.0, 1.0), ("beats", 2.25, 1.0)])


def promises_hold(interval_s: float, intervals: int, story: list[tuple[str, float, float]]) -> None:
    """Times are in intervals, or in seconds."""
    tolerance_s, now, promised = intervals * interval_s, 1.0, -inf
    leases = Leases("a", tolerance_s, lambda: liveness.promise_s)
    liveness = Liveness(interval_s, tolerance_s, now, leases.owed)
    liveness.watch("b", now)
    for what, after, answer_s in story:
        due = now + after * interval_s
        while now < due:  # as the engine does, which looks once per interval at least
            now = min(now + interval_s, due)
            liveness.look(now)
            assert not liveness.dead("b", now) or now >= promised
        if what == "beats":
            liveness.heard("b", now)
            leases.heard("b", Beat(at=now), now)
        elif what == "answers":
            liveness.answered("b", answer_s, now)
        beat = leases.beat("b", now, leads=False, follows=True, asks=False)
        promised = max(promised, beat.echo + beat.grant_s if beat.echo else -inf)
    for _ in range(3 * intervals):
        now += interval_s
        liveness.look(now)
        assert not liveness.dead("b", now) or now >= promised
