"""What a newcomer's healing costs its survivors: `State.sync`, beside what else sends a state, and beside a raw copy.

`--nobody`: what a sync takes in a world in which nobody lacks anything.

All ranks are processes of this machine, in a gloo group; the last one lacks the state. Told is the pause of the slowest
rank, and the rate. In each turn all ways are measured one after the other, and the raw copy, a socket between two
processes that sends and receives as fast as it can, is made anew, so that all have the same machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import nn

from local_cluster import end_in_order_on_sigterm
from softrun.runtime.state import plan
from softrun.runtime.state.state import State

GB = 1 << 30
PAGE = 4096
BLOCK = 4096  # the width of the larger tensors


def parameters(size: int) -> nn.ParameterList:
    """About as many bytes, in the sizes that the layers of a transformer have."""
    found = nn.ParameterList()
    while size > 0:
        for shape in ((BLOCK, BLOCK // 4), (BLOCK // 4,), (BLOCK // 4, BLOCK // 4), (BLOCK,)):
            found.append(nn.Parameter(torch.ones(shape), requires_grad=False))
            size -= found[-1].nbytes
    return found


class Sync:
    """State.sync, from so many of the ranks that have the state."""

    def __init__(self, sources: int) -> None:
        self._sources = sources

    def __call__(self, model: nn.Module, rank: int, size: int) -> None:
        plan.MOST_SOURCES = self._sources
        state = State(model=model)
        if rank < size - 1:
            state.commit()
        state.sync()


def broadcast_object_list(model: nn.Module, rank: int, size: int) -> None:
    """What a trainer does without a State: rank 0 pickles everything for everybody."""
    state = [model.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(state, src=0)
    if rank == size - 1:
        model.load_state_dict(state[0])


def pg_transport(model: nn.Module, rank: int, size: int) -> None:
    """torchft's transport, as torch has it, into the tensors that are there."""
    from torch.distributed.checkpoint._pg_transport import PGTransport

    state = model.state_dict()
    transport = PGTransport(dist.group.WORLD, timedelta(minutes=5), torch.device("cpu"), state_dict=lambda: state)
    if rank == 0:
        transport.send_checkpoint([size - 1], state)
    elif rank == size - 1:
        model.load_state_dict(transport.recv_checkpoint(0))


def raw(size: int) -> float:
    """Seconds in which a process sends so many bytes to another."""
    listener = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if pid == 0:
        content = touched(size)
        with socket.create_connection(listener.getsockname()) as sender:
            sender.sendall(b"r")
            sender.recv(1)
            sender.sendall(content)
            sender.recv(1)
        os._exit(0)
    to = touched(size)  # after the fork: a page that two processes share is copied when it is written to
    connection, _ = listener.accept()
    with listener, connection:
        connection.recv(1)
        began = time.perf_counter()
        connection.sendall(b"g")
        count = 0
        while count < size:
            count += connection.recv_into(to[count:])
        seconds = time.perf_counter() - began
        connection.sendall(b"e")
    os.waitpid(pid, 0)
    return seconds


def touched(size: int) -> memoryview:
    """So much memory, which the kernel has given already."""
    found = memoryview(bytearray(size))
    for page in range(0, size, PAGE):
        found[page] = 1
    return found


Way = Callable[[nn.Module, int, int], None]


def ways(size: int) -> dict[str, Way]:
    return {
        f"State.sync, {size - 1} sources": Sync(size - 1),
        "State.sync, 2 sources": Sync(2),
        "State.sync, 1 source": Sync(1),
        "torch's PGTransport": pg_transport,
        "broadcast_object_list": broadcast_object_list,
    }


def work(rank: int, size: int, port: int, model: nn.Module, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    if rank == size - 1:
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter)
    known = ways(size)
    while True:
        name = pipe.recv()
        if name is None:
            break
        if rank == size - 1:
            for parameter in model.parameters():
                parameter.zero_()
        dist.barrier()
        began = time.perf_counter()
        known[name](model, rank, size)
        took = time.perf_counter() - began
        if rank == size - 1 and not all(bool((parameter == 1).all()) for parameter in model.parameters()):
            raise AssertionError(f"{name} did not bring everything")
        pipe.send(took)


