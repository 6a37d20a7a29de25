"""The format: what is read, and what is refused in one line that says what to mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from softrun.testing import HistoryError, check, parse_history, read_history

START = {"t": 1, "p": 0, "e": "start"}
CALL = {"t": 2, "p": 0, "e": "call"}
REPLY = {"t": 3, "p": 0, "e": "reply", "live": [0]}


def history(*events: dict[str, Any], procs: Any = (0, 1)) -> str:
    return json.dumps({"procs": procs, "events": events})


def test_events_are_put_in_order() -> None:
    read = parse_history(history(REPLY, CALL, START))
    assert [event.e for event in read.in_order()] == ["start", "call", "reply"]


def test_events_of_one_time_keep_their_order() -> None:
    read = parse_history(history(*({**event, "t": 5} for event in (START, CALL, REPLY))))
    assert [event.e for event in read.in_order()] == ["start", "call", "reply"]
    assert check(read)


def test_workers_may_have_names(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    events = [{**event, "p": "node0:1"} for event in (START, CALL)]
    file.write_text(history(*events, {**REPLY, "p": "node0:1", "live": ["node0:1"]}, procs=["node0:1"]))
    assert check(read_history(file))


@pytest.mark.parametrize("end", ["fail", "evicted", "start"])
def test_a_call_may_stay_open(end: str) -> None:
    assert check(parse_history(history(START, CALL, {"t": 3, "p": 0, "e": end})))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "{",
            "Invalid JSON: EOF while parsing an object at line 1 column 1: write one JSON object",
        ),
        ("[]", "the whole is []: "),
        ('{"procs": [0]}', "events is {'procs': [0]}: Field required; the format is that of softrun.testing.history"),
        (history({"t": 1, "p": 0, "e": "died"}), "events.0 is {'t': 1, 'p': 0, 'e': 'died'}: "),
        (history(START, {"t": "soon", "p": 0, "e": "call"}), "events.1.call.t is 'soon': "),
        (
            history(START, CALL, {"t": 3, "p": 0, "e": "reply"}),
            "events.2.reply.live is {'t': 3, 'p': 0, 'e': 'reply'}: ",
        ),
        (history(START, {**CALL, "vote": "maybe"}), "events.1.call.vote is 'maybe': Input should be 'ok' or 'raise'"),
        (history(procs=[0, "0"]), "procs is [0, '0']: name each worker once, also as text"),
        (history({**START, "p": 7}), "the start of worker 7 at t=1 is of a worker that procs lacks: add it to procs"),
        (history(CALL), "the call of worker 0 at t=2 cannot happen: it has not started, so record its start first"),
        (history(START, REPLY), "the reply of worker 0 at t=3 cannot happen: it has no open call, so record the call"),
        (
            history(START, CALL, REPLY, {**REPLY, "t": 4}),
            "the reply of worker 0 at t=4 cannot happen: it has no open call",
        ),
        (history(START, CALL, {**CALL, "t": 3}), "the call of worker 0 at t=3 cannot happen: its call is still open"),
        (
            history(START, {"t": 2, "p": 0, "e": "fail"}, {**CALL, "t": 3.5}),
            "the call of worker 0 at t=3.5 cannot happen: it has failed or was evicted, so record a start first",
        ),
        (
            history({**START, "inc": "a"}, {**START, "inc": "a", "t": 2}),
            "the start of worker 0 at t=2 has the inc 'a' for the second time: give each life its own",
        ),
        (
            history(START, {**CALL, "scope": [0, 9]}),
            "the call of worker 0 at t=2 has 9 in scope, which procs lacks: add it to procs",
        ),
        (
            history(START, CALL, {**REPLY, "live": [0, 0]}),
            "the reply of worker 0 at t=3 has the live [0, 0]: name each worker once",
        ),
        (
            history({**START, "inc": "a"}, CALL, {**REPLY, "incs": {"1": "a"}}),
            "the reply of worker 0 at t=3 has the incs {'1': 'a'}: name the workers of live, [0]",
        ),
        (
            history(START, CALL, {**REPLY, "incs": {"0": "a"}}),
            "the reply of worker 0 at t=3 has incs, but worker 0 starts without one: give each of its starts an inc",
        ),
    ],
)
def test_what_cannot_be_is_refused(text: str, fault: str) -> None:
    with pytest.raises(HistoryError) as refused:
        parse_history(text, "run.json")
    assert str(refused.value).startswith(f"run.json: {fault}")
    assert "\n" not in str(refused.value)
