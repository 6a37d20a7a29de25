"""SIGKILLs ranks of 4 in tight loops of all-reduces, again and again: how soon the survivors go on, and who does not.

A line for each message size and number of victims. Late: a kill after which a survivor made no sum in a later world
within a second. Lost: a survivor that did not keep its process. Exits with 1 if there is either.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGKILL

from measuring import UNDISTURBED_S, cluster

from local_cluster import LocalCluster, alive, end_in_order_on_sigterm, free_port, recovery, send, softrun_command

TRAINER = Path(__file__).parent / "trainers" / "tight_sums.py"
RANKS = 4
LATE_S = 1.0
PATIENCE_S = 120.0
SPREAD_S = 0.05
"""A kill comes so much later at most: anywhere in a sum."""


@dataclass
class Outcome:
    gaps: list[float] = field(default_factory=list)
    lost: int = 0

    @property
    def late(self) -> int:
        return sum(gap > LATE_S for gap in self.gaps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4, 1_000_000, 12_000_000], help="of each message")
    parser.add_argument("--victims", type=int, nargs="+", default=[1, 2], help="at once")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    end_in_order_on_sigterm()
    draw = random.Random(args.seed)
    wrong = 0
    for size in args.bytes:
        for victims in args.victims:
            outcome = kills(size, victims, args.kills, draw)
            wrong += outcome.late + outcome.lost
            print(
                f"{size:10} bytes, {victims} of {RANKS} killed, {len(outcome.gaps)} times: {outcome.late} late, "
                f"{outcome.lost} lost; gap median {statistics.median(outcome.gaps) * 1000:.0f} ms, "
                f"most {max(outcome.gaps) * 1000:.0f} ms",
                flush=True,
            )
    return 1 if wrong else 0


def kills(size: int, victims: int, count: int, draw: random.Random) -> Outcome:
    """One job; after each kill all ranks are back before the next."""
    outcome = Outcome()
    flags = ("--restart_policy=soft", "--worker_failure=replace", "--max_restarts=1000000", f"--nproc_per_node={RANKS}")
    meet = ("--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}")
    with cluster() as here:
        here.start("node", softrun_command(*flags, *meet, script=TRAINER, args=(str(max(1, size // 4)),)))
        members = here.wait_for("the first sums", partial(all_back, here, 0), PATIENCE_S)
        for _ in range(count):
            time.sleep(draw.random() * SPREAD_S)
            dead = set(draw.sample(sorted(members), victims))
            survivors = members - dead
            at = time.monotonic()
            for pid in dead:
                send(pid, SIGKILL)
            time.sleep(UNDISTURBED_S)
            gap = here.wait_for("the survivors' next sum", partial(gap_now, here, at, survivors), PATIENCE_S)
            round_ = max(step.round for step in here.steps() if step.mono <= at)
            members = here.wait_for("all ranks", partial(all_back, here, round_), PATIENCE_S)
            outcome.gaps.append(gap)
            outcome.lost += len(survivors - members)
    return outcome


def gap_now(here: LocalCluster, at: float, survivors: set[int]) -> float | None:
    kept = {pid for pid in survivors if alive(pid)}
    return recovery(here.steps(), at, kept) if kept else PATIENCE_S


def all_back(here: LocalCluster, after_round: int) -> set[int] | None:
    """The processes of the newest world, if it is a later one, and all ranks have made a sum in it."""
    steps = here.steps()
    newest = max((step.round for step in steps), default=0)
    members = {step.pid for step in steps if step.round == newest and step.world_size == RANKS}
    return members if newest > after_round and len(members) == RANKS else None


if __name__ == "__main__":
    sys.exit(main())