def measure(size: int, total: int, turns: int, left_out: set[str]) -> None:
    model = parameters(total)
    total = sum(parameter.nbytes for parameter in model.parameters())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(size):
        here, there = context.Pipe()
        pipes.append(here)
        ranks.append(context.Process(target=work, args=(rank, size, port, model, there), daemon=True))
        ranks[-1].start()
    found: dict[str, list[float]] = {}
    for _ in range(turns):
        found.setdefault("a raw copy", []).append(raw(total))
        for name in ways(size):
            if name in left_out:
                continue
            for pipe in pipes:
                pipe.send(name)
            found.setdefault(name, []).append(max(pipe.recv() for pipe in pipes))
    for pipe in pipes:
        pipe.send(None)
    for process in ranks:
        process.join()
    base = statistics.median(found["a raw copy"])
    print(f"{total / GB:.2f} GiB to one newcomer of {size}, median of {turns} turns")
    for name, seconds in found.items():
        middle = statistics.median(seconds)
        rate, part = total / middle / 1e9, base / middle
        print(f"  {name:26} {middle:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})  {rate:5.2f} GB/s  {part:4.0%}")


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)) for _ in range(count)))


def change(rank: int, size: int, port: int, count: int, turns: int, pipe: Connection) -> None:
    """Build a group again and again; tell what passes from then to the end of a first collective, with a sync between
    and without, in turn, and how long the sync itself kept a core busy."""
    torch.set_num_threads(1)
    model = layers(count)
    state = State(model=model, optimizer=torch.optim.Adam(model.parameters()), step=0)
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0)
    with_sync, without, busy = [], [], []
    for turn in range(2 * turns):
        dist.init_process_group("gloo", store=dist.PrefixStore(str(turn), store), rank=rank, world_size=size)
        dist.barrier()
        began = time.perf_counter()
        if turn % 2:
            busy_before = time.thread_time()
            state.sync()
            busy.append(time.thread_time() - busy_before)
        dist.all_reduce(torch.ones(1))
        (with_sync if turn % 2 else without).append(time.perf_counter() - began)
        if turn % 10 == 1:
            model(torch.ones(2, 16)).sum().backward()
            state.optimizer.step()
            state.commit()
            state.optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()  # a step that the next change interrupts
        dist.barrier()
        dist.destroy_process_group()
    pipe.send([with_sync, without, busy])
    pipe.recv()  # the first one has the store


def measure_nobody(size: int, count: int, turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []
    for rank in range(size):
        here, there = context.Pipe()
        pipes.append(here)
        ranks.append(context.Process(target=change, args=(rank, size, port, count, turns, there), daemon=True))
        ranks[-1].start()
    told = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(None)
    for process in ranks:
        process.join()
    parameters, buffers = len(list(layers(count).parameters())), len(list(layers(count).buffers()))
    print(f"nobody of {size} ranks lacks anything, {turns} worlds with a sync and without; Adam and a model of")
    print(f"{parameters} parameters and {buffers} buffers, from the group to the end of a first collective")
    for name, of in zip(("with a sync", "without", "the sync's time on a core"), zip(*told, strict=True), strict=True):
        times = sorted(max(ranks) * 1e3 for ranks in list(zip(*of, strict=True))[1:])
        low, middle, high = (times[int(len(times) * part)] for part in (0.1, 0.5, 0.99))
        print(f"  {name:26} {middle:6.2f} ms, a tenth below {low:.2f}, p99 {high:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--nobody", type=int, metavar="WORLDS", help="measure worlds in which nobody lacks anything")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    if args.nobody is not None:
        for count in (1, 53):
            measure_nobody(args.ranks, count, args.nobody)
        return 0
    for gigabytes in args.gigabytes:
        # It holds the state five times.
        left_out = {"broadcast_object_list"} if gigabytes > 2 else set[str]()
        measure(args.ranks, int(gigabytes * GB), args.turns, left_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
