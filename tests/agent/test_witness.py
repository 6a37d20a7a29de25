"""What a witness answers, and how the leader keeps in touch with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from values import following, known, member, of_job, opened, ready, sealed

from softrun.agent.consensus.change import difference
from softrun.agent.consensus.witness import FORGET_S, Witness
from softrun.agent.consensus.witness_link import FIRST_LOOK_S, LAST_LOOK_S, URGENT_S, WitnessLink
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect, HangUp, Note, Say, Seek
from softrun.agent.protocol.model import (
    NO_RECORD,
    Accept,
    Accepted,
    Address,
    Beat,
    Decided,
    Hello,
    Message,
    Phase,
    Prepare,
    Promise,
    Record,
    Refused,
    Round,
    Witnessed,
)

A, B = member("a"), member("b")
JOB = "a@1"
FIRST = of_job(JOB, sealed(A, B))  # version 2
NAMED = of_job(JOB, FIRST, version=3, witness="w")
ALONE = of_job(JOB, NAMED, version=4, number=2, members=(A,))
OTHER = of_job("x@1", NAMED, version=9)


class Third:
    """A witness, and what it says."""

    def __init__(self, *records: Round) -> None:
        self.witness = Witness("w", 0.0)
        self.now = 0.0
        for record in records:
            self.hear("a", Record(record))

    def hear(self, node: str, message: Message) -> list[Message]:
        effects = self.observe(saw.Heard(node, message))
        said = [effect for effect in effects if isinstance(effect, Say)]
        assert all(each.node == node for each in said), "it answers, and says nothing else"
        return [each.message for each in said]

    def observe(self, seen: saw.Observation) -> list[Effect]:
        return self.witness.observe(seen, self.now)

    @property
    def version(self) -> int:
        return self.witness.record.version if self.witness.record is not None else 0


# --- the witness


def test_it_says_which_record_it_holds() -> None:
    third = Third()
    assert third.hear("a", Beat(1.0, asks=True)) == [Witnessed()]
    assert third.hear("a", Record(FIRST)) == [Witnessed(known(2, JOB))]
    assert third.hear("a", Beat(2.0, asks=True)) == [Witnessed(known(2, JOB))]


def test_it_votes_if_the_record_names_it() -> None:
    third = Third(NAMED)
    assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == [Accepted((0, "a"), NAMED.id)]
    assert third.version == 3
    third.hear("a", Decided((0, "a"), NAMED.id))
    assert third.version == 4


def test_it_keeps_what_it_has_promised() -> None:
    third = Third(NAMED)
    assert third.hear("b", Prepare((1, "b"), NAMED.id)) == [Promise((1, "b"), after=NAMED.id)]
    assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == [Refused((1, "b"), NAMED.id)]


def test_it_has_no_vote_on_the_record_that_names_it_or_another() -> None:
    for named in ("", "v"):
        third = Third(replace(NAMED, witness=named))
        assert third.hear("b", Prepare((1, "b"), NAMED.id)) == []
        assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == []
        third.hear("a", Decided((0, "a"), NAMED.id))
        assert third.version == 4, "but it learns what is decided"


def test_it_does_not_vote_on_what_it_lacks() -> None:
    third = Third(FIRST)
    assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == [Witnessed(known(2, JOB))], (
        "it lacks what comes before"
    )
    assert third.hear("a", Prepare((1, "a"), NAMED.id)) == [Witnessed(known(2, JOB))]
    third.hear("a", Record(NAMED))
    assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == [Accepted((0, "a"), NAMED.id)]


def test_it_shows_the_newest_record_to_who_was_left_behind() -> None:
    third = Third(NAMED)
    third.hear("b", Record(replace(ALONE, members=(B,))))
    shown = Record(replace(ALONE, members=(B,)))
    assert third.hear("a", Record(NAMED)) == [shown, Witnessed(known(4, JOB))]
    assert third.hear("a", Prepare((1, "a"), NAMED.id)) == [shown]
    assert third.hear("c", Hello(ready(member("c"), NO_RECORD))) == [shown, Witnessed(known(4, JOB))]


def test_it_keeps_to_its_job_while_that_speaks() -> None:
    third = Third(NAMED)
    assert third.hear("x", Record(OTHER)) == [Witnessed(known(3, JOB))]
    assert third.hear("x", Accept((0, "x"), difference(OTHER, following(OTHER)), OTHER.id)) == [], "it has been told so"
    third.now = FORGET_S - 1
    third.hear("a", Beat(1.0, asks=True))
    third.now = FORGET_S + 1
    third.hear("x", Beat(1.0, asks=True))
    assert third.hear("x", Record(OTHER)) == [Witnessed(known(3, JOB))], "the beats of another do not count"


def test_it_turns_to_another_job_when_its_own_is_silent_and_does_not_vote_there_any_more() -> None:
    third = Third(NAMED)
    third.now = FORGET_S
    assert third.hear("x", Record(OTHER)) == [Witnessed(known(9, "x@1"))]
    assert third.hear("a", Accept((0, "a"), difference(NAMED, ALONE), NAMED.id)) == []
    third.now = 2 * FORGET_S
    assert third.hear("a", Record(NAMED)) == [Witnessed(known(9, "x@1"))], "it has forgotten what it promised there"
    assert third.hear("a", Record(ALONE)) == [Witnessed(known(4, JOB))], "that is another vote"


def test_it_waits_as_long_as_the_agents_do() -> None:
    patient = replace(NAMED, settings=replace(NAMED.settings, tolerance_s=60.0))
    third = Third(patient)
    third.now = 2 * FORGET_S
    assert third.hear("x", Record(OTHER)) == [Witnessed(known(3, JOB))]


def test_it_turns_to_another_job_at_once_if_its_own_is_given_up() -> None:
    given_up = of_job(JOB, NAMED, version=4, phase=Phase.GIVEN_UP, members=(), heir=Address("h", 1))
    third = Third(NAMED, given_up)
    assert third.hear("x", Record(OTHER)) == [Witnessed(known(9, "x@1"))]


@pytest.mark.parametrize("outcome", ["", "a worker failed"])
def test_it_ends_with_the_job(outcome: str) -> None:
    third, end = Third(NAMED), replace(ALONE, phase=Phase.CLOSED, outcome=outcome)
    third.hear("a", Accept((0, "a"), difference(NAMED, end), NAMED.id))
    effects = third.observe(saw.Heard("a", Decided((0, "a"), NAMED.id)))
    assert effects == [do.End(do.Result(do.Outcome.SUCCEEDED, outcome))]
    effects = Third(NAMED).observe(saw.Heard("a", Record(end)))
    assert effects[-1] == do.End(do.Result(do.Outcome.SUCCEEDED, outcome))


def test_a_job_that_was_over_before_is_none_of_its() -> None:
    assert Third().hear("a", Record(replace(ALONE, phase=Phase.CLOSED))) == [Witnessed()]


def test_whoever_is_about_to_found_a_job_is_shown_the_one_that_it_serves() -> None:
    third = Third(NAMED)
    assert third.hear("c", Hello(ready(member("c"), NO_RECORD))) == [Record(NAMED), Witnessed(NAMED.id)]
    assert Third().hear("c", Hello(ready(member("c"), NO_RECORD))) == [Witnessed()]


def test_but_not_one_whose_agents_have_been_silent_for_long() -> None:
    """All of them may have ended at once: then the job begins anew."""
    third = Third(NAMED)
    third.now = FORGET_S
    assert third.hear("c", Hello(ready(member("c"), NO_RECORD))) == [Witnessed()]
    assert third.hear("a", Hello(ready(A, NAMED.id))) == [Witnessed(NAMED.id)], "one of its own"


def test_it_says_when_it_has_the_vote() -> None:
    third = Third(FIRST)
    notes = [e for e in third.observe(saw.Heard("a", Record(NAMED))) if isinstance(e, Note)]
    assert [note.text for note in notes] == ["it has the casting vote of a, b"]
    notes = [e for e in third.observe(saw.Heard("a", Record(replace(ALONE, witness="")))) if isinstance(e, Note)]
    assert [note.text for note in notes] == ["it has no vote any more"]


def test_other_news_is_nothing_to_it() -> None:
    third = Third(NAMED)
    assert third.observe(saw.LinkDown("a", refused=True)) == []
    assert third.hear("a", ready(A)) == []


# --- the leader's end

PLACE = Address("h", 29400)


class Leader:
    """The link of one that leads, with beats every second and a tolerance of 5 s."""

    def __init__(self, record: Round = FIRST) -> None:
        self.link = WitnessLink(PLACE, 1.0, 5.0)
        self.record: Round | None = record
        self.leads = True
        self.now = 100.0

    def advance(self, by_s: float = 0.0) -> list[Effect]:
        """In steps as those of an agent, so that it was never away."""
        effects: list[Effect] = []
        until = self.now + by_s
        while True:
            self.link.look(self.now)
            effects += self.link.advance(self.record, self.leads, self.now)
            if self.now >= until:
                return effects
            self.now = min(self.now + 0.05, until)

    def found(self, node: str = "w") -> list[Effect]:
        return self.link.looked(saw.Found(PLACE, node), self.record, stands=True, now=self.now)

    def not_found(self, stranger: str = "", refused: bool = False) -> list[Effect]:
        return self.link.looked(saw.NotFound(PLACE, stranger, refused), self.record, stands=True, now=self.now)

    def hear(self, lineage: str = JOB, node: str = "w", version: int = 2) -> list[Effect]:
        return self.link.heard(node, Witnessed(known(version, lineage)), self.record, self.now)

    def linked(self) -> Leader:
        self.advance()
        self.found()
        self.hear()
        return self

    @property
    def choice(self) -> str:
        return self.link.choice(self.record, self.now)

    def is_out(self, node: str = "w") -> bool:
        return self.link.is_out(node, self.now)


def test_a_job_without_a_witness_looks_for_none() -> None:
    link = WitnessLink(None, 1.0, 5.0)
    assert link.advance(FIRST, True, 1.0) == []
    assert link.deadline() is None
    assert link.choice(FIRST, 1.0) == ""


def test_the_leader_looks_for_it_at_once_and_names_it_once_it_has_read_the_record() -> None:
    leader = Leader()
    assert leader.advance() == [Seek(PLACE, 1.0, listens=False)]
    assert leader.found() == [Say("w", Record(FIRST, stands=True)), Say("w", Beat(100.0, asks=True))]
    assert leader.choice == "", "it may serve another job"
    leader.hear("", version=0)
    assert leader.choice == ""
    leader.hear(JOB)
    assert leader.choice == "w"


def test_who_does_not_lead_looks_for_nothing_and_keeps_what_the_record_names() -> None:
    leader = Leader(NAMED)
    leader.leads = False
    assert leader.advance(10.0) == []
    assert leader.link.deadline() is None
    assert leader.choice == "w"
    assert leader.is_out(), "it has no link with it"


def test_who_stops_leading_hangs_up() -> None:
    leader = Leader().linked()
    leader.leads = False
    assert leader.advance() == [HangUp("w")]
    assert leader.advance() == []
    assert leader.found("w") == [HangUp("w")], "by a look that was under way"


def test_it_beats_with_it() -> None:
    leader = Leader().linked()
    assert [e for e in leader.advance(1.0) if isinstance(e, Say)] == [Say("w", Beat(leader.now, asks=True))]


def test_one_that_falls_silent_is_taken_out_and_looked_for() -> None:
    leader = Leader(NAMED).linked()
    leader.advance(4.9)
    assert leader.choice == "w"
    effects = leader.advance(0.2)
    assert HangUp("w") in effects
    assert any(isinstance(e, Note) and e.warning and "has fallen silent" in e.text for e in effects)
    assert leader.is_out()
    assert leader.choice == ""
    assert Seek(PLACE, 1.0, listens=False) in leader.advance(FIRST_LOOK_S)


def test_a_leader_that_was_away_does_not_take_that_for_silence() -> None:
    leader = Leader(NAMED).linked()
    leader.now += 60.0
    leader.link.look(leader.now)
    assert not [e for e in leader.link.advance(NAMED, True, leader.now) if isinstance(e, HangUp)]
    assert not leader.is_out()


def test_one_that_ends_is_out_at_once() -> None:
    leader = Leader(NAMED).linked()
    [note] = leader.link.lost("w", refused=True, now=leader.now)
    assert isinstance(note, Note)
    assert "has ended" in note.text
    assert leader.is_out()


def test_a_link_that_is_lost_is_no_loss_yet() -> None:
    leader = Leader(NAMED).linked()
    assert leader.link.lost("w", refused=False, now=leader.now) == []
    assert not leader.is_out()
    assert leader.advance(URGENT_S + 0.05) == [Seek(PLACE, 1.0, listens=False)]
    assert leader.link.lost("b", refused=True, now=leader.now) == [], "that is a node"


def test_a_new_leader_gives_it_time_to_answer() -> None:
    leader = Leader(NAMED)
    leader.advance()
    assert not leader.is_out()
    assert leader.choice == "w"
    for _ in range(20):
        leader.not_found()
        leader.advance(0.3)
    assert leader.is_out()
    assert leader.choice == ""


def test_if_its_host_refuses_it_is_out() -> None:
    leader = Leader(NAMED)
    leader.advance()
    leader.not_found(refused=True)
    assert leader.is_out()


def test_another_one_at_its_address_is_another_witness() -> None:
    leader = Leader(NAMED)
    leader.advance()
    leader.found("v")
    assert leader.is_out("w")
    leader.hear(node="v")
    assert leader.choice == "v"


def test_one_of_another_job_is_not_named() -> None:
    leader = Leader().linked()
    effects = leader.hear("x@1")
    assert HangUp("w") in effects
    assert leader.choice == ""
    assert leader.hear(JOB) == [], "that was on its way"
    assert leader.choice == ""


def test_it_is_looked_for_less_and_less_often() -> None:
    leader = Leader()
    looks: list[float] = []
    for _ in range(6):
        leader.advance()
        while not any(isinstance(e, Seek) for e in leader.advance(0.05)) and leader.now < 200 and looks:
            pass
        looks.append(leader.now)
        leader.not_found()
    gaps = [round(b - a) for a, b in pairwise(looks)]
    assert gaps == [1, 2, 4, 8, 10]
    assert LAST_LOOK_S == 10.0


def test_the_third_look_in_vain_is_one_warning() -> None:
    leader = Leader()
    leader.advance()
    said = [leader.not_found("an agent with another token") for _ in range(6)]
    notes = [note for each in said for note in each]
    assert [type(note) for note in notes] == [Note]
    assert notes[0] == Note(
        "an agent with another token answers at h:29400, the witness's place: start `softrun witness` there, or "
        "correct --rdzv_conf witness; until it answers the job goes on as one without a witness",
        warning=True,
    )


def test_a_node_of_the_job_is_no_witness() -> None:
    leader = Leader()
    leader.advance()
    assert leader.found("b") == []
    assert leader.choice == ""


def test_the_end_of_the_job_waits_for_a_witness_that_may_answer() -> None:
    leader = Leader(NAMED)
    leader.advance()
    assert leader.link.is_awaited(NAMED, leader.now)
    assert not leader.link.is_awaited(FIRST, leader.now)
    leader.found()
    assert not leader.link.is_awaited(NAMED, leader.now)
    last = replace(ALONE, phase=Phase.CLOSED)
    assert leader.link.take_leave(last) == [Say("w", Record(last, stands=True))]


def test_before_there_is_a_record_nothing_is_done() -> None:
    leader = Leader()
    leader.record = None
    assert leader.advance(1.0) == []
    assert leader.choice == ""
    assert not leader.link.is_awaited(None, leader.now)
    assert opened(A).witness == ""
