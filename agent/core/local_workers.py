"""The local workers of one agent: which of them can be in a world, what they are told, and how they are stopped.

Each is in a slot (`softrun.agent.core.worker_slot`). Not every worker that runs can be in a world:

- A worker that was started while a world was under way is *outside* until it has asked for a world, so the others never
  wait for its imports. So is a worker that has kept them waiting for too long.
- A worker that makes no progress, and does not leave its world when it is told to, is *stuck*: the others go on without
  it until it has left or is ended.
- A worker that exits 0 is done. Its work is done as well (`through`) if it has worked and nobody waits for it in a
  call. Otherwise it has only left, and the others may have to be told of the gap.

Workers that are stopped become absent again by `renew` or `replace` (as new incarnations, which the rendezvous sees as
newcomers) or by `rewind` (as the same ones: hard restarts change nothing in the world that they follow, so workers that
are stopped for one keep their places).
"""

from __future__ import annotations

from softrun.agent.core.worker_slot import ABANDON_S, SIGKILL, State, WorkerSlot
from softrun.agent.protocol.effects import UNKNOWN, Effect, Ending, Failure, Note, Spawn, Tell
from softrun.agent.protocol.model import Address, Round, Worker
from softrun.agent.rendezvous import ranks
from softrun.runtime.events import Preemption, ProgressLimits, WorkerState, WorkerStatus, WorldChangeEvent

JOIN_S = 60.0  # how long the workers may take to reach the agreed step when nodes are added
LEAVE_S = 10.0  # and when a node leaves; at most a third of the grace time
COMES_S = 600.0  # how long the others wait at least for a worker's first call; it may load a model before


