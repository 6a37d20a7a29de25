"""The stacks of a worker that hangs, which must cost a healthy one nothing."""

from __future__ import annotations

import time

import pytest

from fake_agent import FakeAgent, Worker, wait_until
from softrun.agent.workers.processes import signal_main_thread
from softrun.runtime.channel.progress import STACKS_SIGNAL

SIGNALS = 3000
HANGS = """
    import ctypes, threading, time
    from softrun.runtime import get_worker_info
    def wait_beside():
        threading.Event().wait()
    threading.Thread(target=wait_beside, name="beside", daemon=True).start()
    get_worker_info()
    def hang():
        print("hangs")
        {how}
    hang()
"""


def show(worker: Worker) -> None:
    """As the agent does."""
    pid = worker.writer.ask_for_stacks()
    assert pid == worker.process.pid
    signal_main_thread(pid, STACKS_SIGNAL)


@pytest.mark.slow
def test_stacks_are_shown_while_threads_come_and_go(agent: FakeAgent) -> None:
    """The walk over all threads in the signal handler ended the process by SIGSEGV, after 5 to 1600 signals."""
    worker = agent.start(
        """
        import threading
        from softrun.runtime import get_worker_info
        get_worker_info()
        def come_and_go():
            while True:
                threads = [threading.Thread(target=lambda: [str(number) for number in range(20)]) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        for _ in range(3):
            threading.Thread(target=come_and_go, name="churn", daemon=True).start()
        def down(depth):
            return 0 if depth == 0 else down(depth - 1) + 1
        print("ready")
        while True:
            down(30)
        """
    )
    agent.form([worker])
    worker.says("ready")
    for _ in range(SIGNALS):
        assert worker.process.poll() is None, "the signal has ended it"
        show(worker)
        time.sleep(0.001)  # signals that come together count as one
    wait_until(lambda: "Thread churn" in worker.output, "the stacks of the other threads")
    assert worker.process.poll() is None
    assert worker.output.count("Stack (most recent call first)") > SIGNALS / 10
    assert " in down\n" in worker.output


def hanging(agent: FakeAgent, how: str) -> Worker:
    """A worker that hangs, when its main thread's stack was shown."""
    worker = agent.start(HANGS.format(how=how))
    agent.form([worker])
    worker.says("hangs")
    show(worker)
    wait_until(lambda: " in hang\n" in worker.output, "the main thread's stack")
    return worker


def test_a_main_thread_that_waits_in_c_is_shown_with_all_threads(agent: FakeAgent) -> None:
    worker = hanging(agent, "time.sleep(600)")
    wait_until(lambda: "Thread beside (most recent call first):" in worker.output, "the other's stack")
    assert " in wait_beside\n" in worker.output


def test_a_main_thread_that_keeps_the_gil_is_shown(agent: FakeAgent) -> None:
    hanging(agent, "ctypes.PyDLL(None).sleep(600)")


@pytest.mark.parametrize("ends", [True, False])
def test_nobody_is_signalled_who_does_not_show_stacks(agent: FakeAgent, ends: bool) -> None:
    worker = agent.start("from softrun.runtime import *; get_worker_info()" if ends else "input()")
    agent.form([worker])
    if ends:
        worker.ends()
    assert worker.writer.ask_for_stacks() is None
