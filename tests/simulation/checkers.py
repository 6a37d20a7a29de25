"""The promises, each as a checker that looks on and raises
`BrokenPromiseError` when it sees its promise broken.

A checker knows the truth of the simulated world (who lives, what was asked of whom), not the engine's mind. It computes
what it needs by its own simple means, so that a mistake of the engine is not repeated here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from simulation.cluster import Node, Watcher
from simulation.store import LeasedStore
from simulation.workers import SLOW_TO_GET_OUT_S, Process
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Outcome
from softrun.agent.protocol.model import Address, Phase, Round
from softrun.agent.rendezvous.convergence import MOST_STEPLESS, STOOD_S
from softrun.runtime.events import WorkerState

Life = tuple[str, int, int, int]

WAKING_S = 0.5 + SLOW_TO_GET_OUT_S  # for the workers of an agent that was stopped to hear of it, and to obey


class BrokenPromiseError(AssertionError):
    """A promise was broken. The first argument names it."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Checker(Watcher):
    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenPromiseError(type(self).__name__, f"at {self.cluster.now:.3f}: {what}")


def lives(round_: Round) -> list[Life]:
    return [(m.node, m.incarnation, w.local_rank, w.incarnation) for m in round_.members for w in m.workers]


def sealed_anew(before: Round | None, after: Round) -> bool:
    return after.phase is Phase.SEALED and (before is None or after.number > before.number)


class OneWorldPerRound(Checker):
    """A round number stands for one world; numbers and versions rise one by one; a closed job stays closed."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[str, int], tuple[object, ...]] = {}

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None:
            self.demand(before.phase is not Phase.CLOSED, f"{by.name} reopened a closed job")
            self.demand(after.version == before.version + 1, f"version {before.version} → {after.version}")
            self.demand(after.number >= before.number, f"round {before.number} → {after.number}")
            self.demand(not before.finishing or after.finishing, "a job that was finishing is not any more")
        if after.phase is Phase.SEALED:
            world = (after.members, after.worker_store)
            known = self._worlds.setdefault((after.lineage, after.number), world)
            self.demand(known == world, f"round {after.number} is two worlds: {known} and {world}")


class OneHistory(Checker):
    """Where the agents keep the record, no two of them ever have different records of one version of one job, none goes
    back, and a record that was agreed on is not lost as long as one of those who had to know it lives."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, int], Round] = {}
        self._newest: dict[tuple[str, str], int] = {}

    def adopted(self, node: Node, round_: Round) -> None:
        known = self._records.setdefault((round_.lineage, round_.version), round_)
        self.demand(known == round_, f"version {round_.version} is two records: {known} and {round_}")
        who = (node.name, round_.lineage)
        self.demand(
            round_.version >= self._newest.get(who, 0), f"{node.name} goes back to version {round_.version} of its job"
        )
        self._newest[who] = round_.version


class Size(Checker):
    """min_nodes ≤ size ≤ max_nodes; a job that is finishing may fall below the minimum."""

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if sealed_anew(before, after):
            size, job = len(after.members), after.settings
            least = 1 if after.finishing else job.min_nodes
            self.demand(
                least <= size <= job.max_nodes,
                f"round {after.number} has {size} of {job.min_nodes}:{job.max_nodes} nodes",
            )
            self.demand(all(m.workers for m in after.members), f"round {after.number} has a node without workers")
            self.demand(len({m.node for m in after.members}) == size, f"round {after.number} has a node twice")


