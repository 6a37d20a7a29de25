"""Which of the processes that inherit SOFTRUN_CHANNEL is the worker."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from fake_agent import FakeAgent, Worker
from softrun.runtime.channel.ownership import claimant
from softrun.runtime.channel.page import OWNER
from softrun.runtime.events import WorldChangeEvent

CHILD = """
    from softrun.runtime import get_worker_event, get_worker_info, worlds
    from softrun.runtime.worker import ping
    size = get_worker_info().world_size  # which waits for a world, if there is none
    print("child", get_worker_event().round, size)
    ping()
    try:
        next(worlds())
    except Exception as error:
        print(type(error).__name__, error)
"""
TRAINER = """
    import os
    from softrun.runtime import worlds
    for world in worlds():
        print("trains in", world.round)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> dict[str, str]:
    """What a shell and subprocess.run, in the scripts of these tests, run by these names."""
    for name, text in (("CHILD", CHILD), ("TRAINER", TRAINER)):
        (tmp_path / name).write_text(dedent(text))
    return {"PYTHON": f"{sys.executable} -u", "CHILD": str(tmp_path / "CHILD"), "TRAINER": str(tmp_path / "TRAINER")}


def claimed_by(worker: Worker) -> int:
    page = worker.writer._page
    assert page is not None
    return claimant(page.words[OWNER])


def run(options: str = "") -> str:
    return f"subprocess.run([sys.executable, '-u', os.environ['CHILD']], check=True, {options})"


@pytest.mark.parametrize("options", ["", "start_new_session=True"])
def test_a_child_that_inherits_the_channel_is_not_the_worker(
    agent: FakeAgent, scripts: dict[str, str], options: str
) -> None:
    """It was: it wrote over the worker's status and progress, and a hang of the worker went unnoticed."""
    worker = agent.start(
        f"""
        import os, subprocess, sys
        from softrun.runtime import get_worker_info
        get_worker_info()
        {run(options)}
        """,
        **scripts,
    )
    agent.form([worker])
    assert worker.ends() == 0
    pid = worker.process.pid
    first, second = worker.output.splitlines()
    assert first == "child 1 1"
    assert second.startswith("ChannelError this process (")
    assert f"is not the worker, process {pid} is: ask for worlds there" in second
    assert claimed_by(worker) == pid


def test_a_child_shows_no_progress_for_a_worker_that_hangs(agent: FakeAgent, scripts: dict[str, str]) -> None:
    worker = agent.start(
        f"""
        import os, signal, subprocess, sys, time
        from softrun.runtime import get_worker_info, worker
        get_worker_info()
        worker._worker()._progress._ended.set()     # as if it hung
        time.sleep(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print("hangs")
        signal.sigwait([signal.SIGUSR1])
        {run()}
        print("still hangs")
        signal.sigwait([signal.SIGUSR1])
        """,
        **scripts,
    )
    agent.form([worker])
    worker.says("hangs")
    before = worker.writer.read_progress()
    worker.signal(signal.SIGUSR1)
    worker.says("still hangs")
    after = worker.writer.read_progress()
    assert before is not None
    assert after is not None
    assert after._replace(last_s=before.last_s) == before
    assert after.last_s == pytest.approx(before.last_s, abs=0.01), "the clock of the page was translated twice"


def test_a_child_waits_for_the_place_of_a_worker_that_is_paused(agent: FakeAgent, scripts: dict[str, str]) -> None:
    worker = agent.start(
        f"""
        import os, subprocess, sys
        from softrun.runtime import get_worker_event, get_worker_info
        print("asked", get_worker_info().rank)
        while get_worker_event().sequence < 2:
            pass
        {run()}
        """,
        **scripts,
    )
    agent.form([worker])
    worker.says("asked 0")
    agent.pause([worker], WorldChangeEvent.SCALE_UP)
    agent.form([worker, agent.start("pass")])
    worker.says("child 2 2")
    assert worker.ends() == 0


def test_the_trainer_may_be_what_a_shell_starts(agent: FakeAgent, scripts: dict[str, str]) -> None:
    """One after the other: what asked first has ended."""
    worker = agent.start(
        """
        import os
        os.execvp("sh", ["sh", "-c", "$PYTHON $TRAINER; $PYTHON $TRAINER; $PYTHON $CHILD; true"])
        """,
        **scripts,
    )
    agent.form([worker])
    assert worker.ends() == 0
    assert worker.output.splitlines() == ["trains in 1", "trains in 1", "child 1 1"], "the last one is a worker, too"
    assert claimed_by(worker) != worker.process.pid


def test_what_the_trainer_executes_is_the_trainer(agent: FakeAgent, scripts: dict[str, str]) -> None:
    worker = agent.start(
        """
        import os, sys
        from softrun.runtime import worlds
        next(worlds())
        os.execv(sys.executable, [sys.executable, "-u", os.environ["TRAINER"]])
        """,
        **scripts,
    )
    agent.form([worker])
    assert worker.ends() == 0
    assert worker.output.splitlines() == ["trains in 1"]
    assert claimed_by(worker) == worker.process.pid


def test_a_child_that_asked_first_yields_to_the_trainer(agent: FakeAgent) -> None:
    worker = agent.start(
        """
        import subprocess, sys
        from softrun.runtime import get_worker_info
        script = "from softrun.runtime import *; get_worker_info(); print(1); input(); next(worlds())"
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child = subprocess.Popen([sys.executable, "-u", "-c", script], **pipes)
        assert child.stdout.readline() == b"1\\n"
        get_worker_info()
        print("the child's:", child.communicate(b"\\n")[1].decode().splitlines()[-1])
        """
    )
    agent.form([worker])
    assert worker.ends() == 0
    assert claimed_by(worker) == worker.process.pid
    assert f"is not the worker, process {worker.process.pid} is" in worker.output
    status = worker.writer.read_status()
    assert status is not None
    assert status.ready
