"""The lines on which workers call: made, connected, answered, and done without."""

from __future__ import annotations

import logging
import selectors
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import PATIENCE_S
from softrun.agent.protocol.effects import Caller
from softrun.agent.protocol.observations import Called, Observation
from softrun.agent.workers.call_lines import CallLines
from softrun.runtime.calls import Call, Reply, Way
from softrun.runtime.channel.channel import EventReader, EventWriter
from softrun.runtime.channel.directory import ChannelError

CALL = Call(7, 1, Way.ENTRY, tag="3")
WORKER = (0, 1)


class Agent:
    """It answers each call with its number."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.lines = CallLines(self.selector, self.observe)
        self.seen: list[Observation] = []

    def observe(self, observation: Observation) -> None:
        assert isinstance(observation, Called)
        self.seen.append(observation)
        self.lines.reply([Caller(*WORKER, observation.call.number)], Reply(3, ok=True))

    def serve(self) -> None:
        while not self.seen:
            ready = self.selector.select(PATIENCE_S)
            assert ready, "nobody calls"
            for key, mask in ready:
                key.data(mask)


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.lines.close(WORKER)
    agent.selector.close()


@pytest.mark.parametrize("proc", ["/proc/self/fd", "hidden"])
def test_a_call_is_answered(tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch, proc: str) -> None:
    if proc == "hidden":
        monkeypatch.setattr(Path, "is_dir", lambda _path: False)
    monkeypatch.chdir(tmp_path)  # a short path, as the one of a channel in /dev/shm is
    writer = EventWriter.create(Path("channel"))
    agent.lines.open(WORKER, writer.listen)
    serving = threading.Thread(target=agent.serve)
    serving.start()
    assert EventReader(Path("channel")).line().ask(CALL) == Reply(3, ok=True)
    serving.join(PATIENCE_S)
    assert agent.seen == [Called(*WORKER, CALL)]


def test_a_node_on_which_no_socket_can_be_made_trains_without_calls(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _path: False)
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    with caplog.at_level(logging.WARNING, "softrun"):
        for launch in (1, 2):
            writer = EventWriter.create(deep / f"worker-0-{launch}")
            agent.lines.open((0, launch), writer.listen)
    assert len(caplog.messages) == 1, "once is enough"
    assert "SOFTRUN_CHANNEL_ROOT" in caplog.messages[0]
    with pytest.raises(ChannelError, match="its log says why"):
        EventReader(writer.path).line()
    agent.lines.close((0, 2))
