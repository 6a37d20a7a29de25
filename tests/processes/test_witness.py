"""Two nodes and a witness: what the job loses, and with whom it goes on."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step, free_port, recovery

pytestmark = pytest.mark.processes

Start = Callable[..., Node]
SOON_S = 15.0
"""A silent node is dead after 1.25 s, and busy machines take longer for everything."""
LASTING_S = 3.0
"""Several tolerances, in which nothing is to be seen."""


def start_witness(
    cluster: LocalCluster, port: int, *flags: str, job: str = "test", env: dict[str, str] | None = None
) -> Node:
    name = f"witness-{len(cluster.nodes)}"
    place = f"--rdzv_endpoint=127.0.0.1:{port}"
    command = [sys.executable, "-m", "softrun", "witness", f"--rdzv_id={job}", place, *flags]
    return cluster.start(name, command, {"LOGLEVEL": "INFO", **(env or {})})


def votes(cluster: LocalCluster, witness: Node) -> None:
    cluster.wait_for("the witness is in the record", lambda: "it has the casting vote of" in witness.output(), 30)


def workers_of(node: Node, steps: list[Step]) -> set[int]:
    return {s.pid for s in steps} & set(node.family())


def newest(steps: list[Step]) -> set[int]:
    last = max(s.round for s in steps)
    return {s.pid for s in steps if s.round == last}


def two_nodes(
    cluster: LocalCluster, start: Start, trainer: str, port: int, *flags: str, steps: str = "100000"
) -> list[Node]:
    """The first of the record, then the second: they are started at once."""
    conf = ",".join((f"witness=127.0.0.1:{port}", *flags))
    flag = f"--rdzv_conf={conf}"
    nodes = [start(name, trainer, steps, "0.01", nproc=1, nnodes="1:2", flags=(flag,)) for name in "ab"]
    ranks = {s.pid: s.rank for s in cluster.wait_for_steps(2)}
    nodes.sort(key=lambda node: next(ranks[pid] for pid in node.family() if pid in ranks))
    return nodes


def test_the_second_of_two_goes_on_when_the_first_falls_silent(cluster: LocalCluster, start: Start) -> None:
    port = free_port()
    a, b = two_nodes(cluster, start, "count.py", port)
    witness = start_witness(cluster, port)  # it may come last
    votes(cluster, witness)
    steps = cluster.steps()
    first, second = workers_of(a, steps), workers_of(b, steps)
    old = max(s.round for s in steps)
    assert newest(steps) == first | second

    at = a.signal_family(signal.SIGSTOP)
    cluster.wait_for("the second goes on", lambda: recovery(cluster.steps(), at, second), SOON_S)
    assert newest(cluster.steps()) == second, "in its process"

    at = a.signal_family(signal.SIGCONT)
    grown = cluster.wait_for_steps(2, after=at)
    assert newest(grown) == first | second, "the first comes back with its memory"
    alone = min(s.mono for s in cluster.steps() if s.round > old)
    beside = [s for s in cluster.steps() if s.pid in first and s.mono > alone and s.round == old]
    assert len(beside) <= 1, "but for the step that it was stopped in, it did not work beside the new world"


def test_a_witness_that_dies_costs_nobody_a_step_and_another_takes_its_place(
    cluster: LocalCluster, start: Start
) -> None:
    port = free_port()
    witness = start_witness(cluster, port)
    a, b = two_nodes(cluster, start, "count.py", port)
    votes(cluster, witness)
    steps = cluster.steps()
    world, both = max(s.round for s in steps), newest(steps)

    at = witness.kill()
    time.sleep(LASTING_S)
    assert max(s.round for s in cluster.steps()) == world
    assert {s.pid for s in cluster.steps() if s.mono > at + LASTING_S / 2} == both
    assert f"the witness at 127.0.0.1:{port} has ended" in a.output()

    # Without a witness it is the first that goes on.
    at = b.signal_family(signal.SIGSTOP)
    cluster.wait_for("the first goes on", lambda: recovery(cluster.steps(), at, workers_of(a, steps)), SOON_S)
    at = b.signal_family(signal.SIGCONT)
    cluster.wait_for_steps(2, after=at)

    another = start_witness(cluster, port)
    votes(cluster, another)
    at = a.signal_family(signal.SIGSTOP)
    cluster.wait_for("the second goes on", lambda: recovery(cluster.steps(), at, workers_of(b, steps)), SOON_S)
    a.signal_family(signal.SIGCONT)


def test_it_ends_with_the_job(cluster: LocalCluster, start: Start) -> None:
    port = free_port()
    witness = start_witness(cluster, port)
    a, b = two_nodes(cluster, start, "count.py", port, steps="300")
    assert [node.wait() for node in (a, b, witness)] == [0, 0, 0]
    lines = [line for line in witness.output().splitlines() if line.startswith("softrun witness: ")]
    assert lines == [
        f"softrun witness: listens at 127.0.0.1:{port} for the job test",
        "softrun witness: the job test is over",
    ]


def test_a_witness_with_another_token_is_named_in_one_line(cluster: LocalCluster, start: Start, tmp_path: Path) -> None:
    tokens = {}
    for name in ("ours", "theirs"):
        tokens[name] = tmp_path / name
        tokens[name].write_text(name * 8)
        tokens[name].chmod(0o600)
    port = free_port()
    witness = start_witness(cluster, port, f"--rdzv_conf=token_file={tokens['theirs']}")
    a, _ = two_nodes(cluster, start, "count.py", port, f"token_file={tokens['ours']}")
    said = f"an agent with another token answers at 127.0.0.1:{port}, the witness's place"
    cluster.wait_for("the leader says so", lambda: said in a.output(), 30)
    assert len([line for line in a.output().splitlines() if "witness" in line]) == 1
    assert "its token is another one: give every agent the same token_file" in witness.output()
    assert "it has the casting vote" not in witness.output()

    witness.kill()
    votes(cluster, start_witness(cluster, port, env={"SOFTRUN_TOKEN_FILE": str(tokens["ours"])}))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_any_process(cluster: LocalCluster, signum: int) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        witness = start_witness(cluster, free_port())
    finally:
        signal.signal(signal.SIGINT, before)
    cluster.wait_for("it listens", lambda: "listens at" in witness.output(), 30)
    witness.signal(signum)
    assert witness.wait() == -signum
    assert len(witness.output().splitlines()) == 1
