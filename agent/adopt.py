"""`python -m softrun.agent.adopt PID`: the agent of one process that another launcher has started.

A wrapped function starts it (`softrun.runtime.inprocess.calls.light_agent`), says what it needs to know, in JSON on its
standard input, which nobody else can read, and hands it a socket (`softrun.agent.workers.adopted`). It detaches itself
at once, outlives the worker by milliseconds, and leaves signals that a launcher sends to everybody to the worker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from pydantic import BaseModel

FOR_WORKERS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
)


class Request(BaseModel):
    """What the worker says of itself and of its job."""

    descriptor: int
    job: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    host: str
    """Where the first rank's agent is."""
    port: int
    patience_s: float
    """How long to wait for the others' agents."""
    token: str
    """The secret of the job's agents, unless SOFTRUN_TOKEN_FILE names another one."""
    beats: dict[str, float]
    """Settings of the rendezvous."""


def main() -> int:
    """Run the agent of one worker; returns its exit code, which nobody waits for."""
    request = Request.model_validate_json(sys.stdin.buffer.read())
    if os.fork():
        return 0  # the worker waits for this process
    os.setsid()
    for signum in FOR_WORKERS:
        signal.signal(signum, signal.SIG_IGN)
    return _run(request)


def _run(request: Request) -> int:
    from softrun.agent.console import log_to_stderr, quieten_torch

    log_to_stderr(debug=False)
    quieten_torch()
    from softrun.agent.errors import SoftrunError
    from softrun.agent.launch import LaunchConfig, RestartPolicy, launch_agent
    from softrun.agent.memory import gather_memory_later, give_back_memory
    from softrun.agent.protocol.model import Address
    from softrun.agent.store.settings import TOKEN_VARIABLE
    from softrun.agent.torch_elastic.elastic import ChildFailedError
    from softrun.agent.workers.adopted import Adoption

    give_back_memory()
    gather_memory_later()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=request.world_size,
        nproc_per_node=1,
        run_id=request.job,
        rdzv_endpoint=str(Address(request.host, request.port)),
        rdzv_configs={
            "is_host": request.rank == 0,
            "rank": request.rank,
            "join_timeout": request.patience_s,
            "last_call_timeout": request.patience_s,  # all of them are to be in the first world
            "read_timeout": request.patience_s,
            **({} if TOKEN_VARIABLE in os.environ else {"token_file": _file_of(request.token)}),
            **request.beats,
        },
        restart_policy=RestartPolicy.SOFT,
        worker_failure="record",
        max_restarts=0,
        warm_start=False,
        signals_to_handle="SIGRTMAX",  # nobody sends it
    )
    adoption = Adoption(
        pid=int(sys.argv[1]),
        connection=socket.socket(fileno=request.descriptor),
        local_rank=request.local_rank,
        local_world_size=request.local_world_size,
        group_rank=request.group_rank,
        group_world_size=request.group_world_size,
    )
    try:
        launch_agent(config, adoption, [])
    except ChildFailedError:
        return 1  # the worker knows best
    except SoftrunError as error:
        print(f"softrun: the agent of rank {request.rank} ends: {error}", file=sys.stderr)
        return 1
    return 0


def _file_of(token: str) -> str:
    """The path of a file that only this process has, with the token in it."""
    descriptor = os.memfd_create("softrun-token")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, token.encode())
    return f"/proc/self/fd/{descriptor}"


if __name__ == "__main__":
    sys.exit(main())
