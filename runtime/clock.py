"""The one clock of agents and workers: CLOCK_BOOTTIME, which all processes of a host share.

It runs on while the machine is suspended, so whoever wakes up finds that its leases are over. Nothing tells a virtual
machine that its hypervisor has paused it: there this clock stops, too.
"""

from __future__ import annotations

from time import CLOCK_BOOTTIME, clock_gettime, clock_gettime_ns


def boottime() -> float:
    """The time in seconds. It never falls, and says nothing about another host's."""
    return clock_gettime(CLOCK_BOOTTIME)


def boottime_ns() -> int:
    """The time in nanoseconds."""
    return clock_gettime_ns(CLOCK_BOOTTIME)
