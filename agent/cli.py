"""The command line: torchrun's flags, which torch itself parses, and a short group of softrun's own flags."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
import traceback
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softrun.agent.console import log_to_stderr, quieten_torch
from softrun.agent.errors import PreemptedError, SoftrunError, UsageError
from softrun.agent.flags import MASTER_PORT
from softrun.agent.flags import build_parser as build_parser  # programs look at the flags here
from softrun.agent.memory import gather_memory_later, give_back_memory
from softrun.agent.protocol.printable import printable
from softrun.agent.store.secrets import take_secrets
from softrun.agent.usage import LONGEST_LINE, check_log_level, error_line
from softrun.agent.workers.fork_server import PRELOADED, Script, begun
from softrun.runtime.channel.channel import ChannelError
from softrun.runtime.events import RESUME

if TYPE_CHECKING:
    from softrun.agent.launch import LaunchConfig
    from softrun.agent.torch_elastic.elastic import Std

DEBUG_VARIABLE = "SOFTRUN_DEBUG"
OWN_FIELDS = ("restart_policy", "worker_failure", "commit", "soft_timeout", "hard_timeout", "time_limit")
WITNESS = "witness"
"""The first argument that makes this command a job's witness. A program of that name is run as ./witness."""
_STREAMS_BY_RANK = re.compile(r"\d+:[0-3](,\d+:[0-3])*")
_STREAMS = re.compile(rf"[0-3]|{_STREAMS_BY_RANK.pattern}")

logger = logging.getLogger("softrun")


def main(argv: list[str]) -> int:
    """Run the launcher; returns its exit code. Every error but a worker's own is one line on standard error."""
    debug = os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")
    take_secrets()
    log_to_stderr(debug)
    try:
        check_log_level()
    except UsageError as error:
        _complain(str(error), debug)
        return 1
    try:
        if argv[:1] == [WITNESS]:
            return _witness(argv[1:], debug)
        with _template(argv):
            quieten_torch()
            return _report(argv, debug)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
        raise


def _witness(argv: list[str], debug: bool) -> int:
    """A signal ends it as it ends any process: it has nothing to clean up."""
    from softrun.agent import witness

    try:
        witness.run(argv)
    except SoftrunError as error:
        _complain(str(error), debug)
        return 1
    return 0


def _report(argv: list[str], debug: bool) -> int:
    from softrun.agent.torch_elastic.elastic import ChildFailedError, SignalException, record

    try:
        record(_run)(argv)
    except PreemptedError as error:
        print(f"softrun: {printable(str(error), LONGEST_LINE)}", file=sys.stderr)
        return RESUME
    except (ChildFailedError, SignalException) as error:
        # As the interpreter would print it, but without the traceback of the launcher, which helps nobody.
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
    except (SoftrunError, ChannelError) as error:
        _complain(str(error), debug)
    except OSError as error:
        _complain(f"{error}: look at this machine's limits and permissions", debug)
    else:
        return 0
    return 1


def _run(argv: list[str]) -> None:
    from softrun.agent.launch import launch_agent

    job = parse(argv)
    give_back_memory()
    gather_memory_later()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # the entry point's setting
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        launch_agent(*job)
    finally:
        _remove_if_empty(job[0].logs_specs)


