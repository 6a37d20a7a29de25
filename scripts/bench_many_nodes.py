"""What many nodes cost: joining, a loss, a leave and the loss of the first node, timed and counted, beside torch's
dynamic rendezvous.

The agents are light ones (`light_agents`): the real engine, driver, links and store code, in threads of a few
processes. They keep the record themselves (c10d), or etcd does. What N machines would do is done by the cores of one,
for torch's handlers as for ours. On the virtual clock (`simulation`) they are the real engines and codecs, and nothing
is timed.

As a program it measures one thing, in a process of its own that may fork, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from light_crowd import HALLS, TURN_S, Crowd
from measuring import Record

from light_agents import Tally, count_etcd
from local_cluster import free_port
from local_etcd import LocalEtcd
from softrun.agent.protocol.model import Address

ROOT = Path(__file__).parent.parent
NODES = (8, 16, 32, 64, 128, 256, 512)
TORCHS = (8, 16, 32, 64, 128, 192, 256, 384, 512)  # until it does not finish
SIMULATED = (1_000, 10_000)
TORCH_GIVES_UP_S = 120.0
LIMIT_S = 1800.0  # of one measurement
SETTLE_S = 1.0
SWAPS, WRITES = ("compare_set", "Swap"), ("set ", "add ", "delete_key", "Put", "LeaseGrant", "LeaseRevoke")
BEATS = ("message beat", "LeaseKeepAlive")
ON_LINKS = ("message ", "greeting")


def many_nodes(_args: argparse.Namespace) -> Iterator[Record]:
    starts: dict[str, dict[int, Record]] = {}
    for system in ("c10d", "etcd", "torch", "simulated"):
        starts[system] = {}
        for nodes in {"simulated": SIMULATED, "torch": TORCHS}.get(system, NODES):
            record = measure(system, nodes)
            yield record
            print(f"  {told(record)}", flush=True)
            if "failed" in record:
                break
            starts[system][nodes] = record
    yield from compared(starts["c10d"], starts["torch"])


def compared(ours: dict[int, Record], theirs: dict[int, Record]) -> Iterator[Record]:
    """softrun's agents, which keep the record themselves, beside torch's rendezvous: at the largest N of both."""
    if not ours or not theirs:
        return
    same, most, torchs = max(set(ours) & set(theirs)), max(ours), max(theirs)
    soft, much, torch, largest = (_start(one) for one in (ours[same], ours[most], theirs[same], theirs[torchs]))
    time_ratio, most_time_ratio = torch["seconds"] / soft["seconds"], largest["seconds"] / much["seconds"]
    yield {
        "same": same,
        "same_time_ratio": time_ratio,
        "softrun_most": most,
        "torch_most": torchs,
        "most_time_ratio": most_time_ratio,
    }
    print(
        f"  {same} nodes: torch takes {time_ratio:.1f} times as long, with {torch['swaps']} compare-and-swaps; softrun "
        f"sends {soft['messages']} messages\n  torch's {torchs} nodes, the most that it finishes, take "
        f"{most_time_ratio:.1f} times as long as softrun's {most}"
    )


def _start(record: Record) -> dict[str, Any]:
    cost: Any = record["start"]
    return dict(cost)


def measure(system: str, nodes: int) -> Record:
    """In a process of its own, where it may fork and have as many threads as it likes."""
    command = [*_names_known(), sys.executable, __file__, system, str(nodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {
            "system": system,
            "nodes": nodes,
            "failed": (done.stderr.splitlines() or ["it ended without a word"])[-1],
        }
    return {"system": system, "nodes": nodes, **json.loads(lines[-1])}


def told(record: Record) -> str:
    text = f"{record['system']:9} {record['nodes']:6}"
    if "failed" in record:
        return f"{text}  {record['failed']}"
    for what in ("start", "loss", "leave", "leader_loss"):
        cost = record.get(what)
        if isinstance(cost, dict):
            parts = [f"{cost['seconds']:.2f} s"] if "seconds" in cost else []
            if cost["operations"]:
                parts.append(f"{cost['operations']} operations, {cost['swaps']} swaps + {cost['writes']} writes")
            if cost["messages"]:
                parts.append(f"{cost['messages']} messages")
            text += f"   {what} {', '.join(parts)}"
    return text


# --- light agents


def c10d(nodes: int) -> Record:
    return crowds(lambda: Crowd(nodes, endpoints=(Address("127.0.0.1", free_port()),)))


def etcd(nodes: int) -> Record:
    from softrun.agent.store.etcd import EtcdStore
    from softrun.agent.store.etcd_client import EtcdAccess, EtcdClient, _load_etcd3

    def prepare(tally: Tally) -> None:
        _load_etcd3()
        count_etcd(EtcdClient, tally)

    with tempfile.TemporaryDirectory(prefix="softrun-etcd-") as directory, LocalEtcd(Path(directory)) as server:
        access = EtcdAccess((server.endpoint,))
        jobs = itertools.count()

        def crowd() -> Crowd:
            job = f"light-{next(jobs)}"
            return Crowd(nodes, lambda name, _tally: EtcdStore(job, name, access, 20, 60.0), prepare)

        return crowds(crowd)


def crowds(new: Callable[[], Crowd]) -> Record:
    """What it costs to start, and what each change does to a crowd that has just started.

    Each has a crowd of its own: light workers take no step, and a leader takes its time if one world after the other
    ends without any.
    """
    record: Record = {}
    for what in ("loss", "leave", "leader_loss"):
        with new() as crowd:
            nodes = len(crowd.names())
            before: Counter[str] = Counter()
            began = crowd.start()
            world = crowd.told(nodes)
            if "start" not in record:
                record["start"] = {"seconds": world.at - began, **costs(crowd.counts() - before)}
            time.sleep(SETTLE_S)
            # The first agent leads, and the others find the job at the endpoint where it listens.
            if world.listeners not in ((), (world.leader,)):
                raise AssertionError(f"{world.leader} leads, but {world.listeners} listen at the endpoint")
            victim = world.leader
            if what != "leader_loss":
                victim = next(name for name in reversed(crowd.names()) if name != world.leader)
            before = crowd.counts()
            began = crowd.leave(victim) if what == "leave" else crowd.die(victim)
            world = crowd.told(nodes - 1)
            record[what] = {"seconds": world.at - began, **costs(crowd.counts() - before)}
    return record


def costs(counts: Counter[str]) -> dict[str, Any]:
    """What was counted, the beats of the time it took left out; `by_name` has all of it."""
    done = Counter({name: n for name, n in counts.items() if not name.startswith(BEATS)})
    asked = Counter({name: n for name, n in done.items() if not name.startswith(ON_LINKS)})
    return {
        "operations": asked.total(),
        "swaps": sum(n for name, n in asked.items() if name.startswith(SWAPS)),
        "writes": sum(n for name, n in asked.items() if name.startswith(WRITES)),
        "messages": done.total() - asked.total(),
        "by_name": dict(sorted(counts.items())),
    }


# --- torch's dynamic rendezvous


class CountedTCPStore:
    """A TCPStore whose operations are counted, by what is done to which key."""

    def __init__(self, store: object, tally: Tally) -> None:
        self._store = store
        self._tally = tally

    def __getattr__(self, operation: str) -> Any:
        perform = getattr(self._store, operation)

        def counted(key: str, *args: Any) -> Any:
            self._tally.add(f"{operation} {key}")
            return perform(key, *args)

        return counted


def torch(nodes: int) -> Record:
    """Each handler in a thread, with a TCPStore of its own, spread over processes just as the light agents are."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fork = multiprocessing.get_context("fork")
    gc.freeze()
    halls = min(HALLS, nodes)
    pipes: list[Connection] = []
    try:
        for first in range(halls):
            ours, theirs = fork.Pipe()
            args = (theirs, [*pipes, ours], len(range(first, nodes, halls)), nodes, server.port)
            fork.Process(target=_torch_hall, args=args, daemon=True).start()
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        began = time.monotonic()
        for pipe in pipes:
            pipe.send(None)
        deadline = began + TORCH_GIVES_UP_S
        if not all(pipe.poll(max(0.0, deadline - time.monotonic())) for pipe in pipes):
            return {"failed": f"torch's rendezvous is not complete after {TORCH_GIVES_UP_S:.0f} s"}
        answers = [pipe.recv() for pipe in pipes]
    finally:
        for process in multiprocessing.active_children():
            process.kill()
    wrong = [answer for answer in answers if isinstance(answer, str)]
    if wrong:
        return {"failed": wrong[0]}
    counts = sum((counts for _, counts in answers), Counter[str]())
    return {"start": {"seconds": max(at for at, _ in answers) - began, **costs(counts)}}


