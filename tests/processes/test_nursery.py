"""Processes that are forked are known apart, whatever process ids they get."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery
from nursery_main import MESSAGE_BYTES

from local_cluster import COMMON_ENV

PROGRAM = [sys.executable, "-m", "softrun"]


class Forks:
    """The process that forks, which always gives the same process id."""

    def __init__(self, *_: object, pass_fds: list[int], **__: object) -> None:
        self._socket = socket.socket(fileno=os.dup(pass_fds[0]))

    def has(self, *news: dict[str, int]) -> None:
        for each in news:
            self._socket.send(json.dumps(each).encode())

    def order(self) -> Any:
        return json.loads(self._socket.recv(MESSAGE_BYTES))

    def wait(self) -> int:
        self._socket.close()
        return 0


def test_a_process_id_may_come_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[Forks] = []

    def popen(*args: object, **options: Any) -> Forks:
        begun.append(Forks(*args, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with Nursery() as nursery:
        (forks,) = begun
        env = {**os.environ, **COMMON_ENV}
        forks.has({"pid": 7})
        first = nursery.begin(PROGRAM, env, tmp_path / "log")
        forks.has({"ended": forks.order()["number"], "code": 3}, {"pid": 7})
        second = nursery.begin(PROGRAM, env, tmp_path / "log")
        assert (first.pid, first.poll(), second.pid, second.poll()) == (7, 3, 7, None)
        forks.has({"ended": forks.order()["number"], "code": 0})
        assert (first.poll(), second.poll()) == (3, 0)