def parse(argv: list[str]) -> tuple[LaunchConfig, Callable[..., Any] | str, list[Any]]:
    """Return what to run. Raises UsageError; argparse itself exits with 2 if the line is malformed."""
    args = _read(argv)
    _check_values(args)
    _choose_backend(args)
    from softrun.agent.launch import LaunchConfig
    from softrun.agent.torch_elastic.elastic import config_from_args
    from softrun.agent.torch_elastic.handler import OWN_BACKENDS

    log_dir, node_rank, shutdown_timeout = args.log_dir, args.node_rank, args.shutdown_timeout
    args.shutdown_timeout = 0  # LaunchConfig refuses a wrong one by its flag, or by its variable
    if args.rdzv_backend in OWN_BACKENDS:
        args.node_rank = 0  # all of our backends use it, below; torch would warn that it is ignored
    if args.rdzv_backend != "static":
        del args.master_addr  # torch would warn that it is ignored, even if it was not given
    try:
        streams = _streams_of_many_ranks(args)
        if streams:
            args.log_dir = os.devnull  # for logs that will not be used
        torch_config, entrypoint, script_args = config_from_args(args)
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        raise UsageError(_refusal(error, args)) from error
    fields = {name: value for name, value in vars(torch_config).items() if name in LaunchConfig.__dataclass_fields__}
    fields["shutdown_timeout"] = shutdown_timeout
    fields["rdzv_configs"] = _rendezvous_configs(args, fields["rdzv_configs"])
    if args.rdzv_backend in OWN_BACKENDS:
        fields["rdzv_configs"]["rank"] = node_rank
    if streams:
        filtered = {int(rank) for rank in args.local_ranks_filter.split(",") if rank}
        logs_class: Any = type(torch_config.logs_specs)
        fields["logs_specs"] = logs_class(log_dir=log_dir, local_ranks_filter=filtered or None, **streams)
    own = {name: getattr(args, name) for name in OWN_FIELDS}
    own["preload"] = [name.strip() for name in args.preload.split(",") if name.strip()]
    try:
        config = LaunchConfig(**fields, **own, warm_start=not args.no_warm_start)
    except UsageError:
        _remove_if_empty(fields["logs_specs"])
        raise
    return config, entrypoint, script_args


def _read(argv: list[str]) -> argparse.Namespace:
    """Have argparse read the line."""
    try:
        parser = build_parser()
    except ValueError as error:  # a switch in the environment, which torch takes for a number
        wrong = [
            f"{name} {value!r}"
            for name, value in os.environ.items()
            if name.startswith("PET_") and f"{error}".endswith(repr(value))
        ]
        raise UsageError(f"{wrong[0] if wrong else error} is not a switch: give 0 or 1, or unset it") from error
    args = parser.parse_args(argv)
    for action in parser._actions:
        # Of `--flag=--` argparse makes an empty list, until Python 3.12.
        takes_one = action.option_strings and action.nargs is None and action.default != []
        if takes_one and getattr(args, action.dest) == []:
            raise UsageError(f"{action.option_strings[-1]} has '--' as its value: give another, or leave it out")
    return args


def _remove_if_empty(logs_specs: Any) -> None:
    """Leave no directory for logs behind if there are none: torch makes it before the line is known to be good."""
    made = getattr(logs_specs, "root_log_dir", None)
    if made and Path(made).name.startswith("torchelastic_"):
        with suppress(OSError):
            Path(made).rmdir()


def _check_values(args: argparse.Namespace) -> None:
    """Refuse what torch would refuse without naming the flag or the remedy."""
    _check_nodes(args.nnodes)
    if args.max_restarts < 0:
        raise UsageError(f"--max_restarts {args.max_restarts} is less than 0: give 0 or more")
    for name in ("redirects", "tee"):
        if not _STREAMS.fullmatch(getattr(args, name)):
            raise UsageError(
                f"--{name} {getattr(args, name)!r} names no streams: give 0 (none), 1 (stdout), 2 (stderr) or 3 "
                "(both), or one of them for each local rank, as in 0:3,1:1"
            )
    for pair in filter(None, args.rdzv_conf.split(",")):
        if not all(part.strip() for part in pair.partition("=")):
            raise UsageError(f"--rdzv_conf {pair!r} is not a setting: give KEY=VALUE,KEY=VALUE,…")
    if args.no_python and args.module:
        raise UsageError("--no_python and --module exclude each other: leave one of them out")
    if args.run_path and not os.path.exists(args.training_script):  # noqa: PTH110 - Path's raises for a long name
        raise UsageError(f"the training script {args.training_script!r} does not exist: correct its path")


