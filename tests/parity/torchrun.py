"""What torchrun answers, recorded once for a release of torch: it does not change, and to ask it takes as long again.

A release's answers are the files of `torchrun-RELEASE`, one for each case. Where there are none for the release that is
installed, and with SOFTRUN_TORCHRUN=1, torchrun itself runs. `SOFTRUN_REWRITE=1 scripts/test tests/parity` asks it and
writes all answers anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RELEASE = ".".join(torch.__version__.split(".")[:2])
ANSWERS = Path(__file__).with_name(f"torchrun-{RELEASE}")
REWRITES = bool(os.environ.get("SOFTRUN_REWRITE"))
IS_ASKED = REWRITES or bool(os.environ.get("SOFTRUN_TORCHRUN")) or not ANSWERS.exists()


def torchruns(name: str, ask: Callable[[], Any]) -> Any:
    """torchrun's answer in the case of this name: the recorded one, or what `ask` finds out by running it."""
    path = ANSWERS / f"{name}.json"
    if not IS_ASKED:
        return json.loads(path.read_text())
    answer = plain(ask())
    if REWRITES:
        ANSWERS.mkdir(exist_ok=True)
        path.write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
    return answer


def plain(answer: Any) -> Any:
    """The same in what JSON has: an answer compares with one that was recorded."""
    return json.loads(json.dumps(answer))
