"""Checkpoints of a State: whole or not there, and for any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_ranks import Me, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from softrun.runtime.sampler import ElasticSampler
from softrun.runtime.state.disk import aside
from softrun.runtime.state.messages import to_bytes
from softrun.runtime.state.state import State


def build(shards: int = 0, width: int = 6, length: int = 40) -> State:
    torch.manual_seed(shards)
    model: nn.Module = nn.Sequential(nn.Linear(5, width), nn.Linear(width, 3))
    if shards:
        model = fully_shard(model, mesh=init_device_mesh("cpu", (shards,)))
    return State(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
        sampler=ElasticSampler(range(length), 4),
        step=0,
    )


def train(state: State, steps: int) -> None:
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.ones(2, 5) * (state.step + 1)).square().mean().backward()
        state.optimizer.step()
        state.commit()


def whole(state: State) -> Any:
    """All of it, whatever the number of ranks."""
    tensors = state._contents.view().tensors.values()
    full = [getattr(tensor, "full_tensor", lambda tensor=tensor: tensor)() for tensor in tensors]
    return state.step, state.sampler.steps, [to_bytes(tensor.detach()) for tensor in full]


def saved(directory: Path, *steps: int, size: int = 2, shards: int = 0) -> Any:
    """Checkpoints after so many steps each, by so many ranks; what the last one holds."""

    def work(me: Me) -> Any:
        me.build()
        state = build(shards)
        state.sync()
        for count in steps:
            train(state, count)
            folder = state.save(directory)
            assert folder.is_dir(), "it is there when the call returns"
        return whole(state)

    return run(work, size)[0]


def loaded(directory: Path, size: int = 2, shards: int = 0) -> list[Any]:
    def work(me: Me) -> Any:
        me.build()
        state = build(shards)
        commits = state.load(directory)
        assert state.sync() == 0, "all have the same"
        return commits, whole(state)

    return run(work, size)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_is_loaded_and_older_ones_are_removed(tmp_path: Path) -> None:
    content = saved(tmp_path, 1, 2, 3)
    assert names(tmp_path) == [f"step-{step:012d}-round-000000001" for step in (3, 6)]
    assert loaded(tmp_path, size=3) == [(6, content)] * 3


@pytest.mark.parametrize(("before", "after"), [((4, 4), (2, 2)), ((2, 2), (3, 3)), ((2, 2), (1, 0)), ((1, 0), (2, 2))])
def test_another_number_of_ranks_loads_a_sharded_one(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    content = saved(tmp_path, 3, size=before[0], shards=before[1])
    assert loaded(tmp_path, *after) == [(3, content)] * after[0]


def test_without_a_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    assert build().load(tmp_path / "not there") is None


def test_one_that_was_not_finished_is_neither_loaded_nor_kept(tmp_path: Path) -> None:
    content = saved(tmp_path, 2)
    (whole_one,) = tmp_path.iterdir()
    unfinished = tmp_path / ".step-000000000009-round-000000000"
    unfinished.mkdir()
    assert loaded(tmp_path) == [(2, content)] * 2
    saved(tmp_path, 3)
    assert names(tmp_path) == [whole_one.name, "step-000000000003-round-000000001"]


@pytest.mark.parametrize("damage", ["truncated", "missing", "garbage"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 2, 2)
    newest = max(tmp_path.iterdir())
    victim = newest / "state.json" if damage == "garbage" else next(newest.glob("*.distcp"))
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-7])
    state = build()
    assert state.load(tmp_path) == 2
    assert state.step == 2
    assert f"{newest} is damaged, and passed over" in caplog.text


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"width": 7}, r"model.0.weight is float32\[7, 5\] here and float32\[6, 5\] where it should come from"),
        ({"length": 41}, "length 40, this one 41"),
    ],
)
def test_one_of_another_job_is_refused_and_nothing_changes(tmp_path: Path, other: Any, message: str) -> None:
    saved(tmp_path, 2)
    state = build(**other)
    before = whole(state)
    with pytest.raises(ValueError, match=message):
        state.load(tmp_path)
    assert whole(state) == before


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def work(me: Me) -> Any:
        me.build()
        state = build()
        state.sync()
        with pytest.raises(OSError, match=r"file/step-000000000000-round-000000001 was not written: \w+Error") as error:
            state.save(tmp_path / "file")
        return "\n" in str(error.value)

    assert run(work, 2) == [False, False]


# --- written aside


def saved_aside(directory: Path, size: int = 2, shards: int = 0, failing_rank: int = -1, again: bool = False) -> Any:
    """A checkpoint that is written while the ranks train on; what they had when it was begun."""

    def work(me: Me) -> Any:
        me.build()
        state = build(shards)
        state.sync()
        train(state, 3)
        content = whole(state)
        with pytest.MonkeyPatch.context() as patch:
            if me.rank == failing_rank:
                patch.setattr(aside, "_write_whole", lambda path, data: fail(path))
            folder = state.save(directory, wait=False)
            train(state, 2)
            assert state._aside._thread is not None
            state._aside._written.wait()
        if again:
            state.save(directory, wait=False)
            assert folder.exists() == (failing_rank < 0), "it has come to its end"
            content = whole(state)
        state._aside._thread.join()  # as at the end of a process
        return content

    return run(work, size)[0]


def fail(path: Path) -> None:
    raise OSError(f"no room for {path.name}")


@pytest.mark.parametrize(("size", "shards"), [(1, 0), (2, 0), (2, 2)])
def test_what_is_written_aside_is_what_was_there_when_it_was_begun(tmp_path: Path, size: int, shards: int) -> None:
    content = saved_aside(tmp_path, size, shards)
    assert names(tmp_path) == ["step-000000000003-round-000000001"]
    assert loaded(tmp_path, size, shards) == [(3, content)] * size


def test_the_next_one_waits_for_the_last_one(tmp_path: Path) -> None:
    content = saved_aside(tmp_path, again=True)
    assert loaded(tmp_path) == [(5, content)] * 2
    assert names(tmp_path) == [f"step-{step:012d}-round-000000001" for step in (3, 5)]


def test_one_that_a_rank_could_not_write_never_has_its_name(tmp_path: Path) -> None:
    content = saved_aside(tmp_path, failing_rank=1, again=True)
    assert names(tmp_path) == ["step-000000000005-round-000000001"]
    assert loaded(tmp_path) == [(5, content)] * 2


def test_the_first_rank_waits_no_longer_than_its_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(aside, "PATIENCE_S", 0.1)
    one = aside.Aside()
    one.begin(tmp_path / ".step-1", {"part": b"x"}, lambda: False)
    assert one._thread is not None
    one._thread.join()
    assert "step-1 is not whole, and is left unfinished: a rank was lost" in caplog.text
    assert (tmp_path / ".step-1" / "part").read_bytes() == b"x"
