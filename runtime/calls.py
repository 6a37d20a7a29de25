"""What a worker and its agent say to each other about live_workers and live_barrier: one packet each way.

    worker ──Call──▶ agent ──Reply──▶ worker

A packet is a JSON array. The agent's part is in `softrun.agent.live`. Every step waits for these: so they are tuples,
which are made in a quarter of the time that a frozen dataclass takes.
"""

from __future__ import annotations

import json
from enum import Enum
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from softrun.runtime.bounds import LARGEST, LONGEST_NAME, told

NODE_VARIABLE = "SOFTRUN_NODE"
"""In a worker's environment: the first part of its name, NODE/LOCAL_RANK."""
MOST_BYTES = 1 << 17
"""Of one packet. What can be longer is cut before: a fault's text, and the names of a scope."""


class Way(Enum):
    """Which call it is."""

    ENTRY = "ENTRY"  # begins a block
    EXIT = "EXIT"  # ends a block, and begins the next one
    BARRIER = "BARRIER"  # asks who is there, and is no part of a block


class Call(NamedTuple):
    """One worker's call. Its `number` comes back with the reply; `epoch` is the number of the worker's world."""

    number: int
    epoch: int
    way: Way
    scope: tuple[str, ...] = ()  # the workers that it is about, by their names, sorted; nobody named is everybody
    tag: str = ""  # the trainer's own, such as its step, as JSON
    site: str = ""  # where in the trainer's code it is made
    fault: str | None = None  # of EXIT: how the block failed here; "" if the loss of another worker has ended it
    timeout_s: float = 0.0  # until the worker's next call, before it counts as hung; 0: it never does


class Reply(NamedTuple):
    """The answer to one call: a verdict, which all in its scope get alike, or that the epoch is over.

    `ok`: the block that the call ends has succeeded on all that were in it; None if it ends none. `tags`: of all that
    called, by name, unless the call ends a block. `gone`: those that were in the block and make no more calls.
    `mistake`: the calls do not belong together, in one line. `members`: who is in the epoch, in rank order, each with
    its incarnation; not if the call ends a block.

    `over`: no verdict takes the call, and a block that it was to end has failed. `lost`: the workers of the epoch that
    are not in what follows. `raised`: those whose blocks have raised, and `fault`: what. `evicted`: the others have
    gone on without this node.
    """

    turn: int = 0
    ok: bool | None = None
    tags: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()
    mistake: str = ""
    members: tuple[tuple[str, str], ...] = ()
    over: bool = False
    lost: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    fault: str = ""
    evicted: bool = False


_WHAT_MOST_SAY = 2
"""How many fields tell that a block has succeeded, as most replies do."""
_pack = json.JSONEncoder(separators=(",", ":")).encode
_scan = json.JSONDecoder().raw_decode
_WAYS = {way.value: way for way in Way}
_quoted = lru_cache(maxsize=256)(_pack)
"""Of texts: a call's place in the trainer is always the same."""


def _read(packet: bytes | bytearray) -> Any:
    """Read what `_pack` has written, without a blank before or behind: a look for those takes longer than the rest."""
    text = packet.decode()
    value, end = _scan(text)
    if end != len(text):
        raise ValueError(f"there is more behind character {end}")
    return value


def is_worker(name: str) -> bool:
    """Whether this can be the name of a worker, NODE/LOCAL_RANK."""
    node, _, local_rank = name.rpartition("/")
    is_node = 0 < len(node) <= LONGEST_NAME and node.isprintable()
    return is_node and local_rank.isascii() and local_rank.isdigit() and len(local_rank) < 6


def pack_call(call: Call) -> bytes:
    """Return the packet of a call."""
    more = _pack((call.scope, call.fault, call.timeout_s)) if call.scope or call.fault is not None else ""
    more = more or f"[[],null,{call.timeout_s!r}]"
    return f'[{call.number},{call.epoch},"{call.way.value}",{_quoted(call.site)},{_quoted(call.tag)},{more}]'.encode()


def read_call(packet: bytes | bytearray) -> Call:
    """Read a packet of a worker. Raises ValueError for one that cannot be meant."""
    try:
        number, epoch, way, site, tag, (scope, fault, timeout_s) = _read(packet)
        if not (type(number) is type(epoch) is int and type(site) is type(tag) is str):
            raise ValueError("a field has another type")
        if (fault is not None and type(fault) is not str) or type(scope) is not list:
            raise ValueError("a field has another type")
        if scope and not ({*map(type, scope)} == {str} and all(map(is_worker, scope))):
            raise ValueError("its scope names what is no worker")
        if not 0 <= timeout_s < inf:
            raise ValueError("timeout_s is no time")
        if not 0 <= epoch <= LARGEST or len(tag) > LONGEST_NAME or not tag.isprintable():
            raise ValueError("its world or its tag is none")
        if fault is not None:
            fault = told(fault)
        if not site.isascii() or len(site) > LONGEST_NAME:
            site = told(site, LONGEST_NAME)
        return Call(number, epoch, _WAYS[way], tuple(scope), tag, site, fault, timeout_s)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"a call cannot be read: {packet[:80]!r} ({error})") from error


def pack_reply(reply: Reply, *numbers: int) -> list[bytes]:
    """Return the packets of a reply to the calls of these numbers."""
    packed = _pack(reply[:_WHAT_MOST_SAY] if reply.ok else reply)
    return [f"[{number},{packed}]".encode() for number in numbers]


def read_reply(packet: bytes | bytearray) -> tuple[int, Reply]:
    """Read a packet of the agent: the number of the call, and the reply to it."""
    number, fields = _read(packet)
    if len(fields) <= _WHAT_MOST_SAY:
        return number, Reply(*fields)
    return number, Reply(*(_tuples(field) for field in fields))


def _tuples(field: Any) -> Any:
    return tuple(_tuples(each) for each in field) if isinstance(field, list) else field
