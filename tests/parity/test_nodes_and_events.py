"""What one launcher alone does not show: several nodes, the events, handlers of others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launchers import Launchers, normal
from nursery import Nursery
from programs import run_program
from torchrun import plain, torchruns

from local_cluster import COMMON_ENV, PATIENCE_S, free_port

pytestmark = pytest.mark.processes

WORLD = """
import os, sys
names = "GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE RANK WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE"
names += " MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE"
os.write(1, (" ".join(f"{name}={os.environ[name]}" for name in names.split()) + "\\n").encode())
"""
MEET = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
mine = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(mine)
os.write(1, f"{int(mine)}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""
SIGNALLED = """
import os, signal, time
def on(signum, frame):
    os.write(1, f"{os.environ['RANK']} got {signum}\\n".encode())
    raise SystemExit(9)
for name in "SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1".split():
    signal.signal(getattr(signal, name), on)
os.write(1, b"ready\\n")
for _ in range(600):
    time.sleep(0.1)  # a signal just before it starts would be handled only when it ends
"""
FAIL = """
import os, sys, time
time.sleep(0.5 if os.environ["RANK"] == "1" else 60)
sys.exit(1)
"""
HANDLER = {
    "mine.py": """
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
class Mine(StaticTCPRendezvous):
    def get_backend(self):
        return "mine"
def create(params):
    host, port = params.endpoint.split(":")
    return Mine(host, int(port), 0, 1, params.run_id, 60)
def get_handler():
    return create
""",
    "mine-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1\n",
    "mine-1.dist-info/entry_points.txt": "[torchrun.handlers]\nmine = mine:get_handler\n",
}
PROGRAM = """
import os, sys
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousTimeoutError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.events import Event
IMPORTS

def work(offset):
    rank = int(os.environ["RANK"])
    if offset < 0 and rank == 1:
        raise ValueError("only rank 1")
    return offset + rank

def by_rank(values):  # torch has them in the order in which they came
    return dict(sorted(values.items()))

def config(**more):
    fields = dict(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
                  run_id="job", max_restarts=0, monitor_interval=0.1, start_method="fork", rdzv_configs={"timeout": 60})
    return LaunchConfig(**{**fields, **more})

def spec(**more):
    params = RendezvousParameters("c10d", "localhost:0", "job", 1, 1, timeout=60)
    fields = dict(role="trainer", local_world_size=2, entrypoint=work, args=(10,),
                  rdzv_handler=get_rendezvous_handler(params), max_restarts=0, monitor_interval=0.1)
    return WorkerSpec(**{**fields, **more})

if __name__ == "__main__":
    print("launched", by_rank(elastic_launch(config(), work)(100)))
    print("agent", by_rank(launch_agent(config(), sys.executable, ["-c", "pass"])))
    try:
        elastic_launch(config(), work)(-1)
    except ChildFailedError as error:
        print("failed", error.name, sorted(error.failures), "only rank 1" in str(error))
    agent = LocalElasticAgent(spec(), DefaultLogsSpecs(), start_method="fork")
    result = agent.run()
    print("ran", result.state, by_rank(result.return_values), result.is_failed())
    group = agent.get_worker_group()
    print("group", group.state, group.group_rank, group.group_world_size, group.workers)
    event = agent.get_event_succeeded()
    print("event", event.name, {k: v for k, v in event.metadata.items() if k not in ("hostname", "total_run_time")})
    agent.run() if False else spec().rdzv_handler.shutdown()
    agent = LocalElasticAgent(spec(args=(-1,)), DefaultLogsSpecs(), start_method="fork", shutdown_timeout=5)
    result = agent.run()
    print("ran", result.state, result.return_values, [f.exitcode for f in result.failures.values() if f.exitcode > 0])
    try:
        launch_agent(config(min_nodes=2, max_nodes=2, rdzv_configs={"join_timeout": 1}), work, [1])
    except RendezvousTimeoutError:
        print("timed out")
