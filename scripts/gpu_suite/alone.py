"""Checks of ranks without an agent: groups that are built, aborted and rebuilt, and the health of a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import cluster

from gpu_suite.setting import FailedError, Found, NotCheckedError, Setting, needs_nccl, needs_ranks
from local_cluster import Node

TRAINERS = Path(__file__).parents[1] / "trainers"
REBUILDS = 50
GROWTH_MB = 64.0
"""What 40 rebuilds may add to a process, on the host and on its GPU: less than 2 MB each."""


def share(setting: Setting) -> Found:
    """Whether they can have a group. If they cannot, the rest is checked with one rank, as far as that goes."""
    needs_nccl(setting, "gloo needs no GPU")
    if setting.ranks <= torch.cuda.device_count():
        raise NotCheckedError("each rank has one of its own")
    refused = next((rank.wrong for rank in run_ranks(setting, "gpu_sum.py") if rank.wrong), "")
    if refused:
        setting.alone = f"NCCL does not take {setting.ranks} ranks on one GPU, not even with an NCCL_HOSTID each"
        setting.ranks = 1
        raise NotCheckedError(f"{setting.alone}; the rest is checked with one: {refused.splitlines()[-1]}")
    return Found(f"{setting.ranks} on one GPU, with an NCCL_HOSTID each")


def build(setting: Setting) -> Found:
    figures = {"build_ms": 1000 * worst(told(run_ranks(setting, "gpu_sum.py"), setting.ranks), "seconds")}
    return Found(f"{figures['build_ms']:.0f} ms at most", figures)


def abort_of_a_peer(setting: Setting) -> Found:
    return abort(setting, "peer")


def abort_of_a_kernel(setting: Setting) -> Found:
    return abort(setting, "kernel")


def abort(setting: Setting, behind: str) -> Found:
    """Also the rebuild that follows it."""
    needs_ranks(setting, 2)
    lines = told(run_ranks(setting, "gpu_abort.py", behind), setting.ranks)
    figures = {
        f"abort_{behind}_ms": 1000 * worst(lines, "out"),
        f"rebuild_{behind}_ms": 1000 * worst(lines, "rebuild"),
    }
    taken, rebuilt = figures.values()
    text = (
        f"all who waited ({setting.ranks - 1}) came out within {taken:.0f} ms, and summed again {rebuilt:.0f} ms later"
    )
    return Found(text, figures)


def memory(setting: Setting) -> Found:
    lines = told(run_ranks(setting, "gpu_rebuilds.py", str(REBUILDS)), setting.ranks)
    grown = {name: max(line["after"][name] - line["before"][name] for line in lines) for name in lines[0]["after"]}
    if max(grown["host_mb"], grown.get("gpu_mb", 0.0)) > GROWTH_MB or max(grown["descriptors"], grown["threads"]) > 4:
        raise FailedError(f"from rebuild 10 to {REBUILDS} a rank has grown by {grown}")
    where = ", ".join(f"{value:+.1f} {name.replace('_mb', ' MB')}" for name, value in grown.items())
    return Found(f"from rebuild 10 to {REBUILDS}: {where}", {f"grown_{name}": value for name, value in grown.items()})


def recorder(setting: Setting) -> Found:
    """What the flight recorder says of a collective in which a rank is missing."""
    needs_ranks(setting, 2)
    lines = told(run_ranks(setting, "gpu_recorder.py", environment={"TORCH_FR_BUFFER_SIZE": "2000"}), setting.ranks - 1)
    wrong = [line for line in lines if line["finished"] < 1 or line["stuck"] != 1]
    if wrong:
        raise FailedError(f"of one finished and one stuck collective it shows {wrong}")
    return Found(f"{lines[0]['finished']} finished and {lines[0]['stuck']} stuck collectives are in the dump")


def healthy(setting: Setting) -> Found:
    return health(setting, "well")


def corrupted(setting: Setting) -> Found:
    return health(setting, "broken")


def health(setting: Setting, condition: str) -> Found:
    needs_nccl(setting, "the CPU has no such health")
    with cluster() as here:
        node = here.start(condition, [sys.executable, str(TRAINERS / "gpu_health.py"), condition])
        rank = ended(node, "the process", setting.timeout_s)
    if rank.wrong:
        raise FailedError(rank.wrong)
    return Found((rank.output.strip().splitlines() or ["it is found healthy"])[-1])


@dataclass(frozen=True)
class Rank:
    """One that has ended, or was ended."""

    output: str
    wrong: str
    """What was, if anything."""


def told(ranks: Sequence[Rank], count: int) -> list[Any]:
    """The line of JSON of each of so many ranks, the others of which have nothing to tell."""
    lines = [json.loads(line) for rank in ranks for line in rank.output.splitlines() if line.startswith("{")]
    if len(lines) != count:
        raise FailedError("\n".join([f"{len(lines)} of {count} ranks got through", *(rank.wrong for rank in ranks)]))
    return lines


def worst(lines: Sequence[Any], name: str) -> float:
    return max(float(line[name]) for line in lines if name in line)


def run_ranks(setting: Setting, trainer: str, *args: str, environment: Mapping[str, str] | None = None) -> list[Rank]:
    """The store is this process's, as it is an agent's in a job."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with cluster() as here:
        nodes = [
            here.start(
                f"rank-{rank}",
                [sys.executable, str(TRAINERS / trainer), setting.backend, *args],
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(setting.ranks),
                    "LOCAL_WORLD_SIZE": str(setting.ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
                    **(environment or {}),
                },
            )
            for rank in range(setting.ranks)
        ]
        end = time.monotonic() + setting.timeout_s
        return [ended(node, f"rank {rank}", end - time.monotonic()) for rank, node in enumerate(nodes)]


def ended(node: Node, name: str, timeout_s: float) -> Rank:
    try:
        code = node.wait(max(0.1, timeout_s))
        wrong = f"{name} ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        wrong = f"{name} did not end in time"
    output = node.output()
    return Rank(output, wrong and f"{wrong}\n{output[-2000:]}")
