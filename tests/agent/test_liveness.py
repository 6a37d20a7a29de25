from __future__ import annotations

from softrun.agent.rendezvous.liveness import Liveness


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
