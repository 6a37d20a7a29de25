"""`python -m softrun.testing`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from softrun.testing import Recorder
from softrun.testing.__main__ import main

HISTORIES = {
    entry["name"]: entry for entry in json.loads(Path(__file__).with_name("histories.json").read_text())["histories"]
}


def written(directory: Path, name: str) -> str:
    file = directory / f"{name}.json"
    file.write_text(json.dumps(HISTORIES[name]))
    return str(file)


def test_a_valid_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path, "x17_vote")]) == 0
    assert capsys.readouterr().out == "valid (atomic): 10 events of 2 workers\n"


def test_one_that_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path, "x18_vote_lost")]) == 1
    assert capsys.readouterr().out == (
        "not valid (atomic): worker 0 got {0, 1} at t=9, but worker 1 is told ok=True at t=10, "
        "and the block has failed on worker 0\n"
    )


def test_the_mode(tmp_path: Path) -> None:
    assert main([written(tmp_path, "x18_vote_lost"), "--mode", "strict"]) == 0


def test_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Recorder(tmp_path, 0).close()
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "valid (atomic): 1 events of 1 workers\n"


def test_a_drawing(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    assert main([written(tmp_path, "x18_vote_lost"), "--draw", str(picture)]) == 1
    assert picture.read_text().startswith("<svg ")


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path / "none.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("softrun.testing: ") for line in lines)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--mode", "lax"])


def test_it_runs_without_torch(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from softrun.testing.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", program, written(tmp_path, "a12_alive_but_left_out"), "--mode", "basic"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == (
        "not valid (basic): worker 0 got {0} at t=200, but all the time worker 1 is alive and left out\n"
    )
