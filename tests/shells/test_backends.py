"""Where an agent listens, where its secret is, and when it takes others for dead, by its flags."""

from __future__ import annotations

import logging

import pytest

from softrun.agent.errors import UsageError
from softrun.agent.protocol.model import Address
from softrun.agent.store import secrets
from softrun.agent.store.backends import Backend, choose_backend
from softrun.agent.store.secrets import token_path
from softrun.policies import load_policy


@pytest.fixture(autouse=True)
def _nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_taken", {})


def chosen(name: str, endpoint: str, local_addr: str | None = None, **conf: object) -> Backend:
    return choose_backend(name, endpoint, dict(conf), load_policy("soft"), "job", "node", 2, local_addr)


@pytest.mark.parametrize("conf", [{}, {"is_host": True}, {"is_host": False}], ids=str)
@pytest.mark.parametrize("name", ["c10d", "static"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_listens_further_than_its_endpoint_reaches(name: str, host: str, conf: dict[str, object]) -> None:
    assert chosen(name, f"{host}:29400", **conf).bind == "127.0.0.1"


def test_who_was_told_its_address_by_the_user_listens_everywhere_because_that_may_only_lead_here() -> None:
    assert chosen("static", "192.0.2.1:29400", "192.0.2.1", is_host=True).bind == ""


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("cluster", "--rdzv_conf has no key 'cluster', which is left out: torch leaves it out as well"),
        ("join_timout", "--rdzv_conf has no key 'join_timout', which is left out: use join_timeout"),
        ("lease_ttl", "--rdzv_conf has no key 'lease_ttl', which is left out: torch leaves it out as well"),
    ],
)
def test_an_unknown_setting_is_said_and_left_out(caplog: pytest.LogCaptureFixture, key: str, says: str) -> None:
    with caplog.at_level(logging.WARNING, "softrun"):
        chosen("c10d", "localhost:29400", **{key: "5"})
    assert [record.getMessage() for record in caplog.records] == [says]


@pytest.mark.parametrize("key", ["token-file", "tokenfile", "token_files", "TOKEN_FILE", "password"])
def test_a_misspelt_secret_is_not_left_out_in_silence(key: str) -> None:
    with pytest.raises(UsageError, match=f"--rdzv_conf has no key '{key}': use "):
        chosen("c10d", "localhost:29400", **{key: "secret"})


@pytest.mark.parametrize(("port", "named"), [(29500, Address("127.0.0.1", 29500)), (0, None)])
def test_a_job_of_one_node_may_leave_the_port_to_softrun(port: int, named: Address | None) -> None:
    policy, endpoint = load_policy("soft"), f"127.0.0.1:{port}"
    assert choose_backend("static", endpoint, {}, policy, "job", "node", 1, None).named_store == named


@pytest.mark.parametrize("path", ["", " "])
def test_a_secret_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """`SOFTRUN_TOKEN_FILE="$TOKEN"` in a script that has not set TOKEN."""
    monkeypatch.setenv("SOFTRUN_TOKEN_FILE", path)
    with pytest.raises(UsageError, match=r"^SOFTRUN_TOKEN_FILE is empty: name the file"):
        chosen("c10d", "127.0.0.1:29400")
    with pytest.raises(UsageError, match=r"^token_file in --rdzv_conf is empty"):
        token_path(path)


def test_the_file_that_is_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTRUN_TOKEN_FILE", "/other")
    assert token_path("/given") == "/given"
    assert token_path(None) == "/other"


def test_there_need_be_none() -> None:
    assert token_path(None) is None


def backend_of(nodes: int, host: str) -> Backend:
    return choose_backend(
        "c10d", f"{host}:29400", {}, load_policy("soft"), "job", f"{host}-4194304-{'0' * 16}", nodes, host
    )


@pytest.mark.parametrize(("nodes", "tolerance_s"), [(2, 1.25), (128, 1.25), (512, 5.0), (1_000, 9.0), (10_000, 9.0)])
def test_a_silent_node_is_left_behind_within_ten_seconds_however_many_there_are(nodes: int, tolerance_s: float) -> None:
    settings = chosen("c10d", "127.0.0.1:29400").settings
    assert settings.tolerance_s(nodes) == pytest.approx(tolerance_s)


def test_ten_thousand_nodes_with_names_of_63_characters_are_no_problem() -> None:
    assert backend_of(10_000, "h" * 63).host == "h" * 63


def test_so_many_that_no_message_could_name_them_all_are_refused_at_the_start() -> None:
    with pytest.raises(UsageError, match=r"a job of 100000 nodes with names such as h{63}-.* takes up to 1\d\.\d MiB"):
        backend_of(100_000, "h" * 63)
