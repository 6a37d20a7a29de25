"""With a secret, agents prove who they are, and nobody in between can change, repeat or leave out what they say."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from shells.test_links import REPORT, SECRET, End, connect, until, until_true

from softrun.agent.errors import ProtocolError, UsageError
from softrun.agent.links.greetings import Answer, Greeting, transcript
from softrun.agent.links.handshake import Accepting, Dialling, Identity, RefusedError
from softrun.agent.links.sealing import Sealing
from softrun.agent.protocol.codec import PROTOCOL_VERSION
from softrun.agent.protocol.model import Beat, Hello
from softrun.agent.protocol.observations import Heard, LinkDown, LinkUp

ANOTHER = b"another secret altogether"
A = Identity("job", "a", "127.0.0.1", 1, SECRET)
B = Identity("job", "b", "127.0.0.1", 2, SECRET)
NONCES = ("1" * 64, "2" * 64)


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    a, b = End("a", secret=SECRET), End("b", secret=SECRET)
    yield a, b
    a.close()
    b.close()


def nobody(_: Greeting) -> bool:
    return False


def shake(a: Identity = A, b: Identity = B, to: str = "b") -> tuple[Sealing | None, Sealing | None]:
    """The seals of both ends after a handshake without a network."""
    dialling, accepting = Dialling(a, to, NONCES[0]), Accepting(b, NONCES[1])
    met = dialling.answered(accepting.greeted(dialling.greeting, nobody))
    if accepting.waits:
        accepting.proved(met.reply)
    return met.sealing, accepting.sealing


# --- the pure part


def test_both_ends_have_the_same_keys_and_each_direction_its_own() -> None:
    ours, theirs = shake()
    assert ours is not None
    assert theirs is not None
    assert theirs.open(ours.seal(b"one")) == b"one"
    assert theirs.open(ours.seal(b"one")) == b"one"
    assert ours.open(theirs.seal(b"two")) == b"two"
    with pytest.raises(ProtocolError):
        ours.open(ours.seal(b"a line that comes back"))


@pytest.mark.parametrize("fault", ["repeated", "left out", "moved", "changed", "cut", "no seal", "empty"])
def test_a_line_that_is_not_the_next_one_is_refused(fault: str) -> None:
    ours, theirs = shake()
    assert ours is not None
    assert theirs is not None
    lines = [ours.seal(b"line %d" % i) for i in range(3)]
    assert theirs.open(lines[0]) == b"line 0"
    wrong = {
        "repeated": lines[0],
        "left out": lines[2],
        "moved": lines[2],
        "changed": lines[1][:-1] + b"9",
        "cut": lines[1][:-1],
        "no seal": b"line 1",
        "empty": b"",
    }[fault]
    with pytest.raises(ProtocolError, match="changed, repeated or left out"):
        theirs.open(wrong)


def test_without_a_secret_there_are_two_lines_and_no_seals() -> None:
    assert shake(replace(A, secret=None), replace(B, secret=None)) == (None, None)
    dialling = Dialling(replace(A, secret=None), "b", "")
    accepting = Accepting(replace(B, secret=None), "")
    answer = json.loads(accepting.greeted(dialling.greeting, nobody))
    assert set(answer) == {"version", "node"}
    assert "nonce" not in json.loads(dialling.greeting)


def test_what_two_ends_have_told_each_other_is_never_told_by_others() -> None:
    """The parts are counted: moving a character from one to the next makes another transcript."""
    dialling, accepting = Dialling(A, "b", NONCES[0]), Accepting(B, NONCES[1])
    accepting.greeted(dialling.greeting, nobody)
    assert accepting.greeting is not None
    answer = Answer(version=1, node="b", nonce=NONCES[1])
    one = accepting.greeting.model_copy(update={"job": "job", "node": "a"})
    other = accepting.greeting.model_copy(update={"job": "joba", "node": ""})
    assert transcript(one, answer) != transcript(other, answer)


@pytest.mark.parametrize(
    ("field", "value"),
    [("job", "jo"), ("node", "c"), ("to", ""), ("host", "10.0.0.1"), ("port", 3), ("nonce", "3" * 64)],
)
def test_a_greeting_that_was_changed_on_the_way_is_refused(field: str, value: object) -> None:
    dialling, accepting = Dialling(A, "b", NONCES[0]), Accepting(B, NONCES[1])
    greeting = json.loads(dialling.greeting)
    answer = accepting.greeted(json.dumps(greeting | {field: value}).encode(), nobody)
    with pytest.raises(RefusedError, match="its token is another one"):
        dialling.answered(answer)


@pytest.mark.parametrize(
    ("field", "value"), [("node", "c"), ("nonce", "3" * 64), ("proof", "4" * 64), ("host", "evil")]
)
def test_an_answer_that_was_changed_on_the_way_is_refused(field: str, value: object) -> None:
    dialling, accepting = Dialling(A, "b", NONCES[0]), Accepting(B, NONCES[1])
    answer = json.loads(accepting.greeted(dialling.greeting, nobody))
    with pytest.raises(RefusedError):
        dialling.answered(json.dumps(answer | {field: value}).encode())


def test_a_stranger_is_not_told_whether_the_job_is_right() -> None:
    """The answers differ in the proof only, which nobody else can tell from another one."""
    answers = []
    for job, to, node in (("job", "b", "a"), ("jobs", "b", "a"), ("job", "c", "a"), ("job", "b", "b")):
        dialling = Dialling(replace(A, job=job, node=node), to, NONCES[0])
        answers.append(json.loads(Accepting(B, NONCES[1]).greeted(dialling.greeting, nobody)))
    proofs = {answer.pop("proof") for answer in answers}
    assert len(proofs) == 4
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "secret"])
@pytest.mark.parametrize(
    ("changes", "to", "stranger"),
    [
        ({"job": "another"}, "b", "another job"),
        ({}, "c", "another node"),
        ({"node": "b"}, "b", "already knows another one"),
        ({"node": "b", "port": 9}, "", "already knows another one"),
    ],
)
def test_who_is_refused_is_told_why(secret: bytes | None, changes: dict[str, object], to: str, stranger: str) -> None:
    dialler = replace(A, secret=secret, **changes)
    dialling, accepting = Dialling(dialler, to, NONCES[0]), Accepting(replace(B, secret=secret), NONCES[1])
    answer = accepting.greeted(dialling.greeting, nobody)
    assert accepting.fault
    with pytest.raises(RefusedError) as refused:
        dialling.answered(answer)
    assert stranger in refused.value.stranger
    if secret is not None:
        with pytest.raises(ProtocolError) as caught:
            accepting.proved(refused.value.reply)
        assert str(caught.value) == accepting.fault


def test_an_agent_that_finds_itself_is_answered() -> None:
    dialling, accepting = Dialling(B, "", NONCES[0]), Accepting(B, NONCES[1])
    assert dialling.answered(accepting.greeted(dialling.greeting, nobody)).node == "b"
    assert not accepting.fault


@pytest.mark.parametrize(
    "greeting",
    [
        {"host": "a\0b"},
        {"host": "a\nb"},
        {"host": ""},
        {"host": "x" * 256},
        {"node": ""},
        {"node": "x" * 513},
        {"job": "x" * 513},
        {"to": "x" * 513},
        {"port": 0},
        {"port": 65536},
        {"port": -1},
        {"port": 1.5},
        {"port": "1"},
        {"port": True},
        {"port": float("nan")},
        {"port": float("inf")},
        {"port": None},
        {"version": "1"},
        {"nonce": "1"},
        {"nonce": "G" * 64},
        {"nonce": 1},
        {"probe": "yes"},
        {"node": ["a"]},
        {"node": "\ud800"},
    ],
    ids=repr,
)
def test_a_greeting_that_no_agent_sends(greeting: dict[str, object]) -> None:
    good = json.loads(Dialling(A, "b", NONCES[0]).greeting)
    Accepting(B, NONCES[1]).greeted(json.dumps(good | {"more": {"of": "it"}}).encode(), nobody)
    with pytest.raises(ProtocolError):
        Accepting(B, NONCES[1]).greeted(json.dumps(good | greeting).encode(), nobody)


def test_an_agent_that_no_greeting_can_name_does_not_start() -> None:
    for names in ({"job": "j" * 513}, {"node": ""}, {"host": "a\0b"}, {"host": ""}, {"node": "\udcff"}):
        with pytest.raises(UsageError, match=f"cannot be told the {next(iter(names))} "):
            End(**({"node": "a"} | names))


# --- on sockets


@pytest.mark.parametrize(
    ("ours", "theirs", "at_a", "at_b"),
    [
        (SECRET, ANOTHER, "its token is another one", "its token is another one"),
        (SECRET, None, "it has no token, and this agent has one", "it has a token, and this agent has none"),
        (None, SECRET, "it has a token, and this agent has none", "it has no token, and this agent has one"),
    ],
    ids=["two secrets", "one without", "other without"],
)
def test_agents_with_different_secrets_refuse_each_other_and_say_what_to_do(
    caplog: pytest.LogCaptureFixture, ours: bytes | None, theirs: bytes | None, at_a: str, at_b: str
) -> None:
    a, b = End("a", secret=ours), End("b", secret=theirs)
    a.links.dial(b.member)
    until(a, b, see=LinkDown("b", refused=False), at=a)
    until_true(a, b, so=lambda: len(caplog.records) >= 2)
    told = [record.getMessage() for record in caplog.records]
    assert sorted(told) == sorted(
        f"link to {n} closed: {t}: give every agent the same token_file" for n, t in (("b", at_a), ("a", at_b))
    )
    assert not any(str(secret)[2:-1] in caplog.text for secret in (SECRET, ANOTHER))
    assert b.seen == []
    a.close()
    b.close()


class Between:
    """Somebody between two agents, who passes lines on, one by one, after `change` has seen them."""

    def __init__(self, target: End) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.target = target
        self.socks: list[socket.socket] = []
        self.lines: dict[int, list[bytes]] = {0: [], 1: []}
        self.rest = {0: b"", 1: b""}
        self.held: list[bytes] = []
        self.change = lambda _from, line: [line]

    def turn(self) -> None:
        if not self.socks:
            with suppress(BlockingIOError):
                sock, _ = self.listener.accept()
                self.socks = [sock, socket.create_connection(("127.0.0.1", self.target.links.port))]
                for each in self.socks:
                    each.setblocking(False)
        for i, sock in enumerate(self.socks):
            with suppress(BlockingIOError, ConnectionError):
                data = sock.recv(1 << 16)
                *lines, self.rest[i] = (self.rest[i] + data).split(b"\n")
                for line in lines:
                    self.lines[i].append(line)
                    for changed in self.change(i, line):
                        self.socks[1 - i].send(changed + b"\n")
                if not data:
                    self.close()
                    return

    def close(self) -> None:
        for sock in (self.listener, *self.socks):
            sock.close()
        self.turn = lambda: None  # type: ignore[method-assign]


@pytest.fixture
def between(ends: tuple[End, End]) -> Iterator[Between]:
    with closing(Between(ends[1])) as it:
        yield it


def through(between: Between, a: End, b: End, so: object, patience_s: float = 10) -> None:
    deadline = time.monotonic() + patience_s
    while not so():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{a.seen}, {b.seen}"
        for each in (a, b, between):
            each.turn()


def test_one_who_only_listens_changes_nothing(ends: tuple[End, End], between: Between) -> None:
    a, b = ends
    a.links.dial(replace(b.member, port=between.port))
    through(between, a, b, lambda: LinkUp("b") in a.seen)
    a.links.say("b", Hello(REPORT))
    through(between, a, b, lambda: Heard("a", Hello(REPORT)) in b.seen)
    assert SECRET not in b"".join(between.lines[0] + between.lines[1])


@pytest.mark.parametrize("change", [{"host": "127.0.0.2"}, {"port": 1}, {"node": "c"}, {"job": "x"}], ids=repr)
def test_one_in_between_cannot_change_the_greeting(
    ends: tuple[End, End], between: Between, change: dict[str, object]
) -> None:
    a, b = ends
    between.change = lambda i, line: [json.dumps(json.loads(line) | change).encode() if i == 0 else line]
    a.links.dial(replace(b.member, port=between.port))
    through(between, a, b, lambda: LinkDown("b", refused=False) in a.seen)
    assert b.seen == []
    assert b.links._accepted.links() == []


@pytest.mark.parametrize("attack", ["repeat", "drop", "swap", "change", "cut", "insert"])
def test_one_in_between_cannot_touch_a_message(
    ends: tuple[End, End], between: Between, attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = ends
    a.links.dial(replace(b.member, port=between.port))
    through(between, a, b, lambda: LinkUp("b") in a.seen)
    a.links.say("b", Beat())
    through(between, a, b, lambda: Heard("a", Beat()) in b.seen)
    held: list[bytes] = []

    def change(i: int, line: bytes) -> list[bytes]:
        if i == 1:
            return [line]
        held.append(line)
        first = len(held) == 1
        return {
            "repeat": [line, line],
            "drop": [] if first else [line],
            "swap": [] if first else [line, held[0]],
            "change": [line.replace(b"127.0.0.1", b"127.0.0.2")],
            "cut": [line[:-1]],
            "insert": [b"beat {}", line],
        }[attack]

    between.change = change
    before = len(b.seen)
    for _ in range(2):
        a.links.say("b", Hello(REPORT))
    through(between, a, b, lambda: b.links._accepted.link("a") is None)
    heard = [seen for seen in b.seen[before:] if isinstance(seen, Heard)]
    assert heard == ([Heard("a", Hello(REPORT))] if attack == "repeat" else [])
    assert "a line on it was changed, repeated or left out" in caplog.text
    through(between, a, b, lambda: LinkDown("a", refused=False) in b.seen)  # a is there: only the link is gone
    a.links.hang_up("b")
    connect(a, b)


def test_a_challenge_that_is_sent_back_is_not_answered(ends: tuple[End, End]) -> None:
    """The attacker has recorded a greeting, and would have b answer its own challenge."""
    _, b = ends
    recorded = Dialling(A, "b", NONCES[0]).greeting
    with socket.create_connection(("127.0.0.1", b.links.port)) as sock:
        sock.send(recorded + b"\n")
        sock.setblocking(False)
        answer = received(sock, b)
        with socket.create_connection(("127.0.0.1", b.links.port)) as second:
            # the challenge of the first connection, as the nonce of a second one
            challenge = json.loads(recorded) | {"nonce": json.loads(answer)["nonce"]}
            second.send(json.dumps(challenge).encode() + b"\n")
            second.setblocking(False)
            assert json.loads(received(second, b)) == {"version": PROTOCOL_VERSION, "refused": "other token"}
            until_true(b, so=lambda: closed(second))
        sock.send(json.dumps({"proof": json.loads(answer)["proof"]}).encode() + b"\n")
        until_true(b, so=lambda: closed(sock))
    assert b.links._accepted.links() == []


def test_a_greeting_that_was_recorded_is_taken_once(ends: tuple[End, End], caplog: pytest.LogCaptureFixture) -> None:
    _, b = ends
    recorded = Dialling(A, "b", NONCES[0]).greeting + b"\n"
    with (
        socket.create_connection(("127.0.0.1", b.links.port)) as first,
        socket.create_connection(("127.0.0.1", b.links.port)) as second,
    ):
        for sock in (first, second):
            sock.send(recorded)
            sock.setblocking(False)
            assert "proof" in json.loads(received(sock, b))
        until_true(b, so=lambda: closed(second))
        assert not closed(first)
    assert "its greeting has come before" in caplog.text


@pytest.mark.parametrize(
    "change", [{"proof": ""}, {"proof": "4" * 64}, {"node": "x"}, {"nonce": "3" * 64}, {"to": ""}], ids=repr
)
def test_who_does_not_prove_its_greeting_learns_nothing(change: dict[str, str]) -> None:
    accepting = Accepting(B, NONCES[1])
    greeting = json.loads(Dialling(A, "b", NONCES[0]).greeting) | change
    answer = json.loads(accepting.greeted(json.dumps(greeting).encode(), nobody))
    assert answer == {"version": PROTOCOL_VERSION, "refused": "other token"}
    assert (accepting.waits, accepting.sealing) == (False, None)
    assert accepting.fault == "its token is another one: give every agent the same token_file"


def test_an_answer_is_not_taken_from_who_gives_the_greeting_back(ends: tuple[End, End]) -> None:
    a, b = ends
    with socket.create_server(("127.0.0.1", 0)) as mirror:
        a.links.dial(replace(b.member, port=mirror.getsockname()[1]))
        sock, _ = mirror.accept()
        with sock:
            until_true(a, so=lambda: sock.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT) if ready(sock) else b"")
            line = sock.recv(4096)
            sock.send(line)
            until(a, see=LinkDown("b", refused=False), at=a)


def test_a_stranger_that_takes_the_port_is_not_the_peer(ends: tuple[End, End]) -> None:
    """It may say that it is, but it cannot prove it."""
    a, b = ends
    connect(a, b)
    port = b.links.port
    b.die()
    thief = End("b", secret=ANOTHER)
    impostor = socket.create_server(("127.0.0.1", port))
    impostor.setblocking(False)
    thief.selector.register(
        impostor, selectors.EVENT_READ, lambda _mask: thief.links._accepted.welcome(impostor.accept()[0], "", None)
    )
    until(a, thief, see=LinkDown("b", refused=True), at=a)
    thief.selector.unregister(impostor)
    impostor.close()
    thief.close()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n", b"x" * 5000, b"{}\n", b"\xff\xfe\n"])
def test_another_program_that_takes_the_port_is_not_the_peer(answer: bytes) -> None:
    a, b = End("a"), End("b")
    connect(a, b)
    port = b.links.port
    b.die()
    with socket.create_server(("127.0.0.1", port)) as program:
        program.setblocking(False)
        socks = []

        def gone() -> bool:
            with suppress(BlockingIOError):
                sock, _ = program.accept()
                socks.append(sock)
                sock.send(answer)
            return LinkDown("b", refused=True) in a.seen

        until_true(a, so=gone)
        for sock in socks:
            sock.close()
    a.close()


def test_two_agents_of_one_name(caplog: pytest.LogCaptureFixture) -> None:
    """The second is refused while the first one speaks, and both it and the leader say why."""
    a, first, second = End("a"), End("b"), End("b")
    connect(first, a)
    second.links.dial(a.member)
    until(a, second, see=LinkDown("a", refused=False), at=second)
    assert caplog.text.count("two agents say that they are node 'b': give each its own name") == 2
    first.links.say("a", Beat())
    until(a, first, see=Heard("b", Beat()), at=a)
    a.now = 60.0  # the first one has not been heard of for long: its machine may have been started again
    second.links.dial(a.member)
    until(a, second, see=LinkUp("a"), at=second)
    for end in (a, first, second):
        end.close()


def test_the_newest_link_of_an_agent_replaces_the_one_before(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    before = b.links._accepted.link("a")
    a.seen.clear()
    connect(a, b)
    until_true(a, b, so=lambda: b.links._accepted.link("a") not in (None, before))
    b.links.say("a", Beat())
    until(a, b, see=Heard("b", Beat()), at=a)
    assert b.seen == [], "it is not told of, and the agent is not probed"


def test_nobody_links_to_an_agent_in_its_own_name(ends: tuple[End, End]) -> None:
    a, _ = ends
    a.links.dial(a.member)
    until(a, see=LinkDown("a", refused=False), at=a)
    assert a.links._accepted.links() == []


def received(sock: socket.socket, end: End) -> bytes:
    data = b""
    deadline = time.monotonic() + 10
    while not data.endswith(b"\n"):
        assert time.monotonic() < deadline
        end.turn()
        with suppress(BlockingIOError):
            data += sock.recv(4096)
    return data


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def ready(sock: socket.socket) -> bool:
    sock.setblocking(False)
    with suppress(BlockingIOError):
        return bool(sock.recv(1, socket.MSG_PEEK))
    return False
