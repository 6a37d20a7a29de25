"""What may befall a simulated job while its seed breaks it: each fault by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.cluster import Node
from simulation.conditions import Weather
from simulation.store import LeasedStore
from simulation.workers import NEVER_S, Process
from softrun.agent.protocol import observations as saw

if TYPE_CHECKING:
    from simulation.chaos import Life

SIGTERM = 15


def _pick(life: Life, among: list[Node] | None = None) -> Node | None:
    nodes = life.up() if among is None else among
    return life.rng.choice(nodes) if nodes else None


def _leader(life: Life) -> Node | None:
    record = life.cluster.store.round
    nodes = life.cluster.nodes
    return next((nodes[m.node] for m in record.members if nodes[m.node].alive), None) if record is not None else None


def _process(life: Life, node: Node | None) -> Process | None:
    running = [] if node is None else [p for p in node.running if not p.asked]
    return life.rng.choice(running) if running else None


def kill_node(life: Life) -> None:
    if node := _pick(life):
        life.cluster.crash(node, bare=life.bares())


def power_off(life: Life) -> None:
    if node := _pick(life):
        life.cluster.crash(node, silent=True)


def kill_leader(life: Life) -> None:
    leader = _leader(life)
    if leader is not None:
        life.cluster.crash(leader, silent=life.rng.random() < 0.3, bare=life.bares())


def kill_two(life: Life) -> None:
    kill_leader(life)
    kill_node(life)


def flap(life: Life) -> None:
    kill_node(life)
    life.later(life.rng.uniform(0, 3), lambda: void(life.join()))


def join_late(life: Life) -> None:
    if len(life.up()) < 12:
        life.join()


def stall(life: Life) -> None:
    node = _leader(life) if life.rng.random() < 0.3 else _pick(life)
    if node is not None and not node.stalled:
        life.cluster.stall(node)
        stalled = node
        life.later(life.rng.uniform(0.1, 3 * life.plan.patience_s()), lambda: life.cluster.wake(stalled))


def suspend(life: Life) -> None:
    """A node's machine."""
    node = _pick(life)
    if node is not None and not node.stalled:
        life.cluster.suspend(node)
        suspended = node
        life.later(life.rng.uniform(0.1, 3 * life.plan.patience_s()), lambda: life.cluster.wake(suspended))


def split(life: Life) -> None:
    if all(node.side == 0 for node in life.up()):
        life.cluster.network.split({node.name: life.rng.randint(0, 1) for node in life.up()})
        # A store that is no node's own is on one of the two sides.
        cut = [node for node in life.up() if node.side and life.plan.lease_s is not None]
        for node in cut:
            node.store_cut = True

        def heal() -> None:
            life.cluster.network.heal(break_odds=life.rng.choice((0.0, 0.5, 1.0)))
            for node in cut:
                life.cluster.store.reconnect(node)

        life.later(life.rng.uniform(0.1, 3 * life.plan.patience_s()), heal)


def cut_from_store(life: Life) -> None:
    if node := _pick(life):
        node.store_cut = True
        life.later(life.rng.uniform(0.1, 3 * life.plan.patience_s()), lambda: life.cluster.store.reconnect(node))


def store_away(life: Life) -> None:
    store = life.cluster.store
    if isinstance(store, LeasedStore) and not store.away:
        store.go_away()
        life.later(life.rng.uniform(0.1, 3 * store.lease_s), store.come_back)


def bad_store(life: Life) -> None:
    odds = life.rng.choice((0.1, 0.5))
    life.cluster.weather = Weather(
        lose_request=odds, lose_reply=odds, slow=odds, slow_s=(0.0, 2 * life.plan.interval_s)
    )
    life.later(life.rng.uniform(0.5, 5.0), lambda: setattr(life.cluster, "weather", Weather()))


def fail_worker(life: Life) -> None:
    node = _leader(life) if life.rng.random() < 0.4 else _pick(life)
    if process := _process(life, node):
        life.cluster.workers.end(process, life.rng.choice((1, -9, -11)))


def fail_all_workers(life: Life) -> None:
    if node := _pick(life):
        for process in node.running:
            if not process.asked:
                life.cluster.workers.end(process, 1)


def break_world(life: Life) -> None:
    process = _process(life, _pick(life))
    if process is not None:
        life.cluster.workers.say_broken(process, process.last.round)


def except_worker(life: Life) -> None:
    process = _process(life, _pick(life))
    if process is not None and process.entered:
        life.cluster.workers.say_fault(process, process.last.round, life.rng.choice((0.0, 0.2)))


def hang_worker(life: Life) -> None:
    process = _process(life, _pick(life))
    if process is not None and process.entered and process.hung_since is None:
        life.cluster.workers.hang(process, stopped=process.launch % 2 == 0)
        hung = process
        if life.rng.random() < 0.5:
            life.later(life.rng.uniform(0.1, 8.0), lambda: life.cluster.workers.recover(hung))


def slow_imports(life: Life) -> None:
    """From now on the workers that this node starts outside are long in coming, or never come."""
    if node := _pick(life):
        node.slow_to_ready_s = life.rng.choice((3.0, NEVER_S))


def sigterm(life: Life) -> None:
    if node := _pick(life):
        life.cluster.deliver(node, saw.Signalled(SIGTERM))


def finish_early(life: Life) -> None:
    record = life.cluster.store.round
    if record is not None and life.rng.random() < 0.2:
        life.cluster.workers.finish(record.number, (0.0, life.rng.choice((0.1, 8.0))))


def leave_call(life: Life) -> None:
    """sys.exit(0) in a wrapped function: its peers wait for it at the end."""
    process = _process(life, _pick(life))
    if process is not None and process.status.called == process.last.round and not process.stalled:
        process.has_left = True
        if process.local_rank % 2:
            life.cluster.workers.abandon_call(process)
        else:
            life.cluster.workers.end(process, 0)


def void(_: object) -> None: ...


FAULTS: dict[str, Callable[[Life], None]] = {
    act.__name__: act
    for act in (
        kill_node,
        power_off,
        kill_leader,
        kill_two,
        flap,
        join_late,
        stall,
        split,
        cut_from_store,
        store_away,
        bad_store,
        fail_worker,
        fail_all_workers,
        break_world,
        except_worker,
        hang_worker,
        slow_imports,
        sigterm,
        finish_early,
        leave_call,
    )
}
ALL_FAULTS = {**FAULTS, suspend.__name__: suspend}
"""With those that the plan of a seed does not draw."""
