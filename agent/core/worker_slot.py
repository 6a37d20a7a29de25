"""A worker slot: one local rank, the worker in it, what its process was told and said, and how it is stopped.

    ABSENT ──start──▶ RUNNING ──exit 0──▶ DONE ◀──exit 0── RETURNED
       ▲                │  └─exit ≠ 0─▶ FAILED ◀─exit ≠ 0───┘
       │              stop
       │                ▼
       └── STOPPED ◀──exit── STOPPING

RETURNED is for functions: the process of one that has returned lives until all of its node have, since it may serve
them something, and so that none meets another that is ending.

It becomes ABSENT again by `renewed` (the worker is a new incarnation, which the rendezvous sees as a newcomer) or by
`cleared` (it is the same one, and keeps its place). Each is a new slot, so nothing that held for the last process holds
for the next one, except the count of launches: every process that is started has its own number.

Stopping escalates by deadlines that live here: the signal, then SIGKILL after the grace time, then, for a process that
not even SIGKILL ends (uninterruptible in the kernel), it is given up after `ABANDON_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from softrun.agent.core.progress_watchdog import LEAVE, ProgressWatchdog
from softrun.agent.protocol.effects import (
    UNKNOWN,
    Effect,
    Ending,
    Failure,
    LookAtProgress,
    Release,
    ShowStacks,
    SignalWorker,
    Tell,
)
from softrun.agent.protocol.model import Worker
from softrun.runtime.events import (
    RESUME,
    Preemption,
    ProgressLimits,
    WorkerInfo,
    WorkerState,
    WorkerStatus,
    WorldChangeEvent,
)

SIGABRT, SIGKILL, SIGSEGV, SIGTERM = 6, 9, 11, 15  # the numbers themselves: the pure modules import no signal module
ABANDON_S = 30.0
SHOW_S = 0.1  # for a worker to write its stacks


class State(Enum):
    """The state of the process in a slot. The module's docstring draws the transitions."""

    ABSENT = "ABSENT"
    RUNNING = "RUNNING"
    RETURNED = "RETURNED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"


LIVING = (State.RUNNING, State.RETURNED, State.STOPPING)


