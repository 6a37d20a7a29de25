"""The checker: the histories with known verdicts, a second checker, wrong histories, and what must not matter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live import brute_force
from live.random_histories import random_history
from live.right_service import right_history
from softrun.testing import MODES, AmbiguousError, Mode, Verdict, check, parse_history

KNOWN = json.loads(Path(__file__).with_name("histories.json").read_text())["histories"]
SEEDS = st.integers(min_value=0, max_value=10**9)


def judged(history: dict[str, Any], mode: Mode = "atomic") -> Verdict:
    return check(parse_history(json.dumps(history)), mode)


def verdicts(history: dict[str, Any]) -> list[bool]:
    return [judged(history, mode).valid for mode in MODES]


def expected(history: dict[str, Any], mode: Mode) -> bool:
    """A history that names no outcomes is as atomic as it is strict."""
    return bool(history["expect"].get(mode, history["expect"]["strict"]))


def test_all_histories_are_here() -> None:
    assert [entry["name"][:3] for entry in KNOWN] == [f"a{n:02}" for n in range(1, 18)] + [
        f"x{n:02}" for n in range(1, 19)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("history", KNOWN, ids=lambda history: history["name"])
def test_a_known_history(history: dict[str, Any], mode: Mode) -> None:
    assert judged(history, mode).valid == expected(history, mode)
    assert brute_force.check(history, mode) == expected(history, mode)


def told(*lines: str, workers: int = 3) -> dict[str, Any]:
    """A history from lines such as "0 reply live=[0]"."""
    events = []
    for t, line in enumerate(lines):
        worker, kind, *fields = line.split()
        values = {name: json.loads(value) for name, value in (field.split("=") for field in fields)}
        events.append({"t": t, "p": int(worker), "e": kind, **values})
    return {"procs": list(range(workers)), "events": events}


STARTED = ("0 start", "1 start", "2 start")
CORNERS = {
    "an outsider is told": (
        told(*STARTED, "1 call scope=[1]", "0 call scope=[1]", "1 reply live=[1]", "0 reply live=[1]"),
        [False, False, False, False],
    ),
    "an outsider's call ends in an error": (
        told(*STARTED, "0 call scope=[1]", "1 call scope=[1]", "1 reply live=[1]", "0 error"),
        [True, True, True, True],
    ),
    "a member is outside of the scope": (
        told("0 start", "1 start", "0 call scope=[0,2]", "1 call scope=[0,2]", "0 reply live=[0,1]"),
        [False, False, False, False],
    ),
    "two of three name different rounds": (
        told(
            *(*STARTED, "0 call", "1 call", "2 call", "0 reply live=[0,1,2]"),
            *("1 reply live=[0,1,2] round=1", "2 reply live=[0,1,2] round=2"),
        ),
        [True, True, False, False],
    ),
    "a decision takes a call before another ends its life": (
        told(
            *(*STARTED, "0 call scope=[0,2]", "1 call scope=[1,2]", "2 call scope=[1,2]", "2 fail"),
            *("0 reply live=[0]", "1 reply live=[1,2]"),
        ),
        [True, True, True, True],
    ),
    "the same, through a third group": (
        told(
            *("0 start", "1 start", "2 start", "3 start", "1 call scope=[1,2]", "2 call scope=[1,2]"),
            *("3 call scope=[2,3]", "0 call scope=[0,3]", "2 fail", "3 evicted"),
            *("0 reply live=[0]", "1 reply live=[1,2]"),
            workers=4,
        ),
        [True, True, True, True],
    ),
    "a zombie's answer needs a call that is answered without it": (
        told(
            *(
                "0 start",
                "1 start",
                "1 call",
                "0 call",
                "0 reply live=[0]",
                "0 call",
                "1 reply live=[0,1]",
                "1 evicted",
            ),
            workers=2,
        ),
        [False, True, False, False],
    ),
    "a call after an error ends no block well": (
        told(
            *("0 start", "1 start", "0 call", "1 call", "0 reply live=[0,1]", "1 error"),
            *('0 call vote="ok"', "1 call", "0 reply live=[0,1] ok=true", "1 reply live=[0,1]"),
            workers=2,
        ),
        [True, True, True, False],
    ),
    "nobody is told of an outcome on its first call": (
        told("0 start", "0 call", "0 reply live=[0] ok=true", workers=1),
        [True, True, True, False],
    ),
}


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner(name: str) -> None:
    history, expected_verdicts = CORNERS[name]
    assert verdicts(history) == expected_verdicts
    assert [brute_force.check(history, mode) for mode in MODES] == expected_verdicts


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_a_second_checker_agrees(start: int) -> None:
    disagree(range(start, start + 100))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 3000, 500))
def test_a_second_checker_agrees_for_longer(start: int) -> None:
    disagree(range(start, start + 500))


def disagree(seeds: range) -> None:
    for seed in seeds:
        history = random_history(seed)
        for mode in MODES:
            verdict = judged(history, mode)
            assert verdict.valid == brute_force.check(history, mode), f"seed {seed}, {verdict}: {json.dumps(history)}"
            assert str(verdict).count("\n") == 0


def test_random_histories_are_of_every_kind() -> None:
    found = {tuple(verdicts(random_history(seed))) for seed in range(300)}
    assert found >= {(False,) * 4, (True,) * 4, (False, True, True, True), (True, True, True, False)}


# --- right histories, and what is wrong when one thing in them is changed


@given(SEEDS, st.integers(1, 12), st.integers(1, 150), st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=60, deadline=None)
def test_a_right_service_is_found_right(seed: int, workers: int, events: int, death_rate: float) -> None:
    history = right_history(seed, workers, events, death_rate)
    for mode in MODES if death_rate == 0 else MODES[1:]:
        assert judged(history, mode)


def replies(history: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The replies of each decision that at least two workers were told of."""
    rounds: dict[int, list[dict[str, Any]]] = {}
    for event in history["events"]:
        if event["e"] == "reply":
            rounds.setdefault(event["round"], []).append(event)
    return [told for told in rounds.values() if len(told) > 1]


