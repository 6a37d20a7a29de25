"""The token file: what is wrong with one is said in a line that names it, the fault and the remedy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from softrun.agent.errors import UsageError
from softrun.agent.links.secret import LEAST_BYTES, MOST_BYTES, new_token, read_token

GOOD = b"correct horse battery staple"


def written(path: Path, content: bytes = GOOD, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def fault_of(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_token(path)
    told = str(caught.value)
    assert str(path) in told
    assert "\n" not in told
    assert "horse" not in told, "the secret"
    return told


def test_the_white_space_around_it_is_no_part_of_it(tmp_path: Path) -> None:
    assert read_token(written(tmp_path / "token", b"\n  " + GOOD + b" \r\n")) == GOOD
    assert read_token(str(tmp_path / "token")) == GOOD


def test_the_longest_and_the_shortest(tmp_path: Path) -> None:
    assert len(read_token(written(tmp_path / "long", b"x" * MOST_BYTES))) == MOST_BYTES
    assert len(read_token(written(tmp_path / "short", b"x" * LEAST_BYTES + b"\n"))) == LEAST_BYTES
    assert "more than 4096 bytes" in fault_of(written(tmp_path / "longer", b"x" * (MOST_BYTES + 1)))
    assert "fewer than 16 bytes" in fault_of(written(tmp_path / "shorter", b"x" * (LEAST_BYTES - 1) + b"  \n"))


@pytest.mark.parametrize("content", [b"", b" \n\t\n"], ids=["nothing", "white space"])
def test_an_empty_one(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in fault_of(written(tmp_path / "token", content))


def test_a_missing_one(tmp_path: Path) -> None:
    assert "No such file" in fault_of(tmp_path / "token")
    with pytest.raises(UsageError, match="cannot be read"):
        read_token("a\0b")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(mode=0o700)
    for name in ("pipe", "folder"):
        assert "is not a file" in fault_of(tmp_path / name)
    with pytest.raises(UsageError, match="is not a file"):
        read_token("/dev/zero")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o610])
def test_one_that_others_can_read_or_write(tmp_path: Path, mode: int) -> None:
    told = fault_of(written(tmp_path / "token", mode=mode))
    assert f"its mode is {mode:o}" in told
    assert f"chmod 600 '{tmp_path / 'token'}'" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_one_of_another_user(tmp_path: Path) -> None:
    path = written(tmp_path / "token")
    os.chown(path, 65534, -1)
    assert "belongs to user 65534" in fault_of(path)


def test_one_that_cannot_be_read() -> None:
    """Root can read everything, so it is somebody else for a moment."""
    us = os.geteuid()
    with tempfile.TemporaryDirectory() as directory:
        path = written(Path(directory) / "token", mode=0o200)
        if us == 0:
            os.chown(directory, 65534, -1)
            os.chown(path, 65534, -1)
            os.seteuid(65534)
        try:
            assert "Permission denied" in fault_of(path)
        finally:
            os.seteuid(us)


def test_new_ones_differ_and_are_long_enough() -> None:
    one, other = new_token(), new_token()
    assert one != other
    assert len(one) >= LEAST_BYTES
    assert one.strip() == one
