"""A seed becomes a plan: one small job, and what befalls it. Pure: the same seed and family give the same plan.

Faults come in groups of one or two ranks at once. A group strikes when the one before it has struck and its rank
reaches its phase, so the phase is exact and nothing is left to a clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

FAMILIES = ("rfc", "worlds", "wrapper", "callbacks")
POLICIES = ("no-replace", "replace", "record")
STORES = ("c10d", "etcd")
LAYOUTS = {"1x4": (1, 4), "3x2": (3, 2)}

PHASES = {
    "rfc": ("start", "build", "built", "step", "step", "step", "return", "completion"),
    "worlds": ("start", "build", "built", "step", "step", "step", "return", "completion"),
    "wrapper": ("start", "health", "build", "built", "step", "step", "atomic", "return", "completion"),
    "callbacks": ("start", "assign", "assign", "initialize", "finalize", "finalize", "step", "completion"),
}
"""Where a fault may strike: before a rank asks for its first world; in init_process_group, before and after gloo has
connected; in the health check; before a step's collective; in an atomic block; when all steps are done, in the function
and behind it; in the wrapper's other callbacks."""
LATE = ("return", "completion")
"""They are reached once, when the work is done."""
FORMING = ("build", "built", "health", "assign", "initialize", "finalize")
"""They are reached when a world is formed."""

ENDING = ("kill", "segv", "exit3")
"""They end the process, as a failure."""
STALLING = ("hang", "stop")
RANK_KINDS = (*ENDING, "kill", "exception", "exception", "exit0", *STALLING)
NODE_KINDS = ("term", "agent", "node", "newcomer")
RESUMES_S = (0.5, 2.5, None)
"""After how long a stopped process is continued: before a timeout, between the two, never."""

SOFT_TIMEOUT_S, HARD_TIMEOUT_S = 2, 6
NEWCOMER = "n"
MANY_RESTARTS = 50


@dataclass(frozen=True)
class Slot:
    """A worker's place on its node: what is started there again is another process in the same slot."""

    node: str
    local_rank: int


@dataclass(frozen=True)
class Fault:
    number: int
    kind: str
    slot: Slot
    """Whom it befalls; of a node's fault, who reports the phase."""
    phase: str
    steps: int = 0
    """In the phases of steps: as many as the rank has taken in its world."""
    after: int | None = None
    """The fault that must have struck before."""
    resumes_s: float | None = None

    def __str__(self) -> str:
        resumes = f", continued after {self.resumes_s:g} s" if self.resumes_s is not None else ""
        at = f"{self.phase} {self.steps}" if self.phase in ("step", "atomic") else self.phase
        after = f", after #{self.after}" if self.after is not None else ""
        return f"#{self.number} {self.kind} of {self.slot.node}/{self.slot.local_rank} in {at}{resumes}{after}"


@dataclass(frozen=True)
class Plan:
    seed: int
    family: str
    layout: str
    store: str
    policy: str
    max_restarts: int
    hurries: bool
    """Once all nodes have come the work ends after its fewest steps, whatever the faults; else when all are back."""
    faults: tuple[Fault, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple("abc"[: LAYOUTS[self.layout][0]])

    @property
    def ranks(self) -> int:
        """Of each node."""
        return LAYOUTS[self.layout][1]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(node, rank) for node in self.nodes for rank in range(self.ranks))

    @property
    def stalls(self) -> bool:
        return any(fault.kind in STALLING for fault in self.faults)

    def __str__(self) -> str:
        restarts = "" if self.max_restarts == MANY_RESTARTS else f" max_restarts={self.max_restarts}"
        hurries = " in a hurry" if self.hurries else ""
        faults = "; ".join(map(str, self.faults))
        return f"{self.family} {self.layout} {self.store} {self.policy}{restarts}{hurries}: {faults}"


