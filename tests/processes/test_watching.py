"""What watches an agent and its workers from outside: timers, the health check, metrics, logs that are kept."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from launching import one_node
from local_cluster import PATIENCE_S, LocalCluster, Node
from softrun import RestartPolicy, launch_agent

pytestmark = pytest.mark.processes

LATE = """
import os, sys, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60 if os.environ["TORCHELASTIC_RESTART_COUNT"] == sys.argv[1] else 0.3):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != sys.argv[1]:
        time.sleep(60)
"""


config = partial(one_node, start_method="fork")


def nothing() -> None:
    pass


def fail_once(marker: str) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Path(marker).touch()
        sys.exit(3)


@pytest.mark.slow
@pytest.mark.parametrize(("good_count", "code"), [("1", 0), ("9", 1)])
def test_a_timer_that_expires_ends_the_worker_and_not_the_launcher(tmp_path: Path, good_count: str, code: int) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    done = subprocess.run(
        [sys.executable, "-m", "softrun", "--max-restarts=1", str(script), good_count],
        env={**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, done.stderr
    assert "was ended by signal 9" in done.stderr
    assert ("Signal 9 (SIGKILL) received by PID" in done.stderr) == (code == 1)


class Health:
    """Stands where a vendor's health check server stands."""

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self.alive_callback, self.port, self.timeout = alive_callback, port, timeout
        self.said: list[str] = []

    def start(self) -> None:
        self.said.append("started")
        assert abs(self.alive_callback() - time.time()) < 5

    def stop(self) -> None:
        self.said.append("stopped")


def test_the_health_check_of_a_vendor_is_started_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Health] = []

    def create(**arguments: Any) -> Health:
        made.append(Health(**arguments))
        return made[-1]

    monkeypatch.setattr(local_elastic_agent, "create_healthcheck_server", create)
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "1234")
    launch_agent(config(), nothing, [])
    [health] = made
    assert (health.port, health.said) == (1234, ["started", "stopped"])


class Metrics(metrics.MetricHandler):
    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.seen[metric_data.name] = metric_data.value


def test_the_metrics_are_torchs(tmp_path: Path) -> None:
    handler = Metrics()
    metrics.configure(handler, "torchelastic")
    launch_agent(config(nproc_per_node=1, max_restarts=1, role="r"), fail_once, [str(tmp_path / "failed")])
    assert (tmp_path / "failed").exists()
    wanted = {
        "workers.r.remaining_restarts": 0,
        "workers.r.healthy": 1,
        "workers.r.run_total": 1,
        "workers.r.run_success_with_retries": 1,
        "workers.r.run_success_no_retries": 0,
        "workers.r.run_failed_no_retries": 0,
        "workers.r.flakiness": 50,
    }
    assert {name: handler.seen.get(name) for name in wanted} == wanted


def half_an_error_file() -> None:
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": {"mess')
    os._exit(5)


@pytest.mark.parametrize("policy", list(RestartPolicy))
def test_an_error_file_that_was_cut_short_is_passed_over(policy: RestartPolicy) -> None:
    formatted: list[logging.LogRecord] = []
    torchs = logging.Handler()
    torchs.emit = formatted.append  # type: ignore[method-assign]
    logging.getLogger(ProcessFailure.__module__).addHandler(torchs)
    try:
        with pytest.raises(ChildFailedError) as caught:
            launch_agent(config(restart_policy=policy), half_an_error_file, [])
    finally:
        logging.getLogger(ProcessFailure.__module__).removeHandler(torchs)
    assert caught.value.get_first_failure()[1].exitcode == 5
    assert not formatted, "torch's format of an exception imports torch._dynamo: for seconds the agent would not answer"


@pytest.mark.slow
def test_logs_of_every_world_are_kept(cluster: LocalCluster, start: Callable[..., Node], tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    flags = ("--rdzv_conf=last_call_timeout=0.3", f"--log_dir={tmp_path / 'logs'}", "--redirects=3", "--max_restarts=1")
    start("a", "told.py", str(orders), policy="hard", nproc=1, flags=flags)
    cluster.wait_for_steps(1)
    start("b", "told.py", str(orders), policy="hard", nproc=1, flags=flags[:1])
    cluster.wait_for_steps(2)
    (orders / "exit-0").touch()
    cluster.wait_for("a third world", lambda: max(s.round for s in cluster.steps()) == 3)
    kept = {
        re.sub(r"test_\w{8}/", "", str(path.relative_to(tmp_path / "logs"))) for path in tmp_path.glob("logs/*/*/0/*")
    }
    assert kept >= {f"attempt_{n}/0/{name}" for n in range(3) for name in ("stdout.log", "stderr.log")}


class Broken(metrics.MetricHandler):
    def emit(self, metric_data: metrics.MetricData) -> None:
        if metric_data.name.endswith(".healthy"):
            raise OSError("the collector is away")


def test_a_handler_that_fails_ends_no_job() -> None:
    metrics.configure(Broken(), "torchelastic")
    assert launch_agent(config(), nothing, []) == {0: None, 1: None}
