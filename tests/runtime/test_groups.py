"""Getting out of a gloo group: always, at once, and without harm to anything else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from queue import Empty, SimpleQueue

import pytest

from fake_agent import FakeAgent, Worker, an_info, wait_until
from local_cluster import free_port
from softrun.runtime import groups
from softrun.runtime.events import WorldChangeEvent
from softrun.runtime.groups import Connections

# Small collectives one after the other: nearly always in the middle of one, where gloo can lose a payload for good.
BUSY_WORLDS = """
import os, torch, torch.distributed as dist
from softrun.runtime import worlds
torch.set_num_threads(1)
for world in worlds():
    with world.process_group("gloo"):
        print("round", world.round, len(os.listdir("/proc/self/fd")))
        while True:
            dist.all_reduce(torch.ones(1))
            world.check()
"""

BUSY_RFC_LOOP = """
import os, torch, torch.distributed as dist
from softrun.runtime import get_worker_event, get_worker_info
torch.set_num_threads(1)
while True:
    info = get_worker_info()
    try:
        dist.init_process_group("gloo", **info.get_pg_parameters())
        print("round", get_worker_event().round, len(os.listdir("/proc/self/fd")))
        while True:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:
        dist.destroy_process_group()
"""


def have_entered(workers: list[Worker], round_: int) -> bool:
    return all(f"round {round_} " in worker.output for worker in workers)


@pytest.mark.processes
@pytest.mark.parametrize("trainer", [BUSY_WORLDS, BUSY_RFC_LOOP], ids=["worlds", "the RFC's loop"])
def test_a_hundred_worlds_each_left_in_the_middle_of_a_collective(agent: FakeAgent, trainer: str) -> None:
    workers = [agent.start(trainer, RES_OPTIONS="timeout:1 attempts:1") for _ in range(3)]
    agent.form(workers)
    for round_ in range(1, 101):
        wait_until(partial(have_entered, workers, round_), f"round {round_}")
        agent.pause(workers, WorldChangeEvent.SCALE_DOWN)
        agent.form(workers, WorldChangeEvent.SCALE_DOWN)
    for worker in workers:
        descriptors = [int(line.split()[2]) for line in worker.output.splitlines() if line.startswith("round ")]
        assert max(descriptors[50:]) <= max(descriptors[:50]) + 2, "descriptors leak"


def test_a_store_that_is_gone_holds_nobody() -> None:
    """The world changed, or its host died, just before this worker would have connected."""
    group, outcome = groups.Group(), SimpleQueue[BaseException]()

    def build() -> None:
        try:
            group.build(an_info(0, 2, free_port()), "gloo", None)
        except ConnectionAbortedError as error:
            outcome.put(error)

    builder = threading.Thread(target=build, daemon=True)
    builder.start()
    with pytest.raises(Empty):
        outcome.get(timeout=0.2)  # it waits for a store that may be about to begin
    group.abort()
    assert "before its store" in str(outcome.get(timeout=20))


@pytest.fixture
def connections() -> Iterator[Connections]:
    connections = Connections()
    yield connections
    connections.let_go()


@pytest.fixture
def pair(connections: Connections) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection that was opened while the group was built, and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        connections._before.add(os.fstat(theirs.fileno()).st_ino)  # it stands for another process's
        with ours, theirs:
            yield ours, theirs


def test_a_cut_is_seen_here_alone_and_writing_goes_on(
    connections: Connections, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    theirs.settimeout(0.05)
    connections.settle(built=True)
    connections.cut()
    assert ours.recv(1) == b""
    ours.sendall(b"payload")
    ours.close()  # as gloo does
    assert theirs.recv(100) == b"payload"
    with pytest.raises(TimeoutError):
        theirs.recv(1)
    connections.let_go()
    assert theirs.recv(1) == b""


def test_the_connections_of_a_group_are_let_go_when_the_next_one_is_built(
    connections: Connections, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    connections.settle(built=True)
    ours.close()
    failed, following = Connections(), Connections()
    failed.settle(built=False)
    theirs.settimeout(0.05)
    with pytest.raises(TimeoutError):
        theirs.recv(1)
    following.settle(built=True)
    assert theirs.recv(1) == b""


def test_a_group_that_is_being_built_is_cut_until_it_is_settled(connections: Connections) -> None:
    connections.cut()
    for _ in range(2):  # one after the other, as gloo opens them
        ours, theirs = socket.socketpair(socket.AF_UNIX)  # not TCP: not to be touched
        with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
            connection = socket.create_connection(listener.getsockname(), timeout=10)
            with connection:
                assert connection.recv(1) == b""
            theirs.sendall(b"x")
            assert ours.recv(1) == b"x"
            assert listener.fileno() in groups._open_sockets(), "gloo ends the process when its listener is shut down"
    connections.settle(built=False)


def test_a_descriptor_that_got_another_meaning_is_left_alone(
    connections: Connections, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = pair
    listed = {ours.fileno(): os.fstat(ours.fileno()).st_ino}
    monkeypatch.setattr(groups, "_open_sockets", lambda: listed)
    assert [connection.close() for connection in groups._connections_since(set())], "it is the one that was listed"
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as other:
        os.dup2(other.fileno(), ours.fileno())
        assert list(groups._connections_since(set())) == []
