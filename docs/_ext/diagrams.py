"""The generated diagrams: the stages of the engine, from their table, and what the transitions of the rendezvous record
do, tried on a record of each phase.

`python docs/_ext/diagrams.py` writes docs/pictures/*.dot, and draws *.svg with graphviz. A test holds the .dot files
against the code, and each picture against its .dot file by the checksum that it carries.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from softrun.agent.core.stages import TRANSITIONS, Stage
from softrun.agent.protocol.model import Address, JobSettings, Member, Phase, Round, Worker
from softrun.agent.rendezvous import transitions

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
_SETTINGS = JobSettings(min_nodes=1, max_nodes=2, restart_policy="soft", worker_failure="no-replace")
_NODE = Member(node="a", incarnation=1, host="a", port=1, role="default", workers=(Worker(0, 1),))
_STORE = Address("a", 2)

#: Each transition of `transitions`, applied to a record.
TRIALS: dict[str, Callable[[Round], Round]] = {
    "seal": lambda record: transitions.seal(record, [_NODE], _STORE, ()),
    "fall_short": lambda record: transitions.fall_short(record, [_NODE], ()),
    "take_over": lambda record: transitions.take_over(record, _NODE, ()),
    "admit_nobody": transitions.admit_nobody,
    "attest": lambda record: transitions.attest(record, "w"),
    "close": lambda record: transitions.close(record, ""),
    "give_up": lambda record: transitions.give_up(record, _STORE),
}


def arrows() -> list[tuple[str, str, str]]:
    """(from, to, transition), as the transitions themselves have it."""
    founded = transitions.found(_NODE, _SETTINGS)
    records = [founded, TRIALS["seal"](founded), TRIALS["close"](founded), TRIALS["give_up"](founded)]
    found = [("nothing", founded.phase.value, "found")]
    for record in records:
        for name, apply in TRIALS.items():
            try:
                found.append((record.phase.value, apply(record).phase.value, name))
            except AssertionError:
                if not record.is_last:
                    raise
    return found


def rendezvous() -> str:
    """The record's phases and what leads from one to the next, for graphviz."""
    together: dict[tuple[str, str], list[str]] = {}
    for start, end, name in arrows():
        together.setdefault((start, end), []).append(name)
    nodes = ["  nothing [shape=plaintext, style=solid];", *(f"  {phase.value};" for phase in Phase)]
    labels = {ends: "\\n".join(names) for ends, names in together.items()}
    return _graph("the rendezvous record", "monospace", nodes, labels)


def stages() -> str:
    """The engine's stages and what leads from one to the next, for graphviz."""
    nodes = [f"  {stage.value};" for stage in Stage]
    labels = {(a.value, b.value): when.replace(", ", ",\\n") for (a, b), when in TRANSITIONS.items()}
    return _graph("the stages of an agent", "sans-serif", nodes, labels)


def _graph(name: str, font: str, nodes: list[str], labels: dict[tuple[str, str], str]) -> str:
    lines = [
        f'digraph "{name}" {{',
        "  rankdir=LR; bgcolor=transparent; nodesep=0.6; ranksep=1.1;",
        '  node [shape=box, style="rounded,filled", fillcolor="#eef3fb", color="#46628c", fontname="sans-serif"];',
        f'  edge [color="#46628c", fontname="{font}", fontsize=11];',
        *nodes,
        *(_arrow(start, end, label) for (start, end), label in labels.items()),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _arrow(start: str, end: str, label: str) -> str:
    return f'  {start} -> {end} [label="{label}"];'


DIAGRAMS: dict[str, Callable[[], str]] = {"rendezvous": rendezvous, "stages": stages}


def checksum(source: str) -> str:
    """What ties a picture to the source that it was drawn from."""
    return f"drawn from {hashlib.sha256(source.encode()).hexdigest()}"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, source_of in DIAGRAMS.items():
        source = source_of()
        (PICTURES / f"{name}.dot").write_text(source)
        drawn = subprocess.run(["dot", "-Tsvg"], input=source, capture_output=True, text=True, check=True).stdout
        (PICTURES / f"{name}.svg").write_text(f"{drawn.rstrip()}\n<!-- {checksum(source)} -->\n")


if __name__ == "__main__":
    main()
