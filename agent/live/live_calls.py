"""The calls of this node's workers, and what is answered: the part of `live_workers` that runs in every agent.

    workers ──Call──▶ node ──Calls: one message──▶ coordinator ──Verdict: one message──▶ node ──Answer──▶ workers

In an **epoch**, which is a world, all living workers call, the coordinator decides, and all get the same verdict. No
store is asked. It decides only while it is sure that nobody has gone on without it: else a call would count that was
made by a worker whose successor is in the next epoch already. The epoch ends with the next record, and with it ends
every block that had no verdict: whoever waits is told that the epoch is over.

The danger is a verdict that some have got and others have not when the epoch ends. So a leader that ends an epoch which
it did not coordinate itself first has all nodes that it hears *promise* to deliver nothing more, and each says what was
delivered there last (`promise`). The record that follows carries that, and whoever waits takes it from there. A leader
that is the coordinator knows what it has decided, promises that to itself, and need not ask.

Under `--commit durable` there is no such danger, and no promise: the coordinator tells nobody, but puts each verdict
into the record (`undecided`), and all take it from there (`adopt`). So a block costs a change of the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from softrun.agent.live.coordinator import Coordinator
from softrun.agent.live.epoch import Epoch, full
from softrun.agent.protocol.effects import Answered, Caller, Effect, Say
from softrun.agent.protocol.live import EVERYBODY, Calls, Made, Scope, Verdict, name_of
from softrun.agent.protocol.model import Phase, Round
from softrun.runtime.calls import Call, Reply, Way

EPOCHS = 2
"""How many can be open at once: if nobody was lost, workers go on in a world until all leave it after one step."""
MOST_EARLY = 1 << 15
"""How many messages of an epoch that is not known yet are kept: one for each node, and it is known soon."""
LEAVE_S = 2.0
"""How long a worker that only waits for one that hangs may take to get out of its block, once it is told to."""
Worker = tuple[int, int]  # local rank and launch


@dataclass(frozen=True)
class Overdue:
    """A worker should have called by now: it had `timeout_s`. `was_told`: and since then it was to leave its world."""

    local_rank: int
    timeout_s: float
    was_told: bool


@dataclass(frozen=True)
class _Busy:
    """Until when a worker must call."""

    until: float
    timeout_s: float
    is_told: bool = False


class LiveCalls:
    """The calls of one node. Methods return effects, in order."""

    def __init__(self, node: str, durable: bool = False) -> None:
        self._node = node
        self._durable = durable
        self._epochs: dict[int, Epoch] = {}
        self._coordinators: dict[int, Coordinator] = {}
        self._open: dict[Worker, Call] = {}
        self._busy: dict[Worker, _Busy] = {}
        self._sent: dict[tuple[int, Scope], Calls] = {}
        self._over: dict[int, Reply] = {}  # what is said to whoever calls too late
        self._early: dict[tuple[str, int, Scope], Calls] = {}  # of an epoch that this node has yet to hear of
        self._now = 0.0
        self._sure_until = inf  # nobody has gone on without this node
        self._stopped = 0  # nothing more is delivered in epochs up to this one
        self.used = 0
        """The last epoch in which one of this node's workers has made a call."""

    # --- what the engine asks

    def be_sure(self, until: float, now: float) -> list[Effect]:
        """Nobody has gone on without this node `until` then; until then it may decide what the calls wait for."""
        self._sure_until, self._now = until, now
        effects: list[Effect] = []
        for number, coordinator in self._coordinators.items():
            if number > self._stopped:
                effects += self._tell(coordinator.decide() if now < until else ())
        return effects

    def undecided(self, round_: Round) -> tuple[Verdict, ...]:
        """If durable: what the record has to take in before anybody is told; () if it has it all."""
        if not self._durable:
            return ()
        known = {(v.epoch, v.scope): v for v in round_.verdicts if v.epoch >= round_.number - 1}
        due = known | {
            (number, scope): verdict
            for number, coordinator in self._coordinators.items()
            for scope, verdict in coordinator.decided.items()
        }
        return tuple(due[key] for key in sorted(due)) if due != known else ()

    def coordinates(self, epoch: int) -> bool:
        """Whether this node decides in this epoch, and in those before it that are open."""
        return all(each.coordinator == self._node for number, each in self._epochs.items() if number <= epoch)

    def is_open(self, number: int) -> bool:
        """Whether calls may still be made in this epoch."""
        return number in self._epochs

    def promise(self, number: int) -> None:
        """Deliver nothing more in this epoch, nor in those before it."""
        self._stopped = max(self._stopped, number)

    def delivered(self) -> tuple[Verdict, ...]:
        """What was delivered here last, or decided, on each scope of the epochs that are open.

        What leaves nobody with another belief needs no second telling: entries, failures and mistakes.
        """
        last: list[Verdict] = []
        for number, epoch in self._epochs.items():
            coordinator = self._coordinators.get(number)
            last += (coordinator.decided if coordinator is not None else epoch.delivered).values()
        return tuple(v for v in last if v.way is not Way.ENTRY and v.ok is not False and not v.mistake)

    def deadline(self) -> float | None:
        """When a worker is overdue with its call; None if none will be."""
        return min((busy.until for busy in self._busy.values()), default=None)

    def overdue(self, now: float) -> list[Overdue]:
        """The workers that should have called by now. Each is told once, and once more if it has not called then.

        A worker that hangs in its block and those that wait for it there look alike. So all have to leave first.
        """
        late = [(worker, busy) for worker, busy in self._busy.items() if busy.until <= now]
        for worker, busy in late:
            if busy.is_told:
                del self._busy[worker]
            else:
                self._busy[worker] = _Busy(now + LEAVE_S, busy.timeout_s, is_told=True)
        return [Overdue(local_rank, busy.timeout_s, busy.is_told) for (local_rank, _), busy in late]

    # --- what happens

    def called(self, local_rank: int, launch: int, call: Call, now: float) -> list[Effect]:
        """A worker has made a call."""
        self._now = now
        self._busy.pop((local_rank, launch), None)
        epoch = self._epochs.get(call.epoch)
        if epoch is None:
            return [_answered(local_rank, launch, call, self._over.get(call.epoch, Reply(over=True)))]
        if call.scope and (mistake := _mistake(epoch, call, name_of(self._node, local_rank))):
            return [_answered(local_rank, launch, call, Reply(mistake=mistake))]
        self.used = max(self.used, call.epoch)
        self._open[local_rank, launch] = call
        if call.fault is not None:
            return []  # no verdict takes it: it waits for the end of the epoch
        return self._gather(epoch, full(call.scope, epoch))

    def departed(self, local_rank: int) -> list[Effect]:
        """A worker makes no more calls in the worlds that there are: its work is done."""
        effects: list[Effect] = []
        for epoch in self._epochs.values():
            name = name_of(self._node, local_rank)
            if name in epoch.members and name not in epoch.departed:
                epoch.depart({name})
                effects += self._send(epoch, Calls(epoch.number, EVERYBODY, 0, (), self._departed_of(epoch)))
                for scope in {full(call.scope, epoch) for call in self._open.values() if call.epoch == epoch.number}:
                    effects += self._gather(epoch, scope)
        return effects

    def gone(self, local_rank: int, launch: int) -> None:
        """The process of a worker has ended, and nobody waits for its answer."""
        self._open.pop((local_rank, launch), None)
        self._busy.pop((local_rank, launch), None)

    def hear(self, node: str, said: Calls | Verdict, now: float) -> list[Effect]:
        """Another agent says something."""
        self._now = now
        if isinstance(said, Verdict):
            return self._deliver(said)
        epoch, coordinator = self._epochs.get(said.epoch), self._coordinators.get(said.epoch)
        if epoch is None:
            if said.epoch > max(self._epochs, default=0) and len(self._early) < MOST_EARLY:
                self._early[node, said.epoch, said.scope] = said
            return []
        if coordinator is None or epoch.number <= self._stopped:
            return []
        return self._coordinate(coordinator, node, said)

    def link_up(self, node: str) -> list[Effect]:
        """What was said to this node may not have arrived: say it again."""
        return [
            Say(node, calls)
            for (number, _), calls in self._sent.items()
            if number in self._epochs and self._epochs[number].coordinator == node
        ]

    def adopt(self, round_: Round, placed: bool) -> list[Effect]:
        """There is a new record; `placed`: this node has a place in it.

        If all leave after an agreed step, their world goes on until then, also for a node that leaves for good.
        """
        effects: list[Effect] = []
        world, in_step = round_.phase is Phase.SEALED and placed, round_.phase is Phase.SEALED and round_.leave_after
        for number in sorted(self._epochs):
            if not ((world and number == round_.number) or (in_step and number == round_.number - 1)):
                effects += self._end(self._epochs[number], round_, placed)
        if self._durable:
            for verdict in round_.verdicts:  # a node that leaves takes them too, as long as its epoch lasts
                effects += self._deliver(verdict)
        if world and round_.number not in self._epochs and round_.number > self._stopped:
            effects += self._begin(Epoch(round_))
        return effects

    # --- an epoch begins and ends

    def _begin(self, epoch: Epoch) -> list[Effect]:
        self._epochs[epoch.number] = epoch
        while len(self._over) > EPOCHS:
            del self._over[min(self._over)]
        if epoch.coordinator == self._node:
            self._coordinators[epoch.number] = Coordinator(epoch)
        early, self._early = self._early, {}
        effects: list[Effect] = []
        for (node, number, scope), calls in early.items():
            if number == epoch.number:
                effects += self.hear(node, calls, self._now)
            elif number > epoch.number:
                self._early[node, number, scope] = calls
        return effects

    def _end(self, epoch: Epoch, after: Round, placed: bool) -> list[Effect]:
        effects: list[Effect] = []
        self._stopped = max(self._stopped, epoch.number)
        self._busy = {worker: busy for worker, busy in self._busy.items() if busy.is_told}
        if placed:
            for verdict in after.verdicts:
                if verdict.epoch == epoch.number:
                    effects += self._answer(epoch, verdict)
        known = after.fault if after.fault is not None and after.fault.round == epoch.number else None
        fault = known.text if known is not None else ""
        names = [*epoch.members]
        raised = tuple(names[rank] for rank, _ in known.causes if rank < len(names)) if known is not None else ()
        lost = epoch.lost(after) if placed else ()
        over = Reply(over=True, lost=lost, raised=raised, fault=fault, evicted=not placed)
        waiting = [(worker, call) for worker, call in self._open.items() if call.epoch == epoch.number]
        for worker, _ in waiting:
            del self._open[worker]
        if waiting:
            effects.append(Answered(tuple(Caller(*worker, call.number) for worker, call in waiting), over))
        self._over[epoch.number] = over
        del self._epochs[epoch.number]
        self._coordinators.pop(epoch.number, None)
        self._sent = {key: calls for key, calls in self._sent.items() if key[0] != epoch.number}
        return effects

    # --- one verdict

    def _gather(self, epoch: Epoch, scope: Scope) -> list[Effect]:
        """If all workers of this node that are in the scope have called, say so."""
        needed = epoch.needed(scope).get(self._node)
        if needed is None or len(self._open) < len(needed):
            return []
        made = {
            local_rank: Made(local_rank, call.way, call.tag, call.site)
            for (local_rank, _), call in self._open.items()
            if call.epoch == epoch.number and call.fault is None and full(call.scope, epoch) == scope
        }
        if not needed <= made.keys():
            return []
        calls = tuple(made[local_rank] for local_rank in sorted(needed))
        return self._send(epoch, Calls(epoch.number, scope, epoch.awaited(scope), calls, self._departed_of(epoch)))

    def _departed_of(self, epoch: Epoch) -> tuple[int, ...]:
        if not epoch.departed:
            return ()
        prefix = name_of(self._node, 0)[:-1]
        return tuple(sorted(int(name[len(prefix) :]) for name in epoch.departed if name.startswith(prefix)))

    def _send(self, epoch: Epoch, calls: Calls) -> list[Effect]:
        coordinator = self._coordinators.get(epoch.number)
        if coordinator is None:
            self._sent[epoch.number, calls.scope] = calls
            return [Say(epoch.coordinator, calls)]
        return self._coordinate(coordinator, self._node, calls) if epoch.number > self._stopped else []

    def _coordinate(self, coordinator: Coordinator, node: str, calls: Calls) -> list[Effect]:
        effects = self._tell(coordinator.hear(node, calls))
        if self._now < self._sure_until or self._durable:
            effects += self._tell(coordinator.decide(None if calls.departed else calls.scope))
        return effects

    def _tell(self, verdicts: Iterable[tuple[str, Verdict]]) -> list[Effect]:
        effects: list[Effect] = []
        own: list[Verdict] = []
        for to, verdict in verdicts:
            if self._durable:
                continue  # the record tells it
            if to == self._node:
                own.append(verdict)
            else:
                effects.append(Say(to, verdict))
        for verdict in own:
            effects += self._deliver(verdict)
        return effects

    def _deliver(self, verdict: Verdict) -> list[Effect]:
        epoch = self._epochs.get(verdict.epoch)
        if epoch is None or epoch.number <= self._stopped:
            return []  # others may be told that it was too late: the next record says which
        return self._answer(epoch, verdict)

    def _answer(self, epoch: Epoch, verdict: Verdict) -> list[Effect]:
        """Answer the calls that this verdict takes, unless they were answered before."""
        if verdict.turn != epoch.awaited(verdict.scope):
            return []
        epoch.delivered[verdict.scope] = verdict
        epoch.depart(set(verdict.gone))
        self._sent.pop((epoch.number, verdict.scope), None)
        effects: list[Effect] = []
        callers: list[Caller] = []
        for (local_rank, launch), call in [*self._open.items()]:
            taken = call.epoch == epoch.number and call.fault is None and full(call.scope, epoch) == verdict.scope
            if taken and not (epoch.departed and name_of(self._node, local_rank) in epoch.departed):
                del self._open[local_rank, launch]
                if call.way is not verdict.way and not verdict.mistake:
                    mistake = f"{call.site}: the call before this one was given up, and has been answered meanwhile"
                    effects.append(_answered(local_rank, launch, call, Reply(mistake=mistake)))
                    continue
                if call.timeout_s and (verdict.way is Way.ENTRY or verdict.ok):
                    self._busy[local_rank, launch] = _Busy(self._now + call.timeout_s, call.timeout_s)
                callers.append(Caller(local_rank, launch, call.number))
        if callers:
            members = () if verdict.way is Way.EXIT else tuple(epoch.members.items())
            effects.append(Answered(tuple(callers), _reply(verdict, members)))
        return effects


def _answered(local_rank: int, launch: int, call: Call, reply: Reply) -> Answered:
    return Answered((Caller(local_rank, launch, call.number),), reply)


def _reply(verdict: Verdict, members: tuple[tuple[str, str], ...]) -> Reply:
    return Reply(
        verdict.turn,
        ok=verdict.ok,
        tags=verdict.tags,
        gone=verdict.gone,
        mistake=verdict.mistake,
        members=members,
    )


def _mistake(epoch: Epoch, call: Call, own: str) -> str:
    """What is wrong with the scope of a call that the worker `own` has made; "" if nothing is."""
    strangers = epoch.strangers(call.scope)
    if strangers:
        return f"{call.site}: no worker of this world is called {strangers[0]!r}: take names from `Live.members`"
    return "" if own in call.scope else f"{call.site}: the scope does not name {own}, which asks"
