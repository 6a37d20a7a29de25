"""Getting out of collectives of every kind of group, with real gloo ranks of which one is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, ranks
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

from fake_agent import DEADLINE_S, wait_until
from local_cluster import free_port
from softrun.runtime import abort, noted
from softrun.runtime.abort import AbortTransformerEngine, abort_all, abort_groups, add_abort, note_groups
from softrun.runtime.groups import leave_groups
from softrun.runtime.sockets import open_sockets

STOPPED = 3  # of four

Sit = Callable[[], Any]


def in_the_default_group(me: Me) -> Sit:
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def in_a_group_of_the_user(me: Me) -> Sit:
    """Built before anything was noted, as it is before softrun is imported."""
    me.build()
    dist.new_group([0, 1, 2])
    note_groups()
    return lambda: dist.barrier()


def in_sub_groups(me: Me) -> Sit:
    """The default group is well: each shares a group of two with the stopped rank."""
    me.build()
    groups = [dist.new_group([rank, STOPPED]) for rank in range(STOPPED)]
    mine = groups if me.rank == STOPPED else [groups[me.rank]]
    return lambda: [dist.all_reduce(torch.ones(1), group=group) for group in mine]


def in_a_mesh(me: Me) -> Sit:
    """Rank 0 shares neither row nor column with the stopped one: it waits for one that waits for it."""
    me.build()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    return lambda: [dist.all_reduce(torch.ones(1), group=mesh.get_group(name)) for name in ("rows", "columns")]


def in_the_wait_for_a_handle(me: Me) -> Sit:
    me.build()

    def sit() -> None:
        handles = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        for handle in handles:
            assert handle is not None
            handle.wait()

    return sit


def in_ddp(me: Me) -> Sit:
    me.build()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def in_fsdp2(me: Me) -> Sit:
    from torch.distributed.fsdp import fully_shard

    me.build()
    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (me.size,)))
    return lambda: model(torch.ones(2, 8)).sum().backward()


def in_a_group_that_connects_lazily(me: Me) -> Sit:
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def where_descriptors_are_few(me: Me) -> Sit:
    me.build()
    leave_groups(in_trouble=False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 12,) * 2)
    me.build("again")
    assert not any(group.connections.held for group in noted._noted if group.connections is not None)
    return lambda: dist.all_reduce(torch.ones(1))


def under_debug(me: Me) -> Sit:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    me.build()
    return lambda: dist.all_reduce(torch.ones(1))


def get_stuck(prepare: Callable[[Me], Sit], me: Me, *, note: bool, rehearse: bool) -> None:
    if note:
        note_groups()
    sit = prepare(me)
    if rehearse:
        sit()
    watcher = me.abort_when_told()
    me.say("ready")
    if me.rank == STOPPED:
        threading.Event().wait()
    try:
        sit()
    except RuntimeError:
        me.say(time.monotonic() - me.aborted_at if me.aborted_at else None)
    else:
        raise AssertionError("nobody was missed")
    watcher.join(DEADLINE_S)
    leave_groups(in_trouble=True)
    me.build("second", size=me.size - 1)
    total = torch.ones(1)
    dist.all_reduce(total)
    me.say(total.item())
    leave_groups(in_trouble=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    "prepare",
    [
        in_the_default_group,
        in_a_group_of_the_user,
        in_sub_groups,
        in_a_mesh,
        in_the_wait_for_a_handle,
        in_ddp,
        in_fsdp2,
        in_a_group_that_connects_lazily,
        where_descriptors_are_few,
        under_debug,
    ],
)
@pytest.mark.parametrize("rehearse", [True, False], ids=["used before", "at once"])
def test_whoever_sits_in_a_collective_is_freed(prepare: Callable[[Me], Sit], rehearse: bool) -> None:
    note = prepare is not in_a_group_of_the_user
    with ranks(lambda me: get_stuck(prepare, me, note=note, rehearse=rehearse), size=STOPPED + 1) as all_of_them:
        for rank in all_of_them:
            assert rank.says() == "ready"
        all_of_them[STOPPED].stop()
        others = all_of_them[:STOPPED]
        for rank in others:
            rank.sits()
        assert all(rank.says_nothing(0.1) for rank in others)
        for rank in others:
            rank.tell("abort")
        freed_s = [rank.says() for rank in others]
        if prepare is in_a_group_that_connects_lazily:  # there it is noticed when peers leave
            freed_s = [seconds or 0.0 for seconds in freed_s]
        print(prepare.__name__, "freed after", " ".join(f"{1000 * seconds:.1f} ms" for seconds in freed_s))
        assert max(freed_s) < 5
        assert [rank.says() for rank in others] == [STOPPED] * STOPPED
        for rank in others:
            rank.ends()


@contextlib.contextmanager
def bystander() -> Iterator[None]:
    """Connections of this process's own: one from before, and others that a thread opens all the time."""
    ended = threading.Event()
    broken: list[BaseException] = []

    def open_and_use(listener: socket.socket) -> None:
        opened: list[socket.socket] = []
        try:
            while not ended.wait(0.002) and len(opened) < 200:
                ours = socket.create_connection(listener.getsockname(), timeout=DEADLINE_S)
                theirs, _ = listener.accept()
                opened += [ours, theirs]
            for ours, theirs in zip(opened[::2], opened[1::2], strict=True):
                use(ours, theirs)
        except BaseException as error:
            broken.append(error)
        finally:
            for one in opened:
                one.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        local = socket.socketpair()
        thread = threading.Thread(target=open_and_use, args=(listener,), daemon=True)
        thread.start()
        with theirs, local[0], local[1]:
            yield
            ended.set()
            thread.join(DEADLINE_S)
            use(ours, theirs)
            use(*local)
    assert not broken, broken


