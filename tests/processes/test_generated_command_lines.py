"""Thousands of generated command lines: each is taken or refused in one line, in bounded time, and leaves nothing.

All of them run in this process up to the point where an agent would begin, and a sample of them as processes of their
own, with real workers. These are forked from one process that has imported torch, since that costs more than the rest.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from softrun.agent import cli, local_agent
from softrun.agent.console import logger
from softrun.agent.protocol.effects import Outcome, Result
from softrun.agent.store import backends, secrets
from softrun.policies import registry

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:Unable to enable fault handler"),  # standard error is no file here
]

SEED = 20_240_101
LINES = 800
TESTS = Path(__file__).parents[1]
REFUSED, TAKEN = 5, 3  # of the sample
SLOWEST_S = 60.0
PROCESS_SLOWEST_S = 60.0

BYTES = os.fsdecode(b"\xff\xfe")
NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "1.5",
    "",
    "x",
    "inf",
    "nan",
    "1e23",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "\u0661",
    "--",
    " 1 ",
]
TEXTS = [
    *(
        "a",
        "",
        " ",
        "--",
        "-",
        "=",
        ",",
        ":",
        "/",
        "..",
        "../x",
        "/etc",
        "a/b",
        ".",
        "~",
        "*",
        "$(id)",
        "a\nb",
        "\x1b[2J",
    ),
    *("\r", "\u202e", BYTES, "ü" * 70, "x" * 300, "y" * 70_000, "a=b", "None", "%s", "{}", "\\", "'", '"', "a b"),
]
HOSTS = [
    "localhost",
    "127.0.0.1",
    "[::1]",
    "::1",
    "",
    "a..b",
    "a" * 64,
    "b" * 300,
    "ü" * 70,
    BYTES,
    "x y",
    "u:pw@h",
    "[",
    "h/",
]
PORTS = ["", ":0", ":29500", ":99999", ":-1", ":x", ":" + "9" * 5000, ":--", ":1:2"]
SECONDS_KEYS = ["join_timeout", "last_call_timeout", "close_timeout", "read_timeout", "keep_alive_interval", "timeout"]
KEYS = [
    *SECONDS_KEYS,
    "keep_alive_max_attempt",
    "is_host",
    "rank",
    "store_type",
    "witness",
    "lease_ttl",
    "nope",
    "backend",
    "endpoint",
]
FILE_KEYS = ["ca_cert", "ssl_cert", "ssl_cert_key", "password_file", "token_file", "user", "protocol"]
FILES = ["/no/such", "/dev/null", "/dev/zero", "/proc/self/mem", "/", "{fifo}", "{empty}", "{bytes}", "{script}", BYTES]
VALUES = {
    "--nnodes": ["1", "1:1", "1:4", "2", "4:2", ":", "1:", ":1", "1:2:3", "1:" + "9" * 30],
    "--nproc-per-node": ["1", "2", "cpu", "auto", "gpu", "99999999999999"],
    "--rdzv-backend": ["c10d", "c10d", "c10d", "static", "etcd3", "etcd3", "etcd", "etcd-v2", "zookeeper", ""],
    "--log-dir": [
        "{logs}",
        "{logs}/new/deep",
        "{script}",
        "{script}/x",
        "/proc/logs",
        "/dev/null",
        "",
        "x" * 300,
    ],
    "--redirects": ["0", "3", "0:1", "10:3", "0:3,11:2", "4", "0:"],
    "--tee": ["0", "3", "1:3", "x"],
    "--signals-to-handle": ["SIGTERM", "SIGNOPE", "SIGKILL", "SIGTERM,SIGUSR1", ","],
    "--restart-policy": ["hard", "soft", "gentle"],
    "--worker-failure": ["no-replace", "replace", "record", "shrug"],
    "--start-method": ["spawn", "fork", "thread"],
    "--local-addr": HOSTS,
    "--master-addr": HOSTS,
    "--event-log-handler": ["null", "console", "nope"],
}
LEVELS = ["10", "", "info", "INFO", "DEBUG", "WARN", "loud", BYTES, "-1"]
SCRIPTS = ["{script}"] * 8 + ["/no/such.py", "", "-", "z" * 300, BYTES, "{logs}", "{empty}"]


@dataclass
class Line:
    """A command line, and the environment that it finds."""

    number: int
    argv: list[str]
    env: dict[str, str]
    taken: list[Any] = field(default_factory=list)
    """The settings of the engine, if an agent would have begun."""

    def __str__(self) -> str:
        return f"line {self.number}: {self.env} softrun {self.argv}"


class Place:
    """The directories in which lines run: `logs` is theirs, all the others are watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.logs, self.temporary, self.here = root / "logs", root / "tmp", root / "here"
        for directory in (self.logs, self.temporary, self.here):
            directory.mkdir()
        os.mkfifo(root / "fifo")
        (root / "empty").touch()
        (root / "bytes").write_bytes(b"\xff\xfe\x00\xff")
        (root / "script.py").write_text("")
        self.names = {name: str(root / name) for name in ("logs", "fifo", "empty", "bytes")}
        self.names["script"] = str(root / "script.py")

    def listing(self) -> set[str]:
        return {str(path) for path in self.root.rglob("*") if self.logs not in path.parents}


