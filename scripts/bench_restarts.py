"""Hundreds of restarts in the same processes: what they hold after so many, and how long one takes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from measuring import cluster

from local_cluster import end_in_order_on_sigterm, softrun_command

TRAINER = Path(__file__).parent / "trainers" / "bench_restarts.py"
WAIT_S = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=400)
    parser.add_argument("--every", type=int, default=25, help="how many restarts between two looks")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    seen = restarted(args.ranks, args.restarts, args.every)
    for look in seen:
        print(
            f"rank {look['rank']}, {look['restarts']:4} restarts: {look['threads']} threads, "
            f"{look['descriptors']} descriptors, {look['resident_mb']:.1f} MB"
        )
    grown = [growth(rank, seen) for rank in range(args.ranks)]
    took_s = (seen[-1]["at_s"] - seen[0]["at_s"]) / args.restarts
    print(f"{took_s * 1000:.0f} ms each; from the second look on at most {max(grown):.1f} MB more")
    return 0


def restarted(ranks: int, restarts: int, every: int) -> list[dict[str, Any]]:
    """What each rank held, in the order of time."""
    flags = ("--restart_policy=soft", "--worker_failure=replace", f"--nproc_per_node={ranks}")
    with cluster() as here:
        node = here.start("node", softrun_command(*flags, script=TRAINER, args=(str(restarts), str(every))))
        code = node.wait(WAIT_S)
        # torch's warnings are written in pieces, so a look may follow one in the same line.
        looks = [json.loads(look) for look in re.findall(r'{"restarts".*?}', node.output())]
        if code != 0 or not looks:
            raise SystemExit(f"the job ended with {code}:\n{node.output()[-4000:]}")
        return sorted(looks, key=lambda look: float(look["at_s"]))


def growth(rank: int, seen: list[dict[str, Any]]) -> float:
    """In MB, from the second look on: the first iterations fill caches. Raises SystemExit if anything else grows.

    Groups are destroyed in the background, so one look in eight finds a group more than the others. What is left behind
    each time would show in the least that is held in the second half, so that needs many looks.
    """
    looks = [look for look in seen if look["rank"] == rank and look["restarts"]]
    first, last = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    for what in ("threads", "descriptors"):
        before, after = max(look[what] for look in first), min(look[what] for look in last)
        if after > before:
            raise SystemExit(f"rank {rank} holds {after} {what} at least, {before} at most before")
    return float(last[-1]["resident_mb"] - looks[0]["resident_mb"])


if __name__ == "__main__":
    sys.exit(main())
