"""What one agent's engine was started with."""

from __future__ import annotations

from dataclasses import dataclass

from softrun.agent.protocol.model import Address, JobSettings
from softrun.runtime.events import ProgressLimits


@dataclass(frozen=True)
class EngineConfig:
    """What an agent was started with; times in seconds."""

    job: JobSettings
    node: str
    host: str
    port: int
    role: str
    local_world_size: int
    max_restarts: int
    preferred_rank: int = 0
    named_store: Address | None = None
    """Where the user wants the workers of the first world to meet. No host, or port 0, leaves that to the agent that
    seals; with `job.named_store` there are both."""
    beat_interval_s: float = 1.0
    beat_tolerance_s: float = 5.0
    join_timeout_s: float = 600.0
    last_call_s: float = 0.3
    broken_s: float = 0.5
    verdict_s: float = 0.5  # a worker's failure waits so long for the death of a peer that excuses it
    grace_s: float = 30.0
    limits: ProgressLimits = ProgressLimits()  # noqa: RUF009 - a frozen value
    """Of workers that say nothing else."""
    exit_barrier_s: float = 300.0
    close_timeout_s: float = 30.0
    store_timeout_s: float = 60.0  # a store that has not answered for that long is lost
