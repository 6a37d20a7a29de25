"""Every example runs to its end by the command in its own heading, with two workers, also if one is killed."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from nursery import Nursery

from local_cluster import PATIENCE_S, LocalCluster, send

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = {  # what it needs beside torch, and what two workers write at their end
    "first_job.py": ("numpy", r"done: step 50, loss \d\.\d{4}"),
    "train_digits.py": ("sklearn", r"final accuracy 0\.9\d at step \d+ with 2 workers"),
    "train_hsdp.py": ("torch", r"step 60, loss 0\.\d{6}\n|step 30, loss 1\.\d{6}\n"),
    "rfc_loop.py": ("torch", r"rank [01]: step 100, largest error \d\.\de-0[4-9]"),
    "wrapped_function.py": ("torch", r"step 100, loss \d\.\de-\d\d"),
    "train_lightning.py": ("pytorch_lightning", r"rank [01] of 2: step 100"),
    "train_lightning_soft.py": ("pytorch_lightning", r"rank [01] of 2: epoch 5, step 50, loss 0\.7"),
    "train_accelerate.py": ("accelerate", r"rank [01] of 2: step 100"),
    "live_workers.py": ("torch", r"rank 0 of 1: step 100, weight 9\.9\d, loss"),
    "live_train.py": ("sklearn", r"final accuracy 0\.9\d at step 600 with [12] workers"),
    "launch_from_program.py": ("torch", r"rank [01], process \d+: mean 0\.[45]"),
    "own_policy/own_policy.py": ("torch", r"rank [01]: step 100, largest error \d\.\de-0[4-9]"),
}
ONE_LINE = ("train_digits.py", "live_workers.py", "live_train.py")  # the proof is written by one worker
QUICK = ("first_job.py", "train_digits.py", "live_workers.py")
KILLED = ("live_workers.py", "live_train.py")
"""One of their two workers is killed when they have taken some steps."""
FURTHER = {
    "live_workers.py": ["--pause", "0.02"],
    "live_train.py": ["--pause", "0.01"],
    "first_job.py": ["50"],  # steps
    "launch_from_program.py": ["--endpoint", "localhost:0"],  # a free port
}
MOST_LINES = 90


@pytest.fixture
def cluster(tmp_path: Path, nursery: Nursery) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", begin=nursery.begin) as cluster:
        yield cluster


def heading(example: str) -> list[str]:
    """The last command of the example's docstring, word by word."""
    text = ast.get_docstring(ast.parse((ROOT / "examples" / example).read_text())) or ""
    commands = re.findall(r"^    (python .*)", text.replace("\\\n", " "), re.MULTILINE)
    return shlex.split(commands[-1])


def test_the_list_is_complete_and_each_is_short() -> None:
    paths = {str(path.relative_to(ROOT / "examples")): path for path in (ROOT / "examples").rglob("*.py")}
    found = {name: path for name, path in paths.items() if "/build/" not in name}  # pip leaves one in own_policy
    assert found.keys() == EXAMPLES.keys()
    assert not [name for name, path in found.items() if len(path.read_text().splitlines()) > MOST_LINES]


@pytest.mark.parametrize(
    "example", [pytest.param(example, marks=() if example in QUICK else pytest.mark.slow) for example in EXAMPLES]
)
def test_an_example(example: str, cluster: LocalCluster, tmp_path: Path) -> None:
    needed, proof = EXAMPLES[example]
    if find_spec(needed) is None:  # to import it could change the environment of all tests that follow
        pytest.skip(f"needs {needed}")
    env = {}
    if "/" in example:
        install((ROOT / "examples" / example).parent, tmp_path)
        env = {"PYTHONPATH": str(tmp_path)}
    words = [str(ROOT / word) if word.startswith("examples/") else word for word in heading(example)]
    for flag, value in {"--nproc_per_node": "2", "--directory": str(tmp_path / "checkpoints")}.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    words += FURTHER.get(example, [])
    node = cluster.start("node", [sys.executable, *words[1:]], env)
    if example in KILLED:
        send(max(step.pid for step in cluster.wait_for_steps(2)), signal.SIGKILL)
    assert node.wait(PATIENCE_S) == 0, node.output()
    assert len(re.findall(proof, node.output())) == (1 if example in ONE_LINE else 2), node.output()
    # Python's own resource tracker ends a moment after the program that has spawned functions.
    cluster.wait_for("nothing is left", lambda: not cluster.orphans())


def install(package: Path, directory: Path) -> None:
    """From a copy, since building writes into the package's folder."""
    copy = shutil.copytree(package, directory / "package", ignore=shutil.ignore_patterns("build"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(directory), str(copy)], check=True)
