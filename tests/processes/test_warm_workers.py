"""Warm starts through an agent: whose workers are forked, when they are not, and what is said of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, descendants, shown_by, softrun_command

HAS_TORCH = "import sys\nhad_torch = 'torch' in sys.modules\n"
STEPS = 100000


def run(cluster: LocalCluster, script: str, *flags: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """A job of two workers: its exit code and its output."""
    path = cluster.directory / "script.py"
    path.write_text(script)
    node = cluster.start("node", softrun_command("--nproc_per_node=2", *flags, script=path), env)
    return node.wait(), node.output()


def test_workers_are_forked(cluster: LocalCluster) -> None:
    code, output = run(cluster, HAS_TORCH + "print('torch' if had_torch else 'cold', __file__)")
    assert code == 0, output
    assert output.splitlines() == [f"torch {cluster.directory / 'script.py'}"] * 2


@pytest.mark.slow
def test_to_wait_for_a_world_they_import_nothing(cluster: LocalCluster) -> None:
    """Newcomers would do it while the others are on their way to them."""
    script = "import sys, softrun\nbefore = set(sys.modules)\nnext(softrun.worlds())\nprint({*sys.modules} - before)"
    code, output = run(cluster, script, "--restart_policy=soft")
    assert code == 0, output
    assert output.splitlines() == ["set()"] * 2


@pytest.mark.parametrize("policy", ["hard", "soft"])
def test_a_script_gets_its_own_modules(cluster: LocalCluster, policy: str) -> None:
    """Whatever the launcher and the process that it is forked from have imported under these names."""
    for name in ("secrets", "pydantic", "watchdog", "etcd3"):
        (cluster.directory / f"{name}.py").write_text("mine = 1")
    script = cluster.directory / "script.py"
    script.write_text("import secrets, pydantic, watchdog, etcd3\nprint(secrets.mine + pydantic.mine + watchdog.mine)")
    command = softrun_command("--nproc_per_node=2", f"--restart_policy={policy}", script=script)
    node = cluster.start("node", ["sh", "-c", 'cd "$0" && exec "$@"', str(cluster.directory), *command])
    assert (node.wait(), [line for line in node.output().splitlines() if line == "3"]) == (0, ["3", "3"]), node.output()


def test_they_can_be_started_by_themselves(cluster: LocalCluster) -> None:
    code, output = run(cluster, HAS_TORCH + "print('torch' if had_torch else 'cold')", "--no_warm_start")
    assert (code, output.splitlines()) == (0, ["cold", "cold"])


@pytest.mark.slow
def test_more_is_imported_on_request(cluster: LocalCluster) -> None:
    code, output = run(
        cluster, "import sys\nprint('tabnanny' in sys.modules, 'sndhdr' in sys.modules)", "--preload", "tabnanny, pdb"
    )
    assert (code, output.splitlines()) == (0, ["True False"] * 2), output


@pytest.mark.slow
def test_what_cannot_be_preloaded_is_said_once(cluster: LocalCluster) -> None:
    (cluster.directory / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[60], daemon=True).start()"
    )
    for module, why in (
        ("no_such_module", "no_such_module cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("threads", "what they import has started 1 threads, which a fork does not have"),
    ):
        code, output = run(
            cluster, HAS_TORCH + "print(had_torch)", "--preload", module, env={"PYTHONPATH": str(cluster.directory)}
        )
        assert code == 0, output
        assert output.count("False\n") == 2
        assert output.count("workers start cold") == output.count(why) == 1


@pytest.mark.slow
def test_no_python_script_is_started_by_itself(cluster: LocalCluster) -> None:
    node = cluster.start("node", softrun_command("--nproc_per_node=2", "--no_python", script="echo", args=["here"]))
    assert node.wait() == 0
    assert node.output().count("here\n") == 2
    assert node.output().count("workers start cold, each with its own imports: echo is not a Python script") == 1


@pytest.mark.slow
def test_what_follows_the_script_is_the_scripts(cluster: LocalCluster) -> None:
    path = cluster.directory / "script.py"
    path.write_text("import sys; print(sys.argv[1:])")
    args = ["--epochs", "5", "--no_python", "--nproc_per_node=4", "--help"]
    node = cluster.start("node", softrun_command("--nproc_per_node=2", script=path, args=args))
    assert node.wait() == 0, node.output()
    assert node.output().splitlines() == [str(args)] * 2


@pytest.mark.slow
def test_failures_are_told_as_ever(cluster: LocalCluster) -> None:
    script = "import os\nif os.environ['RANK'] == '1': raise ValueError('lost')\nimport time; time.sleep(60)"
    code, output = run(cluster, script)
    assert code == 1
    assert "ValueError: lost" in output
    assert "exitcode  : 1 " in output
    assert "fork server" not in output


@pytest.mark.slow
def test_it_ends_in_order_on_a_signal(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    node = start("a", "count.py", str(STEPS), "0.01", warm=True)
    cluster.wait_for_steps(2)
    template = template_of(node)
    os.kill(template, signal.SIGTERM)  # as where a signal goes to all processes of a job
    node.signal(signal.SIGTERM)
    assert node.wait() == 1
    assert "SignalException" in node.output()
    assert "exit code" not in node.output()


@pytest.mark.slow
def test_who_is_started_in_the_background_can_be_interrupted(cluster: LocalCluster) -> None:
    """A shell's `&` has SIGINT ignored. The agent handles it, so a new process would not ignore it, nor does a forked
    one."""
    path = cluster.directory / "script.py"
    path.write_text(
        "import time\n"
        "print('begins', flush=True)\n"
        "try:\n    time.sleep(100)\n"
        "except KeyboardInterrupt:\n    print('saved', flush=True)\n"
    )
    launcher = softrun_command("--nproc_per_node=2", script=path)
    node = cluster.start("node", ["env", "--ignore-signal=INT", *launcher])
    cluster.wait_for("the workers", lambda: node.output().count("begins") == 2)
    node.signal(signal.SIGINT)
    assert node.wait() == 1
    assert node.output().count("saved") == 2, node.output()


def test_a_lost_template_costs_time_alone(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    node = start("a", "count.py", str(STEPS), "0.01", warm=True, flags=("--worker_failure=replace", "--max_restarts=3"))
    before = {s.pid for s in cluster.wait_for_steps(2)}
    os.kill(template_of(node), signal.SIGKILL)
    cluster.wait_for("it is said", lambda: "workers start cold" in node.output())
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    cluster.wait_for("the replacement steps", lambda: {s.pid for s in cluster.steps()[-4:]} - before)
    now = {s.pid for s in cluster.steps()[-4:]}
    assert len(now) == 2
    assert now - before
    assert victim not in now
    node.signal(signal.SIGTERM)  # one of them has the template no longer for its parent
    node.wait()


@pytest.mark.slow
def test_a_restart_is_forked(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    node = start("a", "count.py", str(STEPS), "0.01", warm=True, policy="hard", nnodes="1", flags=("--max_restarts=3",))
    before = {s.pid for s in cluster.wait_for_steps(2)}
    os.kill(min(before), signal.SIGKILL)
    cluster.wait_for("both are new", lambda: len({s.pid for s in cluster.steps()} - before) == 2)
    parents = {parent_of(s.pid) for s in cluster.steps() if s.pid not in before}
    assert parents == {template_of(node)}


def template_of(node: Node) -> int:
    return next(pid for pid in descendants(node.process.pid) if shown_by(pid).startswith("softrun fork server"))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
