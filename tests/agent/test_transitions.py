"""How a job that was founded twice becomes one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import JOB, STORE, member, of_job, sealed

from softrun.agent.protocol.model import Phase, lineage
from softrun.agent.rendezvous import transitions

A, B = member("a"), member("b")


def test_a_job_is_named_after_its_founder_and_the_version_with_which_it_begins() -> None:
    assert transitions.found(A, JOB).lineage == lineage("a", 1) == "a@1"


@pytest.mark.parametrize(("one", "other"), [("a@1", "b@1"), ("b@1", "a@5")])
def test_of_two_jobs_the_one_that_has_worked_for_a_shorter_time_gives_up(one: str, other: str) -> None:
    assert transitions.yields_to(one, 8.0, other, 9.5)
    assert not transitions.yields_to(other, 9.5, one, 8.0)


@pytest.mark.parametrize("late_s", [0.0, 0.5, 0.9])
def test_one_of_two_gives_up_however_alike_they_are(late_s: float) -> None:
    """What one knows of the other is a little old."""
    assert transitions.yields_to("a@1", 8.0, "b@1", 8.0 - late_s) != transitions.yields_to("b@1", 8.0, "a@1", 8.0)


def test_a_job_that_is_given_up_has_no_members_and_names_where_to_go() -> None:
    world = sealed(A, B)
    given_up = transitions.give_up(world, STORE)
    assert (given_up.phase, given_up.members, given_up.heir) == (Phase.GIVEN_UP, (), STORE)
    assert given_up.version == world.version + 1
    assert given_up.is_last


def test_nobody_goes_on_with_it_unless_the_other_is_gone() -> None:
    given_up = transitions.give_up(sealed(A, B), STORE)
    for change in (
        lambda: transitions.seal(given_up, [A], STORE, ()),
        lambda: transitions.fall_short(given_up, [A], ()),
        lambda: transitions.admit_nobody(given_up),
        lambda: transitions.give_up(given_up, STORE),
    ):
        with pytest.raises(AssertionError, match="closed job"):
            change()
    anew = transitions.take_over(given_up, B, ())
    assert (anew.phase, anew.heir) == (Phase.OPEN, None)
    assert transitions.close(given_up, "").phase is Phase.CLOSED


def test_a_job_that_has_split_goes_on_as_it_is_under_another_name() -> None:
    world = of_job("a@1", sealed(A, B), lost=("c",))
    apart = transitions.split(world, "a")
    assert (apart.version, apart.lineage, apart.split_from) == (world.version + 1, "a/3", "a@1")
    assert replace(apart, version=world.version, lineage="a@1", split_from="") == world
    again = transitions.split(apart, "b")
    assert (again.lineage, again.split_from) == ("b/4", "a@1"), "the name that all its parts had"


def test_of_a_job_that_is_taken_over_nothing_is_left() -> None:
    """So it gives up for one that was founded beside it, and has worked."""
    record = replace(sealed(A), worked_s=60.0)
    assert transitions.take_over(record, member("b"), ("a",)).worked_s == 0.0
