"""What is said of an agent after its end, on real sockets: its peers dial once more, and its testament is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from shells.test_links import SECRET, End, connect, until, until_true
from values import following, member, of_job, sealed

from softrun.agent.consensus.change import last_words
from softrun.agent.proof import testament
from softrun.agent.proof.testament import Words
from softrun.agent.protocol.codec import encode_message
from softrun.agent.protocol.model import Address, LastWords
from softrun.agent.protocol.observations import Found, Heard, LinkDown, LinkUp, NotFound

FIRST = replace(of_job("a@1", sealed(member("a"), member("b"))), name="first")
SECOND = following(FIRST, lost=("x",))
WORDS, IN_FULL = last_words(FIRST, SECOND), last_words(None, SECOND)
NO_WORDS = Words("", "", encode_message(LastWords()), encode_message(LastWords()))
ANOTHER = b"the secret of somebody else"


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def secret(request: pytest.FixtureRequest) -> bytes | None:
    value: bytes | None = request.param
    return value


@pytest.fixture
def ends(secret: bytes | None) -> Iterator[tuple[End, End]]:
    pair = End("a", secret=secret), End("b", secret=secret)
    yield pair
    for end in pair:
        end.close()


class Estate:
    """What an agent leaves behind: its listening socket and its testament."""

    def __init__(self, end: End, in_full: LastWords = IN_FULL, about: dict[str, object] | None = None) -> None:
        self.port = end.links.port
        self.listener = os.dup(end.links.descriptor)
        self.testament = testament.Testament(end.links.about | (about or {}))
        self.testament.write(NO_WORDS)
        self.testament.write(Words(SECOND.name, FIRST.name, encode_message(WORDS), encode_message(in_full)))
        self._thread: threading.Thread | None = None

    def tell(self, seconds: float = 60.0) -> None:
        self._thread = threading.Thread(
            target=testament.tell, args=(self.listener, self.testament.descriptor, seconds), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        os.close(self.listener)


@pytest.fixture
def estate(ends: tuple[End, End]) -> Iterator[Estate]:
    estate = Estate(ends[1])
    yield estate
    estate.close()


def test_a_peer_that_sees_the_link_break_hears_the_last_words(ends: tuple[End, End], estate: Estate) -> None:
    a, b = ends
    connect(a, b)
    b.die()
    estate.tell()
    until(a, see=LinkDown("b", refused=False), at=a)
    assert a.seen == [LinkUp("b"), Heard("b", IN_FULL), LinkDown("b", refused=False)]


def test_so_does_who_dials_it_only_then(ends: tuple[End, End], estate: Estate) -> None:
    a, b = ends
    there = b.member
    b.die()
    estate.tell()
    a.links.dial(there)
    until(a, see=LinkDown("b", refused=False), at=a)
    assert a.seen == [Heard("b", IN_FULL), LinkDown("b", refused=False)]


def test_and_who_looks_for_it_at_its_address(ends: tuple[End, End], estate: Estate) -> None:
    from softrun.agent.protocol.effects import Seek

    a, b = ends
    b.die()
    estate.tell()
    place = Address("127.0.0.1", estate.port)
    a.links.seek(Seek(place, 5.0, listens=False))
    until(a, see=LinkDown("b", refused=False), at=a)
    assert Heard("b", IN_FULL) in a.seen
    assert NotFound(place) in a.seen, "and not that it is refused"
    assert Found(place, "b") not in a.seen


@pytest.mark.parametrize(
    ("knows", "told"),
    [
        ((), IN_FULL),
        (("another", "and one before"), IN_FULL),
        ((SECOND.name, *SECOND.past), WORDS),
        ((FIRST.name,), WORDS),
        (("newer", SECOND.name, FIRST.name), WORDS),
        (("another successor", FIRST.name), IN_FULL),
        ((SECOND.name, *["x" * 50] * 100), WORDS),
    ],
    ids=["none", "others", "the same", "the one before", "a newer one", "a split", "more than can be said"],
)
def test_a_peer_is_told_no_more_than_it_lacks(
    ends: tuple[End, End], estate: Estate, knows: tuple[str, ...], told: LastWords
) -> None:
    a, b = ends
    a.links.knows(knows)
    connect(a, b)
    b.die()
    estate.tell()
    until(a, see=LinkDown("b", refused=False), at=a)
    assert a.seen == [LinkUp("b"), Heard("b", told), LinkDown("b", refused=False)]


def test_last_words_may_be_longer_than_a_socket_takes_at_once(ends: tuple[End, End]) -> None:
    a, b = ends
    members = [replace(member(f"n{number}"), host=f"host-{number}" * 5) for number in range(6000)]
    long = last_words(None, of_job("a@1", sealed(*members)))
    estate = Estate(b, long)
    connect(a, b)
    b.die()
    estate.tell()
    until(a, see=LinkDown("b", refused=False), at=a)
    assert Heard("b", long) in a.seen
    estate.close()


def test_who_does_not_know_the_secret_proves_no_end(secret: bytes | None) -> None:
    """Without one whoever answers there is believed."""
    a, b = End("a", secret=secret), End("b", secret=secret)
    estate = Estate(b, about={"secret": ANOTHER.hex()} if secret is not None else {"node": "x"})
    connect(a, b)
    b.die()
    estate.tell()
    until_true(a, so=lambda: any(isinstance(seen, LinkDown) for seen in a.seen))
    assert not any(isinstance(seen, Heard) for seen in a.seen)
    estate.close()
    a.close()


def test_strangers_do_not_keep_the_peers_from_it(
    ends: tuple[End, End], estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testament, "ANSWER_S", 0.3)
    a, b = ends
    connect(a, b)
    b.die()
    estate.tell()
    strangers = []
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[]\n", b"{" * 9000, b'{"job":1}\n', b"\xff\n", b"7\n" * 3):
        for _ in range(testament.MOST_ASK // 4):
            strangers.append(socket.create_connection(("127.0.0.1", estate.port)))
            with suppress(OSError):
                strangers[-1].sendall(said or b" ")
    until(a, see=LinkDown("b", refused=False), at=a)
    assert Heard("b", IN_FULL) in a.seen
    for stranger in strangers:
        stranger.close()


def test_a_stranger_learns_nothing_where_there_is_a_secret() -> None:
    b = End("b", secret=SECRET)
    estate = Estate(b)
    about = b.links.about
    b.die()
    estate.tell()
    with socket.create_connection(("127.0.0.1", estate.port)) as stranger:
        greeting = {key: about[key] for key in ("version", "job", "host", "port")}
        greeting |= {"node": "x", "to": "b", "nonce": "0" * 64}
        stranger.sendall(json.dumps(greeting).encode() + b"\n" + json.dumps({"proof": "0" * 64}).encode() + b"\n")
        stranger.settimeout(60)
        said = b""
        while data := stranger.recv(1 << 16):
            said += data
    assert said == b""
    estate.close()


def test_it_is_what_was_written_last_whatever_its_length() -> None:
    kept = testament.Testament({"node": "a"})
    for length in (10, 100_000, 3, 0, 70_000, 70_001, 1):
        words = Words("new", "old", b"x" * length, b"y" * (7 * length))
        kept.write(words)
        assert testament.read(kept.descriptor) == ({"node": "a"}, words)
    kept.close()


AGENT = """
import selectors, sys
from pathlib import Path
from softrun.agent.links.links import Links
from softrun.agent.proof.testament import Testament, Words
from softrun.agent.protocol.codec import encode_message
from softrun.agent.protocol.model import LastWords
from softrun.agent.workers.orphan_reaper import OrphanReapers
selector = selectors.DefaultSelector()
links = Links(selector, job="job", node="b", host="127.0.0.1", observe=print, secret=bytes.fromhex(sys.argv[3]) or None)
testament = Testament(links.about)
testament.write(Words("", "", *[encode_message(LastWords())] * 2))
reapers = OrphanReapers(sys.argv[1], Path(sys.argv[2]), selector, (links.descriptor, testament.descriptor))
print(links.port, flush=True)

def end(_mask):
    links.close()
    reapers.close(all_is_well=True)
    sys.exit()

selector.register(sys.stdin, selectors.EVENT_READ, end)
while True:
    for key, mask in selector.select(links.deadline()):
        key.data(mask)
    links.sweep()
"""


@pytest.mark.parametrize("way", ["killed", "in good order"])
def test_the_orphan_reapers_of_an_agent_that_has_ended_tell_it(way: str, secret: bytes | None, tmp_path: Path) -> None:
    """Whoever else reads what the agent prints is not kept waiting by them."""
    channels = tmp_path / "channels"
    channels.mkdir()
    a = End("a", secret=secret)
    command = [sys.executable, "-c", AGENT, "7a", str(channels), (secret or b"").hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        port = int(agent.stdout.readline())
        a.links.dial(replace(a.member, node="b", port=port))
        until(a, see=LinkUp("b"), at=a)
        if way == "killed":
            agent.send_signal(signal.SIGKILL)
        else:
            agent.stdin.close()
        until(a, see=LinkDown("b", refused=False), at=a)
        assert a.seen == [LinkUp("b"), Heard("b", LastWords()), LinkDown("b", refused=False)]
        assert agent.stdout.read() == "", "it ends"
    a.close()
