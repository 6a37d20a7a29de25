from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import following, member, messages, of_job, ready, rounds, sealed

from softrun.agent.consensus.change import difference
from softrun.agent.errors import ProtocolError
from softrun.agent.protocol import codec
from softrun.agent.protocol.live import Calls, Made, Verdict
from softrun.agent.protocol.model import (
    NO_RECORD,
    Accept,
    Accepted,
    Beat,
    Decided,
    Hello,
    LastWords,
    Message,
    Prepare,
    Promise,
    Record,
    Refused,
    Round,
    Witnessed,
)
from softrun.runtime.calls import Way

WORLD = of_job("a@1", sealed(member("a")))
NEXT = following(WORLD)
BALLOT = (3, "a")
VERDICT = Verdict(3, (), 2, Way.EXIT, ok=True, tags=(("a/0", "17"),), gone=("b/1",))
ONE_OF_EACH: dict[type[Message], Message] = {
    type(message): message
    for message in (
        ready(member("a")),
        Hello(ready(member("a"), WORLD.id), BALLOT, Beat(1.5)),
        Beat(1.5, 0.25, 5.0, leads=True, asks=True),
        Record(WORLD, stands=True),
        Witnessed(WORLD.id),
        LastWords(difference(None, WORLD), NO_RECORD, BALLOT, BALLOT, difference(WORLD, NEXT), ready(member("a"))),
        LastWords(difference(WORLD, NEXT), WORLD.id),
        Prepare(BALLOT, WORLD.id),
        Promise(BALLOT, (2, "b"), difference(WORLD, NEXT), WORLD.id),
        Accept(BALLOT, difference(WORLD, NEXT), WORLD.id),
        Accepted(BALLOT, WORLD.id),
        Refused(BALLOT, WORLD.id),
        Decided(BALLOT, WORLD.id),
        Calls(3, ("a/0", "b/1"), 2, (Made(0, Way.EXIT, "17", "train.py:9"),), (1,)),
        VERDICT,
    )
}


@given(rounds)
def test_a_round_comes_back_as_it_was(round_: Round) -> None:
    read = codec.decode_round(codec.encode_round(round_))
    assert (read, read.name, read.past, read.by_proof) == (round_, round_.name, round_.past, round_.by_proof)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    decoded = codec.decode_message(codec.encode_message(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_a_message_is_a_kind_and_json_on_one_line(kind: type[Message]) -> None:
    line = codec.encode_message(ONE_OF_EACH[kind])
    name, space, body = line.partition(b" ")
    assert name == kind.__name__.lower().encode()
    assert space
    assert b"\n" not in line
    json.loads(body)
    assert codec.decode_message(line) == ONE_OF_EACH[kind]


def test_a_message_without_the_record_that_it_carries_is_a_protocol_error() -> None:
    for kind, place in ((Accept, 1), (Record, 0)):
        name, _, body = codec.encode_message(ONE_OF_EACH[kind]).partition(b" ")
        parts = json.loads(body)
        parts[place] = None
        with pytest.raises(ProtocolError, match="cannot be read"):
            codec.decode_message(name + b" " + json.dumps(parts).encode())


def test_a_record_in_a_message_is_checked_like_one_in_the_store() -> None:
    name, _, body = codec.encode_message(Record(WORLD)).partition(b" ")
    for place, value, said in ((0, 99, "version 99"), (2, [], "of a kind that it does not have")):
        written, *rest = json.loads(body)
        written[place] = value
        with pytest.raises(ProtocolError, match=said):
            codec.decode_message(name + b" " + json.dumps([written, *rest]).encode())


@given(st.binary())
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for decode in (codec.decode_round, codec.decode_message):
        with pytest.raises(ProtocolError, match=r"^[^\n]*$"):
            decode(data)


@given(rounds, st.data())
def test_a_damaged_round_is_never_an_uncaught_error(round_: Round, data: st.DataObject) -> None:
    encoded = codec.encode_round(round_)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ProtocolError):
        codec.decode_round(encoded[:cut])


def test_another_protocol_version_is_refused_by_name() -> None:
    other = json.loads(codec.encode_round(sealed(member("a"))))
    other[0] = 99
    with pytest.raises(ProtocolError, match="version 99"):
        codec.decode_round(json.dumps(other).encode())


def test_a_member_of_no_kind_is_a_protocol_error() -> None:
    damaged = json.loads(codec.encode_round(sealed(member("a"))))
    for kind in (1, -1):
        damaged[3][0][4] = kind
        with pytest.raises(ProtocolError, match="record"):
            codec.decode_round(json.dumps(damaged).encode())


def test_a_record_of_ten_thousand_nodes_of_eight_workers_fits_into_etcd() -> None:
    nodes = [member(f"host-{i:05}.rack-{i % 100}.cluster.internal_1234567_0", workers=8) for i in range(10_000)]
    assert len(codec.encode_round(sealed(*nodes))) < 1.5 * 2**20, "what etcd takes by default"
