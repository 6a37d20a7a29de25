"""An agent looks for its job at an endpoint: it begins it there, finds it there, or learns what else is there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from shells.test_links import SECRET, End, connect, until, until_true

from softrun.agent.links.listeners import Listens
from softrun.agent.links.names import place_of
from softrun.agent.links.seeker import ANSWER_S
from softrun.agent.protocol.codec import PROTOCOL_VERSION
from softrun.agent.protocol.effects import Seek
from softrun.agent.protocol.model import Address, Beat, Member
from softrun.agent.protocol.observations import Found, Heard, LinkDown, LinkUp, Listening, NotFound

LONG = b"x" * 5000
OTHERS = "another program, or another release of softrun"
ELSEWHERE = "192.0.2.1"  # of nobody: RFC 5737


@pytest.fixture(params=[None, SECRET], ids=["no secret", "secret"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., End]]:
    ends = []

    def make(node: str, **settings: Any) -> End:
        ends.append(End(node, **({"secret": request.param} | settings)))
        return ends[-1]

    yield make
    for end in ends:
        end.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def seek(end: End, endpoint: Address, give_up_s: float = 30.0) -> None:
    end.links.seek(Seek(endpoint, give_up_s))


def begin(end: End) -> Address:
    """Have it begin the job."""
    endpoint = Address("127.0.0.1", free_port())
    seek(end, endpoint)
    assert end.seen.pop() == Listening(endpoint)
    return endpoint


def endpoints_of(end: End) -> list[str]:
    return sorted(sock.getsockname()[0] for socks in end.links._listeners._endpoints.values() for sock in socks)


def outcome(end: End, *others: End) -> Any:
    until_true(end, *others, so=lambda: end.seen)
    return end.seen[0]


# --- where it listens


def test_the_first_one_begins_the_job(make: Callable[..., End]) -> None:
    a = make("a")
    endpoint = begin(a)
    assert a.links.endpoint_port == endpoint.port
    assert endpoints_of(a) == ["127.0.0.1"]
    seek(a, endpoint)
    assert a.seen == [Listening(endpoint)], "again"


def test_any_free_port(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    assert a.links.endpoint_port is None
    seek(a, Address("127.0.0.1", 0))
    assert a.seen == [Listening(Address("127.0.0.1", 0))]
    assert a.links.endpoint_port not in (None, 0, a.links.port)
    seek(b, Address("127.0.0.1", a.links.endpoint_port or 0))
    assert isinstance(outcome(b, a), Found)


def test_localhost_is_nobody_elses(make: Callable[..., End]) -> None:
    a = make("a", bind="")
    seek(a, Address("localhost", 0))
    assert outcome(a) == Listening(Address("localhost", 0))
    assert set(endpoints_of(a)) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(("bind", "listens"), [("", ["0.0.0.0"]), ("127.0.0.3", ["127.0.0.3", "127.0.1.1"])])
def test_its_own_name_may_mean_loopback_to_nobody_else(
    make: Callable[..., End], monkeypatch: pytest.MonkeyPatch, bind: str, listens: list[str]
) -> None:
    resolves(monkeypatch, "127.0.1.1")
    a = make("a", bind=bind)
    seek(a, Address("this-machine", 0))
    assert outcome(a) == Listening(Address("this-machine", 0))
    assert endpoints_of(a) == listens


def test_a_name_of_several_addresses_of_its_own(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, "127.0.0.1", "127.0.0.5", "127.0.0.1")
    a = make("a")
    seek(a, Address("localhost", 0))
    outcome(a)
    assert endpoints_of(a) == ["127.0.0.1", "127.0.0.5"]


def test_ipv6(make: Callable[..., End]) -> None:
    if not has_ipv6():
        pytest.skip("there is no IPv6 here")
    a, b = make("a", bind="::1", host="::1"), make("b", bind="::1", host="::1")
    seek(a, Address("::1", 0))
    assert endpoints_of(a) == ["::1"]
    seek(b, Address("::1", a.links.endpoint_port or 0))
    assert outcome(b, a) == Found(Address("::1", a.links.endpoint_port or 0), "a")
    connect(a, b)


def test_one_that_may_not_listen(make: Callable[..., End]) -> None:
    a = make("a", listens=False)
    endpoint = Address("127.0.0.1", free_port())
    seek(a, endpoint)
    assert outcome(a) == NotFound(endpoint, refused=True)


def test_one_that_is_told_to_listen_does_so_though_the_address_is_a_services(make: Callable[..., End]) -> None:
    a = make("a", listens=True)
    endpoint = Address(ELSEWHERE, free_port())
    seek(a, endpoint)
    assert a.seen == [Listening(endpoint)]
    assert endpoints_of(a) == ["0.0.0.0"]


def test_an_endpoint_of_this_machines_name_is_its_own_wherever_that_leads(
    make: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's address in front of it, for one."""
    resolves(monkeypatch, ELSEWHERE)
    monkeypatch.setattr(socket, "gethostname", lambda: "this-machine")
    a = make("a")
    endpoint = Address("this-machine", free_port())
    seek(a, endpoint)
    assert outcome(a) == Listening(endpoint)
    assert endpoints_of(a) == ["0.0.0.0"]