def _refusal(error: Exception, args: argparse.Namespace) -> str:
    """Why torch refuses the command line."""
    if isinstance(error, OSError):
        return f"--log_dir {args.log_dir!r} cannot be made ({error.strerror}): give a directory that can be written to"
    said = f"{error}".splitlines()[0] if f"{error}" else type(error).__name__
    if said.endswith("is not available.") or "nproc_per_node" in said:
        remedy = "give a number, auto, or a device that is here"
        return f"--nproc_per_node {args.nproc_per_node!r} is refused ({said}): {remedy}"
    return said


def _check_nodes(nnodes: str) -> None:
    minimum, _, maximum = nnodes.partition(":")
    maximum = maximum or minimum
    try:
        good = 1 <= int(minimum) <= int(maximum)
    except ValueError:
        good = False
    if not good or nnodes.endswith(":"):
        raise UsageError(
            f"--nnodes {nnodes!r} is not a number or a range of nodes: give N or MIN:MAX, with 1 <= MIN <= MAX"
        )


def _choose_backend(args: argparse.Namespace) -> None:
    """Fill in the rendezvous as torchrun does."""
    one_node = args.nnodes.rpartition(":")[2].strip() == "1"
    alone = args.rdzv_backend == "static" and not args.rdzv_endpoint and args.master_port is None and one_node
    if args.standalone or alone:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "c10d", "localhost:0", str(uuid.uuid4())
    if args.master_port is None:
        args.master_port = MASTER_PORT


def _rendezvous_configs(args: argparse.Namespace, configs: dict[str, Any]) -> dict[str, Any]:
    """The user's own settings: torch's LaunchConfig adds a legacy default for the timeout."""
    said = any(pair.partition("=")[0].strip() == "timeout" for pair in args.rdzv_conf.split(","))
    return {key: value for key, value in configs.items() if said or key != "timeout"}


def _streams_of_many_ranks(args: argparse.Namespace) -> dict[str, Std | dict[int, Std]]:
    """What --redirects and --tee mean if they name ranks above 9, which torch cannot read; otherwise nothing."""
    from softrun.agent.torch_elastic.elastic import Std

    given = {name: getattr(args, name) for name in ("redirects", "tee")}
    if not any(re.search(r"\d\d:", text) and _STREAMS_BY_RANK.fullmatch(text) for text in given.values()):
        return {}
    meant: dict[str, Std | dict[int, Std]] = {}
    for name, text in given.items():
        if _STREAMS_BY_RANK.fullmatch(text):
            meant[name] = {int(rank): Std(int(std)) for rank, std in (pair.split(":") for pair in text.split(","))}
            setattr(args, name, "0")
        else:
            meant[name] = Std.from_str(text)
    return meant


def _complain(text: str, debug: bool) -> None:
    print(error_line(text), end="", file=sys.stderr)
    if debug:
        traceback.print_exc()


def _template(argv: list[str]) -> AbstractContextManager[None]:
    """Start the fork server early, from a guess: torch is not there yet to parse the line. A wrong guess costs time."""
    guess = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    guess.add_argument("--nproc-per-node", "--nproc_per_node", default=os.environ.get("PET_NPROC_PER_NODE", "1"))
    guess.add_argument("--preload")
    for flag in ("--no-warm-start", "--no-python", "--run-path", "--numa-binding", "--help"):
        guess.add_argument(flag, "--" + flag[2:].replace("-", "_"), dest="cold", action="store_true")
    try:
        known, rest = guess.parse_known_args(argv)
    except argparse.ArgumentError:  # the script has a flag that looks like one of these
        return nullcontext()
    if not rest or known.cold or "PET_NO_WARM_START" in os.environ:
        return nullcontext()
    script = next((word for word in rest if word.endswith(".py")), "")
    if known.preload is None and script and not Script((), False, script, ()).names(PRELOADED):
        return nullcontext()  # it would delay the imports of others
    sets_threads = known.nproc_per_node != "1" and "OMP_NUM_THREADS" not in os.environ
    return begun({"OMP_NUM_THREADS": "1"} if sets_threads else {})
