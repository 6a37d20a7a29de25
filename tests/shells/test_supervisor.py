"""What the supervisor answers when the engine asks for something that may have changed meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from softrun.agent import supervisor
from softrun.agent.observations import Observation, StoreUsed, WorkerSaid
from softrun.agent.supervisor import Supervisor
from softrun.runtime.channel import EventReader, EventWriter
from softrun.runtime.events import WorkerStatus


def test_a_worker_that_has_asked_is_heard_before_it_is_found_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be taken for one that never asks, and its node's workers would be started again."""
    channel = EventWriter.create(tmp_path / "worker-0-1")
    reader = EventReader(channel.path)
    assert reader.claim()
    reader.write_status(WorkerStatus(ready=True, applied=1))
    monkeypatch.setattr(supervisor, "is_connected", lambda *_: True)
    seen: list[Observation] = []
    channels, processes = {(0, 1): channel}, {(0, 1): SimpleNamespace(pid=1)}
    state = SimpleNamespace(_channels=channels, _processes=processes, _ports={(0, 1): 29500}, _observe=seen.append)
    Supervisor.look_for_store(state, 0, 1)  # type: ignore[arg-type]
    assert seen == [WorkerSaid(0, 1, WorkerStatus(ready=True, applied=1)), StoreUsed(0, 1, 29500)]
