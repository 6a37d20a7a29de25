"""The settings of one agent's engine."""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.consensus.search import STRANGERS_S
from softrun.agent.protocol.model import Address, JobSettings
from softrun.runtime.events import ProgressLimits


@dataclass(frozen=True)
class EngineConfig:
    """The settings of one agent's engine. Times are in seconds."""

    job: JobSettings
    node: str
    host: str
    port: int
    role: str
    local_world_size: int
    max_restarts: int
    preferred_rank: int = 0
    named_store: Address | None = None
    """Where the user wants the workers of the first world to meet. An empty host, or port 0, is filled in by the agent
    that seals the world; with `job.named_store` both are given."""
    endpoints: tuple[Address, ...] = ()
    """Where the agents find their job and keep its record themselves. Without any a store keeps it."""
    beat_interval_s: float = 1.0
    beat_tolerance_s: float = 5.0
    join_timeout_s: float = 600.0
    last_call_s: float = 0.3
    broken_s: float = 0.5
    verdict_s: float = 0.5  # how long a worker's failure waits for news of a peer's death that excuses it
    grace_s: float = 30.0
    time_limit_s: float | None = None  # after so long the job has ended; None: no limit
    limits: ProgressLimits = ProgressLimits()  # noqa: RUF009 - a frozen value
    """For workers that set no limits of their own."""
    exit_barrier_s: float = 300.0
    close_timeout_s: float = 30.0
    search_s: float = 60.0  # how long to look for the job
    strangers_s: float = STRANGERS_S  # and how long to wait for others to leave its place
