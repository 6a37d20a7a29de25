"""The worker's API in real processes, because its state is the process's."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fake_agent import FakeAgent, Worker, wait_until
from local_cluster import PATIENCE_S
from softrun.runtime.events import ProgressLimits, WorkerStatus, WorldChangeEvent

# Stands for torch: what a test needs of it is whether there is a default process group.
FAKE_TORCH = """
import sys, types
group = False
sys.modules["torch.distributed"] = types.SimpleNamespace(is_initialized=lambda: group)
"""

HAND_OUT_TWICE = """
from softrun.runtime import get_worker_info
info = get_worker_info()
print("first", info.world_size)
{between}
info = get_worker_info()
print("second", info.world_size)
"""


def status_becomes(worker: Worker, expected: WorkerStatus) -> None:
    wait_until(lambda: worker.status == expected, f"{expected}")


def test_a_world_is_handed_out_with_its_environment(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        import os, pickle
        from softrun.runtime import WorkerInfo, get_worker_event, get_worker_info
        info, event = get_worker_info(), get_worker_event()
        assert info == event.worker_info and event.worker_info == info and hash(info) == hash(event.worker_info)
        assert isinstance(info, WorkerInfo) and repr(info) == repr(event.worker_info)
        assert type(pickle.loads(pickle.dumps(info))) is WorkerInfo and pickle.loads(pickle.dumps(info)) == info
        assert info.model_dump_json() == event.worker_info.model_dump_json()
        assert get_worker_info() is info
        assert os.environ["WORLD_SIZE"] == "3" and os.environ["MASTER_PORT"] == str(info.master_port)
        print("rank", os.environ["RANK"])
        """
    )
    agent.form([agent.start("pass"), worker, agent.start("pass")])
    worker.says("rank 1")
    assert worker.ends() == 0
    assert worker.status == WorkerStatus(ready=True, limits=ProgressLimits(), applied=1)


def test_it_waits_while_paused_and_lets_signal_handlers_run(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        import signal
        signal.signal(signal.SIGUSR1, lambda *_: print("signalled"))
        signal.signal(signal.SIGTERM, lambda *_: exit(7))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        from softrun.runtime import get_worker_info
        print("rank", get_worker_info().rank)
        while True:
            signal.sigwait({signal.SIGUSR2})
            print("in round", get_worker_info().rank, get_worker_info().master_port)
        """
    )
    agent.form([worker])
    worker.says("rank 0")
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    worker.signal(signal.SIGUSR2)
    status_becomes(worker, WorkerStatus(ready=True, limits=ProgressLimits(), applied=2))
    worker.signal(signal.SIGUSR1)
    worker.says("signalled")
    assert "in round" not in worker.output
    agent.form([worker], WorldChangeEvent.SCALE_DOWN)
    worker.says(f"in round 0 {worker.info.master_port}")
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    worker.signal(signal.SIGUSR2)
    status_becomes(worker, WorkerStatus(ready=True, limits=ProgressLimits(), applied=4))
    worker.signal(signal.SIGTERM)
    assert worker.ends() == 7


def test_without_torch_a_healthy_world_is_handed_out_at_once_and_always(agent: FakeAgent) -> None:
    worker = agent.start_without_torch(
        """
        from softrun.runtime import get_worker_info
        for attempt in range(1000):
            try:
                raise ValueError("a batch that could not be read")
            except ValueError:
                assert get_worker_info().rank == 0
        """
    )
    agent.form([worker])
    assert worker.ends() == 0


USES = {
    "its parameters were taken": "info.get_pg_parameters()",
    "a group was seen in it": "group = True; get_worker_info(); group = False",
    "an error is being handled": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    get_worker_info()",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_broken_world_is_reported_and_not_handed_out_again(agent: FakeAgent, use: str) -> None:
    worker = agent.start(FAKE_TORCH + HAND_OUT_TWICE.format(between=use))
    agent.form([worker])
    worker.says("first 1")
    status_becomes(worker, WorkerStatus(ready=True, limits=ProgressLimits(), applied=1, broken_round=1))
    agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    status_becomes(worker, WorkerStatus(ready=True, limits=ProgressLimits(), applied=2))
    assert "second" not in worker.output
    agent.form([worker, agent.start("pass")])
    worker.says("second 2")
    assert worker.ends() == 0
    assert worker.status == WorkerStatus(ready=True, limits=ProgressLimits(), applied=3)


def test_a_world_that_ends_while_it_is_entered_is_not_handed_out(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        from threading import Event
        from softrun.runtime import get_worker_info, on_world_change
        from softrun.runtime.channel.inbox import ChannelInbox

        tell, ended = ChannelInbox.tell, Event()

        def tell_slowly(inbox, status):
            tell(inbox, status)
            if status.applied == 1:
                print("enters the first")
                assert ended.wait(60)

        ChannelInbox.tell = tell_slowly
        on_world_change(lambda event: ended.set())
        print("handed out", get_worker_info().world_size)
        """
    )
    agent.form([worker])
    worker.says("enters the first")
    agent.form([worker, agent.start("pass")])
    worker.says("handed out 2")
    assert worker.ends() == 0


