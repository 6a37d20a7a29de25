"""The command line: torchrun's flags, which torch itself parses, and a short group of softrun's own."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softrun.agent.errors import SoftrunError, UsageError
from softrun.agent.launch import LaunchConfig, launch_agent
from softrun.policies import WorkerFailure, available_policies
from softrun.runtime.channel import ChannelError

DEBUG_VARIABLE = "SOFTRUN_DEBUG"

logger = logging.getLogger("softrun")


def main(argv: list[str]) -> int:
    """Run the launcher; returns its exit code. Every error but a worker's own is one line on standard error."""
    debug = os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
    _log_to_stderr(debug)
    _quieten_torch()
    from softrun.agent.elastic import ChildFailedError, SignalException, record

    try:
        record(_run)(argv)
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except SignalException as error:
        _complain(f"left the job on {signal.Signals(error.sigval).name}", debug)
        return 1
    except (SoftrunError, ChannelError) as error:
        _complain(str(error), debug)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:
        _complain(f"{error}: look at this machine's limits and permissions", debug)
        return 1
    return 0


def _run(argv: list[str]) -> None:
    config, entrypoint, args = parse(argv)
    launch_agent(config, entrypoint, args)


def parse(argv: list[str]) -> tuple[LaunchConfig, Callable[..., Any] | str, list[Any]]:
    """What to run, from the arguments. Raises UsageError; argparse itself exits with 2 for a malformed line."""
    args = build_parser().parse_args(argv)
    _check_nodes(args.nnodes)
    _choose_backend(args)
    from softrun.agent.elastic import config_from_args

    try:
        torch_config, entrypoint, script_args = config_from_args(args)
    except (AssertionError, ValueError, RuntimeError) as error:
        raise UsageError(f"{error}".splitlines()[0]) from error
    fields = {name: value for name, value in vars(torch_config).items() if name in LaunchConfig.__dataclass_fields__}
    # torch's LaunchConfig adds its legacy default, which is not what the user said.
    if not any(pair.partition("=")[0].strip() == "timeout" for pair in args.rdzv_conf.split(",")):
        fields["rdzv_configs"].pop("timeout", None)
    fields["rdzv_configs"].pop("rank", None)
    config = LaunchConfig(**fields, restart_policy=args.restart_policy, worker_failure=args.worker_failure)
    return config, entrypoint, script_args


def build_parser() -> argparse.ArgumentParser:
    """torchrun's parser with a group of our own."""
    from torch.distributed.argparse_util import env

    from softrun.agent.elastic import get_args_parser

    parser = get_args_parser()
    parser.prog = "softrun"
    parser.description = "An elastic launcher for PyTorch training that keeps healthy workers alive when others die."
    own = parser.add_argument_group("softrun")
    own.add_argument(
        "--restart-policy",
        "--restart_policy",
        action=env,
        type=str,
        default="hard",
        metavar="{" + ",".join(available_policies()) + "}",
        help="What happens to the workers when the world changes: hard restarts all of them, soft keeps the healthy "
        "ones alive and tells them of the new world.",
    )
    own.add_argument(
        "--worker-failure",
        "--worker_failure",
        action=env,
        type=str,
        default=WorkerFailure.NO_REPLACE.value,
        metavar="{" + ",".join(variant.value for variant in WorkerFailure) + "}",
        help="Under soft, what happens when a worker fails: no-replace restarts all workers of its node, replace only "
        "the failed one, record goes on without it.",
    )
    return parser


def _check_nodes(nnodes: str) -> None:
    minimum, _, maximum = nnodes.partition(":")
    maximum = maximum or minimum
    if not (minimum.isdigit() and maximum.isdigit() and 1 <= int(minimum) <= int(maximum)):
        raise UsageError(f"--nnodes {nnodes!r} is no number or range of nodes: give N or MIN:MAX with 1 <= MIN <= MAX")


def _choose_backend(args: argparse.Namespace) -> None:
    """Fill in the rendezvous as torchrun does for one node; refuse the backends that are not there."""
    one_node = args.nnodes.rpartition(":")[2] == "1"
    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and one_node
    if args.standalone or alone:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    if args.rdzv_backend == "static":
        raise UsageError(
            "--rdzv_backend 'static' is not there: instead of --node_rank, --master_addr and --master_port give "
            "--rdzv_backend c10d and --rdzv_endpoint HOST:PORT of one node"
        )
    if args.run_path and not Path(args.training_script).exists():
        raise UsageError(f"the training script {args.training_script!r} is not there: correct its path")


def _complain(text: str, debug: bool) -> None:
    print(f"softrun: error: {text}", file=sys.stderr)
    if debug:
        traceback.print_exc()


def _log_to_stderr(debug: bool) -> None:
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"softrun[{os.getpid()}] %(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False


def _quieten_torch() -> None:
    """Import torch so that its C++ side does not print a stack for every connection that is closed.

    The setting is for this agent alone: the workers get the environment as it was.
    """
    name = "TORCH_CPP_LOG_LEVEL"
    if name in os.environ or "torch" in sys.modules:
        return
    os.environ[name] = "ERROR"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[name]
