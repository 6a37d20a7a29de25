"""What happens when something dies: the promises to the user, on real processes."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, Step, alive, descendants, free_port, recovery, send

pytestmark = pytest.mark.processes

Start = Callable[..., Node]
QUICK = "--rdzv_conf=keep_alive_interval=0.5,keep_alive_max_attempt=4"


def workers_of(node: Node, steps: list[Step]) -> set[int]:
    return {s.pid for s in steps} & set(node.family())


def kill_worker_of(node: Node, steps: list[Step]) -> float:
    """SIGKILL to one of its workers; returns when."""
    victim = min(workers_of(node, steps))
    at = time.monotonic()
    send(victim, signal.SIGKILL)
    return at


def newest(steps: list[Step]) -> set[int]:
    last = max(s.round for s in steps)
    return {s.pid for s in steps if s.round == last}


def three_nodes(
    cluster: LocalCluster, start: Start, trainer: str, *args: str, nproc: int = 1, **kwargs: object
) -> list[Node]:
    """The first one founds the job."""
    nodes = [start(name, trainer, *args, nproc=nproc, **kwargs) for name in "abc"]
    cluster.wait_for_steps(3 * nproc)
    return nodes


def test_a_node_is_killed_and_the_survivors_go_on_in_their_processes(cluster: LocalCluster, start: Start) -> None:
    a, b, c = three_nodes(cluster, start, "reduce.py", "100000", "0.02", nproc=2)
    before = newest(cluster.steps())
    survivors = before - set(b.family())
    at = b.kill()
    cluster.wait_for("recovery", lambda: recovery(cluster.steps(), at, survivors))
    after = cluster.wait_for_steps(4, after=at)
    assert newest(after) == survivors

    start("d", "reduce.py", "100000", "0.02")
    grown = cluster.wait_for_steps(6, after=time.monotonic())
    assert survivors < newest(grown), "the survivors live through the growth, too"
    ranks = {s.pid: s.rank for s in grown if s.round == grown[-1].round}
    assert {ranks[pid] for pid in survivors} == {0, 1, 2, 3}, "survivors come first"
    assert min(s.step for s in grown if s.pid not in survivors) > 1, "the newcomers take the step from rank 0"
    assert a.process.poll() is None
    assert c.process.poll() is None


@pytest.mark.slow
def test_the_leader_is_killed_and_another_node_leads(cluster: LocalCluster, start: Start) -> None:
    a, b, c = three_nodes(cluster, start, "reduce.py", "100000", "0.02", flags=("--max_restarts=3",))
    # A failure of its workers makes the first node a newcomer, and b the leader.
    at = kill_worker_of(a, cluster.steps())
    cluster.wait_for_steps(3, after=at)
    survivors = newest(cluster.steps()) - set(b.family())
    at = b.kill()
    cluster.wait_for("recovery", lambda: recovery(cluster.steps(), at, survivors))
    assert newest(cluster.wait_for_steps(2, after=at)) == survivors
    assert c.process.poll() is None


def test_a_worker_is_killed_and_only_its_node_restarts(cluster: LocalCluster, start: Start) -> None:
    _, b, _ = three_nodes(cluster, start, "reduce.py", "100000", "0.02", nproc=2, flags=("--max_restarts=1",))
    steps = cluster.steps()
    others = newest(steps) - workers_of(b, steps)
    at = kill_worker_of(b, steps)
    cluster.wait_for("the others go on", lambda: recovery(cluster.steps(), at, others))
    grown = cluster.wait_for_steps(6, after=at)
    assert others < newest(grown)
    assert not workers_of(b, steps) & newest(grown), "RFC option 1: all local workers are terminated"

    at = kill_worker_of(b, grown)
    assert b.wait() == 1, "its only restart was spent"
    assert "Signal 9 (SIGKILL) received by PID" in b.output()
    assert newest(cluster.wait_for_steps(4, after=at)) == others


@pytest.mark.slow
def test_replace_restarts_only_the_worker_that_failed(cluster: LocalCluster, start: Start) -> None:
    flags = ("--worker_failure=replace", "--max_restarts=1")
    node = start("a", "reduce.py", "100000", "0.02", nproc=3, nnodes="1", flags=flags)
    steps = cluster.wait_for_steps(3)
    victim = min(newest(steps))
    at = time.monotonic()
    send(victim, signal.SIGKILL)
    grown = cluster.wait_for_steps(3, after=at)
    assert newest(steps) - {victim} < newest(grown)
    assert victim not in newest(grown)
    assert node.process.poll() is None


@pytest.mark.slow
def test_record_goes_on_without_the_worker_that_failed(cluster: LocalCluster, start: Start) -> None:
    node = start("a", "reduce.py", "150", "0.02", nproc=3, nnodes="1", flags=("--worker_failure=record",))
    steps = cluster.wait_for_steps(3)
    victim = max(newest(steps))
    at = time.monotonic()
    send(victim, signal.SIGKILL)
    assert newest(cluster.wait_for_steps(2, after=at)) == newest(steps) - {victim}
    assert node.wait() == 0, "the others have finished"


def test_a_worker_that_hangs_is_left_behind_and_then_replaced(cluster: LocalCluster, start: Start) -> None:
    limits = ("--soft_timeout=1", "--hard_timeout=2", "--shutdown_timeout=1")
    flags = ("--worker_failure=replace", "--max_restarts=1", *limits)
    node = start("a", "reduce.py", "100000", "0.02", nproc=3, nnodes="1", flags=flags)
    steps = cluster.wait_for_steps(3)
    hung = min(newest(steps))
    at = time.monotonic()
    send(hung, signal.SIGSTOP)
    healthy = newest(steps) - {hung}
    cluster.wait_for("the others go on", lambda: recovery(cluster.steps(), at, healthy))
    cluster.wait_for("it was ended", lambda: not alive(hung))
    assert healthy < newest(cluster.wait_for_steps(3, after=time.monotonic())), "they live through it, and one is new"
    assert re.search(r"made no progress for .* and is ended", node.output())


@pytest.mark.slow
def test_a_spare_node_is_warm_and_takes_a_lost_place_without_a_new_process(cluster: LocalCluster, start: Start) -> None:
    a, b = (start(name, "reduce.py", "100000", "0.02", nnodes="1:2") for name in "ab")
    cluster.wait_for_steps(4)
    c = start("c", "reduce.py", "100000", "0.02", nnodes="1:2", env={"LOGLEVEL": "INFO"})
    cluster.wait_for("its workers wait", lambda: len(asking := warm_workers(c)) == 2 and asking)
    spares, survivors = warm_workers(c), workers_of(a, cluster.steps())
    b.kill()
    grown = cluster.wait_for_steps(4, after=time.monotonic())
    assert newest(grown) == survivors | spares


def warm_workers(node: Node) -> set[int]:
    """Those that have asked for a world: from then on they show their progress."""
    warm = set()
    for pid in set(node.family()) - {node.process.pid}:
        with suppress(FileNotFoundError, ProcessLookupError):  # it was none of them, and has ended
            if "/page" in Path(f"/proc/{pid}/maps").read_text():
                warm.add(pid)
    return warm


@pytest.mark.slow
def test_only_the_agent_is_killed_and_its_workers_die_with_it(cluster: LocalCluster, start: Start) -> None:
    _, b, _ = three_nodes(cluster, start, "reduce.py", "100000", "0.02")
    orphans = descendants(b.process.pid)
    survivors = newest(cluster.steps()) - set(orphans)
    at = b.signal(signal.SIGKILL)
    b.wait()
    cluster.wait_for("its workers are gone", lambda: not cluster.orphans())
    cluster.wait_for("recovery", lambda: recovery(cluster.steps(), at, survivors))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1], ids=["the first", "another"])
def test_a_stopped_node_is_left_behind_and_comes_back_as_a_newcomer(
    cluster: LocalCluster, start: Start, stopped: int
) -> None:
    node = three_nodes(cluster, start, "count.py", "100000", "0.01", flags=(QUICK,))[stopped]
    steps = cluster.steps()
    frozen = workers_of(node, steps)
    at = node.signal_family(signal.SIGSTOP)
    assert newest(cluster.wait_for_steps(2, after=at)) == newest(steps) - frozen
    at = node.signal_family(signal.SIGCONT)
    grown = cluster.wait_for_steps(3, after=at)
    assert newest(grown) == newest(steps), "its workers were paused, not ended"
    ranks = {s.pid: s.rank for s in grown if s.round == grown[-1].round}
    assert {ranks[pid] for pid in frozen} == {2}, "a node that was away is a newcomer"


def test_below_the_minimum_survivors_wait_in_memory(cluster: LocalCluster, start: Start) -> None:
    args = ("count.py", "100000", "0.01")
    a = start("a", *args, nnodes="2:3")
    b = start("b", *args, nnodes="2:3")
    steps = cluster.wait_for_steps(4)
    survivors = newest(steps) - set(b.family())
    b.kill()
    cluster.wait_for("too few", lambda: "too few nodes are left" in a.output())
    start("c", *args, nnodes="2:3")
    assert survivors < newest(cluster.wait_for_steps(4, after=time.monotonic()))


def test_one_of_a_pair_waits_for_the_first_if_nobody_tells_of_its_end(cluster: LocalCluster, start: Start) -> None:
    """All of it was killed, so its host refuses: as a firewall does. The first would go on, with the casting vote."""
    args = ("count.py", "100000", "0.01")
    a = start("a", *args, nproc=1, nnodes="1:2")
    cluster.wait_for_steps(1)
    b = start("b", *args, nproc=1, nnodes="1:2")
    cluster.wait_for_steps(2)
    a.kill_all()
    cluster.wait_for("it waits", lambda: "1 of 2 nodes cannot be reached and may have gone on" in b.output())
    assert "round 3" not in b.output()


@pytest.mark.slow
def test_places_of_a_static_job_are_taken_again(cluster: LocalCluster, start: Start) -> None:
    endpoint = ("static", f"127.0.0.1:{free_port()}")
    args = ("count.py", "100000", "0.01")
    a = start("a", *args, nproc=1, nnodes="2", backend=endpoint, flags=("--node_rank=0",))
    b = start("b", *args, nproc=1, nnodes="2", backend=endpoint, flags=("--node_rank=1",))
    survivors = newest(cluster.wait_for_steps(2)) - set(b.family())
    b.kill()
    cluster.wait_for("too few", lambda: "too few nodes are left" in a.output())
    start("c", *args, nproc=1, nnodes="2", backend=endpoint, flags=("--node_rank=1",))
    assert survivors < newest(cluster.wait_for_steps(2, after=time.monotonic()))


@pytest.mark.slow
def test_below_the_minimum_for_too_long_ends_with_the_rendezvous_error(cluster: LocalCluster, start: Start) -> None:
    args = ("count.py", "100000", "0.01")
    flags = ("--rdzv_conf=join_timeout=30",)
    a = start("a", *args, nnodes="2", flags=flags)
    b = start("b", *args, nnodes="2", flags=flags)
    cluster.wait_for_steps(4)
    b.kill()
    assert a.wait() == 1
    assert "fewer than 2 nodes joined within 30 s: start more" in a.output().splitlines()[-1]


def test_sigterm_is_a_graceful_leave(cluster: LocalCluster, start: Start) -> None:
    _, b, c = three_nodes(cluster, start, "reduce.py", "100000", "0.02")
    survivors = newest(cluster.steps()) - set(c.family())
    at = c.signal(signal.SIGTERM)
    assert c.wait() == 1
    assert f"SignalException: Process {c.process.pid} got signal: 15" in c.output()
    assert newest(cluster.wait_for_steps(2, after=at)) == survivors
    assert b.process.poll() is None


def test_the_first_host_is_killed_and_then_each_other_with_replacements_between(
    cluster: LocalCluster, start: Start
) -> None:
    """The first host listens at the endpoint, leads, and hosts the workers' store."""
    nodes = three_nodes(cluster, start, "reduce.py", "100000", "0.02")
    for turn in range(3):
        victim = nodes.pop(0)
        survivors = newest(cluster.steps()) - set(victim.family())
        at = victim.kill()
        cluster.wait_for("recovery", lambda at=at, staying=survivors: recovery(cluster.steps(), at, staying))
        nodes.append(start(f"r{turn}", "reduce.py", "100000", "0.02", nproc=1))
        grown = cluster.wait_for_steps(3, after=time.monotonic())
        assert survivors < newest(grown), "one world, and the survivors keep their processes"
    assert all(node.process.poll() is None for node in nodes)


