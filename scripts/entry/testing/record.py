"""How a trainer records its own calls of `live_workers` and `live_barrier`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from softrun.runtime.calls import NODE_VARIABLE, Call, Reply, Way
from softrun.runtime.events import WorkerInfo
from softrun.runtime.live.blocks import observe_calls
from softrun.testing.history import Incarnation, Vote, Worker
from softrun.testing.lives import WORLD
from softrun.testing.recorder import Recorder


def record(directory: str | os.PathLike[str]) -> None:
    """Record all calls of `live_workers` and `live_barrier` of this worker, from now on, for `gather` and `check`.

    Call it once in every worker, before its first block, with a directory that all of them share and that was empty
    when the job began. A block then takes some 0.1 ms longer. When the job is over, look at what was recorded:

        python -m softrun.testing DIRECTORY

    Workers that die need not be recorded by anybody. All workers must run on one host, whose clock stamps the events.
    Raises RuntimeError if this process was not started by softrun.
    """
    node = os.environ.get(NODE_VARIABLE)
    if node is None:
        raise RuntimeError(
            f"{NODE_VARIABLE} is not set, so this worker has no name: start it by softrun --restart_policy soft"
        )
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    observe_calls(_Session(path, node))


class _Session:
    """Records the calls of one process."""

    def __init__(self, directory: Path, node: str) -> None:
        self._directory = directory
        self._node = node
        self._name = ""
        self._recorder: Recorder | None = None
        self._is_open = False  # a call has no end yet
        self._live: frozenset[str] = frozenset()  # who is in the block that this worker is in
        self._incs: dict[str, str] = {}

    def called(self, call: Call, place: WorkerInfo) -> None:
        """Record a call before it is sent."""
        if self._recorder is None:
            self._name = f"{self._node}/{place.local_rank}"
            self._recorder = Recorder(self._directory, self._name, is_trainer=True)
        if self._is_open:  # it was interrupted
            self._recorder.error()
        self._is_open = True
        everybody = not call.scope or len(call.scope) == place.world_size
        self._recorder.call(None if everybody else call.scope, _vote(call), _tag(call.tag))

    def replied(self, call: Call, reply: Reply) -> None:
        """Record a reply after its receipt."""
        if self._recorder is None:
            raise AssertionError("a reply to no call")
        self._is_open = False
        if reply.evicted or self._name in reply.lost:
            self._recorder.evicted()
        elif reply.over or reply.mistake:
            self._recorder.error(ok=False if call.way is Way.EXIT else None)
        else:
            if call.way is not Way.EXIT:
                self._incs |= dict(reply.members)
            there = self._live - set(reply.gone) if call.way is Way.EXIT else frozenset(n for n, _ in reply.tags)
            if call.way is not Way.BARRIER:
                self._live = there
            incs: dict[Worker, Incarnation] = {name: self._incs[name] for name in sorted(there)}
            self._recorder.reply(sorted(there), incs, reply.ok, call.epoch * WORLD + reply.turn)


def _vote(call: Call) -> Vote | None:
    if call.way is not Way.EXIT:
        return None
    return "ok" if call.fault is None else "raise"


def _tag(text: str) -> int | str | None:
    tag = json.loads(text) if text else None
    return tag if type(tag) in (int, str) else None
