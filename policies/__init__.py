"""Restart policies: tables that map each reason to act to what the agent does.

A third party adds a policy by subclassing `RestartPolicyStrategy` and naming it in the entry point group
`softrun.policies`; `--restart_policy NAME` then finds it.
"""

from softrun.policies.hard import HardRestartPolicyStrategy
from softrun.policies.registry import ENTRY_POINT_GROUP, available_policies, load_policy
from softrun.policies.soft import SoftRestartPolicyStrategy
from softrun.policies.strategy import Response, RestartPolicyStrategy, Trigger, WorkerFailure

__all__ = [
    "ENTRY_POINT_GROUP",
    "HardRestartPolicyStrategy",
    "Response",
    "RestartPolicyStrategy",
    "SoftRestartPolicyStrategy",
    "Trigger",
    "WorkerFailure",
    "available_policies",
    "load_policy",
]
