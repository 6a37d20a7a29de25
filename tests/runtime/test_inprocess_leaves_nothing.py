"""What a wrapped call leaves behind in its process: nothing. Threads, descriptors and memory stay as they were."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from gloo_ranks import Me
from wrapped_ranks import Job

from softrun import get_worker_event, get_worker_info
from softrun.runtime.inprocess import CallWrapper, RestartAbort, RetryController, Wrapper


def threads() -> list[str]:
    """Of this package's threads and those that it has others start."""
    return sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())


def descriptors() -> dict[str, str]:
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found[path.name] = str(path.readlink())
    return found


@Wrapper()
def train(call: CallWrapper) -> int:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if call.iteration == 0 and call.state.rank == 1:
        raise ValueError("the loss is not a number")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    return call.iteration


def test_no_thread_and_no_descriptor_is_left(job: Job) -> None:
    def work(me: Me) -> None:
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # what torch keeps after its first store
        before = threads(), descriptors()
        for _ in range(2):
            me.say(train())
            me.say((before, (threads(), descriptors())))

    workers = job.begin(work, 2)
    for _ in range(2):
        job.restart()
        assert [worker.says() for worker in workers] == [1, 1]
        for worker in workers:
            before, after = worker.says()
            assert after == before


def test_who_reads_its_events_goes_on_reading_them(job: Job) -> None:
    def work(me: Me) -> None:
        get_worker_info()
        before = threads()
        Wrapper()(lambda: None)()
        assert threads() == before != []
        me.say("the same")

    (worker,) = job.begin(work, 1)
    assert worker.says() == "the same"


def test_after_an_exception_the_agent_goes_on_watching(job: Job) -> None:
    """Its peers wait for a process that does not end."""

    def work(me: Me) -> None:
        try:
            Wrapper(initialize=RetryController(max_iterations=1))(fail)()
        except RestartAbort:
            me.say(threads())
        me.hear()

    def fail() -> None:
        raise ValueError("the loss is not a number")

    (worker,) = job.begin(work, 1)
    job.restart()
    assert "softrun-progress" in worker.says()
    assert worker.status.final
    assert worker.writer.read_progress() is not None
    worker.tell()


def test_who_asks_for_an_event_after_a_call_is_still_through(job: Job) -> None:
    def work(me: Me) -> None:
        Wrapper()(lambda: None)()
        assert threads() == []
        me.say(get_worker_event().round)
        me.hear()

    (worker,) = job.begin(work, 1)
    assert worker.says() == job.round
    assert worker.status.through
    assert worker.status.ends
    worker.tell()
