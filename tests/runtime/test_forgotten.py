"""Getting out of transfers that were half done when their connection ended: gloo forgets them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import Me, ranks

from fake_agent import wait_until
from softrun.runtime.groups.abort import abort_all, track_groups
from softrun.runtime.groups.forgotten import STAYS_S
from softrun.runtime.groups.groups import leave_groups

SITS, STOPPED = range(2)
NUMBERS = 50_000_000  # 200 MB: much more than the kernel buffers


def broadcast(numbers: torch.Tensor, sender: int) -> None:
    dist.broadcast(numbers, src=sender)


def send_and_receive(numbers: torch.Tensor, sender: int) -> None:
    """Here the main thread waits itself, not gloo's own."""
    if dist.get_rank() == sender:
        dist.send(numbers, dst=1 - sender)
    else:
        dist.recv(numbers, src=sender)


def wait_for_the_rest(call: Callable[[torch.Tensor, int], None], sender: int, me: Me) -> None:
    track_groups()
    me.build()
    me.say("ready")
    to_be_stopped = me.hear()
    numbers = torch.full((NUMBERS,), float(me.rank == sender))

    def stop_in_the_middle() -> None:
        while not numbers[0]:
            pass
        os.kill(to_be_stopped, signal.SIGSTOP)

    if me.rank != sender:
        threading.Thread(target=stop_in_the_middle, daemon=True).start()
    if me.rank == SITS:
        me.abort_when_told()
    with pytest.raises(RuntimeError, match="closed by peer"):
        call(numbers, sender)
    assert me.rank == sender or numbers[0] != numbers[-1], "nothing was left to be sent when the sender was stopped"
    leave_groups(in_trouble=True)
    me.build("second", size=1)
    me.say("has left")


@pytest.mark.processes
@pytest.mark.parametrize("call", [broadcast, send_and_receive])
@pytest.mark.parametrize("sender", [SITS, STOPPED], ids=["sending", "receiving"])
def test_whoever_waits_for_the_rest_of_a_payload_is_freed(
    call: Callable[[torch.Tensor, int], None], sender: int
) -> None:
    with ranks(partial(wait_for_the_rest, call, sender), size=2) as both:
        for rank in both:
            assert rank.says() == "ready"
        for rank in both:
            rank.tell(both[STOPPED].process.pid)
        wait_until(both[STOPPED].is_stopped, "the stop in the middle")
        assert both[SITS].says_nothing(0.3)
        both[SITS].tell("abort")
        assert both[SITS].says() == "has left"
        both[SITS].ends()


def wait_in_the_next_group(me: Me) -> None:
    track_groups()
    me.build()
    abort_all()
    leave_groups(in_trouble=True)
    me.build("second")
    me.say("ready")
    if me.rank == STOPPED:
        me.hear()
    send_and_receive(torch.ones(1), sender=STOPPED)
    me.say("received")


@pytest.mark.processes
def test_a_wait_in_the_next_group_may_last() -> None:
    with ranks(wait_in_the_next_group, size=2) as (sits, late):
        assert sits.says() == late.says() == "ready"
        assert sits.says_nothing(5 * STAYS_S)
        late.tell("send")
        assert sits.says() == late.says() == "received"
