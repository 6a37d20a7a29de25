"""The lines of a handshake as documents. What arrives is checked: its fields, their types and their bounds."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from softrun.agent.errors import ProtocolError
from softrun.agent.proof import proofs


class Verdict(Enum):
    """What an acceptor makes of a greeting; the value is what it says without a secret."""

    WELCOME = ""
    OTHER_JOB = "job"
    OTHER_NODE = "node"
    NAMESAKE = "name"
    TOKEN = "token"  # one end has a secret, and the other has none
    OTHER_TOKEN = "other token"
    ENDED = "ended"  # the agent has ended; what outlives it says so


def _clean(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has characters that cannot be printed")
    return text


_Host = Annotated[str, Field(max_length=255), AfterValidator(_clean)]
LONGEST = 512
_Name = Annotated[str, Field(max_length=LONGEST)]
_Digits = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Greeting(_Document):
    """The first line of a link, from the dialler."""

    version: int = 0
    job: _Name
    node: Annotated[_Name, Field(min_length=1)]
    to: _Name
    host: Annotated[_Host, Field(min_length=1)]
    port: int = Field(ge=1, le=65535)
    probe: bool = False
    known: _Name = ""
    nonce: _Digits = ""
    proof: _Digits = ""


class Answer(_Document):
    """The acceptor's answer to a greeting."""

    version: int = 0
    node: _Name = ""
    host: _Host = ""
    port: int = Field(default=0, ge=0, le=65535)
    nonce: _Digits = ""
    proof: _Digits = ""
    refused: Annotated[str, Field(max_length=16)] = ""


class Proof(_Document):
    """The dialler's proof, in answer to the acceptor's."""

    proof: _Digits


def transcript(greeting: Greeting, answer: Answer) -> bytes:
    """Return all that the two ends have told each other. No two exchanges have the same."""
    return proofs.transcript(greeting.model_dump(), answer.model_dump())


_Kind = TypeVar("_Kind", bound=BaseModel)


def line_of(document: BaseModel) -> bytes:
    """Return the document as a line, without the newline that ends it."""
    return document.model_dump_json(exclude_defaults=True).encode()


def read(kind: type[_Kind], line: bytes) -> _Kind:
    """Return the document in a line. Raises ProtocolError if there is none of this kind."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"not a greeting: {line[:80]!r}") from error
