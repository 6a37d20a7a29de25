"""The keys of `--rdzv_conf`: torch's names and meanings, with other defaults if the soft policy needs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from softrun.agent.errors import UsageError
from softrun.agent.protocol.printable import printable
from softrun.policies import Response, RestartPolicyStrategy, Trigger

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("softrun")

BEAT_S = 0.25
MANY_NODES = 128  # from then on the beats are slower: the leader hears and answers each
LEAST_BEATS = 5  # in a tolerance: what agents promise each other with one is good for three
SLOWEST_BEAT_S = 1.8  # so a silent host is left behind within ten seconds, however many there are
PASSWORD_VARIABLE = "SOFTRUN_ETCD_PASSWORD"
TOKEN_VARIABLE = "SOFTRUN_TOKEN_FILE"
LONGEST_S = 10 * 365 * 24 * 3600
"""Ten years: no time that is set is longer, so that whatever counts nanoseconds can count it."""
_LONGEST_INTERVAL_S = 24 * 3600
_MOST_BEATS = 1_000_000
_HIGHEST_RANK = (1 << 31) - 1
_OF_SECRETS = ("token_file", "password_file")
_LIKE = 0.75

Seconds = Annotated[float, Field(le=LONGEST_S, allow_inf_nan=False)]


class RendezvousSettings(BaseModel):
    """The settings of every backend. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    join_timeout: Seconds = Field(default=600, gt=0, description="how long to wait for min_nodes")
    last_call_timeout: Seconds = Field(
        default=0.3,
        ge=0,
        description="how long to wait for more nodes once there are enough, before the first world and before one "
        "that grows; 30 where every growth restarts all workers, as under hard. A world that shrinks never waits",
    )
    close_timeout: Seconds = Field(default=30, gt=0, description="how long a failed node waits for the job to be ended")
    read_timeout: Seconds = Field(
        default=60, gt=0, description="how long to try to reach the store, and to wait for its answer"
    )
    keep_alive_interval: float | None = Field(
        default=None,
        gt=0,
        le=_LONGEST_INTERVAL_S,
        allow_inf_nan=False,
        description="time between two beats; 0.25 by default, in jobs of N > 128 nodes N / 512, at most 1.8",
    )
    keep_alive_max_attempt: int = Field(
        default=5,
        ge=2,
        le=_MOST_BEATS,
        description="beats that may be missed before a node is dead; up to three times as many while beats come late",
    )
    is_host: bool | None = Field(
        default=None, description="listen at the endpoint, or not; by default if the address is this machine's"
    )
    witness: str | None = Field(
        default=None, description="HOST:PORT of `softrun witness`, which has the casting vote on the next world"
    )
    timeout: Seconds | None = Field(default=None, description="torch's old name for join_timeout")
    rank: int = Field(
        default=0, ge=0, le=_HIGHEST_RANK, description="where this node would stand among the nodes: --node_rank"
    )
    store_type: Literal["tcp"] = "tcp"
    heartbeat_timeout: Seconds | None = Field(default=None, description="torch's; has no meaning here")
    token_file: str | None = Field(
        default=None,
        description="file of the job's secret, which agents prove to each other; else SOFTRUN_TOKEN_FILE",
    )

    def beat_interval_s(self, nodes: int) -> float:
        """The time between two beats in a job of up to so many nodes."""
        return min(self._interval_s(nodes), self.tolerance_s(nodes) / LEAST_BEATS)

    def tolerance_s(self, nodes: int) -> float:
        """After how long a silent node is dead in a job of up to so many."""
        return self._interval_s(nodes) * self.keep_alive_max_attempt

    def _interval_s(self, nodes: int) -> float:
        return self.keep_alive_interval or min(BEAT_S * max(1.0, nodes / MANY_NODES), SLOWEST_BEAT_S)

    @classmethod
    def parse(cls, given: Mapping[str, Any], policy: RestartPolicyStrategy) -> Self:
        """Read the settings. An unknown key is said, and passed over, as torch passes it over without a word.

        Raises UsageError for a value that is out of range, and for a key that looks like that of a secret, which would
        be left out in silence.
        """
        values = {key: value for key, value in given.items() if cls._knows(key)}
        if "timeout" in values:
            values.setdefault("join_timeout", values["timeout"])
        if policy.respond(Trigger.SCALE_UP) is Response.STOP_MEET_START:
            values.setdefault("last_call_timeout", 30)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            fault = error.errors()[0]
            key = ".".join(map(str, fault["loc"]))
            key = "timeout" if key == "join_timeout" and key not in given else key
            raise UsageError(f"--rdzv_conf {key}={fault['input']!r} is refused: {fault['msg']}") from None

    @classmethod
    def _knows(cls, key: str) -> bool:
        if key in cls.model_fields:
            return True
        says = f"--rdzv_conf has no key {printable(key)!r}"
        if get_close_matches(key.lower(), _OF_SECRETS, cutoff=_LIKE):
            raise UsageError(f"{says}: use {', '.join(cls.model_fields)}")
        meant = get_close_matches(key.lower(), cls.model_fields, n=1, cutoff=_LIKE)
        logger.warning("%s, which is left out: %s", says, f"use {meant[0]}" if meant else "torch leaves it out as well")
        return False


class EtcdSettings(RendezvousSettings):
    """The additional settings of `--rdzv_backend etcd3`; not the password, which would show on the command line."""

    lease_ttl: float = Field(
        default=20,
        ge=1,
        le=3600,
        description="an etcd that is away for up to about two thirds of it is not noticed by the workers, and a silent "
        "host is left behind after so long at the latest; etcd grants 2 s at least, with its default timing",
    )
    protocol: Literal["http", "https"] = "http"
    ca_cert: str | None = Field(default=None, description="file of the authorities that etcd's certificate is from")
    ssl_cert: str | None = Field(default=None, description="file of this client's certificate, for mutual TLS")
    ssl_cert_key: str | None = Field(default=None, description="file of the key of ssl_cert")
    user: str | None = None
    password_file: str | None = Field(default=None, description="file of the password, else SOFTRUN_ETCD_PASSWORD")
