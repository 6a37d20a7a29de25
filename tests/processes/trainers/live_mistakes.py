"""Calls live_workers and live_barrier as one must not. See test_live.

live_mistakes.py CASE: each worker writes the error that it got, in one line.
"""

import os
import sys
import threading

import softrun

case, rank = sys.argv[1], softrun.get_worker_info().rank


def meet(tag=None):
    with softrun.live_workers(tag) as world:
        return world


def report(error):
    """Behind the mistake all go on together."""
    os.write(1, f"{type(error).__name__}: {error}\n".encode())
    meet()
    raise SystemExit


try:
    match case:
        case "nested":
            with softrun.live_workers(), softrun.live_workers():
                pass
        case "thread":
            caught = []

            def call():
                try:
                    softrun.live_barrier()
                except RuntimeError as error:
                    caught.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
            raise caught[0]
        case "other calls":
            if rank == 0:
                meet()
            else:
                softrun.live_barrier()
        case "other tags":
            with softrun.live_workers():
                pass
            with softrun.live_workers(7 if rank == 0 else 8):
                pass
        case "scope":
            softrun.live_barrier(scope=["nobody/0"])
        case "not in the scope":
            members = softrun.live_barrier().members
            softrun.live_barrier(scope=[members[1 - rank]])
        case "tag":
            softrun.live_barrier([1])
        case "long tag":
            softrun.live_barrier("x" * 300)
        case "timeout":
            softrun.live_workers(block_timeout=-1)
        case "empty scope":
            softrun.live_barrier(scope=[])
except (RuntimeError, TypeError, ValueError) as error:
    report(error)
