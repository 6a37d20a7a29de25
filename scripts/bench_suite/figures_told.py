"""The figures that the table and the picture tell, in their order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    measure: str
    figure: str
    title: str
    short: str
    with_toll: bool = False
    """Whether what the survivors lost is told along."""


TOLD = (
    Told("node_killed", "gap_s", "node killed (SIGKILL) → next step of all survivors", "node killed", True),
    Told("node_stopped", "gap_s", "node stopped (SIGSTOP) → next step of all survivors", "node stopped", True),
    Told("agent_killed", "gap_s", "launcher alone killed → next step of all survivors", "launcher killed", True),
    Told("leave", "gap_s", "SIGTERM to one launcher → next step of all others", "node leaves", True),
    Told("worker_killed", "gap_s", "1 of 4 workers killed → next step of all survivors", "worker killed", True),
    Told("worker_killed", "all_back_s", "1 of 4 workers killed → all 4 step again", "worker killed, all back"),
    Told("come_back", "all_back_s", "node killed and started again → all step", "node back", True),
    Told("scale_up", "all_step_s", "new node started → all step", "node joins"),
    Told("scale_up", "pause_s", "new node joins: pause of the survivors", "pause at a join", True),
    Told("cold_start", "first_step_of_2_s", "launch → first step of 2 workers", "start of 2"),
    Told("cold_start", "first_step_of_4_s", "launch → first step of 4 workers", "start of 4"),
)
STEADY = {"clock": "the clock", "processor": "processor time", "beside": "processor time beside the step"}
"""What is told of a step, see steady.py, from what counts to what is least noisy."""
