from __future__ import annotations

import logging
import queue
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fake_agent import an_event
from local_cluster import PATIENCE_S
from softrun.runtime.channel.channel import EventReader, EventWriter
from softrun.runtime.channel.watcher import DirectoryWatcher
from softrun.runtime.events import WorkerStatus


@contextmanager
def watched(directory: Path) -> Iterator[queue.Queue[tuple[float, Path]]]:
    seen: queue.Queue[tuple[float, Path]] = queue.Queue()
    watcher = DirectoryWatcher(directory, lambda path: seen.put((time.perf_counter(), path)))
    watcher.start()
    yield seen
    watcher.stop()


@pytest.fixture
def without_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise OSError("inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify.InotifyObserver.start", refuse)


def test_each_event_wakes_within_a_millisecond(tmp_path: Path) -> None:
    writer = EventWriter.create(tmp_path / "channel")
    delays = []
    with watched(writer.path) as seen:
        for round_ in range(1, 51):
            writer.write(an_event(round_))
            renamed = time.perf_counter()
            called, path = seen.get(timeout=PATIENCE_S)
            assert path == writer.path / f"event-{round_:010d}.json"
            delays.append(called - renamed)
    assert statistics.median(delays) < 0.005  # 0.3 ms on an idle machine; tests may share theirs


def test_an_agent_hears_the_bells_of_channels_that_are_made_later(tmp_path: Path) -> None:
    with watched(tmp_path) as seen:
        writer = EventWriter.create(tmp_path / "channel")
        writer.write(an_event())
        reader = EventReader(writer.path)
        for applied in (1, 2):
            reader.write_status(WorkerStatus(applied=applied))
            assert seen.get(timeout=PATIENCE_S)[1] == tmp_path / "channel.said"
        while not seen.empty():  # one change may be reported twice
            assert seen.get()[1] == tmp_path / "channel.said"
    writer.remove()
    assert not list(tmp_path.iterdir())


def test_a_rename_alone_is_not_waited_for(tmp_path: Path) -> None:
    """watchdog holds its first notification back for 0.5 s where it reads the second apart, and all that follow it."""
    (tmp_path / "before").touch()
    with watched(tmp_path) as seen:
        (tmp_path / "before").rename(tmp_path / "after")
        (tmp_path / "closed").write_text("it was written to")
        assert seen.get(timeout=PATIENCE_S)[1] == tmp_path / "closed"


@pytest.mark.usefixtures("without_notifications")
def test_without_notifications_it_polls_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = EventWriter.create(tmp_path / "channel")
    with caplog.at_level(logging.WARNING), watched(writer.path) as seen:
        assert "inotify instance limit reached" in caplog.text
        writer.write(an_event())
        # What is shared in memory is written to as well.
        while seen.get(timeout=PATIENCE_S)[1] != writer.path / "event-0000000001.json":
            pass
    reader = EventReader(writer.path)
    with watched(tmp_path) as seen:
        for applied in (1, 2):
            reader.write_status(WorkerStatus(applied=applied))
            assert seen.get(timeout=PATIENCE_S)[1] == tmp_path / "channel.said"


def test_a_failing_callback_does_not_end_the_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: queue.Queue[Path] = queue.Queue()

    def fail(path: Path) -> None:
        seen.put(path)
        raise ValueError("a bug")

    watcher = DirectoryWatcher(tmp_path, fail)
    watcher.start()
    for name in ("one", "two"):
        (tmp_path / name).touch()
        assert seen.get(timeout=PATIENCE_S) == tmp_path / name
    watcher.stop()
    assert "a bug" in caplog.text


def test_it_stops_from_its_own_callback_and_twice(tmp_path: Path) -> None:
    stopped: queue.Queue[None] = queue.Queue()

    def stop(_: Path) -> None:
        watcher.stop()
        stopped.put(None)

    watcher = DirectoryWatcher(tmp_path, stop)
    watcher.start()
    (tmp_path / "file").touch()
    stopped.get(timeout=PATIENCE_S)
    watcher.stop()


def test_that_a_file_was_closed_just_when_the_watch_stopped_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = DirectoryWatcher(tmp_path, lambda _: None)
    watcher.start()
    watcher.stop()
    log = logging.getLogger("watchdog.observers.inotify")
    log.error("InotifyEmitter.queue_events() called when the thread is inactive")
    log.error("something else")
    assert caplog.messages == ["something else"]
