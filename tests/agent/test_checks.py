"""What cannot be meant is refused in one line, and nothing else ever happens; what engines write is never refused."""

from __future__ import annotations

import copy
import inspect
import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scenarios.player import Player, read
from values import JOB, STORE, following, member, of_job, opened, ready, sealed

from simulation.chaos import run_seed
from softrun.agent.consensus.change import difference
from softrun.agent.core.engine import Engine
from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.checks import MOST_WORKERS, check_message, check_round
from softrun.agent.protocol.live import Calls, Made, Verdict
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Address,
    BarrierAnswer,
    Beat,
    Change,
    Decided,
    Hello,
    JobSettings,
    Member,
    Message,
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
from softrun.agent.protocol.printable import printable
from softrun.runtime.bounds import LARGEST, LARGEST_STEP, LONGEST_NAME, LONGEST_TEXT
from softrun.runtime.calls import Way
from softrun.runtime.events import Interruption, WorkerFault

SEEDS = range(16)
MUTATED = 10_000
A, B = member("a", workers=2), member("b")
WORLD = of_job("a@1", sealed(A, B))
NEXT = following(WORLD)
AFTER = WORLD.id
CHANGE = difference(WORLD, NEXT)
REPORT = ready(A, sequence=7, barrier_answer=BarrierAnswer((2, 0), 9, 10, all=True, step_s=0.2))
FAULT = WorkerFault(round=1, text="fault of rank 0", causes=((0, Interruption.EXCEPTION),), depth=1)


def with_member(**changes: Any) -> Round:
    return replace(WORLD, members=(replace(A, **changes), B))


def with_answer(**changes: Any) -> Report:
    return replace(REPORT, barrier_answer=replace(REPORT.barrier_answer, **changes))  # type: ignore[type-var]


def with_fault(**changes: Any) -> Round:
    return replace(WORLD, fault=FAULT.model_copy(update=changes))


