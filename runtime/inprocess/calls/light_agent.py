"""An agent for a process that another launcher has started, such as torchrun or `srun python`, for one call.

Each rank starts one for itself: a process beside it that adopts it (`softrun.agent.adopt`). The agents then do what
they do under softrun, except that nobody starts a lost rank again. They meet at the first rank's host, at a port that
the ranks tell each other through the store of their launcher; if that hosts none, or the wrapper's `store_kwargs` name
another place, the first rank hosts one there until all have read it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from softrun.runtime.channel.channel import ENVIRONMENT_VARIABLE
from softrun.runtime.channel.inbox import StaticInbox
from softrun.runtime.events import WorkerInfo
from softrun.runtime.groups.stores import own_store

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others, if the wrapper has no barrier_timeout."""
BEAT = timedelta(seconds=0.25)
"""What the agents do by default, in jobs of up to 128."""
START_S = 60.0
_PATH_BYTES = 4096
_SET_BY_WORLDS = (
    ENVIRONMENT_VARIABLE,
    "ROLE_",
    "GROUP_",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
)
"""What the variables begin with that are the launcher's again after the call. RANK and WORLD_SIZE keep what the last
iteration has set them to, as with nvidia-resiliency-ext."""

_log = logging.getLogger("softrun.runtime.inprocess")
_calls = 0  # that this process has made with an agent of its own


@dataclass(frozen=True)
class Meeting:
    """The wrapper's arguments for how long ranks wait for one another; None: as softrun's agents do by default."""

    barrier_timeout: timedelta | None
    heartbeat_interval: timedelta | None
    heartbeat_timeout: timedelta | None
    host: str | None = None
    """Where the ranks meet if nobody has started them as softrun does; None: at MASTER_ADDR."""
    port: int | None = None
    """The same; None: at MASTER_PORT."""

    @property
    def patience(self) -> timedelta:
        """How long to wait for the other ranks at the start."""
        return self.barrier_timeout or PATIENCE

    def beats(self) -> dict[str, float]:
        """The settings of the agents' rendezvous."""
        interval = self.heartbeat_interval or BEAT
        settings: dict[str, float] = {}
        if self.heartbeat_interval is not None:
            settings["keep_alive_interval"] = interval.total_seconds()
        if self.heartbeat_timeout is not None:
            settings["keep_alive_max_attempt"] = max(2, math.ceil(self.heartbeat_timeout / interval))
        return settings


@contextmanager
def agent_for_a_call(meeting: Meeting) -> Iterator[int | None]:
    """If no agent runs this process, have one in this block. Yields how many ranks are to come; None: there was one.

    Raises RuntimeError with one line if this process is no rank of a job, or the ranks do not find each other.
    """
    if ENVIRONMENT_VARIABLE in os.environ:
        yield None
        return
    before = dict(os.environ)
    agent = _LightAgent(StaticInbox(os.environ).last().worker_info, meeting)
    try:
        os.environ.update({ENVIRONMENT_VARIABLE: agent.channel, "TORCHELASTIC_USE_AGENT_STORE": "True"})
        yield agent.world_size
    except BaseException:
        agent.end(1)
        raise
    else:
        agent.end(0)
    finally:
        for name in os.environ.keys() | before.keys():
            if name.startswith(_SET_BY_WORLDS) and name in before:
                os.environ[name] = before[name]
            elif name.startswith(_SET_BY_WORLDS):
                del os.environ[name]


class _LightAgent:
    """The agent, from here."""

    def __init__(self, info: WorkerInfo, meeting: Meeting) -> None:
        global _calls
        _calls += 1
        self.world_size = info.world_size
        name = f"inprocess-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{_calls}"
        port, token = _agree(info, name, meeting)
        self._connection, theirs = socket.socketpair()
        request = {
            "descriptor": theirs.fileno(),
            "job": name,
            "rank": info.rank,
            "world_size": info.world_size,
            "local_rank": info.local_rank,
            "local_world_size": info.local_world_size,
            "group_rank": info.group_rank,
            "group_world_size": info.group_world_size,
            "host": info.master_addr,
            "port": port,
            "token": token,
            "patience_s": meeting.patience.total_seconds(),
            "beats": meeting.beats(),
        }
        with theirs:
            _start(json.dumps(request), theirs.fileno())
        self.channel = self._hear(meeting.patience)
        self._ended = False
        self._watch = threading.Thread(target=self._end_with_it, name="softrun-agent", daemon=True)
        self._watch.start()

    def end(self, code: int) -> None:
        """Tell it how the call has ended; it then has nothing to do."""
        self._ended = True
        with suppress(OSError):  # it is gone
            self._connection.sendall(f"{code}\n".encode())
            self._connection.shutdown(socket.SHUT_RDWR)
        self._watch.join()
        self._connection.close()

    def _hear(self, patience: timedelta) -> str:
        """The path of the channel."""
        waited = patience.total_seconds() + START_S
        if select.select([self._connection], [], [], waited)[0]:
            path = self._connection.recv(_PATH_BYTES).decode().strip()
            if path:
                return path
        raise RuntimeError(
            "Wrapper: the agents of the ranks have formed no world, as the lines above say; start the job with "
            "`python -m softrun --restart_policy soft` instead"
        )

    def _end_with_it(self) -> None:
        """As every worker of softrun ends with its agent: nobody would tell it of a world any more."""
        while self._connection.recv(1):
            pass
        if not self._ended:
            _log.critical("the agent of this process is gone, so this process ends")
            os.kill(os.getpid(), signal.SIGKILL)


def _start(request: str, descriptor: int) -> None:
    command = [sys.executable, "-m", "softrun.agent.adopt", str(os.getpid())]
    env = os.environ | {"PYTHONSAFEPATH": "1"}  # the trainer's directory may have modules named like Python's own
    try:
        subprocess.run(command, env=env, pass_fds=[descriptor], input=request.encode(), check=True, timeout=START_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(
            f"Wrapper: no agent could be started for this process ({error}): look at this machine's limits, or start "
            "the job with `python -m softrun --restart_policy soft`"
        ) from error


def _agree(info: WorkerInfo, name: str, meeting: Meeting) -> tuple[int, str]:
    """The port at which the first rank's agent listens, and the secret of the agents, from the launcher's store."""
    import torch.distributed as dist

    host, port = meeting.host or info.master_addr, meeting.port or info.master_port
    of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and port == info.master_port
    try:
        store = own_store(
            host_name=host,
            port=port,
            is_master=info.rank == 0 and not of_launcher,
            wait_for_workers=False,
            timeout=meeting.patience,
        )
        names = dist.PrefixStore(f"softrun/{name}", store)  # type: ignore[attr-defined]  # torch's stubs hide it
        if info.rank == 0:
            names.set("port", f"{_free_port()} {secrets.token_hex(32)}")
        listens_at, token = names.get("port").decode().split()
        if names.add("read", 1) == info.world_size:
            names.set("all", "have read it")
        if info.rank == 0:
            names.wait(["all"])
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise RuntimeError(
            f"Wrapper: rank {info.rank} of {info.world_size} could not meet the others at "
            f"{'store_kwargs, ' if meeting.port or meeting.host else 'MASTER_ADDR:MASTER_PORT '}{host}:{port} "
            f"({reason}): correct these, start all ranks, or start the job with `python -m softrun --restart_policy "
            "soft`"
        ) from error
    return int(listens_at), token


def _free_port() -> int:
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
