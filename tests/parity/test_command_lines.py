"""Random command lines: torchrun and softrun accept or refuse alike, and understand the same."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.launcher.api import LaunchConfig as TorchLaunchConfig

from softrun.agent import cli
from softrun.agent.errors import UsageError

Understood = tuple[Any, Any, list[Any]]
numbers = st.sampled_from(["0", "1", "2", "-1", "1.5", "x", ""])
words = st.sampled_from(["a", "job-7", "", "a b", "a,b", "a,,b"])
#: Values for each flag, likely ones and unlikely ones.
VALUES: dict[str, st.SearchStrategy[str]] = {
    "--nnodes": st.sampled_from(["1", "1:1", "1:4", "2", "4:2", "0", "0:1", ":", "1:", ":1", "1:2:3", "two", "-1"]),
    "--nproc-per-node": st.sampled_from(["1", "2", "0", "-1", "cpu", "auto", "gpu", "xpu", "many", ""]),
    "--rdzv-backend": st.sampled_from(["c10d", "static", ""]),
    "--rdzv-endpoint": st.sampled_from(["localhost:0", "127.0.0.1:29400", ""]),
    "--rdzv-id": words,
    "--rdzv-conf": st.sampled_from(
        ["", "timeout=3", "join_timeout=3,read_timeout=4", "a", "=", "join_timeout=", "rank=1"]
    ),
    "--max-restarts": numbers,
    "--monitor-interval": st.sampled_from(["0.1", "1", "0", "-1", "x"]),
    "--start-method": st.sampled_from(["spawn", "fork", "forkserver", "thread"]),
    "--event-log-handler": words,
    "--role": words,
    "--redirects": st.sampled_from(["0", "1", "3", "4", "0:1", "0:3,1:2", "0:4", "0:1,", "x", ""]),
    "--tee": st.sampled_from(["0", "2", "3", "7", "1:3", "0:1,1:1", ":", "x"]),
    "--local-ranks-filter": st.sampled_from(["0", "0,1", "a", ",", "0,", ""]),
    "--duplicate-stdout-filters": words,
    "--duplicate-stderr-filters": words,
    "--node-rank": numbers,
    "--master-addr": st.sampled_from(["127.0.0.1", "localhost", ""]),
    "--master-port": st.sampled_from(["29500", "0", "x"]),
    "--local-addr": st.sampled_from(["127.0.0.1", ""]),
    "--numa-binding": st.sampled_from(["node", "socket", "exclusive", "core-complex", "nowhere"]),
    "--shutdown-timeout": numbers,
    "--logs-specs": st.sampled_from(["loud"]),
}
SWITCHES = ["--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank", "--no-such-flag"]


@st.composite
def flags(draw: st.DrawFn) -> list[str]:
    """One flag and its value, written in one of the ways in which people write it."""
    if draw(st.integers(0, 4)) == 0:
        return [draw(st.sampled_from(SWITCHES))]
    name = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[name])
    written = name if draw(st.booleans()) else "--" + name[2:].replace("-", "_")
    if draw(st.integers(0, 3)) == 0:
        written = written[: draw(st.integers(4, len(written)))]
    return [f"{written}={value}"] if draw(st.booleans()) else [written, value]


command_lines = st.lists(flags(), max_size=4).flatmap(
    lambda given: st.lists(
        st.sampled_from(["--lr", "0.1", "--nnodes", "-m", "--restart_policy", "--"]), max_size=2
    ).map(lambda args: [word for flag in given for word in flag] + ["/dev/null", *args])
)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as directory, patch.object(tempfile, "tempdir", directory):
        yield


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(command_lines)
def test_they_accept_and_refuse_alike(argv: list[str]) -> None:
    with patch.dict("os.environ", {"OMP_NUM_THREADS": "1"}):
        theirs, ours = _torchs_way(argv), _softruns_way(argv)
    if isinstance(theirs, str) or isinstance(ours, str):
        event("refused")
        assert isinstance(theirs, str) == isinstance(ours, str), f"torchrun: {theirs}\nsoftrun: {ours}"
        assert "\n" not in str(ours)
        return
    event("accepted")
    for name in (field.name for field in dataclasses.fields(TorchLaunchConfig)):
        assert _known(name, ours) == _known(name, theirs), name
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize("streams", ["10:3", "0:1,11:2"])
def test_streams_of_any_rank_are_redirected(streams: str) -> None:
    config, *_ = cli.parse(["--redirects", streams, "--tee=0:3", "/dev/null"])
    rank, stream = streams.split(",")[-1].split(":")
    assert config.logs_specs is not None
    assert config.logs_specs._redirects[int(rank)] == int(stream)
    assert config.logs_specs._tee == {0: 3}


def _torchs_way(argv: list[str]) -> Understood | str:
    """What torchrun would launch, or why it would not."""
    launched: list[Understood] = []

    class Capture:
        def __init__(self, config: Any, entrypoint: Any) -> None:
            self.found = config, entrypoint

        def __call__(self, *args: Any) -> None:
            launched.append((*self.found, list(args)))

    with patch.object(torchrun, "elastic_launch", Capture), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            torchrun.run(torchrun.parse_args(argv))
            config, entrypoint, _ = launched[0]
            # These are refused as late as here.
            WorkerSpec(
                role=config.role,
                local_world_size=config.nproc_per_node,
                rdzv_handler=None,  # type: ignore[arg-type]
                entrypoint=entrypoint,
                monitor_interval=config.monitor_interval,
            )
        except SystemExit:
            return said.getvalue().splitlines()[-1]
        except Exception as error:
            return repr(error)
    return launched[0]


def _softruns_way(argv: list[str]) -> Understood | str:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            return cli.parse(argv)
        except SystemExit:
            return said.getvalue().splitlines()[-1]
        except UsageError as error:
            return str(error)


def _known(name: str, understood: Understood) -> Any:
    """One field, without what is random or only ours."""
    config = understood[0]
    value = getattr(config, name)
    match name:
        case "rdzv_configs":
            return {key: setting for key, setting in value.items() if key not in ("timeout", "rank")}
        case "run_id" if config.rdzv_endpoint == "localhost:0":
            return ""
        case "logs_specs":
            given = value.root_log_dir
            where = "" if given.startswith(str(Path(tempfile.gettempdir()))) else given
            return type(value), where, value._redirects, value._tee, value._local_ranks_filter
        case _:
            return value
