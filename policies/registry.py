"""Finding a policy by its name, ours and third parties' alike."""

from __future__ import annotations

from importlib.metadata import entry_points

from softrun.policies.hard import HardRestartPolicyStrategy
from softrun.policies.soft import SoftRestartPolicyStrategy
from softrun.policies.strategy import RestartPolicyStrategy, WorkerFailure

ENTRY_POINT_GROUP = "softrun.policies"

_OWN: dict[str, type[RestartPolicyStrategy]] = {
    "hard": HardRestartPolicyStrategy,
    "soft": SoftRestartPolicyStrategy,
}


def available_policies() -> list[str]:
    """The names that `--restart_policy` takes here, sorted."""
    return sorted({*_OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def load_policy(name: str, worker_failure: WorkerFailure = WorkerFailure.NO_REPLACE) -> RestartPolicyStrategy:
    """Return the policy called `name`. Raises ValueError if there is none, or if it lacks the variant."""
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
