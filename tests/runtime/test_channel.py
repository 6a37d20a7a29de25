from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_agent import an_event, an_info
from softrun.runtime.channel.channel import KEPT, MAX_BYTES, STATUS, EventReader, EventWriter, default_root
from softrun.runtime.channel.directory import ChannelError
from softrun.runtime.channel.page import MESSAGE_BYTES, VERSION
from softrun.runtime.events import WorkerEvent, WorkerFault, WorkerInfo, WorkerState, WorkerStatus, WorldChangeEvent


@pytest.fixture
def writer(tmp_path: Path) -> EventWriter:
    return EventWriter.create(tmp_path / "channel")


@pytest.fixture
def reader(writer: EventWriter) -> EventReader:
    return EventReader(writer.path)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot share memory: files are all that there is."""

    def cannot(*_: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", cannot)


def no_space(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def put(writer: EventWriter, number: int, content: bytes) -> Path:
    path = writer.path / f"event-{number:010d}.json"
    path.write_bytes(content)
    return path


def sequences(events: list[WorkerEvent]) -> list[int]:
    return [event.sequence for event in events]


def test_events_arrive_once_and_in_order(writer: EventWriter, reader: EventReader) -> None:
    assert reader.poll() == []
    first, second = writer.write(an_event(1)), writer.write(an_event(2))
    assert sequences([first, second]) == [1, 2]
    assert reader.poll() == [first, second]
    assert reader.poll() == []
    third = writer.write(an_event(3))
    assert reader.poll() == [third]


def test_what_is_made_is_private(writer: EventWriter, reader: EventReader) -> None:
    writer.write(an_event())
    reader.write_status(WorkerStatus())
    assert writer.path.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in writer.path.iterdir()] == [0o600] * 3


def test_a_directory_that_exists_is_not_taken_over(writer: EventWriter) -> None:
    with pytest.raises(ChannelError, match="cannot be made"):
        EventWriter.create(writer.path)


def test_old_events_are_pruned_and_who_comes_late_sees_the_rest(writer: EventWriter) -> None:
    for round_ in range(1, KEPT + 6):
        writer.write(an_event(round_))
    assert len(list(writer.path.glob("event-*"))) == KEPT
    assert sequences(EventReader(writer.path).poll()) == list(range(6, KEPT + 6))


def test_a_slow_reader_goes_on_after_the_gap(writer: EventWriter, reader: EventReader) -> None:
    writer.write(an_event())
    assert sequences(reader.poll()) == [1]
    for round_ in range(2, KEPT + 10):
        writer.write(an_event(round_))
    assert sequences(reader.poll()) == list(range(10, KEPT + 10))


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1, "eve'])
def test_a_writer_that_was_killed_leaves_nothing_that_is_read(
    writer: EventWriter, reader: EventReader, content: bytes
) -> None:
    (writer.path / ".event-0000000001.json.new").write_bytes(content)
    assert reader.poll() == []
    assert sequences([writer.write(an_event())]) == [1]
    assert sequences(reader.poll()) == [1]


@pytest.mark.parametrize("failing", ["write", "rename"])
@pytest.mark.usefixtures("no_memory")
def test_without_memory_a_full_disk_spends_no_number(
    writer: EventWriter, reader: EventReader, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    writer.write(an_event(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, no_space)
        with pytest.raises(ChannelError, match=r"event-0000000002\.json cannot be written \(No space left on device\)"):
            writer.write(an_event(2))
    assert {path.name for path in writer.path.iterdir()} == {"event-0000000001.json", "page"}
    assert sequences([writer.write(an_event(2))]) == [2]
    assert sequences(reader.poll()) == [1, 2]


def test_a_full_disk_keeps_neither_end_from_being_told(
    writer: EventWriter, reader: EventReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(an_event(1))
    assert sequences(reader.poll()) == [1]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        for round_ in (2, 3):
            sent = writer.write(an_event(round_))
            assert reader.may_follow(an_event(1).model_copy(update={"sequence": 1}))
            assert reader.poll() == [sent]
            reader.write_status(WorkerStatus(applied=round_))
            assert writer.news() == WorkerStatus(applied=round_)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a worker is told through shared memory only",
        "the agent is told through shared memory only",
    ]
    fourth = writer.write(an_event(4))
    assert reader.poll() == [fourth], "there is room again"
    assert reader.poll() == []


def test_who_comes_late_to_a_full_disk_sees_the_newest(writer: EventWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    first = writer.write(an_event(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        writer.write(an_event(2))
        third = writer.write(an_event(3))
    assert EventReader(writer.path).poll() == [first, third]


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


@pytest.mark.parametrize("clean", [empty, shutil.rmtree], ids=["emptied", "removed"])
def test_a_cleaner_of_temporary_files_keeps_neither_end_from_being_told(
    writer: EventWriter, reader: EventReader, clean: Callable[[Path], None]
) -> None:
    writer.write(an_event(1))
    assert sequences(reader.poll()) == [1]
    clean(writer.path)
    for round_ in (2, 3):
        sent = writer.write(an_event(round_))
        assert reader.poll() == [sent]
        reader.write_status(WorkerStatus(applied=round_))
        assert writer.news() == WorkerStatus(applied=round_)
    assert reader.poll() == []
    writer.remove()


def test_what_is_too_long_for_the_page_is_in_its_file(writer: EventWriter, reader: EventReader) -> None:
    sent = writer.write(an_event(info=an_info().model_copy(update={"master_addr": "x" * MESSAGE_BYTES})))
    assert reader.may_follow(an_event())
    assert reader.poll() == [sent]
    status = WorkerStatus(fault=WorkerFault(round=1, text="x" * MESSAGE_BYTES))
    reader.write_status(status)
    assert writer.read_status() == status


def test_short_writes_are_carried_on(writer: EventWriter, reader: EventReader, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, content: write(fd, bytes(content)[:7]))
        sent = writer.write(an_event())
    assert reader.poll() == [sent]


GARBAGE = [
    b"",
    b"\xff\x00",
    b"[]",
    b"7",
    b'{"version": %d}' % VERSION,
    b'{"version": %d, "event": {}}' % VERSION,
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_a_damaged_event_is_passed_over_with_one_warning(
    writer: EventWriter, reader: EventReader, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(an_event(1))
    damaged = Path(writer.path / f"event-{writer.write(an_event(2)).sequence:010d}.json")
    damaged.write_bytes(content)
    writer.write(an_event(3))
    with caplog.at_level(logging.WARNING):
        assert sequences(reader.poll()) == [1, 3]
        assert reader.poll() == []
    assert [str(damaged) in record.getMessage() for record in caplog.records] == [True]
    assert "\n" not in caplog.records[0].getMessage()


def test_an_event_under_another_number_is_passed_over(writer: EventWriter, reader: EventReader) -> None:
    first = writer.write(an_event())
    put(writer, 2, (writer.path / f"event-{first.sequence:010d}.json").read_bytes())
    assert reader.poll() == [first]


def test_symbolic_links_pipes_and_huge_files_are_passed_over(
    writer: EventWriter, reader: EventReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(an_event())
    content = (writer.path / "event-0000000001.json").read_bytes().replace(b'"sequence":1', b'"sequence":2')
    (tmp_path / "elsewhere").write_bytes(content)
    (writer.path / "event-0000000002.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(writer.path / "event-0000000003.json")
    put(writer, 4, b" " * (MAX_BYTES + 1))
    with caplog.at_level(logging.WARNING):
        assert sequences(reader.poll()) == [1]
    assert len(caplog.records) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_foreign_files_and_directories_are_refused(
    writer: EventWriter, reader: EventReader, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write(an_event())
    os.chown(writer.path / "event-0000000001.json", 12345, -1)
    with caplog.at_level(logging.WARNING):
        assert reader.poll() == []
    assert "is not a regular file of user" in caplog.text
    os.chown(writer.path, 12345, -1)
    with pytest.raises(ChannelError, match="belongs to user 12345"):
        EventReader(writer.path)


def test_a_directory_must_be_a_private_directory(writer: EventWriter, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(writer.path)
    (tmp_path / "file").touch()
    for path in ("link", "file", "absent"):
        with pytest.raises(ChannelError, match="cannot be opened as a directory"):
            EventReader(tmp_path / path)
    writer.path.chmod(0o750)
    with pytest.raises(ChannelError, match="with mode 750"):
        EventReader(writer.path)


def test_more_than_a_mebibyte_is_not_sent(writer: EventWriter) -> None:
    info = an_info().model_copy(update={"master_addr": "x" * MAX_BYTES})
    with pytest.raises(ChannelError, match="at most 1048576"):
        writer.write(an_event(info=info))
    assert [path.name for path in writer.path.iterdir()] == ["page"]


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_an_error_that_says_what_to_do(
    writer: EventWriter, reader: EventReader, version: int
) -> None:
    put(writer, 1, b'{"version": %d, "event": "whatever comes"}' % version)
    with pytest.raises(ChannelError, match="install the same version of softrun"):
        reader.poll()


def test_unknown_fields_are_passed_over(writer: EventWriter, reader: EventReader) -> None:
    sent = writer.write(an_event())
    path = writer.path / "event-0000000001.json"
    content = json.loads(path.read_bytes())
    content["event"]["colour"] = content["colour"] = "blue"
    path.write_text(json.dumps(content))
    assert reader.poll() == [sent]


@pytest.mark.usefixtures("no_memory")
def test_too_many_open_files_lose_no_event(
    writer: EventWriter, reader: EventReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = writer.write(an_event())
    real = os.open

    def refuse(path: str, *args: int, **kwargs: int) -> int:
        if str(path).startswith("event-"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(ChannelError, match="Too many open files"):
            reader.poll()
    assert reader.poll() == [sent]


def test_the_status_is_the_newest(writer: EventWriter, reader: EventReader) -> None:
    assert writer.read_status() is None
    reader.write_status(WorkerStatus(ready=True))
    assert writer.news() == WorkerStatus(ready=True)
    assert writer.news() is None
    reader.write_status(WorkerStatus(ready=True, applied=3, broken_round=2))
    assert writer.news() == writer.read_status() == WorkerStatus(ready=True, applied=3, broken_round=2)


@pytest.mark.usefixtures("no_memory")
def test_without_memory_a_damaged_status_is_passed_over(
    writer: EventWriter, reader: EventReader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.write_status(WorkerStatus(ready=True))
    assert writer.read_status() == WorkerStatus(ready=True)
    (writer.path / STATUS).write_text("garbage")
    with caplog.at_level(logging.WARNING):
        assert [writer.read_status(), writer.read_status()] == [None, None]
    assert len(caplog.records) == 1


def test_remove_takes_the_channel_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tidy, untidy = EventWriter.create(tmp_path / "tidy"), EventWriter.create(tmp_path / "untidy")
    for writer in (tidy, untidy):
        writer.write(an_event())
        EventReader(writer.path).write_status(WorkerStatus())
        (writer.path / ".status.json.new").touch()
    (untidy.path / "precious").touch()
    tidy.remove()
    untidy.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["untidy"]
    assert [path.name for path in untidy.path.iterdir()] == ["precious"]
    assert "was not removed" in caplog.text


def test_remove_tolerates_a_directory_that_is_gone(writer: EventWriter) -> None:
    (writer.path / "page").unlink()
    writer.path.rmdir()
    writer.remove()


def test_the_default_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTRUN_CHANNEL_ROOT", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "removed at the next logout"))
    assert default_root() == tmp_path
    monkeypatch.delenv("SOFTRUN_CHANNEL_ROOT")
    assert default_root() == Path(tempfile.gettempdir())
    monkeypatch.setenv("SOFTRUN_CHANNEL_ROOT", str(tmp_path / "absent"))
    with pytest.raises(ChannelError, match="absent is not a directory"):
        default_root()


def test_a_relative_root_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may change its directory before it looks for its channel."""
    (tmp_path / "channels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTRUN_CHANNEL_ROOT", "channels")
    assert default_root() == tmp_path / "channels"


infos = st.builds(
    WorkerInfo,
    **{name: st.integers(0, 10_000) for name in ("local_rank", "role_rank", "rank", "group_rank")},
    **{name: st.integers(1, 10_000) for name in ("local_world_size", "role_world_size", "world_size")},
    master_addr=st.text(),
    master_port=st.integers(0, 65535),
    group_world_size=st.integers(1, 10_000),
)
events = st.builds(
    WorkerEvent,
    timestamp=st.integers(-(2**63), 2**63 - 1),
    worker_info=infos,
    worker_state=st.sampled_from(WorkerState),
    change_event=st.none() | st.sampled_from(WorldChangeEvent),
    round=st.integers(0, 2**31),
)


@given(st.lists(events, max_size=KEPT))
def test_what_is_written_is_read(sent: list[WorkerEvent]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = EventWriter.create(Path(directory) / "channel")
        written = [writer.write(event) for event in sent]
        assert [event.model_copy(update={"sequence": 0}) for event in written] == sent
        assert EventReader(writer.path).poll() == written
        writer.remove()
