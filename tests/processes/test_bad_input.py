"""Wrong input ends in one line that names the thing, the value and the remedy."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from nursery import Nursery

from local_cluster import COMMON_ENV, PATIENCE_S, LocalCluster, Node, free_port
from softrun.agent import cli, local_agent
from softrun.agent.errors import JobFailedError
from softrun.agent.store.settings import LONGEST_S

pytestmark = pytest.mark.processes

SCRIPT = str(Path(__file__).parent / "trainers" / "count.py")
MOST_LETTERS = 40
"""Of a word in the name of a test."""


def in_short(args: Sequence[str]) -> str:
    """The same name wherever the checkout is."""
    return " ".join(Path(word).name if word == SCRIPT else word[:MOST_LETTERS] for word in args)


Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def softrun(nursery: Nursery, tmp_path: Path) -> Launch:
    """`softrun("--standalone", "train.py", LOGLEVEL="INFO")` runs that, forked from one that has imported torch."""

    def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return nursery.run([sys.executable, "-m", "softrun", *args], tmp_path, env)

    return run


C10D = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:1")
ETCD = ("--rdzv_backend=etcd3", "--rdzv_endpoint=localhost:1")
NOT_A_RANGE = "is not a number or a range of nodes: give N or MIN:MAX, with 1 <= MIN <= MAX"
NOT_A_DURATION = "is not a duration: give a number of seconds above 0, or leave it out"
SETTINGS = (
    "join_timeout, last_call_timeout, close_timeout, read_timeout, keep_alive_interval, keep_alive_max_attempt, "
    "is_host, witness, timeout, rank, store_type, heartbeat_timeout, token_file"
)
MOST_S = "should be less than or equal to 315360000"
BYTES = os.fsdecode(b"\xff")
NO_HOST = "which is no name or address of one: give a name of labels of up to 63 characters, 253 in all, or an address"
NO_ID = "cannot name the directory of its logs: leave out slashes and what cannot be printed"
ERROR_LINES = {
    ("--nnodes=4:2", SCRIPT): f"--nnodes '4:2' {NOT_A_RANGE}",
    ("--nnodes=0", SCRIPT): f"--nnodes '0' {NOT_A_RANGE}",
    ("--nnodes=two", SCRIPT): f"--nnodes 'two' {NOT_A_RANGE}",
    ("--nnodes=2", "--node_rank=2", SCRIPT): "--node_rank 2 is not one of 2 nodes: give 0 to 1",
    ("--nnodes=2", "--master_port=0", SCRIPT): (
        "--master_port 0 names no port that other nodes could find: give one that is free"
    ),
    ("--nproc_per_node=0", SCRIPT): "--nproc_per_node 0 starts no worker: give 1 or more",
    ("--nproc_per_node=many", SCRIPT): (
        "--nproc_per_node 'many' is refused (Unsupported nproc_per_node value: many): give a number, auto, or a device "
        "that is here"
    ),
    ("--max_restarts=-1", SCRIPT): "--max_restarts -1 is less than 0: give 0 or more",
    ("--monitor_interval=0", SCRIPT): (
        "--monitor_interval 0.0 is not greater than 0: give a number of seconds, or leave it out"
    ),
    ("--shutdown_timeout=-1", SCRIPT): "--shutdown_timeout -1 is not a number of seconds: give 0 or more",
    ("--signals_to_handle=SIGNOPE", SCRIPT): "--signals_to_handle has 'SIGNOPE': name signals that can be handled",
    ("--event_log_handler=nope", SCRIPT): "--event_log_handler 'nope' is not registered with torch",
    ("--redirects=10:3", "--tee=x", SCRIPT): (
        "--tee 'x' names no streams: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them for each local "
        "rank, as in 0:3,1:1"
    ),
    ("--log_dir=/proc/logs", SCRIPT): (
        "--log_dir '/proc/logs' cannot be made (No such file or directory): give a directory that can be written to"
    ),
    ("--restart_policy=gentle", SCRIPT): "unknown restart policy 'gentle': choose one of hard, soft",
    ("--restart_policy=soft", "--worker_failure=shrug", SCRIPT): (
        "--worker_failure 'shrug' is unknown: choose one of no-replace, replace, record"
    ),
    ("--commit=slow", SCRIPT): "--commit 'slow' is unknown: choose one of fast, durable",
    ("--worker_failure=replace", SCRIPT): (
        "--worker_failure replace needs --restart_policy soft: hard restarts every worker"
    ),
    ("--soft_timeout=0", SCRIPT): f"--soft_timeout 0 {NOT_A_DURATION}",
    ("--hard_timeout=inf", SCRIPT): f"--hard_timeout inf {NOT_A_DURATION}",
    ("--soft_timeout=5", "--hard_timeout=5", SCRIPT): (
        "--hard_timeout 5 would end a worker before --soft_timeout 5 makes it leave its world: make it longer"
    ),
    ("--time_limit=30", SCRIPT): (
        "--time_limit 30 leaves no time to work before the 30 s of --shutdown_timeout in which the workers save: "
        "make it longer"
    ),
    ("--rdzv_backend=c10d", "--rdzv_endpoint=host:port", SCRIPT): (
        "--rdzv_endpoint 'host:port' is not HOST:PORT: give a host name or address, and a port"
    ),
    ("--rdzv_backend=zookeeper", "--rdzv_endpoint=localhost:1", SCRIPT): (
        "--rdzv_backend 'zookeeper' is refused (The rendezvous backend 'zookeeper' is not registered. Did you forget "
        "to call `register`?): use c10d, etcd3, static, or a backend that a package registers under the entry point "
        "group torchrun.handlers"
    ),
    ("--rdzv_backend=etcd", "--rdzv_endpoint=localhost:1", SCRIPT): (
        "--rdzv_backend 'etcd' is not available: use etcd3, which speaks etcd's current protocol"
    ),
    (*C10D, "--rdzv_conf=tokenfile=secret", SCRIPT): f"--rdzv_conf has no key 'tokenfile': use {SETTINGS}",
    (*C10D, "--rdzv_conf=witness=", SCRIPT): ("--rdzv_conf 'witness=' is not a setting: give KEY=VALUE,KEY=VALUE,…"),
    (*C10D, "--rdzv_conf=witness=h:70000", SCRIPT): (
        "--rdzv_conf witness 'h:70000' is not HOST:PORT: give a host name or address, and a port"
    ),
    (*C10D, "--rdzv_conf=witness=ü..h", SCRIPT): (
        "--rdzv_conf witness='ü..h' is not where a witness can listen: give HOST:PORT"
    ),
    (*C10D, "--rdzv_conf=witness=localhost:1", SCRIPT): (
        "--rdzv_conf witness=localhost:1 is where an agent listens, too: give another port or host to one"
    ),
    (*ETCD, "--rdzv_conf=witness=h:1", SCRIPT): (
        "--rdzv_conf witness=h:1 is of no use with etcd3, which decides by itself: leave it out"
    ),
    ("--nnodes=2", "--rdzv_conf=witness=h:1", SCRIPT): (
        "--rdzv_conf witness=h:1 is of no use with static: use --rdzv_backend c10d"
    ),
    ("--standalone", "--rdzv_conf=witness=h:1", SCRIPT): (
        "--rdzv_conf witness=h:1 is of no use on one node alone: leave it out"
    ),
    (*C10D, "--rdzv_conf=join_timeout=soon", SCRIPT): (
        "--rdzv_conf join_timeout='soon' is refused: Input should be a valid number, unable to parse string as a number"
    ),
    (*C10D, "--rdzv_conf=join_timeout", SCRIPT): (
        "--rdzv_conf 'join_timeout' is not a setting: give KEY=VALUE,KEY=VALUE,…"
    ),
    (*ETCD, "--rdzv_conf=user=x", SCRIPT): (
        "--rdzv_conf has user=x but there is no password: give password_file there, or set SOFTRUN_ETCD_PASSWORD"
    ),
    (*ETCD, "--rdzv_conf=user=x,password_file=/no/such", SCRIPT): (
        "--rdzv_conf password_file=/no/such cannot be read: No such file or directory"
    ),
    (*ETCD, "--rdzv_conf=ca_cert=/no/such", SCRIPT): (
        "--rdzv_conf ca_cert=/no/such cannot be read: No such file or directory"
    ),
    # What torchrun ends in a traceback for, waits for, or takes.
    **{
        (*C10D, f"--rdzv_conf={key}={text}", SCRIPT): f"--rdzv_conf {key}={text!r} is refused: Input {says}"
        for key, text, says in (
            ("join_timeout", "inf", "should be a finite number"),
            ("timeout", "nan", "should be a finite number"),
            ("keep_alive_interval", "-inf", "should be a finite number"),
            ("last_call_timeout", "1e23", MOST_S),
            ("timeout", "1e23", MOST_S),
            ("heartbeat_timeout", "1e23", MOST_S),
            ("keep_alive_interval", "86401", "should be less than or equal to 86400"),
            ("keep_alive_max_attempt", "9999999", "should be less than or equal to 1000000"),
        )
    },
    (*C10D, "--node_rank=2147483648", SCRIPT): (
        "--rdzv_conf rank=2147483648 is refused: Input should be less than or equal to 2147483647"
    ),
    ("--monitor_interval=inf", SCRIPT): (
        "--monitor_interval inf is not up to 315360000 seconds: give fewer, or leave it out"
    ),
    ("--monitor_interval=nan", SCRIPT): (
        "--monitor_interval nan is not up to 315360000 seconds: give fewer, or leave it out"
    ),
    ("--hard_timeout=1e23", SCRIPT): (
        "--hard_timeout 1e+23 is not up to 315360000 seconds: give fewer, or leave it out"
    ),
    ("--shutdown_timeout=999999999999", SCRIPT): (
        "--shutdown_timeout 999999999999 is not a number of seconds: give 0 or more"
    ),
    ("--nproc_per_node=99999999999999", SCRIPT): "--nproc_per_node 99999999999999 is more than 65536: give less",
    ("--nnodes=1:99999999999", SCRIPT): "--nnodes 99999999999 is more than 2147483647: give less",
    ("--max_restarts=99999999999", SCRIPT): "--max_restarts 99999999999 is more than 2147483647: give less",
    **{
        (*C10D, f"--rdzv_id={name}", SCRIPT): f"--rdzv_id {name!r} {NO_ID}"
        for name in ("/etc", "../x", "a/b", "a\nb", "\x1b]0;x", BYTES, "\u202ex")
    },
    (*C10D, f"--rdzv_id={'x' * 247}", SCRIPT): (
        f"--rdzv_id {'x' * 20!r}… is longer than 246 bytes: give a shorter one"
    ),
    **{
        ("--rdzv_backend=c10d", f"--rdzv_endpoint={host}:1", SCRIPT): (
            f"--rdzv_endpoint has the host {host[:80]!r}, {NO_HOST}"
        )
        for host in ("a" * 64 + ".b", "b." * 130 + "c", "a..b", BYTES, "a b")
    },
    ("--rdzv_backend=c10d", "--rdzv_endpoint=me:hush@host:1", SCRIPT): (
        "--rdzv_endpoint has an '@': give HOST:PORT alone, without a user or a password"
    ),
    ("--rdzv_backend=etcd3", "--rdzv_endpoint=me:hush@host:1", SCRIPT): (
        "--rdzv_endpoint has an '@': give HOST:PORT alone, without a user or a password"
    ),
    ("--rdzv_backend=c10d", f"--rdzv_endpoint=h:{'9' * 5000}", SCRIPT): (
        "--rdzv_endpoint has the port 99999999999999999999, which is above 65535: correct it"
    ),
    ("--standalone", f"--local_addr={BYTES}", SCRIPT): f"--local_addr has the host {BYTES!r}, {NO_HOST}",
    ("--rdzv_backend=", SCRIPT): ("--rdzv_backend is empty: use c10d, etcd3, static, or leave it out"),
    (*C10D, "--rdzv_conf=backend=c10d", SCRIPT): (
        "--rdzv_conf is refused (torch.distributed.elastic.rendezvous.api.RendezvousParameters() got multiple values "
        "for keyword argument 'backend'): leave out what is a flag of its own"
    ),
    ("--no_python", "--module", SCRIPT): "--no_python and --module exclude each other: leave one of them out",
    (f"--role={BYTES}", "/no/such.py"): (
        f"the training script '/no/such.py' does not exist: correct its path (here is {Path.cwd()})"
    ),
    ("z" * 300,): f"the training script {'z' * 300!r} does not exist: correct its path (here is {Path.cwd()})",
    ("/no/such/train.py",): (
        f"the training script '/no/such/train.py' does not exist: correct its path (here is {Path.cwd()})"
    ),
    ("/usr/lib",): (
        "the training script '/usr/lib' is a folder without __main__.py: give the file in it that is to run"
    ),
    ("--no_python", "no-such-program"): (
        "the program 'no-such-program' does not exist or is not executable: correct its name or PATH"
    ),
}


def error_lines(args: Sequence[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cli.main(list(args)) == 1
    return [line for line in capfd.readouterr().err.splitlines() if line.strip()]


@pytest.mark.parametrize("args", ERROR_LINES, ids=in_short)
def test_one_line_that_names_the_thing_the_value_and_the_remedy(
    args: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_lines(args, capfd, monkeypatch) == [f"softrun: error: {ERROR_LINES[args]}"]


WRONG_VARIABLES = {
    **{
        ("LOGLEVEL", level): (
            f"LOGLEVEL {level!r} is not a level that torch knows: give DEBUG, INFO, WARNING, ERROR or CRITICAL"
        )
        for level in ("10", "", "info", "loud", BYTES)
    },
    **{
        (name, text): f"{name} {text!r} is not a switch: give 0 or 1, or unset it"
        for name in ("PET_STANDALONE", "PET_NO_WARM_START", "PET_MODULE")
        for text in ("abc", "", "1.0", BYTES)
    },
    ("PET_NNODES", ""): f"--nnodes '' {NOT_A_RANGE}",
    ("PET_RDZV_BACKEND", ""): "--rdzv_backend is empty: use c10d, etcd3, static, or leave it out",
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"): (
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT soon is not a number of seconds: give 0 or more"
    ),
}


@pytest.mark.parametrize(("name", "text"), WRONG_VARIABLES)
def test_a_wrong_variable_is_named(
    name: str, text: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    assert error_lines([SCRIPT], capfd, monkeypatch) == [f"softrun: error: {WRONG_VARIABLES[name, text]}"]


WRONG_LINES = {
    ("--nproc_per_node", "--", SCRIPT): "argument --nproc-per-node/--nproc_per_node: expected one argument",
    ("--max_restarts=x", SCRIPT): "argument --max-restarts/--max_restarts: invalid int value: 'x'",
    ("--start_method=thread", SCRIPT): (
        "argument --start-method/--start_method: invalid choice: 'thread' (choose from 'spawn', 'fork', 'forkserver')"
    ),
    (f"--node_rank={'9' * 5000}", SCRIPT): "argument --node-rank/--node_rank: invalid int value: '999",
    ("--re=\x1b[2J", "--no-such"): "the following arguments are required: training_script",
    (): "the following arguments are required: training_script",
    ("witness",): "the following arguments are required: --rdzv-id/--rdzv_id",
    ("witness", "--rdzv_id=j", SCRIPT): f"unrecognized arguments: {SCRIPT}",
    ("witness", "--rdzv_id=j", "--port=1", "--rdzv_endpoint=h:1"): (
        "argument --rdzv-endpoint/--rdzv_endpoint: not allowed with argument --port"
    ),
}


WITNESS_LINES = {
    ("--port=65536",): "--port 65536 is not from 0 to 65535: correct it",
    ("--rdzv_endpoint=a:1,b:1",): (
        "--rdzv_endpoint 'a:1,b:1' is a list: give the one HOST:PORT at which the witness listens"
    ),
    ("--rdzv_endpoint=h:70000",): "--rdzv_endpoint 'h:70000' is not HOST:PORT: give a host name or address, and a port",
    ("--rdzv_endpoint=192.0.2.1:29400",): (
        "the witness cannot listen at 192.0.2.1:29400 (Cannot assign requested address): give an address of this host, "
        "or --port alone"
    ),
    ("--rdzv_id=a/b",): f"--rdzv_id 'a/b' {NO_ID}",
    ("--rdzv_conf=token_file=/no/such",): (
        "the token_file '/no/such' cannot be read (No such file or directory): correct the path"
    ),
    ("--rdzv_conf=keep_alive_interval=1",): (
        "--rdzv_conf 'keep_alive_interval=1' is no setting of a witness: give token_file=FILE, or leave it out"
    ),
}


@pytest.mark.parametrize("args", WITNESS_LINES, ids=in_short)
def test_a_witness_says_so_in_one_line_too(
    args: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("witness", "--rdzv_id=job", *args)
    assert error_lines(line, capfd, monkeypatch) == [f"softrun: error: {WITNESS_LINES[args]}"]


def test_the_port_of_a_witness_is_taken(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        lines = error_lines(("witness", "--rdzv_id=job", f"--rdzv_endpoint={place}"), capfd, monkeypatch)
    assert lines == [
        (
            f"softrun: error: the witness cannot listen at {place} (Address already in use): end what listens there, "
            "or choose another port"
        )
    ]


@pytest.mark.parametrize("args", WRONG_LINES, ids=in_short)
def test_a_malformed_line_is_one_line_and_2(args: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"softrun: error: {WRONG_LINES[args]}")
    assert len(err) < 1100


FLAGS = [
    action.option_strings[-1]
    for action in cli.build_parser()._actions
    if action.option_strings and action.nargs is None and action.default != []
]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="argparse takes it for a value since")
@pytest.mark.parametrize("flag", FLAGS)
def test_two_dashes_are_no_value(flag: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_lines([f"{flag}=--", SCRIPT], capfd, monkeypatch) == [
        f"softrun: error: {flag} has '--' as its value: give another, or leave it out"
    ]


def test_what_another_node_says_is_made_printable(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "\x1b]0;owned\x07 a\nsoftrun: error: forged\n" + "x" * 100_000

    def end(*_: object) -> NoReturn:
        raise JobFailedError(f"the job was ended on all nodes ({reason}): look at their logs")

    monkeypatch.setattr(local_agent, "run_agent", end)
    (line,) = error_lines(["--standalone", SCRIPT], capfd, monkeypatch)
    assert line.isprintable()
    assert line.startswith(
        r"softrun: error: the job was ended on all nodes (\x1b]0;owned\x07 a\nsoftrun: error: forged"
    )
    assert len(line) < 1100


@pytest.mark.parametrize(
    "args", [("--rdzv_conf=tokenfile=1", SCRIPT), ("/no/such.py",), ("--rdzv_id=/x", *C10D, SCRIPT)]
)
def test_a_refused_line_leaves_nothing_behind(
    args: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert error_lines(args, capfd, monkeypatch)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("role", [BYTES, "a\nb", "ü" * 600])
def test_any_role_runs(softrun: Launch, role: str) -> None:
    done = softrun("--standalone", "--nproc_per_node=1", f"--role={role}", "--no_python", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert "error" not in done.stderr


def test_a_host_that_cannot_be_found(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--rdzv_backend=c10d", "--rdzv_endpoint=no.such.host.invalid:1", "--rdzv_conf=read_timeout=0.5")
    (line,) = error_lines((*flags, SCRIPT), capfd, monkeypatch)
    start, _, reason = line.partition(" (")
    assert start == "softrun: error: the host 'no.such.host.invalid' of --rdzv_endpoint cannot be reached after 0.5 s"
    assert reason.partition("): ")[2] == (
        "correct it, or the name service; if only this machine's own address is in doubt, give it by --local_addr"
    )


@pytest.mark.slow
def test_the_same_from_the_command_line() -> None:
    command = [sys.executable, "-m", "softrun", "--nnodes=4:2", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **COMMON_ENV})
    assert done.returncode == 1, "as torchrun"
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_the_debug_switch_shows_the_traceback(softrun: Launch) -> None:
    done = softrun("--nnodes=4:2", SCRIPT, SOFTRUN_DEBUG="1")
    assert "Traceback (most recent call last)" in done.stderr


@pytest.mark.slow
def test_a_store_that_cannot_be_reached(softrun: Launch) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    done = softrun(
        "--rdzv_backend=c10d", f"--rdzv_endpoint={endpoint}", "--rdzv_conf=read_timeout=1,is_host=false", SCRIPT
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"softrun: error: no agent of this job answers at {endpoint} after 1 s: start the agent of that host, or "
        "correct --rdzv_endpoint"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_script_that_raises_is_shown_as_torch_does(softrun: Launch, tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text(
        "import os\n"
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main():\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError('a fault of the trainer')\n"
        "    import time; time.sleep(60)\n"
        "main()\n"
    )
    done = softrun("--restart_policy=soft", "--nproc_per_node=2", str(script))
    assert done.returncode == 1
    for part in ("raises.py FAILED", "rank      : 1 (local_rank: 1)", "exitcode  : 1 (pid: ", "a fault of the trainer"):
        assert part in done.stderr
    assert "host      : " in done.stderr
    assert "in main\n      raise ValueError" in done.stderr, "with the traceback of the worker"


@pytest.mark.slow
def test_two_jobs_with_one_id(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2")
    cluster.wait_for_steps(2)
    second = start("b", "count.py", "100000", "0.01", nnodes="1:3")
    assert second.wait() == 1
    line = second.output().splitlines()[-1]
    assert "runs with --nnodes 1:2" in line
    assert "another --rdzv_id" in line
    cluster.wait_for_steps(2, after=time.monotonic())
    assert first.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_the_longest_times_can_be_waited_for(cluster: LocalCluster, start: Callable[..., Node], nnodes: str) -> None:
    """The loop waits with epoll, which takes no more than 24 days at once."""
    names = ("join_timeout", "read_timeout", "close_timeout", "last_call_timeout")
    longest = [
        *(f"{name}={LONGEST_S}" for name in names),
        "keep_alive_interval=86400",
        "keep_alive_max_attempt=1000000",
    ]
    flags = (f"--rdzv_conf={','.join(longest)}", f"--monitor_interval={LONGEST_S}", f"--shutdown_timeout={LONGEST_S}")
    node = start("a", "count.py", "10", "0.01", nnodes=nnodes, flags=flags)
    time.sleep(2)
    assert node.process.poll() is None, node.output()
    node.signal(signal.SIGTERM)
    assert node.wait() == 1
    assert "Traceback" not in node.output()


@pytest.mark.slow
def test_a_job_at_the_endpoint_of_another(cluster: LocalCluster, start: Callable[..., Node]) -> None:
    first = start("a", "count.py", "100000", "0.01", nnodes="1:2", job="one")
    cluster.wait_for_steps(2)
    other = start("b", "count.py", "10", "0.01", nnodes="1", job="two")
    assert other.wait() == 1
    line = other.output().splitlines()[-1]
    assert "an agent of another job answers at 127.0.0.1:" in line
    assert "end it there, or choose another --rdzv_endpoint" in line
    first.signal(signal.SIGTERM)
    assert first.wait() == 1


def test_the_id_of_a_job_may_be_used_again(start: Callable[..., Node]) -> None:
    assert [start(name, "count.py", "10", "0.01", nnodes="1", job="one").wait() for name in "ab"] == [0, 0]


@pytest.mark.slow
def test_ctrl_c_during_the_imports_ends_it_without_a_word() -> None:
    """It was swallowed there, or shown with the frames of all that was being imported."""
    process = subprocess.Popen(
        [sys.executable, "-m", "softrun", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + 60
    while "libtorch" not in maps.read_text():  # torch is being imported
        assert time.monotonic() < end
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (-signal.SIGINT, b"")


def test_a_script_that_this_user_cannot_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may be root, who can read everything."""
    script = tmp_path / "train.py"
    script.touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and Path(path) != script)
    (line,) = error_lines([str(script)], capfd, monkeypatch)
    assert line == (
        f"softrun: error: the training script {str(script)!r} cannot be read: give this user the right to, or correct "
        "its path"
    )
