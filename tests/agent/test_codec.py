from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import member, messages, ready, rounds, sealed

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol import codec
from softrun.agent.protocol.model import Beat, Hello, Message, Round


@given(rounds)
def test_a_round_comes_back_as_it_was(round_: Round) -> None:
    assert codec.decode_round(codec.encode_round(round_)) == round_


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    decoded = codec.decode_message(codec.encode_message(message))
    assert decoded == message
    assert type(decoded) is type(message)


def test_the_three_messages_are_told_apart() -> None:
    report = ready(member("a"))
    for message in (report, Hello(report), Beat()):
        assert type(codec.decode_message(codec.encode_message(message))) is type(message)


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
