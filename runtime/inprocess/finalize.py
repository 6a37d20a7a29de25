"""Callbacks for after a fault, once the process groups are gone and before the health check."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from softrun.runtime.inprocess import exception
from softrun.runtime.inprocess.calls.arguments import check_callable, check_duration, check_instance
from softrun.runtime.inprocess.calls.bounded import call_bounded
from softrun.runtime.inprocess.compose import name_of
from softrun.runtime.inprocess.state import State


class Finalize(ABC):
    """Cleans up, so that the function can be called again.

    The guide: "Any failure during the execution of Finalize should raise an exception"; it ends this rank's process.
    """

    @abstractmethod
    def __call__(self, state: State) -> State | None: ...


@dataclass(frozen=True)
class ThreadedFinalize(Finalize):
    """Calls `fn(*args, **kwargs)` in a thread and raises what it raises, or exception.TimeoutError after `timeout`."""

    timeout: timedelta
    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_duration("ThreadedFinalize: timeout", self.timeout)
        check_callable("ThreadedFinalize: fn", self.fn, "a function")
        check_instance("ThreadedFinalize: args", self.args, (tuple, list), "a tuple, like (value,)")
        check_instance("ThreadedFinalize: kwargs", self.kwargs, (Mapping, type(None)), "a dict or None")

    def __call__(self, state: State) -> State:
        call = _on_the_same_device(partial(self.fn, *self.args, **(self.kwargs or {})))
        if not call_bounded(call, self.timeout, "softrun-finalize"):
            raise exception.TimeoutError(
                f"ThreadedFinalize: {name_of(self.fn)} on rank {state.rank} did not end within "
                f"{self.timeout.total_seconds():g} s; give it a longer timeout, or find what it waits for"
            )
        return state


def _on_the_same_device(call: Callable[[], object]) -> Callable[[], object]:
    """The call for another thread: each has a current CUDA device of its own, 0 at first."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return call
    device = cuda.current_device()

    def there() -> object:
        cuda.set_device(device)
        return call()

    return there
