"""What one agent takes of its workers, all agents take: else a job stands still because of one worker's words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from values import member, ready

from softrun.agent.protocol.codec import decode_message, encode_message
from softrun.agent.protocol.live import Calls, Made
from softrun.runtime.bounds import (
    LARGEST,
    LONGEST_NAME,
    LONGEST_TEXT,
    LONGEST_TOLD,
    LONGEST_WAIT_S,
    MOST_CAUSES,
    printed,
    told,
)
from softrun.runtime.calls import Call, Way, pack_call, read_call
from softrun.runtime.events import Interruption, WorkerFault, joined

ODD_TEXTS = (
    "bad path \udcff",
    "\ud800" * 20_000,
    "x" * 200_000,
    "\x1b]0;title\x07",
    "line\nsoftrun: error: forged",
    "",
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([LARGEST, LARGEST + 1, 1e300, LONGEST_WAIT_S]))
TEXTS = st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(codec=None), max_size=60))


@given(NUMBERS, NUMBERS, NUMBERS, TEXTS, st.lists(NUMBERS, max_size=3))
def test_every_agent_takes_a_fault_that_one_takes(
    round_: float, depth: float, wait_s: float, text: str, ranks: list[float]
) -> None:
    causes = [(rank, "EXCEPTION") for rank in ranks]
    try:
        fault = WorkerFault.model_validate(
            {"round": round_, "depth": depth, "last_call_wait": wait_s, "text": text, "causes": causes}
        )
    except ValidationError:
        return
    report = replace(ready(member("a")), fault=fault)
    assert decode_message(encode_message(report)) == report


@given(st.integers(), TEXTS, TEXTS, st.none() | TEXTS, st.lists(TEXTS | st.sampled_from(["a/0", "a/1"]), max_size=2))
def test_every_agent_takes_a_call_that_one_takes(
    epoch: int, tag: str, site: str, fault: str | None, scope: list[str]
) -> None:
    try:
        call = read_call(pack_call(Call(1, epoch, Way.EXIT, tuple(scope), tag, site, fault)))
    except ValueError:
        return
    calls = Calls(call.epoch, call.scope, 1, (Made(0, call.way, call.tag, call.site),))
    assert decode_message(encode_message(calls)) == calls
    assert fault is None or WorkerFault(round=call.epoch, text=call.fault or "").text == call.fault


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_no_text_is_refused(text: str) -> None:
    fault = WorkerFault(round=1, text=text)
    assert WorkerFault.model_validate_json(fault.model_dump_json()) == fault
    call = read_call(pack_call(Call(1, 1, Way.EXIT, fault=text, site=text)))
    assert len(call.fault or "") <= LONGEST_TOLD
    assert len(call.site) <= LONGEST_NAME


@pytest.mark.parametrize(
    "said",
    [
        {"round": -1},
        {"round": LARGEST + 1},
        {"depth": -1},
        {"last_call_wait": 1e300},
        {"last_call_wait": float("nan")},
        {"last_call_wait": -1.0},
        {"causes": ((-1, Interruption.EXCEPTION),)},
        {"causes": ((1, Interruption.EXCEPTION),) * (MOST_CAUSES + 1)},
    ],
    ids=str,
)
def test_a_number_beyond_its_bound_is_refused_where_it_is_written(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkerFault(**({"round": 1} | said))


@pytest.mark.parametrize("scope", [("a",), ("a/x",), ("/1",), ("a/1000000",), ("a\n/1",), ("x" * 600 + "/1",)], ids=str)
def test_a_scope_names_workers(scope: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="names what is no worker"):
        read_call(pack_call(Call(1, 1, Way.BARRIER, scope)))


def test_the_faults_of_many_are_one_that_everybody_takes() -> None:
    fault = WorkerFault(round=1, text="x" * LONGEST_TEXT, causes=((1, Interruption.EXCEPTION),) * MOST_CAUSES)
    both = joined([fault, fault])
    assert len(both.text) == LONGEST_TEXT
    assert WorkerFault.model_validate(json.loads(both.model_dump_json())) == both


def test_a_text_is_cut_at_its_beginning() -> None:
    assert told("abcdef", 4) == "…def"
    assert told("ab\udcff", 8) == "ab\\udcff"
    assert told("ab\udcff", 4) == "…cff"


def test_what_another_rank_said_is_no_line_of_the_log() -> None:
    text = 'Traceback:\n\traise X\nsoftrun: error: \x1b[31mforged\u202e\r\n"'
    assert printed(text) == 'Traceback:\n        raise X\n    softrun: error: \\x1b[31mforged\\u202e\n    "'
    assert printed("one\u2028two", indent="") == "one\ntwo"
    assert printed("") == ""
