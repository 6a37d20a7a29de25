"""How a wrapped function is ended for a restart, and what it may do meanwhile. Quotes are of NVIDIA's usage guide."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable

from gloo_ranks import Me
from wrapped_ranks import SHORT_S, Job, Record, log_debug, sit

from softrun.runtime.inprocess import CallWrapper, RestartRequest, Wrapper


def until_requested(call: CallWrapper) -> None:
    """Until a thread waits for the block to end."""
    while not call._call.session.interrupt._requested:
        time.sleep(0.005)


def test_the_termination_procedure_is_not_launched_in_an_atomic_block(job: Job) -> None:
    """ "The termination procedure won't be launched if the main thread is in CallWrapper.atomic code block"."""

    def work(me: Me) -> None:
        aborted = threading.Event()
        did = Record()

        @Wrapper(abort=lambda _: aborted.set())
        def train(call: CallWrapper) -> None:
            if call.iteration:
                return
            with call.atomic():
                with call.atomic():
                    me.say("saving")
                    until_requested(call)
                    assert not aborted.wait(SHORT_S)
                did.calls.append("a block inside was left")
                assert not aborted.wait(SHORT_S)
                did.calls.append("saved")
            did.calls.append("went on")

        train()
        assert aborted.is_set()
        me.say(did.calls)

    (worker,) = job.begin(work, 1)
    assert worker.says() == "saving"
    job.form([worker])
    assert worker.says() == ["a block inside was left", "saved"]


def test_the_main_thread_does_not_enter_an_atomic_block_once_termination_is_in_progress(job: Job) -> None:
    """ "the main thread won't enter into CallWrapper.atomic code block if termination procedure is already in
    progress"."""

    def work(me: Me) -> None:
        begun, entered = threading.Event(), threading.Event()

        def abort(state: object) -> None:
            begun.set()
            entered.wait(SHORT_S)

        @Wrapper(abort=abort)
        def train(call: CallWrapper) -> None:
            if call.iteration:
                with call.atomic():
                    return
            me.say("training")
            begun.wait()
            with call.atomic():
                entered.set()

        train()
        me.say(entered.is_set())

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() is False


def test_logging_with_debug_level_shows_the_location_where_the_exception_was_suppressed(job: Job) -> None:
    def work(me: Me) -> None:
        log_debug()

        def sit() -> None:  # in this file, whose lines the log names
            time.sleep(3600)

        def suppress_around(wait: Callable[[], object]) -> None:
            with contextlib.suppress(BaseException):
                wait()

        def in_an_atomic_block(call: CallWrapper) -> None:
            with call.atomic():
                me.say("ready")
                until_requested(call)

        @Wrapper()
        def train(call: CallWrapper) -> None:
            if call.iteration == 0:
                suppress_around(lambda: in_an_atomic_block(call))
                suppress_around(sit)
                suppress_around(sit)
                sit()

        train()
        me.say("left it")

    (worker,) = job.begin(work, 1)
    assert worker.says() == "ready"
    job.form([worker])
    assert worker.says() == "left it"
    lines = [line for line in worker.log.splitlines() if "a restart was suppressed" in line]
    assert len(lines) == 3
    assert all(line.startswith("DEBUG softrun.runtime") for line in lines)
    place = rf"{re.escape(__file__)}:\d+ in "
    for line, sat in zip(lines, ("in_an_atomic_block", "sit", "sit"), strict=True):
        way = rf"raised at {place}train > {place}suppress_around > .*{place}{sat}; going on at {place}train > {place}"
        assert re.search(way, line)


def test_exception_handlers_and_context_managers_run_undisturbed(job: Job) -> None:
    """ "gives the wrapped function an opportunity to properly clean up resources by calling all encountered exception
    handlers, context managers' __exit__ methods etc."."""

    def work(me: Me) -> None:
        did = Record()

        class Resource:
            def __enter__(self) -> None: ...

            def __exit__(self, *_: object) -> None:
                time.sleep(SHORT_S)  # longer than it takes to raise it again
                did.calls.append("released")

        @Wrapper()
        def train(call: CallWrapper) -> None:
            if call.iteration:
                return
            try:
                with Resource():
                    me.say("training")
                    sit()
            except BaseException as error:
                time.sleep(SHORT_S)
                did.calls.append(type(error).__name__)
                raise
            finally:
                time.sleep(SHORT_S)
                did.calls.append("finally")

        train()
        me.say((RestartRequest.__mro__[1] is BaseException, did.calls))

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() == (True, ["released", "RestartRequest", "finally"]), '"a direct subclass of BaseException"'


def test_an_abort_has_ended_before_finalize_begins(job: Job) -> None:
    """Also where the function ends of itself, since the abort has freed it."""

    def work(me: Me) -> None:
        freed, finalizing = threading.Event(), threading.Event()
        overlapped = []

        def abort(state: object) -> None:
            freed.set()
            overlapped.append(finalizing.wait(SHORT_S))

        @Wrapper(abort=abort, finalize=lambda _: finalizing.set())
        def train(call: CallWrapper) -> None:
            if call.iteration == 0:
                me.say("training")
                freed.wait()
                raise ConnectionError("the group was aborted")

        train()
        me.say(overlapped)

    (worker,) = job.begin(work, 1)
    assert worker.says() == "training"
    job.form([worker])
    assert worker.says() == [False]
