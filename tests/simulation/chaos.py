"""A seed becomes a job, its faults, and a verdict.

Two phases. **Break**: faults strike as the seed draws them; only safety is asked for, by the checkers. **Heal**: no new
fault strikes, the network and the store are whole, whoever was stalled wakes, and enough nodes are there; then progress
is demanded within a bounded time: a world of every node that can be in it, with all its workers at work, and a clean
end for everybody once the work is done.

Each seed draws which kinds of faults it uses at all, so that some seeds are nothing but flapping nodes, and some
nothing but a bad store: a mix of everything would hide what one kind does alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from simulation.adversity import Adversity
from simulation.blocks import Blocks
from simulation.checkers import BrokenPromiseError, Checker, all_checkers
from simulation.cluster import Cluster, Node, Watcher
from simulation.conditions import Habits, Timing, Weather
from simulation.faults import ALL_FAULTS, FAULTS, void
from simulation.store import LeasedStore
from simulation.strangers import Strangers
from simulation.witness import PLACE, Misfortunes
from simulation.workers import Process
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.progress_watchdog import LEAVE
from softrun.agent.core.stages import Stage
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect, Outcome
from softrun.agent.protocol.model import Address, JobSettings, NodeIntent, Phase, Round
from softrun.agent.store.settings import LEAST_BEATS
from softrun.policies import WorkerFailure, load_policy
from softrun.runtime.events import ProgressLimits, WorkerState
from softrun.testing import check

MOST_EVENTS = 300_000  # thirty times what a life has that is full of them
POLICIES = (
    ("soft", "no-replace"),
    ("soft", "no-replace"),
    ("soft", "replace"),
    ("soft", "record"),
    ("hard", "no-replace"),
)
LIMITS = (
    None,
    ProgressLimits(),
    ProgressLimits(soft=2.0, hard=4.0, grace=0.2),
    ProgressLimits(hard=3.0),
)
STEPS_S = (None, None, (0.01, 0.05), (0.2, 0.6), (2.0, 4.0))
EXIT_BARRIER_S = 60.0
ENOUGH_S = 30.0  # to stop after a step and to save
LONG_TOLERANCES_S = (10.0, 60.0, 200.0)
LEAVE_HARD_S = LEAVE.hard or 0.0
NOT_READY = (Stage.FINISHED, Stage.LEAVING, Stage.ENDED)


@dataclass(frozen=True)
class Plan:
    """What a seed drew before the first event."""

    seed: int
    job: JobSettings
    nodes: int
    workers: int
    max_restarts: int
    interval_s: float
    tolerance_s: float
    join_timeout_s: float
    grace_s: float
    break_s: float
    fault_every_s: float
    faults: tuple[str, ...]
    stagger_s: float
    lease_s: float | None
    places: int
    limits: ProgressLimits | None
    dies_building: float
    is_adverse: bool
    heeds: bool
    endpoints: int = 0
    """How many hosts are endpoints; 0: one address is that of every node."""
    strangers: bool = False
    """Whether agents of another secret or release come to the endpoints."""

    def patience_s(self) -> float:
        """After how long a node that is silent may be taken for dead."""
        return self.tolerance_s if self.lease_s is None else self.lease_s

    def bound_s(self) -> float:
        """For each step of healing: a few times what the slowest single recovery takes."""
        hangs_s = 0.0 if self.limits is None else LEAVE_HARD_S
        # Those that no quorum can be made with wait until then.
        cut_off_s = self.join_timeout_s if self.lease_s is None else 0.0
        return 60.0 + cut_off_s + 6 * max(self.tolerance_s, self.lease_s or 0.0) + 3 * self.grace_s + hangs_s


def plan(seed: int, rng: random.Random) -> Plan:
    nodes = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8))
    least = rng.randint(1, nodes)
    most = rng.choice((least, nodes, nodes, nodes + 1, max(least, nodes - 1)))
    policy, failure = rng.choice(POLICIES)
    interval_s = rng.choice((0.25, 0.5, 1.0))
    tolerance_s = interval_s * rng.choice((LEAST_BEATS, 2 * LEAST_BEATS))
    kinds = sorted(FAULTS)
    lease_s = rng.choice((None, None, 2.0, 5.0))
    witness = PLACE if seed % 4 == 3 and seed % 5 and lease_s is None and most > 1 else None
    drawn = Plan(
        seed=seed,
        job=JobSettings(
            least, most, policy, failure, named_store=seed % 5 == 0, witness=witness, durable=seed % 32 == 10
        ),
        nodes=nodes,
        workers=rng.choice((1, 1, 2, 2, 3, 4)),
        max_restarts=rng.choice((0, 1, 3, 3, 100)) if seed % 7 else 1000,
        interval_s=interval_s,
        tolerance_s=tolerance_s,
        # Never so short that newcomers give up before they can tell that their predecessors are dead.
        join_timeout_s=rng.choice((6 * max(tolerance_s, lease_s or 0.0), 60.0, 600.0 if lease_s else 60.0)),
        grace_s=max(rng.choice((0.2, 2.0)), ENOUGH_S if seed % 18 == 7 else 0.0),
        break_s=rng.uniform(3.0, 20.0),
        fault_every_s=rng.choice((0.3, 1.0, 3.0)),
        faults=tuple(sorted(rng.sample(kinds, rng.randint(0, len(kinds) // 2)))),
        stagger_s=rng.choice((0.0, 0.01, 1.0)),
        lease_s=lease_s,
        places=3 if seed % 3 == 0 else 1,
        limits=LIMITS[seed % len(LIMITS)],
        dies_building=(0.1, 0.5)[seed // 7 % 2] if seed % 7 == 0 and policy == "soft" else 0.0,
        is_adverse=seed % 6 in (0, 3, 4),
        heeds=seed % 9 == 7,
    )
    if seed % 6 == 3:
        drawn = _amid_adversity(drawn)
    return _with_patience(drawn) if seed % 36 == 21 else drawn


def _amid_adversity(drawn: Plan) -> Plan:
    """Of three nodes or more, whose network and clocks are adverse at all times, and nothing else is: what hides behind
    faults shows here, such as leases that are too long."""
    job = replace(drawn.job, min_nodes=1, max_nodes=max(3, drawn.job.max_nodes))
    drawn = replace(drawn, job=job, nodes=max(3, drawn.nodes), interval_s=0.15, tolerance_s=0.75)
    return replace(drawn, faults=(), is_adverse=True)


def _with_patience(drawn: Plan) -> Plan:
    """Nobody is dead before long: as far as a user may set it."""
    tolerance_s = LONG_TOLERANCES_S[drawn.seed // 36 % len(LONG_TOLERANCES_S)]
    drawn = replace(drawn, interval_s=tolerance_s / LEAST_BEATS, tolerance_s=tolerance_s, break_s=2 * tolerance_s)
    return replace(drawn, join_timeout_s=max(drawn.join_timeout_s, 6 * tolerance_s))


class Life:
    """One run of one seed."""

    def __init__(
        self,
        seed: int,
        watchers: Iterable[Watcher] | None = None,
        change: Callable[[Plan], Plan] = lambda plan: plan,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.plan = change(plan(seed, rng))
        quick = rng.random() < 0.5
        timing = Timing(
            store=(0.0005, 0.003) if quick else (0.001, 0.1),
            link=(0.0002, 0.001) if quick else (0.0005, 0.05),
            connect=(0.0005, 0.002) if quick else (0.001, 0.2),
            notice=(0.001, 0.05),
            give_up=(0.5, 2.0),
            open_store=(0.001, 0.01),
            worker_ends=(0.001, 0.2),
            worker_seen=(0.0005, 0.005),
            worker_ready=(0.01, 0.05) if rng.random() < 0.7 else (0.5, 5.0),
            worker_works=(0.005, 0.3),
            peer_feels=(0.005, 0.06),
        )
        habits = Habits(
            coupled=rng.random() < 0.6,
            fail_when_coupled=rng.choice((0.0, 0.0, 0.3, 1.0)),
            ignore_sigterm=rng.choice((0.0, 0.0, 0.3)),
            exit_zero_on_sigterm=rng.choice((0.0, 0.5)),
            slow_to_leave=rng.choice((0.0, 0.0, 0.3)),
            slow_to_get_out=rng.choice((0.0, 0.0, 0.5)),
            dies_building=self.plan.dies_building,
            exits_building=0.3,
            in_calls=seed % 4 == 1,
            functions=seed % 3 == 1,
            limits=self.plan.limits,
            step_s=STEPS_S[seed % len(STEPS_S)],
            heeds=self.plan.heeds,
        )
        on = list(all_checkers() if watchers is None else watchers)
        self.cluster = Cluster(rng, timing, habits, on, self.plan.lease_s)
        self.cluster.most_events = MOST_EVENTS
        self.blocks: Blocks | None = None
        if seed % 8 == 2 and self.plan.job.restart_policy == "soft":
            self.blocks = Blocks(self.cluster, random.Random(seed))
        self._born = 0
        self._breaking = True
        self._misfortunes: Misfortunes | None = None
        self._strangers: Strangers | None = None
        self._adversity: Adversity | None = None
        if self.plan.is_adverse:
            self._adversity = Adversity(seed, self.cluster, self.plan.fault_every_s, self.plan.patience_s())
        if self.plan.job.witness is not None:
            every_s, patience_s = self.plan.fault_every_s, self.plan.patience_s()
            self._misfortunes = Misfortunes(seed, self.cluster.witnesses, self.cluster, every_s, patience_s)

        if self.plan.strangers:
            self._strangers = Strangers(seed, self.cluster, self._all_endpoints(), self.plan.fault_every_s * 3)

    # --- the nodes

    def join(self) -> Node:
        p, self._born = self.plan, self._born + 1
        name = f"n{self._born}"
        config = EngineConfig(
            job=p.job,
            node=name,
            host=self._host(name),
            port=7000,
            role="trainer" if self.rng.random() < 0.8 else "reader",
            local_world_size=p.workers,
            max_restarts=p.max_restarts,
            preferred_rank=self._born * 2 % p.places,
            named_store=Address("named", 29500) if p.job.named_store else None,
            beat_interval_s=p.interval_s,
            beat_tolerance_s=p.tolerance_s,
            join_timeout_s=p.join_timeout_s,
            grace_s=p.grace_s,
            exit_barrier_s=EXIT_BARRIER_S,
            close_timeout_s=5.0,
            endpoints=self._endpoints(),
        )
        policy = load_policy(p.job.restart_policy, WorkerFailure(p.job.worker_failure))
        rate = 1.0 if self._adversity is None else self._adversity.rate()
        return self.cluster.start(config, policy, offset=self.rng.uniform(0, 1000), rate=rate)

    def _host(self, name: str) -> str:
        """The host of the next node. One that is an endpoint is replaced first, as by a scheduler."""
        taken = {node.config.host for node in self.up()}
        free = [f"host-e{number}" for number in range(self.plan.endpoints) if f"host-e{number}" not in taken]
        if free:
            return self.rng.choice(free)
        return f"host-{name}" if self._adversity is None else self._adversity.host(f"host-{name}")

    def _endpoints(self) -> tuple[Address, ...]:
        """As the user of the next node gives them: mostly in the same order everywhere."""
        endpoints = self._all_endpoints()
        if self.plan.endpoints and self.rng.random() < 0.2:
            self.rng.shuffle(endpoints)
        return tuple(endpoints)

    def _all_endpoints(self) -> list[Address]:
        return [Address(f"host-e{number}", 29400) for number in range(self.plan.endpoints)]

    def bares(self) -> bool:
        """Whether what would tell of the end of the next node that is killed is killed with it."""
        return self._adversity is not None and self._adversity.bares()

    def up(self) -> list[Node]:
        return [node for node in self.cluster.nodes.values() if node.alive]

    def ready(self) -> list[Node]:
        """Those who want to be in the world, and can."""
        return [node for node in self.up() if node.engine.stage not in NOT_READY and not node.never_ready]

    # --- the run

    def run(self) -> None:
        p = self.plan
        self.join()
        for _ in range(p.nodes - 1):
            self.cluster.after(self.rng.uniform(0, p.stagger_s), lambda: void(self.join()))
        if p.faults:
            self.cluster.after(self.rng.expovariate(1 / p.fault_every_s), self._strike)
        self.cluster.run_until(p.break_s)
        self._heal()
        self._demand_a_world()
        self._demand_an_end()
        self.judge()

    def judge(self) -> None:
        """What the workers saw of live_workers."""
        if self.blocks is not None:
            verdict = check(self.blocks.history())
            if not verdict:
                raise BrokenPromiseError("Atomic", str(verdict))

    def _strike(self) -> None:
        if not self._breaking:
            return
        ALL_FAULTS[self.rng.choice(self.plan.faults)](self)
        self.cluster.after(self.rng.expovariate(1 / self.plan.fault_every_s), self._strike)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do this after a while, unless everything has been healed by then."""

        def unless_healed() -> None:
            if self._breaking:
                act()

        self.cluster.after(delay_s, unless_healed)

    def _heal(self) -> None:
        self._breaking = False
        self.cluster.habits.dies_building = 0.0
        self.cluster.weather = Weather()
        self.cluster.network.heal(break_odds=0.5)
        if self._misfortunes is not None:
            self._misfortunes.heal()
        if self._strangers is not None:
            self._strangers.heal()
        if self._adversity is not None:
            self._adversity.heal()
        if isinstance(self.cluster.store, LeasedStore):
            self.cluster.store.come_back()
        for node in self.up():
            for process in node.running:
                if process.hung_since is not None and not (self.plan.limits and self.plan.limits.hard):
                    self.cluster.workers.recover(process)  # nobody else will do anything about it
            self.cluster.wake(node)
            if node.store_cut:
                self.cluster.store.reconnect(node)
        if self.plan.endpoints and not any(node.config.host.startswith("host-e") for node in self.up()):
            self.join()  # two jobs meet at the endpoints, and nowhere else

    def over(self) -> bool:
        record = self.cluster.store.round
        return record is not None and record.phase is Phase.CLOSED

    def _demand_a_world(self) -> None:
        cluster = self.cluster
        since = cluster.now
        # A job that cannot go on holds newcomers until they give up, again and again until its last node has.
        times = 2 + int(EXIT_BARRIER_S / self.plan.join_timeout_s)
        spares = 20 + times * self.plan.job.min_nodes
        settled_at: float | None = None
        while not self.over():
            record = cluster.store.round
            if record is not None and record.finishing:
                return
            if self.plan.job.max_nodes == 1:  # another node would be one of a second job
                for node in self.up():
                    if node.never_ready:
                        cluster.crash(node)
            if len(self.ready()) < self.plan.job.min_nodes and not (self.plan.job.max_nodes == 1 and self.up()):
                spares -= 1
                if spares < 0:
                    results = [str(n.result) for n in cluster.nodes.values() if n.result is not None]
                    raise BrokenPromiseError("Progress", f"one node after the other ends: {results[-1]}")
                self.join()
                since = cluster.now
            problem = self.unsettled()
            if problem:
                settled_at = None
                if cluster.now - since > self.plan.bound_s():
                    raise BrokenPromiseError("Progress", f"{problem} after {cluster.now - since:.0f} s without a fault")
            elif settled_at is None:
                settled_at = cluster.now
            elif cluster.now - settled_at >= 1.0:
                return
            cluster.run_until(cluster.now + 0.1)

    def unsettled(self) -> str:
        """Why this is not yet the world that it should be; empty if it is."""
        record = self.cluster.store.round
        if record is None or record.phase is not Phase.SEALED:
            return "there is no world"
        ready = self.ready()
        members = {m.node for m in record.members}
        strangers = members - {node.name for node in ready}
        if strangers:
            return f"{', '.join(sorted(strangers))} should not be in round {record.number}"
        if len(members) < min(len(ready), self.plan.job.max_nodes):
            return f"round {record.number} has {len(members)} members, {len(ready)} nodes are ready"
        for node in self.up():
            for process in node.running:
                if process.stalled and process.status.ready and not process.waits:  # its agent knows how to watch it
                    return f"worker {process.name} hangs"
                if process.asked:
                    return f"worker {process.name} was told to end"
                if process.at not in (0, record.number):
                    return f"worker {process.name} is in round {process.at}"
                if process.last.state is WorkerState.HEALTHY and process.last.round != record.number:
                    return f"worker {process.name} still works in round {process.last.round}"
        for member in record.members:
            for worker in member.workers:
                own = self.cluster.nodes[member.node].processes.get(worker.local_rank)
                if own is not None and (own.leaving or (own.has_left and own.has_worked)):
                    continue  # its work was done before the last fault, or so it says
                if own is None or not own.works_in(record.number):
                    return f"worker {member.node}/{worker.local_rank} does not work in round {record.number}"
            processes = self.cluster.nodes[member.node].processes.values()
            could = [p for p in processes if p.alive and not p.never_ready and (p.status.ready or not p.stalled)]
            apart = [p.name for p in could if not p.works_in(record.number)]
            if apart:
                return f"{', '.join(apart)} could be in round {record.number}"
            # With the first that has left by itself those that were not in the world yet were sent away.
            sent_away = [p for p in processes if p.asked and not p.entered and any(q.has_left for q in processes)]
            absent = [p.name for p in processes if not (p.alive or p.leaving or p.has_left or p in sent_away)]
            # Nor does a failure restart anybody where one was through, as long as its node was alone.
            recorded = any((q.leaving or q.has_left) and not q.alive for q in processes)
            if absent and not recorded and self.plan.job.worker_failure != "record":
                return f"{', '.join(absent)} did not come back in round {record.number}"
        return ""

    def _demand_an_end(self) -> None:
        cluster = self.cluster
        record = cluster.store.round
        since = cluster.now
        winners: list[Node] = []
        expected = Outcome.SUCCEEDED
        if self.plan.heeds and record is not None and record.phase is Phase.SEALED and not record.finishing:
            winners, expected = self._tell_all_to_leave(record), Outcome.PREEMPTED
            record = None
        if record is not None and record.phase is Phase.SEALED and not self.over():
            kills = record.settings.restart_policy == "soft" and self.rng.random() < 0.3
            if not record.finishing and not kills:
                winners = [cluster.nodes[m.node] for m in record.members]
            cluster.workers.finish(record.number, (0.0, 0.2), self._kill_soon if kills else None)
        while self.up():
            record = cluster.store.round
            if record is not None and record.phase is Phase.SEALED and expected is not Outcome.PREEMPTED:
                # Those that were between two worlds finish when they are there.
                world = cluster.workers.world(record.number)
                if world and not any(process.leaving for process in world):
                    cluster.workers.finish(record.number, (0.0, 0.2))
            if cluster.now - since > self.plan.bound_s() + 60.0:
                left = ", ".join(f"{node.name} ({node.engine.stage.value})" for node in self.up())
                raise BrokenPromiseError(
                    "Progress", f"{left} still run {cluster.now - since:.0f} s after the work was done"
                )
            cluster.run_until(cluster.now + 0.1)
        if expected is Outcome.PREEMPTED and any(p.ended_itself for node in winners for p in node.processes.values()):
            return  # one was through, or died of an earlier fault, before all could save
        for node in winners:
            if node.result is None or node.result.outcome is not expected:
                raise BrokenPromiseError("Progress", f"{node.name} did what it should and ended with {node.result}")

    def _tell_all_to_leave(self, record: Round) -> list[Node]:
        """A scheduler ends the job. Returns the nodes that are to save, if their workers can and nobody is lost."""
        rng = random.Random(self.plan.seed)  # other seeds' draws stay what they are
        members = [self.cluster.nodes[m.node] for m in record.members]
        for node in self.up():
            self.cluster.after(rng.uniform(0, 0.2), self.cluster.deliver, node, saw.Signalled(15))
        if rng.random() < 0.3:
            victim = rng.choice(members)
            self.cluster.after(rng.uniform(0, 1.0), self.cluster.crash, victim)
            return []
        hard = record.settings.restart_policy == "hard"
        processes = [process for node in members for process in node.running]
        first = all(node.engine._standing.departure is None for node in members)  # a second signal ends it at once
        asks = first and all(process.status.heeds and (process.status.counts or not hard) for process in processes)
        return members if asks and self.plan.grace_s == ENOUGH_S else []

    def _kill_soon(self, process: Process) -> None:
        self.cluster.after(self.rng.uniform(0, 6), self.cluster.workers.end, process, -9)


