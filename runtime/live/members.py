"""Who is there, as a call of live_workers or live_barrier has found it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from softrun.runtime.bounds import LARGEST

Tag = int | float | str | bool | None


class Member(NamedTuple):
    """One worker. A worker that was started again has the name of its predecessor, and another incarnation."""

    name: str
    incarnation: str
    rank: int


@dataclass(frozen=True)
class Live:
    """One agreed set of workers: each had an open call when it was decided, and nobody else of the scope lived.

    `members` are in rank order; `tags` are what they have passed, by name. `epoch` is the number of the world, and
    `count` of the decision there: the same on all of them.
    """

    epoch: int
    count: int
    members: tuple[Member, ...]
    tags: dict[str, Tag]

    @property
    def names(self) -> tuple[str, ...]:
        """The members by name, as a `scope` takes them."""
        return tuple(member.name for member in self.members)

    @property
    def furthest(self) -> int:
        """The greatest of the whole numbers that they have passed; 0 if nobody has passed one."""
        return max((tag for tag in self.tags.values() if type(tag) is int), default=0)


def live_of(epoch: int, count: int, members: tuple[tuple[str, str], ...], tags: tuple[tuple[str, str], ...]) -> Live:
    """Return what the agent has replied; who has not called is not among them."""
    passed = {name: json.loads(tag) for name, tag in tags}
    there = (Member(name, life, rank) for rank, (name, life) in enumerate(members))
    return Live(epoch, count, tuple(member for member in there if member.name in passed), passed)


def tag_of(value: Tag) -> str:
    """Return a tag as it travels. Raises TypeError for what other workers could not compare."""
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return str(value)
    if not isinstance(value, (int, float, str, bool, type(None))):
        raise TypeError(f"a tag is a number, a text or None, and {type(value).__name__} is none: pass the step")
    text = json.dumps(value)
    if len(text) > 200:
        raise TypeError(f"a tag has at most 200 characters, and this one {len(text)}: pass the step")
    return text
