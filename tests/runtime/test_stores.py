"""Clients of torch's stores connect aside, so that nobody waits for a store that is no longer wanted."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from softrun.runtime.groups.stores import ATTEMPT, connect

MINUTE = timedelta(minutes=1)


def nothing() -> None:
    """Somebody waits for a connection that is still wanted."""


def test_nobody_waits_for_an_attempt_whose_world_is_over() -> None:
    ends, begun, ended = threading.Event(), threading.Event(), threading.Event()

    def create(_: timedelta) -> None:
        begun.set()
        ends.wait(MINUTE.total_seconds())
        ended.set()
        raise RuntimeError("nobody answers")

    def check() -> None:
        if begun.is_set():
            raise ConnectionError("the world is over")

    with pytest.raises(ConnectionError, match="over"):
        connect(create, MINUTE, check)
    assert not ended.is_set(), "the attempt is still under way"
    begun.clear()
    ends.set()
    assert ended.wait(MINUTE.total_seconds())
    assert not begun.wait(0.1), "and was the last one"


def test_it_tries_again_until_somebody_answers() -> None:
    answers = iter([RuntimeError(), RuntimeError(), "client"])
    asked = []

    def create(attempt: timedelta) -> str:
        asked.append(attempt)
        if isinstance(answer := next(answers), RuntimeError):
            raise answer
        return answer

    assert connect(create, MINUTE, nothing) == "client"
    assert asked == [ATTEMPT] * 3


def test_it_gives_up_after_the_timeout() -> None:
    asked = []

    def create(attempt: timedelta) -> None:
        asked.append(attempt)
        raise RuntimeError("nobody answers")

    with pytest.raises(RuntimeError, match="nobody answers"):
        connect(create, timedelta(0), nothing)
    assert asked == [timedelta(0)]


def test_another_error_is_the_callers() -> None:
    def create(_: timedelta) -> None:
        raise ValueError("port")

    with pytest.raises(ValueError, match="port"):
        connect(create, MINUTE, nothing)
