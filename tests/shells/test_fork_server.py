"""A worker that is forked from the template finds what one finds that is started by itself, and ends as that does."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster import PATIENCE_S
from softrun.agent.workers import orphan_reaper_main as reaper
from softrun.agent.workers.fork_server import PRELOADED, Forked, ForkServer, Refused, Script
from softrun.agent.workers.fork_server_main import received
from softrun.agent.workers.processes import Program, Start

pytestmark = pytest.mark.processes


LOOKS = """
import faulthandler, gc, json, multiprocessing, os, resource, signal, sys, threading, warnings
main = sys.modules["__main__"]
def stream(s):
    return [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno(),
            type(s.buffer).__name__]
print(json.dumps({
    "main": {k: repr(v).partition(" at 0x")[0] for k, v in vars(main).items() if k.startswith("__")},
    "loader": type(__loader__).__name__,
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags), "cwd": os.getcwd(),
    "streams": [stream(sys.stdout), stream(sys.stderr), sys.stdin.name],
    "same streams": sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__,
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": os.umask(0o22), "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "environment": dict(os.environ), "files": len(os.listdir("/proc/self/fd")),
    "thread": [threading.current_thread() is threading.main_thread(), threading.active_count()],
    "process": [multiprocessing.current_process().name, repr(multiprocessing.parent_process())],
    "start method": multiprocessing.get_start_method(True),
    "faulthandler": faulthandler.is_enabled(), "gc": gc.isenabled(),
    "limits": [resource.getrlimit(limit) for name, limit in vars(resource).items() if name.startswith("RLIMIT_")],
    "shown": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
    "recursion": sys.getrecursionlimit(), "excepthook": sys.excepthook is sys.__excepthook__,
}))
"""


class Both:
    """Runs a script in a fork and by itself."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # it changes all the time
        self.template = ForkServer(["-u"])
        self.template.load([])

    def run(self, *args: str, env: dict[str, str] | None = None) -> list[tuple[int, str, str]]:
        """Its exit code and its output, warm and cold."""
        return [self.run_warm(*args, env=env or {}), self.run_cold(*args, env=env or {})]

    def run_warm(self, *args: str, env: dict[str, str]) -> tuple[int, str, str]:
        out, err = self.directory / "out", self.directory / "err"
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        assert self.template.ask(["-u", *args], self.marked(env), str(out), str(err))
        process = code = None
        while process is None:
            process = self.template.listen(PATIENCE_S)
            assert not self.template.is_gone
        while code is None:
            assert self.template.listen(PATIENCE_S) is None
            code = process.reap()
        os.close(process.exit_fd())
        return code, out.read_text(), err.read_text()

    def marked(self, env: dict[str, str]) -> dict[str, str]:
        return env | {reaper.VARIABLE: reaper.mark_of(self.template.token, 1)}

    def run_cold(self, *args: str, env: dict[str, str]) -> tuple[int, str, str]:
        out, err = self.directory / "out", self.directory / "err"
        process = Program(Start(sys.executable, ("-u", *args), self.marked(env), str(out), str(err)))
        code = process.reap(PATIENCE_S)
        assert code is not None
        return code, out.read_text(), err.read_text()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    both = Both(tmp_path_factory.mktemp("both"))
    yield both
    both.template.close()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_a_script_sees_the_same(both: Both, script: Path) -> None:
    script.write_text(LOOKS)
    warm, cold = both.run(str(script), "--lr", "0.1", "", env={"RANK": "3", "TORCHELASTIC_RUN_ID": "7"})
    assert (warm[0], warm[2]) == (cold[0], cold[2]) == (0, "")
    assert json.loads(warm[1]) == json.loads(cold[1])


