"""What the supervisor answers when the engine asks for something that may have changed meanwhile."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from softrun.agent.protocol.observations import Observation, StoreUsed, WorkerSaid
from softrun.agent.workers import supervisor
from softrun.agent.workers.connections import is_connected, sockets_of
from softrun.agent.workers.supervisor import Supervisor
from softrun.runtime.channel.channel import EventReader, EventWriter
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
    state = SimpleNamespace(
        _workers={(0, 1): SimpleNamespace(channel=channel, port=29500, inherited=set())},
        _processes={(0, 1): SimpleNamespace(pid=1)},
        _observe=seen.append,
    )
    Supervisor.look_for_store(state, 0, 1)  # type: ignore[arg-type]
    assert seen == [WorkerSaid(0, 1, WorkerStatus(ready=True, applied=1)), StoreUsed(0, 1, 29500)]


def test_a_connection_that_a_forked_worker_has_of_its_agent_is_not_its_own() -> None:
    """The agent is connected to the stores that it hosts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            inherited = sockets_of(os.getpid())
            session = os.getsid(0)
            assert is_connected(session, port)
            assert not is_connected(session, port, inherited)
            with socket.create_connection(("127.0.0.1", port)):
                assert is_connected(session, port, inherited)
