"""Keepers of snapshots, as nodes have them."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from softrun.agent.snapshots.keeper import SnapshotKeeper
from softrun.runtime.snapshots.wire import VARIABLE


@contextmanager
def keepers(directory: Path, count: int) -> Iterator[list[str]]:
    """Where so many keepers listen, each of which starts when somebody connects to it."""
    selector = selectors.DefaultSelector()
    folders = [directory / f"node{number}" for number in range(count)]
    for folder in folders:
        folder.mkdir()
    found = [SnapshotKeeper(folder, "127.0.0.1", "127.0.0.1", selector) for folder in folders]
    is_over = threading.Event()

    def listen() -> None:
        while not is_over.is_set():
            for key, mask in selector.select(0.05):
                key.data(mask)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield [keeper.environment[VARIABLE] for keeper in found]
    finally:
        is_over.set()
        thread.join()
        for keeper in found:
            keeper.close()
        selector.close()


def on_node(places: Sequence[str], number: int) -> None:
    """This process is a worker of that node from now on."""
    os.environ[VARIABLE] = places[number]
