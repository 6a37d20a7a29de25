"""Recordings of real processes, some of them killed, and how they are joined."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softrun.testing import HistoryError, Recorder, check, gather, record_failure

#: A worker of two, whose service is right because both are told the same. Worker 1 is killed in its second call.
WORKER = """
import sys, time
from pathlib import Path
from softrun.testing import Recorder

directory, worker = Path(sys.argv[1]), int(sys.argv[2])

def meet(name):
    (directory / f"{name}.{worker}").touch()
    while len(list(directory.glob(f"{name}.?"))) < 2:
        time.sleep(0.001)

recorder = Recorder(directory, worker, inc=f"life of {worker}")
recorder.call(tag="first")
meet("called")
recorder.reply([0, 1], {0: "life of 0", 1: "life of 1"}, round_=1)
recorder.call(vote="ok")
meet("again")
if worker == 0:
    sys.stdin.readline()  # until the other is dead
    recorder.reply([0], ok=False, round_=2)
else:
    time.sleep(60)
"""


def test_processes_record_and_one_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True) for n in range(2)]
    with workers[0], workers[1]:
        while len(list(tmp_path.glob("again.?"))) < 2:
            assert [worker.poll() for worker in workers] == [None, None]
        workers[1].kill()
        assert workers[1].wait() == -signal.SIGKILL
        record_failure(tmp_path, 1)
        workers[0].communicate("\n")
    history = gather(tmp_path)
    assert history.procs == (0, 1)
    assert [event.e for event in history.in_order() if event.p == 0] == ["start", "call", "reply", "call", "reply"]
    assert [event.e for event in history.in_order() if event.p == 1] == ["start", "call", "reply", "call", "fail"]
    assert check(history)


def test_every_kind_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a/b")
    recorder.call(scope=["a/b", "c"])
    recorder.error()
    recorder.call(vote="raise")
    recorder.evicted()
    recorder.close()
    history = gather(tmp_path)
    assert history.procs == ("a/b", "c")
    assert [event.e for event in history.in_order()] == ["start", "call", "error", "call", "evicted"]


def test_a_worker_lives_again(tmp_path: Path) -> None:
    Recorder(tmp_path, 0, inc="a").close()
    Recorder(tmp_path, 0, inc="b").close()
    assert [event.e for event in gather(tmp_path).in_order()] == ["start", "start"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    recorder.call()
    recorder.close()
    [file] = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes() + b'{"t": 99, "p": 0, "e": "rep')
    assert [event.e for event in gather(tmp_path).in_order()] == ["start", "call"]


def test_any_other_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "0-1.jsonl").write_text('{"t": 1, "p": 0, "e": "start"}\n{"t": 2, "p": 0\n')
    with pytest.raises(HistoryError, match=r"0-1\.jsonl, line 2: .*: write one JSON object$"):
        gather(tmp_path)


def test_a_directory_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"has no recording: name the directory that was given to each Recorder"):
        gather(tmp_path)


def test_a_failure_that_was_stamped_too_early_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    record_failure(tmp_path, 0)
    recorder.call()
    recorder.close()
    with pytest.raises(HistoryError, match="stamp a failure when the worker has ended"):
        gather(tmp_path)
