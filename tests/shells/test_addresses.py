from __future__ import annotations

import socket

import pytest

from softrun.agent.errors import StoreLostError, UsageError
from softrun.agent.protocol.model import Address
from softrun.agent.store import addresses
from softrun.agent.store.addresses import parse_endpoint, parse_endpoints


def test_a_name_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 29400))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses, "_RETRY_S", 0.01)
    assert addresses.address_towards([("pod-0", 29400)], 60) == "pod-0", "not as this machine knows itself"
    assert len(asked) == 3


def test_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_RETRY_S", 0.01)
    with pytest.raises(StoreLostError, match=r"the host 'no.such.host.invalid' .* cannot be reached after 0.05 s"):
        addresses.address_towards([("no.such.host.invalid", 1), ("nor.this.one.invalid", 1)], 0.05)


@pytest.mark.parametrize(
    ("endpoint", "parsed"),
    [
        ("host1:1234", ("host1", 1234)),
        ("host1", ("host1", 29400)),
        ("", ("localhost", 29400)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[fe80::1]:77", ("fe80::1", 77)),
        ("[::1]", ("::1", 29400)),
    ],
)
def test_endpoints(endpoint: str, parsed: tuple[str, int]) -> None:
    assert parse_endpoint(endpoint) == parsed


@pytest.mark.parametrize("endpoint", ["host:port", "host:70000", ":5", "http://host:5", "a b:5", "host:-1"])
def test_wrong_endpoints(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        parse_endpoint(endpoint)


def test_several_endpoints_are_in_the_users_order_and_each_of_them_once() -> None:
    endpoints = parse_endpoints("b:1, a, [::1]:5,b:1")
    assert endpoints == (Address("b", 1), Address("a", 29400), Address("::1", 5))
    assert parse_endpoints("") == (Address("localhost", 29400),)


def test_one_wrong_endpoint_of_several_is_named() -> None:
    with pytest.raises(UsageError, match="'b:x' is not HOST:PORT"):
        parse_endpoints("a:1,b:x")


@pytest.mark.parametrize("endpoints", ["a:1,", ",a:1", "a:1, ,b:1", ","])
def test_a_list_with_an_empty_place_is_not_completed_by_this_host(endpoints: str) -> None:
    with pytest.raises(UsageError, match="empty place"):
        parse_endpoints(endpoints)