MEANT: dict[str, Round | Report] = {
    "a world": WORLD,
    "the first record": opened(replace(A, workers=())),
    "a meeting of nodes that keep their workers": opened(A, B, number=3),
    "a meeting of nobody": opened(number=3),
    "the end": replace(WORLD, phase=Phase.CLOSED, outcome="a worker failed:\n  Traceback\n\x1b[31m"),
    "the end of a job without a world": replace(opened(A), phase=Phase.CLOSED),
    "a world at a place of the user's": replace(
        WORLD, worker_store=None, settings=replace(JOB, named_store=True), number=1
    ),
    "a job that is given up": replace(opened(A), phase=Phase.GIVEN_UP, heir=Address("h", 1), lineage="a"),
    "a world with a witness": replace(WORLD, witness="w", settings=replace(JOB, witness=Address("2001:db8::1", 29400))),
    "a role without a name": with_member(role=""),
    "an address of IPv6": with_member(host="fe80::1%eth0"),
    "a name of a host that is not English": with_member(host="bücher.example"),
    "a fault": with_fault(),
    "a step that is a time": with_answer(first=0, last=1_700_000_000_000_000_000),
    "a report": REPORT,
    "a node without workers": ready(replace(A, workers=())),
    "a node that is done": ready(A, done=(0, 1)),
}
HUGE = LARGEST + 1
IMPOSSIBLE: dict[str, tuple[Round | Report, str]] = {
    "no port": (with_member(port=0), "address of member 'a' has port 0, which is not from 1 to 65535"),
    "a port beyond": (with_member(port=99_999), "has port 99999"),
    "a port of 1000 digits": (with_member(port=10**1000), "has port of 3322 bits"),
    "a port of the store": (replace(WORLD, worker_store=Address("h", 65_536)), "worker_store has port 65536"),
    "a host of the store": (replace(WORLD, worker_store=Address("", 1)), "worker_store has host ''"),
    "a host with NUL": (with_member(host="a\0b"), r"host 'a\\x00b', which is no name or address"),
    "a host that is two words": (with_member(host="a b"), "host 'a b'"),
    "a label that is too long": (with_member(host="ü" * 70), "which is no name or address"),
    "a host that is too long": (with_member(host="a." * 200), "which is no name or address"),
    "a label that is empty": (with_member(host="a..b"), "which is no name or address"),
    "a local rank below": (with_member(workers=(Worker(-5, 1),)), "local ranks of member 'a' have -5"),
    "a local rank beyond": (with_member(workers=(Worker(MOST_WORKERS, 1),)), "have 65536"),
    "one local rank twice": (with_member(workers=(Worker(1, 1), Worker(1, 2))), "have one twice"),
    "a worker's incarnation": (with_member(workers=(Worker(0, -1),)), "incarnation of a worker of member 'a' -1"),
    "an incarnation": (with_member(incarnation=-1), "incarnation of member 'a' -1 is not from 0 to"),
    "a lease": (with_member(lease_number=HUGE), "lease_number of member 'a'"),
    "a preferred rank": (with_member(preferred_rank=-1), "preferred_rank of member 'a'"),
    "a node without a name": (with_member(node=""), "node is empty"),
    "a node with a long name": (with_member(node="a" * (LONGEST_NAME + 1)), "node has 513 characters"),
    "a node of two lines": (with_member(node="a\nsoftrun: error: b"), r"'a\\nsoftrun: error: b'"),
    "a role that repaints": (with_member(role="\x1b]0;x"), r"role of member 'a' '\\x1b\]0;x'"),
    "the same member twice": (replace(WORLD, members=(A, A)), "member 'a' is there twice"),
    "two lives of a node": (replace(WORLD, members=(A, replace(A, incarnation=2))), "member 'a' is there twice"),
    "a world of nobody": (replace(WORLD, members=()), "SEALED has no members"),
    "a member without workers": (with_member(workers=()), "SEALED has member 'a' without workers"),
    "world 0": (replace(WORLD, number=0), "SEALED has number 0"),
    "a world without a store": (replace(WORLD, worker_store=None), "no worker_store in world 1"),
    "a later world at the user's place": (
        replace(WORLD, worker_store=None, settings=replace(JOB, named_store=True), number=2),
        "no worker_store in world 2",
    ),
    "a version": (replace(WORLD, version=-1), "version -1"),
    "a number": (replace(WORLD, number=HUGE), "number"),
    "worlds without a step": (replace(WORLD, stepless=-1), "stepless -1"),
    "a step before the first": (replace(WORLD, leave_after=-1), "leave_after -1"),
    "a step beyond": (replace(WORLD, leave_after=LARGEST_STEP + 1), "leave_after"),
    "a step of no world": (replace(opened(A), leave_after=3), "leave_after 3, which only a world has"),
    "an heir's port": (replace(WORLD, heir=Address("h", 0)), "heir has port 0"),
    "a job that is given up for nothing": (replace(opened(A), phase=Phase.GIVEN_UP), "GIVEN_UP has no heir"),
    "no nodes": (replace(WORLD, settings=replace(JOB, min_nodes=0)), "nodes 0:4"),
    "nodes the wrong way": (replace(WORLD, settings=replace(JOB, min_nodes=5)), "nodes 5:4"),
    "a witness's port": (replace(WORLD, settings=replace(JOB, witness=Address("h", 0))), "witness has port 0"),
    "a witness that is a member": (replace(WORLD, witness=A.node), "is the witness as well"),
    "a policy": (replace(WORLD, settings=replace(JOB, restart_policy="")), "restart_policy is empty"),
    "a variant": (replace(WORLD, settings=replace(JOB, worker_failure="\0")), "worker_failure"),
    "a lost node": (replace(WORLD, lost=("\x1b[2J",)), "lost node"),
    "a long outcome": (replace(WORLD, outcome="x" * (LONGEST_TEXT + 1)), "outcome has 65537 characters"),
    "no number of seconds": (with_answer(step_s=math.nan), "step_s nan"),
    "a step for ever": (with_answer(step_s=math.inf), "step_s inf"),
    "a step in no time": (with_answer(step_s=1e-308), "no time that a step takes"),
    "steps the wrong way": (with_answer(first=11), "first of barrier_answer 11 is beyond its last 10"),
    "an answer to nothing": (with_answer(request=(-1, 0)), "request of barrier_answer -1"),
    "a request": (replace(REPORT, barrier_request=(1, HUGE)), "barrier_request"),
    "a sequence": (replace(REPORT, sequence=-1), "sequence -1"),
    "done": (replace(REPORT, done=(1, 1)), "done have one twice"),
    "done beyond": (replace(REPORT, done=(-1,)), "done have -1"),
    "a reason": (replace(REPORT, reason="x" * (LONGEST_TEXT + 1)), "reason has 65537 characters"),
    "a member of a report": (replace(REPORT, member=replace(A, port=-1)), "has port -1"),
    **{
        f"report: {name}": (replace(REPORT, **{name: -1}), f"{name} -1")  # type: ignore[arg-type]
        for name in (
            "broken_round",
            "missed_round",
            "through",
            "since",
            "never_came",
            "yields",
            "told",
            "release_edition",
            "hands_over",
        )
    },
}


