"""The store that `--rdzv_backend` names, and how to reach it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from softrun.agent.errors import UsageError
from softrun.agent.protocol.model import Address
from softrun.agent.store.addresses import address_towards
from softrun.agent.store.base import Store
from softrun.agent.store.c10d import C10dStore, parse_endpoint
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.etcd_client import EtcdAccess, parse_endpoints
from softrun.agent.store.settings import PASSWORD_VARIABLE, EtcdSettings, RendezvousSettings
from softrun.policies import RestartPolicyStrategy


@dataclass(frozen=True)
class Backend:
    """A store that is not open yet, and what the agent needs to know about it."""

    job: str
    settings: RendezvousSettings
    host: str
    """This machine's address on the way to the store, which others can reach if they can reach the store."""
    open: Callable[[], Store]
    named_store: Address | None = None
    """Where the workers of the first world meet, if the user has named the place."""


def choose_backend(
    name: str,
    endpoint: str,
    conf: dict[str, object],
    policy: RestartPolicyStrategy,
    run_id: str,
    node: str,
    nodes: int,
    local_addr: str | None,
) -> Backend:
    """Return the store that the flags name. Raises UsageError if they are malformed or unknown, StoreLostError if its
    host cannot be reached."""
    match name:
        case "c10d":
            settings = RendezvousSettings.parse(conf, policy)
            host, port = parse_endpoint(endpoint)
            opens = partial(C10dStore, run_id, host, port, settings.read_timeout, settings.is_host)
            own = local_addr or address_towards([(host, port)], settings.read_timeout)
            return Backend(run_id, settings, own, opens)
        case "static":
            settings = RendezvousSettings.parse(conf, policy)
            host, port = parse_endpoint(endpoint)
            if settings.rank >= nodes:
                raise UsageError(f"--node_rank {settings.rank} is not one of {nodes} nodes: give 0 to {nodes - 1}")
            # Node 0 may start last, and only this waits for it.
            patience_s = max(settings.read_timeout, settings.join_timeout)
            opens = partial(C10dStore, run_id, host, port, patience_s, settings.rank == 0)
            own = local_addr or address_towards([(host, port)], patience_s)
            return Backend(run_id, settings, own, opens, Address(host, port))
        case "etcd3":
            etcd = EtcdSettings.parse(conf, policy)
            access = _access(endpoint, etcd)
            targets = [parse_endpoint(member) for member in access.endpoints]
            opens_etcd = partial(EtcdStore, run_id, node, access, etcd.lease_ttl, etcd.read_timeout)
            own = local_addr or address_towards(targets, etcd.read_timeout)
            return Backend(run_id, etcd, own, opens_etcd)
        case _:
            raise AssertionError(f"no backend of softrun's: {name!r}")


def _access(endpoint: str, settings: EtcdSettings) -> EtcdAccess:
    secure = settings.protocol == "https" or "https://" in endpoint
    kept = _password_from_environment()
    password = _password_from_file(settings.password_file) or kept
    if settings.user is not None and password is None:
        raise UsageError(
            f"--rdzv_conf has user={settings.user} but there is no password: give password_file there, or set "
            f"{PASSWORD_VARIABLE}"
        )
    return EtcdAccess(
        endpoints=parse_endpoints(endpoint),
        tls=secure or settings.ca_cert is not None or settings.ssl_cert is not None,
        ca_cert=settings.ca_cert,
        ssl_cert=settings.ssl_cert,
        ssl_cert_key=settings.ssl_cert_key,
        user=settings.user,
        password=password if settings.user is not None else None,
    )


def _password_from_file(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return Path(name).read_text().strip()
    except OSError as error:
        raise UsageError(f"--rdzv_conf password_file={name} cannot be read: {error.strerror}") from error


@cache
def _password_from_environment() -> str | None:
    """Take it out of the environment, which the workers inherit. Call it even if the password is of no use."""
    return os.environ.pop(PASSWORD_VARIABLE, None)
