from __future__ import annotations

import pytest

from softrun.agent.rendezvous.lease_clock import LeaseClock
from softrun.agent.rendezvous.liveness import Liveness


def test_without_leases_it_is_always_sure_and_wants_nothing() -> None:
    lease = LeaseClock()
    assert (lease.leased, lease.lease_number, lease.sure(1e9), lease.due(1e9), lease.deadline(0.0)) == (
        False,
        0,
        True,
        False,
        None,
    )


def test_it_is_renewed_five_times_in_its_time() -> None:
    lease = LeaseClock()
    lease.renewed(until=110.0, lease_number=1, granted_s=10.0, now=100.0)
    assert lease.deadline(100.0) == pytest.approx(102.0)
    assert not lease.due(101.9)
    assert lease.due(102.0)
    assert not lease.due(103.5), "it was asked for"
    assert lease.due(104.1), "and not answered"


@pytest.mark.parametrize(("granted_s", "sure_for_s"), [(20.0, 18.0), (2.0, 1.5)])
def test_workers_stop_before_it_can_expire(granted_s: float, sure_for_s: float) -> None:
    lease = LeaseClock()
    lease.renewed(until=100.0 + granted_s, lease_number=1, granted_s=granted_s, now=100.0)
    assert lease.sure(100.0 + sure_for_s - 0.01)
    assert not lease.sure(100.0 + sure_for_s)
    lease.due(100.0 + sure_for_s - 0.01)
    assert lease.deadline(100.0 + sure_for_s - 0.01) == pytest.approx(100.0 + sure_for_s)
    assert lease.deadline(100.0 + sure_for_s) is not None, "renewals go on"
    lease.doubt(100.0 + sure_for_s)
    assert not lease.expiring(100.0 + sure_for_s)
    assert lease.expiring(100.0 + granted_s - 0.2)


def test_who_was_itself_away_gives_its_workers_as_long() -> None:
    lease = LeaseClock()
    lease.renewed(until=120.0, lease_number=1, granted_s=20.0, now=100.0)
    lease.doubt(500.0)
    assert not lease.expiring(501.0)
    assert lease.expiring(501.5)
    lease.renewed(until=502.0, lease_number=1, granted_s=20.0, now=501.9)
    assert lease.doubted, "an answer that came too late"
    lease.renewed(until=620.0, lease_number=1, granted_s=20.0, now=600.0)
    assert not lease.doubted


def test_another_lease_means_that_the_last_one_had_expired() -> None:
    lease = LeaseClock()
    assert not lease.renewed(10.0, 1, 5.0, 5.0)
    assert not lease.renewed(20.0, 1, 5.0, 15.0)
    assert lease.renewed(30.0, 2, 5.0, 25.0)


def test_who_holds_a_later_lease_lives() -> None:
    liveness = Liveness(1.0, 5.0, 0.0)
    liveness.leased = True
    liveness.holds("a", 1)
    liveness.watch("a", 0.0)
    assert not liveness.dead("a", 100.0), "silence proves nothing"
    liveness.expire("a", 1)
    assert liveness.dead("a", 100.0)
    liveness.heard("a", 100.0)
    assert liveness.dead("a", 100.0), "whatever it says"
    liveness.holds("a", 2)
    assert not liveness.dead("a", 100.0)
    liveness.expire("a", 1)
    assert not liveness.dead("a", 100.0), "an old lease that is reported late"
