"""torchrun and softrun, run side by side.

A launcher starts in 2 s, most of which is `import torch`, so both are forked from one process that has imported it:
`python launchers.py` reads one request per line, forks, and the child runs `main` of the launcher that was asked for,
with its own arguments, environment, directory and output. A child differs from a fresh process in nothing that the
cases look at; `test_the_console_scripts` starts fresh ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = ("torchrun", "softrun")
TIMEOUT_S = 180


@dataclass(frozen=True)
class Ran:
    """What a launcher left behind."""

    code: int
    out: str
    err: str
    directory: Path

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
    ):
        text = re.sub(pattern, word, text)
    return text.strip()


class Launchers:
    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
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
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    import torch.distributed.run  # noqa: F401

    import softrun.agent.launch  # noqa: F401

    del os.environ["TORCH_CPP_LOG_LEVEL"]
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
    try:
        os.setsid()
        os.chdir(request["directory"])
        os.environ.update(request["env"])
        sys.path[:0] = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
        for name, fd in ((os.devnull, 0), (".out", 1), (".err", 2)):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), fd)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        code = _launch(request["side"], request["args"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _launch(side: str, args: list[str]) -> int:
    if side == "softrun":
        from softrun.agent.cli import main as softrun

        return softrun(args)
    from torch.distributed.run import main as torchrun

    sys.argv = ["torchrun", *args]
    torchrun(args)
    return 0


if __name__ == "__main__":
    _serve()
