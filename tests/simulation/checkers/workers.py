"""What holds of the workers: what they are told, when they are stopped and started, and that work is done once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from simulation.checkers.base import Checker, begins_again, lives, sealed_anew
from simulation.cluster import Node
from simulation.workers import SIGKILL, Process
from softrun.agent.core.stages import Stage
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Outcome
from softrun.agent.protocol.model import Phase, Round
from softrun.runtime.events import RESUME, Preemption, WorkerState


class Sequence(Checker):
    """To one process, rounds never fall, and no WORK comes without PAUSE; a slot never has two processes.

    Whoever gets a signal that can be handled was told so just before, and nothing more after it.
    """

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Spawn):
            for tell in effect.tell:
                before = node.processes.get(tell.local_rank)
                who = f"{node.name}/{tell.local_rank}"
                lives = before is not None and (before.alive or before.kept)
                self.demand(not lives, f"{who} was started beside a living process")
                self.demand(before is None or tell.launch > before.launch, f"{who} has the launch number of another")
                at_work = self.cluster.store.round is not None and self.cluster.store.round.number > 0
                self.demand(at_work or tell.state is WorkerState.HEALTHY, f"{who} was started PAUSED before any world")
        elif isinstance(effect, do.Tell):
            process = node.processes[effect.local_rank]
            if process.launch != effect.launch:
                return
            last = process.last
            self.demand(not process.to_end, f"{process.name} was told more after it was told to end")
            if effect.signum:
                stays = (last.state, last.round) == (effect.state, effect.round)
                self.demand(
                    stays or effect.state is WorkerState.PAUSED, f"{process.name} was sent into {effect.round} to end"
                )
                return
            self.demand(effect.round >= last.round, f"{process.name} was told round {effect.round} after {last.round}")
            if effect.state is WorkerState.HEALTHY and effect.round == last.round:
                self.demand(last.state is WorkerState.HEALTHY, f"{process.name} was sent back into {effect.round}")
                news = (effect.stop_after, effect.leave_after) != (last.stop_after, last.leave_after)
                self.demand(news, f"{process.name} was told nothing new")
            elif effect.state is WorkerState.HEALTHY:
                self.demand(last.state is WorkerState.PAUSED, f"{process.name} was told WORK without PAUSE")
            else:
                self.demand(last.state is WorkerState.HEALTHY, f"{process.name} was paused twice")
        elif isinstance(effect, do.SignalWorker) and effect.signum != SIGKILL:
            process = node.processes[effect.local_rank]
            told = process.launch != effect.launch or process.to_end == effect.signum
            self.demand(told, f"{process.name} gets a signal and was not told to end")


@dataclass
class _Grounds:
    """Why this agent may stop workers."""

    own_failure: bool = False
    for_good: bool = False
    no_world_since: float = 0.0
    told_at: float = 0.0  # of the last world
    leaves_by: float = inf  # by its own clock, if all are told to leave for good


class SoftSparesTheHealthy(Checker):
    """Under soft, a healthy worker is signalled only for a failure on its own node, because its agent leaves, because
    the time to save is over, or because one of its node stays in a world for longer than the node's lease is sure to
    stand.
    """

    def __init__(self) -> None:
        self._grounds: dict[str, _Grounds] = {}

    def started(self, node: Node) -> None:
        self._grounds[node.name] = _Grounds(no_world_since=self.cluster.now)

    def observed(self, node: Node, seen: saw.Observation) -> None:
        grounds = self._grounds[node.name]
        match seen:
            case saw.RecordSeen(Round(preemption=Preemption()) as round_):
                self.adopted(node, round_)
        match seen:
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                grounds.own_failure |= process.launch == launch and process.failed_itself
            case saw.RecordSeen(Round(phase=Phase.CLOSED)) | saw.Signalled() | saw.StoreLost() | saw.StoreUsed():
                grounds.for_good = True

    def adopted(self, node: Node, round_: Round) -> None:
        grounds = self._grounds.get(node.name)  # a witness has none
        if grounds is not None and round_.preemption is not None:
            grounds.leaves_by = min(grounds.leaves_by, node.clock(self.cluster.now) + round_.preemption.seconds)
            grounds.for_good |= node.name not in round_.by_node  # all leave, and nobody is admitted any more

    def effect(self, node: Node, effect: do.Effect) -> None:
        grounds = self._grounds[node.name]
        match effect:
            case do.Spawn(tells):
                grounds.own_failure = False
                if any(tell.state is WorkerState.HEALTHY for tell in tells):
                    grounds.told_at = self.cluster.now
            case do.Tell(state=WorkerState.PAUSED, signum=0):
                grounds.no_world_since = self.cluster.now - self._lapsed_s(node, grounds)
            case do.Tell() if effect.round != node.processes[effect.local_rank].last.round:
                grounds.told_at = self.cluster.now
            case do.SignalWorker(local_rank, launch) if node.config.job.restart_policy == "soft":
                process = node.processes[local_rank]
                waited_s = (self.cluster.now - grounds.no_world_since) * node.rate
                leave_at = 0.0 if node.allowed is None else node.allowed.leave_at
                if leave_at > 0.0 or self.cluster.store.lease_s == 0.0:  # it was without a lease already
                    lapsed_at = max(leave_at, node.clock(grounds.told_at))
                    waited_s = max(waited_s, node.clock(self.cluster.now) - lapsed_at)
                # One that has no job any more counts from when it had it last, at its last look.
                waited = waited_s >= node.config.join_timeout_s - node.config.beat_interval_s
                # Only option 1 stops the others for the failure of one, unless it was the last that was allowed.
                stays = self.cluster.store.in_doubt(node.name) and any(p.applied < len(p.tells) for p in node.running)
                stays |= node.woke == self.cluster.now  # what it was told meanwhile lies behind what it finds overdue
                hangs = process.has_hung
                goes_on = process.asked  # with grounds, then
                outside = not process.entered  # it came too late: the work is done
                late = node.clock(self.cluster.now) >= grounds.leaves_by - 1e-6
                excuse = (
                    late or grounds.own_failure or grounds.for_good or waited or stays or hangs or outside or goes_on
                )
                if process.alive and process.launch == launch:
                    self.demand(excuse, f"{process.name} was signalled without grounds")

    def _lapsed_s(self, node: Node, grounds: _Grounds) -> float:
        """For how long its workers have had no leave to work although nobody has paused them."""
        if node.allowed is None or node.allowed.leave_at <= 0.0:
            return 0.0
        lapsed_at = max(node.allowed.leave_at, node.clock(grounds.told_at))
        return max(0.0, node.clock(self.cluster.now) - lapsed_at) / node.rate


class RestartsCountedOnce(Checker):
    """One restart for each failure of a node's own, none for a peer's death, and never more than allowed."""

    def __init__(self) -> None:
        self._failed_at: dict[str, float] = {}
        self._loss_at: dict[str, float] = {}
        # A loss that comes after the verdict and before the start excuses or does not: both counts are kept.
        self._least: dict[str, int] = defaultdict(int)
        self._most: dict[str, int] = defaultdict(int)
        self._slots: dict[tuple[str, int], int] = defaultdict(int)
        self._seen: dict[str, Round] = {}
        self._spawned_at: dict[str, float] = defaultdict(float)
        self._worlds: dict[int, set[str]] = {}
        self._worked: dict[str, bool] = {}  # had they shown that they worked, when one of them failed?

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if after.phase is Phase.SEALED:
            self._worlds[after.number] = {m.node for m in after.members}

    def _peers(self, node: Node) -> set[str]:
        """The nodes of the last world that this node's workers were told of."""
        last = max((p.last.round for p in node.processes.values() if p.entered), default=0)
        return self._worlds.get(last, set())

    def observed(self, node: Node, seen: saw.Observation) -> None:
        match seen:
            case saw.RecordSeen(Round() as round_):
                before = self._seen.get(node.name)
                if before is None or before.lineage != round_.lineage or round_.version > before.version:
                    self._seen[node.name] = round_
                    if before is not None and set(round_.lost) & set(before.by_node) & self._peers(node):
                        self._loss_at[node.name] = self.cluster.now
            case saw.LinkDown(peer, refused=True) if peer in self._peers(node):
                self._loss_at[node.name] = self.cluster.now
            case saw.LeasesExpired(leases) if {peer for peer, _ in leases} & (self._peers(node) - {node.name}):
                self._loss_at[node.name] = self.cluster.now
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                if process.launch == launch and process.failed_itself:
                    if node.name not in self._failed_at:
                        self._failed_at[node.name] = self.cluster.now
                        newest = max(p.last.round for p in node.processes.values())
                        works = (p.has_worked for p in node.processes.values() if p.last.round == newest)
                        self._worked[node.name] = any(works)
                    self._slots[node.name, local_rank] += 1

    def _excused(self, node: Node, surely: bool) -> bool:
        loss_at = self._loss_at.get(node.name)
        if loss_at is None or (node.config.job.restart_policy == "soft" and not self._worked[node.name]):
            return False  # one that fails before it has begun to work may do so each time
        since = loss_at - self._failed_at[node.name]
        if surely and loss_at <= self._spawned_at[node.name]:
            return False  # a loss of the world before
        return since >= -node.config.verdict_s and not (surely and since > node.config.verdict_s)

    def effect(self, node: Node, effect: do.Effect) -> None:
        config = node.config
        match effect:
            case do.Spawn() if config.job.worker_failure == "replace":
                for tell in effect.tell:
                    spent = self._slots[node.name, tell.local_rank]
                    self.demand(
                        spent <= config.max_restarts, f"{node.name}/{tell.local_rank} started {spent + 1} times"
                    )
            case do.Spawn() if node.name in self._failed_at and config.job.worker_failure != "record":
                self._least[node.name] += not self._excused(node, surely=False)
                self._most[node.name] += not self._excused(node, surely=True)
                del self._failed_at[node.name]
                charged = self._least[node.name]
                self.demand(charged <= config.max_restarts, f"{node.name} restarted {charged} times")
                self._spawned_at[node.name] = self.cluster.now
            case do.Spawn():
                self._spawned_at[node.name] = self.cluster.now
            case do.End(do.Result(outcome=Outcome.WORKERS_FAILED)) if config.job.worker_failure == "no-replace":
                # Others may not have heard of the end yet.
                known = [r for r in (self.cluster.store.round, node.engine.record) if r is not None]
                over = any(record.finishing or record.phase is Phase.CLOSED for record in known)
                over |= any((p.leaving or p.has_left) and not p.alive for p in node.processes.values())
                spent = self._most[node.name]
                self.demand(over or spent >= config.max_restarts, f"{node.name} gave up after {spent} restarts")
                excused = self._excused(node, surely=True)
                self.demand(over or not excused, f"{node.name} was charged for the death of a peer")