# --- running


def run_seed(seed: int) -> Life:
    life = Life(seed)
    life.run()
    return life


def replay(seed: int) -> str:
    """The command that shows what happened under this seed."""
    return f"scripts/soak --replay {seed}"


def trace_hash(seed: int) -> str:
    """Of everything that happened: the same for one seed in every process."""
    life = Life(seed)
    digest = hashlib.blake2b(digest_size=16)

    def write(node: Node, seen: saw.Observation, effects: list[Effect]) -> None:
        digest.update(f"{life.cluster.now!r} {node.name} {seen!r} {effects!r}\n".encode())

    life.cluster.listeners.append(write)
    try:
        life.run()
    except AssertionError as error:
        digest.update(repr(error).encode())
    return digest.hexdigest()


def narrate(seed: int, write: Callable[[str], None], quiet: bool = True) -> None:
    """Run a seed and tell everything that happens; raises what the run raises."""
    life = Life(seed)
    write(f"{life.plan}")
    beats = ("Beat(",)

    def tell(node: Node, seen: saw.Observation, effects: list[Effect]) -> None:
        stage = f"{node.engine.stage.value} intent {node.engine._standing.intent.value}"
        told = [str(effect) for effect in effects if not (quiet and any(word in str(effect) for word in beats))]
        if quiet and not told and (isinstance(seen, saw.Tick) or any(word in str(seen) for word in beats)):
            return
        write(f"{life.cluster.now:9.4f} {node.name} {stage}: {seen}")
        for line in told:
            write(f"{'':9} {'':{len(node.name)}}     → {line}")

    class Teller(Checker):
        def died(self, node: Node) -> None:
            write(f"{self.cluster.now:9.4f} {node.name} {'ended' if node.result else 'crashed'}")

        def worker_died(self, process: Process, exitcode: int, because: str) -> None:
            write(f"{self.cluster.now:9.4f} {process.name} exited {exitcode} {because and f'because of {because}'}")

    teller = Teller()
    teller.cluster = life.cluster
    life.cluster.listeners.append(tell)
    life.cluster.watchers.append(teller)
    life.run()


__all__ = ["Life", "NodeIntent", "Plan", "narrate", "replay", "run_seed", "trace_hash"]
