"""What a rank tells the agent that it starts for a call."""

from __future__ import annotations

from datetime import timedelta

import pytest

from softrun.agent.store.settings import RendezvousSettings
from softrun.policies import load_policy
from softrun.runtime.inprocess.calls.light_agent import Meeting

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("interval", "timeout", "beats", "tolerated_s"),
    [
        (None, None, 0.25, 1.25),
        (None, 30 * SECOND, 0.25, 30),
        (2 * SECOND, 9 * SECOND, 2, 10),
        (SECOND / 2, SECOND / 2, 0.2, 1),
    ],
)
def test_heartbeats_are_the_agents_beats(
    interval: timedelta | None, timeout: timedelta | None, beats: float, tolerated_s: float
) -> None:
    meeting = Meeting(None, interval, timeout)
    settings = RendezvousSettings.parse(meeting.beats(), load_policy("soft"))
    assert settings.beat_interval_s(4) == beats
    assert settings.tolerance_s(4) == tolerated_s
    assert meeting.patience == timedelta(minutes=10)