def draw(seed: int, family: str | None = None) -> Plan:
    """The plan of a seed; of the given family, else of one that the seed draws."""
    family = family or random.Random(f"family {seed}").choice(FAMILIES)
    rng = random.Random(f"{family} {seed}")
    layout = rng.choice(tuple(LAYOUTS))
    plan = Plan(
        seed,
        family,
        layout,
        store=rng.choice(STORES),
        policy=rng.choice(POLICIES),
        max_restarts=MANY_RESTARTS,
        hurries=rng.random() < 0.15,
        faults=(),
    )
    if plan.policy != "record" and rng.random() < 0.1:
        return replace(plan, faults=tuple(_spending(rng, plan)), max_restarts=0)
    return replace(plan, faults=tuple(_storm(rng, plan)))


def _spending(rng: random.Random, plan: Plan) -> list[Fault]:
    """The only restart is one too many."""
    return [Fault(0, rng.choice(ENDING), rng.choice(plan.slots), rng.choice(("start", "build", "step")), steps=3)]


def _storm(rng: random.Random, plan: Plan) -> list[Fault]:
    faults: list[Fault] = []
    free = list(plan.slots)
    # Who is never harmed keeps what was learned. The first node may be alone for long.
    free.remove(rng.choice([slot for slot in free if plan.store != "c10d" or slot.node == plan.nodes[0]]))
    groups = rng.randint(1, 4)
    for group in range(groups):
        before = faults[-1] if faults else None
        drawn = _group(rng, plan, before, free, is_last=group == groups - 1)
        faults += [
            Fault(len(faults) + n, **each, after=before.number if before is not None else None)
            for n, each in enumerate(drawn)
        ]
        gone = {fault.slot for fault in faults if not _comes_again(fault, plan)}
        gone_nodes = {fault.slot.node for fault in faults if fault.kind in ("term", "agent", "node")}
        free = [slot for slot in free if slot not in gone and slot.node not in gone_nodes]
        if not free or faults[-1].phase in LATE:
            break
    return faults


def _group(
    rng: random.Random, plan: Plan, before: Fault | None, free: list[Slot], *, is_last: bool
) -> list[dict[str, object]]:
    phase = rng.choice([p for p in PHASES[plan.family] if _is_reached(p, plan, before, is_last=is_last)])
    steps = rng.choice((0, 1, 3, 10))
    if len(plan.nodes) > 1 and rng.random() < 0.2:
        return _of_a_node(rng, plan, before, free, phase, steps)
    if phase == "start" and before is not None:
        struck = [before.slot]
    else:
        struck = rng.sample(free, 2 if len(free) > 1 and rng.random() < 0.3 else 1)
    return [_of_a_rank(rng, slot, phase, steps) for slot in struck]


def _of_a_rank(rng: random.Random, slot: Slot, phase: str, steps: int) -> dict[str, object]:
    # What an assignment raises ends all ranks, as it should.
    kind = rng.choice([kind for kind in RANK_KINDS if (kind, phase) != ("exception", "assign")])
    resumes_s = rng.choice(RESUMES_S) if kind == "stop" else None
    return {"kind": kind, "slot": slot, "phase": phase, "steps": steps, "resumes_s": resumes_s}


def _of_a_node(
    rng: random.Random, plan: Plan, before: Fault | None, free: list[Slot], phase: str, steps: int
) -> list[dict[str, object]]:
    kind = rng.choice(NODE_KINDS)
    # One newcomer a job, and only if the job is sure to be there when it comes.
    in_vain = kind == "newcomer" and (plan.hurries or phase in LATE or (before is not None))
    if in_vain:
        return [_of_a_rank(rng, rng.choice(free), phase, steps)]
    return [{"kind": kind, "slot": rng.choice(free), "phase": phase, "steps": steps, "resumes_s": None}]


def _is_reached(phase: str, plan: Plan, before: Fault | None, *, is_last: bool) -> bool:
    """Will a rank be in this phase once the faults before it have struck?"""
    if phase in LATE:
        return is_last
    if before is None:
        return phase != "finalize"
    if phase == "start":
        return before.kind in ENDING and plan.policy != "record"
    if phase in FORMING:
        return before.resumes_s != RESUMES_S[0]  # that one forms no world
    return True


def _comes_again(fault: Fault, plan: Plan) -> bool:
    """May the slot have a process, to which more can befall?"""
    if fault.kind in ("exit0", "newcomer"):
        return fault.kind == "newcomer"
    return plan.policy != "record"