@pytest.mark.slow
def test_the_first_host_leaves(cluster: LocalCluster, start: Start) -> None:
    a, b, _ = three_nodes(cluster, start, "count.py", "100000", "0.01")
    survivors = newest(cluster.steps()) - set(a.family())
    at = a.signal(signal.SIGTERM)
    assert a.wait() == 1
    assert newest(cluster.wait_for_steps(2, after=at)) == survivors
    assert b.process.poll() is None


@pytest.mark.slow
def test_a_node_that_flaps(cluster: LocalCluster, start: Start) -> None:
    three_nodes(cluster, start, "reduce.py", "100000", "0.02")
    flapping = cluster.nodes[2]
    survivors = newest(cluster.steps()) - set(flapping.family())
    for turn in range(3):
        flapping.kill()
        at = time.monotonic()
        flapping = start(f"c{turn}", "reduce.py", "100000", "0.02", nproc=1)
        assert survivors < newest(cluster.wait_for_steps(3, after=at))


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["rfc.py"])
def test_the_loop_that_the_rfc_prints_works_as_printed(cluster: LocalCluster, start: Start, trainer: str) -> None:
    a, b, _ = three_nodes(cluster, start, trainer, "400", "0.01", nnodes="3:3", flags=("--max_restarts=2",))
    survivors = newest(cluster.steps()) - set(b.family())
    kill_worker_of(b, cluster.steps())
    assert a.wait() == 0
    finished = {s.pid for s in cluster.steps() if s.step == 400}
    assert survivors < finished


