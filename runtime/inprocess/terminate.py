"""Callbacks for when there will be no further iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod

from softrun.runtime.inprocess.state import State


class Terminate(ABC):
    """Called on a rank when the wrapper ends with an exception, its own or the function's."""

    @abstractmethod
    def __call__(self, state: State) -> State | None: ...
