"""Several callbacks as one.

A Compose belongs to the family of its members and can stand in for any of them: a Compose of RankAssignments is a
RankAssignment. A family is a class of callbacks that derives from ABC and nothing else, so a new family needs no entry
anywhere.
"""

from __future__ import annotations

import types
from abc import ABC
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softrun.runtime.inprocess.callables.arguments import check_callable

if TYPE_CHECKING:
    from typing_extensions import Self

Callback = Callable[[Any], Any]


class Compose:
    """The guide: "The composition order follows mathematical composition. Therefore, the last listed function is called
    first." Each result is passed to the next callback; a callback that returns None passes its argument on.

    The members must be of one family, or plain functions.
    """

    callbacks: tuple[Callback, ...]

    def __new__(cls, *callbacks: Callback) -> Self:
        for callback in callbacks:
            check_callable("Compose: a member", callback, "callbacks")
            if isinstance(callback, type):
                raise TypeError(f"Compose: {callback.__name__} is a class; pass an instance, {callback.__name__}(…)")
        families = _common_families(callbacks)
        composed = types.new_class(cls.__name__, (cls, *families)) if families else cls
        self: Self = object.__new__(composed)
        self.callbacks = callbacks
        return self

    def __call__(self, value: Any = None) -> Any:
        for callback in reversed(self.callbacks):
            result = callback(value)
            value = value if result is None else result
        return value

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(name_of, self.callbacks))})"

    def __reduce__(self) -> tuple[type[Compose], tuple[Callback, ...]]:
        return Compose, self.callbacks  # the class of this instance cannot be imported


def name_of(callback: Callback) -> str:
    """The name of a callback in messages."""
    is_function = isinstance(callback, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type))
    return callback.__qualname__ if is_function else " ".join(repr(callback).split())


def _families(callback: Callback) -> list[type]:
    return [cls for cls in type(callback).__mro__ if cls.__bases__ == (ABC,) and "__call__" in vars(cls)]


def _common_families(callbacks: tuple[Callback, ...]) -> list[type]:
    members = [(callback, families) for callback in callbacks if (families := _families(callback))]
    if not members:
        return []
    common = [family for family in members[0][1] if all(family in families for _, families in members)]
    if not common:
        kinds = (f"{type(callback).__name__} is of {families[0].__name__}" for callback, families in members)
        raise TypeError(f"Compose: {', '.join(dict.fromkeys(kinds))}; compose members of one family, each on its own")
    return common
