"""What `--rdzv_backend` names, and how to get there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from softrun.agent.errors import UsageError
from softrun.agent.links.names import is_address, is_loopback
from softrun.agent.links.secret import new_token, read_token
from softrun.agent.protocol.checks import is_host
from softrun.agent.protocol.codec import MOST_OF_RECORD, bytes_of_members
from softrun.agent.protocol.model import Address
from softrun.agent.protocol.printable import printable
from softrun.agent.store import etcd_client
from softrun.agent.store.addresses import address_towards, parse_endpoint, parse_endpoints
from softrun.agent.store.base import Store
from softrun.agent.store.etcd import EtcdStore
from softrun.agent.store.given_files import secret_in
from softrun.agent.store.secrets import secret_of, take_secrets, token_path
from softrun.agent.store.settings import PASSWORD_VARIABLE, EtcdSettings, RendezvousSettings
from softrun.agent.store.tls_files import check_tls_files
from softrun.policies import RestartPolicyStrategy

logger = logging.getLogger("softrun")


@dataclass(frozen=True)
class Backend:
    """Where the record of a job is kept, and what the agent needs to know to get there."""

    job: str
    settings: RendezvousSettings
    host: str
    """This machine's address on the way there, by which others can reach it if they get there themselves."""
    bind: str
    """Where to listen for them; "" is everywhere."""
    endpoints: tuple[Address, ...] = ()
    """Where agents that keep the record themselves find each other."""
    open: Callable[[], Store] | None = None
    """Opens the store that keeps it, if there is one."""
    listens: bool | None = None
    """Whether this agent listens at an endpoint; None: if the address is its own."""
    search_s: float = 60.0
    """How long to look for the job."""
    secret: bytes | None = None
    """What the agents of the job prove to each other."""
    named_store: Address | None = None
    """Where the workers of the first world meet, if the user has named the place."""
    witness: Address | None = None
    """Where the job's witness listens, if it has one."""

    @property
    def is_only_host(self) -> bool:
        """Whether the job can begin nowhere but here: at the place that the user has named, on node 0."""
        return self.named_store is not None and self.listens is True


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
    """Return the backend that the flags name. Raises UsageError if they are malformed or unknown, StoreLostError if
    its host cannot be reached."""
    if name == "etcd3":
        etcd = EtcdSettings.parse(conf, policy)
        _refuse_witness(etcd, "with etcd3, which decides by itself: leave it out")
        access = _access(endpoint, etcd)
        targets = [parse_endpoint(member) for member in access.endpoints]
        opens = partial(EtcdStore, run_id, node, access, etcd.lease_ttl, etcd.read_timeout)
        own = local_addr or address_towards(targets, etcd.read_timeout)
        return Backend(run_id, etcd, own, _bind(own, local_addr, ()), open=opens, secret=_secret(etcd))
    settings = RendezvousSettings.parse(conf, policy)
    endpoints = parse_endpoints(endpoint)
    search_s, listens, named = settings.read_timeout, settings.is_host, None
    witness = _witness(settings, endpoints) if name == "c10d" else None
    if name == "static":
        _refuse_witness(settings, "with static: use --rdzv_backend c10d")
        if settings.rank >= nodes:
            raise UsageError(f"--node_rank {settings.rank} is not one of {nodes} nodes: give 0 to {nodes - 1}")
        if len(endpoints) > 1:
            raise UsageError("--rdzv_backend static has one endpoint, the host of node 0: use c10d for a list of them")
        if endpoints[0].port == 0 and nodes > 1:
            raise UsageError("--master_port 0 names no port that other nodes could find: give one that is free")
        # Node 0 may start last, and only this waits for it.
        search_s, listens = max(search_s, settings.join_timeout), settings.rank == 0
        named = endpoints[0] if endpoints[0].port else None
    own = local_addr or address_towards([(each.host, each.port) for each in endpoints], search_s)
    _refuse_larger(nodes, node, own)
    secret = _secret(settings)
    if secret is None and all(each.port == 0 for each in endpoints):
        secret = new_token()  # nobody else can find this job
    bind = _bind(own, local_addr, endpoints)
    return Backend(run_id, settings, own, bind, endpoints, None, listens, search_s, secret, named, witness)


def _witness(settings: RendezvousSettings, endpoints: tuple[Address, ...]) -> Address | None:
    if settings.witness is None:
        return None
    if all(each.port == 0 for each in endpoints):
        _refuse_witness(settings, "on one node alone: leave it out")
    witness = Address(*parse_endpoint(settings.witness, "--rdzv_conf witness"))
    if not is_host(witness.host) or witness.port == 0:
        raise UsageError(
            f"--rdzv_conf witness={settings.witness[:80]!r} is not where a witness can listen: give HOST:PORT"
        )
    if witness in endpoints:
        raise UsageError(
            f"--rdzv_conf witness={settings.witness} is where an agent listens, too: give another port or host to one"
        )
    return witness


def _refuse_witness(settings: RendezvousSettings, where: str) -> None:
    if settings.witness is not None:
        raise UsageError(f"--rdzv_conf witness={settings.witness} is of no use {where}")


def _refuse_larger(nodes: int, node: str, host: str) -> None:
    """The agents send each other the record, which names all nodes."""
    size = bytes_of_members(nodes, node, host)
    if size > MOST_OF_RECORD:
        raise UsageError(
            f"--nnodes: the record of a job of {nodes} nodes with names such as {printable(node)} takes up to "
            f"{size / 2**20:.1f} MiB, and {MOST_OF_RECORD / 2**20:.1f} at most: give a lower MAX, or shorter host names"
        )


def _bind(own: str, given: str | None, endpoints: tuple[Address, ...]) -> str:
    """Where to listen for others that know this machine as `own`; `given`: by the user, so it may lead here."""
    if endpoints and all(is_loopback(each.host) for each in endpoints):
        return own if is_loopback(own) and own != "localhost" else "127.0.0.1"
    return own if given is None and is_address(own) else ""


def _secret(settings: RendezvousSettings) -> bytes | None:
    path = token_path(settings.token_file)
    return read_token(path) if path is not None else None


def _access(endpoint: str, settings: EtcdSettings) -> etcd_client.EtcdAccess:
    take_secrets()  # even if they are of no use
    check_tls_files(settings.ca_cert, settings.ssl_cert, settings.ssl_cert_key)
    endpoints = etcd_client.parse_endpoints(endpoint)
    secure = settings.protocol == "https" or "https://" in endpoint
    tls = secure or settings.ca_cert is not None or settings.ssl_cert is not None
    return etcd_client.EtcdAccess(
        endpoints=endpoints,
        tls=tls,
        ca_cert=settings.ca_cert,
        ssl_cert=settings.ssl_cert,
        ssl_cert_key=settings.ssl_cert_key,
        user=settings.user,
        password=None if settings.user is None else _password(settings.user, settings.password_file, tls),
    )


def _password(user: str, file: str | None, tls: bool) -> str:
    password = secret_of(PASSWORD_VARIABLE) or None if file is None else secret_in("password_file", file)
    if password is None:
        raise UsageError(
            f"--rdzv_conf has user={user} but there is no password: give password_file there, or set "
            f"{PASSWORD_VARIABLE}"
        )
    if not tls:
        logger.warning(
            "the password of --rdzv_conf user=%s goes to etcd unencrypted: give protocol=https there", printable(user)
        )
    return password
