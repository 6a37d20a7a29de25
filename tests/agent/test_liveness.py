from __future__ import annotations

from softrun.agent.rendezvous.liveness import ANSWERS, Liveness


def fresh() -> Liveness:
    return Liveness(interval_s=1.0, tolerance_s=5.0, now=0.0)


def look(liveness: Liveness, *times: float) -> None:
    for now in times:
        liveness.look(now)


def test_silence_of_one_that_nobody_watches_means_nothing() -> None:
    liveness = fresh()
    liveness.heard("a", 0.0)
    look(liveness, *range(1, 100))
    assert not liveness.dead("a", 99.0)
    assert liveness.deadline() is None


def test_one_that_is_watched_is_dead_after_the_tolerance_and_not_before() -> None:
    liveness = fresh()
    liveness.watch("a", 1.0)
    liveness.heard("a", 2.0)
    look(liveness, 1.0, 2.0, 3.0)
    due = liveness.deadline()
    assert due is not None
    assert due <= 7.0
    look(liveness, 4.0, 5.0, 6.0)
    assert not liveness.dead("a", 6.99)
    assert liveness.dead("a", 7.0)


def test_a_watch_begins_when_it_is_asked_for_however_long_ago_the_last_word_was() -> None:
    liveness = fresh()
    liveness.heard("a", 0.0)
    look(liveness, *range(1, 51))
    liveness.watch("a", 50.0)
    assert not liveness.dead("a", 54.0)


def test_who_was_away_cannot_tell_and_grants_a_fresh_tolerance() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    look(liveness, 1.0, 30.0)
    assert not liveness.dead("a", 34.9)
    assert liveness.dead("a", 35.0)


def test_who_was_dead_before_the_reader_was_away_stays_dead() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    look(liveness, *range(1, 8))
    assert liveness.dead("a", 7.0)
    look(liveness, 30.0)
    assert liveness.dead("a", 30.0)


def test_a_process_that_is_gone_is_dead_at_once_until_it_is_heard() -> None:
    liveness = fresh()
    liveness.mark_gone("a")
    assert liveness.dead("a", 0.0)
    assert liveness.gone("a")
    liveness.heard("a", 1.0)
    assert not liveness.dead("a", 1.0)


def test_nor_is_it_once_others_have_taken_it_in_again() -> None:
    """The proof was false; this agent may never hear that one itself."""
    liveness = fresh()
    liveness.mark_gone("a")
    liveness.mark_back("a")
    assert not liveness.dead("a", 0.0)
    assert not liveness.gone("a")


def test_what_is_known_of_one_beside_that_its_host_refuses() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    assert not liveness.only_refused("a", 0.0)
    liveness.mark_refused("a", 1.0)
    assert liveness.only_refused("a", 4.9)
    assert not liveness.only_refused("a", 5.0), "it is silent as well"
    liveness.leased = True
    assert liveness.only_refused("a", 5.0), "with leases in a store that proves nothing"
    liveness.mark_gone("a")
    assert not liveness.only_refused("a", 5.0)


def test_release_forgets_the_living_and_remembers_the_dead() -> None:
    liveness = fresh()
    liveness.watch("dead", 0.0)
    liveness.watch("alive", 0.0)
    look(liveness, *range(1, 6))
    liveness.heard("alive", 5.0)
    liveness.stop_watching(6.0)
    assert liveness.dead("dead", 100.0)
    assert not liveness.dead("alive", 100.0)


def test_one_that_speaks_after_it_was_given_up_is_watched_again() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    look(liveness, *range(1, 10))
    assert liveness.deadline() is None
    liveness.heard("a", 10.0)
    look(liveness, 10.0)
    assert not liveness.dead("a", 10.0)
    assert liveness.deadline() == 15.0


def test_a_new_round_vouches_for_everybody() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    look(liveness, *range(1, 10))
    liveness.forgive_silence()
    assert not liveness.dead("a", 9.0)


def test_the_silent_are_those_not_heard_of_lately() -> None:
    liveness = fresh()
    assert liveness.silent("never", 0.0)
    liveness.heard("a", 0.0)
    assert not liveness.silent("a", 4.9)
    assert liveness.silent("a", 5.0)


# --- a slow machine or network


def heard_at(liveness: Liveness, *times: float) -> None:
    for now in times:
        liveness.look(now)
        liveness.heard("a", now)


def test_a_peer_whose_beats_come_late_gets_more_time() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    heard_at(liveness, 1.0, 2.0)
    look(liveness, 3.0, 4.0)
    heard_at(liveness, 5.0)  # one more than two apart
    look(liveness, 6.0, 8.0, 10.0, 11.0)
    assert not liveness.dead("a", 11.9)
    assert liveness.dead("a", 12.0)


def test_how_long_ago_one_was_heard_says_nothing_before_it_was_watched() -> None:
    liveness = fresh()
    heard_at(liveness, 1.0)
    look(liveness, 2.0, 4.0)
    liveness.watch("a", 4.5)
    heard_at(liveness, 5.0)
    look(liveness, 6.0, 8.0)
    assert liveness.dead("a", 10.0)


def test_the_first_word_of_a_peer_that_is_watched_is_not_late() -> None:
    """A node that was cut off watches one leader after the other. When the network is whole again, what it hears then
    is no sign of a slow network."""
    liveness = fresh()
    heard_at(liveness, 1.0)
    look(liveness, 2.0, 4.0)
    liveness.watch("a", 4.5)
    look(liveness, 6.0, 7.5)
    heard_at(liveness, 9.0)
    assert liveness.promise_s == 5.0


def answered_late(liveness: Liveness, *times: float) -> None:
    """Each answer came half a second later than the beats are apart."""
    for now in times:
        heard_at(liveness, now)
        liveness.answered("a", 1.5, now)


def test_if_answers_take_long_a_promise_is_longer_and_the_tolerance_more_so() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    answered_late(liveness, *range(1, ANSWERS + 1))
    assert liveness.promise_s == 6.0
    look(liveness, 6.0, 8.0, 10.0, 11.0)
    assert not liveness.dead("a", 11.9)
    assert liveness.dead("a", 12.0)


def test_a_peer_that_stalled_once_is_not_slow() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    heard_at(liveness, *range(1, ANSWERS + 1))
    for late_s in range(9):  # it answers all that was sent meanwhile
        liveness.answered("a", 10.0 - late_s, 5.0 + late_s / 1000)
    assert liveness.promise_s == 5.0


def test_a_promise_still_holds_when_the_tolerance_has_become_shorter() -> None:
    liveness = fresh()
    liveness.watch("a", 0.0)
    answered_late(liveness, *range(1, ANSWERS + 1))
    heard_at(liveness, *range(ANSWERS + 1, 15))
    promised_until = 14.0 + liveness.promise_s
    look(liveness, 15.0, 16.0, 17.0, 18.0, 19.0)
    assert liveness.promise_s == 5.5, "it has halved"
    assert not liveness.dead("a", promised_until - 0.01)
