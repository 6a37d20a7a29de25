"""What trainers record of themselves, and how it is completed when the recordings are joined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from softrun.runtime.calls import NODE_VARIABLE, Call, Reply, Way
from softrun.runtime.events import WorkerInfo
from softrun.testing import HistoryError, check, gather, record, record_failure
from softrun.testing.lives import WORLD
from softrun.testing.record import _Session
from softrun.testing.recorder import Recorder

A, B = "n/0", "n/1"


def write(directory: Path, worker: str, *events: dict[str, Any]) -> None:
    """What one process of a worker has recorded; its start is as early as its first event."""
    lines = [{"e": "start", "t": events[0]["t"]}, *events]
    file = directory / f"{worker.replace('/', '%2F')}-{events[0]['t']}.trainer.jsonl"
    file.write_text("".join(json.dumps({"p": worker, **line}) + "\n" for line in lines))


def call(t: float, **more: Any) -> dict[str, Any]:
    return {"t": t, "e": "call", **more}


def reply(t: float, round_: int, ok: bool | None = None, **incs: str) -> dict[str, Any]:
    """`a` and `b` are the incarnations of the workers in the answer."""
    named = {{"a": A, "b": B}[key]: inc for key, inc in incs.items()}
    return {"t": t, "e": "reply", "live": [*named], "incs": named, "ok": ok, "round": round_}


def told(directory: Path) -> list[tuple[float, str, str]]:
    return [(event.t, event.p, event.e) for event in gather(directory).in_order()]  # type: ignore[misc]


def test_a_worker_that_never_came_back_has_ended(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(4), reply(6, 2, ok=False, a="1"))
    write(tmp_path, B, call(2), reply(3.5, 1, a="1", b="1"))
    assert told(tmp_path)[-2:] == [(6, A, "evicted"), (6, B, "evicted")]
    assert check(gather(tmp_path))


def test_one_that_was_let_go_may_learn_late_of_its_last_step(tmp_path: Path) -> None:
    """The others are in the next world already, where nobody waits for it."""
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(4, vote="ok"), reply(6, 2, ok=True, a="1", b="1"),
          call(7), reply(8, 3, a="1"))  # fmt: skip
    write(tmp_path, B, call(2), reply(3.5, 1, a="1", b="1"), call(5, vote="ok"), reply(9, 2, ok=True, a="1", b="1"))
    assert check(gather(tmp_path))


def test_one_that_goes_on_to_call_was_not_let_go(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(7), reply(8, 3, a="1"))
    write(tmp_path, B, call(2), reply(9, 1, a="1", b="1"), call(10))
    assert not check(gather(tmp_path))


def test_a_recorded_failure_is_the_end(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(2, 1, a="1"))
    record_failure(tmp_path, A)
    assert [kind for _, _, kind in told(tmp_path)] == ["start", "call", "reply", "fail"]


def test_one_that_died_in_its_first_call_has_the_incarnation_that_others_name(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="7"), call(4), reply(5, 2, ok=False, a="1"))
    write(tmp_path, B, call(2))
    history = gather(tmp_path)
    assert [event.inc for event in history.events if event.e == "start"] == ["1", "7"]
    assert check(history)


def test_calls_in_vain_before_the_first_answer_are_left_out(tmp_path: Path) -> None:
    """Those that are there complete their step first: they are answered without the newcomer, and that is right."""
    write(tmp_path, A, call(1), reply(2, 1, a="1"), call(5, vote="ok"), reply(6, 2, ok=True, a="1"),
          call(9, vote="ok"), {"t": 9.5, "e": "error"}, call(10), reply(11, 3, a="1", b="1"))  # fmt: skip
    write(tmp_path, B, call(3), {"t": 4, "e": "error"}, call(4.5), reply(11, 3, a="1", b="1"))
    assert [event for event in told(tmp_path) if event[1] == B] == [
        (10, B, "start"), (10, B, "call"), (11, B, "reply"), (11, B, "evicted")
    ]  # fmt: skip
    assert check(gather(tmp_path))


def test_one_that_was_never_in_an_answer_was_never_there(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(2, 1, a="1"))
    write(tmp_path, B, call(1))
    assert gather(tmp_path).procs == (A,)


def test_an_answer_in_another_incarnation_begins_another_life(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(4, vote="ok"), {"t": 5, "e": "error"}, call(6),
          reply(7, 2, a="1"), call(8, vote="ok"), {"t": 9, "e": "error"}, call(12), reply(13, 3, a="1", b="2")
    )  # fmt: skip
    write(tmp_path, B, call(2), reply(3, 1, a="1", b="1"), call(10, vote="ok"), {"t": 10.5, "e": "error"},
          call(11), reply(13, 3, a="1", b="2"))  # fmt: skip
    kinds = [kind for _, worker, kind in told(tmp_path) if worker == B]
    assert kinds == ["start", "call", "reply", "call", "error", "evicted", "start", "call", "reply", "evicted"]
    assert check(gather(tmp_path))


def test_one_that_was_left_out_and_came_back_has_two_lives(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(4, vote="ok"), {"t": 5, "e": "error"}, call(6),
          reply(7, 2, a="1"), call(8, vote="ok"), {"t": 9, "e": "error"}, call(12), reply(13, 3, a="1", b="1"),
          call(14, vote="ok"), reply(15, 4, ok=True, a="1", b="1")
    )  # fmt: skip
    write(tmp_path, B, call(2), reply(3, 1, a="1", b="1"), call(10, vote="ok"), {"t": 10.5, "e": "evicted"},
          call(11), reply(13, 3, a="1", b="1"), call(14, vote="ok"), reply(15, 4, ok=True, a="1", b="1")
    )  # fmt: skip
    history = gather(tmp_path)
    assert [event.inc for event in history.in_order() if event.e == "start"] == ["1", "1", "1 again 2"]
    assert check(history)


def test_one_that_was_left_out_between_two_of_its_blocks_has_two_lives(tmp_path: Path) -> None:
    """It was stopped before it saw its last answer, and nothing has told it that the others went on without it."""
    first, second, third = (number * WORLD for number in (3, 4, 5))
    write(tmp_path, A, call(1), reply(3, first + 1, a="1", b="1"), call(4, vote="ok"),
          reply(5, first + 2, ok=True, a="1", b="1"), call(6, vote="raise"), {"t": 7, "e": "error"}, call(8),
          reply(9, second + 1, a="1"), call(12, vote="ok"), {"t": 13, "e": "error"}, call(14),
          reply(16, third + 1, a="1", b="1")
    )  # fmt: skip
    write(tmp_path, B, call(2), reply(3, first + 1, a="1", b="1"), call(4, vote="ok"),
          reply(11, first + 2, ok=True, a="1", b="1"), call(15), reply(16, third + 1, a="1", b="1")
    )  # fmt: skip
    history = gather(tmp_path)
    kinds = [event.e for event in history.in_order() if getattr(event, "p", "") == B]
    assert kinds == ["start", "call", "reply", "call", "reply", "evicted", "start", "call", "reply", "evicted"]
    assert check(history)


def test_one_that_is_left_out_in_a_world_of_its_own_was_not_away(tmp_path: Path) -> None:
    write(tmp_path, A, call(1), reply(3, WORLD + 1, a="1", b="1"), call(4, vote="ok"),
          reply(5, WORLD + 2, ok=False, a="1"), call(6, vote="ok"), reply(9, WORLD + 3, a="1", b="1"))  # fmt: skip
    write(tmp_path, B, call(2), reply(3, WORLD + 1, a="1", b="1"), call(4, vote="ok"),
          reply(9, WORLD + 3, a="1", b="1"))  # fmt: skip
    assert not check(gather(tmp_path))


def test_what_is_wrong_stays_wrong(tmp_path: Path) -> None:
    """The two answers contradict each other, whatever is completed."""
    write(tmp_path, A, call(1), reply(3, 1, a="1", b="1"), call(4, vote="ok"), reply(6, 2, ok=True, a="1", b="1"))
    write(tmp_path, B, call(2), reply(3, 1, a="1", b="1"), call(5, vote="raise"), reply(6, 2, ok=False, a="1", b="1"))
    assert "the block has failed on worker 'n/1'" in str(check(gather(tmp_path)))


def test_two_worlds_at_a_time_are_wrong(tmp_path: Path) -> None:
    for worker, own in ((A, {"a": "1"}), (B, {"b": "1"})):
        write(tmp_path, worker, call(1), reply(2, 1, **own), call(3, vote="ok"), reply(4, 2, ok=True, **own))
    assert not check(gather(tmp_path))


PLACE = WorkerInfo(local_rank=1, role_rank=0, rank=0, local_world_size=2, role_world_size=2, world_size=2,
                   master_addr="", master_port=0)  # fmt: skip
MEMBERS = ((A, "1.1"), (B, "1.1"))


def test_each_reply_is_recorded_for_what_it_means(tmp_path: Path) -> None:
    session = _Session(tmp_path, "n")

    def ask(way: Way, fault: str | None = None, scope: tuple[str, ...] = (), **answer: Any) -> None:
        session.called(Call(1, 3, way, scope, "7", fault=fault), PLACE)
        session.replied(Call(1, 3, way), Reply(**answer))

    ask(Way.ENTRY, turn=1, tags=((A, "7"), (B, "7")), members=MEMBERS)
    ask(Way.EXIT, turn=2, ok=True)
    ask(Way.BARRIER, scope=(B,), turn=1, tags=((B, "7"),), members=MEMBERS)
    ask(Way.BARRIER, scope=(A, B), turn=3, tags=((A, "7"), (B, "7")), members=MEMBERS)
    ask(Way.EXIT, turn=4, ok=False, gone=(A,))
    ask(Way.ENTRY, mistake="other calls")
    ask(Way.EXIT, fault="boom", over=True, raised=(B,))
    ask(Way.EXIT, fault="", over=True, evicted=True)
    [file] = tmp_path.glob("n%2F1-*.trainer.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["e"] for line in lines] == [
        "start", *["call", "reply"] * 5, "call", "error", "call", "error", "call", "evicted"
    ]  # fmt: skip
    calls = [line for line in lines if line["e"] == "call"]
    assert [line.get("vote") for line in calls] == [None, "ok", None, None, "ok", None, "raise", "raise"]
    assert [line.get("scope") for line in calls] == [None, None, [B], None, None, None, None, None]
    assert calls[0]["tag"] == 7
    replies = [line for line in lines if line["e"] == "reply"]
    assert [line["live"] for line in replies] == [[A, B], [A, B], [B], [A, B], [B]]
    assert [line.get("ok") for line in replies] == [None, True, None, None, False]
    assert [line["round"] for line in replies] == [3_000_001, 3_000_002, 3_000_001, 3_000_003, 3_000_004]
    assert replies[0]["incs"] == dict(MEMBERS)


def test_outside_of_softrun_nobody_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NODE_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match=r"SOFTRUN_NODE is not set, .*: start it by softrun"):
        record(tmp_path)


def test_recorders_that_say_all_are_left_alone(tmp_path: Path) -> None:
    Recorder(tmp_path, A, inc="1").close()
    write(tmp_path, B, call(1), reply(2, 1, b="1"))
    assert [(worker, kind) for _, worker, kind in told(tmp_path) if worker == A] == [(A, "start")]


def test_a_broken_line_of_a_trainer_is_named(tmp_path: Path) -> None:
    (tmp_path / "n-1.trainer.jsonl").write_text('{"t": 1, "p": 0, "e": "begin"}\n')
    with pytest.raises(HistoryError, match=r"n-1\.trainer\.jsonl, line 1"):
        gather(tmp_path)
