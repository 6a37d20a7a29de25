"""Is a history of `live_workers` right?

For each answer there must be a moment, while its call was open, at which every worker that it names was in a call with
the same scope, and every other worker of the scope was dead. The modes, each of which demands what the one before does,
but for the second, which forgives:

    basic    failures happened when they are recorded
    amended  a service cannot know when a worker fails: each failure may be placed anywhere between the events of its
             worker before and after it, in one place for all answers. That of an evicted worker may also lie before
             what it did in vain: before the calls since its last answer, and before the receipt of that answer, down
             to the moment that gave it
    strict   and such a moment is a decision: it takes one call of each member, each call is taken once, and all these
             calls have the same answer, with the same incarnations and round
    atomic   and the outcome of each block is right. It begins with a decision and ends with the ones that take its
             members' next calls. It succeeded if one decision takes the very next call of each of them, and none
             raised. Workers that join fail no block
"""

from __future__ import annotations

from softrun.testing.history import History
from softrun.testing.search import Search
from softrun.testing.timeline import Mode, timeline_of
from softrun.testing.verdict import Verdict, verdict_of


def check(history: History, mode: Mode = "atomic") -> Verdict:
    """Judge a history. Raises AmbiguousError if too many ways could explain it."""
    timeline = timeline_of(history, mode)
    return verdict_of(timeline, Search(timeline).run())