SAID: tuple[Message, ...] = (
    *(
        Beat(),
        Beat(1.5, 2.5, 5.0),
        REPORT,
        Hello(replace(REPORT, known=WORLD.id), (1, "b"), Beat()),
        Record(WORLD),
        Witnessed(WORLD.id),
    ),
    *(Prepare((1, "a"), AFTER), Promise((1, "a"), after=AFTER), Promise((1, "a"), (0, "b"), CHANGE, AFTER)),
    *(Accept((0, "a"), CHANGE, AFTER), Accepted((1, "a"), AFTER), Refused((2, "b"), AFTER), Decided((1, "a"), AFTER)),
    *(Calls(3, ("a/0",), 1, (Made(0, Way.BARRIER, "1", "x.py:3"),)), Verdict(3, (), 1, Way.EXIT, ok=True)),
)
NOBODYS = replace(WORLD, members=())
NOT_SAID: dict[str, tuple[Message, str]] = {
    "a clock that stands": (Beat(math.nan), "kind Beat cannot be meant: at nan"),
    "an echo": (Beat(0, math.inf), "echo inf"),
    "a grant": (Beat(0, 0, -1.0), "grant_s -1"),
    "a report": (Hello(replace(REPORT, sequence=-1)), "a report cannot be meant: sequence -1"),
    "a version": (Hello(replace(REPORT, known=RecordId("a", -1, "n"))), "a report cannot be meant: version -1"),
    "a lineage": (Hello(replace(REPORT, known=RecordId("\0", 1, "n"))), "lineage"),
    "a promise": (Hello(REPORT, (-1, "a")), "ballot -1"),
    "a beat in a hello": (Hello(REPORT, beat=Beat(math.nan)), "kind Hello cannot be meant: at nan"),
    "a record": (Record(NOBODYS), "has no members"),
    "a record to accept": (Accept((0, "a"), replace(CHANGE, round=replace(NEXT, number=-1)), AFTER), "number -1"),
    "a record that does not follow": (Accept((0, "a"), CHANGE, NEXT.id), "version 3 is no record after version 3"),
    "one with another name": (Accept((0, "a"), CHANGE, RecordId("a@1", 2, "?")), "is no record after"),
    "a record that was accepted": (
        Promise((0, "a"), (0, "a"), replace(CHANGE, round=replace(NEXT, number=-1)), AFTER),
        "number -1",
    ),
    "a vote in no ballot": (Promise((0, "a"), None, CHANGE, AFTER), "something was accepted in no ballot"),
    "a ballot": (Prepare((-1, "a")), "kind Prepare cannot be meant: ballot -1"),
    "a ballot of nobody": (Accept((0, ""), CHANGE, AFTER), "node of a ballot is empty"),
    "an accepted ballot": (Promise((0, "a"), (HUGE, "a"), CHANGE), "ballot"),
    "a ballot accepted": (Accepted((0, "a"), RecordId("a", -1, "n")), "version -1"),
    "a scope": (Calls(1, ("a",), 1, ()), "scope names 'a', which is no worker"),
    "departed": (Calls(1, (), 0, (), (1, 1)), "departed have one twice"),
    "who is gone": (Verdict(1, (), 1, Way.EXIT, gone=("\n/1",)), "gone names '\\n/1', which is no worker"),
    "a tag": (Verdict(1, (), 1, Way.ENTRY, tags=(("a/1", "x" * 600),)), "tag has 600 characters"),
    "a ballot promised": (Refused((0, "\n")), "node of a ballot"),
    "what a witness holds": (Witnessed(RecordId("a", -1, "n")), "version -1"),
    "a decision": (Decided((0, "x" * (LONGEST_NAME + 1))), "node of a ballot has 513"),
}


