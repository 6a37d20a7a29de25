"""Finding a policy by its name, whether it is softrun's own or a third party's."""

from __future__ import annotations

from importlib.metadata import entry_points

from softrun.policies.hard import HardRestartPolicyStrategy
from softrun.policies.soft import SoftRestartPolicyStrategy
from softrun.policies.strategy import RestartPolicyStrategy, WorkerFailure

ENTRY_POINT_GROUP = "softrun.policies"
"""The entry point group in which third parties name their policies."""

_OWN: dict[str, type[RestartPolicyStrategy]] = {
    "hard": HardRestartPolicyStrategy,
    "soft": SoftRestartPolicyStrategy,
}


def available_policies() -> list[str]:
    """Return the names that `--restart_policy` takes in this installation, sorted."""
    return sorted({*_OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def load_policy(name: str, worker_failure: WorkerFailure = WorkerFailure.NO_REPLACE) -> RestartPolicyStrategy:
    """Return the policy called `name`, in its variant `worker_failure`.

    Raises ValueError if there is no such policy, if the entry point of that name is not a `RestartPolicyStrategy`, or
    if the policy lacks the variant.
    """
    if name in _OWN:
        return _OWN[name](worker_failure)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        strategy = point.load()
        if not (isinstance(strategy, type) and issubclass(strategy, RestartPolicyStrategy)):
            raise ValueError(
                f"entry point {name!r} of {ENTRY_POINT_GROUP} is {strategy!r}: "
                "it must be a subclass of RestartPolicyStrategy"
            )
        return strategy(worker_failure)
    raise ValueError(f"unknown restart policy {name!r}: choose one of {', '.join(available_policies())}")