@dataclass
class WorkerSlot:
    """One local rank. Times are the engine's, in seconds; methods return effects, or the event to write."""

    worker: Worker
    launch: int = 0
    state: State = State.ABSENT
    paused: bool = False
    # About the process that runs, or ran last:
    tells: int = 0  # how many events it was told
    applied: int = 0  # how many of those it has obeyed
    number: int = 0  # of the world that it was told of last
    leave: int = 0  # the number of the last event that told it to leave its world
    in_step_until: float | None = None  # until then it may complete steps before it leaves
    named: int = 0  # the number of the last event that named a world
    ends: bool = False  # its work is done, or its interpreter is ending by itself
    final: bool = False  # its failure is to be recorded, whatever the policy: no restart would mend it
    released: bool = False  # its function has returned, and its process may end
    through: bool = False  # it has said that its work is done
    called: int = 0  # the world in which its peers wait for it, whatever its exit code
    worked: int = 0  # the last world in which it has shown that it works
    stop_after: int | None = None  # the step in that world at which it waits until it is told to go on
    spoke: bool = False  # it has asked for its world
    spoke_at: float = 0.0
    soft: float | None = None  # the soft limit that it named last
    gives_up: bool = False  # it has said how long it waits for those that have not come
    launched_at: float = 0.0
    launch_port: int = 0  # of the worker store that its environment names
    since: int = 0  # the first world since when it has been in every world; 0 while the others are in one without it
    entered: bool = False  # it has been told of a world
    gone: bool = False  # it takes no part in any world any more, whatever its process does until its end
    unmet: bool = False  # that is because its peers did not come
    outside: bool = False  # it has yet to ask for its first world, and the others do not wait for it
    stuck: bool = False  # it does not leave its world, and the others go on without it
    failing: bool = False  # it is being ended, which counts as its failure
    watch: ProgressWatchdog | None = None
    looked: bool = False  # its progress was asked for
    info: WorkerInfo | None = None  # its place in the world that it was told last
    shown: bool = False  # it was asked for its stacks
    heeds: bool = False  # told to leave for good, it stops after an agreed step, and saves
    left: bool = False  # it has left its world for good, as it was told to
    saved: bool = False  # and its interpreter ends, with nothing gone wrong
    preemption: Preemption | None = None  # what it was told of that
    term_at: float | None = None
    kill_at: float | None = None
    abandon_at: float | None = None

    def cleared(self) -> WorkerSlot:
        """The same worker, to be started again."""
        return WorkerSlot(self.worker, self.launch)

    def renewed(self, *, outside: bool = False) -> WorkerSlot:
        """Another worker, to be started in its place."""
        return WorkerSlot(Worker(self.local_rank, self.worker.incarnation + 1), self.launch, outside=outside)

    # --- what it is like now

    @property
    def local_rank(self) -> int:
        """Its number on this node."""
        return self.worker.local_rank

    @property
    def runs(self) -> bool:
        """Its process lives, and nobody has asked it to end."""
        return self.state is State.RUNNING

    @property
    def lives(self) -> bool:
        """Its process lives."""
        return self.state in LIVING

    @property
    def may_train(self) -> bool:
        """Its process lives, and its work is not known to be done."""
        return self.lives and not self.is_done

    @property
    def is_done(self) -> bool:
        """Its work is done, whether or not its process has ended."""
        return self.state in (State.DONE, State.RETURNED)

    @property
    def works(self) -> bool:
        """It was told to work, and may be working by now."""
        return self.runs and not self.paused and not self.gone

    @property
    def has_left(self) -> bool:
        """It has obeyed the last event that told it to leave its world."""
        return self.gone or self.applied >= self.leave

    @property
    def is_leaving(self) -> bool:
        """It was told to leave its world at once, and has not yet."""
        return self.runs and self.entered and not self.has_left and self.in_step_until is None

    @property
    def waits(self) -> bool:
        """It has left its world, and was told of no other."""
        return self.runs and self.paused and self.has_left

    @property
    def may_work(self) -> bool:
        """It has a place in the next world."""
        # A worker that is being ended for a failure keeps its place until it has failed, unless it is stuck.
        able = self.failing if self.state is State.STOPPING else self.state not in (State.STOPPED, State.FAILED)
        return able and not self.outside and not self.stuck and not self.gone

    @property
    def is_silent(self) -> bool:
        """It runs and has not asked for a world yet: it may never hear of another."""
        return self.runs and not self.spoke

    def uses_another(self, port: int) -> bool:
        """Whether a worker store at this port is another than that of its world; it may be in no world."""
        return self.outside or self.info is None or self.info.master_port != port

    # --- telling

    def begin(self, preemption: Preemption | None) -> None:
        """What it is told next names a world, in which all may be leaving for good."""
        self.preemption = preemption

    def start(self, info: WorkerInfo, now: float) -> None:
        """Its process is started with this place in its environment; what it is told comes next."""
        self.state, self.info = State.RUNNING, info
        self.launch += 1
        self.launch_port, self.launched_at = info.master_port, now

    def start_outside(self, info: WorkerInfo, now: float) -> None:
        """As `start`, while a world goes on without it; `info` is the place that it would have in a world with it."""
        self.start(info, now)
        self.outside = self.paused = True

    def enter(self, number: int, info: WorkerInfo) -> None:
        """It has just been told its place in this world."""
        self.info, self.named = info, self.tells
        self.since, self.entered = self.since or number, True
        self.paused = self.outside = False
        if self.watch is not None:
            self.watch.begin()

    def pause(
        self,
        change: WorldChangeEvent | None,
        number: int,
        now: float,
        leave_after: int,
        until: float,
        ending: Ending = UNKNOWN,
        preemption: Preemption | None = None,
    ) -> Tell:
        """Tell it to leave after step `leave_after`, which it may take until `until`; 0: at once."""
        self.paused, self.stop_after = True, None
        self.in_step_until = until if leave_after else None
        tell = self.tell(
            WorkerState.PAUSED, change, number, ending=ending, leave_after=leave_after, preemption=preemption
        )
        self.leave = self.tells
        if self.watch is not None and not leave_after:
            self.watch.leave(now, broken=change is not WorldChangeEvent.SCALE_UP)
        return tell

    def preempt(self, preemption: Preemption, number: int) -> Tell:
        """Tell it to leave for good, in the world that it is in."""
        self.preemption, self.stop_after = preemption, None
        return self.tell(WorkerState.HEALTHY, None, number)

    def call_out_of_step(self, number: int, now: float) -> Tell | None:
        """It has not reached the agreed step in time: call it into the next world at once."""
        self.in_step_until = None
        if self.paused or self.has_left or self.info is None:
            return None
        tell = self.tell(WorkerState.HEALTHY, None, number)
        self.leave = self.tells
        if self.watch is not None:
            self.watch.leave(now)
        return tell

    def tell(
        self,
        state: WorkerState,
        change: WorldChangeEvent | None,
        number: int,
        info: WorkerInfo | None = None,
        *,
        ending: Ending = UNKNOWN,
        stop_after: int | None = None,
        leave_after: int = 0,
        preemption: Preemption | None = None,
        signum: int = 0,
    ) -> Tell:
        """Return the next event. `info` is its place in the world of that number, by default the last that it knows."""
        info = info or self.info
        if info is None:
            raise AssertionError("a worker is told something that was never told of a world")
        self.tells += 1
        self.number = number
        return Tell(
            self.local_rank,
            self.launch,
            state,
            change,
            info,
            number,
            ending.fault,
            ending.lost,
            stop_after,
            leave_after or None,
            preemption or (self.preemption if state is WorkerState.HEALTHY else None),
            signum,
        )

    # --- what it says, and whether it makes progress

    def said(self, status: WorkerStatus, defaults: ProgressLimits, now: float) -> bool:
        """Take in its status. `defaults`: its limits, if it names none. False if nobody needs to know any more."""
        if self.lives:
            self.through = status.through  # it may still say so after it was asked to end
        if not self.runs:
            return False
        if not self.spoke:
            self.spoke, self.spoke_at = True, now
        self.applied = max(self.applied, status.applied)
        if self.ends and not status.ends:
            self.looked = False  # a look while it showed nothing was not answered
        self.ends, self.final, self.gone, self.unmet = status.ends, status.final, status.gone, status.unmet
        if status.ends and self.watch is not None:
            self.watch.apply(ProgressLimits(hard=LEAVE.hard), now)
        self.heeds, self.left, self.saved = status.heeds, status.left, status.left and status.saved
        self.called, self.worked = status.called, max(self.worked, status.worked, status.counts)
        self.outside = self.outside and not status.ready
        if self.has_left:
            self.in_step_until = None
        if status.limits is not None:
            limits = defaults.model_copy(update=status.limits.model_dump(exclude_none=True))
            self.soft, self.gives_up = limits.soft, limits.barrier is not None
            if not status.ends:
                self._watch_by(limits, now)
        self.stuck = self.stuck and not self.has_left
        return True

    def _watch_by(self, limits: ProgressLimits, now: float) -> None:
        if self.watch is None:
            self.watch = ProgressWatchdog(limits, now)
        self.watch.apply(limits, now)
        if self.has_left:
            self.watch.left()

    @property
    def watched(self) -> ProgressWatchdog | None:
        """The watch over its progress, if it runs and is watched."""
        return self.watch if self.runs else None

    def look(self) -> list[Effect]:
        """Look at its progress, unless the answer is on its way."""
        if self.looked or self.watch is None:
            return []
        self.looked = True
        return [LookAtProgress(self.local_rank, self.launch)]

    def hangs(self, at: float, now: float) -> bool:
        """It last made progress at `at`. Return whether another limit has passed since."""
        if self.watched is None:
            return False
        self.looked = False
        return self.watched.progressed(at, now)

    def give_up_on(self, now: float, *, stopped: bool) -> bool:
        """Return whether it is stuck: told to leave its world, and without progress or `stopped` by a signal."""
        stalls = self.watch is not None and self.watch.stalls(now)
        self.stuck = self.is_leaving and (stopped or stalls)
        return self.stuck

    def show(self) -> list[Effect]:
        """Have it write its stacks to its log, once."""
        if self.shown:
            return []
        self.shown = True
        return [ShowStacks(self.local_rank, self.launch)]

    # --- ending

    def fail(self, now: float, *, hangs: bool) -> list[Effect]:
        """End it, which counts as its failure: its stacks if it hangs, SIGTERM, and SIGKILL after its grace time."""
        effects = self.show() if hangs else []
        self.state, self.failing = State.STOPPING, True
        self.term_at = now + (SHOW_S if effects else 0.0)
        return effects

    def stop(self, signum: int, now: float, grace_s: float, *, stands: bool) -> list[Effect]:
        """Ask it to end, unless it is ending by itself: its exit code then tells whether its work was done.

        `stands`: the ranks of its world can still do something together, such as save.
        """
        if not self.lives or (self.state is State.STOPPING and signum != SIGKILL):
            return []
        killed = signum == SIGKILL
        effects: list[Effect] = [self.signal(signum)] if killed else []
        if not killed and self.state is State.RETURNED:
            effects += self.release()
        elif not killed and not self.ends:
            effects += self._ask_to_end(signum, stands=stands)
        self.state = State.STOPPING
        self.term_at = None
        self.kill_at = None if killed else now + grace_s
        self.abandon_at = now + ABANDON_S if killed else None
        return effects

    def dismiss(self, now: float, grace_s: float) -> list[Effect]:
        """End it: the work is done, and it took no part."""
        self.state, self.kill_at = State.STOPPING, now + grace_s
        return self._ask_to_end(SIGTERM)

    def _ask_to_end(self, signum: int, *, stands: bool = False) -> list[Effect]:
        """Tell it that it gets this signal: one whose handler only sets a flag would wait for its next world."""
        state = WorkerState.HEALTHY if stands and self.works else WorkerState.PAUSED
        return [self.tell(state, None, self.number, signum=signum), self.signal(signum)]

    def hurry(self, now: float) -> list[Effect]:
        """SIGKILL, if it was asked to end and has not."""
        if self.state is not State.STOPPING or self.abandon_at is not None:
            return []
        self.term_at, self.kill_at, self.abandon_at = None, None, now + ABANDON_S
        return [self.signal(SIGKILL)]

    def escalate(self, now: float, grace_s: float) -> list[Effect]:
        """Send the signal that is due, if one is."""
        if self.term_at is not None and now >= self.term_at:
            own_s = self.watch.limits.grace if self.watch is not None else None
            self.term_at, self.kill_at = None, now + (grace_s if own_s is None else own_s)
            return self._ask_to_end(SIGTERM)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at, self.abandon_at = None, now + ABANDON_S
            return [self.signal(SIGKILL)]
        return []

    def is_given_up(self, now: float) -> bool:
        """Whether it was killed so long ago that it must be stuck in the kernel."""
        return self.abandon_at is not None and now >= self.abandon_at

    def deadlines(self) -> list[float]:
        """When something is due, whatever happens."""
        due = [self.term_at, self.kill_at, self.abandon_at]
        if self.runs:
            due.append(self.in_step_until)
            due.append(self.watch.deadline() if self.watch is not None and not self.looked else None)
        return [at for at in due if at is not None]

    def returned(self) -> list[Effect]:
        """Its function has returned; its process is kept, unless it was asked to end."""
        if self.state is State.RUNNING:
            self.state, self.ends = State.RETURNED, True
            return []
        return self.release()

    def release(self) -> list[Effect]:
        """Let its process end, once."""
        if self.released:
            return []
        self.released = True
        return [Release(self.local_rank, self.launch)]

    def exited(self, exitcode: int) -> Failure | None:
        """Take in the end of its process. Returns its failure, if nobody had asked it to end."""
        # torch's threads may abort a process that ends with a group.
        well = exitcode == 0 or (exitcode == RESUME and self.left) or (self.saved and exitcode in (-SIGABRT, -SIGSEGV))
        is_due = self.term_at is not None  # it is to be ended, and no signal was sent yet
        by_itself = self.gone and self.abandon_at is None  # one that has left its call is not asked
        self.term_at = self.kill_at = self.abandon_at = None
        if self.state is State.STOPPING and not self.failing and (well or not by_itself):
            self.state = State.DONE if self.ends and well else State.STOPPED
            return None
        if well and (is_due or not self.failing):
            self.state = State.DONE
            return None
        self.state = State.FAILED
        if self.info is None:
            raise AssertionError("a worker failed that was never told of a world")
        return Failure(self.info.rank, self.local_rank, self.launch, exitcode or -SIGTERM)

    def signal(self, signum: int) -> SignalWorker:
        """A signal to its process and that one's children."""
        return SignalWorker(self.local_rank, self.launch, signum)
