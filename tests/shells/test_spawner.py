"""Which workers wait for the fork server, and which are started by themselves."""

from __future__ import annotations

import selectors
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from local_cluster import PATIENCE_S
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.fork_server import Forked, ForkServer
from softrun.agent.workers.processes import Process, Program
from softrun.agent.workers.spawner import Spawner

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("text", "waits"), [("import os", False), ("import torch", True)])
def test_only_who_imports_what_is_loaded_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, waits: bool
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # it changes all the time
    loading = ForkServer(["-u"])  # until it is told what else to load
    script = tmp_path / "script.py"
    script.write_text(text)
    started: list[Process] = []
    selector = selectors.DefaultSelector()
    spec = SimpleNamespace(entrypoint=sys.executable, args=("-u", str(script)), numa_options=None)
    spawner = Spawner(
        spec,  # type: ignore[arg-type]
        "spawn",
        loading,
        selector,
        lambda _, process: started.append(process),
        lambda: None,
    )
    spawner.start((0, 1), {reaper.VARIABLE: reaper.mark_of(loading.token, 1)}, "", "")
    assert [type(process) for process in started] == ([] if waits else [Program])
    loading.load([])
    while not started:
        for key, mask in selector.select(PATIENCE_S):
            key.data(mask)
    assert isinstance(started[0], Forked if waits else Program)
    while (code := started[0].reap(0.1)) is None:
        for key, mask in selector.select(0.1):
            key.data(mask)
    assert code == 0
    loading.close()
