"""Log lines that tell a system around the job what the in-process restarter is doing, so that only one of them acts.

Each callback logs one line at level INFO to the logger `softrun.runtime.nested`. Give that logger, or one above it, a
handler that writes to where you read your logs:

    [NestedRestarter] name=[InProcess] state=handling_start rank=0 active_rank=0 world_size=8 iteration=2 round=3

| callback                           | argument of the wrapper | state                                      |
|------------------------------------|-------------------------|--------------------------------------------|
| NestedRestarterHandlingCompleted   | initialize, list first  | initialize at first, then handling_completed |
| NestedRestarterHandlingStarting    | abort, list last        | handling_start                             |
| NestedRestarterHandlingProcessing  | finalize                | handling_processing                        |
| NestedRestarterFinalized           | completion              | finalized                                  |
| NestedRestarterAborted             | terminate               | aborted                                    |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from softrun.runtime.groups.abort import Abort
from softrun.runtime.inprocess.callables.arguments import check_count
from softrun.runtime.inprocess.callables.completion import Completion
from softrun.runtime.inprocess.callables.finalize import Finalize
from softrun.runtime.inprocess.callables.initialize import Initialize
from softrun.runtime.inprocess.callables.state import State
from softrun.runtime.inprocess.callables.termination import Terminate

_log = logging.getLogger("softrun.runtime.nested")
_log.setLevel(logging.INFO)  # the lines are for a program, which needs them whatever level people read


class Phase(Enum):
    """The values of `state` in the line."""

    INITIALIZE = "initialize"
    HANDLING_START = "handling_start"
    HANDLING_PROCESSING = "handling_processing"
    HANDLING_COMPLETED = "handling_completed"
    FINALIZED = "finalized"
    ABORTED = "aborted"


@dataclass(frozen=True)
class _Reporter:
    special_rank: int | None = 0
    """The rank that reports for all; None: every rank does."""

    def __post_init__(self) -> None:
        if self.special_rank is not None:
            check_count(f"{type(self).__name__}: special_rank", self.special_rank, 0)

    def _report(self, phase: Phase, state: State | None) -> None:
        line = f"[NestedRestarter] name=[InProcess] state={phase.value}"
        if state is None:
            _log.info(line)
        elif self.special_rank in (None, state.rank):
            names = ("rank", "active_rank", "world_size", "iteration", "round")
            _log.info(" ".join([line, *(f"{name}={getattr(state, name)}" for name in names)]))


class NestedRestarterHandlingCompleted(_Reporter, Initialize):
    """The guide: it "should be listed first, as handling a restart is not complete until the end of the Initialize"."""

    def __call__(self, state: State) -> None:
        self._report(Phase.HANDLING_COMPLETED if state.iteration else Phase.INITIALIZE, state)


class NestedRestarterHandlingStarting(_Reporter, Abort):
    """The restart is about to begin."""

    def __call__(self, state: State | None = None) -> None:
        self._report(Phase.HANDLING_START, state)


class NestedRestarterHandlingProcessing(_Reporter, Finalize):
    """The function is about to be called again."""

    def __call__(self, state: State) -> None:
        self._report(Phase.HANDLING_PROCESSING, state)


class NestedRestarterFinalized(_Reporter, Completion):
    """All ranks have completed the call."""

    def __call__(self, state: State) -> None:
        self._report(Phase.FINALIZED, state)


class NestedRestarterAborted(_Reporter, Terminate):
    """The call has ended with an error."""

    def __call__(self, state: State) -> None:
        self._report(Phase.ABORTED, state)
