"""The keys of `--rdzv_conf`: torch's names and meanings, with softrun's defaults where soft needs others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from softrun.agent.errors import UsageError


class RendezvousSettings(BaseModel):
    """Times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    join_timeout: float = Field(default=600, gt=0, description="how long to wait for min_nodes")
    last_call_timeout: float = Field(
        default=0.3,
        ge=0,
        description="how long to wait for more nodes once there are enough, before the first world and before one "
        "that grows; 30 under hard, where every growth restarts all workers. A world that shrinks never waits",
    )
    close_timeout: float = Field(default=30, gt=0, description="how long a failed node waits for the job to be ended")
    read_timeout: float = Field(
        default=60, gt=0, description="how long to try to reach the store, and to wait for its answer"
    )
    keep_alive_interval: float = Field(default=1, gt=0, description="time between two beats")
    keep_alive_max_attempt: int = Field(default=5, ge=2, description="beats that may be missed before a node is dead")
    is_host: bool | None = Field(default=None, description="host the store here, or not; decided by the address")
    timeout: float | None = Field(default=None, description="torch's old name for join_timeout")

    @classmethod
    def parse(cls, given: Mapping[str, Any], policy: str) -> RendezvousSettings:
        """Raises UsageError for an unknown key or a value that is out of range."""
        values = dict(given)
        if "timeout" in values:
            values.setdefault("join_timeout", values["timeout"])
        if policy == "hard":
            values.setdefault("last_call_timeout", 30)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            fault = error.errors()[0]
            key = ".".join(map(str, fault["loc"]))
            if fault["type"] == "extra_forbidden":
                raise UsageError(f"--rdzv_conf has no key {key!r}: use {', '.join(cls.model_fields)}") from None
            raise UsageError(f"--rdzv_conf {key}={fault['input']!r} is refused: {fault['msg']}") from None