class FunctionsEndTogether(Checker):
    """The process of a function that has returned is kept until all of its node have, or are asked to end."""

    def effect(self, node: Node, effect: do.Effect) -> None:
        process = node.processes[effect.local_rank] if isinstance(effect, do.Release) else None
        if process is not None and not process.asked and not process.shown:  # it is to be ended
            at_work = [p.name for p in node.running if p is not process and not p.asked]
            goes = node.engine.stage in (Stage.RESTARTING, Stage.LEAVING)
            self.demand(goes or not at_work, f"{node.name} released one while {', '.join(at_work)} work")


class LeaveTogether(Checker):
    """Where nobody was lost all leave a world after the same step, which nobody has passed when it is agreed on."""

    def __init__(self) -> None:
        self._lossy: set[int] = set()

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        self._lossy.add(process.at)

    def effect(self, node: Node, effect: do.Effect) -> None:
        if not isinstance(effect, do.Tell):
            return
        agreed = effect.preemption.after if effect.preemption is not None else effect.leave_after
        if agreed:
            process = node.processes[effect.local_rank]
            if process.at in self._lossy:
                return
            passed = process.launch == effect.launch and process.at and process.begun > agreed
            self.demand(not passed, f"{process.name} is in step {process.begun}, to leave after {agreed}")

    def left(self, process: Process, leave_after: int) -> None:
        self.demand(
            process.step == leave_after,
            f"{process.name} left round {process.at} after step {process.step}, not {leave_after}",
        )

    def left_for_good(self, process: Process, preemption: Preemption) -> None:
        agreed = process.step if process.at and preemption.after else preemption.after
        self.demand(agreed == preemption.after, f"{process.name} saves after step {agreed}, not {preemption.after}")


