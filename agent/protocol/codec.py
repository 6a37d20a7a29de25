"""The wire format of rounds and messages: JSON, validated when it is read. Nothing is ever unpickled.

A round goes to each of its N members, so what members have in common is written once:

    [protocol version, the round without its members, [kind, …], [member, …]]
    kind     [incarnation, role, [[local rank, incarnation], …] of its workers, lease_number]
    member   [node, host, port, preferred rank, which kind it is]

What is as by default is left out, in records and messages alike. A record whose predecessor the reader has is sent as
what it differs in from that one (`softrun.agent.consensus.change`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.checks import check_message, check_round
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Ballot,
    Beat,
    Change,
    Decided,
    Hello,
    LastWords,
    Member,
    Message,
    Prepare,
    Promise,
    Record,
    RecordId,
    Refused,
    Report,
    Round,
    Witnessed,
    Worker,
)

PROTOCOL_VERSION = 15
"""The version of the record and of the messages. All agents of a job must speak the same one."""
MAX_LINE = 8 << 20
"""The bytes of the longest message."""
MOST_OF_RECORD = MAX_LINE // 2 - (1 << 16)
"""How many of them the members of a record may take: last words carry two records, and the rest is small."""

_Kind = tuple[int, str, tuple[tuple[int, int], ...], int]
_Place = tuple[str, str, int, int, NonNegativeInt]
_Written = tuple[int, Round, list[_Kind], list[_Place]]
_PLACE: TypeAdapter[_Place] = TypeAdapter(_Place)
_From = TypeVar("_From")
_To = TypeVar("_To")

_ROUND: TypeAdapter[_Written] = TypeAdapter(_Written)
_NAMES: dict[type, bytes] = {
    Report: b"report",
    Hello: b"hello",
    Beat: b"beat",
    Record: b"record",
    Witnessed: b"witnessed",
    LastWords: b"lastwords",
    Prepare: b"prepare",
    Promise: b"promise",
    Accept: b"accept",
    Accepted: b"accepted",
    Refused: b"refused",
    Decided: b"decided",
    Calls: b"calls",
    Verdict: b"verdict",
}
_CARRIERS = (Accept, Promise, Record, LastWords)
"""The messages that carry records. What they say besides is written in the order of their fields."""
_ADAPTERS: dict[bytes, TypeAdapter[Message]] = {
    name: TypeAdapter(kind) for kind, name in _NAMES.items() if kind not in _CARRIERS
}
_Change = tuple[_Written, tuple[tuple[int, int], ...]]
_ACCEPT: TypeAdapter[tuple[Ballot, _Change, RecordId]] = TypeAdapter(tuple[Ballot, _Change, RecordId])
_PROMISE: TypeAdapter[tuple[Ballot, Ballot | None, _Change | None, RecordId]] = TypeAdapter(
    tuple[Ballot, Ballot | None, _Change | None, RecordId]
)
_RECORD: TypeAdapter[tuple[_Written, bool, float, str, str]] = TypeAdapter(tuple[_Written, bool, float, str, str])
_LAST_WORDS: TypeAdapter[
    tuple[_Change | None, RecordId, Ballot | None, Ballot | None, _Change | None, Report | None]
] = TypeAdapter(tuple[_Change | None, RecordId, Ballot | None, Ballot | None, _Change | None, Report | None])


def encode_round(round_: Round) -> bytes:
    """Return the record as the store holds it."""
    return _json(_ROUND, _written(round_))


def _json(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """Without what is as by default: that is most of a report, which each of thousands of nodes sends."""
    return adapter.dump_json(value, exclude_defaults=True)


def _written(round_: Round) -> _Written:
    kinds: dict[tuple[int, str, tuple[Worker, ...], int], int] = {}
    places = [
        (
            m.node,
            m.host,
            m.port,
            m.preferred_rank,
            kinds.setdefault((m.incarnation, m.role, m.workers, m.lease_number), len(kinds)),
        )
        for m in round_.members
    ]
    written = [
        (incarnation, role, tuple((w.local_rank, w.incarnation) for w in workers), lease_number)
        for incarnation, role, workers, lease_number in kinds
    ]
    return PROTOCOL_VERSION, replace(round_, members=()), written, places


def _written_change(change: Change) -> _Change:
    return _written(change.round), change.members


def _read_change(change: _Change) -> Change:
    written, members = change
    return Change(_read(written), members)


def bytes_of_members(nodes: int, node: str, host: str) -> int:
    """Return how many bytes so many members of a record take, if their names are as long as these."""
    return nodes * len(_PLACE.dump_json((node, host, 65535, nodes, nodes)) + b",")


def decode_round(data: bytes) -> Round:
    """Read a record from the store. Raises ProtocolError for anything that this release did not write."""
    try:
        written = _ROUND.validate_json(data)
    except ValidationError as error:
        raise ProtocolError(
            f"the job's record cannot be read ({error.error_count()} faults in {data[:80]!r}): "
            "start every agent of the job with the same release of softrun"
        ) from error
    round_ = _read(written)
    check_round(round_)
    return round_


def _read(record: _Written) -> Round:
    version, round_, written, places = record
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the job's record has protocol version {version}, this release speaks {PROTOCOL_VERSION}: "
            "start every agent of the job with the same release of softrun"
        )
    kinds = [
        (incarnation, role, _workers(workers), lease_number) for incarnation, role, workers, lease_number in written
    ]
    members = []
    for node, host, port, preferred_rank, kind in places:
        if kind >= len(kinds):
            raise ProtocolError(f"the job's record is damaged: member {node!r} is of a kind that it does not have")
        incarnation, role, workers, lease_number = kinds[kind]
        members.append(Member(node, incarnation, host, port, role, workers, lease_number, preferred_rank))
    return replace(round_, members=tuple(members))


@lru_cache(maxsize=1024)
def _workers(written: tuple[tuple[int, int], ...]) -> tuple[Worker, ...]:
    """Return the same objects for equal workers, so that comparing those of thousands of nodes is quick."""
    return tuple(Worker(local_rank, incarnation) for local_rank, incarnation in written)


def encode_message(message: Message) -> bytes:
    """Return a message as it goes over a link, without the newline that ends it there: its kind, a space, JSON."""
    name = _NAMES[type(message)]
    match message:
        case Accept(ballot, change, after):
            body = _json(_ACCEPT, (ballot, _written_change(change), after))
        case Promise(ballot, accepted_in, accepted, after):
            body = _json(_PROMISE, (ballot, accepted_in, _maybe(_written_change, accepted), after))
        case Record(round_, stands, worked_s, over, apart_from):
            body = _json(_RECORD, (_written(round_), stands, worked_s, over, apart_from))
        case LastWords(known, before, promised, accepted_in, accepted, report):
            changes = _maybe(_written_change, known), _maybe(_written_change, accepted)
            body = _json(_LAST_WORDS, (changes[0], before, promised, accepted_in, changes[1], report))
        case _:
            body = _json(_ADAPTERS[name], message)
    return name + b" " + body


def decode_message(data: bytes) -> Message:
    """Read one line from a link. Raises ProtocolError if it is not a message, or cannot mean anything."""
    message = _read_message(data)
    check_message(message)
    return message


def _read_message(data: bytes) -> Message:
    name, _, body = data.partition(b" ")
    try:
        if name == _NAMES[Accept]:
            ballot, change, after = _ACCEPT.validate_json(body)
            return Accept(ballot, _read_change(change), after)
        if name == _NAMES[Promise]:
            ballot, accepted_in, accepted, after = _PROMISE.validate_json(body)
            return Promise(ballot, accepted_in, _maybe(_read_change, accepted), after)
        if name == _NAMES[Record]:
            written, stands, worked_s, over, apart_from = _RECORD.validate_json(body)
            return Record(_read(written), stands, worked_s, over, apart_from)
        if name == _NAMES[LastWords]:
            known, before, promised, accepted_in, accepted, report = _LAST_WORDS.validate_json(body)
            changes = _maybe(_read_change, known), _maybe(_read_change, accepted)
            return LastWords(changes[0], before, promised, accepted_in, changes[1], report)
        if name not in _ADAPTERS:
            raise ProtocolError(f"a message on a link cannot be read: {data[:80]!r}")
        return _ADAPTERS[name].validate_json(body)
    except ValidationError as error:
        raise ProtocolError(f"a message on a link cannot be read: {data[:80]!r}") from error


def _maybe(convert: Callable[[_From], _To], value: _From | None) -> _To | None:
    return convert(value) if value is not None else None
