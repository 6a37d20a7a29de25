"""Wrong input ends in one line that names the thing, the value and the remedy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from local_cluster import PATIENCE_S, LocalCluster, Node, free_port
from softrun.agent import cli

pytestmark = pytest.mark.processes

SCRIPT = str(Path(__file__).parent / "trainers" / "count.py")


def launch(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "softrun", *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1", **env},
    )


C10D = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:1")
ETCD = ("--rdzv_backend=etcd3", "--rdzv_endpoint=localhost:1")
NOT_A_RANGE = "is not a number or a range of nodes: give N or MIN:MAX, with 1 <= MIN <= MAX"
NOT_A_DURATION = "is not a duration: give a number of seconds above 0, or leave it out"
SETTINGS = (
    "join_timeout, last_call_timeout, close_timeout, read_timeout, keep_alive_interval, keep_alive_max_attempt, "
    "is_host, timeout, rank, store_type, heartbeat_timeout"
)
ERROR_LINES = {
    ("--nnodes=4:2", SCRIPT): f"--nnodes '4:2' {NOT_A_RANGE}",
    ("--nnodes=0", SCRIPT): f"--nnodes '0' {NOT_A_RANGE}",
    ("--nnodes=two", SCRIPT): f"--nnodes 'two' {NOT_A_RANGE}",
    ("--nnodes=2", "--node_rank=2", SCRIPT): "--node_rank 2 is not one of 2 nodes: give 0 to 1",
    ("--nproc_per_node=0", SCRIPT): "--nproc_per_node 0 starts no worker: give 1 or more",
    ("--nproc_per_node=many", SCRIPT): (
        "--nproc_per_node 'many' is refused (Unsupported nproc_per_node value: many): give a number, auto, or a device "
        "that is here"
    ),
    ("--max_restarts=-1", SCRIPT): "--max_restarts -1 is less than 0: give 0 or more",
    ("--monitor_interval=0", SCRIPT): (
        "--monitor_interval 0.0 is not greater than 0: give a number of seconds, or leave it out"
    ),
    ("--shutdown_timeout=-1", SCRIPT): "--shutdown_timeout -1 is not a number of seconds: give 0 or more",
    ("--signals_to_handle=SIGNOPE", SCRIPT): "--signals_to_handle has 'SIGNOPE': name signals that can be handled",
    ("--event_log_handler=nope", SCRIPT): "--event_log_handler 'nope' is not registered with torch",
    ("--redirects=10:3", "--tee=x", SCRIPT): (
        "--tee 'x' names no streams: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them for each local "
        "rank, as in 0:3,1:1"
    ),
    ("--log_dir=/proc/logs", SCRIPT): (
        "--log_dir '/proc/logs' cannot be made (No such file or directory): give a directory that can be written to"
    ),
    ("--restart_policy=gentle", SCRIPT): "unknown restart policy 'gentle': choose one of hard, soft",
    ("--restart_policy=soft", "--worker_failure=shrug", SCRIPT): (
        "--worker_failure 'shrug' is unknown: choose one of no-replace, replace, record"
    ),
    ("--worker_failure=replace", SCRIPT): (
        "--worker_failure replace needs --restart_policy soft: hard restarts every worker"
    ),
    ("--soft_timeout=0", SCRIPT): f"--soft_timeout 0 {NOT_A_DURATION}",
    ("--hard_timeout=inf", SCRIPT): f"--hard_timeout inf {NOT_A_DURATION}",
    ("--soft_timeout=5", "--hard_timeout=5", SCRIPT): (
        "--hard_timeout 5 would end a worker before --soft_timeout 5 makes it leave its world: make it longer"
    ),
    ("--rdzv_backend=c10d", "--rdzv_endpoint=host:port", SCRIPT): (
        "--rdzv_endpoint 'host:port' is not HOST:PORT: give a host name or address, and a port"
    ),
    ("--rdzv_backend=zookeeper", "--rdzv_endpoint=localhost:1", SCRIPT): (
        "--rdzv_backend 'zookeeper' is refused (The rendezvous backend 'zookeeper' is not registered. Did you forget "
        "to call `register`?): use c10d, etcd3, static, or a backend that a package registers under the entry point "
        "group torchrun.handlers"
    ),
    ("--rdzv_backend=etcd", "--rdzv_endpoint=localhost:1", SCRIPT): (
        "--rdzv_backend 'etcd' is not available: use etcd3, which speaks etcd's current protocol"
    ),
    (*C10D, "--rdzv_conf=join_timout=3", SCRIPT): f"--rdzv_conf has no key 'join_timout': use {SETTINGS}",
    (*C10D, "--rdzv_conf=join_timeout=soon", SCRIPT): (
        "--rdzv_conf join_timeout='soon' is refused: Input should be a valid number, unable to parse string as a number"
    ),
    (*C10D, "--rdzv_conf=join_timeout", SCRIPT): (
        "--rdzv_conf 'join_timeout' is not a setting: give KEY=VALUE,KEY=VALUE,…"
    ),
    (*ETCD, "--rdzv_conf=user=x", SCRIPT): (
        "--rdzv_conf has user=x but there is no password: give password_file there, or set SOFTRUN_ETCD_PASSWORD"
    ),
    (*ETCD, "--rdzv_conf=user=x,password_file=/no/such", SCRIPT): (
        "--rdzv_conf password_file=/no/such cannot be read: No such file or directory"
    ),
    (*ETCD, "--rdzv_conf=ca_cert=/no/such", SCRIPT): (
        "--rdzv_conf ca_cert=/no/such cannot be read: No such file or directory"
    ),
    ("/no/such/train.py",): (
        f"the training script '/no/such/train.py' does not exist: correct its path (here is {Path.cwd()})"
    ),
    ("--no_python", "no-such-program"): (
        "the program 'no-such-program' does not exist or is not executable: correct its name or PATH"
    ),
}


def error_lines(args: Sequence[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cli.main(list(args)) == 1
    return [line for line in capfd.readouterr().err.splitlines() if line.strip()]


@pytest.mark.parametrize("args", ERROR_LINES, ids=" ".join)
def test_one_line_that_names_the_thing_the_value_and_the_remedy(
    args: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_lines(args, capfd, monkeypatch) == [f"softrun: error: {ERROR_LINES[args]}"]


def test_a_host_that_cannot_be_found(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--rdzv_backend=c10d", "--rdzv_endpoint=no.such.host.invalid:1", "--rdzv_conf=read_timeout=0.5")
    (line,) = error_lines((*flags, SCRIPT), capfd, monkeypatch)
    start, _, reason = line.partition(" (")
    assert start == "softrun: error: the host 'no.such.host.invalid' of --rdzv_endpoint cannot be reached after 0.5 s"
    assert reason.partition("): ")[2] == (
        "correct it, or the name service; if only this machine's own address is in doubt, give it by --local_addr"
    )


@pytest.mark.slow
def test_the_same_from_the_command_line() -> None:
    done = launch("--nnodes=4:2", SCRIPT)
    assert done.returncode == 1, "as torchrun"
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_the_debug_switch_shows_the_traceback() -> None:
    done = launch("--nnodes=4:2", SCRIPT, SOFTRUN_DEBUG="1")
    assert "Traceback (most recent call last)" in done.stderr


@pytest.mark.slow
def test_a_store_that_cannot_be_reached() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    done = launch(
        "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", "--rdzv_conf=read_timeout=1,is_host=false", SCRIPT
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"softrun: error: no store answers at {endpoint} after 1 s: start the agent of that host, or correct "
        "--rdzv_endpoint"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_that_raises_is_shown_as_torch_does(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(
        "import os\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError('a fault of the trainer')\n"
        "    import time; time.sleep(60)\n"
        "main()\n"
    )
    done = launch("--restart_policy=soft", "--nproc_per_node=2", str(script))
    assert done.returncode == 1
    for part in ("raises.py FAILED", "rank      : 1 (local_rank: 1)", "exitcode  : 1 (pid: ", "a fault of the trainer"):
        assert part in done.stderr
    assert "host      : " in done.stderr
    assert "in main\n      raise ValueError" in done.stderr, "with the traceback of the worker"


@pytest.mark.slow
def test_two_jobs_with_one_id(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2")
    cluster.wait_for_steps(2)
    second = start("b", "count.py", "100000", "0.01", nnodes="1:3")
    assert second.wait() == 1
    line = second.output().splitlines()[-1]
    assert "runs with --nnodes 1:2" in line
    assert "another --rdzv_id" in line
    cluster.wait_for_steps(2, after=time.monotonic())
    assert first.process.poll() is None


@pytest.mark.slow
def test_a_job_that_is_over(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2", job="one")
    cluster.wait_for_steps(2)
    short = start("b", "count.py", "10", "0.01", nnodes="1", job="two")
    assert short.wait() == 0, "another job may use the same store"
    late = start("c", "count.py", "10", "0.01", nnodes="1", job="two")
    assert late.wait() == 1
    assert "this job is over already: choose another --rdzv_id" in late.output().splitlines()[-1]
    first.signal(signal.SIGTERM)
    assert first.wait() == 1


@pytest.mark.slow
def test_ctrl_c_during_the_imports_ends_it_without_a_word() -> None:
    """It was swallowed there, or shown with the frames of all that was being imported."""
    process = subprocess.Popen(
        [sys.executable, "-m", "softrun", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + 60
    while "libtorch" not in maps.read_text():  # torch is being imported
        assert time.monotonic() < end
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (-signal.SIGINT, b"")