class SavedTogether(Checker):
    """Told to leave for good, a worker ends by itself only once all of its world save, and nobody works after it: what
    is saved has every step that anybody has completed."""

    def __init__(self) -> None:
        self._saving: dict[int, set[str]] = defaultdict(set)
        self._saved: set[int] = set()

    def left_for_good(self, process: Process, preemption: Preemption) -> None:
        self._saving[process.last.round].add(process.name)

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        number = process.last.round
        if exitcode == RESUME:
            size = process.last.info.world_size
            self.demand(len(self._saving[number]) >= size, f"{process.name} ended before all of round {number} saved")
            self._saved.add(number)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None and before.preemption is not None and before.members:
            gone = {life[0] for life in lives(before)} - {m.node for m in after.members}
            taken_over = len(after.members) == 1 and len(gone) == len(before.members)
            self.demand(taken_over or after.preemption is not None, f"version {after.version} forgets the preemption")
            came = {m.node for m in after.members} - {m.node for m in before.members}
            self.demand(taken_over or not came, f"{came} came to a job that leaves")


class FinishedStaysFinished(Checker):
    """From the first finished node on nobody new is admitted, and finished work is not run again: nor by newcomers who
    came when it was done. Under hard all work is, together: see `HardBeginsAllAgain`."""

    def __init__(self) -> None:
        self._done: set[tuple[str, int]] = set()
        self._missed: set[int] = set()  # worlds in which somebody has not been because it was through

    def observed(self, node: Node, seen: saw.Observation) -> None:
        match seen:
            # An agent that has asked a worker to end cannot tell whether its 0 means that it was through.
            case saw.WorkerExited(local_rank, launch, 0) if not node.processes[local_rank].asked:
                process = node.processes[local_rank]
                if process.launch == launch:
                    self._done.add((node.name, local_rank))
                    seen_to = max((tell.round for tell in process.tells[: process.applied]), default=0)
                    unseen = [tell for tell in process.tells[process.applied :] if tell.round > seen_to]
                    if process.status.ready and any(tell.state is WorkerState.HEALTHY for tell in unseen):
                        self._missed.add(process.last.round)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        again = begins_again(after)
        if before is not None and before.finishing and sealed_anew(before, after) and not again:
            new = {m.life for m in after.members} - {m.life for m in before.members}
            self.demand(not new, f"round {after.number} admits {sorted(new)} to a job that is finishing")
            if before.number in self._missed:
                old = [p.name for p in self._processes(after) if p.first_round < before.number]
                self.demand(bool(old), f"in round {after.number} newcomers begin what is done")

    def effect(self, node: Node, effect: do.Effect) -> None:
        record = self.cluster.store.round
        if (
            isinstance(effect, do.Spawn)
            and not self._may_renew(node)
            and not self.cluster.store.was_in_doubt(node.name)
        ):
            again = [tell.local_rank for tell in effect.tell if (node.name, tell.local_rank) in self._done]
            self.demand(not again, f"{node.name} runs finished workers {again} again")
        if isinstance(effect, do.Spawn) and record is not None and record.phase is Phase.CLOSED:
            # What was sealed before the end may still be on its way to this agent.
            self.demand(bool(record.outcome) or self._under_way(effect, record), f"{node.name} runs a finished job")

    def _processes(self, round_: Round) -> list[Process]:
        return [self.cluster.nodes[m.node].processes[w.local_rank] for m in round_.members for w in m.workers]

    @staticmethod
    def _may_renew(node: Node) -> bool:
        """Option 1 restarts all workers of a node for the failure of one, finished or not; hard all of the job."""
        job = node.config.job
        return (job.restart_policy, job.worker_failure) in (("soft", "no-replace"), ("hard", "no-replace"))

    @staticmethod
    def _under_way(spawn: do.Spawn, record: Round) -> bool:
        return all(tell.round >= record.number or tell.state is WorkerState.PAUSED for tell in spawn.tell)


