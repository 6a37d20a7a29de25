"""The simulated workers.

They run until they are told to exit, fail, or are signalled; some ignore SIGTERM. Where they are coupled, the death of
one is felt by the others of its world, who report a broken world or fail themselves. Where one hangs, all of its world
wait for it, those too who come to a world in which it has a place. Who waits gets out of that when it is told to leave;
some need a while.

They go on for as long as their agent allows: one that has come to a world enters it only then, and one whose time is
over leaves its world by itself, and says that it is broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from simulation.conditions import Range
from simulation.steps import Steps
from softrun.agent.core.stages import Stage
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.runtime.events import RESUME, WorkerFault, WorkerState, WorkerStatus

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node

SIGKILL = 9
NEVER_S = 1e9
SLOW_TO_GET_OUT_S = 1.5


@dataclass(eq=False)
class Process:
    """One worker process."""

    node: Node
    local_rank: int
    launch: int
    stubborn: bool
    alive: bool = True
    ended_itself: bool = False  # unasked, and not because it had left for good
    asked: bool = False  # a signal was sent to it
    leaving: bool = False  # its script is through and about to exit 0
    builds: bool = False  # the groups of the world that it has come to
    has_left: bool = False  # it exits 0 although its work is not done
    tells: list[do.Tell] = field(default_factory=list)
    applied: int = 0  # how many of them it has obeyed
    status: WorkerStatus = field(default_factory=WorkerStatus)
    hung_since: float | None = None  # it makes no progress, and obeys nothing
    stopped: bool = False  # because of a signal
    has_hung: bool = False
    shown: bool = False  # its agent has taken it for hung
    failing: bool = False  # its agent ends it, and that is its failure
    stuck_since: float | None = None  # it makes no progress until it is told to leave its world
    out_at: float | None = None  # when it will have got out of that
    ready_s: float = 0.0  # how long its imports take
    held: bool = False  # it has come to its world, and waits for time
    inside: int = 0  # the world that it has entered
    lapsed: int = 0  # the one that it has left unasked, when its time was over
    at: int = 0  # the world that it is in, if it counts steps
    step: int | None = None  # the last that it has completed there
    begun: int = 0  # the one that it is in, or has completed
    saves: int = 0  # the world in which it has left for good, and saves
    kept: bool = False  # its function has returned, and its process has nothing to do
    gone: bool = False  # it has left its call for good, and lives on for a while
    to_end: int = 0  # the signal that it was told to end by

    @property
    def name(self) -> str:
        return f"{self.node.name}/{self.local_rank}"

    @property
    def last(self) -> do.Tell:
        return self.tells[-1]

    @property
    def failed_itself(self) -> bool:
        return not self.asked or (self.failing and self.node.engine.stage in (Stage.WAITING, Stage.WORKING))

    @property
    def entered(self) -> bool:
        """It was told of a world, which who was started outside of one was not."""
        return self.first_round > 0

    @property
    def first_round(self) -> int:
        """Of the first world that it was told of."""
        return next((tell.round for tell in self.tells if tell.state is WorkerState.HEALTHY), 0)

    @property
    def never_ready(self) -> bool:
        """It was started outside, and its imports take for ever."""
        return self.ready_s >= NEVER_S

    @property
    def has_worked(self) -> bool:
        """It has shown that it works in the world that it was told of last."""
        return self.last.round in (self.status.worked, self.status.counts)

    @property
    def is_there(self) -> bool:
        """It has come to the world that it was told of last; it need not obey what is about steps there."""
        return self.applied == len(self.tells) or self.at == self.last.round

    @property
    def stalled(self) -> bool:
        return self.hung_since is not None or self.stuck_since is not None

    @property
    def waits(self) -> bool:
        """It has left its world and was told of no other, so nobody watches it."""
        return self.last.state is WorkerState.PAUSED and self.applied == len(self.tells)

    def works_in(self, number: int) -> bool:
        told = self.last.state is WorkerState.HEALTHY and self.last.round == number
        return self.alive and told and self.lapsed != number and not self.gone


class Workers:
    """All workers of all nodes; the methods are what agents do to them, and what can befall them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._steps = Steps(cluster)
        self._any_hung = False  # has one ever?
        self._whole: set[int] = set()  # worlds that all their workers have come to
        self._saving: dict[int, set[Process]] = defaultdict(set)  # who has left a world for good, and saves
        self._ending: set[int] = set()  # those whose work is done as soon as all have shown it

    def spawn(self, node: Node, tells: tuple[do.Tell, ...]) -> None:
        cluster, timing = self._cluster, self._cluster.timing
        for tell in tells:
            process = Process(node, tell.local_rank, tell.launch, cluster.chance(cluster.habits.ignore_sigterm))
            process.tells.append(tell)
            node.processes[tell.local_rank] = process
            outside = tell.state is WorkerState.PAUSED
            ready_s = cluster.draw(timing.worker_ready if outside else timing.worker_seen)
            if node.never_asks:
                continue
            process.ready_s = ready_s + (node.slow_to_ready_s if outside else 0.0)
            if not outside and cluster.chance(cluster.habits.dies_building):  # before it has asked for its world
                cluster.after(process.ready_s * cluster.rng.random(), self._die_building, process, tell.round)
            cluster.after(process.ready_s, self._obey, process, 1)

    def tell(self, node: Node, tell: do.Tell) -> None:
        process = node.processes[tell.local_rank]
        if process.launch != tell.launch:
            return
        if tell.signum:  # the signal itself follows at once
            process.to_end = tell.signum
            return
        cluster, habits = self._cluster, self._cluster.habits
        process.tells.append(tell)
        if node.never_asks:
            return
        self._steps.look(process)
        if self._steps.stays(process):
            self.save_if_told(process)
            return
        slow = (0.0, 4.0) if cluster.chance(habits.slow_to_leave) else (0.0, 0.0)
        delay = cluster.draw(cluster.timing.worker_seen) + cluster.draw(slow)
        if process.stuck_since is not None and process.out_at is None:
            slow = (0.0, SLOW_TO_GET_OUT_S) if cluster.chance(habits.slow_to_get_out) else (0.0, 0.0)
            out_s = cluster.draw(cluster.timing.worker_seen) + cluster.draw(slow)
            process.out_at = cluster.now + out_s
            cluster.after(out_s, self._freed, process)
        if process.out_at is not None:
            delay = max(delay, process.out_at - cluster.now)
        cluster.after(delay, self._obey, process, len(process.tells))

    def signal(self, process: Process, launch: int, signum: int) -> None:
        if process.launch != launch:
            return
        fault, hard = process.status.fault, process.node.config.job.restart_policy == "hard"
        due = process.shown or (hard and fault is not None and fault.round == process.last.round)
        process.failing |= due and not process.asked and process.node.engine.stage in (Stage.WAITING, Stage.WORKING)
        process.asked = True
        if not process.alive:
            self.release(process, launch, -signum)
            return
        if signum == SIGKILL:
            self._cluster.after(self._cluster.draw(self._cluster.timing.worker_ends), self.end, process, -SIGKILL)
        elif not process.stubborn:
            code = 0 if self._cluster.chance(self._cluster.habits.exit_zero_on_sigterm) else -signum
            self._cluster.after(self._cluster.draw(self._cluster.timing.worker_ends), self.end, process, code)

    def look_at(self, node: Node, local_rank: int, launch: int) -> None:
        process = node.processes[local_rank]
        if process.alive and process.launch == launch:
            stopped = process.hung_since if process.hung_since is not None else process.stuck_since
            at = self._cluster.now if stopped is None else stopped
            seen = saw.ProgressSeen(local_rank, launch, node.clock(at), process.stopped)
            self._cluster.after(0.0, self._cluster.deliver, node, seen)

    def _obey(self, process: Process, tells: int) -> None:
        if process.alive and process.hung_since is None and not self._steps.stays(process):
            if (process.at and process.at != process.last.round) or process.last.state is WorkerState.PAUSED:
                self._leave(process)
            process.applied = max(process.applied, tells)
            said = {"called": process.last.round} if self._cluster.habits.in_calls else {}
            said |= {"heeds": self._cluster.habits.heeds, "limits": self._cluster.habits.limits}
            if process.saves not in (0, process.last.round):
                process.saves = 0
            if not process.saves:
                said |= {"left": False, "ends": False}
            self.say(process, ready=True, applied=process.applied, **said)
            if tells == len(process.tells) and process.last.state is WorkerState.HEALTHY:
                self._enter(process)

    def _enter(self, process: Process) -> None:
        """It has come to a world, and enters it as soon as it may."""
        number = process.last.round
        process.held = process.node.holds(self._cluster.now)
        if process.held or process.lapsed == number:
            return
        process.inside = number
        self._steps.enter(process)
        if process.status.worked != number:
            self._build(process, number)
        if self._any_hung and any(peer.hung_since is not None for peer in self.world(number)):
            process.stuck_since = self._cluster.now

    def allow(self, node: Node) -> None:
        """Its workers were given time, or some was taken away."""
        if node.holds(self._cluster.now):
            return
        for process in node.running:
            if process.held and process.last.state is WorkerState.HEALTHY and process.applied == len(process.tells):
                self._cluster.after(self._cluster.draw(self._cluster.timing.worker_seen), self._given_time, process)
            self._steps.look(process)

    def _given_time(self, process: Process) -> None:
        obeyed = process.last.state is WorkerState.HEALTHY and process.applied == len(process.tells)
        if process.alive and process.held and obeyed and process.hung_since is None:
            self._enter(process)

    def lapse(self, node: Node) -> None:
        """The time of its workers is over: those that are in a world leave it."""
        for process in node.running:
            number = process.inside
            if not number or not self._stays(process) or process.hung_since is not None or process.leaving:
                continue
            process.lapsed, process.inside, process.at = number, 0, 0
            process.stuck_since, process.builds = None, False
            out_s = self._cluster.draw(self._cluster.timing.worker_seen)
            self._cluster.after(out_s, self._say_lapsed, process, number, len(process.tells))

    @staticmethod
    def _stays(process: Process) -> bool:
        told = process.last
        is_here = told.state is WorkerState.HEALTHY and told.round == process.inside
        return is_here or told.leave_after is not None

    def _say_lapsed(self, process: Process, number: int, tells: int) -> None:
        if not process.alive or process.hung_since is not None or tells != len(process.tells):
            return
        if process.last.round == number:
            process.applied = tells
            self.say(process, ready=True, applied=tells, broken_round=number)
        else:
            self._obey(process, tells)

    def _build(self, process: Process, number: int) -> None:
        """It has come to a world."""
        cluster, builds_s = self._cluster, self._cluster.draw(self._cluster.timing.worker_works)
        process.builds = True
        if cluster.chance(cluster.habits.dies_building):
            cluster.after(builds_s * cluster.rng.random(), self._die_building, process, number)
        else:
            cluster.after(builds_s, self._work, process, number)

    def _die_building(self, process: Process, number: int) -> None:
        if process.works_in(number):
            process.has_left = self._cluster.chance(self._cluster.habits.exits_building)
            self.end(process, 0 if process.has_left else 1)

    def _work(self, process: Process, number: int) -> None:
        """It has built its groups, unless others of its world are not there yet."""
        if not process.works_in(number) or process.hung_since is not None or process.status.worked == number:
            return
        process.builds = False
        world = self.world(number)
        is_there = len(world) >= process.last.info.world_size and all(self._has_built(peer) for peer in world)
        if number in self._whole or is_there:
            self._whole.add(number)
            self.say(process, worked=number)
            if self._cluster.blocks is not None:
                self._cluster.blocks.works(process, number)
            self.save_if_told(process)
        else:
            self._cluster.after(0.1, self._work, process, number)

    def save_if_told(self, process: Process) -> None:
        """All ranks leave for good after an agreed step, and save together."""
        told = process.last
        number, preemption = told.round, told.preemption
        if preemption is None or not process.works_in(number) or process.hung_since is not None or process.asked:
            return
        if process.saves == number or not process.has_worked or not self._cluster.habits.heeds:
            return
        if preemption.after and (process.at != number or process.step is None or process.step < preemption.after):
            return
        process.saves = number
        self._saving[number].add(process)
        for watcher in self._cluster.watchers:
            watcher.left_for_good(process, preemption)
        self.say(process, left=True, ends=True)
        self._cluster.after(self._cluster.draw(self._cluster.habits.save_s), self._save, process, number)

    def _save(self, process: Process, number: int) -> None:
        if process.saves != number or not process.works_in(number) or process.hung_since is not None:
            return
        if len(self._saving[number]) < process.last.info.world_size:
            self._cluster.after(0.05, self._save, process, number)
        elif not process.asked:
            process.leaving = True
            self.end(process, RESUME)

    @staticmethod
    def _has_built(process: Process) -> bool:
        return process.applied == len(process.tells) and not process.stalled and not process.builds

    def obey(self, process: Process) -> None:
        """What it was told last, as soon as it has seen it."""
        self._cluster.after(
            self._cluster.draw(self._cluster.timing.worker_seen), self._obey, process, len(process.tells)
        )

    def _leave(self, process: Process) -> None:
        if process.at and process.last.leave_after is not None:
            for watcher in self._cluster.watchers:
                watcher.left(process, process.last.leave_after)
        process.at = process.inside = 0

    def look_at_step(self, node: Node, local_rank: int, launch: int) -> None:
        process = node.processes[local_rank]
        step = process.step if process.launch == launch and process.at else None
        seen_s = self._cluster.draw(self._cluster.timing.worker_seen)
        counted = step is not None or process.begun > 1
        step_s = self._cluster.draw(self._cluster.habits.step_s) if counted else 0.0
        self._cluster.after(seen_s, self._cluster.deliver, node, saw.StepSeen(local_rank, launch, step, step_s))

    def look_for_store(self, node: Node, local_rank: int, launch: int) -> None:
        """One that never asks builds its groups as soon as it runs."""
        process = node.processes[local_rank]
        if process.launch == launch and process.alive and node.never_asks:
            used = saw.StoreUsed(local_rank, launch, process.tells[0].info.master_port)
            self._cluster.after(self._cluster.draw(self._cluster.timing.worker_seen), self._cluster.deliver, node, used)

    def _freed(self, process: Process) -> None:
        """It got out of what it waited in, and is on its way."""
        process.stuck_since = process.out_at = None

    def say(self, process: Process, **changes: Any) -> None:
        process.status = process.status.model_copy(update={**changes, "gone": process.gone})
        self._cluster.deliver(process.node, saw.WorkerSaid(process.local_rank, process.launch, process.status))

    def hang(self, process: Process, stopped: bool = False) -> None:
        """It makes no progress any more, and soon nor do the others of its world, who wait for it."""
        process.hung_since, process.has_hung, process.stopped = self._cluster.now, True, stopped
        self._any_hung = True
        for peer in self.world(process.last.round):
            if peer.hung_since is None and peer.stuck_since is None:
                peer.stuck_since = self._cluster.now

    def recover(self, process: Process) -> None:
        """One that hung goes on, and does what it was told meanwhile."""
        process.hung_since, process.stopped = None, False
        for peer in self.world(process.last.round):
            self._freed(peer)
        if process.builds and self._steps.stays(process):
            self._build(process, process.at)  # it hung while it did
        self._obey(process, len(process.tells))

    def end(self, process: Process, exitcode: int, because: str = "") -> None:
        """The process ends by itself or by a signal."""
        if not process.alive:
            return
        process.alive = False
        process.kept = exitcode == 0 and self._cluster.habits.functions
        process.ended_itself = not process.asked and exitcode != RESUME
        for watcher in self._cluster.watchers:
            watcher.worker_died(process, exitcode, because)
        who = (process.local_rank, process.launch)
        self._show(process.node, saw.WorkerReturned(*who) if process.kept else saw.WorkerExited(*who, exitcode))
        if exitcode not in (0, RESUME) or not process.leaving:
            self.felt(process)

    def release(self, process: Process, launch: int, exitcode: int = 0) -> None:
        if process.launch == launch and process.kept:
            ends_s = self._cluster.draw(self._cluster.timing.worker_ends)
            self._cluster.after(ends_s, self._let_go, process, exitcode)

    def _let_go(self, process: Process, exitcode: int) -> None:
        if process.kept:
            process.kept = False
            self._show(process.node, saw.WorkerExited(process.local_rank, process.launch, exitcode))

    def _show(self, node: Node, seen: saw.Observation) -> None:
        self._cluster.after(self._cluster.draw(self._cluster.timing.worker_seen), self._cluster.deliver, node, seen)

    def abandon_call(self, process: Process) -> None:
        """It has left the function, and uploads its logs before it ends."""
        process.gone = True
        self.say(process, ends=True)
        self._cluster.after(self._cluster.draw((0.1, 10.0)), self.end, process, 0)

    def say_broken(self, process: Process, number: int) -> None:
        if process.alive and process.hung_since is None:
            said = partial(self.say, process, broken_round=number)
            self._cluster.after(self._cluster.draw(self._cluster.timing.worker_seen), said)

    def say_fault(self, process: Process, number: int, last_call_wait: float = 0.0, depth: int = 0) -> None:
        """An exception: the worker lives, and its world is over."""
        if process.alive and process.hung_since is None:
            fault = WorkerFault(round=number, depth=depth, last_call_wait=last_call_wait)
            said = partial(self.say, process, fault=fault)
            self._cluster.after(self._cluster.draw(self._cluster.timing.worker_seen), said)

    def felt(self, lost: Process) -> None:
        """The others of its world feel that it is gone."""
        if not self._cluster.habits.coupled or lost.last.state is not WorkerState.HEALTHY:
            return
        for peer in self.world(lost.last.round):
            if peer is not lost and peer.node.side == lost.node.side:
                feels_s = self._cluster.draw(self._cluster.timing.peer_feels)
                self._cluster.after(feels_s, self._feel, peer, lost.last.round, lost)

    def _feel(self, peer: Process, number: int, lost: Process) -> None:
        if not peer.works_in(number) or peer.leaving or peer.asked:
            return
        if self._cluster.chance(self._cluster.habits.fail_when_coupled):
            self.end(peer, 1, because=lost.node.name)
        else:
            self.say_broken(peer, number)

    def world(self, number: int) -> list[Process]:
        """The processes that work in this world."""
        return [p for node in self._cluster.nodes.values() for p in node.processes.values() if p.works_in(number)]

    def finish(self, number: int, within: Range, but_one: Callable[[Process], None] | None = None) -> None:
        """Everybody in this world is through with the script, and exits 0; nobody is before all are there.

        `but_one`: to one of them this is done instead.
        """
        if number not in self._ending:
            self._ending.add(number)
            self._finish(number, within, but_one)

    def _finish(self, number: int, within: Range, but_one: Callable[[Process], None] | None) -> None:
        world = self.world(number)
        if any(not (process.is_there and process.has_worked) for process in world):
            self._cluster.after(0.1, self._finish, number, within, but_one)
            return
        self._ending.remove(number)
        last = self._cluster.rng.choice(world) if but_one and len(world) > 1 else None
        for process in world:
            if process.asked:
                continue
            process.leaving = True
            if but_one and process is last:
                but_one(process)
            else:
                self._cluster.after(self._cluster.draw(within), self._be_through, process)

    def _be_through(self, process: Process) -> None:
        if process.alive and process.status.called:
            self.say(process, called=0)
        self.end(process, 0)
