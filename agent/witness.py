"""`softrun witness`: the command that runs a job's witness on a further host. It imports no torch."""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import socket
from typing import Any

from softrun.agent.errors import UsageError
from softrun.agent.links.names import is_address, is_loopback
from softrun.agent.links.secret import read_token
from softrun.agent.loop.witness_loop import run_witness
from softrun.agent.protocol.printable import printable
from softrun.agent.store.addresses import DEFAULT_PORT, parse_endpoint
from softrun.agent.store.secrets import token_path
from softrun.agent.usage import check_endpoint, check_run_id, error_line

DESCRIPTION = (
    "Run a job's witness: it has the casting vote when half of the nodes fall silent, as when one of two does. Start "
    "it on a host of its own, and give every agent --rdzv_conf witness=HOST:PORT. It ends when the job is over."
)


def build_witness_parser() -> argparse.ArgumentParser:
    """The flags of `softrun witness`."""
    parser = argparse.ArgumentParser("softrun witness", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--rdzv-id", "--rdzv_id", required=True, metavar="ID", help="The job's --rdzv_id.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        default="",
        metavar="HOST:PORT",
        help="Where it listens: this host's name or address as the agents know it. Default: every address.",
    )
    where.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="The port, at every address of this host; 0 is a free one."
    )
    parser.add_argument(
        "--rdzv-conf",
        "--rdzv_conf",
        default="",
        metavar="KEY=VALUE",
        help="token_file=FILE: the job's secret, if it has one; SOFTRUN_TOKEN_FILE does the same.",
    )
    refuse: Any = lambda message: parser.exit(2, error_line(f"{message}: --help lists the flags"))  # noqa: E731
    parser.error = refuse  # type: ignore[method-assign]
    return parser


def run(argv: list[str]) -> None:
    """Run the witness that these flags describe until the job is over. Raises UsageError, with one line."""
    args = build_witness_parser().parse_args(argv)
    check_run_id(args.rdzv_id)
    host, bind, port = _place(args.rdzv_endpoint, args.port)
    secret = _secret(args.rdzv_conf)
    node = f"witness-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
    job = printable(args.rdzv_id, 1000)

    def listens(port: int) -> None:
        print(f"softrun witness: listens at {_shown(host)}:{port} for the job {job}", flush=True)

    try:
        result = run_witness(args.rdzv_id, node, host, bind, port, secret, listens)
    except OSError as error:
        raise UsageError(_refusal(error, bind or host, port)) from error
    failed = f", it failed: {printable(result.reason.splitlines()[0], 1000)}" if result.reason else ""
    print(f"softrun witness: the job {job} is over{failed}", flush=True)


def _place(endpoint: str, port: int) -> tuple[str, str, int]:
    """What others are told of where it listens, the address at which it does, and the port."""
    if not endpoint:
        if not 0 <= port <= 65535:
            raise UsageError(f"--port {port} is not from 0 to 65535: correct it")
        return socket.gethostname(), "", port
    if "," in endpoint:
        raise UsageError(f"--rdzv_endpoint {endpoint!r} is a list: give the one HOST:PORT at which the witness listens")
    check_endpoint(endpoint)
    host, port = parse_endpoint(endpoint)
    if host == "localhost":
        return host, "127.0.0.1", port
    # A machine often knows its own name as a loopback address, so behind a name it listens everywhere.
    return host, host if is_address(host) or is_loopback(host) else "", port


def _secret(conf: str) -> bytes | None:
    given = None
    for pair in filter(None, (pair.strip() for pair in conf.split(","))):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key != "token_file":
            raise UsageError(f"--rdzv_conf {pair!r} is no setting of a witness: give token_file=FILE, or leave it out")
        given = value
    path = token_path(given)
    return read_token(path) if path is not None else None


def _refusal(error: OSError, host: str, port: int) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        remedy = "end what listens there, or choose another port"
    else:
        remedy = "give an address of this host, or --port alone"
    return f"the witness cannot listen at {_shown(host)}:{port} ({reason}): {remedy}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
