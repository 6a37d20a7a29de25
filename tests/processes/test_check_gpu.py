"""scripts/check_gpu: its checks pass with gloo on the CPU, and without a GPU it says that nothing was checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_gpu.py"


def check(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_checks_pass_on_the_cpu() -> None:
    done = check("--backend", "gloo", "--ranks", "2", "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {line[13:].split(": ")[0]: line[:13].strip() for line in done.stdout.splitlines()[1:]}
    assert outcomes == {
        "several ranks on one GPU": "not checked",
        "abort of a stuck collective": "ok",
        "groups rebuilt in the same process": "ok",
        "CudaHealthCheck, healthy device": "not checked",
        "CudaHealthCheck, device-side assert": "not checked",
        "worlds() through a SIGKILL": "ok",
        "Wrapper through an exception and a hang of 2 s": "ok",
    }


@pytest.mark.slow
def test_a_check_that_fails_is_told() -> None:
    """Nothing starts in so short a time."""
    done = check("--backend", "gloo", "--ranks", "2", "--timeout", "0.1")
    assert done.returncode == 1
    assert "failed       worlds() through a SIGKILL: not within 0.1 s" in done.stdout
    assert done.stderr.startswith("check_gpu: failed: abort of a stuck collective, ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_checked() -> None:
    done = check()
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.startswith("check_gpu: nothing was checked")
