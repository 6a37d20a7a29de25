"""The simulated world: real engines, real codecs, and a model of everything that they touch.

One heap of events carries the virtual time; events of one instant run in the order in which they were made, so a run is
a function of its seed. Each agent's clock is the virtual time plus an offset of its own: no time crosses a host.

- **Store**: `simulation.store`.
- **Links**: first in, first out. A process that ends closes its links (the other end learns that it is gone); a host
  that loses power, or a cut network, is silence.
- **Workers**: run until they are told to exit, fail, or are signalled; some ignore SIGTERM. Where they are coupled, the
  death of one is felt by the others of its world, who report a broken world or fail themselves. Where one hangs, all of
  its world wait for it, those too who come to a world in which it has a place. Who waits gets out of that when it is
  told to leave; some need a while.
- **Agents** can stall: what reaches them meanwhile is delivered when they wake, in order, and their clock jumps.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from simulation.store import LeasedStore, Store
from softrun.agent import codec
from softrun.agent import effects as do
from softrun.agent import observations as saw
from softrun.agent.engine import Engine, EngineConfig, Stage
from softrun.agent.model import Address, Hello, Member, Message, Round
from softrun.policies import RestartPolicyStrategy
from softrun.runtime.events import ProgressLimits, WorkerFault, WorkerState, WorkerStatus

Range = tuple[float, float]

SIGKILL = 9
NEVER_S = 1e9
SLOW_TO_GET_OUT_S = 1.5
TIMER_LATE_S = 1e-6  # a timer is never early, whatever two clocks make of their sum

# The codecs are pure, so the same bytes need not be read twice.
_encode_message = lru_cache(maxsize=4096)(codec.encode_message)
_decode_message = lru_cache(maxsize=4096)(codec.decode_message)

#: Never shown to watchers: there are many, and no promise is about them.
CHATTER = (
    do.Say,
    do.Dial,
    do.HangUp,
    do.BeatAsLeader,
    do.ReadLeaderBeat,
    do.RenewLease,
    saw.Heard,
    saw.Tick,
    saw.LeaderBeatSeen,
    saw.LeaseRenewed,
)


@dataclass(frozen=True)
class Timing:
    """How long things take, in seconds: drawn evenly between two bounds."""

    store: Range = (0.001, 0.001)
    link: Range = (0.0005, 0.0005)
    connect: Range = (0.001, 0.001)
    notice: Range = (0.01, 0.01)  # a process has ended → the other ends of its links know
    give_up: Range = (2.0, 2.0)  # a connection attempt into silence
    open_store: Range = (0.002, 0.002)
    worker_ends: Range = (0.01, 0.01)  # after a signal
    worker_seen: Range = (0.001, 0.001)  # a worker has ended → its agent knows
    worker_ready: Range = (0.05, 0.05)  # a worker was started outside → it asks for a world
    peer_feels: Range = (0.02, 0.02)  # a worker has ended → the others of its world feel it


@dataclass
class Weather:
    """The odds of what may befall any single operation; calm at first."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    slow: float = 0.0
    slow_s: Range = (0.0, 0.0)


@dataclass
class Habits:
    """How the workers of this job behave."""

    coupled: bool = False  # they feel the death of others of their world
    fail_when_coupled: float = 0.0  # the odds that one then fails, rather than report a broken world
    ignore_sigterm: float = 0.0
    exit_zero_on_sigterm: float = 0.0
    slow_to_leave: float = 0.0
    slow_to_get_out: float = 0.0  # of what they wait in
    limits: ProgressLimits | None = None  # how they are watched


@dataclass(eq=False)
class Process:
    """One worker process."""

    node: Node
    local_rank: int
    launch: int
    stubborn: bool
    alive: bool = True
    asked: bool = False  # a signal was sent to it
    leaving: bool = False  # its script is through and about to exit 0
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
    def stalled(self) -> bool:
        return self.hung_since is not None or self.stuck_since is not None

    def works_in(self, number: int) -> bool:
        return self.alive and self.last.state is WorkerState.HEALTHY and self.last.round == number


@dataclass(eq=False)
class Link:
    dialer: Node
    target: Node
    up: bool = False
    ends: set[str] = field(default_factory=set)  # the nodes that still hold their end
    sent_until: dict[str, float] = field(default_factory=dict)  # by receiver: when the last thing sent will arrive
    held: list[tuple[Node, Callable[[], None]]] = field(default_factory=list)  # what the cut network keeps back

    def other(self, node: Node) -> Node:
        return self.target if node is self.dialer else self.dialer


