r"""A restart policy of your own: soft, but the job ends on every node when one node is lost for good.

    pip install ./examples/own_policy
    python -m softrun --restart_policy together --worker_failure replace --max_restarts 3 \
        --nproc_per_node 2 examples/rfc_loop.py

A policy is a class that returns a table. Its package names it in the entry point group `softrun.policies` (see
pyproject.toml), and `--restart_policy` takes that name. Install the package on every node.

Under soft, a node whose restarts are spent leaves, and the others go on without it. That is of no use to a job that
needs every node: here all of them end, with the report of the failure. Healthy workers are still kept alive until then.
"""

from collections.abc import Mapping

from softrun.policies import Response, SoftRestartPolicyStrategy, Trigger, WorkerFailure


class TogetherPolicy(SoftRestartPolicyStrategy):
    """Soft's table with one row changed. A table from scratch is a subclass of `RestartPolicyStrategy`."""

    def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
        return {**super().table(worker_failure), Trigger.RESTARTS_SPENT: Response.END_JOB}
