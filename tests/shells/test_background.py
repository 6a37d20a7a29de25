from __future__ import annotations

import threading
import time

from softrun.agent.loop.background import BackgroundQueue


def test_all_is_done_in_order_whatever_fails() -> None:
    done: list[int] = []
    aside = BackgroundQueue("test")
    aside.do(lambda: done.append(1))
    aside.do(lambda: done[7])
    aside.do(lambda: done.append(2))
    aside.close()
    assert done == [1, 2]


def test_what_does_not_end_holds_nobody() -> None:
    release = threading.Event()
    aside = BackgroundQueue("test")
    aside.do(release.wait)
    began = time.monotonic()
    aside.close(0.05)
    assert time.monotonic() - began < 5
    release.set()
