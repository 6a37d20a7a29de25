"""Until when an agent may be sure that the others have not gone on without it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.agent.consensus.touch import DRIFT, Touch
from softrun.agent.protocol.model import Beat

GRANT_S = 5.0
LEASE_S = GRANT_S * (1 - DRIFT)


def nobody(_: str) -> bool:
    return False


def a_touch(node: str = "a", members: str = "abc") -> Touch:
    touch = Touch(node, lambda: GRANT_S)
    touch.join(tuple(members))
    return touch


def granted(echo: float, *, leads: bool = False, grant_s: float = GRANT_S) -> Beat:
    """A beat of another agent, which has heard the one that was sent at `echo`."""
    return Beat(at=1000.0 + echo, echo=echo, grant_s=grant_s, leads=leads)


def leading(*followers: str, at: float = 10.0, members: str = "abc") -> Touch:
    """A leader's, with the leases of these."""
    touch = a_touch(members=members)
    for node in followers:
        touch.heard(node, granted(at), at + 0.1)
    touch.lead(nobody, at + 0.1)
    return touch


# --- beats


def test_a_beat_returns_the_last_one_of_its_receiver() -> None:
    touch = a_touch()
    assert touch.beat("b", 10.0, leads=False, follows=True, asks=True).echo == 0.0, "it has heard none"
    assert touch.heard("b", Beat(at=777.0), 10.5)
    assert not touch.heard("b", Beat(at=778.0), 11.5)
    beat = touch.beat("b", 12.0, leads=False, follows=True, asks=False)
    assert beat == Beat(at=12.0, echo=778.0, grant_s=GRANT_S, leads=False, asks=False)
    assert touch.beat("c", 12.0, leads=False, follows=False, asks=False).echo == 0.0


def test_after_a_link_is_lost_the_next_beat_is_the_first_again() -> None:
    touch = a_touch()
    touch.heard("b", Beat(at=777.0), 10.5)
    touch.forget("b")
    touch.forget("c")
    assert touch.beat("b", 12.0, leads=False, follows=True, asks=False).echo == 0.0, "it may have been sent long ago"
    assert touch.heard("b", Beat(at=3.0), 12.5)


def test_who_neither_leads_nor_follows_grants_nothing() -> None:
    assert a_touch().beat("b", 10.0, leads=False, follows=False, asks=True).grant_s == 0.0


# --- a follower's lease


def test_a_lease_counts_from_the_beat_that_is_returned_whenever_the_answer_comes() -> None:
    touch = a_touch()
    assert touch.until == -inf
    touch.heard("b", granted(10.0, leads=True), 10.2)
    assert touch.until == pytest.approx(10.0 + LEASE_S)
    late = a_touch()
    late.heard("b", granted(10.0, leads=True), 14.0)
    assert late.until == touch.until


def test_it_is_shorter_than_what_was_granted_because_another_clock_may_run_faster() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0, leads=True, grant_s=4.0), 10.2)
    assert touch.until < 10.0 + 4.0 / (1 + DRIFT), "by then the other has counted 4 seconds"


def test_one_that_arrives_late_does_not_shorten_it() -> None:
    touch = a_touch()
    touch.heard("b", granted(12.0, leads=True), 12.2)
    touch.heard("b", granted(10.0, leads=True), 12.3)
    assert touch.until == pytest.approx(12.0 + LEASE_S)


@pytest.mark.parametrize("echo", [0.0, -3.0, 10.3])
def test_a_beat_that_returns_none_of_this_agents_grants_nothing(echo: float) -> None:
    for leads in (True, False):
        touch = a_touch(members="ab")
        touch.heard("b", granted(echo, leads=leads), 10.2)
        touch.lead(nobody, 10.2)
        assert touch.until == -inf


def test_a_leader_that_grants_nothing_does_not_move_the_time_when_the_lease_ended() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0, leads=True), 10.1)
    for at in (20.0, 30.0):
        touch.heard("b", granted(at, leads=True, grant_s=0.0), at + 0.1)
    assert touch.until == 10.0 + LEASE_S


def test_the_first_beat_of_one_that_grants_nothing_says_that_there_is_no_lease() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0, leads=True, grant_s=0.0), 10.1)
    assert touch.until == 10.0


def test_what_a_follower_grants_is_no_lease_of_a_leader() -> None:
    """It leads nobody: others may follow another that has taken this agent for dead."""
    touch = a_touch()
    touch.heard("b", granted(10.0, leads=False), 10.2)
    assert touch.until == -inf


# --- a leader's lease


def test_a_leader_has_a_lease_once_all_members_have_granted_one() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0), 10.2)
    assert not touch.lead(nobody, 10.2)
    assert touch.until == -inf
    touch.heard("c", granted(11.0), 11.2)
    assert touch.lead(nobody, 11.2), "all that follow get theirs at once"
    assert not touch.lead(nobody, 11.3), "it stood before"


