"""The newest event, which a trainer looks for after every step."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from fake_agent import an_event
from local_cluster import PATIENCE_S
from softrun.runtime.channel import progress
from softrun.runtime.channel.channel import EventReader, EventWriter
from softrun.runtime.channel.inbox import ChannelInbox
from softrun.runtime.channel.progress import Progress
from softrun.runtime.clock import boottime, boottime_ns
from softrun.runtime.events import WorkerEvent

SLEPT_S = 3600


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


def test_a_look_for_an_event_makes_no_system_call_while_there_is_none(
    channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = EventWriter.create(channel)
    inbox = ChannelInbox(channel)
    first = writer.write(an_event(1))
    assert inbox.last() == first
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: pytest.fail("a system call"))
        assert inbox.last() == first
    second = writer.write(an_event(2))
    assert inbox.last() == second


def test_an_event_that_the_watcher_is_about_to_take_in(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter.create(channel)
    inbox = ChannelInbox(channel)
    writer.write(an_event(1))
    inbox.last()
    second = writer.write(an_event(2))
    polled, go_on = threading.Event(), threading.Event()
    poll = EventReader.poll

    def slow(reader: EventReader) -> list[WorkerEvent]:
        events = poll(reader)
        polled.set()
        go_on.wait(PATIENCE_S)
        return events

    monkeypatch.setattr(EventReader, "poll", slow)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(inbox._changed, channel)
        assert polled.wait(PATIENCE_S)
        last = pool.submit(inbox.last)
        wait([last], timeout=0.1)
        go_on.set()
        assert last.result(PATIENCE_S) == second


def of_another_size(channel: Path) -> None:
    (channel / "page").write_bytes(bytes(40))


def by_a_link(channel: Path) -> None:
    (channel / "page").rename(channel / "elsewhere")
    (channel / "page").symlink_to("elsewhere")


def no_file(channel: Path) -> None:
    (channel / "page").unlink()


@pytest.mark.parametrize("spoil", [of_another_size, by_a_link, no_file], ids=lambda spoil: spoil.__name__)
def test_without_memory_to_share_the_worker_looks_for_itself(channel: Path, spoil: Callable[[Path], None]) -> None:
    writer = EventWriter.create(channel)
    spoil(channel)
    inbox = ChannelInbox(channel)
    for round_ in (1, 2):
        sent = writer.write(an_event(round_))
        assert inbox.last() == sent
        assert inbox.last() == sent
    assert inbox.page() is None


def test_a_file_system_that_cannot_share_memory(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", cannot)
    writer = EventWriter.create(channel)
    inbox = ChannelInbox(channel)
    sent = writer.write(an_event())
    assert inbox.last() == sent
    assert inbox.page() is None
    assert writer.read_progress() is None


def test_the_agent_sees_the_progress_of_the_worker(channel: Path) -> None:
    writer = EventWriter.create(channel)
    assert writer.read_progress() is None
    reader = EventReader(channel)
    assert reader.page is not None
    assert reader.claim()
    shown = Progress(reader.page)
    writer.write(an_event())
    shown.completed(7)
    seen = writer.read_progress()
    assert seen is not None
    assert (seen.pid, seen.step, seen.step_s) == (os.getpid(), 7, 0.0)
    shown.completed(8)
    seen = writer.read_progress()
    assert seen is not None
    assert seen.step_s > 0
    took_s = seen.step_s
    shown.begin_world()
    shown.completed(9)
    seen = writer.read_progress()
    assert seen is not None
    assert (seen.step, seen.step_s) == (9, took_s)
    shown.hold()
    shown.completed(10)
    seen = writer.read_progress()
    assert seen is not None
    assert (seen.step, seen.step_s) == (10, took_s), "what a step took says nothing where it was told to wait"


def test_a_worker_does_not_hang_for_having_slept_with_its_machine(
    channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = EventWriter.create(channel), EventReader(channel)
    assert reader.page is not None
    assert reader.claim()
    shown = Progress(reader.page)
    shown.withhold(True)  # no beat follows
    before = writer.read_progress()
    assert before is not None
    monkeypatch.setattr(progress, "boottime_ns", lambda: boottime_ns() + SLEPT_S * 10**9)
    after = writer.read_progress()
    assert after is not None
    assert after.last_s == pytest.approx(before.last_s + SLEPT_S, abs=1.0)
    assert after.last_s < boottime() + SLEPT_S
