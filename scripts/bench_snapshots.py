"""What snapshots cost the training: steps of 50 ms with a snapshot each so many, beside steps without, in one run.

The nodes are launchers on this machine, and their workers have equal tensors (DDP), so that each stores a part of them
and has it copied to the next node.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from local_cluster import LocalCluster, end_in_order_on_sigterm, free_port, softrun_command

TRAINER = Path(__file__).parent / "trainers" / "bench_snapshots.py"
GB = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="in each turn, with and without")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    end_in_order_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        told = Path(folder, "told")
        told.mkdir()
        numbers = [str(number) for number in (int(args.gigabytes * GB), args.steps, args.every, args.turns)]
        port = free_port()
        command = softrun_command(
            "--restart_policy=soft",
            f"--nnodes={args.nodes}",
            f"--nproc_per_node={args.nproc}",
            f"--rdzv_endpoint=localhost:{port}",
            script=TRAINER,
            args=[str(told), *numbers],
        )
        nodes = [cluster.start(f"node{number}", command) for number in range(args.nodes)]
        for node in nodes:
            if node.wait(3600):
                print(node.output(), file=sys.stderr)
                return 1
        ranks = [json.loads(path.read_text()) for path in sorted(told.glob("times-*"))]
        taken = sum(json.loads((told / f"{turn}-0").read_text()) for turn in range(1, 2 * args.turns, 2))
    wanted = args.turns * -(-args.steps // args.every)
    print(
        f"{args.gigabytes:g} GiB, {args.nodes} nodes of {args.nproc} workers, a snapshot each {args.every} steps: "
        f"{taken} of {wanted} were taken"
    )
    slowest = {kind: [max(step) for step in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in ranks[0]}
    for kind, seconds in slowest.items():
        mean, median, worst = (of(seconds) * 1e3 for of in (statistics.mean, statistics.median, max))
        print(f"  {kind:8} mean {mean:6.2f} ms, median {median:6.2f}, worst {worst:6.2f}")
    cost = statistics.mean(slowest["with"]) / statistics.mean(slowest["without"]) - 1
    usual = statistics.median(slowest["without"])
    written = [slowest["with"][turn * args.steps :][: args.steps] for turn in range(args.turns)]
    longer = [max(steps[at : at + 2]) - usual for steps in written for at in range(0, args.steps, args.every)]
    print(
        f"  snapshots cost {cost:.2%} of the time; the longest step while each was written took "
        f"{statistics.median(longer) * 1e3:.1f} ms longer than usual, at most {max(longer) * 1e3:.1f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
