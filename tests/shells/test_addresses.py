from __future__ import annotations

import socket

import pytest

from softrun.agent.errors import StoreLostError
from softrun.agent.store import addresses


def test_a_name_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(addresses, "_RETRY_S", 0.01)
    assert addresses.resolve("pod-0", 60) == [(socket.AF_INET, "127.0.0.1")]
    assert len(asked) == 3


def test_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_RETRY_S", 0.01)
    with pytest.raises(StoreLostError, match=r"the host 'no.such.host.invalid' .* cannot be reached after 0.05 s"):
        addresses.address_towards([("no.such.host.invalid", 1), ("nor.this.one.invalid", 1)], 0.05)
