"""What neither a scenario's trace nor the simulation's checkers look at: the words of the engine."""

from __future__ import annotations

import pytest
from values import JOB, member, sealed

from softrun.agent import effects as do
from softrun.agent import observations as saw
from softrun.agent.engine import SILENCE_S, Engine, EngineConfig
from softrun.policies import load_policy
from softrun.runtime.events import WorkerStatus


@pytest.mark.parametrize(
    ("after_s", "asks", "named"), [(SILENCE_S, False, True), (SILENCE_S - 1, False, False), (SILENCE_S, True, False)]
)
def test_a_worker_that_never_asks_for_its_world_is_named(after_s: float, asks: bool, named: bool) -> None:
    engine = Engine(EngineConfig(JOB, "a", "host-a", 7000, "trainer", 1, 0), load_policy("soft"), 0.0)
    engine.observe(saw.StoreReady(hosted=True), 0.0)
    engine.observe(saw.RecordSeen(sealed(member("a"))), 0.0)
    if asks:
        engine.observe(saw.WorkerSaid(0, 1, WorkerStatus(ready=True, applied=1)), 1.0)
    effects = engine.observe(saw.RecordSeen(sealed(member("a"), member("b"), number=2)), after_s)
    assert any(isinstance(effect, do.Tell) for effect in effects), "the world has changed"
    said = [effect.text for effect in effects if isinstance(effect, do.Note) and effect.warning]
    assert any("worker 0 has not asked" in text for text in said) == named
