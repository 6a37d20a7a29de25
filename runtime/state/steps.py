"""Whether the optimizers' steps since the last commit are whole: a step may be interrupted in its middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Phase(Enum):
    """Where a rank is between two commits."""

    WHOLE = "no optimizer has begun a step"
    COMPLETE = "all optimizers have taken their steps, and only the commit is missing"
    TORN = "some parameters are of the last step, others of the next"


class Steps:
    """Counts the steps that the optimizers begin and end. `before` is called before each."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._begun: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._usual: Counter[str] = Counter()  # by optimizer, its steps between two commits
        self._hooks: dict[str, list[Any]] = {}

    def watch(self, name: str, part: Any) -> None:
        """Watch a part if it is an optimizer of torch's, or wraps one as `optimizer` (Accelerate's, Lightning's)."""
        for hook in self._hooks.pop(name, ()):
            hook.remove()
        self._usual.pop(name, None)
        optimizer: Any = part if hasattr(part, "register_step_pre_hook") else getattr(part, "optimizer", None)
        if hasattr(part, "param_groups") and hasattr(optimizer, "register_step_pre_hook"):
            self._usual[name] = 1
            self._hooks[name] = [
                optimizer.register_step_pre_hook(lambda _, args, kwargs: self._about_to_begin(name, args, kwargs)),
                optimizer.register_step_post_hook(lambda *_: self._end(name)),
            ]

    @property
    def watched(self) -> list[str]:
        """The names of the optimizers."""
        return list(self._hooks)

    @property
    def phase(self) -> Phase:
        """Where this rank is."""
        if not self._begun.total():
            return Phase.WHOLE
        return Phase.COMPLETE if self._begun == self._ended == self._usual else Phase.TORN

    def commit(self) -> None:
        """The step is complete."""
        if self._ended:
            self._usual = Counter({name: self._ended[name] for name in self._hooks})
        self.forget()

    def forget(self) -> None:
        """The parameters were replaced by those of another rank."""
        self._begun.clear()
        self._ended.clear()

    def _about_to_begin(self, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        """An optimizer with a closure (Lightning's, LBFGS) first computes in it, and changes no parameter before."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._begin(name)
            return None
        begun_before = self._begun[name]

        def compute() -> Any:
            computed = closure()
            if self._begun[name] == begun_before:
                self._begin(name)
            return computed

        if "closure" in kwargs:
            return args, {**kwargs, "closure": compute}
        return (args[0], compute, *args[2:]), kwargs

    def _begin(self, name: str) -> None:
        self._before()
        self._begun[name] += 1

    def _end(self, name: str) -> None:
        self._ended[name] += 1
        self._begun[name] = max(self._begun[name], self._ended[name])  # it may not have called its closure
