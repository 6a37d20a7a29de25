"""Short ways to write values, and strategies that draw any."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from softrun.agent.consensus import descent
from softrun.agent.consensus.change import last_words
from softrun.agent.proof.testament import Words
from softrun.agent.protocol.live import Calls, Made, Verdict
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Address,
    Ballot,
    Beat,
    Change,
    Decided,
    Hello,
    JobSettings,
    LastWords,
    Member,
    Message,
    NodeIntent,
    Phase,
    Prepare,
    Promise,
    Record,
    RecordId,
    Refused,
    Report,
    Round,
    Witnessed,
    Worker,
)
from softrun.runtime.calls import Way

JOB = JobSettings(min_nodes=1, max_nodes=4, restart_policy="soft", worker_failure="no-replace")
STORE = Address("host", 1)
UNNAMED = RecordId(version=1)
"""How a record that a store keeps is called: it needs no name, since there is no other."""


def member(node: str, incarnation: int = 1, workers: int = 1, lives: int = 1, role: str = "trainer") -> Member:
    slots = tuple(Worker(local_rank, lives) for local_rank in range(workers))
    return Member(node, incarnation, f"host-{node}", 7000, role, slots)


def ready(placed: Member, known: RecordId = UNNAMED, **changes: object) -> Report:
    return Report(placed, NodeIntent.READY, known, **changes)  # type: ignore[arg-type]  # names of Report's own fields


def sealed(*members: Member, number: int = 1, job: JobSettings = JOB, finishing: bool = False) -> Round:
    return Round(number + 1, number, Phase.SEALED, members, job, STORE, finishing=finishing)


def opened(*members: Member, number: int = 0, job: JobSettings = JOB) -> Round:
    return Round(number + 1, number, Phase.OPEN, members, job, STORE if number else None)


def of_job(lineage: str, round_: Round, **changes: object) -> Round:
    """The record as one of the job that is called so. Two of one job and version are one, unless they are renamed."""
    record = replace(round_, lineage=lineage, **changes)  # type: ignore[arg-type]  # names of Round's own fields
    names = [f"{lineage} {version}" for version in range(record.version, 0, -1)]
    return replace(record, name=names[0], past=tuple(names[1 : 1 + descent.IN_RECORD]))


def following(record: Round, **changes: object) -> Round:
    """A record that its voters have agreed on next. Equal changes make the same one."""
    name = f"{record.name} {sorted(changes.items(), key=str)}"
    after = replace(record, version=record.version + 1, **changes)  # type: ignore[arg-type]
    return replace(after, name=f"{hash(name):x}", past=(record.name, *record.past))


def words_of(record: Round, accepted_in: Ballot = (0, "a"), accepted: Round | None = None) -> LastWords:
    """The last words, in full, of an agent that knew this record and had accepted that one."""
    return last_words(None, record, accepted_in if accepted is not None else None, accepted_in, accepted)


def told_to(record: Round | None, words: LastWords, in_full: LastWords) -> LastWords:
    """Which last words an agent with this record is told."""
    names = (words.round.round.name, words.before.name) if words.round is not None else ("", "")
    asks = (record.name, *record.past) if record is not None else ()
    return words if Words(*names, b"short", b"").for_who_knows(" ".join(asks)) else in_full


def known(version: int, lineage: str) -> RecordId:
    """How the others call the record of `of_job`."""
    return RecordId(lineage, version, f"{lineage} {version}")


names = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=12)
numbers = st.integers(0, 2**40)
hosts = names.map(lambda name: f"host-{len(name)}")
ports = st.integers(1, 65535)
local_ranks = st.integers(0, 65535)
workers = st.builds(Worker, local_ranks, numbers)
members = st.builds(Member, names, numbers, hosts, ports, names, st.tuples(workers) | st.just(()))
ids = st.builds(RecordId, names, numbers, names)
runs: st.SearchStrategy[tuple[tuple[int, int], ...]] = st.lists(
    st.tuples(st.integers(-1, 9), st.integers(1, 9)), max_size=3
).map(tuple)
reports: st.SearchStrategy[Report] = st.builds(
    Report,
    members,
    st.sampled_from(NodeIntent),
    known=ids,
    done=st.lists(local_ranks, unique=True).map(tuple),
    broken_round=numbers,
    reason=st.text(),
    sequence=numbers,
    told=numbers,
    ends=st.booleans(),
)
addresses = st.builds(Address, hosts, ports)
settings = st.builds(
    lambda least, more, *names, witness: JobSettings(least, least + more, *names, witness=witness),
    st.integers(1, 2**20),
    numbers,
    names,
    names,
    witness=st.none() | addresses,
)
placed = st.lists(members, max_size=4, unique_by=lambda member: member.node).map(tuple)
worlds = st.lists(
    members.filter(lambda member: bool(member.workers)), min_size=1, max_size=4, unique_by=lambda member: member.node
).map(tuple)
facts = {
    "version": numbers,
    "settings": settings,
    "lost": st.lists(names).map(tuple),
    "finishing": st.booleans(),
    "outcome": st.text(),
    "lineage": names,
    "witness": st.just("") | names.map("w-{}".format),
    "name": names,
    "past": st.lists(names, max_size=4).map(tuple),
    "by_proof": st.lists(st.tuples(numbers, names), max_size=3).map(tuple),
    "split_from": names,
}
rounds: st.SearchStrategy[Round] = st.one_of(
    st.builds(
        Round,
        number=st.integers(1, 2**40),
        phase=st.just(Phase.SEALED),
        members=worlds,
        finished=st.sampled_from(((), (0,))),
        worker_store=addresses,
        leave_after=numbers,
        **facts,  # type: ignore[arg-type]  # names of Round's own fields
    ).map(lambda round_: replace(round_, retired=round_.finished if len(round_.members) > 1 else ())),
    st.builds(
        Round,
        number=numbers,
        phase=st.sampled_from((Phase.OPEN, Phase.CLOSED)),
        members=placed,
        worker_store=st.none() | addresses,
        **facts,  # type: ignore[arg-type]
    ),
    st.builds(
        Round,
        number=numbers,
        phase=st.just(Phase.GIVEN_UP),
        members=st.just(()),
        heir=addresses,
        **facts,  # type: ignore[arg-type]
    ),
)
changes = st.builds(Change, rounds, runs)
seconds = st.floats(0, 2**40)
ballots: st.SearchStrategy[Ballot] = st.tuples(numbers, names)


def _asks_for(ballot: Ballot, round_: Round, runs: tuple[tuple[int, int], ...], lineage: str) -> Accept:
    return Accept(ballot, Change(round_, runs), RecordId(lineage, round_.version - 1, round_.past[0]))


worker_names = st.builds(lambda node, rank: f"{node}/{rank}", names, st.integers(0, 99))
scopes = st.lists(worker_names, max_size=3).map(tuple)
tags = st.lists(st.tuples(worker_names, names), max_size=3).map(tuple)
made = st.builds(Made, local_ranks, st.sampled_from(Way), names, names)
verdicts = st.builds(
    Verdict, numbers, scopes, numbers, st.sampled_from(Way), st.none() | st.booleans(), tags, scopes, names
)
messages: st.SearchStrategy[Message] = st.one_of(
    reports,
    st.builds(Hello, reports, st.none() | ballots),
    st.builds(Beat, seconds, seconds, seconds, st.booleans(), st.booleans()),
    st.builds(Record, rounds, st.booleans()),
    st.builds(Witnessed, ids),
    st.builds(Prepare, ballots, ids),
    st.builds(Promise, ballots, after=ids),
    st.builds(Promise, ballots, ballots, changes, ids),
    st.builds(LastWords),
    st.builds(LastWords, changes, ids, st.none() | ballots, st.none(), st.none(), reports),
    st.builds(_asks_for, ballots, rounds.filter(lambda round_: bool(round_.version and round_.past)), runs, names),
    st.builds(Accepted, ballots, ids),
    st.builds(Refused, ballots, ids),
    st.builds(
        Calls,
        numbers,
        scopes,
        numbers,
        st.lists(made, max_size=2, unique_by=lambda m: m.local_rank).map(tuple),
        st.sets(local_ranks, max_size=2).map(tuple),
    ),
    verdicts,
    st.builds(Decided, ballots, ids),
)