def test_a_world_in_which_a_group_could_not_be_built_is_broken(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        from datetime import timedelta
        import torch.distributed as dist
        from softrun.runtime import get_worker_info
        get_worker_info()
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=1))
        except RuntimeError:
            print("could not be built")
        print("next", get_worker_info().world_size)
        """
    )
    agent.form([worker, agent.start("pass")])
    worker.says("could not be built")
    status_becomes(worker, WorkerStatus(ready=True, limits=ProgressLimits(), applied=1, broken_round=1))
    agent.form([worker])
    worker.says("next 1")
    assert worker.ends() == 0


def test_while_there_is_a_group_the_world_is_not_broken(agent: FakeAgent) -> None:
    worker = agent.start(
        FAKE_TORCH
        + """
from softrun.runtime import get_worker_event, get_worker_info
get_worker_info().get_pg_parameters()
group = True
print("same", get_worker_info().world_size)
while get_worker_event().round == 1:
    pass
print("new", get_worker_info().world_size)
"""
    )
    agent.form([worker])
    worker.says("same 1")
    agent.form([worker, agent.start("pass")])
    worker.says("new 2")
    assert worker.ends() == 0


def test_changes_are_called_back_in_order_and_once(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        import threading
        from softrun.runtime import get_worker_event, on_world_change
        assert get_worker_event().round == 1
        seen, unwanted, done = [], [], threading.Event()
        def see(event):
            assert threading.current_thread() is not threading.main_thread()
            seen.append(event.sequence)
            if event.sequence == 15:
                done.set()
            raise ValueError("a bug of the callback")
        stop = on_world_change(unwanted.append)
        on_world_change(see)
        stop()
        print("ready")
        while get_worker_event().sequence < 15:   # the main thread looks as well
            pass
        assert done.wait(60)
        assert seen == list(range(2, 16)), seen
        assert not unwanted
        print("done")
        """
    )
    agent.form([worker])
    worker.says("ready")
    for _ in range(7):
        agent.pause([worker], WorldChangeEvent.SCALE_UP)
        agent.pause([worker], WorldChangeEvent.SCALE_DOWN)
    worker.says("done")
    assert worker.ends() == 0
    assert "a bug of the callback" in worker.output


def test_a_damaged_event_does_not_end_the_training(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        from softrun.runtime import get_worker_event
        print("round", get_worker_event().round)
        while get_worker_event().sequence < 3: pass
        print("round", get_worker_event().round)
        """
    )
    agent.form([worker])
    worker.says("round 1")
    (worker.writer.path / "event-0000000002.json").write_text("garbage")
    worker.writer._written = 2
    agent.form([worker])
    worker.says("round 2")
    assert worker.ends() == 0
    assert "skipped an event that cannot be read" in worker.output


def test_a_forked_child_reads_and_leaves_the_status_to_the_worker(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        import os, threading
        from softrun.runtime import get_worker_event, get_worker_info, on_world_change
        from softrun.runtime import worker
        on_world_change(lambda event: None)
        get_worker_info()
        with worker._worker().inbox._arrived, worker._lock:       # as another thread may hold them during a fork
            child = os.fork()
        if child == 0:
            assert get_worker_event().round == 1
            called = threading.Event()
            on_world_change(lambda event: called.set())
            print("watching")
            assert called.wait(60)
            assert get_worker_info().world_size == 2
            os._exit(0)
        print("child", os.waitpid(child, 0)[1])
        """
    )
    agent.form([worker])
    worker.says("watching")
    agent.form([worker, agent.start("pass")])
    worker.says("child 0")
    assert worker.ends() == 0
    assert worker.status == WorkerStatus(ready=True, limits=ProgressLimits(), applied=1)


def run_alone(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_under_torchrun_the_environment_is_the_world() -> None:
    script = (
        "from softrun.runtime import *; event = get_worker_event(); on_world_change(print)();"
        "assert get_worker_info() == event.worker_info; print(event.worker_state.name, event.round, get_worker_info())"
    )
    done = run_alone(script, **TORCHRUN)
    assert done.stdout.startswith("HEALTHY 1 local_rank=1 role_rank=1 rank=1 local_world_size=2"), done.stderr


def test_under_torchrun_a_broken_world_is_an_error() -> None:
    done = run_alone(
        "from softrun.runtime import *; get_worker_info().get_pg_parameters(); get_worker_info()", **TORCHRUN
    )
    assert "RuntimeError: world 1 is broken and nobody can form a new one" in done.stderr


def test_without_a_launcher_one_line_says_how_to_start() -> None:
    for environment, words in (
        ({}, "start it with `python -m softrun [options] script.py`"),
        ({**TORCHRUN, "RANK": "one"}, "rank"),
        ({"SOFTRUN_CHANNEL": "/absent"}, "channel directory /absent cannot be opened as a directory"),
    ):
        done = run_alone("from softrun.runtime import *; get_worker_info()", **environment)
        assert done.returncode == 1
        assert words in done.stderr.splitlines()[-1], done.stderr


def test_importing_it_imports_neither_torch_nor_watchdog() -> None:
    script = "import sys, softrun.runtime; print(sorted({'torch', 'watchdog', 'multiprocessing'} & set(sys.modules)))"
    assert run_alone(script).stdout == "[]\n"