def use(ours: socket.socket, theirs: socket.socket) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        other.settimeout(DEADLINE_S)
        one.sendall(b"x")
        assert other.recv(1) == b"x"


def a_peer_that_never_comes(me: Me) -> Sit:
    return lambda: me.build(size=2)


def a_peer_that_never_calls(me: Me) -> Sit:
    """It was stopped after it had published its address, which is greater than this rank's: that one waits."""
    publish(me, "127.0.0.2", free_port())
    return lambda: me.build(size=2)


def a_peer_that_never_calls_while_the_store_is_stopped(me: Me) -> Sit:
    """So this rank cannot learn what it has published itself."""
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        time.sleep(2 * DEADLINE_S)
        os._exit(0)
    sleepers.append(keeper)
    there = Me(0, 2, int(os.read(reading, 8)), me.pipe)
    publish(there, "127.0.0.2", free_port())
    watched = there.store("first")

    def stop() -> None:
        wait_until(lambda: watched.check(["0//cpu//0/0"]), "what gloo publishes")
        os.kill(keeper, signal.SIGSTOP)

    def sit() -> None:
        threading.Thread(target=stop, daemon=True).start()
        there.build()

    return sit


def a_peer_that_does_not_answer(me: Me) -> Sit:
    """Its host was lost after it had published its address, which is smaller than this rank's: that one calls."""
    for port in range(0x4000, 0x7F00, 0x100):  # gloo compares the bytes in this machine's order
        with contextlib.suppress(OSError):
            listener = socket.create_server(("127.0.0.1", port), backlog=0)
            break
    kept_open.append(listener)
    with contextlib.suppress(TimeoutError):
        while True:
            waiting = socket.socket()
            kept_open.append(waiting)
            waiting.settimeout(0.2)
            waiting.connect(listener.getsockname())
    publish(me, *listener.getsockname())
    return lambda: me.build(size=2)


def a_store_that_waits_for_peers(me: Me) -> Sit:
    method = f"tcp://127.0.0.1:{free_port()}"
    return lambda: dist.init_process_group("gloo", init_method=method, rank=0, world_size=2)


def a_sub_group_that_a_peer_never_builds(me: Me) -> Sit:
    build_with_a_sleeper(me)
    return lambda: dist.new_group([0, 1])


