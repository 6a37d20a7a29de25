"""What a process can do to its connections, whoever opened them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest
from gloo_ranks import Me, ranks

from softrun.runtime.groups import group_registry
from softrun.runtime.groups.abort import track_groups
from softrun.runtime.groups.sockets import heed_resets, ignore_resets

LINE = b"a line that nobody reads"


@pytest.fixture
def to_killed_peer() -> Iterator[socket.socket]:
    """A connection on which the peer, who was killed, has not read a line, so that its kernel answers with a reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = os.fork()
        if peer == 0:
            connection = socket.create_connection(server.getsockname())
            signal.pause()
            os._exit(int(connection.fileno() < 0))
        connection, _ = server.accept()
    with connection:
        connection.settimeout(5.0)
        assert connection.send(LINE) == len(LINE)
        ignore_resets(connection)
        os.kill(peer, signal.SIGKILL)
        os.waitpid(peer, 0)
        yield connection


def test_what_is_written_to_a_killed_peer_does_not_fail(to_killed_peer: socket.socket) -> None:
    for _ in range(10):
        assert to_killed_peer.send(LINE) == len(LINE)


def test_resets_count_again_afterwards(to_killed_peer: socket.socket) -> None:
    assert to_killed_peer.send(LINE) == len(LINE)
    heed_resets(to_killed_peer)
    with pytest.raises(ConnectionError):
        send_until_it_fails(to_killed_peer)


def send_until_it_fails(connection: socket.socket) -> None:
    """What was lost is sent again after some 0.2 s. The kernel's buffer and the connection's timeout are the bound."""
    while True:
        connection.send(LINE * 1000)


def test_whoever_leaves_is_heard_although_it_has_not_read_everything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        leaves = socket.create_connection(server.getsockname())
        stays, _ = server.accept()
    with stays:
        stays.settimeout(5.0)
        ignore_resets(stays)
        stays.send(LINE)
        leaves.shutdown(socket.SHUT_WR)
        leaves.close()
        assert stays.recv(1) == b""
        assert stays.send(LINE) == len(LINE)


def write_to_a_killed_peer(me: Me) -> None:
    track_groups()
    me.build()
    me.say("built")
    me.hear()
    connections = [
        held for noted in group_registry._noted if noted.connections for held in noted.connections._held.values()
    ]
    sent = [held.send(LINE) for held in connections]
    me.say("the peer, which is stopped, has something to read")
    me.hear()
    me.say((sent, [held.send(LINE) for held in connections]))


def test_the_connections_of_a_group_are_written_to_after_the_peer_was_killed() -> None:
    with ranks(write_to_a_killed_peer, 2) as (writes, is_killed):
        assert (writes.says(), is_killed.says()) == ("built", "built")
        is_killed.stop()
        writes.tell()
        assert writes.says() == "the peer, which is stopped, has something to read"
        is_killed.end_by_force()
        writes.tell()
        assert writes.says() == ([len(LINE)], [len(LINE)])
