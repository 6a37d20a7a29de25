"""The keeper: a process beside an agent, `python -m softrun.agent.snapshots.keeper_main SOCKET HOST BIND`.

SOCKET is the descriptor of a local socket that listens for the node's workers. The keeper ends with its agent, which
holds the other end of its standard input; what it holds goes with it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from softrun.agent.links.listeners import listening
from softrun.agent.snapshots.held_images import HeldImages
from softrun.agent.snapshots.memory_left import memory_left
from softrun.agent.snapshots.requests import Requests
from softrun.runtime.snapshots.keeper import STARTED

MOST_PEERS = 256
ACCEPT_AGAIN_S = 0.1
NICENESS = 10
"""The training comes first."""


def main(descriptor: int, host: str, bind: str) -> None:
    """Serve until the agent has gone."""
    logging.basicConfig(format="[softrun snapshots] %(message)s")
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())  # it ends with its agent, not before
    os.nice(NICENESS)
    workers = socket.socket(fileno=descriptor)
    peers = listening(bind)
    requests = Requests(HeldImages(memory_left), (host, peers.getsockname()[1]))
    _accept(workers, requests.serve_worker)
    _accept(peers, requests.serve_peer, MOST_PEERS)
    Path(str(workers.getsockname()) + STARTED).write_text(str(os.getpid()))
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)  # threads that copy are not waited for


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None], most: int | None = None) -> None:
    """Serve each connection in a thread of its own, `most` at a time."""
    room = threading.Semaphore(most) if most is not None else None

    def served(sock: socket.socket) -> None:
        try:
            serve(sock)
        finally:
            if room is not None:
                room.release()

    def accept() -> None:
        while True:
            if room is not None:
                room.acquire()
            try:
                sock, _ = listener.accept()
            except OSError:  # descriptors have run out
                time.sleep(ACCEPT_AGAIN_S)
                if room is not None:
                    room.release()
                continue
            threading.Thread(target=served, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