def a_split_that_a_peer_never_makes(me: Me) -> Sit:
    build_with_a_sleeper(me)
    group = distributed_c10d._get_default_group()
    return lambda: group.split_group([0, 1], group_name="split", group_desc="split")


kept_open: list[socket.socket] = []
sleepers: list[int] = []


def publish(me: Me, host: str, port: int) -> None:
    """What rank 1 of two would, as gloo reads it."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
    record = struct.pack("=Q4sQ136s2q", 4, b"host", 136, address, 0, 1)
    me.store("first").set("0//cpu//0/1", record)


def build_with_a_sleeper(me: Me) -> None:
    """The other rank is a fork of this one, which sleeps when the default group is built."""
    sleeper = os.fork()
    if sleeper == 0:
        me.build(rank=1, size=2)
        time.sleep(2 * DEADLINE_S)
        os._exit(0)
    sleepers.append(sleeper)
    me.build(rank=0, size=2)


def build_in_vain(prepare: Callable[[Me], Sit], me: Me) -> None:
    note_groups()
    with bystander():
        sit = prepare(me)
        watcher = me.abort_when_told()
        me.say("ready")
        try:
            sit()
            dist.barrier()  # where it was built after all, it is of no use
        except RuntimeError:
            pass
        else:
            raise AssertionError("it is of use")
        me.say(time.monotonic() - me.aborted_at)
        watcher.join(DEADLINE_S)
        leave_groups(in_trouble=True)
        me.build("second", size=1)
        dist.all_reduce(torch.ones(1))
    for sleeper in sleepers:
        os.kill(sleeper, signal.SIGKILL)
    me.say("used")


@pytest.mark.processes
@pytest.mark.parametrize(
    "prepare",
    [
        a_peer_that_never_comes,
        a_peer_that_never_calls,
        a_peer_that_never_calls_while_the_store_is_stopped,
        a_peer_that_does_not_answer,
        a_store_that_waits_for_peers,
        a_sub_group_that_a_peer_never_builds,
        a_split_that_a_peer_never_makes,
    ],
)
def test_whoever_builds_a_group_is_freed_and_no_bystander_is_harmed(prepare: Callable[[Me], Sit]) -> None:
    with ranks(lambda me: build_in_vain(prepare, me), size=1) as (rank,):
        assert rank.says() == "ready"
        rank.sits()
        assert rank.says_nothing(0.1)
        rank.tell("abort")
        freed_s = rank.says()
        print(prepare.__name__, f"freed after {1000 * freed_s:.1f} ms")
        assert freed_s < 5
        assert rank.says() == "used"
        rank.ends()


def run(body: Callable[[Me], Any], size: int = 1) -> list[Any]:
    """What the ranks say when they are done."""

    def and_say(me: Me) -> None:
        me.say(body(me))

    with ranks(and_say, size) as started:
        said = [rank.says() for rank in started]
        for rank in started:
            rank.ends()
    return said


BEFORE_SOFTRUN = """
import sys, threading, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1), group=group)
if sys.argv[2] == "1":
    print("sleeps", flush=True)
    threading.Event().wait(600)
assert "softrun" not in sys.modules
from softrun.runtime.abort import abort_all
threading.Timer(0.2, abort_all).start()
try:
    dist.all_reduce(torch.ones(1), group=group)
except RuntimeError:
    print("freed")
