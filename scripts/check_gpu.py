"""Checks on real GPUs, with NCCL, what softrun's tests check with gloo on the CPU: aborts, rebuilt groups, recovery.

A line for each check: ok, failed, or not checked and why. Exits with 1 only if a check failed, so also with 0 where
there is no GPU. With one GPU, several ranks share it, if NCCL can be made to take them for ranks of several hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from measuring import cluster
from one_node import first_of_a_new_process, inject, start_ranks

from local_cluster import LocalCluster, Node, Step, end_in_order_on_sigterm, recovery

TRAINERS = Path(__file__).parent / "trainers"
RANKS = 3
MAX_RANKS = 4


class NotCheckedError(Exception):
    """The message says why."""


class FailedError(Exception):
    """The message says what was seen instead."""


@dataclass
class Setting:
    backend: str
    ranks: int
    timeout_s: float
    alone: str = ""
    """Why there is only one rank, if so."""
    aborted: list[Rank] | None = None
    """Ranks that went through an abort."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check_gpu", description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: the same on the CPU")
    parser.add_argument("--ranks", type=int, help="the GPUs, at most 4; 3 where there is one, or with gloo")
    parser.add_argument("--timeout", type=float, default=120.0, help="of each check, in seconds")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    if args.backend == "nccl" and (lack := what_is_lacking()):
        print(f"check_gpu: nothing was checked, {lack}; --backend gloo runs the same on the CPU")
        return 0
    devices = torch.cuda.device_count() if args.backend == "nccl" else 0
    setting = Setting(args.backend, args.ranks or (min(devices, MAX_RANKS) if devices > 1 else RANKS), args.timeout)
    print(f"torch {torch.__version__}, {what_is_there(setting)}", flush=True)
    failed = [name for name, check in CHECKS.items() if not passes(name, check, setting)]
    if failed:
        print(f"check_gpu: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def what_is_lacking() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    return "" if dist.is_nccl_available() else f"torch {torch.__version__} is built without NCCL"


def what_is_there(setting: Setting) -> str:
    if setting.backend == "gloo":
        return f"gloo on the CPU, {setting.ranks} ranks"
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    names = {torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())}
    return f"NCCL {version}, {torch.cuda.device_count()} GPUs ({', '.join(sorted(names))}), {setting.ranks} ranks"


def passes(name: str, check: Callable[[Setting], str], setting: Setting) -> bool:
    """Run it and tell what came of it."""
    try:
        outcome, told = "ok", check(setting)
    except NotCheckedError as why:
        outcome, told = "not checked", str(why)
    except (FailedError, TimeoutError) as seen:
        outcome, told = "failed", str(seen)
    print(f"{outcome:12} {name}: {told}", flush=True)
    return outcome != "failed"


# --- ranks without an agent


def share(setting: Setting) -> str:
    """Whether they can have a group. If they cannot, the rest is checked with one rank, as far as that goes."""
    if setting.backend != "nccl":
        raise NotCheckedError("gloo needs no GPU")
    if setting.ranks <= torch.cuda.device_count():
        raise NotCheckedError("each rank has one of its own")
    refused = next((rank.wrong for rank in run_ranks("gpu_sum.py", setting) if rank.wrong), "")
    if refused:
        setting.alone = f"NCCL does not take {setting.ranks} ranks on one GPU, not even with an NCCL_HOSTID each"
        setting.ranks = 1
        raise NotCheckedError(f"{setting.alone}; the rest is checked with one: {refused.splitlines()[-1]}")
    return f"{setting.ranks} on one GPU, with an NCCL_HOSTID each"


def abort(setting: Setting) -> str:
    if setting.ranks == 1:
        raise NotCheckedError(setting.alone or "it takes two ranks")
    taken = found(aborted_ranks(setting), "abort", setting.ranks - 1)
    return f"all who waited ({setting.ranks - 1}) came out within {max(taken) * 1000:.0f} ms of the abort"


def rebuild(setting: Setting) -> str:
    taken = found(aborted_ranks(setting), "rebuild", setting.ranks)
    return f"from the aborted groups to the first sum in the new ones {max(taken) * 1000:.0f} ms"


@dataclass(frozen=True)
class Rank:
    """One that has ended, or was ended."""

    output: str
    wrong: str
    """What was, if anything."""


