"""The table: command lines, and the scripts that they run. Every flag of torchrun's is in at least one.

A case is run by both launchers in directories of their own, which look alike. `same` names what must be equal of what
they leave behind; docs/coming-from-torchrun.md lists where they differ on purpose.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

#: Every variable of a worker's environment, then what a script sees of its start.
SAY = """
import os, sys
lines = [f"{name}={value}" for name, value in sorted(os.environ.items())]
lines += [f"argv={sys.argv}", f"path0={sys.path[0]}", f"cwd={os.getcwd()}", f"name={__name__}", f"file={__file__}"]
lines += [f"streams={sys.stdout.line_buffering} {sys.stdin.read()!r}"]
sys.stdout.write("".join(f"{os.environ['RANK']} {line}\\n" for line in lines))
"""
#: Lines on both streams.
TALK = """
import os
rank = os.environ["RANK"]
def say(stream, text):  # in one go, whatever the other rank writes
    os.write(stream, f"{text}\\n".encode())
for i in range(3):
    say(1, f"out {rank} {i} apple" if i == 1 else f"out {rank} {i}")
    say(2, f"err {rank} {i} orange" if i == 2 else f"err {rank} {i}")
say(1, f"\\u00fc\\u4e16 {rank}")
"""
EXIT = """
import os, sys, time
rank, codes = int(os.environ["RANK"]), sys.argv[1].split(",")
if codes[rank] == "sleep":
    time.sleep(60)
if codes[rank].startswith("-"):
    os.kill(os.getpid(), -int(codes[rank]))
sys.exit(int(codes[rank]))
"""
RAISE = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] in sys.argv[1].split(","):
        time.sleep(0.3 * int(os.environ["RANK"]))
        raise ValueError(f"a fault of rank {os.environ['RANK']}")
    time.sleep(60)
main()
"""
RAISE_UNRECORDED = "raise ValueError('nobody records this')"
SECOND_TIME = """
import os, sys
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {os.environ['RANK']} count {count} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}", flush=True)
sys.exit(0 if count >= int(sys.argv[1]) else 7)
"""


@dataclass(frozen=True)
class Case:
    name: str
    flags: tuple[str, ...] = ()
    script: str = SAY
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    same: tuple[str, ...] = ("code", "out", "tree")
    code: int = 0
    target: str = "train.py"  # what stands on the command line; the script is a file of this name
    files: dict[str, str] = field(default_factory=dict)


FAILS = ("code", "report", "tree")
LOGS = ("--log-dir", "logs")
TWO = ("--nproc-per-node", "2")

PLUGIN = {
    "plugin/quiet.py": """
import os
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
class Quiet(DefaultLogsSpecs):
    def reify(self, envs):
        for env in envs.values():
            env["QUIET"] = "yes"
        return super().reify(envs)
""",
    "plugin/quiet-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: quiet\nVersion: 1\n",
    "plugin/quiet-1.dist-info/entry_points.txt": "[torchrun.logs_specs]\nquiet = quiet:Quiet\n",
}

