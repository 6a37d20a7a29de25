"""Several callbacks as one.

A Compose is an instance of the nearest class that its members have in common, so it can stand in for any of them: a
Compose of RankAssignments is a RankAssignment.
"""

from __future__ import annotations

import inspect
import types
from abc import ABC
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from softrun.runtime.inprocess.calls.arguments import check_callable

if TYPE_CHECKING:
    from typing_extensions import Self

Callback = Callable[..., Any]


class Compose:
    """The guide: "The composition order follows mathematical composition. Therefore, the last listed function is called
    first." Each result is passed to the next callback, a tuple as several arguments if that one takes several; a
    callback that returns None passes its own arguments on.

    The members must have a class in common, such as a family of callbacks, or be plain functions.
    """

    instances: tuple[Callback, ...]

    def __new__(cls, *instances: Callback) -> Self:
        for instance in instances:
            check_callable("Compose: a member", instance, "callbacks")
            if isinstance(instance, type):
                raise TypeError(f"Compose: {instance.__name__} is a class; pass an instance, {instance.__name__}(…)")
        common = _common_class(instances)
        composed = cls if common is None else types.new_class(cls.__name__, (cls, common))
        self: Self = object.__new__(composed)
        self.__dict__["instances"] = instances  # the common class may be frozen
        return self

    def __init__(self, *instances: Callback) -> None:
        """What the members have in common was initialized in each of them."""

    def __call__(self, *args: Any) -> Any:
        result: Any = None
        for instance in reversed(self.instances):
            if result is not None:
                args = _arguments(result, instance)
            returned = instance(*args)
            result = result if returned is None else returned
        return result if result is not None or not args else args[0] if len(args) == 1 else args

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(name_of, self.instances))})"

    def __reduce__(self) -> tuple[type[Compose], tuple[Callback, ...]]:
        return Compose, self.instances  # the class of this instance cannot be imported

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def name_of(callback: Callback) -> str:
    """The name of a callback in messages."""
    is_function = isinstance(callback, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type))
    if is_function:
        return callback.__qualname__
    shown = repr(callback)
    is_told = shown != object.__repr__(callback)  # which says only where it is in memory
    return " ".join(shown.split()) if is_told else type(callback).__qualname__


def _arguments(result: Any, following: Callback) -> tuple[Any, ...]:
    """What a result is to the next callback: nothing, one argument, or several if it is a tuple."""
    try:
        kinds = [parameter.kind for parameter in inspect.signature(following).parameters.values()]
    except (TypeError, ValueError):
        return (result,)  # some functions in C have no signature
    if not kinds:
        return ()
    takes_one = len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_POSITIONAL
    return result if isinstance(result, tuple) and not takes_one else (result,)


def _common_class(instances: tuple[Callback, ...]) -> type | None:
    """The nearest class that all members have in common; plain functions may stand beside any."""
    members = [instance for instance in instances if _classes(instance)]
    if not members:
        return None
    common = [cls for cls in _classes(members[0]) if all(isinstance(member, cls) for member in members)]
    if not common:
        kinds = (f"{type(member).__name__} is of {_classes(member)[-1].__name__}" for member in members)
        raise TypeError(f"Compose: {', '.join(dict.fromkeys(kinds))}; compose members of one family, each on its own")
    return common[0]


def _classes(instance: Callback) -> list[type]:
    """The classes of a callback that a Compose could be of, the nearest first."""
    if isinstance(instance, Compose):
        return [cls for cls in type(instance).__mro__ if cls not in _OF_ALL and not issubclass(cls, Compose)]
    classes = [cls for cls in type(instance).__mro__ if cls not in _OF_ALL]
    return [cls for cls in classes if cls.__module__ != "builtins" and "__new__" not in vars(cls)]


_OF_ALL = {object, ABC, Compose}
