"""The longer texts of the engine's notes and results."""

from __future__ import annotations

from softrun.agent.protocol.model import Address, JobSettings, Round
from softrun.agent.protocol.printable import printable

MOST_NAMED = 8  # nodes, in a line


def describe_round(round_: Round) -> str:
    """Describe a sealed round in one line: its number, its size, and the nodes that were lost."""
    workers = sum(len(m.workers) for m in round_.members)
    lost = f"; lost: {', '.join(round_.lost)}" if round_.lost else ""
    return f"round {round_.number}: {count(len(round_.members), 'node')}, {count(workers, 'worker')}{lost}"


def describe_record(round_: Round, worked_s: float) -> str:
    """Describe a record in a few words, so that it can be told from another: its version, its world and who is in it.
    `worked_s`: for how long its job has had a world."""
    nodes = ", ".join(m.node for m in round_.members[:MOST_NAMED])
    more = f" and {len(round_.members) - MOST_NAMED} more" if len(round_.members) > MOST_NAMED else ""
    return f"version {round_.version}, round {round_.number} of {nodes or 'nobody'}{more}, {worked_s:.1f} s of work"


def count(number: int, thing: str) -> str:
    """Say how many there are, as in "1 node" and "2 nodes"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def describe_exit(exitcode: int) -> str:
    """Say how a process ended. A negative exit code is a signal, as in `subprocess`."""
    return f"was ended by signal {-exitcode}" if exitcode < 0 else f"exited with code {exitcode}"


def describe_other_job(theirs: JobSettings, ours: JobSettings) -> str:
    """Say why an agent that was started with `ours` cannot take part in a job that runs with `theirs`."""
    return (
        f"the job of this --rdzv_id runs with {_flags(theirs)}, this agent was started with {_flags(ours)}: "
        "use the same flags, or another --rdzv_id"
    )


def describe_namesake(host: str) -> str:
    """Say why a second agent cannot take part in a job of one node, which runs on `host`."""
    return (
        f"a job of this --rdzv_id runs already on {printable(host)}, its one node: give this one another --rdzv_id, "
        "and a --rdzv_endpoint or --master_port of its own, or wait until that one has ended"
    )


def _flags(settings: JobSettings) -> str:
    return (
        f"--nnodes {settings.min_nodes}:{settings.max_nodes} --restart_policy {settings.restart_policy} "
        f"--worker_failure {settings.worker_failure}{' --rdzv_backend static' if settings.named_store else ''}"
        f"{' --commit durable' if settings.durable else ''}"
        f"{f' and tolerates {settings.tolerance_s:g} s of silence' if settings.tolerance_s else ''}"
        f"{_witness(settings.witness) if settings.witness is not None else ''}"
    )


def _witness(witness: Address) -> str:
    return f" and has the witness {witness}"
