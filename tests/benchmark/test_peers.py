"""Why a peer cannot be had is one line, whatever its installation wrote."""

from __future__ import annotations

import sys
import time

import pytest
from peers import UnavailableError, run


def failing(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.exit({text!r})"]


def test_the_reason_is_the_last_line() -> None:
    with pytest.raises(UnavailableError, match=r"^peer==1: ERROR: no matching distribution$"):
        run("peer==1", failing("a traceback\nERROR: no matching distribution\n"), time.monotonic() + 60)


def test_a_reason_without_words_is_the_exit_code() -> None:
    with pytest.raises(UnavailableError, match=r"^peer==1: exit code 3$"):
        run("peer==1", [sys.executable, "-c", "raise SystemExit(3)"], time.monotonic() + 60)


def test_an_installation_has_an_end() -> None:
    with pytest.raises(UnavailableError, match=r"^peer==1: not done in time$"):
        run("peer==1", [sys.executable, "-c", "import time; time.sleep(60)"], time.monotonic())
