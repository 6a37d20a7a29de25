"""Callbacks for when the function has returned."""

from __future__ import annotations

from abc import ABC, abstractmethod

from softrun.runtime.inprocess.state import State


class Completion(ABC):
    """Called on a rank when its function has returned."""

    @abstractmethod
    def __call__(self, state: State) -> State | None: ...