class Ranks(Checker):
    """Ranks are dense and disjoint, and every worker is told its place in the world as it was sealed."""

    def __init__(self) -> None:
        # Of two jobs that are one, both may have a world of this number.
        self._places: dict[int, list[tuple[Life, tuple[object, ...]]]] = defaultdict(list)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after):
            return
        store = after.worker_store or by.config.named_store
        if store is None:
            return  # another checker's matter
        everyone = lives(after)
        roles = [m.role for m in after.members for _ in m.workers]
        self.demand(len(set(everyone)) == len(everyone), f"round {after.number} has a worker twice")
        self._places[after.number] += [
            (
                life,
                (
                    rank,
                    len(everyone),
                    roles[:rank].count(roles[rank]),
                    roles.count(roles[rank]),
                    sum(other[0] == life[0] for other in everyone),
                    [m.node for m in after.members].index(life[0]),
                    len(after.members),
                    store.host,
                    store.port,
                ),
            )
            for rank, life in enumerate(everyone)
        ]

    def effect(self, node: Node, effect: do.Effect) -> None:
        tells = effect.tell if isinstance(effect, do.Spawn) else (effect,) if isinstance(effect, do.Tell) else ()
        for tell in tells:
            if isinstance(effect, do.Spawn) and tell.state is WorkerState.PAUSED:
                continue  # outside: its place is what is expected only
            places = [
                place for life, place in self._places[tell.round] if (life[0], life[2]) == (node.name, tell.local_rank)
            ]
            info = tell.info
            told = (
                info.rank,
                info.world_size,
                info.role_rank,
                info.role_world_size,
                info.local_world_size,
                info.group_rank,
                info.group_world_size,
                info.master_addr,
                info.master_port,
            )
            self.demand(told in places, f"{node.name}/{tell.local_rank} was told {told}, its place is {places}")
            self.demand(
                info.local_rank == tell.local_rank, f"{node.name}/{tell.local_rank} was told another local rank"
            )


class Sequence(Checker):
    """To one process, rounds never fall, and no WORK comes without PAUSE; a slot never has two processes."""

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Spawn):
            for tell in effect.tell:
                before = node.processes.get(tell.local_rank)
                who = f"{node.name}/{tell.local_rank}"
                self.demand(before is None or not before.alive, f"{who} was started beside a living process")
                self.demand(before is None or tell.launch > before.launch, f"{who} has the launch number of another")
                at_work = self.cluster.store.round is not None and self.cluster.store.round.number > 0
                self.demand(at_work or tell.state is WorkerState.HEALTHY, f"{who} was started PAUSED before any world")
        elif isinstance(effect, do.Tell):
            process = node.processes[effect.local_rank]
            if process.launch != effect.launch:
                return
            last = process.last
            self.demand(effect.round >= last.round, f"{process.name} was told round {effect.round} after {last.round}")
            if effect.state is WorkerState.HEALTHY and effect.round == last.round:
                self.demand(last.state is WorkerState.HEALTHY, f"{process.name} was sent back into {effect.round}")
                news = (effect.stop_after, effect.leave_after) != (last.stop_after, last.leave_after)
                self.demand(news, f"{process.name} was told nothing new")
            elif effect.state is WorkerState.HEALTHY:
                self.demand(last.state is WorkerState.PAUSED, f"{process.name} was told WORK without PAUSE")
            else:
                self.demand(last.state is WorkerState.HEALTHY, f"{process.name} was paused twice")


@dataclass
class _Grounds:
    """Why this agent may stop workers."""

    own_failure: bool = False
    for_good: bool = False
    no_world_since: float = 0.0


class SoftSparesTheHealthy(Checker):
    """Under soft, a healthy worker is signalled only for a failure on its own node, because its agent leaves, or
    because one of its node stays in a world for longer than the node's lease is sure to stand.
    """

    def __init__(self) -> None:
        self._grounds: dict[str, _Grounds] = {}

    def started(self, node: Node) -> None:
        self._grounds[node.name] = _Grounds(no_world_since=self.cluster.now)

    def observed(self, node: Node, seen: saw.Observation) -> None:
        grounds = self._grounds[node.name]
        match seen:
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                grounds.own_failure |= process.launch == launch and process.failed_itself
            case saw.RecordSeen(Round(phase=Phase.CLOSED)) | saw.Signalled() | saw.StoreLost() | saw.StoreUsed():
                grounds.for_good = True

    def effect(self, node: Node, effect: do.Effect) -> None:
        grounds = self._grounds[node.name]
        match effect:
            case do.Spawn():
                grounds.own_failure = False
            case do.Tell(state=WorkerState.PAUSED):
                grounds.no_world_since = self.cluster.now
            case do.SignalWorker(local_rank, launch) if node.config.job.restart_policy == "soft":
                process = node.processes[local_rank]
                waited = self.cluster.now - grounds.no_world_since >= node.config.join_timeout_s - 1e-6
                # Only option 1 stops the others for the failure of one, unless it was the last that was allowed.
                stays = self.cluster.store.in_doubt(node.name) and any(p.applied < len(p.tells) for p in node.running)
                stays |= node.woke == self.cluster.now  # what it was told meanwhile lies behind what it finds overdue
                hangs = process.has_hung
                outside = not process.entered  # it came too late: the work is done
                excuse = grounds.own_failure or grounds.for_good or waited or stays or hangs or outside
                if process.alive and process.launch == launch:
                    self.demand(excuse, f"{process.name} was signalled without grounds")


