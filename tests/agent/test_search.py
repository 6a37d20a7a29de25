"""How an agent finds its job at the endpoints, and who founds it."""

from __future__ import annotations

import pytest

from softrun.agent.consensus.search import GIVE_UP_S, LOOK_S, STRANGERS_S, VISITS, Search
from softrun.agent.protocol.effects import Effect, Seek
from softrun.agent.protocol.model import Address

ONE, TWO, THREE = (Address(f"host{number}", 29400) for number in (1, 2, 3))
MEMBER = Address("host-b", 7000)


def nobody(_: str) -> bool:
    return False


def everybody(_: str) -> bool:
    return True


class Agent:
    """A search, and its clock."""

    def __init__(self, *endpoints: Address) -> None:
        self.now = 10.0
        self.search = Search("a", endpoints or (ONE,))
        self.jobless: set[str] = set()  # the nodes that have said that they have no job

    @property
    def founds(self) -> bool:
        return self.search.founds(self.jobless.__contains__)

    def looks(
        self, *, searches: bool = True, heir: Address | None = None, in_touch: object = nobody, after_s: float = 0.0
    ) -> list[Address]:
        self.now += after_s
        effects = self.search.advance(searches, heir, in_touch, self.now)  # type: ignore[arg-type]
        return [_sought(effect).endpoint for effect in effects]

    def not_found(self, *endpoints: Address, stranger: str = "", doubtful: bool = False) -> list[str]:
        return [self.search.not_found(endpoint, stranger, self.now, doubtful=doubtful) for endpoint in endpoints]

    def found(self, endpoint: Address, node: str) -> str:
        return self.search.found(endpoint, node, self.now)


def _sought(effect: Effect) -> Seek:
    assert isinstance(effect, Seek)
    return effect


# --- who founds the job


def test_what_was_seen_before_this_agent_was_away_founds_no_job() -> None:
    """Another may have begun it meanwhile, where nobody was."""
    agent = Agent(ONE, TWO)
    assert agent.looks() == [ONE, TWO]
    agent.search.listening(TWO)
    agent.not_found(ONE)
    assert agent.founds
    assert agent.looks(after_s=LOOK_S) == [ONE]
    agent.search.forget()
    assert not agent.founds
    agent.not_found(ONE)
    assert not agent.founds, "that look was under way"
    assert agent.looks(after_s=LOOK_S) == [ONE]
    agent.not_found(ONE)
    assert agent.founds


def test_whoever_listens_at_the_only_endpoint_founds_the_job() -> None:
    agent = Agent(ONE)
    assert not agent.founds
    assert agent.looks() == [ONE]
    agent.search.listening(ONE)
    assert agent.founds
    assert agent.looks(after_s=1.0) == [], "it knows who is there"
    assert agent.search.deadline(searches=True) is None


def test_whoever_listens_nowhere_founds_none() -> None:
    """It may be cut off from all others, which have a job."""
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.not_found(ONE, TWO)
    assert not agent.founds


def test_without_endpoints_nobody_does() -> None:
    search = Search("a", ())
    assert search.advance(True, None, nobody, 1.0) == []
    assert not search.founds(nobody)
    assert search.deadline(searches=True) is None


def test_whoever_listens_at_the_second_waits_until_nobody_answers_at_the_first() -> None:
    agent = Agent(ONE, TWO, THREE)
    assert agent.looks() == [ONE, TWO, THREE]
    agent.search.listening(TWO)
    assert not agent.founds, "it does not know yet who is at the first"
    agent.not_found(THREE)
    assert not agent.founds
    agent.not_found(ONE)
    assert agent.founds, "the host of the first is dead, or comes later and finds this agent"


def test_and_not_if_somebody_does() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.search.listening(TWO)
    agent.found(ONE, "b")
    assert not agent.founds
    agent.looks(in_touch=nobody)
    assert not agent.founds, "the link to b is lost, and who is there now is not known"
    agent.not_found(ONE)
    assert agent.founds


def test_whoever_listens_at_the_first_waits_until_it_knows_who_is_at_the_others() -> None:
    """The host of the first may have been replaced, and the job go on at another one."""
    agent = Agent(ONE, TWO, THREE)
    agent.looks()
    agent.search.listening(ONE)
    assert not agent.founds
    agent.not_found(TWO)
    assert not agent.founds
    agent.not_found(THREE)
    assert agent.founds


