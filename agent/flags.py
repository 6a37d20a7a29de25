"""The flags: torchrun's, as torch itself defines them, and a short group of softrun's own."""

from __future__ import annotations

import argparse
from typing import Any

from softrun.agent.usage import COMMITS, error_line
from softrun.policies import WorkerFailure, available_policies

MASTER_PORT = 29500
"""What --master_port is by default."""


def build_parser() -> argparse.ArgumentParser:
    """torchrun's parser, with softrun's group of flags."""
    from softrun.agent.torch_elastic.elastic import EnvironmentDefault, FlagInEnvironment, get_args_parser

    parser = get_args_parser()
    parser.prog = "softrun"
    parser.description = "An elastic launcher for PyTorch training that keeps healthy workers alive when others die."
    if parser.get_default("master_port") == MASTER_PORT:
        parser.set_defaults(master_port=None)  # torch 2.12 and earlier could not tell whether it was given
    if parser.get_default("shutdown_timeout") is None and not _has(parser, "--shutdown-timeout"):
        _add(
            parser,
            "shutdown-timeout",
            EnvironmentDefault,
            type=int,
            default=None,
            help="Seconds between the signal and SIGKILL when workers are stopped; "
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, or 30, by default.",
        )
    own = parser.add_argument_group("softrun")
    _add_policy(own, EnvironmentDefault)
    _add_commit(own, EnvironmentDefault)
    _add_timeouts(own, EnvironmentDefault)
    _add_starts(own, EnvironmentDefault, FlagInEnvironment)
    _abbreviate_only_torchs(parser, own)
    refuse: Any = lambda message: parser.exit(2, error_line(f"{message}: --help lists the flags"))  # noqa: E731
    parser.error = refuse  # type: ignore[method-assign]
    return parser


def _add_policy(own: argparse._ArgumentGroup, default: type[argparse.Action]) -> None:
    _add(
        own,
        "restart-policy",
        default,
        default="hard",
        metavar="{" + ",".join(available_policies()) + "}",
        help="What happens to the workers when the world changes: hard restarts all of them; soft keeps the healthy "
        "ones alive and tells them about the new world.",
    )
    _add(
        own,
        "worker-failure",
        default,
        default=WorkerFailure.NO_REPLACE.value,
        metavar="{" + ",".join(variant.value for variant in WorkerFailure) + "}",
        help="What happens under soft when a worker fails: no-replace restarts all workers of its node, replace "
        "restarts only the failed one, record goes on without it.",
    )


def _add_commit(own: argparse._ArgumentGroup, default: type[argparse.Action]) -> None:
    _add(
        own,
        "commit",
        default,
        default="fast",
        metavar="{" + ",".join(COMMITS) + "}",
        help="How the agents decide on blocks of live_workers: fast by one message each way, durable by a change of "
        "the record, which is slower, and simpler to trust.",
    )


def _add_timeouts(own: argparse._ArgumentGroup, default: type[argparse.Action]) -> None:
    _add(
        own,
        "soft-timeout",
        default,
        type=float,
        default=None,
        metavar="SECONDS",
        help="How long a worker may make no progress: its main thread executes no byte code, or, if it pings, sends no "
        "ping. Then all workers leave their world, and those that do are in the next one. Default: no limit.",
    )
    _add(
        own,
        "hard-timeout",
        default,
        type=float,
        default=None,
        metavar="SECONDS",
        help="How long a worker may make no progress before it is ended. That counts as its failure; its stacks are in "
        "its log. Default: no limit, but 60 s once it was told to leave its world.",
    )
    _add(
        own,
        "time-limit",
        default,
        type=duration,
        default=None,
        metavar="TIME",
        help="After how long the job must have ended: seconds, or [DAYS-]HH:MM:SS. --shutdown_timeout seconds before, "
        "all ranks stop after the same step, save and leave with exit code 75 (softrun.on_leave). Default: no limit.",
    )


def duration(text: str) -> float:
    """Read a number of seconds, or the way in which schedulers write it: MM:SS, HH:MM:SS or DAYS-HH:MM:SS."""
    days, dash, clock = text.rpartition("-")
    parts = [float(part) for part in clock.split(":")]
    if len(parts) > 3 or (dash and (len(parts) != 3 or not days.isdecimal())) or min(parts) < 0:
        raise ValueError(f"{text!r} is not a duration")
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds + 86400 * int(days or 0)


def _add_starts(
    own: argparse._ArgumentGroup, default: type[argparse.Action], in_environment: type[argparse.Action]
) -> None:
    _add(
        own,
        "no-warm-start",
        in_environment,
        help="Start each worker on its own, with its own imports. By default, workers that are Python scripts are "
        "forked from a process that has imported torch.",
    )
    _add(
        own,
        "preload",
        default,
        default="",
        metavar="MODULE,...",
        help="What that process imports besides torch. Leave out modules that start threads or CUDA.",
    )


def _add(to: argparse._ActionsContainer, flag: str, action: type[argparse.Action], **options: Any) -> None:
    """Add a flag in torch's two spellings, as in --soft-timeout and --soft_timeout."""
    spellings = dict.fromkeys((f"--{flag}", f"--{flag.replace('-', '_')}"))
    to.add_argument(*spellings, action=action, **options)


def _has(parser: argparse.ArgumentParser, flag: str) -> bool:
    return any(flag in action.option_strings for action in parser._actions)


def _abbreviate_only_torchs(parser: argparse.ArgumentParser, own: argparse._ArgumentGroup) -> None:
    """`--re` means --redirects to torchrun: our --restart-policy must not make it ambiguous."""
    find = parser._get_option_tuples
    ours = set(own._group_actions)
    # The method is argparse's own; if it changes one day, some abbreviations become ambiguous.
    torchs: Any = lambda text: [found for found in find(text) if found[0] not in ours]  # noqa: E731
    parser._get_option_tuples = torchs  # type: ignore[method-assign]
