"""This worker's way through the worlds in which it calls live_workers: one world at a time, and one call after another.

    world ──ENTRY──▶ block ──EXIT: ok──▶ block ──EXIT: ok──▶ …      the exit of one block is the entry of the next
      ▲                └──────EXIT: failed──────┐
      └─────────────────────────────────────────┘

After a failure nothing is taken from before: the next block begins with a call in another world.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Protocol

from softrun.runtime.bounds import printed
from softrun.runtime.calls import Call, Reply, Way
from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState
from softrun.runtime.groups.group_registry import release_connections
from softrun.runtime.groups.groups import is_lost_peer, leave_groups
from softrun.runtime.interrupt import RestartRequest
from softrun.runtime.live.errors import CallMismatch, Evicted, PeerFailed
from softrun.runtime.live.members import Live, Tag, live_of, tag_of
from softrun.runtime.live.world import LiveWorld
from softrun.runtime.worker import ask, current_round, has_left, hold, is_in_call, last_event, wait_for_world
from softrun.runtime.worlds import World, WorldChanged

MOST_TEXT = 1 << 15
"""Characters of a traceback that travels."""


class Observer(Protocol):
    """Sees what a session says and hears, in its thread."""

    def called(self, call: Call, place: WorkerInfo) -> None:
        """This call is about to be sent, from this place in its world."""

    def replied(self, call: Call, reply: Reply) -> None:
        """It has this reply. A call that was interrupted has none."""


class Session:
    """The calls of one process. Only its main thread makes them."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self.world: World | None = None
        self.live: Live | None = None
        """Who is in the block, once one has begun in this world."""
        self.inside = ""
        """Where the block began that this worker is in; "": it is in none."""
        self.before: Live | None = None
        """Who was in the last block of an earlier world."""
        self._begun = False  # the last reply has begun a block
        self._entered = 0  # the world of the last block
        self._after = -1  # the world that was left last
        self._calls = 0
        self._blocks = 0  # how many have succeeded in this world

    def enter(self, step: Tag, site: str, timeout_s: float) -> LiveWorld:
        """Begin a block: without a call, in the world of the last one, if that has succeeded and the world stands."""
        self._check(site)
        tag = tag_of(step)
        while True:  # each pass is a world, and the agents bound how many may follow each other without a step
            world = self._meet(self._steps(), begins_at=site)
            if not self._begun:
                reply = self._ask(world, Way.ENTRY, tag, site, timeout_s=timeout_s)
                if reply.over:
                    self._leave(world, in_trouble=False)
                    continue
                self._raise_mistake(reply)
                self.live = live_of(world.round, reply.turn, reply.members, reply.tags)
                self._begun = True
            if self.live is None:
                raise AssertionError("a block without members")
            self.inside = site
            entered, self._entered = self._entered, world.round
            return LiveWorld(world, self.live, self.before, changed=entered != world.round)

    def succeed(self, step: Tag, site: str, timeout_s: float) -> None:
        """The block has ended here; raises if it has not on the others."""
        world = self._end_block()
        reply = self._ask(world, Way.EXIT, tag_of(step), site, timeout_s=timeout_s)
        if reply.ok:
            self._begun = True
            self._blocks += 1
            return
        self._raise_mistake(reply)
        self._leave(world, in_trouble=True)
        raise _failure(reply)

    def fail(self, error: Exception, site: str) -> None:
        """The block has raised here. Returns if `error` is why it fails; raises PeerFailed if others are."""
        world = self._end_block()
        own = not (world.changed or _is_of_a_lost_peer(error))
        text = "".join(traceback.format_exception(error)) if own else ""
        fault = f"fault of rank {world.rank} of world {world.round}: {text[-MOST_TEXT:]}" if own else ""
        reply = self._lose(world, site, fault)
        if not own or reply.lost or reply.evicted:
            raise _failure(reply) from error

    def give_up(self, error: BaseException) -> None:
        """This worker ends, in the middle of its block: so nobody waits for it."""
        world = self._end_block()
        self._leave(world, in_trouble=not (isinstance(error, SystemExit) and has_left()))

    def barrier(self, tag: Tag, scope: tuple[str, ...], site: str) -> Live:
        """Find out who is there, in this world or the next."""
        self._check(site)
        text = tag_of(tag)
        while True:  # each pass is a world
            world = self._meet(None)
            reply = self._ask(world, Way.BARRIER, text, site, scope=scope)
            if reply.over:
                self._leave(world, in_trouble=False)
                continue
            self._raise_mistake(reply)
            return live_of(world.round, reply.turn, reply.members, reply.tags)

    def _check(self, site: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{site}: call live_workers and live_barrier in the main thread, not in another one")
        if self.inside:
            raise RuntimeError(f"{site}: a call inside the block that began at {self.inside}: end that first")

    def _steps(self) -> int | None:
        """How many steps are behind this worker. All count alike, whatever they pass: a block is a step."""
        return self.live.furthest + self._blocks if self.live is not None else None

    def _meet(self, steps: int | None, begins_at: str = "") -> World:
        """The world that this worker is in, or the next one. Where a block begins, raise if it has failed already.

        It has been one of the others since the end of the last block, unless all have left after a step that was agreed
        on. In a Wrapper the function is interrupted instead.
        """
        if self.world is not None and self.world.round != current_round():
            self._forget(self.world)  # the trainer has gone on by itself, or a Wrapper has begun again
        if self.world is not None:
            try:
                self.world.check(steps)
                return self.world
            except WorldChanged:
                is_lost = begins_at and self._begun and last_event().leave_after is None and not is_in_call()
            if is_lost:
                raise _failure(self._lose(self._end_block(), begins_at))
            self._leave(self.world, in_trouble=False)
        event = self._event_of_the_call() if is_in_call() else wait_for_world(self._after)
        self.world = World(event)
        return self.world

    def _event_of_the_call(self) -> WorkerEvent:
        """In a Wrapper the function is begun again in the next world, so it waits for that interruption here."""
        while True:
            event = last_event()
            healthy = event.worker_state is WorkerState.HEALTHY
            if healthy and event.round == current_round() and event.round > self._after:
                return event
            if event.leave_after is not None:  # nobody is interrupted: all leave between the same two steps
                raise RestartRequest(f"world {current_round()} is over")
            hold(event.sequence)

    def _ask(
        self,
        world: World,
        way: Way,
        tag: str,
        site: str,
        *,
        scope: tuple[str, ...] = (),
        fault: str | None = None,
        timeout_s: float = 0.0,
    ) -> Reply:
        self._calls += 1
        call = Call(self._calls, world.round, way, scope, tag, site, fault, timeout_s)
        if self.observer is not None:
            self.observer.called(call, world.info)
        reply = ask(call)
        if self.observer is not None:
            self.observer.replied(call, reply)
        return reply

    def _end_block(self) -> World:
        if self.world is None:
            raise AssertionError("a block ends in no world")
        self.inside, self._begun = "", False
        return self.world

    def _lose(self, world: World, site: str, fault: str = "") -> Reply:
        """The block has failed: leave the world. Returns why the others think so."""
        leave_groups(in_trouble=True)  # they may wait in a collective for this rank
        reply = self._ask(world, Way.EXIT, "", site, fault=fault)
        self._leave(world, in_trouble=True)
        return reply

    def _leave(self, world: World, *, in_trouble: bool) -> None:
        leave_groups(in_trouble=in_trouble)
        release_connections()
        self._forget(world)

    def _forget(self, world: World) -> None:
        self._after, self.world, self._begun, self._blocks = world.round, None, False, 0
        self.before, self.live = self.live or self.before, None

    @staticmethod
    def _raise_mistake(reply: Reply) -> None:
        if reply.mistake:
            raise CallMismatch(reply.mistake)


def _failure(reply: Reply) -> PeerFailed:
    lost = (*reply.lost, *reply.gone)
    failed = tuple(dict.fromkeys((*lost, *reply.raised)))
    if reply.evicted:
        return Evicted("the others have gone on without this node, which they took for dead", failed, lost)
    if reply.fault:
        remote = printed(reply.fault.strip(), indent="")
        last = remote.splitlines()[-1]
        return PeerFailed(f"{', '.join(failed)} failed in this block: {last}", failed, lost, remote)
    who = ", ".join(failed[:10]) or "nobody, but the groups of this world broke"
    return PeerFailed(f"lost in this block: {who}", failed, lost)


def _is_of_a_lost_peer(error: Exception) -> bool:
    return "torch.distributed" in sys.modules and is_lost_peer(error)