CASES = [
    # what a worker is told
    Case("one_worker"),
    Case("two_workers", TWO),
    Case(
        "underscores",
        (
            "--nproc_per_node=2",
            "--max_restarts=1",
            "--log_dir=logs",
            "--rdzv_backend=c10d",
            "--rdzv_endpoint=localhost:0",
        ),
    ),
    Case("nnodes_a_number", ("--nnodes=1", *TWO)),
    Case("nnodes_a_range", ("--nnodes", "1:1", *TWO)),
    Case("nproc_cpu", ("--nproc-per-node", "cpu")),
    Case("nproc_auto", ("--nproc-per-node=auto",)),
    Case("nproc_gpu_where_there_is_none", ("--nproc-per-node=gpu",), same=("code",), code=1),
    Case("nproc_xpu_where_there_is_none", ("--nproc-per-node=xpu",), same=("code",), code=1),
    Case("standalone", ("--standalone", *TWO)),
    Case("standalone_wins", ("--standalone", "--rdzv-id", "said", "--rdzv-endpoint", "nowhere:1", *TWO)),
    Case("c10d", ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id", "job-7", *TWO)),
    Case(
        "rdzv_conf",
        (
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "--rdzv-conf",
            "join_timeout=60,last_call_timeout=1,close_timeout=9",
        ),
    ),
    Case(
        "rdzv_conf_keep_alive",
        (
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=4",
        ),
    ),
    Case(
        "rdzv_conf_read_timeout",
        (
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
            "--rdzv-conf=read_timeout=20,is_host=true,store_type=tcp",
        ),
    ),
    Case("static", ("--rdzv-backend=static", "--master-addr=127.0.0.1", "--master-port", "PORT", *TWO)),
    Case("static_endpoint", ("--rdzv-endpoint=127.0.0.1:PORT", "--rdzv-id=job", "--node-rank=0")),
    Case(
        "node_rank_where_it_is_not_used",
        ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--node-rank=3"),
        same=("code", "tree"),
    ),
    Case("role", ("--role", "trainer", *TWO)),
    Case("local_addr", ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr", "127.0.0.1")),
    Case("monitor_interval", ("--monitor-interval", "0.05")),
    Case("start_method", ("--start-method", "forkserver", "--run-path"), SAY),
    Case("event_log_handler", ("--event-log-handler", "null")),
    Case("event_log_handler_unknown", ("--event-log-handler", "nobody"), same=("code",), code=1),
    Case("omp_num_threads_is_kept", TWO, env={"OMP_NUM_THREADS": "3"}),
    Case("nccl_error_handling_is_kept", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    Case("virtual_local_rank", ("--virtual-local-rank", *TWO)),
    Case("virtual_local_rank_of_devices", ("--virtual_local_rank", *TWO), env={"CUDA_VISIBLE_DEVICES": "4,7"}),
    Case(
        "virtual_local_rank_of_too_few",
        ("--virtual-local-rank", *TWO),
        env={"CUDA_VISIBLE_DEVICES": "4"},
        same=("code",),
        code=1,
    ),
    Case("visible_devices", TWO, env={"CUDA_VISIBLE_DEVICES": "4,7"}),
    Case("signals_to_handle", ("--signals-to-handle", "SIGTERM,SIGUSR1")),
    Case("shutdown_timeout", ("--shutdown-timeout", "5")),
    Case("numa_binding_without_a_gpu", ("--numa-binding", "node"), same=("code",), code=1),
    Case(
        "every_default_from_the_environment", env={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "r", "PET_MAX_RESTARTS": "4"}
    ),
    Case("the_command_line_wins", TWO, env={"PET_NPROC_PER_NODE": "3", "PET_STANDALONE": "1"}),
    Case("abbreviations", ("--nproc-p", "2", "--re", "3", "--log-d", "logs", "--max-r=1", "--ro", "x")),
    # what is run
    Case("arguments", TWO, args=("--restart_policy", "x", "-m", "--", "--nproc", "rank-${local_rank}", "a b")),
    Case("module", ("-m", *TWO), target="package.train", files={"package/__init__.py": "", "package/train.py": SAY}),
    Case("no_python", ("--no-python", *TWO), target="sh", args=("-c", "echo $0 $1 $LOCAL_RANK", "a", "${local_rank}")),
    Case("run_path", ("--run-path", *TWO), TALK),
    Case("run_path_argv", ("--run-path",), "import sys; print(sys.argv, __name__, __file__)", ("a", "b")),
    Case("python_exec", script=SAY, env={"PYTHON_EXEC": "PYTHON"}),
    # where the output goes
    Case("plain_output", TWO, TALK, same=("code", "out", "err", "tree")),
    Case("redirects_of_all", (*TWO, *LOGS, "--redirects", "3"), TALK, same=("code", "out", "err", "tree", "logs")),
    Case("redirects_of_one", (*TWO, *LOGS, "-r", "1"), TALK, same=("code", "out", "err", "tree", "logs")),
    Case("redirects_by_rank", (*TWO, *LOGS, "-r", "0:1,1:2"), TALK, same=("code", "out", "err", "tree", "logs")),
    Case("tee_of_all", (*TWO, *LOGS, "--tee", "3"), TALK, same=("code", "out", "err", "tree", "logs")),
    Case("tee_by_rank", (*TWO, *LOGS, "-t", "1:3", "-r", "2"), TALK, same=("code", "out", "err", "tree", "logs")),
    Case("local_ranks_filter", (*TWO, "--local-ranks-filter", "1"), TALK, same=("code", "out", "err")),
    Case(
        "filter_of_a_tee", (*TWO, *LOGS, "--local_ranks_filter=0", "-t", "3"), TALK, same=("code", "out", "err", "logs")
    ),
    Case(
        "duplicate_filters",
        (*TWO, *LOGS, "-t", "3", "--duplicate-stdout-filters", "apple", "--duplicate-stderr-filters", "orange,banana"),
        TALK,
        same=("code", "out", "err", "tree", "logs"),
    ),
    Case(
        "duplicate_filter_with_a_comma",
        (*LOGS, "-t", "3", "--duplicate_stdout_filters", "a,,b,apple"),
        TALK,
        same=("code", "out", "err", "tree", "logs"),
    ),
    Case("roles_prefix", (*TWO, "--role=r", "-t", "3"), TALK, same=("code", "out", "err")),
    Case(
        "prefix_template",
        (*TWO, "-t", "3"),
        TALK,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank} ${local_rank}> "},
        same=("code", "out", "err"),
    ),
    Case("logs_nowhere", ("--log-dir=/dev/null",), TALK, same=("code", "out", "err")),
    Case("logs_specs", ("--logs-specs", "quiet"), env={"PYTHONPATH": "plugin"}, files=PLUGIN),
    Case("logs_specs_unknown", ("--logs-specs", "loud"), same=("code",), code=1),
    # how it ends
    Case("restarts_and_succeeds", ("--max-restarts", "2", *LOGS), SECOND_TIME, ("1",)),
    Case(
        "restarts_and_fails", ("--max-restarts", "1", *LOGS), SECOND_TIME, ("9",), same=("code", "out", *FAILS), code=1
    ),
    Case("one_fails", (*TWO, *LOGS), EXIT, ("sleep,3",), same=FAILS, code=1),
    Case("one_fails_when_the_other_is_done", (*TWO, *LOGS), EXIT, ("0,3",), same=("code", "tree"), code=1),
    Case("the_only_one_fails", LOGS, EXIT, ("1",), same=FAILS, code=1),
    Case("one_is_killed", (*TWO, *LOGS), EXIT, ("-9,sleep",), same=FAILS, code=1),
    Case("one_aborts", LOGS, EXIT, (f"-{int(signal.SIGABRT)}",), same=FAILS, code=1),
    Case("one_raises", (*TWO, *LOGS), RAISE, ("1",), same=(*FAILS, "errors"), code=1),
    Case("one_raises_unrecorded", LOGS, RAISE_UNRECORDED, same=FAILS, code=1),
    Case("run_path_raises", ("--run-path", *LOGS), RAISE_UNRECORDED, same=("code", "tree", "errors"), code=1),
    Case(
        "the_launchers_error_file", LOGS, RAISE, ("0",), {"TORCHELASTIC_ERROR_FILE": "root.json"}, (*FAILS, "errors"), 1
    ),
    Case("a_health_check", env={"TORCHELASTIC_HEALTH_CHECK_PORT": "29999"}),
    Case("a_health_check_that_is_no_port", env={"TORCHELASTIC_HEALTH_CHECK_PORT": "x"}),
    # what is refused
    Case("no_such_module", ("-m", *LOGS), target="not_there", same=FAILS, code=1),
    Case("no_such_script", target="not_there.py", same=("code",), code=1),
    Case("no_such_program", ("--no-python",), target="not-there", same=("code",), code=1),
    Case("no_script", target="", same=("code",), code=2),
    Case("no_such_flag", ("--no-such-flag",), same=("code",), code=2),
    Case("an_ambiguous_flag", ("--r", "1"), same=("code",), code=2),
    Case("no_such_choice", ("--start-method=thread",), same=("code",), code=2),
    Case("help", ("--help",), same=("code",)),
    Case("bad_nnodes", ("--nnodes=2:1",), same=("code",), code=1),
    Case("bad_nproc", ("--nproc-per-node=many",), same=("code",), code=1),
    Case("bad_restarts", ("--max-restarts=-1",), same=("code",), code=1),
    Case("bad_streams", ("--redirects=4",), same=("code",), code=1),
    Case("bad_filter", ("--local-ranks-filter=a",), same=("code",), code=1),
    Case("bad_conf", ("--rdzv-conf=a",), same=("code",), code=1),
    Case("bad_timeout", ("--shutdown-timeout=-1",), same=("code",), code=1),
    Case("bad_endpoint", ("--rdzv-backend=c10d", "--rdzv-endpoint=host:port"), same=("code",), code=1),
    Case("bad_backend", ("--rdzv-backend=carrier-pigeon", "--rdzv-endpoint=loft:1"), same=("code",), code=1),
    Case("module_without_python", ("-m", "--no-python"), same=("code",), code=1),
]
