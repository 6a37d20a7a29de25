from __future__ import annotations

from collections.abc import Mapping

import pytest

from softrun.policies import (
    HardRestartPolicyStrategy,
    Response,
    RestartPolicyStrategy,
    SoftRestartPolicyStrategy,
    Trigger,
    WorkerFailure,
    available_policies,
    load_policy,
)


def test_the_table_of_the_rfc() -> None:
    hard, soft = load_policy("hard"), load_policy("soft")
    for trigger in (Trigger.SCALE_UP, Trigger.SCALE_DOWN):
        assert hard.respond(trigger) is Response.STOP_MEET_START
        assert soft.respond(trigger) is Response.PAUSE_MEET_WORK
    assert hard.respond(Trigger.WORKER_FAILURE) is Response.STOP_MEET_START
    assert soft.respond(Trigger.WORKER_FAILURE) is Response.WITHDRAW_AND_RETURN
    assert hard.respond(Trigger.RESTARTS_SPENT) is Response.END_JOB
    assert soft.respond(Trigger.RESTARTS_SPENT) is Response.LEAVE_JOB


@pytest.mark.parametrize(
    ("variant", "response"),
    [
        (WorkerFailure.NO_REPLACE, Response.WITHDRAW_AND_RETURN),
        (WorkerFailure.REPLACE, Response.REPLACE_WORKER),
        (WorkerFailure.RECORD, Response.RECORD_FAILURE),
    ],
)
def test_the_three_options_of_the_rfc(variant: WorkerFailure, response: Response) -> None:
    assert load_policy("soft", variant).respond(Trigger.WORKER_FAILURE) is response


def test_every_policy_answers_every_trigger() -> None:
    for policy in (HardRestartPolicyStrategy(), *map(SoftRestartPolicyStrategy, WorkerFailure)):
        for trigger in Trigger:
            assert policy.respond(trigger) in Response


def test_hard_has_no_variants() -> None:
    with pytest.raises(ValueError, match="replace needs --restart_policy soft"):
        load_policy("hard", WorkerFailure.REPLACE)


def test_an_unknown_policy_names_the_known_ones() -> None:
    assert {"hard", "soft"} <= set(available_policies())
    with pytest.raises(ValueError, match="unknown restart policy 'firm': choose one of hard, soft"):
        load_policy("firm")


def test_a_policy_that_answers_with_what_cannot_be_done_is_refused() -> None:
    class Odd(SoftRestartPolicyStrategy):
        def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
            return {**super().table(worker_failure), Trigger.SCALE_UP: Response.END_JOB}

    with pytest.raises(ValueError, match="answers SCALE_UP with"):
        Odd()


def test_a_policy_that_leaves_a_trigger_out_is_refused() -> None:
    class Short(RestartPolicyStrategy):
        def table(self, worker_failure: WorkerFailure) -> Mapping[Trigger, Response]:
            return {}

    with pytest.raises(ValueError, match="answers SCALE_UP with None"):
        Short()
