"""torchrun and softrun, in the same surroundings.

A launcher starts in 2 s, most of which is `import torch`, so both are forked from one process that has imported it:
`python launchers.py` reads one request per line, forks, and the child runs `main` of the launcher that was asked for,
with its own arguments, environment, directory and output. A child differs from a fresh process in nothing that the
cases look at; `test_the_console_scripts` starts fresh ones.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from nursery_main import SpareForkServer

TIMEOUT_S = 100
CORES = 2
"""So many the machine has, for all that launchers can see."""
OF_THE_CASES = ("CUDA_", "LOGLEVEL", "MASTER_", "NCCL_", "OMP_", "PET_", "PYTEST_", "TORCH")
"""What the surroundings have of these is not passed on."""


ONLY_AT_THE_START = {"TORCH_CPP_LOG_LEVEL": "ERROR", "PADDING": "-" * 16384}
"""The padding is room for the environments that the fork servers show."""


@dataclass(frozen=True)
class Ran:
    """What a launcher left behind."""

    code: int
    out: str
    err: str
    directory: Path
    surroundings: dict[str, str]

    @property
    def report(self) -> str:
        """The last words of a launcher whose workers failed, without times, hosts, process ids and places."""
        _, _, report = self.err.rpartition("ChildFailedError:")
        return normal(report, self.directory)

    @property
    def tree(self) -> list[str]:
        """The names of all files, without what is random in them."""
        names = (str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file())
        return sorted(re.sub(r"(?<=/)[^/]*_[a-z0-9_]{8}(?=/)", "RUN", "/" + name) for name in names)


def normal(text: str, directory: Path) -> str:
    for pattern, word in (
        (re.escape(str(directory)), "HERE"),
        (r"\(pid: \d+\)", "(pid: PID)"),
        (r"={10,}", "=========="),  # as wide as the line with the pid
        (r"-{10,}", "----------"),
        (r"by PID \d+", "by PID PID"),
        (r"(?<=Process )\d+", "PID"),
        (r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "TIME"),
        (r"torchelastic_\w{8}", "LOGS"),
        (r"[\w-]*_[a-z0-9_]{8}/attempt", "RUN/attempt"),
        (r"(?<=host      : )\S+", "HOST"),
        (re.escape(str(Path(torch.__file__).parent)), "TORCH"),
        (re.escape(sys.executable), "PYTHON"),
        (re.escape(str(Path(__file__).parent)), "LAUNCHERS"),
        (r"\n +[~^]+(?=\n)", ""),  # Python 3.10 does not point at it
        (re.escape(tempfile.gettempdir()) + "(?=/LOGS)", "TEMPORARY"),
    ):
        text = re.sub(pattern, word, text)
    return text.strip()


class Launchers:
    def __init__(self) -> None:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(OF_THE_CASES) and "\n" not in v}
        self._surroundings = kept | {"RES_OPTIONS": "timeout:1 attempts:1"}
        self._server = subprocess.Popen(
            [sys.executable, "-u", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self._surroundings | ONLY_AT_THE_START,
        )

    def run(self, side: str, args: list[str], directory: Path, env: Mapping[str, str] | None = None) -> Ran:
        """Run one launcher in a directory of its own until it ends."""
        pid = self.start(side, args, directory, env)
        answer = self._ask({"wait": pid})
        return Ran(
            answer["code"],
            (directory / ".out").read_text(errors="replace"),
            (directory / ".err").read_text(),
            directory,
            self._surroundings,
        )

    def start(self, side: str, args: list[str], directory: Path, env: Mapping[str, str] | None = None) -> int:
        """Start one; returns its process id."""
        for name in (".out", ".err"):
            (directory / name).touch()
        pid: int = self._ask({"side": side, "args": args, "directory": str(directory), "env": dict(env or {})})["pid"]
        return pid

    def wait(self, pid: int) -> int:
        """The exit code, negative for a signal."""
        code: int = self._ask({"wait": pid})["code"]
        return code

    def close(self) -> None:
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait(10)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._server.stdin is None or self._server.stdout is None:
            raise AssertionError("no pipes")
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer


def _serve() -> None:
    import torch.distributed.run  # noqa: F401

    import softrun.agent.launch  # noqa: F401
    from softrun.agent.workers.fork_server import PRELOADED

    for name in PRELOADED:
        importlib.import_module(name)

    for name in ONLY_AT_THE_START:
        del os.environ[name]
    os.cpu_count, os.sched_getaffinity = lambda: CORES, lambda _: set(range(CORES))
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"code": _reap(request["wait"])} if "wait" in request else {"pid": _fork(request)}
        print(json.dumps(answer), flush=True)


def _reap(pid: int) -> int:
    """One that does not end is killed with all that it has started, and counts as ended by SIGALRM."""
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(TIMEOUT_S)
    _, status = os.waitpid(pid, 0)
    left = signal.alarm(0)
    return os.waitstatus_to_exitcode(status) if left else -signal.SIGALRM


def _fork(request: dict[str, Any]) -> int:
    if pid := os.fork():
        return pid
    launcher = os.getpid()
    try:
        os.setsid()
        os.chdir(request["directory"])
        os.environ.update(request["env"])
        sys.path[:0] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
        for name, fd in ((os.devnull, 0), (".out", 1), (".err", 2)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), fd)
        code = _launch(request["side"], request["args"])
    except BaseException as ended:
        if os.getpid() != launcher:
            raise  # a fork server or a worker, which end with the interpreter
        code = 1
        if not isinstance(ended, SystemExit):
            traceback.print_exc()
        elif ended.code is None or isinstance(ended.code, int):
            code = ended.code or 0
    os._exit(code)


def _launch(side: str, args: list[str]) -> int:
    if side == "softrun":
        from softrun.agent.cli import main as softrun

        SpareForkServer(None)
        return softrun(args)
    from torch.distributed.run import main as torchrun

    sys.argv = ["torchrun", *args]
    torchrun(args)
    return 0


if __name__ == "__main__":
    _serve()
