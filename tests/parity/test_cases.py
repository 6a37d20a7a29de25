"""Each case of the table: softrun leaves behind what torchrun does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, Case
from launchers import Launchers, Ran, normal
from torchrun import plain, torchruns

from local_cluster import free_port
from softrun.agent.cli import build_parser

pytestmark = pytest.mark.processes

#: One case for each thing that is compared, and for each way in which a job starts and ends.
QUICK = {
    "two_workers", "rdzv_conf", "static", "every_default_from_the_environment", "abbreviations", "arguments", "module",
    "redirects_by_rank", "tee_of_all", "restarts_and_fails", "one_fails", "one_is_killed", "one_raises",
    "no_such_script", "help",
}  # fmt: skip

#: What a launcher says in its own name, on standard error.
OWN_WORDS = re.compile(r"^([WEI]\d{4} .*|softrun\[.*|\*{41}|Setting OMP_NUM_THREADS .*|)$")
DIFFERS = {
    "SOFTRUN_": "softrun's own",
    "MASTER_PORT": "random; another in every world",
    "TORCHELASTIC_RUN_ID": "random in a standalone job",
    "_": "the shell's",
}


def run(side: str, case: Case, launchers: Launchers, directory: Path) -> Ran:
    for name, text in {"train.py": case.script, **case.files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    port = str(free_port())
    flags = [flag.replace("PORT", port) for flag in case.flags]
    # torchrun gives --run-path an absolute one (its help says so), and a plugin is found from anywhere.
    target = str(directory / case.target) if "--run-path" in flags else case.target
    env = {"LOGLEVEL": "WARNING", **case.env}
    env |= {"PYTHON_EXEC": sys.executable} if "PYTHON_EXEC" in env else {}
    env |= {"PYTHONPATH": str(directory / env["PYTHONPATH"])} if "PYTHONPATH" in env else {}
    return launchers.run(side, [*flags, *([target] if target else []), *case.args], directory, env)


def torchruns_way(case: Case, launchers: Launchers, directory: Path) -> dict[str, Any]:
    """All that must be the same of what torchrun leaves behind."""
    ran = run("torchrun", case, launchers, directory)
    assert ran.code == case.code, f"the case is not what it says\n{ran.out}\n{ran.err}"
    return {what: seen(what, ran) for what in case.same}


def seen(what: str, ran: Ran) -> Any:
    """One aspect of what a launcher left behind, without what is random in it."""
    match what:
        case "code":
            return ran.code
        case "tree":
            return [name for name in ran.tree if not name.endswith((".pyc", "/.out", "/.err"))]
        case "report":
            return ran.report.splitlines()
        case "out":
            return sorted(_environment(normal(ran.out, ran.directory).splitlines(), ran))
        case "err":
            lines = normal(ran.err, ran.directory).splitlines()
            return sorted(line for line in lines if not OWN_WORDS.match(line))
        case "logs":
            logs = sorted(ran.directory.glob("logs/**/*.log"))
            return [(path.name, sorted(path.read_text().splitlines())) for path in logs]
        case "errors":
            return [_error(path) for path in sorted(ran.directory.glob("**/*.json"))]
    raise AssertionError(what)


def _environment(lines: list[str], ran: Ran) -> list[str]:
    """The lines, without those that tell of a variable that is random, or as it was before; and what is lost of it."""
    before = {name: normal(f"{name}={value}", ran.directory) for name, value in ran.surroundings.items()}
    tellers = [line.partition(" ")[0] for line in lines if " LOCAL_WORLD_SIZE=" in line]
    lost = [
        f"{rank} has lost {name}"
        for rank in tellers
        for name in before
        if not any(line.startswith(f"{rank} {name}=") for line in lines)
    ]

    def differs(line: str) -> bool:
        name = line.partition(" ")[2]
        return any(
            name.startswith(differing + ("=" if differing[-1] != "_" or len(differing) == 1 else ""))
            for differing in DIFFERS
        )

    # Both are loopback; softrun names it by its address, which every resolver agrees on.
    told = [line.replace("MASTER_ADDR=localhost", "MASTER_ADDR=127.0.0.1") for line in lines if not differs(line)]
    return [*(line for line in told if line.partition(" ")[2] not in before.values()), *lost]


def _error(path: Path) -> Any:
    content = json.loads(path.read_text())
    message = content["message"]
    if isinstance(message, dict):
        message = message["message"], sorted(message["extraInfo"])
    return path.name, str(message)[:60]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in CASES]
)
def test_the_same_as_torchrun(case: Case, launchers: Launchers, tmp_path: Path) -> None:
    theirs = torchruns(case.name, lambda: torchruns_way(case, launchers, tmp_path / "torchrun"))
    ours = run("softrun", case, launchers, tmp_path / "softrun")
    for what in case.same:
        assert plain(seen(what, ours)) == theirs[what], f"{what}\n{ours.err}"
    if case.code == 1 and "report" not in case.same and "tree" not in case.same:
        said = [line for line in ours.err.splitlines() if not OWN_WORDS.match(line)]
        assert len(said) == 1, ours.err
        assert said[0].startswith("softrun: error: ")


def test_every_flag_of_torchruns_is_in_a_case() -> None:
    from torch.distributed.run import get_args_parser

    used = {word.partition("=")[0].replace("_", "-") for case in CASES for word in case.flags if word.startswith("-")}
    used |= {
        f"--{name[4:].lower().replace('_', '-')}" for case in CASES for name in case.env if name.startswith("PET_")
    }
    later = {"--log-line-prefix-template", "--print-completion"}  # torch 2.14 and 2.15: they come with its parser
    for action in get_args_parser()._actions:
        flags = {flag.replace("_", "-") for flag in action.option_strings} - later
        assert not flags or flags & used, f"no case has {' or '.join(sorted(flags))}"


def test_softruns_own_flags_have_defaults_in_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RESTART_POLICY", "soft")
    monkeypatch.setenv("PET_WORKER_FAILURE", "record")
    monkeypatch.setenv("PET_SOFT_TIMEOUT", "1.5")
    monkeypatch.setenv("PET_HARD_TIMEOUT", "60")
    monkeypatch.setenv("PET_NO_WARM_START", "1")
    monkeypatch.setenv("PET_PRELOAD", "numpy,torch.optim")
    args = build_parser().parse_args(["train.py", "--restart_policy=hard"])
    assert (args.restart_policy, args.worker_failure) == ("soft", "record"), "what follows the script is the script's"
    assert (args.soft_timeout, args.hard_timeout) == (1.5, 60.0)
    assert (args.no_warm_start, args.preload) == (True, "numpy,torch.optim")


def test_softruns_own_flags_are_a_group_of_their_own() -> None:
    shown = build_parser().format_help()
    own = shown[shown.index("softrun:\n") :]
    assert "--restart-policy" in own
    assert "--nnodes" not in own