"""


@pytest.mark.processes
def test_groups_that_were_built_before_softrun_was_imported(tmp_path: Path) -> None:
    port = str(free_port())
    command = [sys.executable, "-c", BEFORE_SOFTRUN, port]
    # Rank 1 hosts nothing: the store is rank 0's and still answers when it is asked.
    sleeper = subprocess.Popen([*command, "1"], stdout=subprocess.DEVNULL)
    try:
        freed = subprocess.run([*command, "0"], stdout=subprocess.PIPE, timeout=DEADLINE_S, text=True, check=True)
    finally:
        sleeper.kill()
        sleeper.wait(DEADLINE_S)
    assert freed.stdout == "freed\n"


def leave_and_stay(me: Me) -> None:
    note_groups()
    me.build()
    pair = dist.new_group([2, 3])
    dist.barrier()
    me.say("ready")
    if me.rank == 0:
        me.hear()
        leave_groups(in_trouble=True)
    elif me.rank == 1:
        watcher = me.abort_when_told()
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1_000_000))
        assert me.aborted_at, "it was freed although nobody had told it"
        watcher.join(DEADLINE_S)
    else:
        me.hear()
        sent = dist.isend(torch.ones(1_000_000), dst=0)  # nobody takes it
        for _ in range(200):
            dist.all_reduce(torch.ones(1000), group=pair)
        assert sent is not None
        assert not sent.is_completed()
    me.say("done")
    me.hear()


@pytest.mark.processes
def test_a_rank_that_is_not_stuck_is_not_harmed() -> None:
    with ranks(leave_and_stay, 4) as (leaves, sits, goes_on, goes_on_too):
        for rank in (leaves, sits, goes_on, goes_on_too):
            assert rank.says() == "ready"
        sits.sits()
        leaves.tell("leave")
        assert leaves.says() == "done"
        for rank in (goes_on, goes_on_too):
            rank.tell("go on")
        for rank in (goes_on, goes_on_too):
            assert rank.says() == "done"
        assert sits.says_nothing(0.3)
        sits.tell("abort")
        assert sits.says() == "done"


STRESS_S = 5.0


def be_stressed(me: Me) -> tuple[int, int]:
    """Two ranks build, use and leave groups while another thread of each aborts all the time."""
    note_groups()
    ended = threading.Event()

    def abort_often() -> None:
        pauses = random.Random(me.rank)
        while not ended.wait(pauses.choice([0.0, 0.001, 0.1]) * pauses.random()):
            abort_all()

    aborting = threading.Thread(target=abort_often, daemon=True)
    built = failed = 0
    end = time.monotonic() + STRESS_S
    with bystander():
        aborting.start()
        while time.monotonic() < end:
            try:
                # The other rank may be in another world already: then this one waits until it is aborted.
                me.build(f"world {int(time.monotonic() * 10)}")
                dist.all_reduce(torch.ones(10))
                dist.all_reduce(torch.ones(10), group=dist.new_group([0, 1]))
                built += 1
            except (RuntimeError, ValueError):
                failed += 1
            leave_groups(in_trouble=bool(failed % 2))
            distributed_c10d._world.group_count = 0
        ended.set()
        aborting.join(DEADLINE_S)
    return built, failed


@pytest.mark.processes
def test_aborting_all_the_time_while_groups_are_built_used_and_left() -> None:
    for built, failed in run(be_stressed, 2):
        print(f"{built} times built and used, {failed} times not")
        assert built > 0
        assert failed > 10


REBUILDS = 200


def rebuild(me: Me) -> list[dict[str, int]]:
    note_groups()
    seen = []
    for attempt in range(REBUILDS):
        in_trouble = bool(attempt % 2)
        me.build(f"world {attempt}")
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(10), group=group)
        dist.all_reduce(torch.ones(10))
        leave_groups(in_trouble=in_trouble)
        del group
        if not in_trouble:
            seen.append(figures())
    return seen


def figures() -> dict[str, int]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "sockets": len(open_sockets()),
        "threads": int(status["Threads"]),
        "noted": len(noted._noted) + len(noted._left) + len(noted._builds),
        "kB": int(status["VmRSS"].split()[0]),
    }


@pytest.mark.processes
def test_nothing_leaks_when_groups_are_built_again_and_again() -> None:
    for seen in run(rebuild, 2):
        warm, last = seen[len(seen) // 4], seen[-1]
        print("of", REBUILDS, "groups, after a quarter", warm, "at the end", last)
        for what in ("descriptors", "sockets", "threads", "noted"):
            half = len(seen) // 2
            of_halves = [max(figure[what] for figure in part) for part in (seen[:half], seen[half:])]
            assert of_halves[1] <= of_halves[0] + 2, what
        assert last["kB"] - warm["kB"] < 4096


def fork_with_a_group(me: Me) -> None:
    note_groups()
    me.build()
    dist.all_reduce(torch.ones(1))
    child = os.fork()
    if child == 0:
        abort_all()
        held = [group for group in noted._noted if group.connections is not None and group.connections.held]
        os._exit(len(abort_groups()) + len(noted.registered_groups()) + len(held))
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    dist.barrier()


@pytest.mark.processes
def test_a_forked_child_does_not_cut_the_groups_of_its_parent() -> None:
    run(fork_with_a_group, 2)


class ToyGroup(dist.ProcessGroup):
    """A third party's process group, which is its own backend."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def abort_toys(me: Me) -> None:
    toys: list[ToyGroup] = []

    def create(store: Any, rank: int, size: int, timeout: Any) -> ToyGroup:
        toys.append(ToyGroup(rank, size))
        return toys[-1]

    note_groups()
    dist.Backend.register_backend("toy", create, devices=["cpu"])
    dist.init_process_group("toy", store=me.store("toys"), rank=0, world_size=1)
    dist.new_group([0])
    for thread in abort_groups():
        thread.join(DEADLINE_S)
    assert [toy.aborted for toy in toys] == [True, True]
    assert dist.is_initialized(), "torch's registries are left alone"
    assert list(noted.registered_groups()) == toys


