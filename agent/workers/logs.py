"""Where the output of the workers goes: the files of torch's LogsSpecs, and the tails that copy them to the console."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Any, TextIO

from softrun.agent.torch_elastic.elastic import LogsDest, LogsSpecs, TailLog, WorkerSpec


class WorkerLogs:
    """Opens new files for every group of workers that is started together."""

    def __init__(self, specs: LogsSpecs, spec: WorkerSpec, prefix_template: str | None) -> None:
        self._specs = specs
        self._spec = spec
        self._prefix_template = prefix_template
        self._starts = 0
        self._stops: dict[int, list[Callable[[], None]]] = {}  # how to stop following a local rank's present files
        self._stopping = ThreadPoolExecutor(spec.local_world_size, thread_name_prefix="softrun-logs")

    def open(self, environments: dict[int, dict[str, str]], started: set[int]) -> LogsDest:
        """Name the files for every local rank, and follow those of the ranks in `started` that are copied.

        `environments` has an entry for every local rank of the node; TORCHELASTIC_ERROR_FILE is added to each.
        """
        # torch names the directory after the restart count, and empties it. Ours counts starts, which keeps the logs of
        # earlier incarnations.
        counts = {rank: env.get("TORCHELASTIC_RESTART_COUNT", "0") for rank, env in environments.items()}
        for env in environments.values():
            env["TORCHELASTIC_RESTART_COUNT"] = str(self._starts)
        self._starts += 1
        files = self._specs.reify(environments)
        for rank, env in environments.items():
            env["TORCHELASTIC_RESTART_COUNT"] = counts[rank]
        for rank in started:
            self._stop(rank)
            self._follow(rank, files, self._prefix(rank, environments[rank]))
        return files

    def close(self) -> None:
        """Copy the rest and stop."""
        for rank in list(self._stops):
            self._stop(rank)
        self._stopping.shutdown(wait=True)

    def _follow(self, rank: int, files: LogsDest, prefix: str | None) -> None:
        spec, stops = self._spec, self._stops.setdefault(rank, [])
        prefixes = None if prefix is None else {rank: prefix}
        for tees, console, words, filtered in (
            (files.tee_stdouts, sys.stdout, spec.duplicate_stdout_filters, files.filtered_stdout),
            (files.tee_stderrs, sys.stderr, spec.duplicate_stderr_filters, files.filtered_stderr),
        ):
            followed = {rank: tees[rank]} if rank in tees else {}
            shown = None if console is None else _Console(console)
            stops.append(TailLog(spec.role, followed, shown, prefixes).start().stop)  # type: ignore[arg-type]
            if words:
                # Each rank appends to the one file, line by line.
                file = Path(filtered).open("a", errors="replace", buffering=1)  # noqa: SIM115 - closed when it stops
                wanted = _has_one_of(words)
                stops.append(TailLog(spec.role, followed, file, prefixes, log_line_filter=wanted).start().stop)
                stops.append(file.close)

    def _stop(self, rank: int) -> None:
        """Stop in the background: a tail takes its time to stop."""
        self._stopping.submit(lambda stops: [stop() for stop in stops], self._stops.pop(rank, []))

    def _prefix(self, rank: int, environment: Mapping[str, Any]) -> str | None:
        if not self._prefix_template:
            return None
        return Template(self._prefix_template).safe_substitute(
            role_name=self._spec.role, rank=environment.get("RANK", ""), local_rank=rank, hostname=socket.gethostname()
        )


class _Console:
    """Standard output or error, until whoever reads it is gone, such as `head` or a terminal: the logs stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream

    def write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
        except (OSError, ValueError):  # ValueError: it was closed
            self._stream = None


def _has_one_of(words: list[str]) -> Callable[[str], bool]:
    return lambda line: any(word in line for word in words)
