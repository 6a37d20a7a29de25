"""What flags and fields of LaunchConfig can be: a check returns if the value can be used, and else raises UsageError
with one line. What torch refuses with a traceback, or finds out only when workers start, is refused here."""

from __future__ import annotations

import logging
import os

from softrun.agent.errors import UsageError
from softrun.agent.protocol.checks import is_host
from softrun.agent.protocol.printable import printable
from softrun.agent.store.settings import LONGEST_S

LONGEST_ID = 246
"""In bytes: torch makes a directory of it, with nine more."""
LARGEST_NUMBER = (1 << 31) - 1
LONGEST_LINE = 1000
COMMITS = ("fast", "durable")
"""How the agents decide on blocks of live_workers."""
_LEVELS = "DEBUG, INFO, WARNING, ERROR or CRITICAL"


def error_line(text: str) -> str:
    """Return an error as it is printed: on one line, whatever is in it. Parts of it may come from other agents."""
    return f"softrun: error: {printable(text, LONGEST_LINE)}\n"


def check_commit(name: str) -> None:
    """One of COMMITS."""
    if name not in COMMITS:
        raise UsageError(f"--commit {name!r} is unknown: choose one of {', '.join(COMMITS)}")


def check_seconds(flag: str, seconds: float | None) -> None:
    """A number of seconds, ten years at most; None is none."""
    if seconds is not None and not seconds <= LONGEST_S:  # nor is that true of what is not a number
        raise UsageError(f"{flag} {seconds:g} is not up to {LONGEST_S} seconds: give fewer, or leave it out")


def check_number(flag: str, number: int, most: int = LARGEST_NUMBER) -> None:
    """A number that is not too large."""
    if number > most:
        raise UsageError(f"{flag} {number} is more than {most}: give less")


def check_run_id(run_id: str) -> None:
    """The name of a job, which is also the beginning of the name of its directory of logs."""
    if "/" in run_id or not run_id.isprintable():
        raise UsageError(
            f"--rdzv_id {run_id!r} cannot name the directory of its logs: leave out slashes and what cannot be printed"
        )
    if len(os.fsencode(run_id)) > LONGEST_ID:
        raise UsageError(f"--rdzv_id {run_id[:20]!r}… is longer than {LONGEST_ID} bytes: give a shorter one")


def check_endpoint(endpoint: str) -> None:
    """Where the nodes meet: one host, or several with commas between, each with a port or without one."""
    if "@" in endpoint:
        raise UsageError("--rdzv_endpoint has an '@': give HOST:PORT alone, without a user or a password")
    for part in filter(None, (part.strip() for part in endpoint.split(","))):
        place = part.rpartition("://")[2]
        host, _, port = place.rpartition(":")
        if place.endswith("]") or not host:
            host, port = place, ""
        if port.isdigit() and len(port) > len("65535"):
            raise UsageError(f"--rdzv_endpoint has the port {port[:20]}, which is above 65535: correct it")
        _check_host("--rdzv_endpoint", host.removeprefix("[").removesuffix("]"))


def check_local_addr(address: str | None) -> None:
    """This machine's own address or name."""
    if address:
        _check_host("--local_addr", address)


def check_log_level() -> None:
    """LOGLEVEL is a name that torch knows: it raises ValueError for another one, even while it is imported."""
    level = os.environ.get("LOGLEVEL")
    if level is not None and not isinstance(logging.getLevelName(level), int):
        raise UsageError(f"LOGLEVEL {level!r} is not a level that torch knows: give {_LEVELS}")


def _check_host(flag: str, host: str) -> None:
    if not is_host(host):
        raise UsageError(
            f"{flag} has the host {host[:80]!r}, which is no name or address of one: give a name of labels of up to 63 "
            "characters, 253 in all, or an address"
        )
