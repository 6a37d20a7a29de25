"""torch's process for asynchronous checkpoints belongs to one world."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fake_agent import FakeAgent
from softrun.runtime.events import WorldChangeEvent

pytestmark = pytest.mark.processes

SAVES = """
import os, time, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from softrun.runtime import worlds
PROCESS = AsyncCheckpointerType.PROCESS
if __name__ == "__main__":
    torch.set_num_threads(1)
    for world in worlds():
        with world.process_group("gloo"):
            path = os.path.join(os.environ["DIRECTORY"], str(world.round))
            saving = dcp.async_save({"w": torch.ones(4)}, checkpoint_id=path, async_checkpointer_type=PROCESS)
            print("rank", world.rank, "begins to save in world", world.round)
            if os.environ.get("EXITS"):
                raise SystemExit(0)
            if world.round == 1 and os.environ.get("DIES"):
                os._exit(3)
            saving.result()
            print("rank", world.rank, "has saved in world", world.round)
            while not world.changed:
                time.sleep(0.01)
            world.check()
"""


@pytest.mark.slow
def test_survivors_and_newcomers_save_in_a_process_of_each_world(agent: FakeAgent, tmp_path: Path) -> None:
    """One dies while the processes of the first world begin: the other would wait for half an hour for its."""
    survivor = agent.start(SAVES, DIRECTORY=str(tmp_path))
    lost = agent.start(SAVES, DIRECTORY=str(tmp_path), DIES="1")
    agent.form([survivor, lost])
    survivor.says("rank 0 begins to save in world 1")
    assert lost.ends() == 3
    newcomer = agent.start(SAVES, DIRECTORY=str(tmp_path))
    agent.pause([survivor], WorldChangeEvent.SCALE_DOWN)
    agent.form([survivor, newcomer], WorldChangeEvent.SCALE_DOWN)
    for rank, worker in enumerate((survivor, newcomer)):
        worker.says(f"rank {rank} has saved in world 2")
    agent.pause([survivor, newcomer], WorldChangeEvent.SCALE_UP)
    another = agent.start(SAVES, DIRECTORY=str(tmp_path))
    agent.form([survivor, newcomer, another], WorldChangeEvent.SCALE_UP)
    for rank, worker in enumerate((survivor, newcomer, another)):
        worker.says(f"rank {rank} has saved in world 3")
    assert (tmp_path / "3" / ".metadata").exists()
    assert not (tmp_path / "1" / ".metadata").exists()
    for worker in (survivor, newcomer, another):
        worker.signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_trainer_that_ends_in_its_world_completes_its_save(agent: FakeAgent, tmp_path: Path) -> None:
    """Python waits for torch's thread, which waits for the process."""
    worker = agent.start(SAVES, DIRECTORY=str(tmp_path), EXITS="1")
    agent.form([worker])
    assert worker.ends() == 0, worker.output
    assert (tmp_path / "1" / ".metadata").exists(), worker.output
