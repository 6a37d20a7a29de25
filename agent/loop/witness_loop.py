"""The loop of a witness: messages in, answers out. It is that of an agent without workers and without deadlines."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable

from softrun.agent.consensus.witness import Witness
from softrun.agent.links.links import Links
from softrun.agent.loop.observation_queue import ObservationQueue
from softrun.agent.loop.ready_files import handle_ready
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Result
from softrun.agent.protocol.printable import printable
from softrun.runtime.clock import boottime

LONGEST_SLEEP_S = 3600.0  # epoll takes no more than some weeks
NOTE_CHARACTERS = 2000

logger = logging.getLogger("softrun")


def run_witness(
    job: str, node: str, host: str, bind: str, port: int, secret: bytes | None, listens: Callable[[int], None]
) -> Result:
    """Serve one job until it is over. Calls `listens` with the port once others can connect to it.

    `host` is what others are told of where it listens, and `bind` the address; "" is all. Raises OSError if it cannot
    listen there.
    """
    selector = selectors.DefaultSelector()
    observations = ObservationQueue(selector)
    links = Links(
        selector, job=job, node=node, host=host, observe=observations.put, secret=secret, bind=bind, port=port
    )
    witness = Witness(node, boottime())
    try:
        listens(links.port)
        while True:
            while (seen := observations.take()) is not None:
                for effect in witness.observe(seen, boottime()):
                    if isinstance(effect, do.End):
                        return effect.result
                    _carry_out(effect, links)
            due = links.deadline()
            timeout = min(max(0.0, due - boottime()), LONGEST_SLEEP_S) if due is not None else None
            handle_ready(selector, timeout)
            links.sweep()
    finally:
        links.close()
        observations.close()
        selector.close()


def _carry_out(effect: do.Effect, links: Links) -> None:
    match effect:
        case do.Say(node, message):
            links.say(node, message)
        case do.Note(text, warning):
            logger.log(logging.WARNING if warning else logging.INFO, "%s", printable(text, NOTE_CHARACTERS))
        case _:
            raise AssertionError(f"a witness does {effect}")
