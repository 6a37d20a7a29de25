"""The simulated world: real engines, real codecs, and a model of everything that they touch.

One heap of events carries the virtual time; events of one instant run in the order in which they were made, so a run is
a function of its seed. Each agent's clock is the virtual time plus an offset of its own: no time crosses a host.

- **Store**: `simulation.store`.
- **Links**: `simulation.network`.
- **Workers**: `simulation.workers`.
- **Agents** can stall: what reaches them meanwhile is delivered when they wake, in order, and their clock jumps.

`simulation.conditions` has how long all of that takes, and how often it goes wrong.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from simulation.conditions import Habits, Range, Timing, Weather
from simulation.network import HERE, Link, Network
from simulation.store import Agreement, Keeper, LeasedStore
from simulation.witness import Witnesses
from simulation.workers import Process, Workers
from softrun.agent.consensus.change import changed
from softrun.agent.core.engine import Engine
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Accept, Address, Ballot, Decided, LastWords, Record, Round
from softrun.policies import RestartPolicyStrategy
from softrun.runtime.events import Preemption

if TYPE_CHECKING:
    from simulation.blocks import Blocks

ENDPOINT = Address(HERE, 29400)
TIMER_LATE_S = 1e-6  # a timer is never early, whatever two clocks make of their sum

#: Never shown to watchers: there are many, and no promise is about them.
CHATTER = (
    do.Say,
    do.Dial,
    do.HangUp,
    do.Seek,
    do.RenewLease,
    do.EndLease,
    saw.Heard,
    saw.Tick,
    saw.Listening,
    saw.Found,
    saw.NotFound,
    saw.LeaseRenewed,
)


@dataclass(eq=False)
class Node:
    """One agent, its engine and its workers."""

    name: str
    config: EngineConfig
    engine: Engine
    offset: float
    born: float
    rate: float = 1.0  # how fast its clock goes
    woke: float = 0.0
    heard: dict[str, float] = field(default_factory=dict)
    alive: bool = True
    died: float | None = None
    result: do.Result | None = None
    bare: bool = False  # it has ended, and nothing outlives it that could say so
    dark: bool = False  # its host is off: nobody even refuses a connection
    stalled: bool = False
    stalled_at: float = 0.0
    backlog: deque[Callable[[], None]] = field(default_factory=deque)
    side: int = 0  # of a cut network
    store_cut: bool = False
    slow_to_ready_s: float = 0.0  # how much longer than others its workers take until they ask for a world
    watch_due: bool = False
    never_asks: bool = False  # its workers take their world from their environment
    asked: dict[tuple[int, Ballot], Round] = field(default_factory=dict)  # what it has asked the others to accept
    allowed: do.Allow | None = None
    """How long its workers may go on, by its own clock."""
    watches_time: bool = False
    tick_at: float | None = None
    ticks: int = 0
    processes: dict[int, Process] = field(default_factory=dict)  # the last of each local rank
    worker_stores: set[int] = field(default_factory=set)
    dialled: dict[str, Link] = field(default_factory=dict)
    inbound: dict[str, Link] = field(default_factory=dict)
    links: dict[Link, None] = field(default_factory=dict)  # all that it holds an end of, in order

    def clock(self, now: float) -> float:
        """What its clock shows, `now` by the cluster's."""
        return now * self.rate + self.offset

    def true_time(self, at: float) -> float:
        """When its clock shows `at`, by the cluster's."""
        return (at - self.offset) / self.rate

    @property
    def is_suspended(self) -> bool:
        """Whether its machine is, with the agent and its workers."""
        return self.stalled and self.dark

    @property
    def running(self) -> list[Process]:
        return [p for p in self.processes.values() if p.alive]

    def holds(self, now: float) -> bool:
        """Whether its workers complete no further step, `now` by the cluster's clock."""
        heeds = self.allowed is not None and not self.never_asks
        return heeds and 0.0 < self.allowed.hold_at <= self.clock(now)

    def holds_workers(self, now: float) -> bool:
        """Whether its workers have stopped by themselves, `now` by the cluster's clock."""
        heeds = self.allowed is not None and not self.never_asks
        return heeds and 0.0 < self.allowed.leave_at <= self.clock(now)

    @property
    def never_ready(self) -> bool:
        """It waits for workers that never get ready, and has no others to come back with."""
        return any(p.never_ready for p in self.running) and not any(p.entered for p in self.running)


class Watcher:
    """Looks on. A checker is a watcher that raises; a tracer is one that writes."""

    cluster: Cluster

    def started(self, node: Node) -> None: ...
    def observed(self, node: Node, seen: saw.Observation) -> None: ...
    def effect(self, node: Node, effect: do.Effect) -> None: ...
    def recorded(self, before: Round | None, after: Round, by: Node) -> None: ...
    def adopted(self, node: Node, round_: Round) -> None: ...
    def died(self, node: Node) -> None: ...
    def worker_died(self, process: Process, exitcode: int, because: str) -> None: ...
    def left(self, process: Process, leave_after: int) -> None: ...
    def left_for_good(self, process: Process, preemption: Preemption) -> None: ...


