"""The testament of an agent: what is said of it, and in its name, after its end.

A peer whose link breaks dials once more. That nobody answers proves nothing: a firewall may refuse, a host may have
moved, a packet may be forged. So the agent's orphan reaper (`softrun.agent.workers.orphan_reaper_main`), which outlives
it and kills its workers, holds its listening socket as well, and answers there: this agent has ended, and these were
its last words. With a job secret it proves that as the agent would have.

The agent keeps its last words in memory that it shares with the reaper, and writes there before it says anything that
follows from them. It cannot be killed between two halves of that: what counts is where the header points.

    ┌ where, how many bytes ┬──────────────────────┬──────────────────────┐
    │ header, 16 bytes      │ what was written last │ what is written next │ …
    └───────────────────────┴──────────────────────┴──────────────────────┘

What is written are lines: who the agent is and which records it knew, as JSON, and its last words, in short and in
full. Which of the two a peer needs depends on the records that it knows itself, which it says when it asks. This module
needs nothing but the standard library, so that the reaper starts quickly.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from typing import Any, NamedTuple

from softrun.agent.proof import proofs

MOST_ASK = 64  # at a time; strangers may be among them, so the first of more than that has to go
MOST_ASKED = 4096  # bytes of what one of them says
ANSWER_S = 5.0  # for one of them to say all of it, and to take the answer

_HEADER = struct.Struct(">QQ")


class Words(NamedTuple):
    """An agent's last words. The records that it knew last have these names; "": it knew none."""

    known: str
    before: str
    short: bytes
    in_full: bytes

    def for_who_knows(self, names: str) -> bytes:
        """Return what to tell a peer whose record and those before it have these names, the newest first."""
        own, *past = names.split(" ")
        return self.short if own in (self.known, self.before) or self.known in past else self.in_full


class Testament:
    """The agent's end. `about` says who it is: version, job, node, host, port, and the secret in hexadecimal digits."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.descriptor = os.memfd_create("softrun-testament")
        self._about = json.dumps(about).encode()
        self._begin, self._end = _HEADER.size, _HEADER.size
        self.write(Words("", "", b"", b""))

    def write(self, words: Words) -> None:
        """Keep these as the agent's last words, unless it writes others."""
        names = json.dumps((words.known, words.before)).encode()
        data = b"\n".join((self._about, names, words.short, words.in_full))
        first = _HEADER.size
        begin = first if self._begin >= first + len(data) else self._end
        os.pwrite(self.descriptor, data, begin)
        os.pwrite(self.descriptor, _HEADER.pack(begin, len(data)), 0)
        self._begin, self._end = begin, begin + len(data)

    def close(self) -> None:
        """Give the memory back, once nobody else has it."""
        os.close(self.descriptor)


def read(descriptor: int) -> tuple[dict[str, Any], Words]:
    """Return who the agent was, and its last words."""
    begin, count = _HEADER.unpack(os.pread(descriptor, _HEADER.size, 0))
    about, names, short, in_full = os.pread(descriptor, count, begin).split(b"\n")
    known, before = json.loads(names)
    return json.loads(about), Words(known, before, short, in_full)


def tell(listener: int, descriptor: int, seconds: float) -> None:
    """Answer whoever asks at the listening socket that the agent has ended, for that many seconds."""
    about, words = read(descriptor)
    until = time.monotonic() + seconds
    asking: dict[int, _Asking] = {}
    events = select.poll()
    door = socket.socket(fileno=os.dup(listener))
    door.setblocking(False)
    events.register(door, select.POLLIN)
    while (now := time.monotonic()) < until:
        for each in [each for each in asking.values() if each.until <= now]:
            each.ended = True
        for number in [number for number, each in asking.items() if each.ended]:
            events.unregister(number)
            asking.pop(number).sock.close()
        wake_at = min([until, *(each.until for each in asking.values())])
        for ready, _ in events.poll(max(0.0, wake_at - now) * 1000 + 1):
            if ready != door.fileno():
                asking[ready].go_on()
                events.modify(ready, select.POLLOUT if asking[ready].unsent else select.POLLIN)
                continue
            try:
                sock, _ = door.accept()
            except OSError:
                continue
            if len(asking) >= MOST_ASK:
                next(iter(asking.values())).ended = True  # a peer needs less time than a stranger takes
            asking[sock.fileno()] = _Asking(sock, about, words, now + ANSWER_S)
            events.register(sock, select.POLLIN)


class _Asking:
    """One connection."""

    def __init__(self, sock: socket.socket, about: dict[str, Any], words: Words, until: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.until = until
        self.ended = False
        self.unsent = b""
        self._about = about
        self._words = words
        self._line = b""  # what it is told
        self._received = b""
        self._said = b""  # with a secret: what both have said
        self._is_last = False  # nothing follows what is unsent

    def go_on(self) -> None:
        """Read or write what can be."""
        try:
            if not self.unsent:
                self._read()
            if self.unsent:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            if self._is_last and not self.unsent:
                self.ended = True
        except BlockingIOError:
            pass
        except Exception:
            self.ended = True  # it is gone, or it does not say what an agent says

    def _read(self) -> None:
        data = self.sock.recv(MOST_ASKED)
        self._received += data
        line, newline, rest = self._received.partition(b"\n")
        if not data or len(self._received) > MOST_ASKED:
            self.ended = True
        elif newline:
            self._received = rest
            self._heard(json.loads(line))

    def _heard(self, document: Any) -> None:
        about = self._about
        secret = bytes.fromhex(about["secret"])
        if self._said:
            if not proofs.same(str(document["proof"]), proofs.of_dialler(secret, self._said)):
                raise ValueError("another secret")
            key = proofs.key_of_lines(secret, "acceptor", self._said)
            self._send(proofs.seal(key, 0, self._line) + b" " + self._line, is_last=True)
            return
        greeting = {name: document.get(name, default) for name, default in proofs.GREETING.items()}
        if greeting["job"] != about["job"] or greeting["to"] not in ("", about["node"]):
            raise ValueError("another agent is wanted")
        if greeting["version"] != about["version"] or bool(greeting["nonce"]) != bool(secret):
            raise ValueError("another release, or one of both has a secret and the other has none")
        if secret and not proofs.same(str(document.get("proof")), proofs.of_greeting(secret, greeting)):
            raise ValueError("another secret")
        self._line = self._words.for_who_knows(str(greeting["known"]))
        answer = {name: about[name] for name in ("version", "node", "host", "port")} | {"nonce": ""}
        if not secret:
            self._send(json.dumps(answer | {"refused": "ended"}).encode() + b"\n" + self._line, is_last=True)
            return
        answer["nonce"] = os.urandom(32).hex()
        self._said = proofs.transcript(greeting, answer)
        self._send(json.dumps(answer | {"proof": proofs.of_acceptor(secret, "ENDED", self._said)}).encode())

    def _send(self, line: bytes, *, is_last: bool = False) -> None:
        self.unsent, self._is_last = line + b"\n", is_last
