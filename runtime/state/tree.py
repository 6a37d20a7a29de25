"""A state dict as two things: its tensors, and the rest, as JSON. Nothing that a peer has sent is executed.

The rest of a tree is written with a tag for whatever JSON does not have: `["tuple", [...]]`, `["dict", [[key, value],
...]]`, and `["tensor", 3]` for the third tensor of the list that goes with it.
"""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PLAIN = (str, int, float, bool, type(None))
_CONTAINERS: dict[str, Any] = {
    "counter": Counter,
    "dict": Mapping,
    "list": list,
    "tuple": tuple,
    "set": (set, frozenset),
}
"""By tag, the first that fits."""


class Tree:
    """What was encoded so far: `tensors` has the tensors, by their names, in the order of their numbers.

    A name is the path to the tensor, such as `optimizer.state.0.exp_avg`. A DTensor stands there as itself.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def encode(self, value: Any, name: str) -> Any:
        """Return all but the tensors. Raises TypeError, with the path, for what is neither a tensor nor plain data."""
        if type(value) in _PLAIN:
            return value
        kind = next((tag for tag, types in _CONTAINERS.items() if isinstance(value, types)), None)
        if kind in ("dict", "counter"):
            return [kind, [[self.encode(key, name), self.encode(each, f"{name}.{key}")] for key, each in value.items()]]
        if kind is not None:
            return [kind, [self.encode(each, f"{name}.{number}") for number, each in enumerate(value)]]
        return self._encode_leaf(value, name)

    def _encode_leaf(self, value: Any, name: str) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return ["tensor", self._add(value, name)]
        if isinstance(value, torch.dtype | torch.device):
            return [type(value).__name__, str(value).removeprefix("torch.")]
        if isinstance(value, bytes):
            return ["bytes", base64.b64encode(value).decode()]
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return value.item()
        if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object:
            return ["array", self._add(torch.from_numpy(numpy.ascontiguousarray(value)), name)]
        if isinstance(value, _PLAIN):  # a subclass, such as an enumeration's member
            return next(plain(value) for plain in (bool, int, float, str) if isinstance(value, plain))
        raise TypeError(
            f"{name} is a {type(value).__name__}, which cannot be sent to a newcomer: its state_dict may hold tensors, "
            "arrays, numbers, strings, lists, tuples and dicts"
        )

    def _add(self, tensor: torch.Tensor, name: str) -> int:
        self.tensors[name] = tensor
        return len(self.tensors) - 1


def decoded(rest: Any, tensors: Sequence[Any]) -> Any:
    """Return the tree again. Raises ValueError if `rest` is damaged."""
    if type(rest) in _PLAIN:
        return rest
    try:
        kind, content = rest
        return _DECODERS[kind](content, tensors)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the description of a state is damaged: {str(rest)[:80]!r}") from error


def _all(content: Iterable[Any], tensors: Sequence[Any]) -> list[Any]:
    return [decoded(entry, tensors) for entry in content]


def _pairs(content: Iterable[Any], tensors: Sequence[Any]) -> dict[Any, Any]:
    return {decoded(key, tensors): decoded(entry, tensors) for key, entry in content}


def _of_torch(name: str, kind: str) -> Any:
    import torch

    value = torch.device(name) if kind == "device" else getattr(torch, name)
    if not isinstance(value, torch.dtype | torch.device):
        raise TypeError(f"torch.{name} is no {kind}")
    return value


_DECODERS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "list": _all,
    "tuple": lambda content, tensors: tuple(_all(content, tensors)),
    "set": lambda content, tensors: set(_all(content, tensors)),
    "dict": _pairs,
    "counter": lambda content, tensors: Counter(_pairs(content, tensors)),
    "tensor": lambda content, tensors: tensors[content],
    "array": lambda content, tensors: tensors[content].numpy(),
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "dtype": lambda content, _: _of_torch(content, "dtype"),
    "device": lambda content, _: _of_torch(content, "device"),
}
