"""The observation queue: where observations from threads and signal handlers wait for the driver, and wake it."""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterable

from softrun.agent.protocol.observations import Observation, Signalled

logger = logging.getLogger("softrun")


class ObservationQueue:
    """Observations on their way to the engine, from any thread or signal handler; wakes the loop."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._waiting: deque[Observation] = deque()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        selector.register(self._bell, selectors.EVENT_READ, self._rung)

    def put(self, observation: Observation) -> None:
        """Add an observation, in the driver's thread."""
        self._waiting.append(observation)

    def put_threadsafe(self, observation: Observation) -> None:
        """Add an observation from another thread or a signal handler."""
        self._waiting.append(observation)
        try:
            self._rope.send(b".")
        except BlockingIOError:
            pass  # the bell is ringing already
        except OSError:
            pass  # the agent has ended

    def take(self) -> Observation | None:
        """The oldest observation; None if there is none."""
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """Stop waking the loop: what is put afterwards is never read."""
        self._selector.unregister(self._bell)
        self._bell.close()
        self._rope.close()

    def _rung(self, _mask: int) -> None:
        try:
            while self._bell.recv(4096):
                pass
        except BlockingIOError:
            pass


class SignalsToQueue:
    """While entered, the named signals become observations. Outside the main thread it does nothing."""

    def __init__(self, names: Iterable[str], observations: ObservationQueue) -> None:
        self._signals = []
        for name in filter(None, map(str.strip, names)):
            if name in signal.Signals.__members__:
                self._signals.append(signal.Signals[name])
            else:
                logger.warning("%r is not a signal that can be handled", name)
        self._observations = observations
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            logger.warning("signals are not handled, because this is not the main thread")
            return
        for signum in self._signals:
            self._before[signum] = signal.signal(
                signum, lambda got, _frame: self._observations.put_threadsafe(Signalled(got))
            )

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
