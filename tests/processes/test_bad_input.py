"""Wrong input ends in one line that names the thing, the value and the remedy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster import LocalCluster, Node, free_port
from softrun.agent import cli

pytestmark = pytest.mark.processes

SCRIPT = str(Path(__file__).parent / "trainers" / "count.py")


def launch(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "softrun", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1", **env},
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nnodes=4:2", SCRIPT], ["--nnodes '4:2'", "MIN:MAX"]),
        (["--nnodes=0", SCRIPT], ["--nnodes '0'", "MIN:MAX"]),
        (["--nnodes=two", SCRIPT], ["--nnodes 'two'"]),
        (["--nproc_per_node=0", SCRIPT], ["--nproc_per_node 0", "1 or more"]),
        (["--nproc_per_node=many", SCRIPT], ["many"]),
        (["--max_restarts=-1", SCRIPT], ["max_restarts"]),
        (["--restart_policy=gentle", SCRIPT], ["unknown restart policy 'gentle'", "hard, soft"]),
        (["--restart_policy=soft", "--worker_failure=shrug", SCRIPT], ["--worker_failure 'shrug'", "no-replace"]),
        (["--soft_timeout=0", SCRIPT], ["--soft_timeout 0", "more than 0"]),
        (["--soft_timeout=5", "--hard_timeout=5", SCRIPT], ["--hard_timeout 5", "make it longer"]),
        (["--hard_timeout=inf", SCRIPT], ["--hard_timeout inf", "leave it out"]),
        (["--worker_failure=replace", SCRIPT], ["--worker_failure replace", "--restart_policy soft"]),
        (["--rdzv_backend=c10d", "--rdzv_endpoint=host:port", SCRIPT], ["--rdzv_endpoint 'host:port'", "HOST:PORT"]),
        (
            ["--rdzv_backend=c10d", "--rdzv_endpoint=no.such.host.invalid:1", "--rdzv_conf=read_timeout=0.5", SCRIPT],
            ["no.such.host.invalid", "after 0.5 s", "correct it"],
        ),
        (["--redirects=10:3", "--tee=x", SCRIPT], ["x does not match"]),
        (["--rdzv_backend=zookeeper", "--rdzv_endpoint=localhost:1", SCRIPT], ["'zookeeper'", "use c10d"]),
        (["--rdzv_conf=join_timout=3", SCRIPT], ["'join_timout'", "join_timeout"]),
        (["--rdzv_conf=join_timeout=soon", SCRIPT], ["join_timeout", "'soon'"]),
        (["/no/such/train.py"], ["/no/such/train.py", "correct its path"]),
        (["--no_python", "no-such-program"], ["no-such-program", "PATH"]),
        (["--shutdown_timeout=-1", SCRIPT], ["shutdown_timeout"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_one_line_that_names_the_thing_the_value_and_the_remedy(
    args: list[str], said: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cli.main(args) != 0
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("softrun: error: ")
    for part in said:
        assert part in lines[0]


def test_the_same_from_the_command_line() -> None:
    done = launch("--nnodes=4:2", SCRIPT)
    assert done.returncode == 1, "as torchrun"
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_debug_switch_shows_the_traceback() -> None:
    done = launch("--nnodes=4:2", SCRIPT, SOFTRUN_DEBUG="1")
    assert "Traceback (most recent call last)" in done.stderr


def test_a_store_that_cannot_be_reached() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    done = launch(
        "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", "--rdzv_conf=read_timeout=1,is_host=false", SCRIPT
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"softrun: error: no store answers at {endpoint} after 1 s: start ")
    assert "Traceback" not in done.stderr


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


def test_two_jobs_with_one_id(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2")
    cluster.wait_for_steps(2)
    second = start("b", "count.py", "100000", "0.01", nnodes="1:3")
    assert second.wait(20) == 1
    line = second.output().splitlines()[-1]
    assert "runs with --nnodes 1:2" in line
    assert "another --rdzv_id" in line
    cluster.wait_for_steps(2, after=time.monotonic())
    assert first.process.poll() is None


def test_a_job_that_is_over(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2", job="one")
    cluster.wait_for_steps(2)
    short = start("b", "count.py", "10", "0.01", nnodes="1", job="two")
    assert short.wait(20) == 0, "another job may use the same store"
    late = start("c", "count.py", "10", "0.01", nnodes="1", job="two")
    assert late.wait(20) == 1
    assert "this job is over already: choose another --rdzv_id" in late.output().splitlines()[-1]
    first.signal(signal.SIGTERM)
    assert first.wait(20) == 1


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
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGINT, b"")