def found(ranks: Sequence[Rank], check: str, count: int) -> list[float]:
    lines = [json.loads(line) for rank in ranks for line in rank.output.splitlines() if line.startswith('{"check"')]
    taken = [float(line["seconds"]) for line in lines if line["check"] == check]
    if len(taken) != count:
        raise FailedError("\n".join([f"{len(taken)} of {count} ranks got through", *(rank.wrong for rank in ranks)]))
    return taken


def aborted_ranks(setting: Setting) -> list[Rank]:
    """One run has the abort and what follows it."""
    if setting.aborted is None:
        setting.aborted = run_ranks("gpu_abort.py", setting)
    return setting.aborted


def run_ranks(trainer: str, setting: Setting) -> list[Rank]:
    """The store is this process's, as it is an agent's in a job."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with cluster() as here:
        nodes = [
            here.start(
                f"rank-{rank}",
                [sys.executable, str(TRAINERS / trainer), setting.backend],
                {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(setting.ranks),
                    "LOCAL_WORLD_SIZE": str(setting.ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(store.port),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
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


# --- the health of a device


def healthy(setting: Setting) -> str:
    return check_health(setting, "well") or "it is found healthy"


def corrupted(setting: Setting) -> str:
    return check_health(setting, "broken")


def check_health(setting: Setting, condition: str) -> str:
    if setting.backend != "nccl":
        raise NotCheckedError("the CPU has no such health")
    with cluster() as here:
        node = here.start(condition, [sys.executable, str(TRAINERS / "gpu_health.py"), condition])
        rank = ended(node, "the process", setting.timeout_s)
    if rank.wrong:
        raise FailedError(rank.wrong)
    return (rank.output.strip().splitlines() or [""])[-1]


# --- whole jobs


def worlds_kill(setting: Setting) -> str:
    return recovered("gpu_worlds.py", ["kill"], setting)


def wrapper(setting: Setting) -> str:
    return recovered("gpu_wrapper.py", ["exception", "sleep"], setting)


def recovered(trainer: str, faults: Sequence[str], setting: Setting) -> str:
    """One after the other befalls the last rank of a job; then all survivors step, and after a kill a new process."""
    told = []
    with cluster() as here:
        start_ranks(here, TRAINERS / trainer, setting.ranks, [setting.backend, str(here.directory)])
        for fault in faults:
            steps = here.wait_for_steps(setting.ranks, after=time.monotonic(), each=5, timeout_s=setting.timeout_s)
            told.append(recovery_from(fault, here, steps, setting.timeout_s))
        here.wait_for_steps(setting.ranks, after=time.monotonic(), timeout_s=setting.timeout_s)
    return ", ".join(told)


def recovery_from(fault: str, here: LocalCluster, steps: Sequence[Step], timeout_s: float) -> str:
    victim, rank = last_rank(steps)
    before = {s.pid for s in steps}
    survivors = before - {victim} if fault == "kill" else before
    at = inject(here, victim, rank, fault)
    told = ""
    if survivors:
        gap = here.wait_for(f"recovery from {fault}", lambda: recovery(here.steps(), at, survivors), timeout_s)
        told = f"after {fault} all that keep their process ({len(survivors)}) step within {gap * 1000:.0f} ms"
    if fault == "kill":
        first = here.wait_for("the replacement", lambda: first_of_a_new_process(here.steps(), before), timeout_s)
        told += f", the replacement within {(first.mono - at) * 1000:.0f} ms"
    return told.lstrip(", ")


def last_rank(steps: Sequence[Step]) -> tuple[int, int]:
    """Its process, and its number."""
    last = max(reversed(steps), key=lambda step: step.rank)
    return last.pid, last.rank


CHECKS: dict[str, Callable[[Setting], str]] = {
    "several ranks on one GPU": share,
    "abort of a stuck collective": abort,
    "groups rebuilt in the same process": rebuild,
    "CudaHealthCheck, healthy device": healthy,
    "CudaHealthCheck, device-side assert": corrupted,
    "worlds() through a SIGKILL": worlds_kill,
    "Wrapper through an exception and a hang of 2 s": wrapper,
}


if __name__ == "__main__":
    sys.exit(main())
