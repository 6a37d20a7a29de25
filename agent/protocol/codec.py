"""The wire format of rounds and messages: JSON, validated when it is read. Nothing is ever unpickled.

A round goes to each of its N members, so what members have in common is written once:

    [protocol version, the round without its members, [kind, …], [member, …]]
    kind     [incarnation, role, [[local rank, incarnation], …] of its workers, lease_number]
    member   [node, host, port, preferred rank, which kind it is]
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.checks import check_message, check_round
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Ballot,
    Beat,
    Decided,
    Hello,
    JobSettings,
    LastWords,
    Member,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    Refused,
    Report,
    Round,
    Witnessed,
    Worker,
)

PROTOCOL_VERSION = 13
"""The version of the record and of the messages. All agents of a job must speak the same one."""

_Kind = tuple[int, str, tuple[tuple[int, int], ...], int]
_Place = tuple[str, str, int, int, NonNegativeInt]
_Written = tuple[int, Round, list[_Kind], list[_Place]]

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
_ADAPTERS: dict[bytes, TypeAdapter[Message]] = {
    name: TypeAdapter(kind) for kind, name in _NAMES.items() if kind not in (Accept, Promise, Record, LastWords)
}
_CARRIES: dict[bytes, TypeAdapter[tuple[Accept | Promise | Record, _Written | None]]] = {
    _NAMES[kind]: TypeAdapter(tuple[kind, _Written | None])  # type: ignore[valid-type]
    for kind in (Accept, Promise, Record)
}
"""The messages that carry a record, which is written apart from the rest."""
_LAST_WORDS: TypeAdapter[tuple[_Written | None, Ballot | None, _Written | None, Report | None]] = TypeAdapter(
    tuple[_Written | None, Ballot | None, _Written | None, Report | None]
)
_NO_ROUND = Round(0, 0, Phase.OPEN, (), JobSettings(1, 1, "", ""))


def encode_round(round_: Round) -> bytes:
    """Return the record as the store holds it."""
    return _ROUND.dump_json(_written(round_))


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
    kind = type(message)
    name = _NAMES[kind]
    match message:
        case Accept() | Record():
            body = _CARRIES[name].dump_json((replace(message, round=_NO_ROUND), _written(message.round)))
        case Promise(accepted=Round() as accepted):
            body = _CARRIES[name].dump_json((replace(message, accepted=None), _written(accepted)))
        case LastWords(round_, accepted_in, accepted, report):
            known, next_one = (_written(each) if each is not None else None for each in (round_, accepted))
            body = _LAST_WORDS.dump_json((known, accepted_in, next_one, report))
        case Promise():
            body = _CARRIES[name].dump_json((message, None))
        case _:
            body = _ADAPTERS[name].dump_json(message)
    return name + b" " + body


def decode_message(data: bytes) -> Message:
    """Read one line from a link. Raises ProtocolError if it is not a message, or cannot mean anything."""
    message = _read_message(data)
    check_message(message)
    return message


def _read_message(data: bytes) -> Message:
    name, _, body = data.partition(b" ")
    try:
        if name in _CARRIES:
            message, written = _CARRIES[name].validate_json(body)
            round_ = _read(written) if written is not None else None
            if isinstance(message, Promise):
                return replace(message, accepted=round_)
            if round_ is None:
                raise ProtocolError("a message on a link cannot be read: it lacks its record")
            return replace(message, round=round_)
        if name == _NAMES[LastWords]:
            known, accepted_in, next_one, report = _LAST_WORDS.validate_json(body)
            read = [_read(each) if each is not None else None for each in (known, next_one)]
            return LastWords(read[0], accepted_in, read[1], report)
        if name not in _ADAPTERS:
            raise ProtocolError(f"a message on a link cannot be read: {data[:80]!r}")
        return _ADAPTERS[name].validate_json(body)
    except ValidationError as error:
        raise ProtocolError(f"a message on a link cannot be read: {data[:80]!r}") from error