class RestartsCountedOnce(Checker):
    """One restart for each failure of a node's own, none for a peer's death, and never more than allowed."""

    def __init__(self) -> None:
        self._failed_at: dict[str, float] = {}
        self._loss_at: dict[str, float] = {}
        # A loss that comes after the verdict and before the start excuses or does not: both counts are kept.
        self._least: dict[str, int] = defaultdict(int)
        self._most: dict[str, int] = defaultdict(int)
        self._slots: dict[tuple[str, int], int] = defaultdict(int)
        self._seen: dict[str, int] = defaultdict(int)
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
            case saw.RecordSeen(Round() as round_) if round_.version > self._seen[node.name]:
                self._seen[node.name] = round_.version
                if set(round_.lost) & self._peers(node):
                    self._loss_at[node.name] = self.cluster.now
            case saw.LinkDown(peer, gone=True) if peer in self._peers(node):
                self._loss_at[node.name] = self.cluster.now
            case saw.LeasesExpired(leases) if {peer for peer, _ in leases} & (self._peers(node) - {node.name}):
                self._loss_at[node.name] = self.cluster.now
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                if process.launch == launch and process.failed_itself:
                    if node.name not in self._failed_at:
                        self._failed_at[node.name] = self.cluster.now
                        self._worked[node.name] = any(p.has_worked for p in node.processes.values())
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


class NoGhosts(Checker):
    """Nobody is sealed who had been dead for longer than it takes to notice, while the proposer was there to notice."""

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after):
            return
        # A proposal may have been under way for as long as a slow store takes.
        margin_s = 2 * by.config.beat_interval_s + self.cluster.timing.give_up[1] + self.cluster.weather.slow_s[1]
        for member in after.members:
            died = self.cluster.nodes[member.node].died
            if died is not None:
                # What the network held back can arrive long after its sender has died.
                heard_at = by.heard.get(member.node, 0.0)
                since = self.cluster.store.made_at(after) - max(
                    died, by.born, by.woke, heard_at, self.cluster.store.back_at
                )
                lease_s = self.cluster.store.lease_s if isinstance(self.cluster.store, LeasedStore) else 0.0
                self.demand(
                    since <= max(by.config.beat_tolerance_s, lease_s) + margin_s,
                    f"round {after.number} has {member.node}, dead for {since:.2f} s",
                )


class NobodyMeetsTheReplaced(Checker):
    """Where the store has leases, the workers of a node that is taken for dead and lives have stopped by then.

    But for workers that never ask of an agent that was itself stopped: it stops them when it wakes.
    """

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is None or not isinstance(self.cluster.store, LeasedStore):
            return
        for name in after.lost:
            node = self.cluster.nodes[name]
            sleeps = node.never_asks and (node.stalled or self.cluster.now - node.woke <= WAKING_S)
            if node.alive and not sleeps and not node.holds_workers(self.cluster.now):
                working = [
                    p.name
                    for p in node.running
                    if p.works_in(before.number) or (p.entered and p.applied < len(p.tells))
                ]
                self.demand(not working, f"{', '.join(working)} work on when round {after.number} is made without them")


