"""Ranks of gloo groups as forked processes: the test tells them when to go on, and every wait has a bound."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nursery_main import OF_TRAINERS

from fake_agent import wait_until
from local_cluster import PATIENCE_S
from softrun.runtime.groups.abort import abort_all

_fork = multiprocessing.get_context("fork")
for name in OF_TRAINERS:  # else each rank imports them itself
    importlib.import_module(name)

STACKS_S = 0.5
Sit = Callable[[], Any]


class Me:
    """What a rank knows of itself."""

    def __init__(self, rank: int, size: int, port: int, pipe: Connection) -> None:
        self.rank, self.size, self.port = rank, size, port
        self.pipe = pipe
        self.aborted_at = 0.0

    def say(self, word: Any) -> None:
        self.pipe.send(word)

    def hear(self) -> Any:
        assert self.pipe.poll(PATIENCE_S), "the test says nothing"
        return self.pipe.recv()

    def build(self, name: str = "first", rank: int | None = None, size: int | None = None) -> None:
        """The default group, in the test's store, where each name is one world's."""
        dist.init_process_group(
            "gloo",
            store=self.store(name),
            rank=self.rank if rank is None else rank,
            world_size=size or self.size,
            timeout=timedelta(minutes=30),
        )

    def store(self, name: str) -> dist.Store:
        return dist.PrefixStore(name, dist.TCPStore("127.0.0.1", self.port, is_master=False, wait_for_workers=False))

    def abort_when_told(self) -> threading.Thread:
        def abort() -> None:
            self.hear()
            self.aborted_at = time.monotonic()
            abort_all()

        thread = threading.Thread(target=abort, daemon=True)
        thread.start()
        return thread


class Rank:
    """One of them, as the test sees it."""

    def __init__(self, body: Callable[[Me], None], rank: int, size: int, port: int) -> None:
        self._pipe, theirs = _fork.Pipe()
        self.process = _fork.Process(target=_run, args=(body, Me(rank, size, port, theirs)), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, word: Any = None) -> None:
        self._pipe.send(word)

    def says(self) -> Any:
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError("the rank says nothing")
        word = self._pipe.recv()
        assert not (isinstance(word, str) and word.startswith("Traceback")), word
        return word

    def says_nothing(self, for_s: float) -> bool:
        return not self._pipe.poll(for_s)

    def stop(self) -> None:
        os.kill(self.process.pid or 0, signal.SIGSTOP)

    def is_stopped(self) -> bool:
        return self._state == "T"

    def sits(self) -> None:
        """Wait until its main thread sleeps."""
        wait_until(lambda: self._state == "S", "a sleeping rank")

    @property
    def _state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def ends(self) -> None:
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0, self.process.exitcode

    def show_stacks(self) -> None:
        """Where it is, in the output of the test, if it is anywhere."""
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGUSR1)
            self.process.join(STACKS_S)

    def end_by_force(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)


@contextmanager
def ranks(body: Callable[[Me], None], size: int) -> Iterator[list[Rank]]:
    """`size` processes that run `body`, with a store of their own, which outlives them all."""
    with store_and_ranks(body, size) as (_, started):
        yield started


@contextmanager
def store_and_ranks(body: Callable[[Me], None], size: int) -> Iterator[tuple[Rank, list[Rank]]]:
    """As `ranks`, with the process that has the store."""
    keeper = Rank(_keep_a_store, 0, 0, 0)  # a process of its own: a store's threads do not bear a fork
    started = [keeper]
    try:
        port = keeper.says()
        for rank in range(size):
            started.append(Rank(body, rank, size, port))
        yield keeper, started[1:]
    except (AssertionError, TimeoutError):
        for one in started[1:]:
            one.show_stacks()
        raise
    finally:
        for one in reversed(started):
            one.end_by_force()


def run(body: Callable[[Me], Any], size: int = 1) -> list[Any]:
    """What the ranks say when they are done."""

    def and_say(me: Me) -> None:
        me.say(body(me))

    with ranks(and_say, size) as started:
        said = [rank.says() for rank in started]
        for rank in started:
            rank.ends()
    return said


def run_until(body: Callable[[Me], Any], size: int, rank: int) -> Any:
    """What that rank says when it is done. The others, which it leaves, may wait for ever: gloo may forget what it has
    to send to a peer that has left (softrun.runtime.groups.forgotten), and no agent ends their world here."""
    with ranks(lambda me: me.say(body(me)), size) as started:
        return started[rank].says()


def _keep_a_store(me: Me) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    me.say(store.port)
    threading.Event().wait()


def _run(body: Callable[[Me], None], me: Me) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    gc.freeze()  # what other tests have left behind has lost its threads, and does not bear to be collected here
    torch.set_num_threads(1)
    dist.distributed_c10d._world.group_count = 0  # of another test, whose group was never built
    try:
        body(me)
    except BaseException:
        me.say(traceback.format_exc())
        os._exit(1)
    os._exit(0)
