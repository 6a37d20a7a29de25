"""Who founds a job, and beside whom."""

from __future__ import annotations

from simulation.mutants.mutant import Patch, mutant
from softrun.agent.consensus.inquiry import Inquiry
from softrun.agent.consensus.search import Search
from softrun.agent.protocol.model import (
    Address,
)
from softrun.agent.rendezvous.election import Election


@mutant("FoundsAlone", job="with several endpoints")
def takes_silence_for_an_empty_endpoint() -> list[Patch]:
    not_found = Search.not_found

    def taken(self: Search, endpoint: Address, stranger: str, now: float, *, doubtful: bool = False) -> str:
        return not_found(self, endpoint, stranger, now)

    return [(Search, "not_found", taken)]


@mutant("FoundsAlone", job="with several endpoints")
def takes_another_secret_for_an_empty_endpoint() -> list[Patch]:
    not_found = Search.not_found

    def taken(self: Search, endpoint: Address, stranger: str, now: float, *, doubtful: bool = False) -> str:
        return not_found(self, endpoint, "", now, doubtful=doubtful and not stranger)

    return [(Search, "not_found", taken)]


@mutant("FoundsAlone", job="with several endpoints")
def looks_only_at_endpoints_before_its_own() -> list[Patch]:
    return [(Search, "_is_free", lambda *_: True)]


@mutant("FoundsAlone", job="with several endpoints")
def founds_without_waiting_for_an_answer() -> list[Patch]:
    return [(Election, "is_jobless", lambda *_: True)]


@mutant("FoundsAlone", job="with several endpoints")
def founds_without_asking_the_witness() -> list[Patch]:
    return [(Inquiry, "is_settled", lambda *_: True)]


@mutant("Progress", job="torn in two")
def founds_by_what_it_saw_before_it_gave_up() -> list[Patch]:
    return [(Search, "look_again", lambda *_: None)]


@mutant("FoundsAlone", job="with several endpoints")
def founds_by_what_it_saw_before_it_was_away() -> list[Patch]:
    return [(Search, "forget", lambda *_: None)]


@mutant("Progress", "NobodyMeetsTheReplaced")
def newcomers_take_over_a_living_job() -> list[Patch]:
    return [(Election, "_abandoned", lambda self, record, own: True)]