class LeaveTogether(Checker):
    """Where nobody was lost all leave a world after the same step, which nobody has passed when it is agreed on."""

    def __init__(self) -> None:
        self._lossy: set[int] = set()

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        self._lossy.add(process.at)

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Tell) and effect.leave_after is not None:
            process = node.processes[effect.local_rank]
            if process.at in self._lossy:
                return
            passed = process.launch == effect.launch and process.at and process.begun > effect.leave_after
            self.demand(not passed, f"{process.name} is in step {process.begun}, to leave after {effect.leave_after}")

    def left(self, process: Process, leave_after: int) -> None:
        self.demand(
            process.step == leave_after,
            f"{process.name} left round {process.at} after step {process.step}, not {leave_after}",
        )


class OnceEach(Checker):
    """No second rendezvous: a world differs from the one before it, unless that one was broken, or a member's lease
    was so close to its end that its workers may have been stopped."""

    def __init__(self) -> None:
        self._broken: set[int] = set()

    def observed(self, node: Node, seen: saw.Observation) -> None:
        match seen:
            case saw.WorkerSaid(status=status):
                self._broken.add(status.broken_round or 0)
                self._broken.add(status.fault.round if status.fault is not None else 0)
            case saw.ProgressSeen(local_rank) if node.processes[local_rank].stalled:
                self._broken.add(node.processes[local_rank].last.round)
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                if process.launch == launch:
                    self._broken.add(process.last.round)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None and before.phase is Phase.SEALED and sealed_anew(before, after):
            same = set(lives(before)) == set(lives(after))
            broken = before.number in self._broken or any(
                self.cluster.store.was_in_doubt(m.node) for m in before.members
            )
            self.demand(not same or broken, f"round {after.number} repeats round {before.number}")


class SurvivorsFirst(Checker):
    """Rank 0 survives. Within a node, and among the nodes of one place, survivors keep their order and come before
    newcomers; the nodes stand by their places, unless a newcomer would be first."""

    def __init__(self) -> None:
        self._last: Round | None = None

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after):
            return
        # Through an OPEN round too: who kept a place in it was told of the last world.
        old = lives(self._last) if self._last is not None else []
        self._last = after
        if before is not None:
            old = [life for life in old if life in lives(before)]
        new = lives(after)
        survivors = [life for life in new if life in old]
        if survivors:
            self.demand(new[0] == survivors[0], f"round {after.number}: rank 0 is not a survivor")
        surviving_nodes = {life[0] for life in survivors}
        place = {m.node: m.preferred_rank for m in after.members}
        for group in (*({node} for node in place), *({n for n in place if place[n] == p} for p in {*place.values()})):
            mine, before_me = [x for x in new if x[0] in group], [x for x in old if x[0] in group and x in new]
            self.demand(
                before_me == [x for x in mine if x in old], f"round {after.number}: survivors changed their order"
            )
            order = [m.node in surviving_nodes for m in after.members if m.node in group]
            self.demand(order == sorted(order, reverse=True), f"round {after.number}: a newcomer is before a survivor")
        wanted = sorted(place.values())
        if survivors and not any(m.node in surviving_nodes for m in after.members if m.preferred_rank == wanted[0]):
            wanted = sorted(place[n] for n in surviving_nodes) + sorted(
                place[n] for n in place if n not in surviving_nodes
            )
        self.demand(list(place.values()) == wanted, f"round {after.number}: {place} is not in place")


class FinishedStaysFinished(Checker):
    """From the first finished node on nobody new is admitted, and finished work is not run again: nor by newcomers who
    came when it was done."""

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
                    unseen = process.tells[process.applied :]
                    if process.status.ready and any(tell.state is WorkerState.HEALTHY for tell in unseen):
                        self._missed.add(process.last.round)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None and before.finishing and sealed_anew(before, after):
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
        """Option 1 restarts all workers of a node for the failure of one, the finished ones too."""
        return (node.config.job.restart_policy, node.config.job.worker_failure) == ("soft", "no-replace")

    @staticmethod
    def _under_way(spawn: do.Spawn, record: Round) -> bool:
        return all(tell.round >= record.number or tell.state is WorkerState.PAUSED for tell in spawn.tell)


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
        known = [name for name, at in self._through.items() if at < before_that and self._is_heard(name, by)]
        old = set(lives(before)) & set(lives(after))
        self.demand(bool(old) or not known, f"in round {after.number} newcomers alone begin what {known} had done")

    def _is_heard(self, name: str, by: Node) -> bool:
        node = self.cluster.nodes[name]
        in_touch = node.side == by.side and not node.store_cut and not self.cluster.store.was_in_doubt(name)
        return node.alive and not node.stalled and in_touch


