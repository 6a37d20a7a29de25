"""The local workers of one agent, what they were told, and how they are stopped.

Each local rank is a slot. A slot's worker is:

    ABSENT ──start──▶ RUNNING ──exit 0──▶ DONE
       ▲                │  └─exit ≠ 0─▶ FAILED
       │              stop
       │                ▼
       └── STOPPED ◀──exit── STOPPING

and becomes ABSENT again by `renew` or `replace` (as a new incarnation, which the rendezvous sees as a newcomer) or by
`rewind` (as the same one: hard restarts change nothing in the world that they follow, so workers that are stopped for
one keep their place). Every process that is started has its own launch number, whatever its incarnation.

Not every worker that runs can be in a world. One that was started while a world was under way is *outside* until it
has asked for a world, so the others never wait for its imports; so is one that has kept them waiting for too long. One
that makes no progress and does not leave its world when it is told to is *stuck*: the others go on without it, until it
has left, or is ended. One that exits 0 is done: its work was, if it has worked and nobody waits for it in a call
(`through`); else it has left, and may leave a gap that the others have to be told of.

Stopping escalates by deadlines that live here: the signal, then SIGKILL after the grace time, then, for a process that
not even SIGKILL ends (uninterruptible in the kernel), it is given up after `ABANDON_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from softrun.agent.core.progress_watchdog import LEAVE, ProgressWatchdog
from softrun.agent.protocol.effects import Effect, Failure, LookAtProgress, Note, ShowStacks, SignalWorker, Spawn, Tell
from softrun.agent.protocol.model import Address, Round, Worker
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import ProgressLimits, WorkerFault, WorkerInfo, WorkerState, WorkerStatus, WorldChangeEvent

SIGKILL, SIGTERM = 9, 15  # the numbers themselves: the pure modules import no signal module
ABANDON_S = 30.0
JOIN_S = 60.0  # for the step that was agreed on, where nodes are added
LEAVE_S = 10.0  # and where one leaves: it works on for so long, and at most for a third of the grace time
SHOW_S = 0.1  # for a worker to write its stacks


class State(Enum):
    ABSENT = "ABSENT"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"


LIVING = (State.RUNNING, State.STOPPING)


@dataclass
class WorkerSlot:
    worker: Worker
    launch: int = 0
    state: State = State.ABSENT
    paused: bool = False
    # Of the process that runs, or ran last:
    tells: int = 0  # events that it was told
    applied: int = 0  # how many of them it has obeyed
    leave: int = 0  # the last of them that told it to leave its world
    in_step_until: float | None = None  # it may end some steps before it leaves
    named: int = 0  # the last of them that named a world
    ends: bool = False  # its work is done, or its interpreter is ending by itself
    through: bool = False  # its work is done, it says
    called: int = 0  # the world in which its peers wait for it, whatever its exit code
    worked: int = 0  # the last world in which it has shown that it works
    stop_after: int | None = None  # in that world, the step at which it waits for more
    spoke: bool = False  # it has asked for its world
    spoke_at: float = 0.0
    soft: float | None = None  # its soft limit, as it has said last
    launched_at: float = 0.0
    launch_port: int = 0  # of the worker store that its environment names
    since: int = 0  # it has been in each world from this one on; 0 while the others are in one without it
    entered: bool = False  # it has been told of a world
    outside: bool = False
    stuck: bool = False
    failing: bool = False  # it is being ended, and that is its failure
    watch: ProgressWatchdog | None = None
    looked: bool = False  # its progress was asked for
    info: WorkerInfo | None = None  # its place in the world that it was told last
    shown: bool = False  # it was asked for its stacks
    term_at: float | None = None
    kill_at: float | None = None
    abandon_at: float | None = None

    @property
    def has_left(self) -> bool:
        return self.applied >= self.leave

    @property
    def may_work(self) -> bool:
        # One that is being ended for a failure has its place until it has failed, like any other, unless it is stuck.
        able = self.failing if self.state is State.STOPPING else self.state not in (State.STOPPED, State.FAILED)
        return able and not self.outside and not self.stuck


class LocalWorkers:
    def __init__(
        self,
        size: int,
        grace_s: float,
        named_store: Address | None = None,
        limits: ProgressLimits = ProgressLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._limits = limits
        self._grace_s = grace_s
        self._named_store = named_store
        self._slots = [WorkerSlot(Worker(local_rank, 1)) for local_rank in range(size)]
        self._rewinding = False  # those who are stopped will be back in their places
        self.told: Round | None = None
        """The last world that the workers were told of."""
        self.incomplete = False
        """One of them has ended before it was there: the others wait for it in vain."""
        self.unbuilt = False
        """One of them has exited 0 before it had shown any work there: others may wait for it to build their groups."""
        self.never_came = 0
        """The last world for which one of them had never asked when it exited 0."""
        self.missed = 0
        """The last world in which one of them has not been because its work was done."""
        self.never_asks = False
        """They take their world from their environment alone: nothing that they are told reaches them."""
        self.waits_for_silent = True
        """Before their first world those that are ready wait for the others."""
        self._given_up: list[Failure | None] = []

    # --- what it is like now

    def eligible(self) -> tuple[Worker, ...]:
        """Those that should be in a world, or have been and are done; not those that failed or were stopped."""
        if self._rewinding:
            return tuple(s.worker for s in self._slots)
        return tuple(s.worker for s in self._slots if s.may_work)

    def absent(self) -> bool:
        return any(s.state is State.ABSENT for s in self._slots)

    def all_workers(self) -> tuple[Worker, ...]:
        return tuple(s.worker for s in self._slots)

    def was_in_world(self) -> bool:
        """Does one of them run that has been in a world?"""
        return any(s.state is State.RUNNING and s.entered for s in self._slots)

    def since(self) -> int:
        """The first world from which on one of those that live has been in each; 0 where there is none."""
        return min((s.since for s in self._slots if s.state in LIVING and s.since), default=0)

    def at_work(self) -> list[tuple[int, int]]:
        """The local ranks, and launches, of those that were told to work."""
        return [(s.worker.local_rank, s.launch) for s in self._slots if s.state is State.RUNNING and not s.paused]

    def has_entered(self) -> bool:
        """Are all that were told to work in their world by now? There must be some; those that ask for none count."""
        at_work = [s for s in self._slots if s.state is State.RUNNING and not s.paused]
        return bool(at_work) and all(s.applied >= s.named for s in at_work if not self.never_asks)

    def outside(self) -> tuple[int, ...]:
        """The local ranks of those that run and have yet to ask for their first world."""
        return tuple(s.worker.local_rank for s in self._slots if s.state is State.RUNNING and s.outside)

    def through(self) -> int:
        """Has one of them ended because its work was done? Then the last world in which they have shown their work.

        One that never worked, or was in a call, has left.
        """
        done = (s for s in self._slots if s.state is State.DONE or (s.state is State.STOPPED and s.through))
        return max(s.worked for s in self._slots) if any(s.worked and not s.called for s in done) else 0

    def has_stuck(self) -> bool:
        """Does one of them live that is stuck?"""
        return any(s.state is State.RUNNING and s.stuck for s in self._slots)

    def has_worked(self) -> bool:
        """Have the workers shown, one of them, that they work in the world that they were told of last?"""
        return self.told is not None and any(s.worked == self.told.number for s in self._slots)

    def done(self) -> tuple[int, ...]:
        return tuple(s.worker.local_rank for s in self._slots if s.state is State.DONE)

    def living(self) -> bool:
        return any(s.state in LIVING for s in self._slots)

    def finished(self) -> bool:
        """Somebody has exited 0, and whoever has not is recorded as failed, or was not needed any more."""
        states = {s.state for s in self._slots}
        return State.DONE in states and states <= {State.DONE, State.FAILED, State.STOPPED}

    def ranks(self) -> tuple[tuple[int, int], ...]:
        return tuple((s.worker.local_rank, s.info.rank) for s in self._slots if s.info is not None)

    def deadline(self) -> float | None:
        waiting = [at for s in self._slots for at in (s.term_at, s.kill_at, s.abandon_at) if at is not None]
        waiting += [s.in_step_until for s in self._slots if s.state is State.RUNNING and s.in_step_until is not None]
        waiting += [at for s, watch in self._watched() if not s.looked and (at := watch.deadline()) is not None]
        return min(waiting, default=None)

    # --- telling

    def enter(self, world: Round, life: tuple[str, int], restarts_left: int, now: float) -> list[Effect]:
        """Tell the running workers of their place in `world`, pausing them first, and start those that are absent."""
        effects: list[Effect] = []
        change = ranks.change(self.told, world) if self.told is not None else None
        self.incomplete = self.unbuilt = False
        # The step is one of the world that this one follows: who left that before, or never was there, need not wait.
        leave_after = world.leave_after if self.told is not None and self.told.number == world.number - 1 else 0
        steps = [slot for slot in self._slots if not slot.paused]
        effects += self.pause(change, now, leave_after)
        places = ranks.places(world, life, self._named_store)
        fresh: list[Tell] = []
        for slot in self._slots:
            info = places.get(slot.worker)
            if info is None:
                slot.since = 0
                continue
            if slot.state is State.RUNNING:
                before = change if slot.entered else None
                effects.append(
                    self._tell(
                        slot,
                        WorkerState.HEALTHY,
                        before,
                        info,
                        world.number,
                        world.fault,
                        leave_after=leave_after if slot in steps else 0,
                    )
                )
            elif slot.state is State.ABSENT:
                self._launch(slot, info, now)
                fresh.append(self._tell(slot, WorkerState.HEALTHY, None, info, world.number))
            else:
                self._miss(slot, world)  # it ended while the world was being made
                continue
            slot.info = info
            slot.named = slot.tells
            slot.since, slot.entered = slot.since or world.number, True
            slot.paused = slot.outside = False
            if slot.watch is not None:
                slot.watch.begin()
        if fresh:
            effects.append(Spawn(tuple(fresh), restarts_left))
        self.told = world
        return effects

    def stay_behind(self) -> None:
        """The others have gone on without this node."""
        for slot in self._slots:
            slot.since = 0

    def warm_up(self, expected: Round, life: tuple[str, int], restarts_left: int, now: float) -> list[Effect]:
        """Start those that are absent, PAUSED and outside; `expected` is a world as it would be with them."""
        places = ranks.places(expected, life, self._named_store)
        fresh: list[Tell] = []
        for slot in self._slots:
            if slot.state is State.ABSENT:
                slot.info = places[slot.worker]
                self._launch(slot, slot.info, now)
                slot.outside = slot.paused = True
                fresh.append(self._tell(slot, WorkerState.PAUSED, None, slot.info, expected.number))
        return [Spawn(tuple(fresh), restarts_left)] if fresh else []

    @staticmethod
    def _launch(slot: WorkerSlot, info: WorkerInfo, now: float) -> None:
        slot.state = State.RUNNING
        slot.launch += 1
        slot.launch_port, slot.launched_at = info.master_port, now

    def hold(self, local_rank: int, step: int | None) -> list[Effect]:
        """Have a worker that works complete no step after this one before it is told more; None: it may go on."""
        slot = self._slots[local_rank]
        if slot.state is not State.RUNNING or slot.paused or slot.stop_after == step:
            return []
        if slot.info is None or self.told is None:
            raise AssertionError("a worker works that was never told of a world")
        slot.stop_after = step
        return [self._tell(slot, WorkerState.HEALTHY, None, slot.info, self.told.number, stop_after=step)]

    def pause(self, change: WorldChangeEvent | None, now: float, leave_after: int = 0) -> list[Effect]:
        """Tell PAUSED to each running worker that works; it leaves after step `leave_after`, or at once if 0."""
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is not State.RUNNING or slot.paused:
                continue
            if slot.info is None or self.told is None:
                raise AssertionError("a worker runs that was never told of a world")
            slot.paused, slot.stop_after = True, None
            slot.in_step_until = now + self._in_step_s(change) if leave_after else None
            effects.append(
                self._tell(slot, WorkerState.PAUSED, change, slot.info, self.told.number, leave_after=leave_after)
            )
            slot.leave = slot.tells
            # Where nobody was lost a worker may take its time, for the step that it is in.
            if slot.watch is not None and change is not WorldChangeEvent.SCALE_UP and not leave_after:
                slot.watch.leave(now)
        return effects

    @property
    def leave_s(self) -> float:
        """How long a node that was told to leave works on, if need be."""
        return min(LEAVE_S, self._grace_s / 3)

    def _in_step_s(self, change: WorldChangeEvent | None) -> float:
        return JOIN_S if change is WorldChangeEvent.SCALE_UP else self.leave_s

    def _out_of_step(self, slot: WorkerSlot, now: float) -> list[Effect]:
        """The step that was agreed on was not reached in time: into the next world without it."""
        slot.in_step_until = None
        if slot.paused or slot.has_left or slot.info is None or self.told is None:
            return []
        tell = self._tell(slot, WorkerState.HEALTHY, None, slot.info, self.told.number)
        slot.leave = slot.tells
        if slot.watch is not None:
            slot.watch.leave(now)
        return [tell]

    @staticmethod
    def _tell(
        slot: WorkerSlot,
        state: WorkerState,
        change: WorldChangeEvent | None,
        info: WorkerInfo,
        number: int,
        fault: WorkerFault | None = None,
        *,
        stop_after: int | None = None,
        leave_after: int = 0,
    ) -> Tell:
        slot.tells += 1
        rank, launch = slot.worker.local_rank, slot.launch
        return Tell(rank, launch, state, change, info, number, fault, stop_after, leave_after or None)

    # --- what they say, and whether they make progress

    def said(self, local_rank: int, launch: int, status: WorkerStatus, now: float) -> bool:
        """A worker has said how it is. False where it is an earlier one."""
        slot = self._slots[local_rank]
        if slot.launch == launch and slot.state is State.STOPPING:
            slot.through = status.through  # it may have said so when it was asked to end
        if slot.launch != launch or slot.state is not State.RUNNING:
            return False
        slot.through = status.through
        if not slot.spoke:
            slot.spoke, slot.spoke_at = True, now
        slot.applied = max(slot.applied, status.applied)
        slot.ends = status.ends
        if status.ends and slot.watch is not None:
            slot.watch.apply(ProgressLimits(hard=LEAVE.hard), now)
        slot.called, slot.worked = status.called, max(slot.worked, status.worked, status.counts)
        slot.outside = slot.outside and not status.ready
        if slot.has_left:
            slot.in_step_until = None
        if status.limits is not None:
            limits = self._limits.model_copy(update=status.limits.model_dump(exclude_none=True))
            slot.soft = limits.soft
            if not status.ends:
                self._watch(slot, limits, now)
        slot.stuck = slot.stuck and not slot.has_left
        return True

    @staticmethod
    def _watch(slot: WorkerSlot, limits: ProgressLimits, now: float) -> None:
        if slot.watch is None:
            slot.watch = ProgressWatchdog(limits, now)
        slot.watch.apply(limits, now)
        if slot.has_left:
            slot.watch.left()

    def look(self, local_rank: int) -> list[Effect]:
        """Look at a worker's progress, unless the answer is on its way."""
        slot = self._slots[local_rank]
        if slot.looked or slot.watch is None:
            return []
        slot.looked = True
        return [LookAtProgress(local_rank, slot.launch)]

    def look_at_all(self) -> list[Effect]:
        return [effect for slot in self._slots for effect in self.look(slot.worker.local_rank)]

    def hangs(self, local_rank: int, launch: int, at: float, now: float) -> bool:
        """A worker's progress was looked at. Has it passed a limit that it had not passed before?"""
        for slot, watch in self._watched():
            if (slot.worker.local_rank, slot.launch) == (local_rank, launch):
                slot.looked = False
                return watch.progressed(at, now)
        return False

    def overdue(self, local_rank: int, now: float) -> bool:
        """Has its hard limit passed?"""
        watch = self._slots[local_rank].watch
        return watch is not None and watch.overdue(now)

    def describe(self, local_rank: int, now: float) -> str:
        watch = self._slots[local_rank].watch
        return f"worker {local_rank} has made no progress for {0.0 if watch is None else now - watch.since:.1f} s"

    def show(self, local_rank: int) -> list[Effect]:
        """Have the stacks of a worker that makes no progress in its log, once."""
        slot = self._slots[local_rank]
        if slot.shown:
            return []
        slot.shown = True
        return [ShowStacks(local_rank, slot.launch)]

    def leaving(self, local_rank: int) -> bool:
        """Was it told to leave its world at once, and has not yet?"""
        slot = self._slots[local_rank]
        return slot.state is State.RUNNING and slot.entered and not slot.has_left and slot.in_step_until is None

    def waits(self, local_rank: int) -> bool:
        """Has it left its world, and was told of no other?"""
        slot = self._slots[local_rank]
        return slot.state is State.RUNNING and slot.paused and slot.has_left

    def is_stuck(self, local_rank: int) -> bool:
        return self._slots[local_rank].stuck

    def give_up_on(self, local_rank: int, now: float, *, stopped: bool = False) -> bool:
        """Has a worker that is leaving its world made no progress even so, or cannot make any? Then it is stuck."""
        slot = self._slots[local_rank]
        stalls = slot.watch is not None and slot.watch.stalls(now)
        slot.stuck = self.leaving(local_rank) and (stopped or stalls)
        return slot.stuck

    def end(self, local_rank: int, now: float, *, hangs: bool = True) -> list[Effect]:
        """End a worker, which counts as its failure: its stacks if it hangs, SIGTERM, and SIGKILL after its grace."""
        slot = self._slots[local_rank]
        effects = self.show(local_rank) if hangs else []
        slot.state, slot.failing = State.STOPPING, True
        slot.term_at = now + (SHOW_S if effects else 0.0)
        return effects

    def _watched(self) -> list[tuple[WorkerSlot, ProgressWatchdog]]:
        return [(s, s.watch) for s in self._slots if s.state is State.RUNNING and s.watch is not None]

    def unasked(self) -> list[tuple[int, int]]:
        """The local ranks, and launches, of those that run and have asked for no world, while the one that their
        environment names is not theirs, or no longer."""
        return [
            (s.worker.local_rank, s.launch)
            for s in self._slots
            if s.state is State.RUNNING
            and not s.spoke
            and (s.outside or (s.info is not None and s.info.master_port != s.launch_port))
        ]

    def uses_store(self, local_rank: int, launch: int, port: int) -> bool:
        """One that has asked for no world has begun in the one of that worker store. Is it another than its own?"""
        slot = self._slots[local_rank]
        if slot.launch != launch or slot.state is not State.RUNNING or slot.spoke:
            return False
        return slot.outside or slot.info is None or slot.info.master_port != port

    def has_asked(self) -> bool:
        return any(s.spoke for s in self._slots)

    def late_at(self, joins: bool) -> float | None:
        """When one that has yet to ask for its world has kept the others waiting for as long as they may wait.

        `joins`: they wait outside, as all of a node do before its first world.
        """
        late = [s.launched_at for s in self._slots if s.state is State.RUNNING and not s.spoke and s.outside is joins]
        asked = [s for s in self._slots if s.spoke]  # those that have ended meanwhile, too: others wait as they did
        softs = [s.soft for s in asked if s.soft is not None]
        return max(min(late), min(s.spoke_at for s in asked)) + min(softs) if softs and late else None

    def leave_out_silent(self) -> None:
        """The others wait, maybe for those that have asked for no world yet: they are outside until they do."""
        self.waits_for_silent = False
        for slot in self._slots:
            if slot.state is State.RUNNING and not slot.spoke:
                slot.outside = True

    def silent(self) -> tuple[int, ...]:
        """The local ranks of those that run and have not asked for their world yet: will they ever hear of another?"""
        return tuple(s.worker.local_rank for s in self._slots if s.state is State.RUNNING and not s.spoke)

    def has_left(self) -> bool:
        """Have all those that were paused left their world?"""
        return not any(s.state is State.RUNNING and s.paused and not s.has_left for s in self._slots)

    # --- ending

    def stop(self, signum: int, now: float, rewinding: bool = False) -> list[Effect]:
        """Ask every running worker to end; SIGKILL follows after the grace time, or at once for signal 9.

        One that is ending by itself is not asked: its exit code tells whether its work was done. `rewinding`: they will
        be started again in their places (`rewind`).
        """
        self._rewinding = rewinding
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is State.RUNNING or (slot.state is State.STOPPING and signum == SIGKILL):
                slot.state = State.STOPPING
                killed = signum == SIGKILL
                if killed or not slot.ends:
                    effects.append(self._signal(slot, signum))
                slot.term_at = None
                slot.kill_at = None if killed else now + self._grace_s
                slot.abandon_at = now + ABANDON_S if killed else None
        return effects

    def dismiss(self, now: float) -> list[Effect]:
        """Stop those that are outside: the work is done."""
        outside = [s for s in self._slots if s.state is State.RUNNING and s.outside]
        for slot in outside:
            slot.state, slot.kill_at = State.STOPPING, now + self._grace_s
        return [self._signal(slot, SIGTERM) for slot in outside]

    def hurry(self, now: float) -> list[Effect]:
        """SIGKILL to those who were asked to end and have not."""
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is State.STOPPING and slot.abandon_at is None:
                slot.term_at, slot.kill_at, slot.abandon_at = None, None, now + ABANDON_S
                effects.append(self._signal(slot, SIGKILL))
        return effects

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for slot, watch in self._watched():
            due = watch.deadline()
            if due is not None and now >= due:
                effects += self.look(slot.worker.local_rank)
        for slot in self._slots:
            if slot.state is State.RUNNING and slot.in_step_until is not None and now >= slot.in_step_until:
                effects += self._out_of_step(slot, now)
            if slot.term_at is not None and now >= slot.term_at:
                grace_s = slot.watch.limits.grace if slot.watch is not None else None
                slot.term_at, slot.kill_at = None, now + (self._grace_s if grace_s is None else grace_s)
                effects.append(self._signal(slot, SIGTERM))
            elif slot.kill_at is not None and now >= slot.kill_at:
                slot.kill_at, slot.abandon_at = None, now + ABANDON_S
                effects.append(self._signal(slot, SIGKILL))
            elif slot.abandon_at is not None and now >= slot.abandon_at:
                self._given_up.append(self.exited(slot.worker.local_rank, slot.launch, -SIGKILL))
                effects.append(
                    Note(
                        f"worker {slot.worker.local_rank} did not end within {ABANDON_S:.0f} s of SIGKILL and is given "
                        "up: it is stuck in the kernel, look at this host's devices",
                        warning=True,
                    )
                )
        return effects

    def given_up(self) -> list[Failure | None]:
        """Those that were given up since this was asked last, each as if it had ended: its failure, if it is one."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def exited(self, local_rank: int, launch: int, exitcode: int) -> Failure | None:
        """A worker has ended. Returns its failure, if nobody had asked it to end."""
        slot = self._slots[local_rank]
        if slot.launch != launch or slot.state not in LIVING:
            return None  # an earlier life, given up long ago
        slot.term_at = slot.kill_at = slot.abandon_at = None
        if slot.state is State.STOPPING and not slot.failing:
            slot.state = State.DONE if slot.ends and exitcode == 0 else State.STOPPED
            return None
        if exitcode == 0 and not slot.failing:
            slot.state = State.DONE
            self._gap(slot)
            return None
        slot.state = State.FAILED
        if slot.info is None:
            raise AssertionError("a worker failed that was never told of a world")
        return Failure(slot.info.rank, local_rank, launch, exitcode or -SIGTERM)

    def _gap(self, slot: WorkerSlot) -> None:
        """One has exited 0. Do the others of its world wait for it?"""
        if self.told is None or not slot.entered:
            return
        if slot.spoke and slot.applied < slot.named:
            self._miss(slot, self.told)
        if not slot.spoke:
            self.never_came = self.told.number
        # One that never asked cannot be waited for by a script that does not ask either.
        waited_for = not slot.spoke and self.has_asked()
        self.incomplete |= slot.called == self.told.number or waited_for
        self.unbuilt |= slot.spoke and slot.worked != self.told.number

    def _miss(self, slot: WorkerSlot, world: Round) -> None:
        self.incomplete = True
        if slot.state is State.DONE and slot.worked and not slot.called:
            self.missed = world.number

    # --- beginning anew

    def renew(self) -> None:
        """After everybody was stopped: every slot gets a new incarnation, whatever it had come to."""
        if self.living():
            raise AssertionError("renewed workers that live")
        for slot in self._slots:
            self._renew(slot)
        self._begin_anew()

    def rewind(self) -> None:
        """After everybody was stopped: every slot can be started again in the place that its node already has.

        Those that are done stay so: "finished work is never run again".
        """
        if self.living():
            raise AssertionError("rewound workers that live")
        for slot in self._slots:
            if slot.state is not State.DONE:
                self._clear(slot)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.told, self.waits_for_silent = None, True
        self._rewinding = self.incomplete = self.unbuilt = False

    def replace(self, local_rank: int, *, outside: bool = False) -> None:
        """After one worker failed: its slot alone gets a new incarnation; the others need not wait for one outside."""
        self._renew(self._slots[local_rank])
        self._slots[local_rank].outside = outside

    def restarts_of(self, local_rank: int) -> int:
        return self._slots[local_rank].worker.incarnation - 1

    @staticmethod
    def _renew(slot: WorkerSlot) -> None:
        slot.worker = Worker(slot.worker.local_rank, slot.worker.incarnation + 1)
        LocalWorkers._clear(slot)

    @staticmethod
    def _clear(slot: WorkerSlot) -> None:
        """Nothing that was said of its last process holds for the next one."""
        slot.state, slot.info, slot.watch, slot.soft = State.ABSENT, None, None, None
        slot.since = slot.tells = slot.applied = slot.leave = slot.named = slot.called = slot.worked = 0
        slot.stop_after = slot.in_step_until = None
        slot.entered = slot.spoke = slot.paused = slot.outside = slot.stuck = slot.ends = slot.through = False
        slot.failing = slot.looked = slot.shown = False

    @staticmethod
    def _signal(slot: WorkerSlot, signum: int) -> SignalWorker:
        return SignalWorker(slot.worker.local_rank, slot.launch, signum)
