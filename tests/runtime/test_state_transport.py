"""A transport of others carries what heals a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from gloo_ranks import Me, run, run_until
from torch import nn

from softrun.runtime.state.state import State
from softrun.runtime.state.transport import CheckpointTransport


class ByFiles(CheckpointTransport):
    """Puts a checkpoint into a file, and says which. `brings`: what a receiver gets instead."""

    def __init__(self, directory: Path, rank: int, brings: dict[str, torch.Tensor] | None = None) -> None:
        self._file = directory / f"of-{rank}"
        self._brings = brings
        self.calls: list[str] = []

    def metadata(self) -> str:
        return str(self._file)

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: dict[str, torch.Tensor], timeout: timedelta
    ) -> None:
        assert timeout > timedelta(0)
        self.calls.append(f"send to {dst_ranks} at {step}")
        torch.save(state_dict, self._file.with_suffix(".part"))
        self._file.with_suffix(".part").rename(self._file)

    def disallow_checkpoint(self) -> None:
        self.calls.append("disallow")
        self._file.unlink()

    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: timedelta
    ) -> Mapping[str, torch.Tensor]:
        assert timeout > timedelta(0)
        self.calls.append(f"receive from {src_rank} at {step}")
        while not Path(metadata).exists():
            pass
        loaded: dict[str, torch.Tensor] = torch.load(metadata)
        return loaded if self._brings is None else self._brings


def build(rank: int) -> State:
    torch.manual_seed(rank)
    model = nn.Linear(4, 3)
    return State(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1), step=0)


def train(state: State) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(2, 4)).square().mean().backward()
    state.optimizer.step()
    state.commit()


def healing(directory: Path, brings: dict[str, torch.Tensor] | None = None) -> Callable[[Me], Any]:
    """What each rank does: rank 0 and rank 1 have trained, the others are new."""

    def work(me: Me) -> Any:
        me.build()
        state = build(0 if me.rank < 2 else me.rank)
        if me.rank < 2:
            state._begin_at(0)
            for _ in range(3):
                train(state)
        transport = ByFiles(directory, me.rank, brings)
        state.heal_by(transport)
        told: list[int] = []
        try:
            received = state.sync(on_progress=lambda healing: told.append(healing.received))
        except (ValueError, RuntimeError) as error:
            return str(error)
        return state._contents.view().digest(), state.step, received == sum(told[-1:]), transport.calls

    return work


def test_it_brings_each_newcomer_what_the_first_of_its_sources_has(tmp_path: Path) -> None:
    told = run(healing(tmp_path), 4)
    assert len({digest for digest, *_ in told}) == 1
    assert {step for _, step, *_ in told} == {3}
    assert all(agrees for *_, agrees, _ in told)
    calls = [calls for *_, calls in told]
    sent = [call for each in calls[:2] for call in each if call.startswith("send")]
    assert sorted(rank for call in sent for rank in call.split("[")[1].split("]")[0].split(", ")) == ["2", "3"]
    assert all(each[-1] == "disallow" for each in calls[:2] if each)
    assert all(
        len(each) == 1 and each[0].startswith("receive from") and each[0].endswith(" at 6") for each in calls[2:]
    )
    assert list(tmp_path.iterdir()) == []


def test_what_it_brings_is_compared_with_what_was_described(tmp_path: Path) -> None:
    wrong = {"model.weight": torch.ones(4, 4)}
    said = run_until(healing(tmp_path, wrong), 3, rank=2)
    assert said == "the transport brought torch.float32[4, 4] for model.weight, which is torch.float32[3, 4]"
