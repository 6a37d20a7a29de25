"""What workers write is shown on the console, as long as somebody reads that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from softrun.agent.torch_elastic.elastic import TailLog
from softrun.agent.workers.logs import _Console


@pytest.mark.parametrize("is_closed", [False, True], ids=["its reader has ended", "it was closed"])
def test_a_console_that_nobody_reads_any_more_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    """`python -m softrun --tee 3 … | head`: torch's tail logged a traceback for each worker."""
    reader, writer = os.pipe()
    os.close(reader)
    console = os.fdopen(writer, "w", buffering=1)
    if is_closed:
        console.close()
    log = tmp_path / "log"
    log.write_text("line\n" * 100)
    TailLog("trainer", {0: str(log)}, _Console(console)).start().stop()  # type: ignore[arg-type]
    assert not caplog.records


def test_the_console_shows_what_is_written(tmp_path: Path) -> None:
    with (tmp_path / "console").open("w") as console:
        _Console(console).write("line\n")
    assert (tmp_path / "console").read_text() == "line\n"
