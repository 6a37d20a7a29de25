"""Scripts that others wrote for torchrun, and such as its users write, run under softrun with not a line changed.

Only the plain script runs under torchrun as well: that the others do is for their authors to see to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from nursery import Nursery

from local_cluster import PATIENCE_S, LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SCRIPTS = Path(__file__).parent / "scripts"
MODULES = {"torchrun": "torch.distributed.run", "softrun": "softrun"}


@pytest.fixture
def run(tmp_path: Path, nursery: Nursery) -> Iterator[Callable[..., str]]:
    """`run("softrun", script, "--epochs=3")` runs one node of two workers to its end, which must be a good one. Returns
    all that they wrote."""
    with LocalCluster(tmp_path, {"ACCELERATE_USE_CPU": "true"}, nursery.begin) as cluster:

        def run(launcher: str, script: Path, *args: str, flags: tuple[str, ...] = ()) -> str:
            flags = ("--standalone", "--nproc_per_node=2", *flags)
            # Else torchrun's restarted workers often read stale addresses.
            env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if launcher == "torchrun" else {}
            node = cluster.start(launcher, [sys.executable, "-m", MODULES[launcher], *flags, str(script), *args], env)
            code = node.wait(PATIENCE_S)
            assert code == 0, node.output()
            assert not cluster.orphans()
            return node.output()

        yield run


def place_of(package: str) -> Path:
    """Its folder. To import it could change the environment of all tests that follow."""
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs {package}")
    return Path(found.origin).parent


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.torchrun), "softrun"])
def test_a_plain_script_goes_on_from_its_checkpoint(launcher: str, run: Callable[..., str], tmp_path: Path) -> None:
    """A worker is lost in epoch 3: all start again, read the checkpoint of epoch 2, and no epoch is done twice."""
    script, checkpoint, marker = SCRIPTS / "train_ddp.py", tmp_path / "checkpoint.pt", tmp_path / "died"
    output = run(launcher, script, f"--checkpoint={checkpoint}", f"--die_once={marker}", flags=("--max_restarts=2",))
    starts = re.findall(r"(\d+) workers start with epoch (\d+) after (\d+) restarts", output)
    assert starts[:2] == [("2", "0", "0"), ("2", "3", "1")], output
    # A process of torch's may abort while it exits: gloo's threads free their last tensors when Python has ended.
    assert {epoch for _, epoch, _ in starts[2:]} <= {"8"}, output
    epochs = re.findall(r"epoch (\d+) loss ([\d.]+)", output)
    assert [int(epoch) for epoch, _ in epochs] == list(range(8)), output
    losses = [float(loss) for _, loss in epochs]
    assert losses[-1] < losses[0] / 10, output


@pytest.mark.parametrize(
    ("script", "proofs"),
    [
        # This is what `accelerate test` runs: data loaders, random numbers, training as on one processor.
        ("test_script.py", ["Num processes: 2", "Training yielded the same results", "**Test reinstantiated state**"]),
        # Gradients that are not synchronized in every step. The title in the proof is only for several workers.
        ("test_sync.py", ["**Test Distributed `no_sync` context manager**", "with optimizer and scheduler"]),
    ],
    ids=["script", "sync"],
)
def test_accelerate(script: str, proofs: list[str], run: Callable[..., str]) -> None:
    """Accelerate brings the scripts that it tests itself with under torchrun."""
    output = run("softrun", place_of("accelerate") / "test_utils" / "scripts" / script)
    assert [proof for proof in proofs if proof not in output] == [], output


def test_lightning(run: Callable[..., str], tmp_path: Path) -> None:
    place_of("pytorch_lightning")
    output = run("softrun", SCRIPTS / "train_lightning.py", f"--directory={tmp_path}")
    done = sorted(re.findall(r"rank \d of 2 did \d+ steps in a [A-Za-z]+?Environment", output))  # two may share a line
    assert done == [f"rank {rank} of 2 did 10 steps in a TorchElasticEnvironment" for rank in (0, 1)], output
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["epoch=0-step=10.ckpt"]
