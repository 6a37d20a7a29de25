"""What a wrapper would do for ever: each has a bound, and says why it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from gloo_ranks import Me
from wrapped_ranks import Job, Worker, sit

from fake_agent import wait_until
from softrun.runtime.channel.progress import BEAT_INTERVAL_S
from softrun.runtime.channel.writes import ENOUGH
from softrun.runtime.clock import boottime
from softrun.runtime.events import ProgressLimits
from softrun.runtime.inprocess import (
    ActiveWorldSizeDivisibleBy,
    BarrierTimeout,
    CallWrapper,
    Compose,
    MaxActiveWorldSize,
    RankDiscarded,
    RestartAbort,
    RestartRequest,
    RetryController,
    Seat,
    ShiftRanks,
    Wrapper,
)
from softrun.runtime.inprocess.calls import call
from softrun.runtime.inprocess.calls.seating import AssignmentError

FIFO = "fifo"
Save = Callable[[Path], None]
BY_EIGHT = Compose(ActiveWorldSizeDivisibleBy(8), ShiftRanks())


def test_a_rank_assignment_that_raises_ends_the_wrapper_on_every_rank(job: Job) -> None:
    def work(me: Me) -> None:
        def broken(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
            raise KeyError("no such host")

        try:
            Wrapper(rank_assignment=broken)(sit)()
        except AssignmentError as error:
            me.say(str(error))

    for worker in job.begin(work, 2):
        assert re.fullmatch(r"rank assignment \S+broken: KeyError: 'no such host'", worker.says())
        assert worker.status.fault is None, "another world would not mend it"


def test_the_retry_controller_is_asked_where_no_rank_can_be_active(job: Job) -> None:
    def work(me: Me) -> None:
        try:
            Wrapper(rank_assignment=BY_EIGHT, initialize=RetryController())(sit)()
        except RestartAbort as error:
            me.say(str(error))

    for worker in job.begin(work, 2):
        assert "0 of 2 ranks are active, fewer than min_active_world_size=1" in worker.says()


def test_ranks_none_of_which_can_be_active_wait_for_others(job: Job) -> None:
    def work(me: Me) -> None:
        me.say(Wrapper(rank_assignment=Compose(ActiveWorldSizeDivisibleBy(2), ShiftRanks()))(lambda: "through")())

    (first,) = job.begin(work, 1)
    wait_until(lambda: first.status.called == job.round, "the rank is in the first world")
    job.form([first, *job.start(work)])
    assert [worker.says() for worker in job.members] == ["through", "through"]


def test_ranks_that_nobody_joins_end_in_one_line(job: Job) -> None:
    def work(me: Me) -> None:
        call.MEMBERS_WAIT = timedelta(seconds=0.3)
        try:
            Wrapper(rank_assignment=BY_EIGHT)(sit)()
        except RuntimeError as error:
            me.say(str(error))

    (worker,) = job.begin(work, 1)
    said = worker.says()
    assert "rank_assignment has left none of 1 ranks active, and no other joined within 0.3 s" in said
    assert "\n" not in said


@pytest.mark.parametrize("kind", ["finally", "except", "exit"])
def test_a_clean_up_that_polls_for_ever_is_interrupted_itself(job: Job, kind: str) -> None:
    def work(me: Me) -> None:
        class Polling:
            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None:
                poll()

        def poll() -> None:
            while True:
                time.sleep(0.001)

        @Wrapper(soft_timeout=timedelta(seconds=0.3), hard_timeout=timedelta(seconds=50))
        def train() -> str:
            if train.again:  # type: ignore[attr-defined]
                return "through"
            train.again = True  # type: ignore[attr-defined]
            me.say("training")
            match kind:
                case "finally":
                    try:
                        sit()
                    finally:
                        poll()
                case "except":
                    try:
                        sit()
                    except RestartRequest:
                        poll()
                case _:
                    with Polling():
                        sit()
            raise AssertionError("a clean-up that polls for ever has ended")

        train.again = False  # type: ignore[attr-defined]
        me.say(train())

    workers = job.begin(work, 2)
    for worker in workers:
        assert worker.says() == "training"
        worker.sits()
    job.form(workers)
    for worker in workers:
        assert worker.says() == "through"
        assert "a clean-up has taken 0.3 s" in worker.log


def test_a_clean_up_that_nothing_ends_is_no_progress(job: Job) -> None:
    """It executes byte code. The agent sees none of it, and ends the worker by its hard limit."""

    def work(me: Me) -> None:
        @Wrapper(soft_timeout=timedelta(seconds=0.3), hard_timeout=timedelta(seconds=50))
        def train() -> None:
            me.say("training")
            while True:
                try:
                    sit()
                except BaseException:
                    try:
                        while True:
                            time.sleep(0.001)
                    except BaseException:
                        continue

        train()

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    worker.sits()
    job.form([worker])
    wait_until(lambda: "a clean-up has taken" in worker.log, "the clean-up is interrupted")

    def stands_still() -> bool:
        progress = worker.writer.read_progress()
        return progress is not None and boottime() - progress.last_s > 1.5

    wait_until(stands_still, "no progress is shown")


def write_beside(directory: Path) -> None:
    """Write by other threads, as checkpointing libraries do; this one waits in one call."""

    def write() -> None:
        with (directory / "checkpoint").open("wb") as file:
            while True:
                file.seek(0)
                file.write(bytes(ENOUGH))
                time.sleep(0.01)

    threading.Thread(target=write, daemon=True).start()
    time.sleep(600)


def wait_for_device(directory: Path) -> None:
    """As in an fsync on a slow disk: in this way a parent waits until its child has opened its output."""
    libc, actions = ctypes.CDLL(None), ctypes.create_string_buffer(1024)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 1, str(directory / FIFO).encode(), os.O_WRONLY, 0)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, (ctypes.c_char_p * 2)(b"true"), None)


@pytest.mark.parametrize("save", [write_beside, wait_for_device])
def test_writing_in_an_atomic_block_is_progress_even_in_one_call(job: Job, tmp_path: Path, save: Save) -> None:
    """A rank that writes a checkpoint is not hung, however long it takes."""
    os.mkfifo(tmp_path / FIFO)
    try:
        worker = begin_to_save(job, lambda: save(tmp_path))
        began = boottime()
        wait_until(lambda: last_progress_s(worker) > began + 8 * BEAT_INTERVAL_S, "progress beside the call")
    finally:
        os.close(os.open(tmp_path / FIFO, os.O_RDONLY | os.O_NONBLOCK))  # the child goes on


def test_an_atomic_block_that_hangs_makes_no_progress(job: Job) -> None:
    worker = begin_to_save(job, lambda: time.sleep(600))
    wait_until(lambda: boottime() > last_progress_s(worker) + 4 * BEAT_INTERVAL_S, "no progress")


def begin_to_save(job: Job, save: Callable[[], None]) -> Worker:
    def work(me: Me) -> None:
        @Wrapper()
        def train(call: CallWrapper) -> None:
            with call.atomic():
                me.say("saving")
                save()

        train()

    (worker,) = job.begin(work, 1)
    assert worker.says() == "saving"
    return worker


def last_progress_s(worker: Worker) -> float:
    progress = worker.writer.read_progress()
    return 0 if progress is None else progress.last_s


@pytest.mark.parametrize("way", ["sys.exit", "os._exit", "discarded", "returns"])
def test_the_agent_knows_whether_others_wait_for_a_rank_that_exits_0(job: Job, way: str) -> None:
    def work(me: Me) -> None:
        def discard(seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
            return tuple(replace(seat, discarded=seat.rank == 1, active=seat.rank == 0) for seat in seats)

        def train() -> None:
            if way == "sys.exit":
                sys.exit(0)
            if way == "os._exit":
                os._exit(0)

        with contextlib.suppress(SystemExit, RankDiscarded):
            Wrapper(rank_assignment=discard if way == "discarded" else None)(train)()
        os._exit(0)

    last = job.begin(work, 2)[1]
    last.ends()
    assert (last.status.called == job.round) is (way in ("sys.exit", "os._exit"))


def test_without_hang_protection_nothing_ends_a_rank_and_then_limits_count_from_the_end_of_the_block(job: Job) -> None:
    """Three promises: neither timeout acts inside, both act again however the block is left, and no time that passed
    inside is held against the rank."""

    def work(me: Me) -> None:
        @Wrapper(soft_timeout=timedelta(seconds=20), hard_timeout=timedelta(seconds=30))
        def train(call: CallWrapper) -> None:
            call.ping()
            me.hear()
            with contextlib.suppress(KeyError), call.disable_hang_protection():
                with call.disable_hang_protection():
                    me.say("loading")
                    ctypes.PyDLL(None).sleep(1)  # it holds the interpreter's lock: nothing shows progress
                me.say("after the inner block")
                me.hear()
                raise KeyError("no such file")
            me.say(time.monotonic())
            me.hear()

        train()

    (worker,) = job.begin(work, 1)

    def limits() -> tuple[float | None, float | None]:
        told = worker.status.limits or ProgressLimits()
        return told.soft, told.hard

    wait_until(lambda: limits() == (20.0, 30.0), "the limits")
    worker.tell()
    assert worker.says() == "loading"
    wait_until(lambda: limits() == (None, None), "no limits")
    assert worker.says() == "after the inner block"
    assert limits() == (None, None), "the outer block goes on"
    worker.tell()
    left_at = worker.says()
    wait_until(lambda: limits() == (20.0, 30.0), "the limits again")
    assert last_progress_s(worker) > left_at - BEAT_INTERVAL_S, "byte code and pings count from now on"
    worker.tell()


def test_ranks_that_do_not_come_within_the_barrier_timeout_end_the_wrapper(job: Job) -> None:
    """ "all workers synchronize through a initial_barrier using a user-defined barrier_timeout"."""

    def work(me: Me) -> None:
        timeouts = {"soft_timeout": None, "hard_timeout": None, "barrier_timeout": timedelta(seconds=0.5)}
        try:
            Wrapper(**timeouts)(sit)()
        except BarrierTimeout as error:
            me.say(str(error))

    first, other = job.start(work, lambda me: sit())
    job.form([first, other])
    assert first.says() == "Wrapper: barrier_timeout: not all ranks arrived within 0.5 s"


def test_reserves_return_nothing_when_the_others_are_through(job: Job) -> None:
    """ "Inactive ranks return None", and their completion is called as well, once all are through."""

    def work(me: Me) -> None:
        completed: list[int | None] = []

        @Wrapper(
            rank_assignment=Compose(MaxActiveWorldSize(1), ShiftRanks()),
            completion=lambda state: completed.append(state.rank),
        )
        def train() -> str:
            me.say("training")
            me.hear()
            return "through"

        me.say((train(), completed))

    active, reserve = job.begin(work, 2)
    assert active.says() == "training"
    assert reserve.says_nothing(0.3)
    active.tell()
    assert active.says() == ("through", [0])
    assert reserve.says() == (None, [1])
