"""What the coordinator of an epoch does: it gathers one message of each node, and decides.

The coordinator is the agent of the world's first node. It remembers nothing that outlives the epoch: what it has
decided when the epoch ends is taken into the next record (`softrun.agent.live.live_calls`).
"""

from __future__ import annotations

from collections.abc import Iterator

from softrun.agent.live.epoch import Epoch
from softrun.agent.protocol.live import EVERYBODY, Calls, Made, Scope, Verdict, name_of
from softrun.runtime.calls import Way

MOST_SCOPES = 256
"""In one epoch. A call about yet another scope is a mistake: scopes are groups of workers, not numbers of steps."""


class Coordinator:
    """The gathering of one epoch. Methods return verdicts, each with the node that it goes to."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self.decided: dict[Scope, Verdict] = {}
        """The last verdict on each scope."""
        self._waiting: dict[Scope, dict[str, Calls]] = {}
        self._block: frozenset[str] = frozenset()  # who is in the block that the last verdict has begun
        self._alike = False  # they have begun it at the same step: newcomers are healed in their first block

    def hear(self, node: str, calls: Calls) -> Iterator[tuple[str, Verdict]]:
        """Take in what a node says, maybe once more. Returns what it has missed."""
        if calls.departed:
            self._epoch.depart({name_of(node, local_rank) for local_rank in calls.departed})
        last = self.decided.get(calls.scope)
        if calls.made:
            if last is None or calls.turn > last.turn:
                self._waiting.setdefault(calls.scope, {})[node] = calls
            elif calls.turn == last.turn:
                yield node, last

    def decide(self, scope: Scope | None = None) -> Iterator[tuple[str, Verdict]]:
        """Decide on this scope, or on all, if everybody in it waits."""
        for each in [scope] if scope is not None else [*self._waiting]:
            yield from self._decide(each)

    def _decide(self, scope: Scope) -> Iterator[tuple[str, Verdict]]:
        waiting, needed = self._waiting.get(scope), self._epoch.needed(scope)
        if not waiting or not needed or len(waiting) < len(needed):
            return
        for node, local_ranks in needed.items():
            there = waiting.get(node)
            if there is None or not local_ranks <= {made.local_rank for made in there.made}:
                return
        verdict = self._verdict(scope, {node: waiting[node] for node in needed})
        del self._waiting[scope]
        self.decided[scope] = verdict
        for node in needed:
            yield node, verdict

    def _verdict(self, scope: Scope, gathered: dict[str, Calls]) -> Verdict:
        made = {name_of(node, each.local_rank): each for node, calls in gathered.items() for each in calls.made}
        last = self.decided.get(scope)
        turn = last.turn + 1 if last is not None else 1
        way = next(iter(made.values())).way
        mistake = self._mistake(made, scope)
        if mistake or way is not Way.EXIT:
            tags = () if mistake else tuple((name, each.tag) for name, each in sorted(made.items()))
            verdict = Verdict(self._epoch.number, scope, turn, way, tags=tags, mistake=mistake)
        else:
            gone = tuple(sorted(self._block - set(made)))
            verdict = Verdict(self._epoch.number, scope, turn, way, ok=not gone, gone=gone)
        if scope == EVERYBODY:
            begins = not mistake and (way is Way.ENTRY or verdict.ok is True)
            self._block = frozenset(made) if begins else frozenset()
            self._alike = way is Way.EXIT or len({each.tag for each in made.values()}) == 1
        return verdict

    def _mistake(self, made: dict[str, Made], scope: Scope) -> str:
        """Say in one line why these calls do not belong together; "" if they do."""
        if scope not in self.decided and len(self.decided) >= MOST_SCOPES:
            return f"calls about more than {MOST_SCOPES} different scopes in one world: use a group of workers again"
        one, first = next(iter(made.items()))
        for name, each in made.items():
            if each.way is not first.way:
                return (
                    f"{name} is at {_shown(each)} while {one} is at {_shown(first)}: all workers must make the same "
                    "calls in the same order"
                )
            if each.way is Way.EXIT and scope == EVERYBODY and name not in self._block:
                return f"{name} ends a block at {each.site} that it has not begun in this world"
            if each.way is Way.EXIT and self._alike and each.tag != first.tag:
                return (
                    f"{name} ends block {each.tag} at {each.site} while {one} ends block {first.tag} at {first.site}: "
                    "pass the same step on all workers"
                )
        return ""


_SHOWN = {Way.ENTRY: "the begin of a block", Way.EXIT: "the end of a block", Way.BARRIER: "a barrier"}


def _shown(made: Made) -> str:
    return f"{_SHOWN[made.way]} ({made.site})"
