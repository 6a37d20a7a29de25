"""Compiled functions that know of the last world.

torch.compile makes constants of the rank, the world's size, a group's size and its name, and guards at most the name.
So in the next world a function that was compiled in the last one may compute with the wrong rank, without an error, or
fail because a group of that name has another size. A function with DTensors is compiled for each world's meshes, and
after eight times dynamo gives up and runs it as it is. Hence compiled functions that use torch.distributed are dropped
when a world is over. The others stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

_WORDS = ("torch.distributed", "torch_dot_distributed", "c10d_functional", "__dtensor_spec")
_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed._functional_collectives")
_IDENTITY = re.compile(r", (\d+)\)")


def drop_compiled() -> None:
    """Have such functions compiled again when they are next called. Never imports torch."""
    with suppress(AttributeError, KeyError):  # nothing was compiled, or this release of torch keeps it elsewhere
        cache = sys.modules["torch._C._dynamo.eval_frame"]
        seen = sys.modules["torch._dynamo.convert_frame"].input_codes.seen
        known = set(map(str, _identities()))
        for code in [code for reference in list(seen) if (code := reference()) is not None]:
            if any(_uses_groups(entry, known) for entry in cache._debug_get_cache_entry_list(code)):
                cache.reset_code(code)


def _uses_groups(entry: Any, known: set[str]) -> bool:
    """Whether the guards of a compiled function show that it uses torch.distributed."""
    return any(
        any(word in guard for word in _WORDS) or not known.isdisjoint(_IDENTITY.findall(guard))
        for guard in entry.guard_manager.code_parts
    )


def _identities() -> Iterator[int]:
    """By these, guards know torch.distributed's modules and functions."""
    for module in [sys.modules[name] for name in _MODULES if name in sys.modules]:
        yield id(module)
        for each in list(vars(module).values()):
            if type(each) is FunctionType:  # isinstance asks deprecated objects for an attribute, and they warn
                yield id(each.__code__)