def test_a_name_that_leads_to_other_machines_too_is_not_listened_at(make: Callable[..., End]) -> None:
    """Or each of them would begin a job of its own."""
    a = make("a")
    places = [place for host in (ELSEWHERE, "127.0.0.1") if (place := place_of(host, 1))]
    assert a.links._listeners.listen_at(Address("several", free_port()), places, False) is Listens.NO
    assert endpoints_of(a) == []


def test_a_link_local_endpoint_keeps_its_zone(make: Callable[..., End]) -> None:
    """It means nothing without. This machine has none for sure, so its loopback address stands in for one."""
    if not has_ipv6():
        pytest.skip("there is no IPv6 here")
    lo = socket.if_nametoindex("lo")
    assert place_of("fe80::1%lo", 5) == (socket.AF_INET6, ("fe80::1", 5, 0, lo))
    assert place_of(f"fe80::1%{lo}", 5) == (socket.AF_INET6, ("fe80::1", 5, 0, lo))
    assert place_of("fe80::1%nowhere", 5) is None
    a, b = make("a", bind="::1%lo", host="::1%lo"), make("b", bind="::1%lo", host="::1%lo")
    seek(a, Address("::1%lo", 0))
    assert a.seen == [Listening(Address("::1%lo", 0))]
    seek(b, Address("::1%lo", a.links.endpoint_port or 0))
    assert outcome(b, a) == Found(Address("::1%lo", a.links.endpoint_port or 0), "a")
    connect(a, b)


@pytest.mark.parametrize("bind", ["", "127.0.0.1", "127.0.0.7", "::", "::1"])
def test_the_listener_is_bound_to_what_was_said(bind: str) -> None:
    if ":" in bind and not has_ipv6():
        pytest.skip("there is no IPv6 here")
    a = End("a", bind=bind)
    assert a.links._listeners._main.getsockname()[0] == (bind or "0.0.0.0")
    a.close()


def test_all_addresses_are_of_both_kinds_if_the_host_is_ipv6() -> None:
    if not has_ipv6():
        pytest.skip("there is no IPv6 here")
    a = End("a", host="::1")
    for address in ("::1", "127.0.0.1"):
        socket.create_connection((address, a.links.port)).close()
    a.close()


# --- what it finds


