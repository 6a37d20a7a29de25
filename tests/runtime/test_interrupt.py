"""Interruptions leave no lock behind and lose no event, wherever they strike."""

from __future__ import annotations

import dis
import functools
import gc
import importlib
import io
import logging
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from fake_agent import an_event, wait_until
from softrun.runtime import interrupt as interrupt_module
from softrun.runtime.channel.channel import EventWriter
from softrun.runtime.channel.inbox import ChannelInbox
from softrun.runtime.interrupt import MOST_PUT_OFF, SIGNAL, Interrupt, RestartRequest

CHECKS = ("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "FOR_ITER")
"""Behind these Python looks for signals."""


Uses = tuple[Callable[[], object], Callable[[], object]]
"""What the main thread does, and what another does behind it."""


class Striker:
    """Sends the signal at that place of all at which Python looks for signals, and at each later one."""

    def __init__(self, interrupt: Interrupt, place: int) -> None:
        self.passed = 0
        self._interrupt, self._place = interrupt, place
        self._last: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        before = self._last.get(frame)
        done = "RESUME" if before is None else dis.opname[frame.f_code.co_code[before]]
        self._last[frame] = frame.f_lasti
        if event == "opcode" and done.startswith(CHECKS):
            self.passed += 1
            if self.passed >= self._place:
                self._interrupt._interrupted(SIGNAL, frame)
        return self.trace

    def strike(self, use: Callable[[], object]) -> None:
        self._interrupt._requested = 1
        gc.disable()  # what its callbacks raise is lost
        sys.settrace(self.trace)
        try:
            use()
        finally:
            sys.settrace(None)
            gc.enable()


def condition(_: Path) -> Uses:
    condition = threading.Condition(threading.RLock())

    def notify() -> None:
        with condition:
            condition.notify_all()

    def use() -> None:
        with condition:
            condition.wait(0)

    return use, notify


def event(_: Path) -> Uses:
    event = threading.Event()
    return lambda: event.wait(0), event.set


def line(_: Path) -> Uses:
    line: queue.Queue[int] = queue.Queue()

    def use() -> None:
        line.put(1)
        line.get(timeout=0.001)

    return use, lambda: line.put(2)


def log(_: Path) -> Uses:
    handler = logging.StreamHandler(io.StringIO())
    record = logging.makeLogRecord({"msg": "a loss"})
    return lambda: handler.handle(record), lambda: handler.handle(record)


def channel(directory: Path) -> Uses:
    EventWriter.create(directory).write(an_event())
    inbox = ChannelInbox(directory)
    return lambda: inbox.last(), inbox.last


@pytest.mark.parametrize("kind", [condition, event, line, log, channel])
def test_others_can_go_on(kind: Callable[[Path], Uses], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a lock that stayed behind, or an event that was lost, waits for ever."""
    monkeypatch.setattr(interrupt_module, "MOST_PUT_OFF", sys.maxsize)  # here signals come at each byte code
    place, struck = 1, 0
    while True:
        use, elsewhere = kind(tmp_path / str(place))
        with Interrupt() as interrupt:
            striker = Striker(interrupt, place)
            try:
                interrupt.run(functools.partial(striker.strike, use), 0)
            except RestartRequest:
                struck += 1
        thread = threading.Thread(target=elsewhere, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"struck at place {place}"
        if striker.passed < place:
            break
        place += 1
    assert struck


def test_a_lock_that_nobody_gives_back_holds_no_run_for_ever() -> None:
    lost = threading.Condition(threading.Lock())
    taker = threading.Thread(target=lost.acquire)
    taker.start()
    taker.join()
    main = threading.main_thread().ident
    assert main is not None

    def waits() -> bool:
        return sys._current_frames()[main].f_code is threading.Condition.__enter__.__code__

    with Interrupt() as interrupt:

        def request() -> None:
            try:
                wait_until(waits, "the main thread at the lock")
            finally:
                interrupt.request(1, lambda: None)

        requested = threading.Thread(target=request)

        def work() -> None:
            requested.start()
            with lost:
                raise AssertionError("the lock is free")

        with pytest.raises(RestartRequest):
            interrupt.run(work, 0)
        requested.join()
        assert interrupt._put_off == {MOST_PUT_OFF: MOST_PUT_OFF}


def test_a_module_is_imported_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of torch._dynamo, which an optimizer imports when it is made, would be all that later imports find."""
    (tmp_path / "lazy.py").write_text("import signals\nsignals.await_two()\nIS_WHOLE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    imported: list[bool] = []
    with Interrupt() as interrupt:
        requested = threading.Thread(target=interrupt.request, args=(1, lambda: None))

        def await_two() -> None:
            requested.start()
            wait_until(lambda: sum(interrupt._put_off.values()) > 1, "two signals while a module is imported")

        monkeypatch.setitem(sys.modules, "signals", SimpleNamespace(await_two=await_two))

        def work() -> None:
            imported.append(importlib.import_module("lazy").IS_WHOLE)
            threading.Event().wait()

        with pytest.raises(RestartRequest):
            interrupt.run(work, 0)
        requested.join()
    assert imported == [True]


def test_a_module_that_trains_while_it_is_imported_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt_module, "MOST_PUT_OFF_IMPORTING", 3)
    (tmp_path / "trains.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Interrupt() as interrupt:

        def request() -> None:
            wait_until(lambda: "trains" in sys.modules, "the import")
            interrupt.request(1, lambda: None)

        requested = threading.Thread(target=request)
        requested.start()
        with pytest.raises(RestartRequest):
            interrupt.run(lambda: importlib.import_module("trains"), 0)
        requested.join()
        assert interrupt._put_off[3] == 3


def test_a_finalizer_ends_first(capsys: pytest.CaptureFixture[str]) -> None:
    """That of a DataLoader's iterator waits for its workers; Python showed the exception there, and went on."""
    ended: list[bool] = []
    with Interrupt() as interrupt:
        requested = threading.Thread(target=interrupt.request, args=(1, lambda: None))

        class Loader:
            def __del__(self) -> None:
                requested.start()
                wait_until(lambda: sum(interrupt._put_off.values()) > 1, "two signals in the finalizer")
                ended.append(True)

        def work() -> None:
            loader = Loader()
            del loader
            threading.Event().wait()

        with pytest.raises(RestartRequest):
            interrupt.run(work, 0)
        requested.join()
    assert ended == [True]
    assert "Exception ignored" not in capsys.readouterr().err