def drop_a_member(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    gone = told[0]["p"]
    told[1]["live"] = [worker for worker in told[1]["live"] if worker != gone]
    del told[1]["incs"][str(gone)]


def drop_a_member_for_all_others(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    for event in told[1:]:
        drop_a_member([told[0], event], history)


def name_an_incarnation_that_never_was(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    for event in told:
        event["incs"] = event["incs"] | {str(told[0]["p"]): "another"}


def swap_incarnations(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    one, other = str(told[0]["p"]), str(told[1]["p"])
    incs = told[1]["incs"]
    told[1]["incs"] = incs | {one: incs[other], other: incs[one]}


def give_another_round(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    told[1]["round"] += 1


def answer_before_the_last_call(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    before = history["events"][: history["events"].index(told[0])]
    last = next(event for event in reversed(before) if event["e"] == "call" and event["p"] in told[0]["live"])
    early = next(event for event in told if event["p"] != last["p"])
    early["t"] = last["t"] - 0.5


def turn_the_outcome(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    event = next((event for event in told if "ok" in event), None)
    if event is None:
        told[0]["ok"] = True
    else:
        event["ok"] = not event["ok"]


def vote_against_a_success(told: list[dict[str, Any]], history: dict[str, Any]) -> None:
    events = history["events"]
    succeeded = [event for event in told if event.get("ok")]
    if not succeeded:
        told[0]["ok"] = True  # of a block that failed, or of none
        return
    call = [e for e in events[: events.index(succeeded[0])] if e["e"] == "call" and e["p"] == succeeded[0]["p"]][-1]
    call["vote"] = "raise"


MUTATIONS = [
    drop_a_member,
    drop_a_member_for_all_others,
    name_an_incarnation_that_never_was,
    swap_incarnations,
    give_another_round,
    answer_before_the_last_call,
    turn_the_outcome,
    vote_against_a_success,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
@given(seed=SEEDS, place=st.integers(min_value=0))
@settings(max_examples=40, deadline=None)
def test_a_wrong_history_is_found_wrong(mutate: Any, seed: int, place: int) -> None:
    history = json.loads(json.dumps(right_history(seed)))  # a copy whose replies share nothing
    told = replies(history)
    assert judged(history)
    mutate(told[place % len(told)], history)
    verdict = judged(history)
    assert not verdict
    assert str(verdict).startswith("not valid (atomic): worker ")


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_dead_worker_is_in_no_answer(mode: Mode) -> None:
    events = [
        {"p": 0, "e": "start"},
        {"p": 1, "e": "fail"},
        {"p": 0, "e": "call"},
        {"p": 0, "e": "reply", "live": [0, 1]},
    ]
    verdict = judged({"procs": [0, 1], "events": [{"t": t, **event} for t, event in enumerate(events)]}, mode)
    assert not verdict
    assert verdict.why == "all the time worker 1 is dead"


# --- what must not matter


@given(SEEDS)
@settings(max_examples=80, deadline=None)
def test_a_stricter_mode_allows_no_more(seed: int) -> None:
    basic, amended, strict, atomic = verdicts(random_history(seed))
    assert basic <= amended >= strict >= atomic


@given(SEEDS, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_names_numbers_and_the_clock_do_not_matter(seed: int, shuffled: Any) -> None:
    history = random_history(seed)
    procs = list(history["procs"])
    shuffled.shuffle(procs)
    text = {worker: f"w{worker}" for worker in procs}
    events = [
        {
            **event,
            "t": 1e6 + event["t"] / 7,
            "p": text[event["p"]],
            **{name: [text[worker] for worker in event[name]] for name in ("live", "scope") if name in event},
            **({"incs": {f"w{worker}": inc for worker, inc in event["incs"].items()}} if "incs" in event else {}),
        }
        for event in history["events"]
    ]
    shuffled.shuffle(events)
    assert verdicts({"procs": [text[worker] for worker in procs], "events": events}) == verdicts(history)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_what_is_for_people_does_not_matter(seed: int) -> None:
    history = random_history(seed)
    events = [
        {**event, "host": "a", **({"tag": "step 3"} if event["e"] in ("call", "reply") else {})}
        for event in history["events"]
    ]
    assert verdicts({**history, "events": events, "seed": seed}) == verdicts(history)


# --- speed


def test_a_long_history_takes_no_longer_per_event() -> None:
    """20,000 events of 8 workers take half a second on a quiet machine; here is room for a loaded one."""
    history = parse_history(json.dumps(right_history(1, 8, 20_000)))
    began = time.process_time()
    assert check(history)
    assert time.process_time() - began < 5


def many_ways(pairs: int) -> dict[str, Any]:
    """Each pair has a worker that may be dead, as each other has it or not, until one that all ask about starts."""
    hub, events = 2 * pairs, []
    for pair in range(pairs):
        one, other = 2 * pair, 2 * pair + 1
        events += [{"p": one, "e": "start"}, {"p": other, "e": "start"}, {"p": other, "e": "fail"}]
        events += [{"p": one, "e": "call", "scope": [one, other, hub]}]
    events += [{"p": hub, "e": "start"}, {"p": hub, "e": "fail"}]
    events += [{"p": 2 * pair, "e": "reply", "live": [2 * pair]} for pair in range(pairs)]
    return {"procs": list(range(hub + 1)), "events": [{"t": t, **event} for t, event in enumerate(events)]}


def test_a_history_with_too_many_ways_is_refused() -> None:
    assert judged(many_ways(8))
    with pytest.raises(
        AmbiguousError, match=r"^more than 1000 ways could have led to the start of worker 40 at t=80: "
    ):
        judged(many_ways(20))