@dataclass(eq=False)
class Node:
    """One agent, its engine and its workers."""

    name: str
    config: EngineConfig
    engine: Engine
    offset: float
    born: float
    woke: float = 0.0
    heard: dict[str, float] = field(default_factory=dict)
    alive: bool = True
    died: float | None = None
    result: do.Result | None = None
    dark: bool = False  # its host is off: nobody even refuses a connection
    stalled: bool = False
    backlog: deque[Callable[[], None]] = field(default_factory=deque)
    side: int = 0  # of a cut network
    store_cut: bool = False
    slow_to_ready_s: float = 0.0  # how much longer than others its workers take until they ask for a world
    watch_due: bool = False
    tick_at: float | None = None
    ticks: int = 0
    processes: dict[int, Process] = field(default_factory=dict)  # the last of each local rank
    worker_stores: set[int] = field(default_factory=set)
    dialled: dict[str, Link] = field(default_factory=dict)
    inbound: dict[str, Link] = field(default_factory=dict)
    links: dict[Link, None] = field(default_factory=dict)  # all that it holds an end of, in order

    @property
    def running(self) -> list[Process]:
        return [p for p in self.processes.values() if p.alive]

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
    def died(self, node: Node) -> None: ...
    def worker_died(self, process: Process, exitcode: int, because: str) -> None: ...


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
        self.watchers = list(watchers)
        self.listeners: list[Callable[[Node, saw.Observation, list[do.Effect]], None]] = []
        for watcher in self.watchers:
            watcher.cluster = self
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.store = Store(self) if lease_s is None else LeasedStore(self, lease_s)
        self.events = 0
        self._addresses: dict[Address, Node] = {}
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
            act(*args)
        self.now = until

    def draw(self, range_: Range) -> float:
        low, high = range_
        return low if low == high else self.rng.uniform(low, high)

    def chance(self, odds: float) -> bool:
        return odds > 0.0 and self.rng.random() < odds

    # --- agents

    def start(self, config: EngineConfig, policy: RestartPolicyStrategy, offset: float = 0.0) -> Node:
        node = Node(config.node, config, Engine(config, policy, self.now + offset), offset, born=self.now)
        self.nodes[node.name] = node
        self._addresses[Address(config.host, config.port)] = node
        for watcher in self.watchers:
            watcher.started(node)
        self.after(self.draw(self.timing.store), self.store.begin, node)
        return node

    def deliver(self, node: Node, seen: saw.Observation) -> None:
        self._give(node, partial(self._observe, node, seen))

    def _give(self, node: Node, act: Callable[[], None]) -> None:
        if not node.alive:
            return
        if node.stalled:
            node.backlog.append(act)
        else:
            act()

    def _observe(self, node: Node, seen: saw.Observation) -> None:
        if not node.alive:
            return
        if not isinstance(seen, CHATTER):
            for watcher in self.watchers:
                watcher.observed(node, seen)
        effects = node.engine.observe(seen, self.now + node.offset)
        for listener in self.listeners:
            listener(node, seen, effects)
        for effect in effects:
            if not isinstance(effect, CHATTER):
                for watcher in self.watchers:
                    watcher.effect(node, effect)
            self._perform(node, effect)
        self._arm(node)

    def _arm(self, node: Node) -> None:
        due = node.engine.deadline()
        if due is None or not node.alive:
            return
        at = max(due - node.offset, self.now) + TIMER_LATE_S
        if node.tick_at is None or at < node.tick_at:
            node.tick_at = at
            self.after(at - self.now, self._alarm, node, at)

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
        if due is not None and due - node.offset <= self.now:
            node.ticks += 1
            self._observe(node, saw.Tick())
        else:
            self._arm(node)

    def stall(self, node: Node) -> None:
        node.stalled = True

    def wake(self, node: Node) -> None:
        node.stalled, node.woke = False, self.now
        while node.backlog and node.alive and not node.stalled:
            node.backlog.popleft()()

    def crash(self, node: Node, silent: bool = False) -> None:
        """The agent's process ends, and its workers with it. `silent`: with its host, so nobody is told."""
        if not node.alive:
            return
        node.dark = silent
        for process in node.running:
            process.alive = False
            if not silent:
                self._felt(process)
        self._gone(node, silent)

    def _gone(self, node: Node, silent: bool = False) -> None:
        node.alive = False
        node.died = self.now
        for watcher in self.watchers:
            watcher.died(node)
        for link in list(node.links):
            link.ends.discard(node.name)
            if not silent and link.up:
                other = link.other(node)
                self._send(link, other, partial(self._link_down, link, other, True), self.timing.notice)
        if self.store.host is node:
            self.store.host_died()

    def _perform(self, node: Node, effect: do.Effect) -> None:
        match effect:
            case do.Say(to, message):
                self._say(node, to, message)
            case do.Propose(round_):
                self.store.propose(node, round_)
            case do.BeatAsLeader():
                self.store.raise_beats(node)
            case do.ReadLeaderBeat():
                self.store.read_beats(node)
            case do.RenewLease():
                self.store.renew(node)
            case do.OpenWorkerStore():
                self.after(self.draw(self.timing.open_store), self._store_opened, node)
            case do.CloseWorkerStore(port):
                if port not in node.worker_stores:
                    raise AssertionError(f"{node.name} closes a worker store that it does not have")
                node.worker_stores.remove(port)
            case do.Dial(member):
                self._dial(node, member)
            case do.HangUp(other):
                self._hang_up(node, other)
            case do.Tell(local_rank, launch):
                process = node.processes[local_rank]
                if process.launch == launch:
                    process.tells.append(effect)
                    slow = (0.0, 4.0) if self.chance(self.habits.slow_to_leave) else (0.0, 0.0)
                    delay = self.draw(self.timing.worker_seen) + self.draw(slow)
                    if process.stuck_since is not None and process.out_at is None:
                        slow = (0.0, SLOW_TO_GET_OUT_S) if self.chance(self.habits.slow_to_get_out) else (0.0, 0.0)
                        out_s = self.draw(self.timing.worker_seen) + self.draw(slow)
                        process.out_at = self.now + out_s
                        self.after(out_s, self._freed, process)
                    if process.out_at is not None:
                        delay = max(delay, process.out_at - self.now)
                    self.after(delay, self._obey, process, len(process.tells))
            case do.Spawn(tells):
                self._spawn(node, tells)
            case do.SignalWorker(local_rank, launch, signum):
                self._signal(node.processes[local_rank], launch, signum)
            case do.LookAtProgress(local_rank, launch):
                process = node.processes[local_rank]
                if process.alive and process.launch == launch:
                    stopped = process.hung_since if process.hung_since is not None else process.stuck_since
                    at = self.now if stopped is None else stopped
                    self.after(
                        0.0, self.deliver, node, saw.ProgressSeen(local_rank, launch, at + node.offset, process.stopped)
                    )
            case do.End(result):
                node.result = result
                self.store.leave(node)
                self._gone(node)
            case do.ShowStacks(local_rank, launch):
                node.processes[local_rank].shown |= node.processes[local_rank].launch == launch
            case do.Note():
                pass

    def _store_opened(self, node: Node) -> None:
        if node.alive:
            self._port += 1
            node.worker_stores.add(self._port)
            self.deliver(node, saw.WorkerStoreOpened(self._port))

    # --- workers

    def _spawn(self, node: Node, tells: tuple[do.Tell, ...]) -> None:
        for tell in tells:
            process = Process(node, tell.local_rank, tell.launch, self.chance(self.habits.ignore_sigterm))
            process.tells.append(tell)
            node.processes[tell.local_rank] = process
            outside = tell.state is WorkerState.PAUSED
            ready_s = self.draw(self.timing.worker_ready if outside else self.timing.worker_seen)
            process.ready_s = ready_s + (node.slow_to_ready_s if outside else 0.0)
            self.after(process.ready_s, self._obey, process, 1)

    def _signal(self, process: Process, launch: int, signum: int) -> None:
        if process.launch != launch:
            return
        fault, hard = process.status.fault, process.node.config.job.restart_policy == "hard"
        due = process.shown or (hard and fault is not None and fault.round == process.last.round)
        process.failing |= due and not process.asked and process.node.engine.stage in (Stage.WAITING, Stage.WORKING)
        process.asked = True
        if not process.alive:
            return
        if signum == SIGKILL:
            self.after(self.draw(self.timing.worker_ends), self.end_worker, process, -SIGKILL)
        elif not process.stubborn:
            code = 0 if self.chance(self.habits.exit_zero_on_sigterm) else -signum
            self.after(self.draw(self.timing.worker_ends), self.end_worker, process, code)

    def _obey(self, process: Process, tells: int) -> None:
        if process.alive and process.hung_since is None:
            process.applied = max(process.applied, tells)
            self.say(process, ready=True, applied=process.applied, limits=self.habits.limits)
            here = tells == len(process.tells) and process.last.state is WorkerState.HEALTHY
            if here and any(peer.hung_since is not None for peer in self.world(process.last.round)):
                process.stuck_since = self.now

    def _freed(self, process: Process) -> None:
        """It got out of what it waited in, and is on its way."""
        process.stuck_since = process.out_at = None

    def say(self, process: Process, **changes: Any) -> None:
        process.status = process.status.model_copy(update=changes)
        self.deliver(process.node, saw.WorkerSaid(process.local_rank, process.launch, process.status))

    def hang(self, process: Process, stopped: bool = False) -> None:
        """It makes no progress any more, and soon nor do the others of its world, who wait for it."""
        process.hung_since, process.has_hung, process.stopped = self.now, True, stopped
        for peer in self.world(process.last.round):
            if peer.hung_since is None and peer.stuck_since is None:
                peer.stuck_since = self.now

    def recover(self, process: Process) -> None:
        """One that hung goes on, and does what it was told meanwhile."""
        process.hung_since, process.stopped = None, False
        for peer in self.world(process.last.round):
            self._freed(peer)
        self._obey(process, len(process.tells))

    def end_worker(self, process: Process, exitcode: int, because: str = "") -> None:
        """The process ends by itself or by a signal."""
        if not process.alive:
            return
        process.alive = False
        for watcher in self.watchers:
            watcher.worker_died(process, exitcode, because)
        seen = saw.WorkerExited(process.local_rank, process.launch, exitcode)
        self.after(self.draw(self.timing.worker_seen), self.deliver, process.node, seen)
        if exitcode != 0 or not process.leaving:
            self._felt(process)

    def say_broken(self, process: Process, number: int) -> None:
        if process.alive and process.hung_since is None:
            self.after(self.draw(self.timing.worker_seen), partial(self.say, process, broken_round=number))

    def say_fault(self, process: Process, number: int, last_call_wait: float = 0.0, depth: int = 0) -> None:
        """An exception: the worker lives, and its world is over."""
        if process.alive and process.hung_since is None:
            fault = WorkerFault(round=number, depth=depth)
            said = partial(self.say, process, fault=fault, last_call_wait=last_call_wait)
            self.after(self.draw(self.timing.worker_seen), said)

    def _felt(self, lost: Process) -> None:
        if not self.habits.coupled or lost.last.state is not WorkerState.HEALTHY:
            return
        for peer in self.world(lost.last.round):
            if peer is not lost and peer.node.side == lost.node.side:
                self.after(self.draw(self.timing.peer_feels), self._feel, peer, lost.last.round, lost)

    def _feel(self, peer: Process, number: int, lost: Process) -> None:
        if not peer.works_in(number) or peer.leaving or peer.asked:
            return
        if self.chance(self.habits.fail_when_coupled):
            self.end_worker(peer, 1, because=lost.node.name)
        else:
            self.say_broken(peer, number)

    def world(self, number: int) -> list[Process]:
        """The processes that work in this world."""
        return [p for node in self.nodes.values() for p in node.processes.values() if p.works_in(number)]

    def finish(self, number: int, within: Range) -> None:
        """Everybody in this world is through with the script, and exits 0; nobody is before all are there."""
        world = self.world(number)
        if any(process.applied < len(process.tells) for process in world):
            self.after(0.1, self.finish, number, within)
            return
        for process in world:
            if not process.asked:
                process.leaving = True
                self.after(self.draw(within), self.end_worker, process, 0)

    # --- links

    def reachable(self, a: Node, b: Node) -> bool:
        return a.side == b.side

    def _dial(self, node: Node, member: Member) -> None:
        target = self._addresses[Address(member.host, member.port)]
        self._drop(node, node.dialled.pop(target.name, None))
        link = Link(node, target, ends={node.name})
        node.dialled[target.name] = link
        node.links[link] = None
        self.after(self.draw(self.timing.connect), self._connect, link)

    def _connect(self, link: Link) -> None:
        node, target = link.dialer, link.target
        if node.name not in link.ends:
            return
        if not self.reachable(node, target) or target.dark:
            self.after(self.draw(self.timing.give_up), self._link_down, link, node, False)
        elif not target.alive:
            self._link_down(link, node, False)
        else:
            # The kernel accepts, whatever the agent behind it is doing.
            link.up = True
            link.ends.add(target.name)
            target.links[link] = None
            self._send(link, node, partial(self._observe_link, link, node, saw.LinkUp(target.name)), self.timing.link)

    def _say(self, node: Node, to: str | None, message: Message) -> None:
        data = _encode_message(message)
        if to is None:
            links = list(node.inbound.values())
        else:
            links = [link for link in (node.dialled.get(to) or node.inbound.get(to),) if link is not None]
        for link in links:
            if link.up:
                other = link.other(node)
                self._send(link, other, partial(self._hear, link, node, other, data), self.timing.link)

    def _send(self, link: Link, receiver: Node, act: Callable[[], None], delay: Range) -> None:
        if not self.reachable(link.dialer, link.target):
            link.held.append((receiver, act))
            return
        at = max(self.now + self.draw(delay), link.sent_until.get(receiver.name, 0.0))
        link.sent_until[receiver.name] = at
        self.after(at - self.now, self._arrive, link, receiver, act)

    def _arrive(self, link: Link, receiver: Node, act: Callable[[], None]) -> None:
        if receiver.name in link.ends:
            self._give(receiver, act)

    def _hear(self, link: Link, sender: Node, receiver: Node, data: bytes) -> None:
        if receiver.name not in link.ends:
            return
        message = _decode_message(data)
        receiver.heard[sender.name] = self.now
        if isinstance(message, Hello):
            # A link that was accepted has no name before its first message.
            old = receiver.inbound.pop(sender.name, None)
            if old is not None and old is not link:
                self._drop(receiver, old)
            receiver.inbound[sender.name] = link
        self._observe(receiver, saw.Heard(sender.name, message))

    def _observe_link(self, link: Link, node: Node, seen: saw.Observation) -> None:
        if node.name in link.ends:
            self._observe(node, seen)

    def _link_down(self, link: Link, node: Node, gone: bool) -> None:
        """`node` learns that this link is no more."""
        if node.name not in link.ends or not node.alive:
            return
        named = link.dialer is node or node.inbound.get(link.dialer.name) is link
        self._forget(node, link)
        if named:
            self.deliver(node, saw.LinkDown(link.other(node).name, gone))

    def _forget(self, node: Node, link: Link) -> None:
        link.ends.discard(node.name)
        node.links.pop(link, None)
        for held in (node.dialled, node.inbound):
            if held.get(link.other(node).name) is link:
                del held[link.other(node).name]

    def _hang_up(self, node: Node, other: str) -> None:
        self._drop(node, node.dialled.get(other))

    def _drop(self, node: Node, link: Link | None) -> None:
        """This end is closed; the other end learns of it."""
        if link is None:
            return
        self._forget(node, link)
        if link.up:
            other = link.other(node)
            self._send(link, other, partial(self._link_down, link, other, False), self.timing.link)

    # --- the network

    def split(self, side: dict[str, int]) -> None:
        """Cut the network: nodes with different numbers do not reach each other."""
        for name, number in side.items():
            self.nodes[name].side = number

    def heal(self, break_odds: float = 0.0) -> None:
        """The network is whole again. Each link over the cut breaks or goes on, with what it held back."""
        for node in self.nodes.values():
            node.side = 0
        links = dict.fromkeys(link for node in self.nodes.values() for link in node.links)
        for link in links:
            held, link.held = link.held, []
            if held and self.chance(break_odds):
                for node in (link.dialer, link.target):
                    # The port of a process that is gone refuses, so its end is known to be certain.
                    self._send(
                        link, node, partial(self._link_down, link, node, not link.other(node).alive), self.timing.link
                    )
            else:
                for receiver, act in held:
                    self._send(link, receiver, act, self.timing.link)
