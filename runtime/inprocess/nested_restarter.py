"""Log lines that tell a system around the job what the in-process restarter is doing, so that only one of them acts.

Each callback logs one line at level INFO to the logger `softrun.runtime.nested`, which writes to standard output, or to
one that you pass:

    [NestedRestarter] name=[InProcess] state=handling stage=starting rank=0 active_rank=0 world_size=8 iteration=2 …

| callback                           | argument of the wrapper | state and stage                                     |
|------------------------------------|-------------------------|-----------------------------------------------------|
| NestedRestarterHandlingCompleted   | initialize, list first  | initialize at first, then handling stage=completed  |
| NestedRestarterHandlingStarting    | abort, list last        | handling stage=starting                             |
| NestedRestarterHandlingProcessing  | finalize                | handling stage=processing                           |
| NestedRestarterFinalized           | completion              | finalized                                           |
| NestedRestarterAborted             | terminate               | aborted                                             |
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import TextIO

from softrun.runtime.groups.abort import Abort
from softrun.runtime.inprocess.calls.arguments import check_count, check_instance
from softrun.runtime.inprocess.completion import Completion
from softrun.runtime.inprocess.finalize import Finalize
from softrun.runtime.inprocess.initialize import Initialize
from softrun.runtime.inprocess.state import State
from softrun.runtime.inprocess.terminate import Terminate


class _ToStandardOutput(logging.StreamHandler[TextIO]):
    """Writes to what is the standard output when a line is logged."""

    @property
    def stream(self) -> TextIO:
        return sys.stdout

    @stream.setter
    def stream(self, _: TextIO) -> None:
        pass


_log = logging.getLogger("softrun.runtime.nested")
_log.setLevel(logging.INFO)  # the lines are for a program, which needs them whatever level people read
_log.propagate = False
_log.addHandler(_ToStandardOutput())


@dataclass
class NestedRestarterCallback:
    """What these callbacks have in common. `logger` is asked to log the line, at level INFO."""

    restarter_state: str
    """The line's state."""
    restarter_stage: str | None = None
    """Its stage; None: it has none."""
    logger: logging.Logger = field(default=_log, repr=False)
    special_rank: int | None = 0
    """The rank that reports for all; None: every rank does."""

    def __post_init__(self) -> None:
        check_instance(f"{type(self).__name__}: logger", self.logger, (logging.Logger,), "a logging.Logger")
        if self.special_rank is not None:
            check_count(f"{type(self).__name__}: special_rank", self.special_rank, 0)

    def __call__(self, state: State | None = None) -> None:
        """Without a state, as outside a wrapper, the line has none of its fields."""
        line = f"[NestedRestarter] name=[InProcess] state={self.restarter_state}"
        if self.restarter_stage is not None:
            line += f" stage={self.restarter_stage}"
        if state is None:
            self.logger.info(line)
        elif self.special_rank in (None, state.rank):
            names = ("rank", "active_rank", "world_size", "iteration", "round")
            self.logger.info(" ".join([line, *(f"{name}={getattr(state, name)}" for name in names)]))


class NestedRestarterHandlingCompleted(NestedRestarterCallback, Initialize):
    """The guide: it "should be listed first, as handling a restart is not complete until the end of the Initialize"."""

    def __init__(self, special_rank: int | None = 0) -> None:
        super().__init__("initialize", special_rank=special_rank)

    def __call__(self, state: State | None = None) -> None:
        if state is not None and state.iteration:
            self.restarter_state, self.restarter_stage = "handling", "completed"
        super().__call__(state)


@dataclass
class NestedRestarterHandlingStarting(NestedRestarterCallback, Abort):
    """The restart is about to begin."""

    restarter_state: str = "handling"
    restarter_stage: str | None = "starting"


@dataclass
class NestedRestarterHandlingProcessing(NestedRestarterCallback, Finalize):
    """The function is about to be called again."""

    restarter_state: str = "handling"
    restarter_stage: str | None = "processing"


@dataclass
class NestedRestarterFinalized(NestedRestarterCallback, Completion):
    """All ranks have completed the call."""

    restarter_state: str = "finalized"


@dataclass
class NestedRestarterAborted(NestedRestarterCallback, Terminate):
    """The call has ended with an error."""

    restarter_state: str = "aborted"
