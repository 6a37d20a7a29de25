"""What a State holds: parts with `state_dict` and `load_state_dict`, and plain values; described, and filled in."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from softrun.runtime.state.buffers import forget_gradients
from softrun.runtime.state.messages import to_bytes
from softrun.runtime.state.specs import Spec, device_of, local_part, part_of
from softrun.runtime.state.tree import Tree, decoded

if TYPE_CHECKING:
    import torch

_METHODS = ("state_dict", "load_state_dict")
_ROW = 4096


class Description(BaseModel):
    """What a rank has: its tensors in order, and all the rest, in which the tensors are numbers."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    specs: list[Spec]
    parts: dict[str, Any]
    values: dict[str, Any]

    def has_tensors(self, part: str) -> bool:
        """Whether there are tensors in the part of that name."""
        return any(spec.name.startswith(f"{part}.") for spec in self.specs)


class View:
    """What there is at one moment. The tensors are those of the parts themselves, not copies.

    Raises TypeError, with the key, for what cannot be sent.
    """

    def __init__(self, parts: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        tree = Tree()
        self.tensors = tree.tensors
        rest = {name: tree.encode(part.state_dict(), name) for name, part in parts.items()}
        plain = {name: tree.encode(value, name) for name, value in values.items()}
        self.specs = {name: Spec.of(name, tensor) for name, tensor in self.tensors.items()}
        self.local = [local_part(tensor) for tensor in self.tensors.values()]
        """This rank's parts of the tensors, in order."""
        # An optimizer's state is sharded as its parameters are, and is not there before its first step.
        steady = [name for name, part in parts.items() if not _is_optimizer(part)]
        self.part = part_of(spec for name, spec in self.specs.items() if name.partition(".")[0] in {*steady, *values})
        """Which part of the sharded tensors this rank holds, as a number; 0 if none is sharded."""
        self.description = Description(specs=list(self.specs.values()), parts=rest, values=plain)

    @property
    def device(self) -> str:
        """The kind of device on which most of the bytes are."""
        return device_of(self.specs.values())

    @property
    def text(self) -> bytes:
        """The description, for another rank."""
        return self.description.model_dump_json().encode()

    def check_fit(self, theirs: Iterable[Spec], *, parts_count: bool) -> None:
        """Raises ValueError, with the key, if a tensor is another one where it should come from. `parts_count`: also if
        it is another part of the same one."""
        for spec in theirs:
            mine = self.specs.get(spec.name)
            if mine is not None:
                here, there = (str(one) if parts_count else one.whole_tensor for one in (mine, spec))
                if here != there:
                    raise ValueError(
                        f"{spec.name} is {here} here and {there} where it should come from: build the same parts"
                    )

    def outline(self) -> int:
        """A number of 62 bits that says what the tensors are, but not what is in them."""
        return _number(hashlib.sha256(json.dumps([spec.model_dump() for spec in self.specs.values()]).encode()))

    def digest(self) -> int:
        """A number of 62 bits that says what everything is, bit for bit."""
        found = hashlib.sha256(self.text)
        for tensor in self.local:
            for projection in _projections(tensor):
                found.update(to_bytes(projection))
        return _number(found)


class Contents:
    """Parts and values by their names."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._part: int | None = None

    @property
    def part(self) -> int:
        """As that of `view`, which is looked at anew only when a part was replaced."""
        if self._part is None:
            self._part = self.view().part
        return self._part

    @property
    def names(self) -> list[str]:
        """The names of all parts and values, sorted."""
        return sorted([*self._parts, *self._values])

    def get(self, name: str) -> Any:
        """Raises AttributeError."""
        for of_a_kind in (self._parts, self._values):
            if name in of_a_kind:
                return of_a_kind[name]
        names = ", ".join([*self._parts, *self._values])
        raise AttributeError(f"this State has no {name!r}, only {names or 'nothing'}")

    def put(self, name: str, part: Any) -> None:
        """Raises TypeError for what cannot be sent or taken in."""
        missing = [method for method in _METHODS if not callable(getattr(part, method, None))]
        if len(missing) == 1:
            raise TypeError(
                f"{name} is a {type(part).__name__} without {missing[0]}: a part of a State has both methods"
            )
        self._part = None
        self._parts.pop(name, None)
        self._values.pop(name, None)
        if missing:
            Tree().encode(part, name)
            self._values[name] = part
        else:
            self._parts[name] = part

    def copy(self) -> Contents:
        """Return one that keeps the parts of now, and shares the values."""
        found = Contents()
        found._parts, found._values = dict(self._parts), self._values
        return found

    def optimized(self, names: Iterable[str]) -> set[int]:
        """The addresses of the tensors that the optimizers of these names change: their parameters, and their state."""
        import torch

        found: set[int] = set()
        for name in names:
            optimizer = self._parts[name]
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            states = [entry for state in optimizer.state.values() for entry in state.values()]
            found.update(local_part(each).data_ptr() for each in [*parameters, *states] if torch.is_tensor(each))
        return found

    def trained(self) -> dict[str, torch.nn.Module]:
        """The modules that the optimizers train, by name; all if no optimizer has a parameter of a module.

        Others, such as an average of the weights, are changed by the trainer itself, at any time.
        """
        modules = {name: part for name, part in self._parts.items() if _is_module(part)}
        groups = [group for part in self._parts.values() for group in getattr(part, "param_groups", ())]
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        found = {
            name: module
            for name, module in modules.items()
            if any(id(parameter) in optimized for parameter in module.parameters())
        }
        return found or modules

    def forget_gradients(self) -> None:
        """As the function of that name."""
        forget_gradients(self._parts.values())

    def step(self) -> None:
        """Have the optimizers take a step."""
        for part in self._parts.values():
            if callable(step := getattr(part, "step", None)) and hasattr(part, "param_groups"):
                step()

    def is_part(self, name: str) -> bool:
        """Whether that is the name of an object with a state of its own."""
        return name in self._parts

    def commit(self) -> None:
        """The step is complete: tell the parts that count steps, and count it in `step`."""
        self._tell("commit")
        if "step" in self._values:
            self._values["step"] += 1

    def resume(self) -> None:
        """The next step begins, perhaps at another place in the world: tell the parts that want to know."""
        self._tell("resume")

    def _tell(self, method: str) -> None:
        for part in self._parts.values():
            call = getattr(part, method, None)
            if callable(call):
                call()

    def view(self) -> View:
        """Look at what there is. Raises TypeError, with the key, for what cannot be sent."""
        return View(self._parts, self._values)

    def take_plain(self, theirs: Description) -> None:
        """Take what another rank has that is no tensor: the tensors are the same already."""
        own = self.view().tensors
        given = [own.get(spec.name) for spec in theirs.specs]
        for name, rest in theirs.parts.items():
            if not theirs.has_tensors(name):
                self._parts[name].load_state_dict(decoded(rest, given))
        self._values.update({name: decoded(rest, given) for name, rest in theirs.values.items()})

    def prepare(self, theirs: Description, *, parts_count: bool = True) -> Filling:
        """Make room for what another rank has, or had. Raises ValueError, with the key, if it does not fit.

        `parts_count`: the same part of each sharded tensor comes as is here.
        """
        if set(theirs.parts) != set(self._parts):
            raise ValueError(
                f"this State has the parts {sorted(self._parts)}, and what should come has {sorted(theirs.parts)}: "
                "give the same names"
            )
        own = self.view()
        own.check_fit(theirs.specs, parts_count=parts_count)
        is_sharded = any(spec.whole is not None for spec in own.specs.values())
        if is_sharded and any(spec.name not in own.specs for spec in theirs.specs):
            for part in self._parts.values():
                if _is_optimizer(part):
                    _make_state(part)
            own = self.view()
        return Filling(self._parts, self._values, own, theirs)


class Filling:
    """What is here, about to be replaced by what another rank has.

    Call `load_plain`, receive into `tensors`, and call `load`.
    """

    def __init__(self, parts: Mapping[str, Any], values: dict[str, Any], own: View, theirs: Description) -> None:
        self._parts = parts
        self._values = values
        self._theirs = theirs
        self.device = device_of(theirs.specs)
        """The kind of device on which most of the bytes are, for the other rank."""
        self.given = {spec.name: _room(spec, own) for spec in theirs.specs}
        """The tensors that are to be filled: those that are here, and new ones."""
        self._check_nothing_is_left_out(own)
        given = list(self.given.values())
        self._states = {name: decoded(rest, given) for name, rest in theirs.parts.items()}
        self._new_values = {name: decoded(rest, given) for name, rest in theirs.values.items()}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where the bytes belong, in the order of the other rank's tensors."""
        return [local_part(tensor) for tensor in self.given.values()]

    def take_from(self, view: View) -> None:
        """Copy what this rank has itself."""
        for to, tensor in zip(self.tensors, view.local, strict=True):
            to.copy_(tensor)

    def load_plain(self) -> None:
        """Load the parts without tensors, which may refuse. Nothing else has changed yet."""
        for name, part in self._parts.items():
            if not self._theirs.has_tensors(name):
                part.load_state_dict(self._states[name])

    def load(self) -> None:
        """All tensors are here: load the rest."""
        for name, part in self._parts.items():
            if self._theirs.has_tensors(name) and not _is_filled(part, self._states[name]):
                part.load_state_dict(self._states[name])
        self._values.update(self._new_values)

    def _check_nothing_is_left_out(self, own: View) -> None:
        for name in own.tensors:
            part = self._parts.get(name.partition(".")[0])
            if name not in self.given and _is_module(part):
                raise ValueError(f"{name} is {own.specs[name]} here, and is missing where it should come from")


def _room(spec: Spec, own: View) -> Any:
    """The tensor that is here, or a new one."""
    if spec.name in own.tensors:
        return own.tensors[spec.name]
    import torch

    if spec.whole is not None and any(mine.whole is not None for mine in own.specs.values()):
        raise ValueError(f"{spec.name} is {spec} where it should come from, and not here: build the same parts")
    return torch.empty(spec.shape if spec.whole is None else spec.whole, dtype=spec.torch_dtype, device=spec.device)


def _is_module(part: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def _is_optimizer(part: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.optim.Optimizer)


def _make_state(optimizer: Any) -> None:
    """Have an optimizer that has taken no step make its state, sharded as its parameters are. Its content is no matter:
    the parameters and the state are about to be received."""
    import torch

    if optimizer.state:
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    grads = [each.grad for each in parameters]
    for each in parameters:
        each.grad = torch.zeros_like(each)
    optimizer.step()
    for each, grad in zip(parameters, grads, strict=True):
        each.grad = grad


def _is_filled(part: Any, state: Any) -> bool:
    """Whether the tensors that were received are those of the module itself, so that nothing is to be copied."""
    if not _is_module(part) or not isinstance(state, dict):
        return False
    own = dict(part.named_parameters(remove_duplicate=False)) | dict(part.named_buffers(remove_duplicate=False))
    return all(
        name in own and local_part(own[name]).data_ptr() == local_part(tensor).data_ptr()
        for name, tensor in state.items()
    )


def _projections(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A few bytes that change with every bit, and almost surely with its place."""
    import torch

    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    size = flat.numel() // (8 * _ROW) * 8 * _ROW
    words = flat[:size].view(torch.int64).view(-1, _ROW)
    yield words.sum(0)
    yield words.sum(1)
    yield flat[size:]


def _number(digest: Any) -> int:
    return int.from_bytes(digest.digest()[:8], "big") >> 2
