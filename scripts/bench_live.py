"""What a block of live_workers costs: empty, beside torch's own ways to wait for each other, and in steps of 50 ms.

    scripts/bench_live.py [--blocks 3000] [--steps 60] [--peers]

The workers of one run do all of it in turns: empty blocks; `dist.barrier` of gloo; a TCPStore's counter and key, which
is what a vote over torch's store costs at least; then steps of 50 ms with and without a block around each. Median, and
how many times that the 99th of 100 takes; of rank 0.

`--peers`: right after each setting of one agent, as many processes of torchft, each a replica that asks for a quorum
and votes, and of JAX, in empty blocks of `live_devices`. They are installed once, in environments of their own
(`peers.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import peers
from measuring import cluster

from local_cluster import Node, free_port, softrun_command

TRAINERS = Path(__file__).parent / "trainers"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Setting:
    """How many agents and workers, and what is asked of an empty block: the median in ms."""

    nodes: int
    workers: int
    asked_ms: float


SETTINGS = (Setting(1, 4, 0.15), Setting(1, 8, 0.25), Setting(2, 4, 0.3))


def measure(setting: Setting, blocks: int, steps: int) -> dict[str, float]:
    """Return what rank 0 has found."""
    port = free_port()
    with cluster() as here:
        nodes = [
            here.start(
                name,
                softrun_command(
                    "--restart_policy=soft",
                    f"--nnodes={setting.nodes}",
                    f"--nproc_per_node={setting.workers}",
                    "--rdzv_backend=c10d",
                    f"--rdzv_endpoint=127.0.0.1:{port}",
                    script=TRAINERS / "bench_live.py",
                    args=(str(blocks), str(steps)),
                ),
                {"OMP_NUM_THREADS": "1"},
            )
            for name in "abcd"[: setting.nodes]
        ]
        return told(nodes)


def torchft(workers: int, blocks: int) -> dict[str, float]:
    """What the first of its replicas has found. Raises UnavailableError."""
    python, port = peers.python_of("torchft"), free_port()
    with cluster() as here:
        here.start(
            "lighthouse",
            [str(python.parent / "torchft_lighthouse"), f"--min_replicas={workers}", f"--bind=[::]:{port}"],
        )
        script, env = str(TRAINERS / "bench_live_torchft.py"), {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        return told(
            here.start(f"replica{n}", [str(python), script, str(blocks), str(n), str(workers)], env)
            for n in range(workers)
        )


def jax(workers: int, blocks: int) -> dict[str, float]:
    """What the first of its processes has found. Raises UnavailableError."""
    python, port, script = peers.python_of("jax"), free_port(), str(TRAINERS / "bench_live_jax.py")
    with cluster() as here:
        return told(
            here.start(f"process{n}", [str(python), script, str(blocks), str(n), str(workers), str(port)])
            for n in range(workers)
        )


PEERS = {"torchft's quorum and vote": torchft, "JAX's live_devices": jax}


def told(started: Iterable[Node]) -> dict[str, float]:
    """Wait for all, and return what one of them has printed."""
    nodes = list(started)
    for node in nodes:
        if node.wait(PATIENCE_S):
            raise SystemExit(f"{node.name}: {node.output()}")
    found = [line for node in nodes for line in node.output().splitlines() if line.startswith("{")]
    result: dict[str, float] = json.loads(found[0])
    return result


def beside(workers: int, blocks: int) -> str:
    """The peers' figures, in words."""
    said = []
    for name, measure_peer in PEERS.items():
        try:
            found = measure_peer(workers, blocks)
            said.append(f"{name}: {found['block']:.3f} ms, p99 {found['block_p99']:.3f}")
        except peers.UnavailableError as why:
            said.append(f"{name}: not here ({why})")
    return "; ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=60, help="of 50 ms, with blocks and without")
    parser.add_argument("--peers", action="store_true", help="torchft and JAX, too")
    args = parser.parse_args()
    print("| agents x workers | empty block, ms (asked) | p99 / median | gloo barrier, ms | store, ms | steps |")
    print("|---|---|---|---|---|---|")
    peers_told: list[str] = []
    for setting in SETTINGS:
        found = measure(setting, args.blocks, args.steps)
        more = (found["steps_with"] / found["steps_without"] - 1) * 100
        tail = found["block_p99"] / found["block"]
        print(
            f"| {setting.nodes} x {setting.workers} | {found['block']:.3f} ({setting.asked_ms}) | "
            f"{tail:.1f} | {found['barrier']:.3f} | {found['store']:.3f} | {more:+.1f} % |",
            flush=True,
        )
        if args.peers and setting.nodes == 1:
            peers_told.append(f"{setting.workers} processes: {beside(setting.workers, args.blocks // 3)}")
    for line in peers_told:
        print(line)


if __name__ == "__main__":
    main()
