"""Checks on real GPUs, with NCCL, what softrun's tests check with gloo on the CPU: aborts, rebuilt groups, recovery.

A line for each check: ok, failed, or not checked and why; then all of it as a table, and with --json in a file. Exits
with 1 only if a check failed, so also with 0 if there is no GPU. If there is one, several ranks share it, provided that
NCCL can be made to take them for ranks of several hosts. What does not fit into --minutes is not checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_suite import alone, jobs
from gpu_suite.report import Outcome, table, write_json
from gpu_suite.setting import FailedError, Found, NotCheckedError, Setting, choose, what_is_lacking, what_is_there

from local_cluster import end_in_order_on_sigterm

CHECKS: dict[str, Callable[[Setting], Found]] = {
    "several ranks on one GPU": alone.share,
    "a group and its first sum": alone.build,
    "abort while a peer hangs": alone.abort_of_a_peer,
    "abort while a kernel runs": alone.abort_of_a_kernel,
    "memory after 50 rebuilds": alone.memory,
    "the device of a group": jobs.bound,
    "the flight recorder's dump": alone.recorder,
    "CudaHealthCheck, healthy device": alone.healthy,
    "CudaHealthCheck, device-side assert": alone.corrupted,
    "worlds() through a SIGKILL": jobs.worlds,
    "the parts of a recovery": jobs.times,
    "DistributedDataParallel through a SIGKILL": jobs.ddp,
    "HSDP through a SIGKILL": jobs.hsdp,
    "Wrapper through an exception and a hang of 2 s": jobs.wrapper,
    "a collective that times out": jobs.timeout,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/check_gpu", description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: the same on the CPU")
    parser.add_argument("--ranks", type=int, help="the GPUs, at most 4; 4 where there is one, or with gloo")
    parser.add_argument("--timeout", type=float, default=90.0, help="of each check, in seconds")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of it; no check begins later")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    parser.add_argument("--checks", metavar="WORD", nargs="+", help="only those with one of these words in their name")
    args = parser.parse_args(arguments)
    end_in_order_on_sigterm()
    if args.backend == "nccl" and (lack := what_is_lacking()):
        print(f"check_gpu: nothing was checked, {lack}; --backend gloo runs the same on the CPU")
        return 0
    setting = choose(args.backend, args.ranks, args.timeout)
    end = time.monotonic() + 60 * args.minutes
    outcomes = []
    for name in (name for name in CHECKS if not args.checks or any(word in name for word in args.checks)):
        outcomes.append(outcome_of(name, setting, end))
        print(outcomes[-1].line(), flush=True)
        if args.json:
            write_json(args.json, what_is_there(setting), outcomes)  # each time: whoever runs it may end it
    print(f"\n{table(what_is_there(setting), outcomes)}")
    failed = [each.check for each in outcomes if each.outcome == "failed"]
    if failed:
        print(f"check_gpu: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def outcome_of(name: str, setting: Setting, end: float) -> Outcome:
    began, figures = time.monotonic(), {}
    try:
        if began >= end:
            raise NotCheckedError("there was no time left")
        found = CHECKS[name](setting)
        outcome, text, figures = "ok", found.text, found.figures
    except NotCheckedError as why:
        outcome, text = "not checked", str(why)
    except (FailedError, TimeoutError) as seen:
        outcome, text = "failed", str(seen)
    return Outcome(name, outcome, time.monotonic() - began, text, figures)


if __name__ == "__main__":
    sys.exit(main())