def check(value: Round | Message) -> None:
    if isinstance(value, Round):
        check_round(value)
    else:
        check_message(value)


@pytest.mark.parametrize("name", MEANT)
def test_what_can_be_meant_is_taken(name: str) -> None:
    check(MEANT[name])


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_meant_is_refused_in_one_line(name: str) -> None:
    value, says = IMPOSSIBLE[name]
    with pytest.raises(ProtocolError, match=rf"^[^\n\x1b]*cannot be meant: [^\n\x1b]*{says}[^\n\x1b]*$") as refusal:
        check(value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("message", SAID, ids=lambda message: type(message).__name__)
def test_what_can_be_said_is_taken(message: Message) -> None:
    check(message)


@pytest.mark.parametrize("name", NOT_SAID)
def test_what_cannot_be_said_is_refused_in_one_line(name: str) -> None:
    message, says = NOT_SAID[name]
    assert says in refusal_of(message)


def test_every_field_is_looked_at() -> None:
    """Numbers and texts are, by their type, wherever they are added, and pydantic's models look at their own; another
    field must be named in the checks."""
    source = Path(check_round.__code__.co_filename).read_text()
    for kind in (Round, BarrierAnswer, JobSettings, *get_args(Message)):
        for name, of_type in inspect.get_annotations(kind).items():
            plain = getattr(of_type, "__forward_arg__", of_type) in (
                "int",
                "float",
                "str",
                "bool",
                "bool | None",
                "Phase",
                "NodeIntent",
                "Way",
                "WorkerFault | None",
                "Preemption | None",
            )
            assert plain or re.search(rf"[.(]{name}\b", source), f"{kind.__name__}.{name}"


# --- mutated records

ROUND, REPORTED = TypeAdapter(Round), TypeAdapter(Report)
GROWN = replace(
    sealed(A, B, *(member(f"n{number}", number) for number in range(4)), number=5),
    fault=FAULT,
    lost=("c",),
    leave_after=12,
    stepless=2,
)
TOLD = replace(REPORT, fault=FAULT, done=(1,), reason="because", barrier_request=(3, 1))
SOURCES: tuple[tuple[TypeAdapter[Any], Round | Report], ...] = (
    *((ROUND, each) for each in (WORLD, GROWN, opened(A, B, number=3), replace(GROWN, phase=Phase.CLOSED))),
    *((REPORTED, each) for each in (REPORT, TOLD)),
)
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 65_535, 65_536, 2**31, 2**53, 2**53 + 1, 2**63, 10**30, 10**400, -(10**30), True, None, ""),
    *(0.5, -0.0, 1e308, 1e-308, math.nan, math.inf, -math.inf, "a", "\0", "\n", "\x1b[2J", "\u202e", "ü" * 70, "." * 9),
    *("x" * 513, "y" * 70_000, [], {}, [[]], [0, 1], {"host": "h", "port": 1}, "SEALED", "OPEN", "CLOSED", "NaN"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a document."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def mutated(document: Any, rng: random.Random) -> Any:
    """The same, with one to three of its parts replaced, repeated or removed."""
    root = [copy.deepcopy(document)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        *way, last = rng.choice([path for path in places(root) if path])
        holder: Any = root
        for key in way:
            holder = holder[key]
        match rng.randrange(6):
            case 0 if isinstance(holder, list) and holder is not root:
                holder.append(holder[last])
            case 1 if holder is not root:
                del holder[last]
            case 2 if isinstance(holder[last], int):
                holder[last] += rng.choice((-1, 1))
            case _:
                holder[last] = copy.deepcopy(rng.choice(VALUES))
    return root[0]


def test_mutated_records_are_refused_or_can_be_meant() -> None:
    rng = random.Random(1)
    outcomes = dict.fromkeys(("of another type", "refused", "meant"), 0)
    documents = [(adapter, json.loads(adapter.dump_json(value))) for adapter, value in SOURCES]
    for _ in range(MUTATED):
        adapter, document = rng.choice(documents)
        outcomes[outcome(adapter, json.dumps(mutated(document, rng)))] += 1
    assert all(count > MUTATED // 50 for count in outcomes.values()), outcomes


def outcome(adapter: TypeAdapter[Any], document: str) -> str:
    try:
        value = adapter.validate_json(document)
    except ValidationError:
        return "of another type"
    return "refused" if refusal_of(value) else "meant"


def refusal_of(value: Round | Message) -> str:
    """Why it is refused, in one short line; empty if it is not."""
    try:
        check(value)
    except ProtocolError as error:
        refusal = str(error)
    else:
        return ""
    assert refusal.isprintable()
    assert len(refusal) < 400
    return refusal


numbers = st.integers(-2, 70_000) | st.integers()
texts = st.text(max_size=30)
drawn_members = st.builds(
    Member,
    texts,
    numbers,
    texts,
    numbers,
    texts,
    st.lists(st.builds(Worker, numbers, numbers), max_size=3).map(tuple),
)


@settings(max_examples=300)
@given(st.lists(drawn_members, max_size=4).map(tuple), numbers, numbers, st.sampled_from(Phase), st.lists(texts))
def test_any_record_is_refused_or_can_be_meant(
    members: tuple[Member, ...], version: int, number: int, phase: Phase, lost: list[str]
) -> None:
    if not refusal_of(Round(version, number, phase, members, JOB, STORE, tuple(lost))):
        assert len({m.node for m in members}) == len(members)
        assert all(0 < m.port < 65_536 for m in members)
        assert phase is not Phase.SEALED or (members and all(m.workers for m in members))


# --- what engines write


def records(value: Any) -> Iterator[Round | Message]:
    """All rounds and messages in an observation or an effect. What a change lacks is not looked for in it."""
    if isinstance(value, Change):
        return
    if isinstance(value, (Round, *get_args(Message))):
        yield value
    if isinstance(value, tuple | list):
        for each in value:
            yield from records(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from records(getattr(value, field.name))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every record and report that an engine takes or gives is checked; the list has how many."""
    observe, counts = Engine.observe, [0]

    def checking(self: Engine, observation: Any, now: float) -> Any:
        effects = observe(self, observation, now)
        for value in (*records(observation), *records(list(effects))):
            check(value)
            counts[0] += 1
        return effects

    monkeypatch.setattr(Engine, "observe", checking)
    yield counts
    assert counts[0] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_engines_write_is_refused(seed: int, checked: list[int]) -> None:
    run_seed(seed)


def test_nothing_in_the_scenarios_is_refused(checked: list[int]) -> None:
    for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt")):
        for _ in Player().play(read(path.read_text())):
            pass


# --- text of others


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢 'x' \\n", "plain ü 漢 'x' \\n"),
        ("a\nsoftrun: error: b\r", "a\\nsoftrun: error: b\\r"),
        ("\x1b]0;owned\x07\x9b2J\x7f\0", "\\x1b]0;owned\\x07\\x9b2J\\x7f\\x00"),
        ("\u202eevil\u2066\u2028\u200b", "\\u202eevil\\u2066\\u2028\\u200b"),
        ("a\udcff", "a\\udcff"),
        ("", ""),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("y" * 10_000_000, "y" * 199 + "…"),
    ],
)
def test_text_of_others_is_made_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.integers(1, 50))
def test_it_is_one_line_within_its_limit(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert (shown == text) == (text.isprintable() and len(text) <= limit)
