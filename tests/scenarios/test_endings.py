"""The table of `docs/endings.md`: each ending, under each policy, played on the simulated world.

`SOFTRUN_REWRITE=1 pytest tests/scenarios` writes the table anew. Commit only a rewrite that you understand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from scenarios.player import Block, Player
from simulation.cluster import Cluster, Node, Watcher
from simulation.workers import Process
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Outcome
from softrun.agent.protocol.model import Phase

PAGE = Path(__file__).parents[2] / "docs" / "endings.md"
MARKS = "<!-- from here on: tests/scenarios/test_endings.py -->\n", "<!-- up to here -->\n"
JOB = "job nodes=2:3 workers=2 restarts=1 step=0.1s join_timeout=60 grace=5s"
NODES = ("A", "B", "C")
POLICIES = {
    "hard": "policy=hard",
    "soft, no-replace": "policy=soft failure=no-replace",
    "soft, replace": "policy=soft failure=replace",
    "soft, record": "policy=soft failure=record",
}
CODES = {Outcome.SUCCEEDED: 0, Outcome.PREEMPTED: 75}


class Ending(NamedTuple):
    """How something ends: what has happened `before`, and what happens then, as directives of a scenario."""

    name: str
    then: str
    before: tuple[str, ...] = ()


C_FINISHES = ("worker C/0 exits 0", "worker C/1 exits 0", "after 2s")
ALL_BUT_ONE = tuple(f"worker {node}/{rank} exits 0" for node in NODES for rank in (0, 1))[:-1]
ENDINGS = (
    Ending("a worker of C exits with 0", "worker C/1 exits 0"),
    Ending("it is the last one that works", "worker C/1 exits 0", ALL_BUT_ONE),
    Ending("a worker of C fails, by an exit code or a signal", "worker C/1 exits 1"),
    Ending("it has no restart left", "worker C/1 exits 1", ("worker C/1 exits 1", "after 5s")),
    Ending("C's other worker has exited with 0", "worker C/1 exits 1", ("worker C/0 exits 0", "after 2s")),
    Ending("a worker of B fails, and C has finished", "worker B/1 exits 1", C_FINISHES),
    Ending("C's agent gets SIGTERM or SIGINT", "sigterm C"),
    Ending("C has finished", "sigterm C", C_FINISHES),
    Ending("too few nodes are left", "sigterm C", ("sigterm B", "after 5s")),
    Ending("C is killed", "kill C"),
    Ending("C has finished", "kill C", C_FINISHES),
    Ending("too few nodes are left", "kill C", ("kill B", "after 5s")),
    Ending("B is killed, and C had finished and is gone", "kill B", (*C_FINISHES, "kill C", "after 2s")),
    Ending("C is switched off, or cut off", "power off C"),
    Ending("all agents get SIGTERM", "sigterm A, sigterm B, sigterm C"),
)


class Reader(Watcher):
    """Reads what the launchers say at the default level."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def effect(self, node: Node, effect: do.Effect) -> None:
        if isinstance(effect, do.Note) and effect.warning:
            self.said.append(effect.text)


def played(policy: str, ending: Ending) -> tuple[str, str]:
    """What comes of it in fifteen seconds, and the first line that says so."""
    player = Player()
    begin = [f"{JOB} {POLICIES[policy]}"]
    begin += [f"never asks {node}" for node in NODES] if policy == "hard" else []
    list(player.play([Block([], [*begin, f"start {' '.join(NODES)}", "after 5s", *ending.before], [])]))
    cluster, reader = player.cluster, Reader()
    cluster.watchers.append(reader)
    before = Moment(cluster)
    list(player.play([Block([], [*ending.then.split(", "), "after 15s"], [])]))
    return before.told(cluster, ending.then), next(iter(reader.said), "")


class Moment:
    """Who is there, and in which world, before something ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._launches = {process.name: process.launch for process in _processes(cluster)}
        self._number = _world(cluster)[0]
        self._up = [name for name, node in cluster.nodes.items() if node.alive]

    def told(self, cluster: Cluster, then: str) -> str:
        """What has come of it."""
        number, phase = _world(cluster)
        left = [cluster.nodes[name] for name in self._up if f"kill {name}" not in then]
        living = [process for process in _processes(cluster) if process.alive and not process.node.dark]
        again = [process.name for process in living if process.launch > self._launches.get(process.name, 0)]
        said = []
        if again:
            who = "all workers" if len(again) == len(living) else " and ".join(again)
            said.append(f"{who} {'start' if len(again) > 1 else 'starts'} again")
        if phase is Phase.OPEN:
            said.append("the others wait")
        elif len(again) < len(living):
            said.append("the others go on" + (" in a new world" if number > self._number else ""))
        ended = [node for node in left if not node.alive and node.result is not None]
        for code in sorted({_code(node) for node in ended}):
            nodes = [node.name for node in ended if _code(node) == code]
            reasons = {node.result.reason for node in ended if node.result is not None and _code(node) == code} - {""}
            who = "all end" if len(nodes) == len(left) > 1 else f"{' and '.join(nodes)} ends"
            said.append(f"{who} with {code}" + "".join(f": `{reason}`" for reason in sorted(reasons)))
        return "; ".join(said)


def _processes(cluster: Cluster) -> list[Process]:
    return [process for node in cluster.nodes.values() for process in node.processes.values()]


def _world(cluster: Cluster) -> tuple[int, Phase]:
    record = cluster.store.round
    assert record is not None
    return record.number, record.phase


def _code(node: Node) -> int:
    assert node.result is not None
    return CODES.get(node.result.outcome, 1)


def table() -> str:
    rows = [f"| what ends | {' | '.join(POLICIES)} | first line |", "|---" * (len(POLICIES) + 2) + "|"]
    for ending in ENDINGS:
        cells = [played(policy, ending) for policy in POLICIES]
        said = next((line for _, line in cells if line), "")
        begins = "" if ending.name.startswith(("a ", "C's agent", "C is", "B is", "all")) else "… and "
        rows.append(
            f"| {begins}{ending.name} | {' | '.join(what for what, _ in cells)} | {f'`{said}`' if said else ''} |"
        )
    return "\n".join(rows) + "\n"


def test_the_table_in_the_docs_is_what_happens() -> None:
    text = PAGE.read_text()
    head, rest = text.split(MARKS[0])
    written, tail = rest.split(MARKS[1])
    now = table()
    if os.environ.get("SOFTRUN_REWRITE"):
        PAGE.write_text(head + MARKS[0] + now + MARKS[1] + tail)
    else:
        assert written == now