def generated(place: Place) -> list[Line]:
    rng = random.Random(SEED)
    actions = [action for action in cli.build_parser()._actions if action.option_strings]
    flags = [
        min(text for text in action.option_strings if text[1] == "-") for action in actions if action.nargs is None
    ]
    switches = [text for action in actions if action.nargs == 0 for text in action.option_strings if text[-1] != "h"]

    def value(flag: str) -> str:
        if flag.startswith("--rdzv-conf"):
            return ",".join(setting() for _ in range(rng.randint(1, 3)))
        if flag.startswith("--rdzv-endpoint"):
            return rng.choice(HOSTS) + rng.choice(PORTS)
        likely = flag in VALUES and (rng.random() < 0.6 or flag == "--log-dir")
        return rng.choice(VALUES[flag] if likely else rng.choice((NUMBERS, TEXTS)))

    def setting() -> str:
        match rng.randrange(5):
            case 0:
                return f"{rng.choice(FILE_KEYS)}={rng.choice(FILES)}"
            case 1:
                return rng.choice(TEXTS)
            case _:
                return f"{rng.choice(KEYS)}={rng.choice(NUMBERS)}"

    def words() -> Iterator[str]:
        if rng.random() < 0.4:
            yield f"--rdzv-endpoint=localhost:{rng.choice((0, 29_400))}"
            yield f"--rdzv-backend={rng.choice(('c10d', 'etcd3', 'static'))}"
        for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
            if rng.random() < 0.15:
                yield rng.choice(switches)
                continue
            flag = rng.choice(flags)
            said = value(flag)
            flag = rng.choice((flag, flag.replace("-", "_").replace("__", "--", 1)))
            flag = flag[: rng.randint(4, len(flag))] if rng.random() < 0.1 else flag
            yield from rng.choice(([f"{flag}={said}"], [f"{flag}={said}"], [flag, said]))
        if rng.random() < 0.97:
            yield rng.choice(SCRIPTS)
        yield from rng.choice(([], [], ["--lr", "0.1"], ["--", "--nnodes"], [BYTES]))

    def environment() -> Iterator[tuple[str, str]]:
        for action in actions:
            if rng.random() < 0.01:
                flag = action.option_strings[0]
                odd = rng.choice(["0", "1", "", "abc", "-1", "1.0", BYTES])
                yield f"PET_{action.dest.upper()}", odd if action.nargs == 0 else value(flag)
        if rng.random() < 0.1:
            yield "LOGLEVEL", rng.choice(LEVELS)
        if rng.random() < 0.05:
            yield "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", rng.choice(NUMBERS)
        if rng.random() < 0.05:
            yield "SOFTRUN_TOKEN_FILE", rng.choice(FILES)

    def placed(text: str) -> str:
        for name, path in place.names.items():
            text = text.replace(f"{{{name}}}", path)
        return text

    return [
        Line(number, [placed(word) for word in words()], {name: placed(text) for name, text in environment()})
        for number in range(LINES)
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("lines"))


@pytest.fixture(scope="module")
def ran(place: Place) -> list[tuple[Line, int, str]]:
    """Every line with its exit code and what it wrote to standard error, in this process."""
    lines = generated(place)
    before = place.listing()
    with replaced(place):
        return [(line, *in_process(line, place, before)) for line in lines]


@contextlib.contextmanager
def replaced(place: Place) -> Iterator[None]:
    """No agent begins and no name is looked up; there is no fork server to begin with, and no log but errors."""

    def no_fork_server(env: dict[str, str]) -> AbstractContextManager[None]:
        return nullcontext()

    def no_log(debug: bool) -> None: ...

    came = Path.cwd()
    os.chdir(place.here)
    with (
        patch.object(cli, "begun", no_fork_server),
        patch.object(cli, "give_back_memory", lambda: None),
        patch.object(cli, "gather_memory_later", lambda: None),
        patch.object(registry, "entry_points", functools.cache(registry.entry_points)),  # to be quick
        patch.object(cli, "log_to_stderr", no_log),
        patch.object(backends, "address_towards", lambda targets, patience_s: "127.0.0.1"),
        patch.object(tempfile, "tempdir", str(place.temporary)),
        patch.object(logger, "disabled", True),
    ):
        yield
    os.chdir(came)


