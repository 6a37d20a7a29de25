"""NVIDIA's usage guide to in-process restart, clause by clause: which test holds what it promises.

Each entry is a section of the guide, what it promises there, and the tests, which say where softrun differs on purpose.
`docs/migration-nvrx.md` tells users of these differences.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

LOOP, FAULTS, INTERRUPTS = "inprocess_loop", "inprocess_faults", "inprocess_interrupts"
BOUNDS, FUNCTION, RANKS = "inprocess_bounds", "inprocess_function", "inprocess_rank_assignment"
FAMILIES, HEALTH, PROGRAMS = "inprocess_families", "inprocess_health_check", "inprocess_programs"

CLAUSES = {
    "Requirements for the wrapped function": [
        ("it is called again with the same arguments", LOOP, "it_is_called_again_with_the_same_set_of_input_arguments"),
        ("RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCAL_RANK are set", FUNCTION, "the_process_group_can_be_bui"),
        ("torchrun starts its programs", PROGRAMS, "under_torchrun"),
    ],
    "Requirements for the execution environment": [
        ("a rank may exit early without ending the job", PROGRAMS, "started_one_by_one"),
    ],
    "Restrictions": [
        ("rank 0 is special there, and is not here", FAULTS, "nothing_is_special_about_rank_0"),
        ("more aborts can be composed with AbortTorchDistributed", FAMILIES, "what_transformer_engine_keeps_is_reset"),
    ],
    "Implementation overview": [
        ("the order of the operations", LOOP, "the_order_of_operations_is_the_guides"),
    ],
    "Distributed execution behavior": [
        ("entering and exiting synchronize all ranks", LOOP, "entering_and_exiting_act_as_distributed_synchroniza"),
        ("barrier_timeout bounds the first", BOUNDS, "ranks_that_do_not_come_within_the_barrier_timeout"),
        ("completion_timeout makes a late rank a failure", FAULTS, "a_rank_that_fails_to_synchronize_within_the_com"),
    ],
    "Rank assignment": [
        ("ranks are consecutive from 0", RANKS, "every_process_has_a_rank_of_its_own_and_rank_0_is_a_survivor"),
        ("a group with an unhealthy rank is terminated", RANKS, "a_group_of_8_with_a_lost_rank_is_terminated"),
        ("assignments of one's own work", RANKS, "a_rank_assignment_of_a_users_own_is_called_on_every_rank"),
    ],
    "Rank filtering": [
        ("reserves are activated later", LOOP, "reserve_ranks_would_be_activated_if_previously_active_ranks"),
        ("the largest multiple of M not above N is active", RANKS, "the_largest_multiple_of_m_not_greater_than_n"),
        ("inactive ranks return None", BOUNDS, "reserves_return_nothing_when_the_others_are_through"),
    ],
    "Initialize": [
        ("an Exception restarts, a BaseException ends", FAULTS, "a_standard_exception_triggers_another_restart_whil"),
        ("RetryController limits the attempts", FAMILIES, "the_number_of_iterations_is_limited"),
        ("and ends the job if too few are left", FAMILIES, "halts_if_the_number_of_healthy_workers_drops_below"),
        ("the last listed is called first", FAMILIES, "the_last_listed_function_is_called_first"),
        ("the job ends when it says so", PROGRAMS, "the_retry_controller_ends_the_job_at_once"),
    ],
    "Wrapped function termination mechanism": [
        ("faults within last_call_wait are one restart", FAULTS, "concurrent_faults_of_two_ranks_are_one_restart"),
        ("Abort runs, then the exception is raised", FAULTS, "an_abort_that_fails_does_not_keep_the_function_from"),
        ("handlers and context managers run", INTERRUPTS, "exception_handlers_and_context_managers_run_undis"),
        ("no abort in an atomic block", INTERRUPTS, "the_termination_procedure_is_not_launched_in_an_atomic"),
        ("no atomic block during an abort", INTERRUPTS, "the_main_thread_does_not_enter_an_atomic_block_onc"),
    ],
    "Soft timeout": [
        ("a rank without progress restarts all", "wrapper", "the_function_is_restarted_on_every_healthy_rank"),
    ],
    "Hard timeout": [
        ("SIGTERM, then SIGKILL after the grace time", "engine", "who_is_stuck_beyond_its_hard_limit_is_ended"),
    ],
    "Reporting progress": [
        ("byte code is progress", "inbox", "the_agent_sees_the_progress_of_the_worker"),
        ("pings count from the first one: a livelock is found", "wrapper", "the_function_is_restarted_on_every"),
        ("a CallWrapper is injected", FUNCTION, "it_injects_into_arguments_annotated_with_its_types"),
        ("no timeout in disable_hang_protection", BOUNDS, "without_hang_protection_nothing_ends_a_rank_and_then"),
    ],
    "Finalize": [
        ("after the abort and the group's end", INTERRUPTS, "an_abort_has_ended_before_finalize_begins"),
        ("its failure skips the health check and is raised", FAULTS, "a_failure_of_finalize_or_of_the_health_check_i"),
    ],
    "Health check": [
        ("a corrupted context ends the rank", HEALTH, "a_corrupted_context_that_reports_late_is_found"),
        ("its exception is raised", FAULTS, "a_failure_of_finalize_or_of_the_health_check_is_reraised"),
    ],
    "Monitoring capabilities": [
        ("faults of other ranks are seen, with cause and ranks", FAULTS, "the_interruption_names_cause_and_ranks"),
    ],
    "Logging": [
        ("DEBUG shows where the exception was suppressed", INTERRUPTS, "logging_with_debug_level_shows_the_location"),
    ],
    "Known issues": [
        ("gloo cannot be aborted there, and can be here", FAULTS, "a_fault_is_recovered_from"),
    ],
}


@cache
def names_of(module: str) -> list[str]:
    (path,) = TESTS.rglob(f"test_{module}.py")
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize(
    ("module", "test"), [(module, test) for clauses in CLAUSES.values() for _, module, test in clauses]
)
def test_a_clause_has_its_test(module: str, test: str) -> None:
    assert len([name for name in names_of(module) if name.startswith(f"test_{test}")]) == 1