"""


def said_by(side: str, launchers: Launchers, tmp_path: Path, script: str, nodes: list[list[str]]) -> list[str]:
    """Run a job of several nodes; the lines of all workers, with the port as PORT."""
    port = str(free_port())
    started = []
    for number, flags in enumerate(nodes):
        directory = tmp_path / side / str(number)
        directory.mkdir(parents=True)
        (directory / "train.py").write_text(script)
        args = [flag.replace("PORT", port) for flag in flags]
        started.append((launchers.start(side, [*args, "train.py"], directory), directory))
    codes = [launchers.wait(pid) for pid, _ in started]
    said = "".join((directory / ".err").read_text() for _, directory in started)
    assert codes == [0] * len(nodes), f"{side}: {said}"
    return [
        line.replace(port, "PORT")
        for _, directory in started
        for line in sorted((directory / ".out").read_text().splitlines())
    ]


def both(name: str, launchers: Launchers, tmp_path: Path, script: str, nodes: list[list[str]]) -> list[str]:
    """What the workers of such a job print under both."""
    theirs: list[str] = torchruns(name, lambda: said_by("torchrun", launchers, tmp_path, script, nodes))
    assert said_by("softrun", launchers, tmp_path, script, nodes) == theirs
    return theirs


STATIC = ["--nnodes=2", "--rdzv-id=job", "--master-addr=127.0.0.1", "--master-port=PORT", "--local-addr=127.0.0.1"]


@pytest.mark.slow
def test_static_nodes_of_different_roles_and_sizes(launchers: Launchers, tmp_path: Path) -> None:
    nodes = [
        [*STATIC, "--node-rank=0", "--role=reader", "--nproc-per-node=1"],
        [*STATIC, "--node-rank=1", "--role=trainer", "--nproc-per-node=2"],
    ]
    lines = both("nodes_of_different_roles", launchers, tmp_path, WORLD, nodes)
    assert len(lines) == 3
    assert "MASTER_PORT=PORT" in lines[0]


@pytest.mark.slow
def test_static_nodes_that_come_in_another_order(launchers: Launchers, tmp_path: Path) -> None:
    nodes = [[*STATIC, f"--node-rank={rank}"] for rank in (1, 0)]
    lines = both("nodes_in_another_order", launchers, tmp_path, WORLD, nodes)
    assert lines[0].startswith("GROUP_RANK=1 ")


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_workers_of_two_nodes_meet(launchers: Launchers, tmp_path: Path, backend: str) -> None:
    meets = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:PORT"]
    flags, rank = (STATIC, ["--node-rank=1"]) if backend == "static" else (meets, [])
    nodes = [[*flags, "--nproc-per-node=2"], [*flags, *rank, "--nproc-per-node=2"]]
    assert both(f"nodes_meet_{backend}", launchers, tmp_path, MEET, nodes) == ["10"] * 4


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1"])
def test_signals_are_forwarded_alike(launchers: Launchers, tmp_path: Path, name: str) -> None:
    theirs = torchruns(f"forwards_{name}", lambda: signalled("torchrun", launchers, tmp_path, name))
    assert plain(signalled("softrun", launchers, tmp_path, name)) == theirs
    assert theirs["last"].endswith(f"SignalException: Process PID got signal: {int(signal.Signals[name])}")


def signalled(side: str, launchers: Launchers, tmp_path: Path, name: str) -> dict[str, Any]:
    """What is left of a launcher that gets a signal while both of its workers work."""
    directory = tmp_path / side
    directory.mkdir()
    (directory / "train.py").write_text(SIGNALLED)
    flags = ["--nproc-per-node=2", f"--signals-to-handle=SIGTERM,{name}" if name == "SIGUSR1" else "--role=r"]
    pid = launchers.start(side, [*flags, "train.py"], directory)
    deadline = time.monotonic() + PATIENCE_S
    while (directory / ".out").read_text().count("ready") < 2:
        assert time.monotonic() < deadline, (directory / ".err").read_text()
        time.sleep(0.01)
    os.kill(pid, signal.Signals[name])
    code = launchers.wait(pid)
    last = normal((directory / ".err").read_text(), directory).splitlines()[-1]
    return {"code": code, "out": sorted((directory / ".out").read_text().splitlines()), "last": last}


@pytest.mark.parametrize(("code", "script"), [(0, "pass"), (1, FAIL)], ids=["success", "failure"])
def test_the_events_are_torchs(launchers: Launchers, tmp_path: Path, code: int, script: str) -> None:
    def told(side: str) -> list[dict[str, Any]]:
        directory = tmp_path / side
        directory.mkdir()
        (directory / "train.py").write_text(script)
        flags = ["--nproc-per-node=2", "--event-log-handler=console", "--role=r"]
        ran = launchers.run(side, [*flags, "train.py"], directory)
        assert ran.code == code, ran.err
        events = [_event(json.loads(line)) for line in ran.err.splitlines() if line.startswith('{"name"')]
        return sorted(events, key=str)

    theirs = torchruns(f"events_{code}", lambda: told("torchrun"))
    assert told("softrun") == theirs
    assert len(theirs) >= 7


def _event(event: dict[str, Any]) -> dict[str, Any]:
    facts = event["metadata"]
    more = json.loads(facts["metadata"])
    told = {
        name: facts[name] for name in ("state", "role", "global_rank", "group_rank", "rdzv_backend", "agent_restarts")
    }
    told |= {
        name: more.get(name) for name in ("entry_point", "local_rank", "role_rank", "role_world_size", "exit_code")
    }
    told |= {"has_error": facts["raw_error"] is not None, "is_measured": facts.get("duration_ms") is not None}
    return {"source": event["source"], "name": event["name"], **told}


@pytest.mark.slow
def test_a_handler_of_others(tmp_path: Path) -> None:
    """Processes of their own: which packages register one torch looks up as it is imported."""
    for name, text in {"train.py": WORLD, **HANDLER}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def launch(module: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *flags, *backend, "--nproc-per-node=2", "train.py"]
        env = {**os.environ, **COMMON_ENV, "PYTHONPATH": str(tmp_path), "PET_NO_WARM_START": "1"}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, env=env)

    def said_by(module: str) -> list[str]:
        backend[1] = f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}"
        done = launch(module)
        assert done.returncode == 0, done.stderr
        return sorted(line.replace(str(port), "PORT") for line in done.stdout.splitlines())

    backend = ["--rdzv-backend=mine", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-id=job"]
    theirs = torchruns("handler_of_others", lambda: said_by("torch.distributed.run"))
    assert said_by("softrun") == theirs
    assert len(theirs) == 2
    refused = launch("softrun", "--restart-policy=soft")
    assert refused.returncode == 1
    assert "can only restart every worker" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_program_works_by_changing_the_import(nursery: Nursery, tmp_path: Path) -> None:
    def lines(side: str) -> list[str]:
        return re.sub(r"'worker_pid': \[\d+\]", "", run_program(nursery, PROGRAM, side, tmp_path)).splitlines()

    theirs = torchruns("program", lambda: lines("torchrun"))
    assert lines("softrun") == theirs
    assert theirs[-1] == "timed out"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["softrun"], ["python", "-m", "softrun"]])
def test_the_console_scripts(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORLD)
    program = str(Path(sys.executable).parent / command[0])
    done = subprocess.run(
        [program, *command[1:], "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
