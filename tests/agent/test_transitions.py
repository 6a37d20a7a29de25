"""How a job that was founded twice becomes one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from values import JOB, STORE, member, sealed

from softrun.agent.protocol.model import Phase, first_version, lineage
from softrun.agent.rendezvous import transitions

A, B = member("a"), member("b")


def test_a_job_is_named_after_its_founder_and_the_version_with_which_it_begins() -> None:
    assert transitions.found(A, JOB).lineage == lineage("a", 1) == "a@1"
    assert first_version("host@rack@17") == 17


@pytest.mark.parametrize("name", ["", "a", "a@", "a@x", "a@-1", "a@²", "a@" + "9" * 5000])
def test_a_name_that_no_agent_gave_it_is_no_error(name: str) -> None:
    assert first_version(name) == 0


def test_of_two_jobs_the_one_that_was_founded_later_gives_up_then_the_one_of_fewer_worlds() -> None:
    first, later = replace(sealed(A), lineage="a@1"), replace(sealed(B, number=9), lineage="b@5")
    assert transitions.yields_to(later, first)
    assert not transitions.yields_to(first, later)
    further = replace(sealed(B, number=2), lineage="b@1")
    assert transitions.yields_to(first, further)
    assert not transitions.yields_to(further, first)


def test_one_of_two_gives_up_however_alike_they_are() -> None:
    one, other = (replace(sealed(A), lineage=name) for name in ("a@1", "b@1"))
    assert transitions.yields_to(one, other) != transitions.yields_to(other, one)


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
