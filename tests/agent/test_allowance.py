"""Until when the workers may work without a word of their agent."""

from __future__ import annotations

from softrun.agent.allowance import Allowance
from softrun.agent.effects import Allow
from softrun.agent.tenure import Tenure

NOBODY_LEASES = Tenure()


def an_allowance(*, shared: bool = True) -> Allowance:
    return Allowance(shared, interval_s=1.0, tolerance_s=4.0)


def test_a_job_of_one_node_has_no_bound() -> None:
    allowance = an_allowance(shared=False)
    allowance.said(1.0)
    allowance.heard(1.0)
    assert allowance.advance(alone=True, tenure=NOBODY_LEASES) == []


def test_it_counts_from_when_it_was_last_in_touch_both_ways() -> None:
    allowance = an_allowance()
    allowance.said(10.0)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == [], "it was never heard: nobody counts on it"
    allowance.heard(10.1)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == [Allow(13.0, 14.0)]
    allowance.heard(11.5)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == [], "what it says may be lost"
    allowance.said(11.0)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == [Allow(14.0, 15.0)]
    allowance.said(13.0)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == [Allow(14.5, 15.5)], "and then it hears nothing"
    allowance.said(14.0)
    assert allowance.advance(alone=False, tenure=NOBODY_LEASES) == []


def test_the_others_cannot_have_gone_on_before() -> None:
    """They take it for dead when they have not heard it for the tolerance, which began when it said something."""
    allowance = an_allowance()
    allowance.said(5.0)
    allowance.heard(5.0)
    [allowed] = allowance.advance(alone=False, tenure=NOBODY_LEASES)
    assert allowed.hold_at < allowed.leave_at <= 5.0 + 4.0


def test_alone_in_its_world_it_need_hear_nobody() -> None:
    allowance = an_allowance()
    allowance.said(2.0)
    assert allowance.advance(alone=True, tenure=NOBODY_LEASES) == [Allow(5.0, 6.0)]
    allowance.said(2.2)
    assert allowance.advance(alone=True, tenure=NOBODY_LEASES) == [], "the next beat is soon enough"
    allowance.said(3.0)
    assert allowance.advance(alone=True, tenure=NOBODY_LEASES) == [Allow(6.0, 7.0)]


def test_with_a_lease_it_is_what_that_allows() -> None:
    allowance, tenure = an_allowance(), Tenure()
    tenure.renewed(until=120.0, term=1, granted_s=20.0, now=100.0)
    allowance.said(100.0)
    [allowed] = allowance.advance(alone=False, tenure=tenure)
    assert allowed == Allow(118.0, 119.5)
    assert tenure.sure(allowed.hold_at - 0.001)
    assert not tenure.sure(allowed.hold_at)
    tenure.renewed(until=124.0, term=1, granted_s=20.0, now=104.0)
    assert allowance.advance(alone=False, tenure=tenure) == [Allow(122.0, 123.5)]