class Converges(Checker):
    """Worlds in a row in which nobody has worked come ever more slowly, and there are no more than MOST_STEPLESS."""

    MOST, WITHIN_S = 16, 10.0

    def __init__(self) -> None:
        self._row: list[float] = []

    def observed(self, node: Node, seen: saw.Observation) -> None:
        record = self.cluster.store.round
        if not isinstance(seen, saw.WorkerSaid) or record is None or not record.number:
            return
        if record.number in (seen.status.worked, seen.status.counts):
            self._row.clear()

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after) or after.settings.restart_policy == "hard":
            return
        now = self.cluster.now
        if self._row and now - self._row[-1] >= STOOD_S:
            self._row.clear()
        self._row.append(now)
        count = len(self._row)
        self.demand(count <= MOST_STEPLESS + 2, f"round {after.number} is the {count}th without a step")
        apart_s = now - self._row[-self.MOST - 1] if count > self.MOST else self.WITHIN_S
        self.demand(apart_s >= self.WITHIN_S, f"{self.MOST} worlds without a step in {apart_s:.1f} s")


class Ending(Checker):
    """An agent ends once, says so last, and leaves no worker behind; what it says is true."""

    def observed(self, node: Node, seen: saw.Observation) -> None:
        self.demand(node.result is None, f"{node.name} lives on after its end")

    def effect(self, node: Node, effect: do.Effect) -> None:
        self.demand(node.result is None, f"{node.name} did {effect} after its end")
        if isinstance(effect, do.End):
            orphans = [p.name for p in node.running]
            self.demand(not orphans, f"{node.name} left {', '.join(orphans)} behind")
            if effect.result.outcome is Outcome.WORKERS_FAILED:
                self.demand(bool(effect.result.failures), f"{node.name} says its workers failed, and names none")


class WorkerStores(Checker):
    """The worker store of a world is open at its host when the world is sealed, and was never used before.

    Its host is in that world: else nobody would miss it when it goes.
    """

    def __init__(self) -> None:
        self._used: set[Address] = set()

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after):
            return
        store = after.worker_store
        named = after.settings.named_store and after.number == 1
        self.demand((store is None) == named, f"round {after.number} has the worker store {store}")
        if store is None:
            return
        self.demand(store not in self._used, f"round {after.number} uses the worker store of an earlier round")
        self._used.add(store)
        self.demand(store.host == by.config.host, f"round {after.number}: {by.name} lent a store of {store.host}")
        self.demand(any(m.node == by.name for m in after.members), f"round {after.number}: {by.name} is not in it")
        self.demand(not by.alive or store.port in by.worker_stores, f"round {after.number}: its worker store is closed")


class Patient(Checker):
    """No agent spins: its deadlines are few."""

    MOST_PER_INTERVAL = 40

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def observed(self, node: Node, seen: saw.Observation) -> None:
        since, ticks = self._since.setdefault(node.name, (self.cluster.now, node.ticks))
        span = self.cluster.now - since
        if span >= node.config.beat_interval_s:
            self._since[node.name] = (self.cluster.now, node.ticks)
            most = self.MOST_PER_INTERVAL * (span / node.config.beat_interval_s + 1)
            self.demand(node.ticks - ticks <= most, f"{node.name} ticked {node.ticks - ticks} times in {span:.2f} s")


def all_checkers() -> list[Checker]:
    return [
        OneWorldPerRound(),
        OneHistory(),
        Size(),
        Ranks(),
        Sequence(),
        SoftSparesTheHealthy(),
        RestartsCountedOnce(),
        NoGhosts(),
        NobodyMeetsTheReplaced(),
        LeaveTogether(),
        OnceEach(),
        SurvivorsFirst(),
        FinishedStaysFinished(),
        WorkIsNotBegunAgain(),
        Converges(),
        Ending(),
        WorkerStores(),
        Patient(),
    ]