def test_a_module_sees_the_same(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text(LOOKS)
    monkeypatch.chdir(tmp_path)
    warm, cold = both.run("-m", "package", "--lr", "0.1")
    assert (warm[0], warm[2]) == (cold[0], cold[2]) == (0, "")
    assert json.loads(warm[1]) == json.loads(cold[1])


ENDS = {
    "in order": "print('done')",
    "with a code": "import sys; sys.exit(3)",
    "with words": "import sys; sys.exit('no more')",
    "at once": "import os; os._exit(4)",
    "by a signal": "import os; os.kill(os.getpid(), 15)",
    "by an exception": "def f():\n    raise ValueError('lost')\nf()",
    "by a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error",
    "by a group": "raise ValueError('several') from ConnectionError(1)",
    "by its syntax": "print('never')\nif:\n",
    "by an interrupt": "raise KeyboardInterrupt",
    "by an abort": "import faulthandler, os; faulthandler.enable(); os.abort()",
    "by a hook": "import sys\nsys.excepthook = lambda *what: print('hooked', what[0])\nraise ValueError",
    "after its threads": "import threading\nthreading.Timer(0.2, print, ['late']).start()",
    "after its exits": "import atexit\natexit.register(print, 'left')\nraise SystemExit(5)",
    "with children": (
        "import multiprocessing as mp\n"
        "def child(name): print('child', name, __name__ != '__main__', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        process = mp.get_context(method).Process(target=child, args=(method,))\n"
        "        process.start(); process.join(); print(process.exitcode)\n"
    ),
    "with a warning": "import warnings; warnings.warn('old')",
    "after a blocked signal": "import signal; signal.pthread_sigmask(0, [15]); signal.raise_signal(15); print(1)",
    "after standard streams": "import sys; print('a'); print('b', file=sys.stderr); sys.stdout.buffer.write(b'c')",
}


@pytest.mark.parametrize("source", ENDS.values(), ids=ENDS)
def test_it_ends_in_the_same_way(both: Both, script: Path, source: str) -> None:
    script.write_text(source)
    warm, cold = both.run(str(script))
    assert warm[:2] == cold[:2]
    assert _told(warm[2]) == _told(cold[2])


def _told(errors: str) -> str:
    """Without the addresses of threads, and from a dump by faulthandler the frames below the script's."""
    return re.sub(r"0x[0-9a-f]+|  File \".*/(fork_server_main|runpy)\.py.*\n|\n?Extension modules: .*\n", "", errors)


def test_a_relative_path_is_told_as_python_tells_it(both: Both, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(script.parent)
    script.write_text("import sys\nprint(__file__, __loader__.path, sys.argv, sys.path[0])\nraise ValueError")
    warm, cold = both.run("script.py")
    assert warm == cold


def test_neighbours_import_what_they_did(both: Both, script: Path) -> None:
    (script.parent / "neighbour.py").write_text("print(__name__)")
    script.write_text("import neighbour")
    warm, cold = both.run(str(script))
    assert warm == cold == (0, "neighbour\n", "")


def test_a_script_whose_own_modules_it_would_not_find_is_not_forked(
    both: Both, script: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    (script.parent / "secrets.py").touch()
    (script.parent / "secrets.txt").touch()
    (script.parent / "watchdog").mkdir()
    (script.parent / "watchdog" / "__init__.py").touch()
    script.touch()
    assert both.template.ask(["-u", str(script)], both.marked({}), "", "")
    said = None
    while said is None:
        said = both.template.listen(PATIENCE_S)
    assert isinstance(said, Refused)
    assert "secrets, watchdog beside the script would not be imported" in caplog.text


def test_what_no_import_would_take_is_no_reason(both: Both, script: Path) -> None:
    (script.parent / "torch").mkdir()  # what is installed comes before a folder that is no package
    (script.parent / "secrets.txt").touch()
    (script.parent / "colorsys.py").write_text("mine = 1")  # not loaded yet
    script.write_text("import colorsys, torch; print(colorsys.mine, 'Tensor' in vars(torch))")
    assert both.run_warm(str(script), env={})[1] == "1 True\n"


# The first fork is the template's rehearsal.
FORKS_ARE_SCARCE = """
import errno, itertools, os
fork, forks = os.fork, itertools.count()
def scarce():
    if next(forks) == 2:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = scarce
"""


def test_a_failed_fork_is_that_workers_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "scarce.py").write_text(FORKS_ARE_SCARCE)
    (tmp_path / "ends.py").write_text("import sys; sys.exit(7)")
    env = {"PYTHONPATH": str(tmp_path)}
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    template = ForkServer(["-u"], env)
    template.load(["scarce"])
    marked = env | {reaper.VARIABLE: reaper.mark_of(template.token, 1)}
    for _ in range(3):
        assert template.ask(["-u", str(tmp_path / "ends.py")], marked, "", "")
    said: list[Forked | Refused] = []
    codes: dict[int, int] = {}
    while len(codes) < 2:
        if (worker := template.listen(PATIENCE_S)) is not None:
            said.append(worker)
        assert not template.is_gone
        codes |= {w.pid: code for w in said if isinstance(w, Forked) and (code := w.reap()) is not None}
    assert [type(worker) for worker in said] == [Forked, Refused, Forked]
    assert list(codes.values()) == [7, 7]
    assert "a fork failed (Resource temporarily unavailable)" in caplog.text
    template.close()


def test_an_agent_that_is_killed_before_it_has_read_its_mail_is_gone() -> None:
    """The kernel tells that as an error, which was printed as a traceback after the job."""
    agent, control = socket.socketpair()
    control.send(b"never read")
    agent.close()
    assert received(control) == (b"", [])
    control.close()


@pytest.mark.slow
def test_torch_is_there_and_chance_is_not_shared(both: Both, script: Path) -> None:
    script.write_text(
        "import sys; there = 'torch' in sys.modules\n"
        "import random, numpy, torch\n"
        "print(there, torch.initial_seed(), torch.cuda.is_initialized(), random.random(), numpy.random.random())"
    )
    first, second = (both.run_warm(str(script), env={})[1].split() for _ in range(2))
    cold = both.run_cold(str(script), env={})[1].split()
    assert [first[0], first[2], cold[2]] == ["True", "False", "False"]
    assert len({*first[3:], *second[3:], *cold[3:], first[1], second[1], cold[1]}) == 9


@pytest.mark.parametrize(
    ("text", "names"), [("import os", False), ("from torch import nn", True), ("import softrun as s", True)]
)
def test_what_a_script_names(script: Path, text: str, names: bool) -> None:
    script.write_text(text)
    assert Script((), False, str(script), ()).names(PRELOADED) is names


def test_what_a_module_names_is_not_known() -> None:
    assert Script((), True, "train", ()).names(PRELOADED)


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["-u", "train.py", "-m", "x"], Script(("-u",), False, "train.py", ("-m", "x"))),
        (["-u", "-W", "error", "-m", "a.b", "-u"], Script(("-u", "-W", "error"), True, "a.b", ("-u",))),
        (["-Xdev", "t.py"], Script(("-Xdev",), False, "t.py", ())),
        (["-c", "print()"], None),
        (["-i", "t.py"], None),
        (["-"], None),
        ([], None),
    ],
)
def test_what_is_a_script(args: list[str], found: Script | None) -> None:
    assert Script.of(sys.executable, args) == found
    assert Script.of("/bin/sh", args) is None


LOADS = """
import os
from softrun.agent.workers import fork_server_main as template
for _ in range(200):
    assert template.load(["json"]) == ""
    assert len(os.listdir("/proc/self/task")) == 1
"""


def test_what_watches_over_the_imports_is_no_thread() -> None:
    """One that is about to end is counted as theirs, by chance, and then all workers start cold."""
    ended = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr


HANGS = """
import signal, sys, threading
from softrun.agent.workers import fork_server_main as template
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
template.LOAD_S = 0.1
template.load(["hangs"])
"""


def test_imports_that_do_not_end_are_ended_with_their_stacks(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import threading\nthreading.Lock().acquire()\nthreading.Event().wait()")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", HANGS], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == -signal.SIGALRM
    assert 'hangs.py", line 3 in <module>' in ended.stderr