def _torch_hall(pipe: Connection, others: list[Connection], handlers: int, nodes: int, port: int) -> None:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    for other in others:
        other.close()
    sys.setswitchinterval(TURN_S)
    tally = Tally()
    joined: list[float | str] = []
    kept: list[object] = []

    def join() -> None:
        try:
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
            backend = C10dRendezvousBackend(CountedTCPStore(store, tally), "light")  # type: ignore[arg-type]
            timeout = RendezvousTimeout(join=timedelta(seconds=2 * TORCH_GIVES_UP_S))
            handler = DynamicRendezvousHandler.from_backend("light", store, backend, nodes, nodes, "127.0.0.1", timeout)
            kept.append((store, handler))
            world = handler.next_rendezvous()
            joined.append(time.monotonic() if world.world_size == nodes else f"a world of {world.world_size}")
        except Exception as error:
            joined.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=join, daemon=True) for _ in range(handlers)]
    try:
        pipe.send(None)
        pipe.recv()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong = [one for one in joined if isinstance(one, str)]
        pipe.send(wrong[0] if wrong else (max(at for at in joined if not isinstance(at, str)), tally.counts()))
        pipe.recv()  # until the others are through as well
    finally:
        os._exit(0)


# --- on the virtual clock


def simulated(nodes: int) -> Record:
    """Real engines and codecs. Who asks for a change of the record wants a swap; `writes` are those that were done."""
    from simulation.crowd import Cost, Crowd

    def told(cost: Cost, then: Cost) -> dict[str, object]:
        return {
            "operations": cost.asked + then.asked,
            "swaps": cost.asked + then.asked,
            "writes": cost.writes + then.writes,
            "messages": cost.messages + then.messages,
            "observations": cost.observations + then.observations,
            "observations_of_one": max(cost.most, then.most),
            "virtual_seconds": cost.seconds,
        }

    crowd = Crowd(nodes)
    record: Record = {"start": told(crowd.start(), crowd.settle())}
    record["loss"] = told(crowd.lose(crowd.follower()), crowd.settle())
    record["leave"] = told(crowd.dismiss(crowd.follower()), crowd.settle())
    record["leader_loss"] = told(crowd.lose(crowd.leader()), crowd.settle())
    return record


# --- a name service that answers


def _names_known() -> list[str]:
    """A command that runs another one in which this machine knows its own IPv6-mapped loopback address by name.

    Every connection to a TCPStore asks for that name. Few hosts files have it, and if the name service is slow
    to say so, its time would be all that is measured, of torch's handlers as of ours.
    """
    known = (
        "grep -q ::ffff:127.0.0.1 /etc/hosts || { f=$(mktemp); "
        "{ cat /etc/hosts; echo ::ffff:127.0.0.1 localhost; } > $f && mount --bind $f /etc/hosts && rm $f; }"
    )
    command = ["unshare", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None:
        return []
    if subprocess.run([*command, known], capture_output=True, check=False).returncode:
        return []
    return [*command, f'{known}; exec "$@"', "sh"]


SYSTEMS: dict[str, Callable[[int], Record]] = {"c10d": c10d, "etcd": etcd, "torch": torch, "simulated": simulated}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    logging.getLogger("softrun").setLevel(logging.ERROR)
    print(json.dumps(SYSTEMS[sys.argv[1]](int(sys.argv[2]))), flush=True)
    os._exit(0)
