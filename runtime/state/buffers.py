"""What an interrupted step has changed before its optimizer began is put back, since the step is done again.

A forward pass moves a module's buffers: BatchNorm's running statistics, the vectors of spectral norm, counters. So a
copy of them is kept at each commit. Nothing hooks into the forward pass, which may be compiled, and may be of parts of
a module. A backward pass leaves gradients, and a gradient scaler remembers whose it has divided.

What a copy costs: small buffers are copied at each commit, 160 of them in 0.25 ms on a CPU whose caches have them;
larger ones only if torch has counted a change. `MOST_BYTES` are kept at most, the smallest first. The log names what is
left out as soon as it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from softrun.runtime.state.specs import local_part, unfit

if TYPE_CHECKING:
    import torch

SMALL_BYTES = 1 << 20
"""A buffer of at most so many is copied at each commit, changed or not: torch does not count what BatchNorm does to its
statistics, nor what is done by `.data` or in a CUDA graph."""
MOST_BYTES = 1 << 28

_log = logging.getLogger("softrun.runtime")


class _Buffer:
    """A buffer at its place in a module, and as it was at the last commit."""

    def __init__(self, place: dict[str, Any], name: str) -> None:
        self._place, self._name = place, name
        self._tensor: Any = None  # the object: a forward pass may put another one in its place
        self._changes = 0  # so many had torch counted at the last commit
        self._is_small = True
        self.local: Any = None
        self.copy: Any = None
        self.kind: Any = None
        """Copies of one kind are made together."""

    def size(self) -> int:
        """How many bytes a copy of it takes."""
        if self.copy is not None and not self.is_another():
            return int(self.copy.nbytes)
        tensor = self._place[self._name]
        return 0 if tensor is None or not _can_be_copied(local := local_part(tensor)) else int(local.nbytes)

    @property
    def key(self) -> tuple[int, str]:
        """It is the same buffer as another one with this key."""
        return id(self._place), self._name

    def is_another(self) -> bool:
        """Whether the tensor was replaced, or given another shape."""
        if self._place.get(self._name) is not self._tensor:
            return True
        return self.copy is not None and self.local.shape != self.copy.shape

    def has_changed(self) -> bool:
        """Whether torch has counted a change since `note`."""
        return self.local is not None and self.local._version != self._changes

    def may_differ(self) -> bool:
        """Whether its content may differ from that of the copy."""
        return self.copy is not None and (self._is_small or self.has_changed())

    def note(self) -> None:
        """It is now as it was at the commit, or as the copy is."""
        self._changes = 0 if self.local is None or self.local.is_inference() else self.local._version

    def take(self) -> None:
        """Make a copy, in new memory."""
        self.leave_out()
        if self.local is not None and _can_be_copied(self.local):
            self.copy = self.local.detach().clone()
            self.kind = self.copy.dtype, self.copy.device
            self._is_small = self.copy.nbytes <= SMALL_BYTES

    def leave_out(self) -> None:
        """See what it is, without a copy."""
        self._tensor = self._place.get(self._name)
        self.local = None if self._tensor is None else local_part(self._tensor)
        self.copy = None
        self.note()

    def put_back(self) -> None:
        """Put the tensor of the last commit, which may have other content now, into its place."""
        if self._place.get(self._name) is not self._tensor:
            self._place[self._name] = self._tensor
        if self.copy is not None and self.local.shape != self.copy.shape:
            self.local.data = self.copy.clone()


class Buffers:
    """The buffers of some modules, as they were at the last commit."""

    def __init__(self) -> None:
        self._kept: list[_Buffer] = []
        self._left_out: dict[str, _Buffer] = {}
        self._has_told = False

    def look(self, modules: Mapping[str, torch.nn.Module]) -> None:
        """Find the buffers of these modules, and keep them as they are. Those of others are kept no more."""
        known = {each.key: each for each in (*self._kept, *self._left_out.values())}
        found: dict[tuple[int, str], tuple[int, str, _Buffer]] = {}
        for module_name, module in modules.items():
            for prefix, part in module.named_modules(prefix=module_name):
                for name in part._buffers:
                    new = _Buffer(part._buffers, name)
                    buffer = known.get(new.key, new)
                    found[buffer.key] = buffer.size(), f"{prefix}.{name}", buffer
        room = MOST_BYTES
        self._kept, self._left_out = [], {}
        for size, name, buffer in sorted(found.values(), key=lambda each: each[0]):
            room -= size
            if room >= 0:
                self._kept.append(buffer)
            else:
                self._left_out[name] = buffer
                buffer.leave_out()
        self.keep()

    def keep(self) -> None:
        """A step is complete: keep what it has made of them."""
        for buffer in self._kept:
            if buffer.is_another():
                buffer.take()
        _copy_all(self._kept, into_the_copies=True)
        if self._left_out and not self._has_told:
            self._tell_of_changes()

    def put_back(self) -> None:
        """The step is done again: make them what they were at the last commit."""
        for buffer in self._kept:
            buffer.put_back()
        _copy_all(self._kept, into_the_copies=False)

    def _tell_of_changes(self) -> None:
        changed = [name for name, buffer in self._left_out.items() if buffer.is_another() or buffer.has_changed()]
        if changed:
            self._has_told = True
            _log.warning(
                "the steps change the buffer %s, and no more than %d MiB of buffers are kept: if a step is interrupted "
                "and done again, it changes twice",
                changed[0],
                MOST_BYTES >> 20,
            )


def forget_gradients(parts: Iterable[Any]) -> None:
    """Drop the gradients of a step that was interrupted: otherwise a trainer that sets them to zero after its
    optimizer's step would add to them. A gradient scaler would refuse to divide them again."""
    for part in parts:
        for group in getattr(part, "param_groups", ()):
            for parameter in group["params"]:
                parameter.grad = None
        stages = getattr(part, "_per_optimizer_states", None)  # GradScaler's, whose `update` begins it anew
        if isinstance(stages, dict):
            stages.clear()


def _copy_all(buffers: Iterable[_Buffer], *, into_the_copies: bool) -> None:
    """Have buffers and copies that may differ be alike: in a few kernels, if those of one kind are together."""
    kinds: dict[Any, list[_Buffer]] = {}
    for buffer in buffers:
        if buffer.may_differ():
            kinds.setdefault(buffer.kind, []).append(buffer)
    if not kinds:
        return
    import torch

    with torch.no_grad():
        for alike in kinds.values():
            copies, tensors = [buffer.copy for buffer in alike], [buffer.local for buffer in alike]
            torch._foreach_copy_(*((copies, tensors) if into_the_copies else (tensors, copies)))
            for buffer in alike:
                buffer.note()


def _can_be_copied(tensor: torch.Tensor) -> bool:
    """Not if it is not dense, or if its elements share memory: no forward pass writes into such a one either."""
    if unfit(tensor) is not None or tensor.is_inference():
        return False
    return all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
