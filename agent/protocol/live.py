"""What agents say to each other about the calls of `live_workers` and `live_barrier` (`softrun.agent.live`).

An **epoch** is a world, by its number. A **scope** is the workers that a call is about, by their names
(`NODE/LOCAL_RANK`), sorted; an empty one is all workers of the world. A **verdict** answers one open call of each
living worker of a scope; verdicts of one epoch and scope are counted from 1.
"""

from __future__ import annotations

from typing import NamedTuple

from softrun.runtime.calls import Way

Scope = tuple[str, ...]
EVERYBODY: Scope = ()


class Made(NamedTuple):
    """A call as it goes to the coordinator of the epoch."""

    local_rank: int
    way: Way
    tag: str
    site: str


class Calls(NamedTuple):
    """The calls of all workers of a node that are in the scope: they wait for verdict `turn`.

    `departed`: the local ranks of workers that make no more calls in this epoch, since their work is done.
    """

    epoch: int
    scope: Scope
    turn: int
    made: tuple[Made, ...]
    departed: tuple[int, ...] = ()


class Verdict(NamedTuple):
    """What the coordinator has decided. Everybody in the scope takes this, or nobody does.

    For the fields see `softrun.runtime.calls.Reply`.
    """

    epoch: int
    scope: Scope
    turn: int
    way: Way
    ok: bool | None = None
    tags: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()
    mistake: str = ""


def name_of(node: str, local_rank: int) -> str:
    """Return the name of a worker, which its successors have as well."""
    return f"{node}/{local_rank}"
