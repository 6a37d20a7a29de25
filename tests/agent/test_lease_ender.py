from __future__ import annotations

from dataclasses import replace

import pytest
from values import member, sealed

from softrun.agent.protocol.effects import EndLease
from softrun.agent.protocol.model import NodeIntent, Report
from softrun.agent.rendezvous.lease_ender import BEATS_APART, LeaseEnder
from softrun.agent.rendezvous.liveness import Liveness

INTERVAL_S, TOLERANCE_S = 1.0, 5.0
WORLD = sealed(*(member(name) for name in "abcd"))


class One:
    """The agent of `node`, which knows a lease of every node and watches those named. It follows, or is, a."""

    def __init__(self, node: str, watches: str, leased: bool = True) -> None:
        self.node, self.world, self.now = node, WORLD, 0.0
        self.liveness = Liveness(INTERVAL_S, TOLERANCE_S, now=0.0)
        self.liveness.leased = leased
        self.reports = {each.node: Report(each, NodeIntent.READY, asks=True) for each in WORLD.members}
        self.ender = LeaseEnder(node, self.liveness, self.reports)
        for each in WORLD.by_node:
            self.liveness.holds(each, 3)
        for each in watches:
            self.liveness.watch(each, 0.0)

    def ends(self, until: float, heard: str = "") -> list[tuple[float, str]]:
        """When it ends whose leases, if it looks when it wants to and hears those named at each beat."""
        ended = []
        while self.now < until:
            wanted = [at for at in (self.liveness.deadline(), self.ender.deadline) if at is not None and at > self.now]
            now = self.now = min([*wanted, self.now + INTERVAL_S])
            self.liveness.look(now)
            for node in heard:
                self.liveness.heard(node, now)
            for effect in self.ender.advance(self.world, WORLD.members[0], now):
                assert effect == EndLease(
                    effect.node, 3, by=WORLD.by_node[self.node].lease_number, version=self.world.version
                )
                ended.append((now, effect.node))
        return ended


def test_a_leader_ends_the_lease_of_a_member_that_it_has_missed_for_the_tolerance() -> None:
    assert One("a", "bcd").ends(TOLERANCE_S + 0.5, heard="bc") == [(TOLERANCE_S, "d")]


def test_it_asks_again_after_a_while() -> None:
    times = [at for at, _ in One("a", "bcd").ends(3.5 * TOLERANCE_S, heard="bc")]
    assert times == [TOLERANCE_S, 2 * TOLERANCE_S, 3 * TOLERANCE_S]


def test_a_leader_that_hears_less_than_half_may_be_cut_off_itself_and_ends_none() -> None:
    assert One("a", "bcd").ends(3 * TOLERANCE_S, heard="b")
    assert One("a", "bcd").ends(3 * TOLERANCE_S) == []


def test_those_that_are_gone_do_not_count() -> None:
    one = One("a", "bcd")
    for node in "cd":
        one.liveness.mark_gone(node)
    assert one.ends(TOLERANCE_S + 0.5) == [(TOLERANCE_S, "b")]


@pytest.mark.parametrize(("node", "turn"), [("b", 1), ("c", 2), ("d", 3)])
def test_followers_that_miss_the_leader_act_in_turn(node: str, turn: int) -> None:
    at = TOLERANCE_S + turn * BEATS_APART * INTERVAL_S
    assert One(node, "a").ends(at + 0.5) == [(at, "a")]


def test_one_that_hears_its_leader_again_lets_it_be() -> None:
    one = One("c", "a")
    assert one.ends(TOLERANCE_S + 0.5) == []
    assert one.ends(3 * TOLERANCE_S, heard="a") == []


def test_the_workers_of_one_that_never_asks_do_not_stop_by_themselves() -> None:
    one = One("a", "bcd")
    one.reports["d"] = Report(WORLD.members[3], NodeIntent.READY)
    assert one.ends(3 * TOLERANCE_S, heard="bc") == []


def test_without_leases_there_is_none_to_end() -> None:
    assert One("a", "bcd", leased=False).ends(3 * TOLERANCE_S, heard="bc") == []


def test_who_has_no_place_in_the_record_ends_none() -> None:
    assert One("e", "a").ends(5 * TOLERANCE_S) == []


def test_one_that_is_heard_again_after_that_is_to_end_until_it_has_another_lease() -> None:
    one = One("a", "bcd")
    assert not one.ender.is_ending("d")
    one.ends(TOLERANCE_S + 0.5, heard="bc")
    assert one.ender.is_ending("d")
    assert not one.ender.is_ending("b")
    assert [node for _, node in one.ends(2 * TOLERANCE_S + 0.5, heard="bcd")] == ["d"]
    one.liveness.holds("d", 4)
    assert not one.ender.is_ending("d")
    assert one.ends(4 * TOLERANCE_S, heard="bcd") == []


def test_a_new_record_ends_the_suspicion() -> None:
    """Another may lead in it, and grant the node more: what was asked before must not end its lease now."""
    one = One("b", "a")
    assert one.ends(TOLERANCE_S + 2.5)
    one.world = replace(WORLD, version=WORLD.version + 1)
    assert one.ends(one.now + 1, heard="a") == []
    assert one.ender.is_ending("a"), "it may have been ended, and nobody has told yet"
    assert one.ends(one.now + TOLERANCE_S, heard="a") == []
    assert not one.ender.is_ending("a")


def test_who_is_missed_under_the_next_record_as_well_is_ended_under_that() -> None:
    one = One("a", "bcd")
    assert one.ends(TOLERANCE_S + 0.5, heard="bc")
    one.world = replace(WORLD, version=WORLD.version + 1)
    assert one.ends(TOLERANCE_S + 1.5, heard="bc") == [(one.now, "d")]


def test_once_the_lease_is_over_there_is_nothing_to_ask_for() -> None:
    one = One("a", "bcd")
    one.ends(TOLERANCE_S + 0.5, heard="bc")
    one.liveness.expire("d", 3)
    assert one.ends(4 * TOLERANCE_S, heard="bc") == []
    assert one.ender.is_ending("d")