@pytest.mark.processes
def test_a_group_of_a_third_party_is_aborted_by_its_own_abort() -> None:
    run(abort_toys)


def test_other_backends_are_aborted_by_their_own_abort_all_at_a_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As NCCL's, which cannot be had here: what a group of torch's has for each device, once."""
    all_in_abort = threading.Barrier(2)

    class Backend:
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1
            all_in_abort.wait(DEADLINE_S)

    class Broken:
        def abort(self) -> None:
            raise LookupError("a bug of the backend")

    class Checked:
        def __init__(self, backend: Backend) -> None:
            self.wrapped_pg = backend

    class Group:
        def __init__(self, **backends: Any) -> None:
            self._device_types = [torch.device(name) for name in backends]
            self._backends = backends

        def _get_backend(self, device: torch.device) -> Any:
            return self._backends[device.type]

    one, other = Backend(), Backend()
    groups = [Group(cpu=one, cuda=one), Group(cuda=Checked(other)), Group(cuda=Broken())]
    monkeypatch.setattr(distributed_c10d, "ProcessGroup", Group)
    monkeypatch.setattr(abort, "registered_groups", lambda: dict.fromkeys(groups))
    with caplog.at_level(logging.ERROR, "softrun.runtime"):
        for thread in abort_groups():
            thread.join(DEADLINE_S)
    assert [one.aborted, other.aborted] == [1, 1]
    assert not all_in_abort.broken
    assert "a bug of the backend" in caplog.text


def test_what_a_user_added_is_called_last_first_and_failures_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    called: list[tuple[str, Any]] = []

    def fails(state: Any) -> None:
        called.append(("fails", state))
        raise LookupError("a bug of the user")

    def works(state: Any) -> None:
        called.append(("works", state))

    removals = [add_abort(works), add_abort(fails), add_abort(works)]
    with caplog.at_level(logging.ERROR, "softrun.runtime"):
        abort_all("state")
    assert called == [("works", "state"), ("fails", "state"), ("works", "state")]
    assert "a bug of the user" in caplog.text
    assert "Traceback" in caplog.text
    for remove in removals:
        remove()
        remove()
    abort_all()
    assert len(called) == 3


def test_the_buffers_of_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    AbortTransformerEngine()()
    destroyed: list[int] = []
    module = types.ModuleType("transformer_engine.pytorch.module.base")
    module.__dict__["destroy_ub"] = lambda: destroyed.append(1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert AbortTransformerEngine()("state") == "state"
    assert destroyed == [1]


def test_nothing_is_imported() -> None:
    code = "import sys; from softrun.runtime import abort, groups; abort.note_groups(); abort.abort_all()\n"
    code += "groups.leave_groups(in_trouble=True); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)