def test_hard_restarts_everybody_and_resumes(cluster: LocalCluster, start: Start) -> None:
    args = ("plain.py", "100000", "0.01", str(cluster.directory / "checkpoint"))
    flags = ("--max_restarts=2", "--rdzv_conf=last_call_timeout=1")
    start("a", *args, policy="hard", nnodes="1:2", flags=flags)
    b = start("b", *args, policy="hard", nnodes="1:2", flags=flags)
    before = cluster.wait_for_steps(4)
    at = b.kill()
    after = cluster.wait_for_steps(2, after=at)
    assert not {s.pid for s in after} & {s.pid for s in before}
    assert min(s.step for s in after) >= max(s.step for s in before), "from the checkpoint"


@pytest.mark.slow
def test_a_job_that_finishes_leaves_in_order(cluster: LocalCluster, start: Start) -> None:
    nodes = three_nodes(cluster, start, "count.py", "200", "0.02", nnodes="3")
    for node in nodes:
        assert node.wait() == 0, node.output()


@pytest.mark.slow
def test_a_worker_that_finishes_early_is_not_run_again(cluster: LocalCluster, start: Start) -> None:
    a = start("a", "count.py", "400", "0.01", nnodes="2")
    b = start("b", "count.py", "30", "0.01", nnodes="2", env={"LOGLEVEL": "INFO"})
    cluster.wait_for("b has finished", lambda: "have finished" in b.output())
    assert b.process.poll() is None, "it waits for the others at the exit barrier"
    assert a.wait() == 0
    assert b.wait() == 0
    pids = {s.pid for s in cluster.steps()}
    assert len(pids) == 4, "nobody was started twice"


@pytest.mark.slow
def test_a_worker_that_ends_before_it_asks_is_not_waited_for(cluster: LocalCluster, start: Start) -> None:
    """Its node has no more to say than that it has finished; the others wait for it in init_process_group."""
    script = cluster.directory / "ends_at_once.py"
    script.write_text("")
    start("a", "reduce.py", "100000", "0.01", nproc=2, nnodes="2")
    start("b", str(script), nproc=1, nnodes="2")
    assert {step.world_size for step in cluster.wait_for_steps(2)} == {2}


def test_children_of_a_worker_that_obeys_sigterm_end_with_it(cluster: LocalCluster, start: Start) -> None:
    script = cluster.directory / "obedient.py"
    script.write_text(
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print('child', child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    node = start("a", str(script), nproc=1, nnodes="1")
    cluster.wait_for("the child runs", lambda: "child" in node.output())
    child = int(node.output().split("child ")[1].split()[0])
    node.signal(signal.SIGTERM)
    assert node.wait() == 1
    cluster.wait_for("the child has ended", lambda: not alive(child))