def test_it_ends_with_the_first_of_theirs() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0), 10.2)
    touch.heard("c", granted(11.0), 11.2)
    touch.lead(nobody, 11.2)
    assert touch.until == pytest.approx(10.0 + LEASE_S)
    touch.heard("c", granted(14.0), 14.1)
    touch.lead(nobody, 14.1)
    assert touch.until == pytest.approx(10.0 + LEASE_S), "b has not granted another"
    touch.heard("b", granted(14.0), 14.1)
    touch.lead(nobody, 14.1)
    assert touch.until == pytest.approx(14.0 + LEASE_S)


def test_one_that_has_ended_counts_no_more() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0), 10.2)
    touch.heard("c", granted(1.0), 10.2)
    assert not touch.lead(nobody, 10.2)
    assert touch.until == -inf


def test_whoever_is_no_member_need_not_grant_one() -> None:
    assert leading("b", members="ab").until == pytest.approx(10.0 + LEASE_S)
    touch = leading("b", members="ab")
    touch.join(("a", "b", "c"))
    touch.heard("b", granted(14.0), 14.1)
    touch.lead(nobody, 14.1)
    assert touch.until == pytest.approx(10.0 + LEASE_S), "it stands, and is renewed when c has granted one, too"


def test_a_leader_grants_no_more_than_it_has() -> None:
    touch = leading("b", "c", at=10.0)
    beat = touch.beat("b", 12.0, leads=True, follows=False, asks=False)
    assert 12.0 + beat.grant_s <= 10.0 + LEASE_S
    assert touch.beat("b", 20.0, leads=True, follows=False, asks=False).grant_s == 0.0
    assert a_touch().beat("b", 10.0, leads=True, follows=False, asks=False).grant_s == 0.0


def test_nor_more_than_the_time_after_which_it_takes_one_for_dead() -> None:
    alone = a_touch(members="a")
    assert alone.until == inf
    assert alone.beat("b", 10.0, leads=True, follows=False, asks=False).grant_s == GRANT_S, "to a newcomer"


def test_who_is_the_only_member_needs_nobody_until_there_are_others() -> None:
    touch = a_touch(members="a")
    assert touch.until == inf
    assert not touch.lead(nobody, 10.0)
    touch.join(("a", "b"))
    assert touch.until == -inf


# --- deaths


def test_one_that_died_while_the_lease_stood_is_excused_as_long_as_it_is_dead() -> None:
    touch = leading("b", "c", at=10.0)
    touch.part("c", 12.0)
    touch.heard("b", granted(14.0), 14.1)
    touch.lead("c".__eq__, 14.1)
    assert touch.until == pytest.approx(14.0 + LEASE_S)
    touch.heard("b", granted(18.0), 18.1)
    touch.lead(nobody, 18.1)
    assert touch.until == pytest.approx(14.0 + LEASE_S), "it is not certain that c is dead, after all"


def test_one_that_died_later_is_not() -> None:
    """It may have taken this agent for dead before."""
    touch = leading("b", "c", at=10.0)
    touch.part("c", 10.0 + LEASE_S)
    touch.heard("b", granted(16.0), 16.1)
    assert not touch.lead("c".__eq__, 16.1)
    assert touch.until == pytest.approx(10.0 + LEASE_S)


def test_parted_are_those_that_died_while_the_lease_stood() -> None:
    touch = leading("b", "c", at=10.0)
    touch.part("b", 12.0)
    assert touch.parted(["b"])
    assert touch.parted([])
    assert not touch.parted(["b", "c"])
    touch.part("c", 20.0)
    assert not touch.parted(["c"]), "it had ended by then"
    assert touch.parted(["b"]), "and b stays what it was"


def test_without_a_lease_nobody_is_parted() -> None:
    touch = a_touch()
    touch.part("b", 10.0)
    assert not touch.parted(["b"])


def test_a_followers_lease_will_do_as_well() -> None:
    touch = a_touch()
    touch.heard("b", granted(10.0, leads=True), 10.2)
    touch.part("b", 11.0)
    assert touch.parted(["b"])


def test_who_is_met_again_is_parted_no_more() -> None:
    touch = leading("b", "c", at=10.0)
    touch.part("b", 12.0)
    touch.meet("b")
    touch.meet("x")
    assert not touch.parted(["b"])


# --- whatever comes


@given(st.lists(st.tuples(st.sampled_from("bc"), st.floats(0, 100), st.floats(0, 9), st.booleans()), max_size=30))
def test_a_lease_never_falls_and_is_never_longer_than_the_last_beat_and_what_is_granted(
    beats: list[tuple[str, float, float, bool]],
) -> None:
    touch, before = a_touch(), -inf
    longest = -inf
    for node, echo, grant_s, leads in beats:
        touch.heard(node, granted(echo, leads=leads, grant_s=grant_s), 50.0)
        touch.lead(nobody, 50.0)
        if 0 < echo <= 50.0:
            longest = max(longest, echo + grant_s)
        assert before <= touch.until <= longest
        before = touch.until
