"""Makes the second node of a job of two believe that the first has ended: anybody can who reaches it, without a secret.

`forge_last_words.py JOB HOST PORT`, with the address where the job is found. It says when it knows the job's record,
and ends when it has been believed, for which the two must have lost touch.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Callable

from softrun.agent.consensus.change import last_words
from softrun.agent.links.links import Links
from softrun.agent.protocol.effects import Seek
from softrun.agent.protocol.model import Address, Hello, LastWords, Member, NodeIntent, Record, Report, Round
from softrun.agent.protocol.observations import Found, Heard, LinkDown, LinkUp, Observation

PATIENCE_S = 30.0


class Forger:
    """An agent that says it is `node`."""

    def __init__(self, job: str, node: str, host: str) -> None:
        self.node = node
        self.seen: list[Observation] = []
        self._selector = selectors.DefaultSelector()
        self.links = Links(self._selector, job=job, node=node, host=host, observe=self.seen.append)

    def turn_until(self, came: Callable[[Observation], bool]) -> Observation:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for seen in self.seen:
                if came(seen):
                    return seen
            for key, mask in self._selector.select(0.01):
                key.data(mask)
            self.links.flush()
            self.links.sweep()
        raise TimeoutError(f"{self.seen} is all that came")

    def dial(self, member: Member) -> None:
        """It is refused as long as there is a link with the real one."""
        while not any(isinstance(seen, LinkUp) for seen in self.seen):
            self.seen.clear()
            self.links.dial(member)
            self.turn_until(lambda seen: isinstance(seen, LinkUp | LinkDown))

    def says(self, to: str, *messages: Hello | LastWords) -> None:
        for message in messages:
            self.links.say(to, message)
        self.links.flush()


def record_of(job: str, endpoint: Address, host: str) -> Round:
    spy = Forger(job, "spy", host)
    spy.links.seek(Seek(endpoint, PATIENCE_S, listens=False))
    found = spy.turn_until(lambda seen: isinstance(seen, Found))
    assert isinstance(found, Found)
    spy.says(found.node, Hello(Report(Member("spy", 1, host, spy.links.port, "", ()), NodeIntent.AWAY)))
    heard = spy.turn_until(lambda seen: isinstance(seen, Heard) and isinstance(seen.message, Record))
    assert isinstance(heard, Heard)
    assert isinstance(heard.message, Record)
    spy.links.close()
    return heard.message.round


def own_address(endpoint: Address) -> str:
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.connect((endpoint.host, endpoint.port))
        return str(udp.getsockname()[0])


def main(job: str, host: str, port: str) -> None:
    endpoint = Address(host, int(port))
    own = own_address(endpoint)
    record = record_of(job, endpoint, own)
    print("knows the record", flush=True)
    dead, hearer = record.members
    forger = Forger(job, dead.node, own)
    forger.dial(hearer)
    forger.says(hearer.node, Hello(Report(dead, NodeIntent.READY, record.id)), last_words(None, record))
    forger.turn_until(lambda seen: isinstance(seen, Heard))


if __name__ == "__main__":
    main(*sys.argv[1:])