def test_the_others_find_it(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    b.links.say("a", Beat())
    until(a, b, see=Heard("b", Beat()), at=a)
    a.links.say("b", Beat())
    until(a, b, see=Heard("a", Beat()), at=b)
    assert LinkUp("a") not in b.seen
    assert b.links.deadline() is None


def test_a_found_link_is_dialled_anew_without_a_trace(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    b.links.say("a", Beat())
    until(a, b, see=Heard("b", Beat()), at=a)
    connect(b, a)
    b.links.say("a", Beat())
    until_true(a, b, so=lambda: a.seen.count(Heard("b", Beat())) == 2)
    a.links.say("b", Beat())
    until(a, b, see=Heard("a", Beat()), at=b)
    for _ in range(20):
        a.turn()
        b.turn()
    assert a.seen == [Heard("b", Beat())] * 2
    assert b.seen == [Found(endpoint, "a"), LinkUp("a"), Heard("a", Beat())]
    assert len(b.links._wiring.open) == 1


def test_a_found_link_is_hung_up(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    until_true(a, b, so=lambda: a.links._accepted.link("b"))
    b.links.hang_up("a")
    until(a, b, see=LinkDown("b", refused=False), at=a)
    assert b.seen == [Found(endpoint, "a")]


@pytest.mark.parametrize("dies", [True, False])
def test_a_found_link_that_breaks_is_told_of(make: Callable[..., End], dies: bool) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    until_true(a, b, so=lambda: a.links._accepted.link("b"))
    if dies:
        a.die()
    else:
        link = a.links._accepted.link("b")
        assert link is not None
        link.close()
    until(a, b, see=LinkDown("a", refused=dies), at=b)


def test_if_one_that_was_found_had_dialled_as_well_it_dials_again(make: Callable[..., End]) -> None:
    """What was said on the link that breaks may be lost, and it would not know: it has another one, which has not."""
    a, b = make("a"), make("b")
    connect(b, a)
    address = Address("127.0.0.1", b.links.port)
    seek(a, address)
    until(a, b, see=Found(address, "b"), at=a)
    until_true(a, b, so=lambda: b.links._accepted.link("a"))
    link = b.links._accepted.link("a")
    assert link is not None
    link.close()
    until(a, b, see=LinkDown("b", refused=False), at=a)
    until(a, b, see=LinkDown("a", refused=False), at=b)


def test_who_has_a_link_already_keeps_it(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    connect(b, a)
    for _ in range(3):
        b.seen.clear()
        seek(b, endpoint)
        until(a, b, see=Found(endpoint, "a"), at=b)
    b.links.say("a", Beat())
    until(a, b, see=Heard("b", Beat()), at=a)
    a.links.say("b", Beat())
    until(a, b, see=Heard("a", Beat()), at=b)
    assert a.seen == [Heard("b", Beat())], "no link of b has broken"
    assert len(b.links._wiring.open) == len(a.links._wiring.open) == 1


def test_a_link_that_the_seeker_has_lost_is_replaced_when_it_speaks_on_the_new_one(make: Callable[..., End]) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    connect(b, a)
    until_true(a, b, so=lambda: a.links._accepted.link("b"))
    old = a.links._accepted.link("b")
    lost = b.links._dialled._links.pop("a")  # a hears nothing of that: the network is to blame
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    assert a.links._accepted.link("b") is old
    b.links.say("a", Beat())
    until(a, b, see=Heard("b", Beat()), at=a)
    assert a.links._accepted.link("b") is not old
    lost.close()


def test_a_dial_that_is_not_done_is_done_by_what_is_found(make: Callable[..., End], stack: ExitStack) -> None:
    a, b = make("a"), make("b")
    endpoint = begin(a)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    b.links.dial(Member("a", 1, "127.0.0.1", silent.getsockname()[1], "role", ()))
    seek(b, endpoint)
    until(a, b, see=Found(endpoint, "a"), at=b)
    assert b.seen == [LinkUp("a"), Found(endpoint, "a")]


def test_it_may_find_itself(make: Callable[..., End]) -> None:
    a = make("a")
    seek(a, Address("127.0.0.1", a.links.port))
    until(a, see=Found(Address("127.0.0.1", a.links.port), "a"), at=a)
    assert not a.links._wiring.open
    assert a.links._accepted.links() == []


@pytest.mark.parametrize(
    ("settings", "stranger"),
    [
        ({"job": "another"}, "an agent of another job"),
        ({"secret": b"another secret of this kind"}, None),
        ({"node": "b"}, "an agent that already knows another one by this node's name"),
    ],
)
def test_an_agent_that_is_none_of_this_job(
    make: Callable[..., End], settings: dict[str, Any], stranger: str | None
) -> None:
    a, b = make(**({"node": "a"} | settings)), make("b")
    endpoint = begin(a)
    seek(b, endpoint)
    if stranger is None:
        secret = b.links._wiring.identity.secret
        stranger = "an agent with a token" if secret is None else "an agent with another token"
    doubtful = stranger != "an agent of another job"
    assert outcome(b, a) == NotFound(endpoint, stranger, doubtful=doubtful)
    assert a.seen == []


def test_an_agent_without_a_token(make: Callable[..., End]) -> None:
    a, b = make("a", secret=None), make("b", secret=SECRET)
    endpoint = begin(a)
    seek(b, endpoint)
    assert outcome(b, a) == NotFound(endpoint, "an agent without a token", doubtful=True)


@pytest.mark.parametrize(
    ("says", "stranger"),
    [
        (b"", OTHERS),
        (b"HTTP/1.1 400 Bad Request\r\n", OTHERS),
        (b"\x00\xff\x1b[31m\n", OTHERS),
        (LONG, OTHERS),
        (b"{}\n", OTHERS),
        (
            json.dumps({"version": PROTOCOL_VERSION + 1, "node": "a"}).encode() + b"\n",
            "an agent of another release of softrun",
        ),
    ],
    ids=["hangs up", "HTTP", "bytes", "long", "JSON", "release"],
)
def test_another_program(make: Callable[..., End], says: bytes, stranger: str) -> None:
    a = make("a")
    with socket.create_server(("127.0.0.1", 0)) as program:
        endpoint = Address("127.0.0.1", program.getsockname()[1])
        program.setblocking(False)
        seek(a, endpoint)

        socks: list[socket.socket] = []

        def done() -> bool:
            with suppress(BlockingIOError):
                socks.append(program.accept()[0])
                socks[-1].setblocking(False)
            with suppress(BlockingIOError, IndexError):
                socks[-1].recv(4096)
                socks[-1].send(says)
                if says in (b"", LONG):
                    socks.pop().close()
            return bool(a.seen)

        until_true(a, so=done)
        for sock in socks:
            sock.close()
    assert a.seen == [NotFound(endpoint, stranger, doubtful=stranger != OTHERS)]


def test_a_proxy_hangs_up_until_the_agent_behind_it_is_there(make: Callable[..., End]) -> None:
    """It has said nothing, so nobody knows that it is a stranger."""
    a = make("a", listens=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        endpoint = Address("127.0.0.1", proxy.getsockname()[1])
        proxy.setblocking(False)
        seek(a, endpoint)

        def done() -> bool:
            with suppress(BlockingIOError):
                proxy.accept()[0].close()
            return bool(a.seen)

        until_true(a, so=done)
    assert a.seen == [NotFound(endpoint, doubtful=True)]


def test_one_that_hangs_up_once_is_asked_again(make: Callable[..., End]) -> None:
    """An agent that strangers crowd out may have to."""
    a, b = make("a"), make("b")
    endpoint = begin(a)
    close = [True]
    welcome = a.links._accepted.welcome

    def crowded(sock: socket.socket, *rest: Any) -> None:
        if close.pop() if close else False:
            sock.close()
        else:
            welcome(sock, *rest)

    a.links._accepted.welcome = crowded  # type: ignore[method-assign]
    seek(b, endpoint)
    assert outcome(b, a) == Found(endpoint, "a")


def test_silence_is_waited_for_until_it_is_time(make: Callable[..., End]) -> None:
    a = make("a")
    with socket.create_server(("127.0.0.1", 0)) as program:
        endpoint = Address("127.0.0.1", program.getsockname()[1])
        seek(a, endpoint, 7.0)
        assert a.links.deadline() == 7.0
        a.now = 3.0
        a.turn()
        seek(a, endpoint, 7.0)  # begins anew
        assert a.links.deadline() == 10.0
        a.now = 9.9
        a.turn()
        assert a.seen == []
        a.now = 10.0
        a.turn()
        assert a.seen == [], "something has accepted, and may be busy"
        assert a.links.deadline() == 10.0 + ANSWER_S
        a.now = 10.0 + ANSWER_S
        a.turn()
        assert a.seen == [NotFound(endpoint, doubtful=True)], "an agent that is stopped is as silent"
        assert a.links.deadline() is None
        assert not a.links._wiring.open


def test_nobody_there(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    a = make("a", listens=False)
    port = free_port()
    resolves(monkeypatch, "127.0.0.1", "127.0.0.2")
    for endpoint in (Address("127.0.0.1", port), Address("a-name", port)):
        a.seen.clear()
        seek(a, endpoint)
        assert outcome(a) == NotFound(endpoint, refused=True)


@pytest.mark.parametrize(
    "endpoint",
    [Address("no.such.host.invalid", 1), Address("a\0b", 1), Address("ü" * 70, 1), Address("127.0.0.1", 70000)],
    ids=repr,
)
def test_an_endpoint_that_leads_nowhere(make: Callable[..., End], endpoint: Address) -> None:
    a = make("a")
    seek(a, endpoint)
    assert outcome(a) == NotFound(endpoint)


# --- names


def resolves(monkeypatch: pytest.MonkeyPatch, *addresses: str, after_s: float = 0.0) -> list[str]:
    """Every name resolves to these addresses. Returns the names that are asked for."""
    asked: list[str] = []
    original = socket.getaddrinfo

    def answer(host: str, *args: Any, **settings: Any) -> list[Any]:
        if host and host.replace(".", "").replace(":", "").isalnum() and (host[0].isdigit() or ":" in host):
            return original(host, *args, **settings)
        asked.append(host)
        time.sleep(after_s)
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 0, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def test_a_slow_name_service_does_not_stop_the_loop(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolves(monkeypatch, "127.0.0.1", after_s=0.5)
    a, b, c = make("a"), make("b"), make("c", host="slow-name")
    began = time.monotonic()
    longest = 0.0
    a.links.dial(c.member)
    seek(a, Address("slow-name", free_port()))
    while not {LinkUp("c")} <= set(a.seen):
        assert time.monotonic() < began + 10
        before = time.monotonic()
        a.turn()
        longest = max(longest, time.monotonic() - before)
        if LinkUp("b") not in a.seen and a.links._dialled._links.get("b") is None:
            a.links.dial(b.member)
        b.turn()
        c.turn()
        if LinkUp("b") in a.seen and LinkUp("c") not in a.seen:
            assert time.monotonic() - began < 5
    assert a.seen.index(LinkUp("b")) < a.seen.index(LinkUp("c")), "an address waits for no name"
    assert longest < 0.4
    assert asked == ["slow-name"], "two that want the same name wait for one answer"


def test_an_ipv4_address_in_the_form_of_ipv6_is_listened_at_once(
    make: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of /etc/hosts for ::ffff:127.0.0.1 spares torch's stores a look-up. Nobody can listen at it in that form,
    beside IPv6."""
    resolves(monkeypatch, "::ffff:127.0.0.1", "127.0.0.1")
    a, endpoint = make("a"), Address("localhost", free_port())
    seek(a, endpoint)
    assert outcome(a) == Listening(endpoint)
    assert [sock.getsockname() for sock in a.links._listeners._endpoints[endpoint]] == [("127.0.0.1", endpoint.port)]


def test_a_name_that_does_not_resolve(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch)
    a = make("a")
    a.links.dial(Member("b", 1, "nobody", 1, "role", ()))
    until(a, see=LinkDown("b", refused=False), at=a)
    assert not a.links._wiring.open


def test_who_is_hung_up_on_while_its_name_is_looked_up(
    make: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolves(monkeypatch, "127.0.0.1", after_s=0.1)
    a, b = make("a"), make("b", host="slow-name")
    a.links.dial(b.member)
    a.links.hang_up("b")
    until_true(a, b, so=lambda: asked and not a.links._wiring.names._waiting)
    for _ in range(20):
        a.turn()
        b.turn()
    assert a.seen == b.seen == []
    assert not a.links._wiring.open


def test_look_ups_are_bounded(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, after_s=1)
    a = make("a")
    for i in range(300):
        a.links.dial(Member(f"b{i}", 1, f"name-{i}", 1, "role", ()))
    assert a.links.deadline() == 0.0, "what failed at once is told by the next sweep"
    a.turn()
    assert len(a.seen) == 300 - 256


def test_the_next_address_of_a_name_is_tried(make: Callable[..., End], monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, "127.0.0.9", "127.0.0.1")
    a, b = make("a"), make("b", host="two", bind="127.0.0.1")
    connect(a, b)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
