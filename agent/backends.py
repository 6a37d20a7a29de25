"""Which store `--rdzv_backend` names, and which way to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.etcd_client import EtcdAccess, parse_endpoints
from softrun.agent.model import Address
from softrun.agent.settings import EtcdSettings, RendezvousSettings
from softrun.agent.store import Store
from softrun.agent.store_c10d import C10dStore, parse_endpoint
from softrun.agent.store_etcd import EtcdStore

PASSWORD_VARIABLE = "SOFTRUN_ETCD_PASSWORD"


@dataclass(frozen=True)
class Backend:
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
    policy: str,
    run_id: str,
    node: str,
    nodes: int,
    local_addr: str | None,
) -> Backend:
    """Raises UsageError for what is malformed or unknown, StoreLostError where no way leads there."""
    match name:
        case "c10d":
            settings = RendezvousSettings.parse(conf, policy)
            host, port = parse_endpoint(endpoint)
            opens = partial(C10dStore, run_id, host, port, settings.read_timeout, settings.is_host)
            return Backend(run_id, settings, local_addr or address_towards([(host, port)]), opens)
        case "static":
            settings = RendezvousSettings.parse(conf, policy)
            host, port = parse_endpoint(endpoint)
            if settings.rank >= nodes:
                raise UsageError(f"--node_rank {settings.rank} is none of {nodes} nodes: give 0 to {nodes - 1}")
            opens = partial(C10dStore, run_id, host, port, settings.read_timeout, settings.rank == 0)
            own = local_addr or (host if settings.rank == 0 else address_towards([(host, port)]))
            return Backend(run_id, settings, own, opens, Address(host, port))
        case "etcd3":
            etcd = EtcdSettings.parse(conf, policy)
            access = _access(endpoint, etcd)
            targets = [parse_endpoint(member) for member in access.endpoints]
            opens_etcd = partial(EtcdStore, run_id, node, access, etcd.lease_ttl, etcd.read_timeout)
            return Backend(run_id, etcd, local_addr or address_towards(targets), opens_etcd)
        case _:
            raise AssertionError(f"no backend of softrun's: {name!r}")


def address_towards(targets: list[tuple[str, int]]) -> str:
    """This machine's address on the way to the first of the targets to which there is one."""
    reason = ""
    for host, port in targets:
        try:
            family, kind, _, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as sock:
                sock.connect(target)  # sends nothing, for a datagram socket
                address = str(sock.getsockname()[0])
        except OSError as error:
            reason = reason or error.strerror or str(error)
            continue
        # A machine often knows its own name as a loopback address. The others know it by that name, too, and better.
        return host if _is_loopback(address) and not _is_loopback(host) else address
    raise StoreLostError(
        f"no way to the host {targets[0][0]!r} of --rdzv_endpoint ({reason}): correct it, or give this machine's "
        "address by --local_addr"
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _access(endpoint: str, settings: EtcdSettings) -> EtcdAccess:
    secure = settings.protocol == "https" or "https://" in endpoint
    kept = _password_from_environment()
    password = _password_from_file(settings.password_file) or kept
    if settings.user is not None and password is None:
        raise UsageError(
            f"--rdzv_conf has user={settings.user} and there is no password: give password_file there, or set "
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
    """Taken out of the environment, which the workers inherit; so it is asked for whether it is of use or not."""
    return os.environ.pop(PASSWORD_VARIABLE, None)