def test_and_until_those_who_are_there_have_said_that_they_have_no_job_either() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.search.listening(ONE)
    agent.found(TWO, "b")
    assert not agent.founds, "its record may be under way"
    agent.jobless.add("b")
    assert agent.founds
    agent.looks(in_touch=nobody)
    assert not agent.founds, "the link to b is lost, and who is there now is not known"


@pytest.mark.parametrize("endpoint", [ONE, THREE], ids=["before", "after"])
@pytest.mark.parametrize("stranger", ["", "an agent with another token"], ids=["silent", "token"])
def test_nobody_founds_a_job_while_an_agent_of_it_may_be_at_an_endpoint(endpoint: Address, stranger: str) -> None:
    agent = Agent(ONE, TWO, THREE)
    agent.looks()
    agent.search.listening(TWO)
    agent.not_found(*{ONE, THREE} - {endpoint})
    agent.not_found(endpoint, stranger=stranger, doubtful=True)
    assert not agent.founds
    assert not agent.search.is_empty(endpoint)
    agent.looks(after_s=LOOK_S)
    agent.not_found(endpoint)
    assert agent.founds, "it has ended"


def test_whoever_another_token_bars_from_the_job_ends_soon() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.search.listening(ONE)
    agent.not_found(TWO, stranger="an agent with another token", doubtful=True)
    assert agent.search.gives_up_at == agent.now + STRANGERS_S
    agent.looks(after_s=LOOK_S)
    agent.not_found(TWO)
    assert agent.search.gives_up_at is None, "it has ended"


def test_another_program_bars_the_way_only_if_one_is_everywhere() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.not_found(ONE, stranger="another program")
    assert agent.search.gives_up_at is None
    agent.not_found(TWO, stranger="another program")
    assert agent.search.gives_up_at == agent.now + STRANGERS_S


def test_silence_is_waited_for_as_long_as_there_is_time() -> None:
    agent = Agent(ONE)
    agent.looks()
    agent.not_found(ONE, doubtful=True)
    assert agent.search.gives_up_at is None


# --- where and when it looks


def test_an_endpoint_is_looked_at_once_at_a_time_and_again_after_a_while() -> None:
    agent = Agent(ONE, TWO)
    assert agent.looks() == [ONE, TWO]
    assert agent.looks(after_s=1.0) == [], "an answer is on its way"
    agent.not_found(ONE)
    assert agent.search.deadline(searches=True) == agent.now + LOOK_S
    assert agent.looks(after_s=LOOK_S / 2) == []
    assert agent.looks(after_s=LOOK_S) == [ONE]


def test_an_agent_that_has_its_job_looks_for_nothing() -> None:
    agent = Agent(ONE)
    assert agent.looks(searches=False) == []
    assert agent.search.deadline(searches=False) is None


def test_it_may_listen_at_an_endpoint_and_nowhere_else() -> None:
    search = Search("a", (ONE,))
    search.visit(MEMBER, 0.0, "b")
    assert search.advance(True, TWO, nobody, 0.0) == [
        Seek(ONE, GIVE_UP_S, listens=True),
        Seek(TWO, GIVE_UP_S, listens=False),
        Seek(MEMBER, GIVE_UP_S, listens=False),
    ]


def test_where_a_node_in_touch_listens_it_does_not_look_until_that_is_lost() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.found(ONE, "b")
    agent.search.listening(TWO)
    assert agent.looks(in_touch=everybody, after_s=10.0) == []
    assert agent.looks(in_touch=nobody) == [ONE], "its own place is never lost"


def test_the_heir_of_a_job_that_was_given_up_is_a_place_to_look_at() -> None:
    agent = Agent(ONE)
    assert agent.looks(heir=THREE) == [ONE, THREE]
    agent.not_found(ONE, THREE)
    assert agent.search.is_empty(THREE)
    assert agent.looks(heir=THREE, after_s=LOOK_S) == [ONE, THREE]
    agent.found(THREE, "b")
    assert not agent.search.is_empty(THREE)
    assert agent.looks(after_s=LOOK_S, in_touch=everybody) == []


def test_what_was_seen_there_before_the_job_was_given_up_is_of_no_use() -> None:
    agent = Agent(ONE)
    agent.looks(heir=THREE)
    agent.not_found(ONE, THREE)
    agent.search.look_again(THREE)
    assert not agent.search.is_empty(THREE)
    assert agent.looks(heir=THREE) == [THREE], "at once"


