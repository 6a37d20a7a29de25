"""How rounds and messages are written: JSON, validated on reading. Nothing here is ever unpickled."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from softrun.agent.errors import ProtocolError
from softrun.agent.model import Message, Round

PROTOCOL_VERSION = 1
"""Of the round and the messages. Agents of one job must speak the same."""

_ROUND: TypeAdapter[tuple[int, Round]] = TypeAdapter(tuple[int, Round])
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)


def encode_round(round_: Round) -> bytes:
    return _ROUND.dump_json((PROTOCOL_VERSION, round_))


def decode_round(data: bytes) -> Round:
    """Raises ProtocolError for anything that this release did not write."""
    try:
        version, round_ = _ROUND.validate_json(data)
    except ValidationError as error:
        raise ProtocolError(
            f"the job's record cannot be read ({error.error_count()} faults in {data[:80]!r}): "
            "start every agent of the job with the same release of softrun"
        ) from error
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the job's record has protocol version {version}, this release speaks {PROTOCOL_VERSION}: "
            "start every agent of the job with the same release of softrun"
        )
    return round_


def encode_message(message: Message) -> bytes:
    return _MESSAGE.dump_json(message)


def decode_message(data: bytes) -> Message:
    """Raises ProtocolError for anything else."""
    try:
        return _MESSAGE.validate_json(data)
    except ValidationError as error:
        raise ProtocolError(f"a message on a link cannot be read: {data[:80]!r}") from error
