"""What a rank tells the agent that it starts for a call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from softrun.agent.store.settings import RendezvousSettings
from softrun.policies import load_policy
from softrun.runtime.inprocess.calls.light_agent import Meeting
from softrun.runtime.inprocess.calls.options import meeting_place

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


@pytest.mark.parametrize(
    ("store_kwargs", "place"),
    [
        (None, (None, None)),
        ({"timeout": SECOND}, (None, None)),
        ({"port": 29501}, (None, 29501)),
        ({"host_name": "first", "port": 29501}, ("first", 29501)),
    ],
)
def test_ranks_meet_where_the_wrapper_says(
    store_kwargs: dict[str, Any] | None, place: tuple[str | None, int | None]
) -> None:
    assert meeting_place(store_kwargs) == place


@pytest.mark.parametrize("wrong", [{"port": "29501"}, {"host_name": 1}, [29501]])
def test_a_place_that_is_none(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Wrapper: store_kwargs"):
        meeting_place(wrong)
