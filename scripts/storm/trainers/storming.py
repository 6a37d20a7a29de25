"""What the trainers of a storm share: the work, the diary that they keep of it, and the orders that they obey.

STORM names the run's directory. Who creates, writes and reads there:

    plan.json              the driver: all faults
    agent-<node>           the driver: the process id of a node's agent
    finish                 the driver: the work may end, when all ranks see it in the same step
    struck-<number>        the rank that a fault befalls, when it does
    diary/<pid>.jsonl      each worker: what it did, one line each
    diary/<pid>.stacks     each worker: its stacks, when SIGUSR1 asks for them

The work is exact: what a step adds is known beforehand, for any number of ranks. So a sum over stale peers, a step that
was lost or one that was taken twice shows in the diary.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

PAUSE_S = 0.005
FEWEST_STEPS = 40


class State:
    """What was learned: (steps, weight, whether the work is done), replaced as one, so that nothing tears it."""

    def __init__(self) -> None:
        self.learned = (0, 0.0, False)


def gradient(step: int) -> float:
    return float(step % 7)


class Storm:
    def __init__(self) -> None:
        self._directory = Path(os.environ["STORM"])
        self._node, self._local_rank = os.environ["STORM_NODE"], int(os.environ["LOCAL_RANK"])
        diary = self._directory / "diary" / f"{os.getpid()}"
        self._diary = os.open(diary.with_suffix(".jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stacks = diary.with_suffix(".stacks").open("w")
        faulthandler.register(signal.SIGUSR1, file=self._stacks, all_threads=True)
        faults = json.loads((self._directory / "plan.json").read_text())
        self._faults = [fault for fault in faults if fault["slot"] == [self._node, self._local_rank]]
        self._steps = 0  # in this world
        torch.set_num_threads(1)
        self._strike_while_building()
        self.note("started")
        self.reach("start")

    # --- the diary

    def note(self, what: str, **more: Any) -> None:
        line = {"mono": time.monotonic(), "pid": os.getpid(), "node": self._node, "local_rank": self._local_rank}
        os.write(self._diary, (json.dumps({**line, "what": what, **more}) + "\n").encode())

    # --- the work

    def train(self, state: State, each: Any = None) -> None:
        """Take steps in this world until all ranks may end; `each(step)` is called after each."""
        self._steps = 0
        place = {"round": int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1, "size": dist.get_world_size()}
        self.note("entered", rank=dist.get_rank(), **place)
        heal(state)
        finish = self._directory / "finish"
        while not state.learned[2]:
            self.reach("step")
            step, weight, _ = state.learned
            sums = torch.tensor([gradient(step + 1), float(finish.exists())], dtype=torch.float64)
            dist.all_reduce(sums)
            total, asked = sums.tolist()
            if total != gradient(step + 1) * place["size"]:
                self.note("corrupt", total=total, step=step + 1, **place)
            time.sleep(PAUSE_S)
            done = asked == place["size"] and step + 1 >= FEWEST_STEPS
            state.learned = (step + 1, weight + total / place["size"], done)
            self._steps += 1
            self.note("step", step=state.learned[0], weight=state.learned[1], **place)
            if each is not None:
                each(state.learned[0])

    # --- the orders

    def reach(self, phase: str) -> None:
        """Call it in each phase: what is due there befalls this process."""
        for fault in self._faults:
            if fault["phase"] == phase and self._is_due(fault, phase) and self._is_first(fault["number"]):
                self.note("fault", number=fault["number"])
                self._befall(fault)

    def _is_due(self, fault: dict[str, Any], phase: str) -> bool:
        if phase in ("step", "atomic") and self._steps < fault["steps"]:
            return False
        return fault["after"] is None or self._struck(fault["after"]).exists()

    def _struck(self, number: int) -> Path:
        return self._directory / f"struck-{number}"

    def _is_first(self, number: int) -> bool:
        """A fault befalls a slot once, whatever process is in it."""
        try:
            os.close(os.open(self._struck(number), os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def _befall(self, fault: dict[str, Any]) -> None:
        match fault["kind"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "segv":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(3600)
            case "exception":
                raise ValueError(f"fault {fault['number']}")
            case "exit0" | "exit3" as code:
                sys.exit(int(code[-1]))
            case "term" | "agent" as which:
                agent = int((self._directory / f"agent-{self._node}").read_text())
                os.kill(agent, signal.SIGTERM if which == "term" else signal.SIGKILL)
            case "node" | "newcomer":
                pass  # the driver's

    def _strike_while_building(self) -> None:
        """In init_process_group, before gloo connects and after."""
        build = c10d._new_process_group_helper

        @functools.wraps(build)
        def building(*args: Any, **options: Any) -> Any:
            self.reach("build")
            group = build(*args, **options)
            self.reach("built")
            return group

        c10d._new_process_group_helper = building


def heal(state: State) -> None:
    """All go on with what rank 0 knows."""
    step, weight, done = state.learned
    learned = torch.tensor([step, weight, done], dtype=torch.float64)
    dist.broadcast(learned, 0)
    state.learned = (int(learned[0]), float(learned[1]), bool(learned[2]))
