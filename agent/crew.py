"""The crew: the local workers of one agent, what they were told, and how they are stopped.

Each local rank is a slot. A slot's worker is:

    ABSENT ──start──▶ RUNNING ──exit 0──▶ DONE
       ▲                │  └─exit ≠ 0─▶ FAILED
       │              stop
       │                ▼
       └── STOPPED ◀──exit── STOPPING

and becomes ABSENT again by `renew` or `replace` (as a new incarnation, which the rendezvous sees as a newcomer) or by
`rewind` (as the same one: hard restarts change nothing in the world that they follow, so workers that are stopped for
one keep their place). Every process that is started has its own launch number, whatever its incarnation.

Stopping escalates by deadlines that live here: the signal, then SIGKILL after the grace time, then, for a process that
not even SIGKILL ends (uninterruptible in the kernel), it is given up after `ABANDON_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from softrun.agent import ranks
from softrun.agent.effects import Effect, Failure, Note, SignalWorker, Spawn, Tell
from softrun.agent.model import Address, Round, Worker
from softrun.runtime.events import WorkerInfo, WorkerState, WorldChangeEvent

SIGKILL = 9  # the number itself: the pure modules import no signal module
ABANDON_S = 30.0


class State(Enum):
    ABSENT = "ABSENT"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"


LIVING = (State.RUNNING, State.STOPPING)


@dataclass
class Slot:
    worker: Worker
    launch: int = 0
    state: State = State.ABSENT
    paused: bool = False
    tells: int = 0  # events that this process was told, and how many of them it has obeyed
    applied: int = 0
    spoke: bool = False  # this process has asked for its world
    info: WorkerInfo | None = None  # its place in the world that it was told last
    kill_at: float | None = None
    abandon_at: float | None = None


class Crew:
    def __init__(self, size: int, grace_s: float, named_store: Address | None = None) -> None:
        self._grace_s = grace_s
        self._named_store = named_store
        self._slots = [Slot(Worker(local_rank, 1)) for local_rank in range(size)]
        self._rewinding = False  # those who are stopped will be back in their places
        self.told: Round | None = None
        """The last world that the workers were told of."""

    # --- what it is like now

    def workers(self) -> tuple[Worker, ...]:
        """Those that should be in a world, or have been and are done; not those that failed or were stopped."""
        if self._rewinding:
            return tuple(s.worker for s in self._slots)
        return tuple(s.worker for s in self._slots if s.state in (State.ABSENT, State.RUNNING, State.DONE))

    def done(self) -> tuple[int, ...]:
        return tuple(s.worker.local_rank for s in self._slots if s.state is State.DONE)

    def living(self) -> bool:
        return any(s.state in LIVING for s in self._slots)

    def finished(self) -> bool:
        """Somebody has exited 0, and whoever has not is recorded as failed."""
        states = {s.state for s in self._slots}
        return State.DONE in states and states <= {State.DONE, State.FAILED}

    def ranks(self) -> tuple[tuple[int, int], ...]:
        return tuple((s.worker.local_rank, s.info.rank) for s in self._slots if s.info is not None)

    def deadline(self) -> float | None:
        waiting = [at for s in self._slots for at in (s.kill_at, s.abandon_at) if at is not None]
        return min(waiting, default=None)

    # --- telling

    def enter(self, world: Round, life: tuple[str, int], restarts_left: int) -> list[Effect]:
        """Tell the running workers of their place in `world`, pausing them first, and start those that are absent."""
        effects: list[Effect] = []
        change = ranks.change(self.told, world) if self.told is not None else None
        effects += self.pause(change)
        places = ranks.places(world, life, self._named_store)
        fresh: list[Tell] = []
        for slot in self._slots:
            info = places.get(slot.worker)
            if info is None:
                continue
            if slot.state is State.RUNNING:
                effects.append(self._tell(slot, WorkerState.HEALTHY, change, info, world.number))
            elif slot.state is State.ABSENT:
                slot.state = State.RUNNING
                slot.launch += 1
                slot.tells, slot.applied, slot.spoke = 0, 0, False
                fresh.append(self._tell(slot, WorkerState.HEALTHY, None, info, world.number))
            else:
                # It ended while the world was being made; the next world will be without it.
                continue
            slot.info = info
            slot.paused = False
        if fresh:
            effects.append(Spawn(tuple(fresh), restarts_left))
        self.told = world
        return effects

    def pause(self, change: WorldChangeEvent | None) -> list[Effect]:
        """Tell PAUSED to every running worker that works."""
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is not State.RUNNING or slot.paused:
                continue
            if slot.info is None or self.told is None:
                raise AssertionError("a worker runs that was never told of a world")
            slot.paused = True
            effects.append(self._tell(slot, WorkerState.PAUSED, change, slot.info, self.told.number))
        return effects

    @staticmethod
    def _tell(slot: Slot, state: WorkerState, change: WorldChangeEvent | None, info: WorkerInfo, number: int) -> Tell:
        slot.tells += 1
        return Tell(slot.worker.local_rank, slot.launch, state, change, info, number)

    def obeyed(self, local_rank: int, launch: int, applied: int) -> None:
        """A worker has said how far it is."""
        slot = self._slots[local_rank]
        if slot.launch == launch:
            slot.applied, slot.spoke = max(slot.applied, applied), True

    def silent(self) -> tuple[int, ...]:
        """The local ranks of those that run and have not asked for their world yet: will they ever hear of another?"""
        return tuple(s.worker.local_rank for s in self._slots if s.state is State.RUNNING and not s.spoke)

    def has_left(self) -> bool:
        """Have all those that were paused left their world?"""
        return not any(s.state is State.RUNNING and s.paused and s.applied < s.tells for s in self._slots)

    # --- ending

    def stop(self, signum: int, now: float, rewinding: bool = False) -> list[Effect]:
        """Ask every running worker to end; SIGKILL follows after the grace time, or at once for signal 9.

        `rewinding`: they will be started again in their places (`rewind`).
        """
        self._rewinding = rewinding
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is State.RUNNING or (slot.state is State.STOPPING and signum == SIGKILL):
                slot.state = State.STOPPING
                effects.append(self._signal(slot, signum))
                killed = signum == SIGKILL
                slot.kill_at = None if killed else now + self._grace_s
                slot.abandon_at = now + ABANDON_S if killed else None
        return effects

    def hurry(self, now: float) -> list[Effect]:
        """SIGKILL to those who were asked to end and have not."""
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.state is State.STOPPING and slot.kill_at is not None:
                slot.kill_at, slot.abandon_at = None, now + ABANDON_S
                effects.append(self._signal(slot, SIGKILL))
        return effects

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for slot in self._slots:
            if slot.kill_at is not None and now >= slot.kill_at:
                slot.kill_at, slot.abandon_at = None, now + ABANDON_S
                effects.append(self._signal(slot, SIGKILL))
            elif slot.abandon_at is not None and now >= slot.abandon_at:
                slot.abandon_at = None
                slot.state = State.STOPPED
                effects.append(
                    Note(
                        f"worker {slot.worker.local_rank} did not end within {ABANDON_S:.0f} s of SIGKILL and is given "
                        "up: it is stuck in the kernel, look at this host's devices",
                        warning=True,
                    )
                )
        return effects

    def exited(self, local_rank: int, launch: int, exitcode: int) -> Failure | None:
        """A worker has ended. Returns its failure, if nobody had asked it to end."""
        slot = self._slots[local_rank]
        if slot.launch != launch or slot.state not in LIVING:
            return None  # an earlier life, given up long ago
        slot.kill_at = slot.abandon_at = None
        if slot.state is State.STOPPING:
            slot.state = State.STOPPED
            return None
        if exitcode == 0:
            slot.state = State.DONE
            return None
        slot.state = State.FAILED
        if slot.info is None:
            raise AssertionError("a worker failed that was never told of a world")
        return Failure(slot.info.rank, local_rank, launch, exitcode)

    # --- beginning anew

    def renew(self) -> None:
        """After everybody was stopped: every slot gets a new incarnation, whatever it had come to."""
        if self.living():
            raise AssertionError("renewed a crew that lives")
        for slot in self._slots:
            self._renew(slot)
        self.told, self._rewinding = None, False

    def rewind(self) -> None:
        """After everybody was stopped: every slot can be started again in the place that its node already has.

        Those that are done stay so: "finished work is never run again".
        """
        if self.living():
            raise AssertionError("rewound a crew that lives")
        for slot in self._slots:
            if slot.state is not State.DONE:
                slot.state, slot.paused, slot.info = State.ABSENT, False, None
        self.told, self._rewinding = None, False

    def replace(self, local_rank: int) -> None:
        """After one worker failed: its slot alone gets a new incarnation."""
        self._renew(self._slots[local_rank])

    def restarts_of(self, local_rank: int) -> int:
        return self._slots[local_rank].worker.incarnation - 1

    @staticmethod
    def _renew(slot: Slot) -> None:
        slot.worker = Worker(slot.worker.local_rank, slot.worker.incarnation + 1)
        slot.state, slot.paused, slot.info = State.ABSENT, False, None

    @staticmethod
    def _signal(slot: Slot, signum: int) -> SignalWorker:
        return SignalWorker(slot.worker.local_rank, slot.launch, signum)
