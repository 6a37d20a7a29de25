"""What torch keeps of earlier worlds."""

from __future__ import annotations

import sys

import pytest
import torch.distributed as dist

from softrun.runtime.groups.books import forget_rank


def test_a_trace_has_one_rank_however_many_worlds_there_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for _ in range(3):
        forget_rank()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
    sys.excepthook(ValueError, ValueError("a bug"), None)
    assert capsys.readouterr().err == "[rank0]: ValueError: a bug\n"


def test_a_hook_of_the_trainer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", print)
    forget_rank()
    assert sys.excepthook is print