class HardBeginsAllAgain(Checker):
    """Under hard what some have finished is worth nothing without the rest: a restart begins all work again, and a job
    has succeeded only if all workers of its last world have."""

    def __init__(self) -> None:
        self._done: set[tuple[str, int, int]] = set()  # node, local rank, round

    def observed(self, node: Node, seen: saw.Observation) -> None:
        if isinstance(seen, saw.WorkerExited) and seen.exitcode == 0:
            process = node.processes[seen.local_rank]
            if process.launch == seen.launch:
                self._done.add((node.name, seen.local_rank, process.last.round))

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Spawn) and node.config.job.restart_policy == "hard":
            started = {tell.local_rank for tell in effect.tell}
            self.demand(started == set(range(node.config.local_world_size)), f"{node.name} starts only {started}")

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is None or after.phase is not Phase.CLOSED or after.outcome or not begins_again(before):
            return
        lacks = [life for life in lives(before) if (life[0], life[2], before.number) not in self._done]
        self.demand(not lacks, f"the job has succeeded in round {before.number} without {lacks}")


class WorkIsNotBegunAgain(Checker):
    """Once a worker that has shown its work has exited 0 because that was done, no world has newcomers alone, who would
    begin anew; as long as an agent that knows of it is there to say so."""

    def __init__(self) -> None:
        self._through: dict[str, float] = {}  # by node, when its first was

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        if exitcode == 0 and process.leaving and process.status.worked and not process.asked:
            self._through.setdefault(process.node.name, self.cluster.now)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is None or not sealed_anew(before, after) or after.settings.restart_policy == "hard":
            return
        # What was on its way when the first one exited may still be sealed.
        before_that = self.cluster.now - 2 * by.config.beat_interval_s - self.cluster.weather.slow_s[1] - 1.0
        known = [name for name, at in self._through.items() if at < before_that and self._is_heard(name, by, after)]
        old = set(lives(before)) & set(lives(after))
        self.demand(bool(old) or not known, f"in round {after.number} newcomers alone begin what {known} had done")

    def _is_heard(self, name: str, by: Node, round_: Round) -> bool:
        node = self.cluster.nodes[name]
        record = node.engine.record
        if record is None or not (record.lineage == round_.lineage or node.engine._shared._stands):
            return False  # its job may be no more: newcomers have founded another
        in_touch = node.side == by.side and not node.store_cut and not self.cluster.store.was_in_doubt(name)
        return node.alive and not node.stalled and in_touch
