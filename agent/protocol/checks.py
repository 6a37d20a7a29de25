"""Whether what another agent wrote can be meant: the codec checks the types, this checks the values.

What is refused here never reaches the engine, which so need not ask whether a port is a port. The bounds are far from
all that agents write, and close enough for every number to fit where it goes. What workers may say besides is in
`softrun.runtime.bounds`, and whoever is granted a lease asks how long one can be (`softrun.agent.consensus.leases`).

    ports            what a socket takes
    local ranks      fewer than `MOST_WORKERS`: a node has no room for more processes
    numbers          up to `LARGEST`, which each reader of JSON reads exactly; a job that counts there never ends
    steps            up to `LARGEST_STEP`: the page that an agent shares with a worker has 64 bits for one
    seconds          finite, up to `LARGEST`; a step takes no time, if that is not known, or `SHORTEST_STEP_S` or more
    names            up to `LONGEST_NAME` characters, all of them printable; hosts are what the name service takes
    texts for people up to `LONGEST_TEXT` characters, of any kind: whoever prints them makes them printable
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from softrun.agent.errors import ProtocolError
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.protocol.model import (
    NO_RECORD,
    Accept,
    Accepted,
    Address,
    Ballot,
    BarrierAnswer,
    Change,
    Decided,
    Hello,
    JobSettings,
    LastWords,
    Member,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    Refused,
    Report,
    Round,
    Witnessed,
    Worker,
)
from softrun.agent.protocol.printable import printable
from softrun.runtime.bounds import LARGEST, LARGEST_STEP, LONGEST_NAME, LONGEST_TEXT
from softrun.runtime.calls import is_worker

MOST_WORKERS = 1 << 16
SHORTEST_STEP_S = 1e-9
MOST_PAST = 64
LONGEST_HOST = 253
"""The length of the longest name of a host; an address is shorter."""


def check_round(round_: Round) -> None:
    """Return if the record can be meant. Raises ProtocolError, with one line that names what is impossible in it."""
    for fault in _of_round(round_):
        raise ProtocolError(
            f"the job's record cannot be meant: {fault}; start every agent of the job with the same release of softrun"
        )


def check_report(report: Report) -> None:
    """Return if the report can be meant. Raises ProtocolError, with one line that names what is impossible in it."""
    for fault in _of_report(report):
        raise ProtocolError(f"a report cannot be meant: {fault}")


def check_message(message: Message) -> None:
    """Return if the message, and what it carries, can be meant. Raises ProtocolError, with one line that names what is
    impossible in it."""
    match message:
        case Report():
            check_report(message)
        case Hello():
            check_report(message.report)
        case Accept(change=change) | Promise(accepted=Change() as change):
            _check_change(change)
        case Record():
            check_round(message.round)
        case LastWords():
            for each in (message.round, message.accepted):
                if each is not None:
                    _check_change(each)
            if message.report is not None:
                check_report(message.report)
    for fault in _of_message(message):
        raise ProtocolError(f"a message of the kind {type(message).__name__} cannot be meant: {fault}")


def _check_change(change: Change) -> None:
    for fault in _of_round(change.round, whole=False):
        raise ProtocolError(f"a change of the job's record cannot be meant: {fault}")


_STEPS = frozenset({"leave_after", "first", "last"})
_TEXTS = frozenset({"outcome", "reason", "mistake"})
_NEEDED = frozenset({"restart_policy", "worker_failure"})

# Each of these yields what is wrong, and assumes of the rest no more than what was found to be right before.


def _of_round(round_: Round, *, whole: bool = True) -> Iterator[str]:
    """`whole`: with all of its members."""
    yield from _of_fields(round_)
    yield from _of_settings(round_.settings)
    yield from _of_members(round_.members)
    if len(round_.past) > MOST_PAST:
        yield f"past has {len(round_.past)} names, which is more than {MOST_PAST}"
    for name in round_.past:
        yield from _name("past", name)
    if len(round_.by_proof) > MOST_PAST:
        yield f"by_proof has {len(round_.by_proof)} records, which is more than {MOST_PAST}"
    for version, name in round_.by_proof:
        yield from _number("version in by_proof", version)
        yield from _name("by_proof", name)
    if round_.worker_store is not None:
        yield from _of_address("worker_store", round_.worker_store)
    for node in round_.lost:
        yield from _name("lost node", node)
    if whole and any(not 0 <= place < len(round_.members) for place in round_.finished):
        yield "finished names places that no member has"
    if len(set(round_.finished)) < len(round_.finished):
        yield "finished names a member twice"
    if len(set(round_.retired)) < len(round_.retired):
        yield "retired names a member twice"
    if whole and not set(round_.retired) <= set(round_.finished):
        yield "retired names members that have not finished"
    if whole and round_.members and len(round_.retired) == len(round_.members):
        yield "all members are retired, so none has a vote"
    if round_.witness in round_.by_node:
        yield f"member {_shown(round_.witness)} is the witness as well"
    for verdict in round_.verdicts:
        yield from _of_verdict(verdict)
    if round_.heir is not None:
        yield from _of_address("heir", round_.heir)
    elif round_.phase is Phase.GIVEN_UP:
        yield "phase GIVEN_UP has no heir"
    if round_.phase is Phase.SEALED:
        yield from _of_world(round_, whole=whole)
    elif round_.leave_after:
        yield f"phase {round_.phase.value} has leave_after {round_.leave_after}, which only a world has"


def _of_world(round_: Round, *, whole: bool) -> Iterator[str]:
    if whole and not round_.members:
        yield "phase SEALED has no members"
    for member in round_.members:
        if not member.workers:
            yield f"phase SEALED has member {_shown(member.node)} without workers"
    if not round_.number:
        yield "phase SEALED has number 0"
    if round_.worker_store is None and not (round_.settings.named_store and round_.number == 1):
        yield f"phase SEALED has no worker_store in world {round_.number}"


def _of_settings(settings: JobSettings) -> Iterator[str]:
    if not 1 <= settings.min_nodes <= settings.max_nodes <= LARGEST:
        yield f"nodes {_counted(settings.min_nodes)}:{_counted(settings.max_nodes)} are no range of 1 or more"
    yield from _of_fields(settings)
    if settings.witness is not None:
        yield from _of_address("witness", settings.witness)


def _of_members(members: tuple[Member, ...]) -> Iterator[str]:
    nodes: set[str] = set()
    checked: set[int] = set()  # what equal members have in common was read as one object
    for member in members:
        if any(_of_member(member, "", checked)):  # seldom: so nobody is named before it is needed
            yield from _of_member(member, f" of member {_shown(member.node)}", set())
        if member.node in nodes:
            yield f"member {_shown(member.node)} is there twice"
        nodes.add(member.node)


def _of_member(member: Member, whose: str, checked: set[int]) -> Iterator[str]:
    yield from _name("node", member.node)
    yield from _of_address(f"address{whose}", member)
    yield from _optional_name(f"role{whose}", member.role)
    yield from _number(f"incarnation{whose}", member.incarnation)
    yield from _number(f"lease_number{whose}", member.lease_number)
    yield from _number(f"preferred_rank{whose}", member.preferred_rank)
    if id(member.workers) not in checked:
        yield from _of_workers(whose, member.workers)
        checked.add(id(member.workers))


def _of_workers(whose: str, workers: tuple[Worker, ...]) -> Iterator[str]:
    for worker in workers:
        yield from _number(f"incarnation of a worker{whose}", worker.incarnation)
    yield from _local_ranks(f"local ranks{whose}", tuple(worker.local_rank for worker in workers))


def _of_report(report: Report) -> Iterator[str]:
    yield from _of_fields(report)
    yield from _of_fields(report.known)
    yield from _of_members((report.member,))
    yield from _local_ranks("done", report.done)
    yield from _of_request("barrier_request", report.barrier_request)
    for verdict in report.verdicts:
        yield from _of_verdict(verdict)
    if report.barrier_answer is not None:
        yield from _of_answer(report.barrier_answer)


def _of_message(message: Message) -> Iterator[str]:
    """Of what a message says besides a report or a record."""
    if isinstance(message, Report):
        return
    yield from _of_fields(message)
    match message:
        case Prepare() | Promise() | Accept() | Accepted() | Refused() | Decided():
            yield from _of_fields(message.after)
        case Witnessed():
            yield from _of_fields(message.known)
        case _:
            pass
    match message:
        case Accept(change=change, after=after) if not change.round.follows(after):
            yield f"version {change.round.version} is no record after version {after.version}"
        case Prepare() | Promise() | Accept() | Accepted() | Decided():
            yield from _of_ballot(message.ballot)
            if isinstance(message, Promise):
                yield from _of_vote(message.accepted_in, message.accepted)
        case LastWords():
            yield from _of_last_words(message)
        case Calls():
            yield from _of_calls(message)
        case Verdict():
            yield from _of_verdict(message)
        case Refused():
            yield from _of_ballot(message.promised)
        case Hello(promises=promises, beat=beat):
            if promises is not None:
                yield from _of_ballot(promises)
            if beat is not None:
                yield from _of_fields(beat)


def _of_last_words(words: LastWords) -> Iterator[str]:
    yield from _of_fields(words.before)
    yield from _of_vote(words.accepted_in, words.accepted)
    if words.promised is not None:
        yield from _of_ballot(words.promised)
    if words.accepted is None or words.accepted_in is None:
        return
    if words.promised is None or words.promised < words.accepted_in:
        yield f"it was accepted in ballot {_counted(words.accepted_in[0])}, which is above what was promised"
    accepted, known = words.accepted.round, words.round.round.id if words.round is not None else NO_RECORD
    if not accepted.follows(known):
        yield f"version {accepted.version} was accepted as the next one after {known.version}"


def _of_vote(accepted_in: Ballot | None, accepted: Change | None) -> Iterator[str]:
    if (accepted_in is None) != (accepted is None):
        yield "something was accepted in no ballot, or nothing in a ballot"
    elif accepted_in is not None:
        yield from _of_ballot(accepted_in)


def _of_calls(calls: Calls) -> Iterator[str]:
    for name in calls.scope:
        yield from _worker("scope", name)
    yield from _local_ranks("calls", tuple(made.local_rank for made in calls.made))
    yield from _local_ranks("departed", calls.departed)
    for made in calls.made:
        yield from _optional_name("tag", made.tag)
        yield from _text("site", made.site)


def _of_verdict(verdict: Verdict) -> Iterator[str]:
    yield from _of_fields(verdict)
    for name in verdict.scope:
        yield from _worker("scope", name)
    for name in verdict.gone:
        yield from _worker("gone", name)
    for name, tag in verdict.tags:
        yield from _worker("tags", name)
        yield from _optional_name("tag", tag)


def _worker(where: str, name: str) -> Iterator[str]:
    if not is_worker(name):
        yield f"{where} names {_shown(name)}, which is no worker"


def _of_ballot(ballot: Ballot) -> Iterator[str]:
    number, node = ballot
    yield from _number("ballot", number)
    yield from _name("node of a ballot", node)


def _of_answer(answer: BarrierAnswer) -> Iterator[str]:
    yield from _of_fields(answer)
    yield from _of_request("request of barrier_answer", answer.request)
    if answer.first > answer.last:
        yield f"first of barrier_answer {answer.first} is beyond its last {answer.last}"
    if 0 < answer.step_s < SHORTEST_STEP_S:
        yield f"step_s of barrier_answer {answer.step_s:g} is no time that a step takes"


def _of_request(name: str, request: tuple[int, int]) -> Iterator[str]:
    for part in request:
        yield from _number(name, part)


def _of_address(name: str, address: Address | Member) -> Iterator[str]:
    if not is_host(address.host):
        yield f"{name} has host {_shown(address.host)}, which is no name or address of a host"
    if not 1 <= address.port <= 65535:
        yield f"{name} has port {_counted(address.port)}, which is not from 1 to 65535"


@lru_cache(maxsize=1 << 14)
def is_host(host: str) -> bool:
    """Return whether a name service can be asked for this name, or whether it may be an address."""
    if not host or len(host) > LONGEST_HOST or not host.isprintable() or " " in host:
        return False
    if host.isascii() and len(host) < 64 and "." not in host:
        return True
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _of_fields(value: Any) -> Iterator[str]:
    """Of the fields that are a number or a text, those that will be added one day among them."""
    for name in getattr(value, "_fields", ()) or value.__dataclass_fields__:
        part = getattr(value, name)
        if isinstance(part, bool):
            continue
        if isinstance(part, int):
            yield from _number(name, part, LARGEST_STEP if name in _STEPS else LARGEST)
        elif isinstance(part, float):
            yield from _seconds(name, part)
        elif isinstance(part, str):
            yield from _text(name, part) if name in _TEXTS else _optional_name(name, part)
            if name in _NEEDED and not part:
                yield f"{name} is empty"


def _number(name: str, value: int, most: int = LARGEST) -> Iterator[str]:
    if not 0 <= value <= most:
        yield f"{name} {_counted(value)} is not from 0 to {most}"


def _local_ranks(name: str, ranks: tuple[int, ...]) -> Iterator[str]:
    for rank in ranks:
        if not 0 <= rank < MOST_WORKERS:
            yield f"{name} have {_counted(rank)}, which is not from 0 to {MOST_WORKERS - 1}"
    if len(set(ranks)) < len(ranks):
        yield f"{name} have one twice"


def _seconds(name: str, value: float) -> Iterator[str]:
    if not 0 <= value <= LARGEST:  # nor is that true of what is not a number
        yield f"{name} {value:g} is not from 0 to {LARGEST} seconds"


def _name(name: str, text: str) -> Iterator[str]:
    if not text:
        yield f"{name} is empty"
    yield from _optional_name(name, text)


def _optional_name(name: str, text: str) -> Iterator[str]:
    if len(text) > LONGEST_NAME:
        yield f"{name} has {len(text)} characters, which is more than {LONGEST_NAME}"
    if not text.isprintable():
        yield f"{name} {_shown(text)} has characters that cannot be printed"


def _text(name: str, text: str) -> Iterator[str]:
    if len(text) > LONGEST_TEXT:
        yield f"{name} has {len(text)} characters, which is more than {LONGEST_TEXT}"


def _shown(text: str) -> str:
    return f"'{printable(text, 60)}'"


def _counted(value: int) -> str:
    """Show a number; one that is too long to be shown has its digits counted roughly."""
    return f"{value}" if value.bit_length() <= 128 else f"of {value.bit_length()} bits"
