"""Short ways to write values, and strategies that draw any."""

from __future__ import annotations

from hypothesis import strategies as st

from softrun.agent.protocol.model import (
    Address,
    Beat,
    Hello,
    JobSettings,
    Member,
    Message,
    NodeIntent,
    Phase,
    Report,
    Round,
    Worker,
)

JOB = JobSettings(min_nodes=1, max_nodes=4, restart_policy="soft", worker_failure="no-replace")
STORE = Address("host", 1)


def member(node: str, incarnation: int = 1, workers: int = 1, lives: int = 1, role: str = "trainer") -> Member:
    slots = tuple(Worker(local_rank, lives) for local_rank in range(workers))
    return Member(node, incarnation, f"host-{node}", 7000, role, slots)


def ready(placed: Member, **changes: object) -> Report:
    return Report(placed, NodeIntent.READY, **changes)  # type: ignore[arg-type]  # names of Report's own fields


def sealed(*members: Member, number: int = 1, job: JobSettings = JOB, finishing: bool = False) -> Round:
    return Round(number + 1, number, Phase.SEALED, members, job, STORE, finishing=finishing)


def opened(*members: Member, number: int = 0, job: JobSettings = JOB) -> Round:
    return Round(number + 1, number, Phase.OPEN, members, job, STORE if number else None)


names = st.text(min_size=1, max_size=12)
numbers = st.integers(0, 2**40)
workers = st.builds(Worker, numbers, numbers)
members = st.builds(Member, names, numbers, names, st.integers(0, 65535), names, st.tuples(workers) | st.just(()))
reports: st.SearchStrategy[Report] = st.builds(
    Report, members, st.sampled_from(NodeIntent), st.lists(numbers).map(tuple), numbers, st.text(), numbers
)
messages: st.SearchStrategy[Message] = reports | st.builds(Hello, reports) | st.just(Beat())
settings = st.builds(JobSettings, numbers, numbers, names, names)
rounds: st.SearchStrategy[Round] = st.builds(
    Round,
    numbers,
    numbers,
    st.sampled_from(Phase),
    st.lists(members, max_size=4).map(tuple),
    settings,
    st.none() | st.builds(Address, names, st.integers(0, 65535)),
    st.lists(names).map(tuple),
    st.booleans(),
    st.text(),
)