def test_an_heir_makes_nobody_found_a_job() -> None:
    agent = Agent(ONE)
    agent.looks(heir=THREE)
    agent.search.listening(ONE)
    assert agent.founds
    assert not Agent(ONE).search.is_empty(THREE), "nobody has looked"


# --- members that are looked for


def test_a_member_that_is_looked_for_is_named_in_the_answer() -> None:
    agent = Agent(ONE)
    agent.search.visit(MEMBER, agent.now, "b")
    assert agent.looks(searches=False) == [MEMBER], "also by a leader that has its job"
    assert agent.not_found(MEMBER) == ["b"]
    assert agent.not_found(MEMBER) == [""], "nobody has asked again"
    agent.search.visit(MEMBER, agent.now + LOOK_S, "b")
    agent.looks(searches=False, after_s=LOOK_S)
    assert agent.found(MEMBER, "c") == "b", "the engine sees that this is another"


def test_one_that_was_just_looked_for_is_not_looked_for_again() -> None:
    agent = Agent(ONE)
    agent.search.visit(MEMBER, agent.now, "b")
    assert agent.looks(searches=False) == [MEMBER]
    agent.search.visit(MEMBER, agent.now, "b")
    assert agent.looks(searches=False) == [], "it is under way"
    agent.not_found(MEMBER)
    agent.search.visit(MEMBER, agent.now + LOOK_S / 2, "b")
    assert agent.looks(searches=False) == []
    agent.search.visit(MEMBER, agent.now + LOOK_S, "b")
    assert agent.looks(searches=False) == [MEMBER]


def test_one_that_has_come_by_itself_meanwhile_is_not_looked_for() -> None:
    agent = Agent(ONE)
    agent.search.visit(MEMBER, agent.now, "b")
    assert agent.looks(searches=False, in_touch=everybody) == []
    assert agent.looks(searches=False, in_touch=nobody) == []


def test_of_many_only_so_many_are_looked_for_at_a_time_and_all_get_their_turn() -> None:
    agent = Agent(ONE)
    places = [Address(f"host-{number}", 7000) for number in range(3 * VISITS)]
    for place in places:
        agent.search.visit(place, agent.now, place.host)
    looked: list[Address] = []
    under_way = agent.looks(searches=False)
    while under_way:
        assert len(under_way) <= VISITS
        looked += under_way
        agent.not_found(*under_way)
        under_way = agent.looks(searches=False)
    assert looked == places


# --- what it says in the end


def test_that_nobody_was_found_says_where_and_what_to_do() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.not_found(ONE, TWO)
    assert agent.search.failure(60.0) == (
        "no agent of this job answers at host1:29400, host2:29400 after 60 s: start the agent of that host, or "
        "correct --rdzv_endpoint"
    )


def test_that_something_is_silent_says_where() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.search.listening(ONE)
    agent.not_found(TWO, doubtful=True)
    assert agent.search.failure(60.0) == (
        "something accepts at host2:29400 and says nothing: if that is a stopped agent wake it or end it, if it is a "
        "proxy start the agent behind it, else choose another --rdzv_endpoint"
    )


def test_the_silence_of_an_endpoint_is_told_of_once() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.not_found(ONE, doubtful=True)
    assert agent.search.doubt(ONE) == (
        "something accepts at host1:29400 and says nothing: until it answers or ends no job is founded beside it"
    )
    assert agent.search.doubt(ONE) == ""
    agent.not_found(TWO, stranger="an agent with another token", doubtful=True)
    assert agent.search.doubt(TWO) == "", "that ends the search"
    agent.not_found(MEMBER, doubtful=True)
    assert agent.search.doubt(MEMBER) == ""


def test_that_something_else_answers_says_what() -> None:
    agent = Agent(ONE, TWO)
    agent.looks()
    agent.not_found(ONE)
    agent.not_found(TWO, stranger="another program")
    assert agent.search.failure(60.0) == (
        "another program answers at host2:29400: end it there, or choose another --rdzv_endpoint"
    )
    agent.looks(after_s=LOOK_S)
    agent.not_found(ONE, TWO)
    assert "no agent of this job answers" in agent.search.failure(60.0), "it has ended"