class LocalWorkers:
    """The workers of one agent, by local rank. Methods return effects, in order; times are the engine's, in seconds."""

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
        self._rewinding = False  # the workers that were stopped will return to their places
        self.told: Round | None = None
        """The last world that the workers were told of."""
        self.number = 0
        """The highest number of a world that any of them was told, inside or outside of it."""
        self.incomplete = False
        """A worker has ended before it entered this world: the others wait for it in vain."""
        self.unbuilt = False
        """A worker has exited 0 before it had shown any work there: others may wait for it to build their groups."""
        self.never_came = 0
        """The last world for which a worker had never asked when it exited 0."""
        self.missed = 0
        """The last world that a worker never entered because its work was done."""
        self.asks = False
        """One of them, or of those before them, has asked for a world: their script does."""
        self.never_asks = False
        """They take their world from their environment alone: nothing that they are told reaches them."""
        self.ends_at: float | None = None
        """When those that leave for good must have ended; None: nobody has said so."""
        self.waits_for_silent = True
        """Before their first world, the workers that are ready wait for the others."""
        self._given_up: list[Failure | None] = []

    # --- their state now

    def eligible(self) -> tuple[Worker, ...]:
        """The workers that should be in a world, or were in one and are done; not those that failed or were stopped."""
        return tuple(slot.worker for slot in self._slots if self._rewinding or slot.may_work)

    def absent(self) -> bool:
        """Whether one of them has yet to be started."""
        return any(slot.state is State.ABSENT for slot in self._slots)

    def all_workers(self) -> tuple[Worker, ...]:
        """All of them, whatever their state."""
        return tuple(slot.worker for slot in self._slots)

    def was_in_world(self) -> bool:
        """Whether a running worker has been in a world."""
        return any(slot.runs and slot.entered for slot in self._slots)

    def since(self) -> int:
        """The first world since when a living worker has been in every world; 0 if no living worker has."""
        return min((slot.since for slot in self._slots if slot.may_train and slot.since), default=0)

    def at_work(self) -> list[tuple[int, int]]:
        """The local ranks and launches of the workers that were told to work."""
        return [(slot.local_rank, slot.launch) for slot in self._slots if slot.works]

    def has_entered(self) -> bool:
        """Whether workers were told to work and all of them have entered their world. Those that never ask count."""
        at_work = [slot for slot in self._slots if slot.works]
        return bool(at_work) and all(slot.applied >= slot.named for slot in at_work if not self.never_asks)

    def has_left(self) -> bool:
        """Whether all paused workers have left their world."""
        return all(slot.has_left for slot in self._slots if slot.runs and slot.paused)

    def are_out(self) -> bool:
        """Whether none is left in a world that it was told to leave: it has left it, or ended if it was told to end."""
        return not any(slot.may_train and not (slot.runs and slot.has_left) for slot in self._slots)

    def heeds(self) -> bool:
        """Whether workers are or were in a world and, told to leave for good, will stop after a step and save."""
        there = [slot for slot in self._slots if slot.runs and not (slot.outside or slot.gone)]
        return bool(there) and all(slot.heeds and slot.entered for slot in there)

    def have_left(self) -> bool:
        """Whether one of them has left its world for good, as it was told to."""
        return any(slot.left for slot in self._slots)

    def outside(self) -> tuple[int, ...]:
        """The local ranks of the running workers that have yet to ask for their first world."""
        return tuple(slot.local_rank for slot in self._slots if slot.runs and slot.outside)

    def through(self) -> int:
        """The last world in which the workers have shown work, if one has ended because its work was done; otherwise 0.

        A worker that never worked, or was in a call, has only left.
        """
        done = (s for s in self._slots if s.is_done or (s.state is State.STOPPED and s.through))
        return max(s.worked for s in self._slots) if any(s.worked and not s.called for s in done) else 0

    def has_stuck(self) -> bool:
        """Whether a running worker is stuck."""
        return any(slot.runs and slot.stuck for slot in self._slots)

    def has_worked(self) -> bool:
        """Whether a worker has shown work in the world that they were told of last."""
        return self.told is not None and any(slot.worked == self.told.number for slot in self._slots)

    def done(self) -> tuple[int, ...]:
        """The local ranks of the workers that have exited 0, or whose function has returned."""
        return tuple(slot.local_rank for slot in self._slots if slot.is_done)

    def living(self) -> bool:
        """Whether the process of one of them lives."""
        return any(slot.lives for slot in self._slots)

    def finished(self) -> bool:
        """A worker has exited 0, and each of the others has too, is recorded as failed, or was no longer needed.

        One that had left its call is no proof that the work is done, beside others that have failed.
        """
        states = {slot.state for slot in self._slots}
        done = [slot for slot in self._slots if slot.state is State.DONE]
        proven = State.FAILED not in states or not all(slot.gone for slot in done)
        return bool(done) and proven and states <= {State.DONE, State.FAILED, State.STOPPED}

    def ranks(self) -> tuple[tuple[int, int], ...]:
        """(local rank, global rank) of each worker, in the last world that it was told of."""
        return tuple((slot.local_rank, slot.info.rank) for slot in self._slots if slot.info is not None)

    def deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens first; None if it has not."""
        return min((at for slot in self._slots for at in slot.deadlines()), default=None)

    # --- telling

    def enter(self, world: Round, life: tuple[str, int], restarts_left: int, now: float) -> list[Effect]:
        """Tell the running workers their places in `world`, pausing them first, and start the absent ones."""
        effects: list[Effect] = []
        change = ranks.change(self.told, world) if self.told is not None else None
        self.incomplete = self.unbuilt = False
        # The agreed step is one of the last world: workers that had left that, or never were in it, need not wait.
        follows = self.told is not None and self.told.number == world.number - 1
        leave_after = world.leave_after if follows else 0
        in_step = [slot for slot in self._slots if not slot.paused]
        ending = Ending(world.fault, ranks.lost(self.told, world) if self.told is not None and follows else ())
        effects += self.pause(change, now, leave_after, ending)
        places = ranks.places(world, life, self._named_store)
        fresh: list[Tell] = []
        for slot in self._slots:
            info = places.get(slot.worker)
            slot.begin(self._left_of(world.preemption, now))
            if info is None:
                slot.since = 0
            elif slot.runs and not slot.gone:
                before = change if slot.entered else None
                steps = leave_after if slot in in_step else 0
                effects.append(
                    slot.tell(WorkerState.HEALTHY, before, world.number, info, ending=ending, leave_after=steps)
                )
                slot.enter(world.number, info)
            elif slot.state is State.ABSENT:
                slot.start(info, now)
                fresh.append(slot.tell(WorkerState.HEALTHY, None, world.number))
                slot.enter(world.number, info)
            else:
                self._miss(slot, world)  # it ended, or left, while the world was being made
        if fresh:
            effects.append(Spawn(tuple(fresh), restarts_left))
        self.told = world
        self.number = max(self.number, world.number)
        return effects

    def are_beyond(self, world: Round) -> bool:
        """Whether running ones were told of a world of another job, founded beside this one, with a number as high."""
        elsewhere = self.told is None or self.told.lineage != world.lineage
        return elsewhere and world.number <= self.number and any(slot.runs for slot in self._slots)

    def stay_behind(self) -> None:
        """The others have gone on without this node."""
        for slot in self._slots:
            slot.since = 0

    def warm_up(self, expected: Round, life: tuple[str, int], restarts_left: int, now: float) -> list[Effect]:
        """Start the absent workers, PAUSED and outside. `expected` is the world as it would be with them."""
        places = ranks.places(expected, life, self._named_store)
        fresh: list[Tell] = []
        for slot in self._slots:
            if slot.state is State.ABSENT:
                slot.start_outside(places[slot.worker], now)
                fresh.append(slot.tell(WorkerState.PAUSED, None, expected.number))
                self.number = max(self.number, expected.number)
        return [Spawn(tuple(fresh), restarts_left)] if fresh else []

    def hold(self, local_rank: int, step: int | None) -> list[Effect]:
        """Tell a worker to stop after this step until it is told to go on; None tells it to go on."""
        slot = self._slots[local_rank]
        if not slot.works or slot.stop_after == step:
            return []
        slot.stop_after = step
        return [slot.tell(WorkerState.HEALTHY, None, self._number(), stop_after=step)]

    def preempt(self, preemption: Preemption, now: float) -> list[Effect]:
        """Tell each worker that works after which step all ranks of its world leave for good."""
        at_work = [slot for slot in self._slots if slot.works and slot.preemption is None]
        left = self._left_of(preemption, now)
        return [slot.preempt(left, self._number()) for slot in at_work if left is not None]

    def _left_of(self, preemption: Preemption | None, now: float) -> Preemption | None:
        """What it says, with the time that is left."""
        if preemption is None or self.ends_at is None:
            return preemption
        return preemption.model_copy(update={"seconds": max(self.ends_at - now, 0.0)})

    def pause(
        self,
        change: WorldChangeEvent | None,
        now: float,
        leave_after: int = 0,
        ending: Ending = UNKNOWN,
        preemption: Preemption | None = None,
    ) -> list[Effect]:
        """Tell PAUSED to each worker that works. It leaves after step `leave_after`, or at once if that is 0.

        `preemption`: the node leaves for good, and nobody else does.
        """
        until = now + (JOIN_S if change is WorldChangeEvent.SCALE_UP else self.leave_s)
        at_work = [slot for slot in self._slots if slot.works]
        return [slot.pause(change, self._number(), now, leave_after, until, ending, preemption) for slot in at_work]

    @property
    def leave_s(self) -> float:
        """How long a node that was told to leave may still work, in seconds."""
        return min(LEAVE_S, self._grace_s / 3)

    def _number(self) -> int:
        if self.told is None:
            raise AssertionError("a worker works that was never told of a world")
        return self.told.number

    # --- what they say, and whether they make progress

    def said(self, local_rank: int, launch: int, status: WorkerStatus, now: float) -> bool:
        """Take in a worker's status. False if it comes from an earlier process, or nobody needs it any more."""
        slot = self._slots[local_rank]
        self.asks = self.asks or slot.launch == launch
        news = slot.launch == launch and slot.said(status, self._limits, now)
        self.incomplete |= news and slot.gone and slot.since > 0
        return news

    def look(self, local_rank: int) -> list[Effect]:
        """Look at a worker's progress, unless the answer is on its way."""
        return self._slots[local_rank].look()

    def look_at_all(self) -> list[Effect]:
        """Look at the progress of every worker that is watched."""
        return [effect for slot in self._slots for effect in slot.look()]

    def hangs(self, local_rank: int, launch: int, at: float, now: float) -> bool:
        """A worker last made progress at `at`. Return whether another limit has passed since."""
        slot = self._slots[local_rank]
        return slot.launch == launch and slot.hangs(at, now)

    def overdue(self, local_rank: int, now: float) -> bool:
        """Whether its hard limit has passed."""
        watch = self._slots[local_rank].watch
        return watch is not None and watch.overdue(now)

    def is_final(self, local_rank: int) -> bool:
        """Whether a worker has left for good, as a failure that no restart would mend."""
        return self._slots[local_rank].final

    def is_unmet(self, local_rank: int) -> bool:
        """Whether a worker has left because its peers did not come in time."""
        return self._slots[local_rank].unmet

    def rank(self, local_rank: int) -> int:
        """The rank of a worker in the last world that it was told of."""
        info = self._slots[local_rank].info
        if info is None:
            raise AssertionError("asked for the rank of a worker that was never told of a world")
        return info.rank

    def describe(self, local_rank: int, now: float) -> str:
        """How long a worker has made no progress, in words for the log."""
        watch = self._slots[local_rank].watch
        return f"worker {local_rank} has made no progress for {0.0 if watch is None else now - watch.since:.1f} s"

    def show(self, local_rank: int) -> list[Effect]:
        """Have a worker that makes no progress write its stacks to its log, once."""
        return self._slots[local_rank].show()

    def leaving(self, local_rank: int) -> bool:
        """Whether it was told to leave its world at once, and has not yet."""
        return self._slots[local_rank].is_leaving

    def waits(self, local_rank: int) -> bool:
        """Whether it has left its world and was told of no other."""
        return self._slots[local_rank].waits

    def is_stuck(self, local_rank: int) -> bool:
        """Whether the others go on without it, because it does not leave its world."""
        return self._slots[local_rank].stuck

    def give_up_on(self, local_rank: int, now: float, *, stopped: bool = False) -> bool:
        """Return whether it is stuck: told to leave its world, and without progress or `stopped` by a signal."""
        return self._slots[local_rank].give_up_on(now, stopped=stopped)

    def end(self, local_rank: int, now: float, *, hangs: bool = True) -> list[Effect]:
        """End it, which counts as its failure: its stacks if it hangs, SIGTERM, and SIGKILL after its grace time."""
        return self._slots[local_rank].fail(now, hangs=hangs)

    # --- workers that have asked for no world

    def unasked(self) -> list[tuple[int, int]]:
        """The local ranks and launches of running workers that have asked for no world, and whose environment does not
        name the world that they are in."""
        silent = [slot for slot in self._slots if slot.is_silent and slot.uses_another(slot.launch_port)]
        return [(slot.local_rank, slot.launch) for slot in silent]

    def uses_store(self, local_rank: int, launch: int, port: int) -> bool:
        """A worker is connected to the worker store at `port`. Return whether it never asked for a world, and this is
        not the store of its own."""
        slot = self._slots[local_rank]
        return slot.launch == launch and slot.is_silent and slot.uses_another(port)

    def has_asked(self) -> bool:
        """Whether one of them has asked for a world."""
        return any(slot.spoke for slot in self._slots)

    def late_at(self, joins: bool) -> float | None:
        """When the workers have waited long enough for those that have yet to ask for their world; None: for ever.

        `joins`: they wait outside, as all workers of a node do before its first world. Only those wait not for ever
        that show progress themselves, and have not said when they give up.
        """
        late = [slot.launched_at for slot in self._slots if slot.is_silent and slot.outside is joins]
        asked = [slot for slot in self._slots if slot.spoke]  # ended workers count, too: they have waited as well
        softs = [slot.soft for slot in asked if slot.soft is not None]
        if not (softs and late) or any(slot.gives_up for slot in asked):
            return None
        return max(min(late), min(slot.spoke_at for slot in asked)) + max(min(softs), COMES_S)

    def leave_out_silent(self) -> None:
        """Count the workers that have not asked for a world as outside until they ask: others may wait for them."""
        self.waits_for_silent = False
        for slot in self._slots:
            slot.outside = slot.outside or slot.is_silent

    def silent(self) -> tuple[int, ...]:
        """The local ranks of running workers that have not asked for their world yet, and may never hear of another."""
        return tuple(slot.local_rank for slot in self._slots if slot.is_silent)

    # --- ending

    def stop(self, signum: int, now: float, *, rewinding: bool = False, stands: bool = False) -> list[Effect]:
        """Ask every running worker to end; SIGKILL follows after the grace time, or at once for signal 9.

        A worker that is ending by itself is not asked. `rewinding`: they will start again in their places (`rewind`).
        `stands`: the ranks of their world can still do something together, such as save.
        """
        self._rewinding = rewinding
        return [effect for slot in self._slots for effect in slot.stop(signum, now, self._grace_s, stands=stands)]

    def dismiss(self, now: float) -> list[Effect]:
        """Stop the workers that are outside: the work is done."""
        outside = [slot for slot in self._slots if slot.runs and slot.outside]
        return [effect for slot in outside for effect in slot.dismiss(now, self._grace_s)]

    def hurry(self, now: float) -> list[Effect]:
        """Send SIGKILL to the workers that were asked to end and have not."""
        return [effect for slot in self._slots for effect in slot.hurry(now)]

    def tick(self, now: float) -> list[Effect]:
        """Do what is due by now."""
        effects: list[Effect] = []
        for slot in self._slots:
            due = slot.watched.deadline() if slot.watched is not None else None
            if due is not None and now >= due:
                effects += slot.look()
        for slot in self._slots:
            effects += self._out_of_step(slot, now)
            effects += slot.escalate(now, self._grace_s)
            if slot.is_given_up(now):
                self._given_up.append(self.exited(slot.local_rank, slot.launch, -SIGKILL))
                effects.append(
                    Note(
                        f"worker {slot.local_rank} did not end within {ABANDON_S:.0f} s of SIGKILL and is given "
                        "up: it is stuck in the kernel, look at this host's devices",
                        warning=True,
                    )
                )
        return effects

    def _out_of_step(self, slot: WorkerSlot, now: float) -> list[Effect]:
        if not slot.runs or slot.in_step_until is None or now < slot.in_step_until:
            return []
        tell = slot.call_out_of_step(self._number(), now)
        return [tell] if tell is not None else []

    def given_up(self) -> list[Failure | None]:
        """The workers that were given up since the last call, each as if it had ended: its failure, or None."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def exited(self, local_rank: int, launch: int, exitcode: int) -> Failure | None:
        """Take in the end of a process. Returns its failure, if nobody had asked it to end."""
        slot = self._slots[local_rank]
        if slot.launch != launch or not slot.lives:
            return None  # an earlier process, which was given up long ago
        had_run = slot.runs
        failure = slot.exited(exitcode)
        if slot.state is State.DONE and had_run:
            self._gap(slot)
        return failure

    def _gap(self, slot: WorkerSlot) -> None:
        """A worker has exited 0 or returned: note it if the others in its world may wait for it."""
        if self.told is None or not slot.since or slot.left:  # the others are in a world without it, or leave as well
            return
        if slot.spoke and slot.applied < slot.named:
            self._miss(slot, self.told)
        if not slot.spoke:
            self.never_came = self.told.number
        # A script that never asks for a world cannot wait for a worker that has not asked.
        waited_for = not slot.spoke and self.has_asked()
        self.incomplete |= slot.called == self.told.number or waited_for
        self.unbuilt |= slot.spoke and slot.worked != self.told.number

    def _miss(self, slot: WorkerSlot, world: Round) -> None:
        self.incomplete = True
        if slot.is_done and slot.worked and not slot.called:
            self.missed = world.number

    def returned(self, local_rank: int, launch: int) -> list[Effect]:
        """A worker's function has returned."""
        slot = self._slots[local_rank]
        if slot.launch != launch or not slot.lives:
            return []
        effects = slot.returned()
        if slot.is_done:
            self._gap(slot)
        return effects

    def release(self) -> list[Effect]:
        """Let the workers end whose functions have returned, once nothing else of this node is at work."""
        at_rest = (State.RETURNED, State.DONE, State.FAILED, State.STOPPED)
        if not all(slot.state in at_rest for slot in self._slots):
            return []
        return [effect for slot in self._slots if slot.state is State.RETURNED for effect in slot.release()]

    # --- starting again

    def renew(self) -> None:
        """After all workers were stopped: give every slot a new incarnation, whatever its state."""
        if self.living():
            raise AssertionError("renewed workers that live")
        self._begin_again([slot.renewed() for slot in self._slots])

    def rewind(self, *, begins_again: bool = False) -> None:
        """After all workers were stopped: let every slot start again in the place that its node already has.

        Workers that are done stay done ("finished work is never run again"), unless all work `begins_again`.
        """
        if self.living():
            raise AssertionError("rewound workers that live")
        stays = () if begins_again else (State.DONE,)
        self._begin_again([slot if slot.state in stays else slot.cleared() for slot in self._slots])

    def _begin_again(self, slots: list[WorkerSlot]) -> None:
        self._slots = slots
        self.told, self.waits_for_silent = None, True
        self._rewinding = self.incomplete = self.unbuilt = False

    def replace(self, local_rank: int, *, outside: bool = False) -> None:
        """After one worker failed: give its slot a new incarnation. The others do not wait for one that is outside."""
        self._slots[local_rank] = self._slots[local_rank].renewed(outside=outside)

    def restarts_of(self, local_rank: int) -> int:
        """How often a worker was replaced."""
        return self._slots[local_rank].worker.incarnation - 1
