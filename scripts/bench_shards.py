"""How soon a fully sharded training goes on after a node was killed, from its neighbour's memory, and what it loses.

Two launchers on this machine are the nodes. One is killed with all that it started, and another is started at once.
Told is the time from when all ranks, the new ones too, have entered the next world until each has made a step there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from local_cluster import LocalCluster, end_in_order_on_sigterm, free_port, softrun_command

TRAINER = Path(__file__).parent / "trainers" / "bench_shards.py"
GB = 1 << 30
NODES, NPROC = 2, 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    args = parser.parse_args()
    end_in_order_on_sigterm()
    size = NODES * NPROC
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        told = Path(folder, "told")
        told.mkdir()
        command = softrun_command(
            "--restart_policy=soft",
            "--worker_failure=replace",
            f"--nnodes=1:{NODES}",
            f"--nproc_per_node={NPROC}",
            f"--rdzv_endpoint=localhost:{free_port()}",
            "--preload=torch._dynamo,torch.distributed.fsdp",
            script=TRAINER,
            args=[str(told), str(size), str(int(args.gigabytes * GB)), str(args.every)],
        )

        def gone_on(after: int) -> list[Path]:
            """What the ranks of the first world after that one have told, once all have made a step there."""
            rounds = sorted({int(path.name.partition("-")[0]) for path in told.glob("*-*")})
            found = next((list(told.glob(f"{each}-*")) for each in rounds if each > after), [])
            return found if len(found) == size and all(path.stat().st_size for path in found) else []

        def steps() -> int:
            return max((step.step for step in cluster.steps()), default=0)

        def usual() -> float:
            """Seconds of a step."""
            found = cluster.steps()
            times = [step.mono for step in found if step.pid == found[-1].pid]
            return statistics.median(after - before for before, after in pairwise(times))

        nodes = [cluster.start(f"node{number}", command) for number in range(NODES)]
        print(f"{args.gigabytes:g} GiB over {NODES} nodes of {NPROC} ranks, a snapshot each {args.every} steps")
        seconds, lost = [], []
        last = cluster.wait_for("the first world", lambda: gone_on(-1))
        for kill in range(args.kills):
            round_ = int(last[0].name.partition("-")[0])
            begun = json.loads(last[0].read_text())[1]
            cluster.wait_for("some steps", lambda begun=begun: steps() > begun + 2.5 * args.every)
            nodes[0].kill()
            reached = steps()
            nodes = [nodes[1], cluster.start(f"new{kill}", command)]
            last = cluster.wait_for("a step after the kill", lambda round_=round_: gone_on(round_))
            marks, begun, _ = zip(*(json.loads(path.read_text()) for path in last), strict=True)
            entered, built, synced, stepped = (max(of) for of in zip(*marks, strict=True))
            seconds.append(stepped - entered)
            lost.append(reached - begun[0])
            print(
                f"  killed after step {reached}, went on from {begun[0]}: {seconds[-1]:.2f} s "
                f"(model {built - entered:.2f}, state {synced - built:.2f}, step {stepped - synced:.2f}; "
                f"a usual step takes {usual():.2f})"
            )
        Path(told, "stop").touch()
        for node in nodes:
            if node.wait(600):
                print(node.output(), file=sys.stderr)
                return 1
    print(f"median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s; at most {max(lost)} steps lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
