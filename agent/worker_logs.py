"""Where the output of the workers goes: the files of torch's LogsSpecs, and the tails that copy them to the console."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from string import Template
from typing import Any

from softrun.agent.elastic import LogsDest, LogsSpecs, TailLog


class WorkerLogs:
    """Asked once for every group of workers that is started together; each gets files of its own."""

    def __init__(self, specs: LogsSpecs, role: str, prefix_template: str | None) -> None:
        self._specs = specs
        self._role = role
        self._prefix_template = prefix_template
        self._tails: list[TailLog] = []
        self._starts = 0

    def open(self, environments: dict[int, dict[str, str]], started: set[int]) -> LogsDest:
        """Name the files for every local rank, and follow those of the ranks in `started` that are copied.

        `environments` has an entry for every local rank of the node, and gets TORCHELASTIC_ERROR_FILE.
        """
        # torch names (and empties!) the directory after the restart count. Ours counts starts, so that the logs of
        # earlier incarnations are kept.
        counts = {rank: env.get("TORCHELASTIC_RESTART_COUNT", "0") for rank, env in environments.items()}
        for env in environments.values():
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._starts)
        self._starts += 1
        files = self._specs.reify(environments)
        for rank, env in environments.items():
            env["TORCHELASTIC_RESTART_COUNT"] = counts[rank]
        prefixes = self._prefixes(environments)
        for tees, stream in ((files.tee_stdouts, sys.stdout), (files.tee_stderrs, sys.stderr)):
            followed = {rank: path for rank, path in tees.items() if rank in started}
            self._tails.append(TailLog(self._role, followed, stream, prefixes).start())
        return files

    def close(self) -> None:
        """Copy what is left and stop."""
        for tail in self._tails:
            tail.stop()
        self._tails.clear()

    def _prefixes(self, environments: Mapping[int, Mapping[str, Any]]) -> dict[int, str] | None:
        if not self._prefix_template:
            return None
        template = Template(self._prefix_template)
        return {
            rank: template.safe_substitute(role_name=self._role, rank=env.get("RANK", ""), local_rank=rank)
            for rank, env in environments.items()
        }
