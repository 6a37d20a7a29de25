"""What several tests do with stores in a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from softrun.agent.errors import StoreLostError
from softrun.agent.store.base import Change
from softrun.agent.store.etcd import EtcdStore

Open = Callable[..., EtcdStore]
"""Opens the store of one job, for another agent with each call."""


def watching(store: EtcdStore, version: int = 0) -> SimpleQueue[Change]:
    """All changes from now on."""
    changes: SimpleQueue[Change] = SimpleQueue()

    def watch(version: int) -> None:
        try:
            while True:
                change = store.wait_beyond(version)
                if change.record is not None:
                    version = int(change.record)
                changes.put(change)
        except StoreLostError:
            pass

    threading.Thread(target=watch, args=(version,), daemon=True).start()
    return changes


def write(store: EtcdStore, version: int) -> None:
    assert store.create(version, b"%d" % version) == b"%d" % version
