"""How an agent that is put together ends by a fault of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.loop import assembly
from softrun.agent.protocol.model import JobSettings
from softrun.policies import load_policy


class Shell:
    """Stands for a part of the agent, and notes what it is told to do in the end."""

    def __init__(self, name: str, done: list[str], directory: Path) -> None:
        self.directory, self.environment = directory, dict[str, str]()
        self.about: dict[str, Any] = {}
        self.port, self.descriptor = 1, 0
        self._name, self._done = name, done

    def __getattr__(self, what: str) -> Any:
        if what in ("close", "give_up"):
            return lambda: self._done.append(f"{self._name}: {what}")
        return lambda *_args: None


def test_by_a_fault_of_its_own_its_workers_are_killed_before_its_peers_see_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else they go on without them, beside them."""
    done: list[str] = []

    def observe(_seen: object, _now: float) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(assembly, "Links", lambda *_args, **_named: Shell("links", done, tmp_path))
    monkeypatch.setattr(assembly, "SnapshotKeeper", lambda *_args: Shell("snapshots", done, tmp_path))
    monkeypatch.setattr(assembly, "Engine", lambda *_args: SimpleNamespace(observe=observe))
    backend: Any = SimpleNamespace(
        job="job", secret=None, bind="", listens=(), open=None, named_store=None, is_only_host=False
    )
    config = EngineConfig(JobSettings(1, 2, "soft", "replace"), "a", "127.0.0.1", 0, "trainer", 1, 0)
    workers: Any = Shell("workers", done, tmp_path)
    with pytest.raises(ValueError, match="a bug"):
        assembly.run_agent(config, load_policy("soft"), backend, (), lambda *_: workers)
    assert done[0] == "workers: give_up"
    assert {"links: close", "workers: close"} <= {*done[1:]}
