"""What holds of the records that the agents agree on, one after the other."""

from __future__ import annotations

from collections import defaultdict

from simulation.checkers.base import Checker, Life, begins_again, lives, sealed_anew
from simulation.cluster import Node
from simulation.store import LeasedStore
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Address, Phase, Round
from softrun.agent.rendezvous.convergence import MOST_STEPLESS, STOOD_S
from softrun.runtime.events import WorkerState


class OneWorldPerRound(Checker):
    """A round number stands for one world; numbers and versions rise one by one; a closed job stays closed."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[str, int], tuple[object, ...]] = {}

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None:
            self.demand(before.phase is not Phase.CLOSED, f"{by.name} reopened a closed job")
            self.demand(after.version == before.version + 1, f"version {before.version} → {after.version}")
            self.demand(after.number >= before.number, f"round {before.number} → {after.number}")
            resumed = before.preemption is not None and after.preemption is None
            resumed = resumed or (begins_again(before) and (after.phase is Phase.OPEN or sealed_anew(before, after)))
            self.demand(resumed or not before.finishing or after.finishing, "a job that was finishing is not any more")
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
            least = 1 if after.finishing and not begins_again(after) else job.min_nodes
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
            if tell.signum or (isinstance(effect, do.Spawn) and tell.state is WorkerState.PAUSED):
                continue  # it has no place any more; or outside: its place is what is expected only
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


class SurvivorsFirst(Checker):
    """Rank 0 survives. Within a node, and among the nodes of one place, survivors keep their order and come before
    newcomers; the nodes stand by their places, unless a newcomer would be first."""

    def __init__(self) -> None:
        self._last: dict[str, Round] = {}  # by job: two of them may become one

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if not sealed_anew(before, after):
            return
        # Through an OPEN round too: who kept a place in it was told of the last world.
        last = self._last.get(before.lineage) if before is not None else None
        old = [life for life in lives(last) if life in lives(before)] if last is not None and before is not None else []
        self._last[after.lineage] = after
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


class OnceEach(Checker):
    """No second rendezvous: a world differs from the one before it, unless that one was of no use any more.

    It was broken, one of its workers is being ended or was left out while it was silent, a member has promised to
    deliver nothing more there, or a member's lease was so close to its end that its workers may have been stopped.
    """

    def __init__(self) -> None:
        self._broken: set[int] = set()

    def observed(self, node: Node, seen: saw.Observation) -> None:
        match seen:
            case saw.WorkerSaid(status=status):
                self._broken.add(status.broken_round or 0)
                self._broken.add(status.fault.round if status.fault is not None else 0)
            case saw.Called(call=call) if call.fault is not None:
                self._broken |= {call.epoch, call.epoch + 1}  # all may be about to go on in the next one after a step
            case saw.ProgressSeen(local_rank) if node.processes[local_rank].stalled:
                self._broken.add(node.processes[local_rank].last.round)
            case saw.WorkerExited(local_rank, launch, exitcode) if exitcode != 0 or node.processes[local_rank].failing:
                process = node.processes[local_rank]
                if process.launch == launch:
                    self._broken.add(process.last.round)

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is not None and before.phase is Phase.SEALED and sealed_anew(before, after):
            same = set(lives(before)) == set(lives(after))
            saves = after.preemption is not None and before.preemption is None
            useless = before.number in self._broken or any(self._has_given_up(m.node, before) for m in before.members)
            self.demand(not same or saves or useless, f"round {after.number} repeats round {before.number}")

    def _has_given_up(self, name: str, before: Round) -> bool:
        node = self.cluster.nodes[name]
        promised = node.engine._standing.promised == before.version
        left_out = node.engine._standing.broken_round == before.number
        return (
            promised
            or left_out
            or self.cluster.store.was_in_doubt(name)
            or any(p.alive and p.asked for p in node.running)
        )


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
        if before is None:
            self._row.clear()  # all were gone, and others begin anew
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