def begins(line: Line) -> AbstractContextManager[Any]:
    def run_agent(config: Any, *_: Any) -> tuple[Result, Any]:
        line.taken.append(config)
        return Result(Outcome.SUCCEEDED), SimpleNamespace(values=dict, failures=dict)

    return patch.object(local_agent, "run_agent", run_agent)


def in_process(line: Line, place: Place, before: set[str]) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    environment.update(line.env, OMP_NUM_THREADS="1", TMPDIR=str(place.temporary))
    said = io.StringIO()
    began = time.monotonic()
    with (
        begins(line),
        patch.object(secrets, "_taken", {}),  # of the line before
        patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            code = cli.main(line.argv)
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            pytest.fail(f"{line}\n{type(error).__name__}: {error}")
    assert time.monotonic() - began < SLOWEST_S, line
    assert place.listing() <= before, f"{line}\nmade {place.listing() - before}"
    return code, said.getvalue()


def test_each_is_taken_or_refused_in_one_line(ran: list[tuple[Line, int, str]]) -> None:
    for line, code, said in ran:
        errors = [text for text in said.split("\n") if text]
        assert code in (0, 1, 2), line
        assert len(errors) == (code != 0), f"{line}\n{said}"
        assert all(text.startswith("softrun: error: ") and text.isprintable() for text in errors), f"{line}\n{said}"
        assert code != 0 or line.taken or "-h" in " ".join(line.argv), line
    counts = Counter(code for _, code, _ in ran)
    assert all(counts[code] > LINES // 20 for code in (0, 1, 2)), counts


ZYGOTE = """
import json, os, sys, tempfile
_, tests, temporary = sys.argv
sys.path.insert(0, tests)
import nursery_main
nursery_main.preload()
del sys.path[0]
os.environ["TMPDIR"] = tempfile.tempdir = temporary
from softrun.__main__ import main
for order in sys.stdin:
    argv, env, here, out = json.loads(order)
    child = os.fork()
    if not child:
        os.chdir(here)
        os.environ.update(env)
        sys.argv = ["softrun", *argv]
        for number, name in ((0, os.devnull), (1, os.devnull), (2, out)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def zygote(place: Place) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    environment.update(OMP_NUM_THREADS="1", RES_OPTIONS="timeout:1 attempts:1")
    with subprocess.Popen(
        [sys.executable, "-c", ZYGOTE, str(TESTS), str(place.temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def as_process(line: Line, place: Place, zygote: subprocess.Popen[str], out: Path) -> int:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(json.dumps([line.argv, line.env, str(place.here), str(out)]) + "\n")
    zygote.stdin.flush()
    readable, _, _ = select.select([zygote.stdout], [], [], PROCESS_SLOWEST_S)
    assert readable, f"{line}\nstill runs after {PROCESS_SLOWEST_S:g} s"
    return int(zygote.stdout.readline())


def runs_alone(line: Line, place: Place) -> bool:
    """Whether it is sure to run one node with few workers, to its end."""
    if not line.taken or line.taken[0].job.max_nodes > 1 or line.taken[0].local_world_size > 2:
        return False
    words = [*line.argv, *line.env]
    risky = ("rdzv", "RDZV", "master", "MASTER", "addr", "ADDR", "-m", "MODULE", "numa", "LOGLEVEL")
    return place.names["script"] in line.argv and not any(part in word for word in words for part in risky)


@pytest.mark.slow
def test_a_sample_as_processes(ran: list[tuple[Line, int, str]], place: Place, zygote: subprocess.Popen[str]) -> None:
    rng = random.Random(SEED)
    refused = [each for each in ran if each[1] and "LOGLEVEL" not in each[0].env]
    taken = [each for each in ran if runs_alone(each[0], place)]
    for count, (line, code, said) in enumerate([*rng.sample(refused, REFUSED), *rng.sample(taken, TAKEN)]):
        if count:
            line.env.setdefault("PET_NO_WARM_START", "1")  # otherwise torch is imported for each
        before = place.listing()
        out = place.root / "stderr"
        ended = as_process(line, place, zygote, out)
        wrote = out.read_text(errors="surrogateescape")
        out.unlink()
        assert ended == code, f"{line}\n{wrote}"
        assert "Traceback" not in wrote, f"{line}\n{wrote}"
        if code:
            assert wrote == said, line
        # Where no directory is given, torch makes one, and leaves what is in it.
        made = {path for path in place.listing() - before if not path.startswith(f"{place.temporary}/torchelastic_")}
        assert not made, f"{line}\nmade {made}"
