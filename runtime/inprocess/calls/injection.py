"""Arguments that the wrapped function asks for by annotating a parameter."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any


class Injection:
    """The parameters of a function that are annotated with one of these types, or with `Type | None`."""

    def __init__(self, function: Callable[..., Any], types: tuple[type, ...]) -> None:
        self._signature = _signature(function)
        self._kinds: dict[str, type] = {}
        for name, parameter in self._signature.parameters.items() if self._signature else ():
            if (kind := _kind(parameter.annotation, types)) is not None:
                self._kinds[name] = kind

    def wanted(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, type]:
        """The parameters to fill in besides these arguments. Raises TypeError if the call cannot be made."""
        if self._signature is None:
            return {}
        given = self._signature.bind_partial(*args, **named).arguments
        wanted = {name: kind for name, kind in self._kinds.items() if name not in given}
        self._signature.bind(*args, **named, **wanted)
        return wanted


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # an annotation that cannot be evaluated is not ours
        try:
            return inspect.signature(function)
        except (TypeError, ValueError):
            return None  # some functions in C have no signature


def _kind(annotation: Any, types: tuple[type, ...]) -> type | None:
    if isinstance(annotation, str):
        names = {each.strip().rpartition(".")[2] for each in annotation.split("|")}
        return next((kind for kind in types if kind.__name__ in names), None)
    members = typing.get_args(annotation) or (annotation,)
    return next((kind for kind in types if kind in members), None)
