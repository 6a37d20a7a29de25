"""What holds of each agent: what it stops when it is left behind, how it ends, and that it is not busy for nothing."""

from __future__ import annotations

from simulation.checkers.base import Checker
from simulation.cluster import Node
from simulation.workers import SLOW_TO_GET_OUT_S
from softrun.agent.consensus.leases import DRIFT
from softrun.agent.core.allowance import PAST
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Outcome
from softrun.agent.protocol.model import Round

FORGIVEN = 2.0
"""So many tolerances after the last refusal it is nobody's reason any more."""
WAKING_S = 0.5 + SLOW_TO_GET_OUT_S  # for the workers of an agent that was stopped to hear of it, and to obey


class NobodyMeetsTheReplaced(Checker):
    """The workers of a node that is taken for dead and lives have stopped by then.

    If hosts refused links to it shortly before, it may have been given up before its lease was over: they have
    stopped when it is, a tolerance later at the latest. But for workers that never ask of an agent that was itself
    stopped: it stops them when it wakes. But for a node that has founded another job meanwhile. And but for one
    that came to know late of the world that it is in, and has no lease there yet: its workers complete no step.
    Those of a host that was suspended have stopped when it wakes.
    """

    def __init__(self) -> None:
        self._asleep: dict[str, tuple[Round, Round]] = {}  # what was made without a node whose host was suspended

    def observed(self, node: Node, seen: saw.Observation) -> None:
        if node.name in self._asleep:
            self._has_stopped(node, *self._asleep.pop(node.name))

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        if before is None:
            return
        for name in after.lost:
            node = self.cluster.nodes[name]
            if node.engine.record is None or node.engine.record.lineage != before.lineage:
                continue
            works = [p for p in node.running if p.works_in(before.number) or (p.entered and p.applied < len(p.tells))]
            if node.allowed is not None and node.allowed.hold_at == PAST and not node.never_asks:
                continue
            if works and node.is_suspended:
                self._asleep[name] = before, after
            stops_at = node.true_time(node.allowed.leave_at) if node.allowed is not None else 0.0
            was_refused = self.cluster.network.has_refused(node, FORGIVEN * node.config.beat_tolerance_s)
            if works and was_refused and stops_at > self.cluster.now:
                self.cluster.after(self._longest_promise_s(), self._has_stopped, node, before, after)
            elif node.alive and not self._sleeps(node) and not node.holds_workers(self.cluster.now):
                working = ", ".join(p.name for p in works)
                self.demand(not working, f"{working} work on when round {after.number} is made without them")

    def _longest_promise_s(self) -> float:
        """For how long anybody may have granted a lease until now, which may have yet to be passed on."""
        living = [node for node in self.cluster.nodes.values() if node.alive]
        return (1 + DRIFT) * max(node.engine._election._liveness.promise_s for node in living)

    def _sleeps(self, node: Node) -> bool:
        return node.never_asks and (node.stalled or self.cluster.now - node.woke <= WAKING_S)

    def _has_stopped(self, node: Node, before: Round, after: Round) -> None:
        if node.alive and not self._sleeps(node) and not node.holds_workers(self.cluster.now):
            working = ", ".join(p.name for p in node.running if p.works_in(before.number))
            self.demand(not working, f"{working} work on after round {after.number} was made, and their lease was over")


class Ending(Checker):
    """An agent ends once, says so last, and leaves no worker behind; what it says is true."""

    def observed(self, node: Node, seen: saw.Observation) -> None:
        self.demand(node.result is None, f"{node.name} lives on after its end")

    def effect(self, node: Node, effect: do.Effect) -> None:
        self.demand(node.result is None, f"{node.name} did {effect} after its end")
        if isinstance(effect, do.End):
            orphans = [p.name for p in node.processes.values() if p.alive or p.kept]
            self.demand(not orphans, f"{node.name} left {', '.join(orphans)} behind")
            if effect.result.outcome is Outcome.WORKERS_FAILED:
                self.demand(bool(effect.result.failures), f"{node.name} says its workers failed, and names none")


class Patient(Checker):
    """No agent spins: its deadlines are few."""

    MOST_PER_INTERVAL = 40
    INTERVAL_S = 1.0
    """How long an interval is at most: of beats that are far between none is the reason of anything else."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}

    def observed(self, node: Node, seen: saw.Observation) -> None:
        since, ticks = self._since.setdefault(node.name, (self.cluster.now, node.ticks))
        span = self.cluster.now - since
        interval_s = min(node.config.beat_interval_s, self.INTERVAL_S)
        if span >= interval_s:
            self._since[node.name] = (self.cluster.now, node.ticks)
            most = self.MOST_PER_INTERVAL * (span / interval_s + 1)
            self.demand(node.ticks - ticks <= most, f"{node.name} ticked {node.ticks - ticks} times in {span:.2f} s")
