"""scripts/check_gpu: its checks pass with gloo on the CPU, and without a GPU it says that nothing was checked."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import check_gpu
import measuring
import pytest
import torch
from check_gpu import CHECKS
from nursery import Nursery

from local_cluster import LocalCluster

pytestmark = pytest.mark.processes

ONLY_ON_A_GPU = {
    "several ranks on one GPU",
    "the device of a group",
    "CudaHealthCheck, healthy device",
    "CudaHealthCheck, device-side assert",
    "a collective that times out",
}
HALVES = [
    ("2", ["a group", "abort", "rebuilds", "recorder", "ranks on one", "a recovery", "CudaHealthCheck"]),
    ("4", ["SIGKILL", "Wrapper", "times out"]),  # HSDP takes so many
]
SCRIPT = Path(__file__).parents[2] / "scripts" / "check_gpu.py"


def check(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "words"), HALVES)
def test_the_checks_pass_on_the_cpu(
    tmp_path: Path,
    nursery: Nursery,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ranks: str,
    words: list[str],
) -> None:
    """In this process: a script of its own would start ranks and launchers without the nursery."""
    monkeypatch.setattr(measuring, "LocalCluster", partial(LocalCluster, begin=nursery.begin))
    monkeypatch.setattr(check_gpu, "end_in_order_on_sigterm", lambda: None)
    told = tmp_path / "told.json"
    code = check_gpu.main(["--backend", "gloo", "--ranks", ranks, "--json", str(told), "--checks", *words])
    printed = capfd.readouterr()
    assert code == 0, printed
    found = {one["check"]: one for one in json.loads(told.read_text())["checks"]}
    assert {name for name, one in found.items() if one["outcome"] == "ok"} == found.keys() - ONLY_ON_A_GPU
    assert all(f"| {name} | {one['outcome']} |" in printed.out for name, one in found.items())
    if "a recovery" in words:
        parts = found["the parts of a recovery"]["figures"]
        assert parts.keys() == {"detect_ms", "agree_ms", "abort_ms", "rebuild_ms", "first_step_ms"}
        assert min(parts.values()) >= 0 < sum(parts.values())


def test_the_halves_have_all_checks() -> None:
    words = [word for _, half in HALVES for word in half]
    assert [name for name in CHECKS if not any(word in name for word in words)] == []


@pytest.mark.slow
def test_a_check_that_fails_is_told() -> None:
    """Nothing starts in so short a time."""
    done = check("--backend", "gloo", "--ranks", "2", "--timeout", "0.1")
    assert done.returncode == 1
    assert "failed       worlds() through a SIGKILL: not within 0.1 s" in done.stdout
    assert done.stderr.startswith("check_gpu: failed: a group and its first sum, ")


def test_what_does_not_fit_into_its_time_is_not_checked() -> None:
    done = check("--backend", "gloo", "--minutes", "0")
    assert done.returncode == 0
    assert "not checked  worlds() through a SIGKILL: there was no time left" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_checked() -> None:
    done = check()
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("check_gpu: nothing was checked")