class Cluster:
    """All of it. `watchers` see what happens; the methods are what can be done to the world."""

    def __init__(
        self,
        rng: random.Random,
        timing: Timing | None = None,
        habits: Habits | None = None,
        watchers: Sequence[Watcher] = (),
        lease_s: float | None = None,
    ) -> None:
        self.rng = rng
        self.timing = timing or Timing()
        self.habits = habits or Habits()
        self.weather = Weather()
        self.lag: Callable[[], float] = lambda: 0.0
        """How much later an agent's timer rings than it should: what it does then falls to what else it sees before."""
        self.watchers = list(watchers)
        self.listeners: list[Callable[[Node, saw.Observation, list[do.Effect]], None]] = []
        for watcher in self.watchers:
            watcher.cluster = self
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.store: Keeper = Agreement(self) if lease_s is None else LeasedStore(self, lease_s)
        self.network = Network(self)
        self.workers = Workers(self)
        self.witnesses = Witnesses(self)
        self.blocks: Blocks | None = None
        """If the workers call live_workers."""
        self.events, self.most_events = 0, inf
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0
        self._port = 20_000

    # --- time

    def after(self, delay: float, act: Callable[..., None], *args: Any) -> None:
        self._made += 1
        heapq.heappush(self._heap, (self.now + delay, self._made, act, args))

    def run_until(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act, args = heapq.heappop(heap)
            self.events += 1
            if self.events > self.most_events:
                raise AssertionError(f"no rest: {self.events} events by {self.now:.3f} s")
            act(*args)
        self.now = until

    def draw(self, range_: Range) -> float:
        low, high = range_
        return low if low == high else self.rng.uniform(low, high)

    def chance(self, odds: float) -> bool:
        return odds > 0.0 and self.rng.random() < odds

    # --- agents

    def start(
        self, config: EngineConfig, policy: RestartPolicyStrategy, offset: float = 0.0, rate: float = 1.0
    ) -> Node:
        if isinstance(self.store, Agreement) and not config.endpoints:
            config = replace(config, endpoints=(ENDPOINT,))
        engine = Engine(config, policy, self.now * rate + offset)
        node = Node(config.node, config, engine, offset, born=self.now, rate=rate)
        self.nodes[node.name] = node
        self.network.listen(node)
        for watcher in self.watchers:
            watcher.started(node)
        self.after(self.draw(self.timing.store), self.store.begin, node)
        return node

    def deliver(self, node: Node, seen: saw.Observation) -> None:
        self.give(node, partial(self.observe, node, seen))

    def give(self, node: Node, act: Callable[[], None]) -> None:
        if not node.alive:
            return
        if node.stalled:
            node.backlog.append(act)
        else:
            act()

    def observe(self, node: Node, seen: saw.Observation) -> None:
        if not node.alive:
            return
        if node.name in self.witnesses.started:
            self.witnesses.observe(node, seen)
            return
        if not isinstance(seen, CHATTER):
            for watcher in self.watchers:
                watcher.observed(node, seen)
        for gone in self._learns_of(node, seen):
            for watcher in self.watchers:
                watcher.observed(node, saw.LinkDown(gone, refused=True))
        before = node.engine.record
        effects = node.engine.observe(seen, node.clock(self.now))
        self._compare(node, before, effects)
        for listener in self.listeners:
            listener(node, seen, effects)
        for effect in effects:
            if not isinstance(effect, CHATTER):
                for watcher in self.watchers:
                    watcher.effect(node, effect)
            self._perform(node, effect)
        self._arm(node)

    def _learns_of(self, node: Node, seen: saw.Observation) -> list[str]:
        """The nodes that this says are gone, or refuse, other than by a link that is down, if it is news."""
        match seen:
            case saw.NotFound(endpoint, refused=True) | saw.Found(endpoint):
                sought = node.engine._shared._search._visiting.get(endpoint, "")
                there = seen.node if isinstance(seen, saw.Found) else ""
                return [sought] if sought not in ("", there) and not node.engine._election.silent(sought) else []
            case saw.Heard(name, LastWords()):
                return [name]
            case _:
                return []

    def _compare(self, node: Node, before: Round | None, effects: list[do.Effect]) -> None:
        """Where the agents keep the record, what they have agreed on shows in them alone."""
        if not isinstance(self.store, Agreement):
            return
        first = before
        for effect in effects:
            match effect:
                # It may have gone on from a record at once.
                case do.Say(None, Accept(ballot, change)):
                    round_ = changed(before, change)
                    self.store.made(node, round_)
                    node.asked[round_.version, ballot] = round_
                case do.Say(None, Decided(ballot, after)):
                    decided = node.asked[after.version + 1, ballot]
                    self.store.adopted(node, decided, before)
                    before = decided
                case do.Say(None, Record(round_)):
                    self.store.made(node, round_)
                    self.store.adopted(node, round_, before)
                    before = round_
        self.store.looked_at(node)
        record = node.engine.record
        if record is not None and record is not first:
            self.store.adopted(node, record, before)
            for watcher in self.watchers:
                watcher.observed(node, saw.RecordSeen(record))

    def _arm(self, node: Node) -> None:
        due = node.engine.deadline()
        if due is None or not node.alive:
            return
        at = max(node.true_time(due), self.now) + TIMER_LATE_S
        if node.tick_at is None or at < node.tick_at:
            node.tick_at = at
            self.after(at - self.now + self.lag(), self._alarm, node, at)

    def _alarm(self, node: Node, at: float) -> None:
        if node.tick_at != at or not node.alive:
            return
        if node.stalled:
            node.tick_at = None
            node.backlog.append(partial(self._tick, node))
            return
        self._tick(node)

    def _tick(self, node: Node) -> None:
        node.tick_at = None
        if not node.alive:
            return
        due = node.engine.deadline()
        # The alarm is set at the earliest time that was ever asked for, which may have moved since.
        if due is not None and due <= node.clock(self.now):
            node.ticks += 1
            self.observe(node, saw.Tick())
        else:
            self._arm(node)

    def stall(self, node: Node) -> None:
        node.stalled, node.stalled_at = True, self.now

    def suspend(self, node: Node) -> None:
        """With its machine, which answers nobody meanwhile."""
        self.stall(node)
        node.dark = True

    def wake(self, node: Node) -> None:
        node.stalled, node.woke = False, self.now
        node.dark = node.dark and not node.alive
        self._watch_time(node)
        while node.backlog and node.alive and not node.stalled:
            node.backlog.popleft()()

    def crash(self, node: Node, silent: bool = False, bare: bool = False) -> None:
        """The agent's process ends, and its workers with it.

        `bare`: and what would say so for it. `silent`: with its host, so nobody is told.
        """
        if not node.alive:
            return
        silent = silent or node.dark  # its machine is suspended, and is never woken
        node.dark, node.bare = silent, bare or silent
        for process in node.running:
            process.alive = False
            if not silent:
                self.workers.felt(process)
        self._gone(node, silent)

    def _gone(self, node: Node, silent: bool = False) -> None:
        node.alive = False
        node.died = self.now
        for watcher in self.watchers:
            watcher.died(node)
        self.network.process_ended(node, silent)
        self.store.ended()

    def _perform(self, node: Node, effect: do.Effect) -> None:
        match effect:
            case do.Say(to, message):
                self.network.say(node, to, message)
            case do.Propose(round_):
                self.store.propose(node, round_)
            case do.Seek():
                self.network.seek(node, effect)
            case do.RenewLease():
                self.store.renew(node)
            case do.EndLease():
                self.store.end_lease(node, effect)
            case do.OpenWorkerStore():
                self.after(self.draw(self.timing.open_store), self._store_opened, node)
            case do.CloseWorkerStore(port):
                if port not in node.worker_stores:
                    raise AssertionError(f"{node.name} closes a worker store that it does not have")
                node.worker_stores.remove(port)
            case do.Dial(member):
                self.network.dial(node, member)
            case do.HangUp(other):
                self.network.hang_up(node, other)
            case do.Tell():
                self.workers.tell(node, effect)
            case do.Spawn(tells):
                self.workers.spawn(node, tells)
            case do.SignalWorker(local_rank, launch, signum):
                self.workers.signal(node.processes[local_rank], launch, signum)
            case do.Release(local_rank, launch):
                self.workers.release(node.processes[local_rank], launch)
            case do.LookAtProgress(local_rank, launch):
                self.workers.look_at(node, local_rank, launch)
            case do.LookAtStep(local_rank, launch):
                self.workers.look_at_step(node, local_rank, launch)
            case do.LookForStore(local_rank, launch):
                self.workers.look_for_store(node, local_rank, launch)
            case do.End(result):
                node.result = result
                self.store.leave(node)
                self._gone(node)
            case do.ShowStacks(local_rank, launch):
                node.processes[local_rank].shown |= node.processes[local_rank].launch == launch
            case do.Allow():
                node.allowed = effect
                self.workers.allow(node)
                self._watch_time(node)
            case do.Answered(callers, reply):
                for local_rank, launch, number in callers if self.blocks is not None else ():
                    self.blocks.replied(node, local_rank, launch, number, reply)
            case do.Note():
                pass

    def _watch_time(self, node: Node) -> None:
        """Have its workers notice when their time is over."""
        if node.allowed is None or node.never_asks or node.watches_time or node.allowed.leave_at <= 0.0:
            return
        node.watches_time = True
        over_s = max(0.0, node.true_time(node.allowed.leave_at) - self.now)
        self.after(over_s + TIMER_LATE_S, self._time_is_over, node)

    def _time_is_over(self, node: Node) -> None:
        node.watches_time = False
        if node.is_suspended:
            return  # they notice when it wakes
        if node.holds_workers(self.now):
            self.workers.lapse(node)
        else:
            self._watch_time(node)

    def _store_opened(self, node: Node) -> None:
        if node.alive:
            self._port += 1
            node.worker_stores.add(self._port)
            self.deliver(node, saw.WorkerStoreOpened(self._port))
