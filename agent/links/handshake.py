"""The handshake of a link: two agents of one job get to know each other. Pure: the shells send and receive the lines.

    dialler  → {"version", "job", "node", "to", "host", "port", "probe", "known", "nonce", "proof"}
    acceptor → {"version", "node", "nonce", "proof"}     with "host" and "port" if "to" is empty
    dialler  → {"proof"}

`host` and `port` are of the sender's listener. An empty `to` means any agent of the job, and `probe` that the dialler
only asks whether the agent still lives: `known` are the names of the records that it knows, as what has ended need tell
it no more than it lacks. A nonce is new random bytes, and a proof the HMAC-SHA256, under the job secret,
of a label and all of the above: so nobody can use the second or the third again, in the other direction, or for another
greeting. The first keeps nobody out who has recorded a greeting, and costs all others their turn: an acceptor that
finds it wrong says nothing of itself and does not wait.

Without a secret there are no nonces, no proofs and no third line. An acceptor that refuses then says why: "refused".
With a secret it keeps that from who has not proved anything: its proof is made under another label, which only who has
the secret can tell from the right one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from softrun.agent.errors import ProtocolError, UsageError
from softrun.agent.links.greetings import Answer, Greeting, Proof, Verdict, line_of, read, transcript
from softrun.agent.links.sealing import Sealing
from softrun.agent.proof import proofs
from softrun.agent.protocol.codec import PROTOCOL_VERSION

REMEDY = "give every agent the same token_file"
ANOTHER_PROGRAM = "another program, or another release of softrun"
ANOTHER_RELEASE = "an agent of another release of softrun"
ANOTHER_JOB = "an agent of another job"
ANOTHER_NODE = "an agent of another node"
ANOTHER_TOKEN = "an agent with another token"
NO_TOKEN = "an agent without a token"
A_TOKEN = "an agent with a token"
AN_END = "what an agent that has ended left behind"
NAMESAKE = "an agent that already knows another one by this node's name"
MAYBE_OURS = frozenset((ANOTHER_RELEASE, ANOTHER_TOKEN, NO_TOKEN, A_TOKEN, NAMESAKE))
"""The strangers that may be agents of this job all the same."""


class RefusedError(ProtocolError):
    """The other end is not who was wanted. `stranger` says in a few words what it is; send `reply` before you close."""

    def __init__(self, reason: str, stranger: str, reply: bytes = b"") -> None:
        super().__init__(reason)
        self.stranger = stranger
        self.reply = reply


class EndedError(RefusedError):
    """The wanted agent has ended: what outlives it on its host answers. Its last words are the next line, once `reply`
    is sent."""

    def __init__(self, node: str, reply: bytes, sealing: Sealing | None) -> None:
        super().__init__(f"the agent of {_short(node)} has ended", AN_END, reply)
        self.node = node
        self.sealing = sealing


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this agent is. `host` and `port` are of its listener."""

    job: str
    node: str
    host: str
    port: int
    secret: bytes | None

    def check(self) -> None:
        """Raise UsageError unless this can be said in a greeting."""
        try:
            line_of(Greeting(job=self.job, node=self.node, to="", host=self.host, port=self.port))
        except ValueError as error:
            what = ", ".join(str(fault["loc"][0]) for fault in getattr(error, "errors", list)()) or "name"
            raise UsageError(
                f"other agents cannot be told the {what} of this one ({_short(self.job)}, "
                f"{_short(self.node)}, {_short(self.host)}): choose a shorter one, of characters that can be printed"
            ) from error


@dataclass(frozen=True, slots=True)
class Met:
    """The dialler's view of a handshake that went well. Send `reply`, if there is one, before any message."""

    node: str
    address: tuple[str, int]  # of the acceptor's listener, if any agent was asked for
    reply: bytes
    sealing: Sealing | None


class Dialling:
    """The dialler's end: send `greeting`, and give `answered` the first line that arrives."""

    def __init__(self, identity: Identity, to: str, nonce: str, probe: bool = False, known: str = "") -> None:
        self._identity = identity
        self._greeting = Greeting.model_construct(  # the other end checks it
            version=PROTOCOL_VERSION,
            job=identity.job,
            node=identity.node,
            to=to,
            host=identity.host,
            port=identity.port,
            probe=probe,
            known=known,
            nonce=nonce if identity.secret is not None else "",
        )
        if identity.secret is not None:
            proof = proofs.of_greeting(identity.secret, self._greeting.model_dump())
            self._greeting = self._greeting.model_copy(update={"proof": proof})

    @property
    def greeting(self) -> bytes:
        """The first line."""
        return line_of(self._greeting)

    def is_alive(self, line: bytes) -> bool:
        """Whether the answer to a probe is the wanted node's, of whatever release. Anything else is somebody else.

        Raises EndedError if it proves that the wanted agent has ended.
        """
        try:
            return self.answered(line).node == self._greeting.to
        except EndedError:
            raise
        except ProtocolError:
            pass
        if self._identity.secret is not None:
            return False
        try:
            return read(Answer, line).node == self._greeting.to
        except ProtocolError:
            return False

    def answered(self, line: bytes) -> Met:
        """Read the answer. Raises RefusedError if it is not that of the wanted agent: EndedError if that has ended."""
        greeting, secret = self._greeting, self._identity.secret
        try:
            answer = read(Answer, line)
        except ProtocolError as error:
            raise RefusedError(str(error), ANOTHER_PROGRAM) from error
        if not answer.version:
            raise RefusedError(f"not an answer: {line[:80]!r}", ANOTHER_PROGRAM)
        if answer.version != PROTOCOL_VERSION:
            raise RefusedError(_other_version(answer.version), ANOTHER_RELEASE)
        if answer.refused == Verdict.OTHER_TOKEN.value:
            raise _other_token()
        if answer.refused == Verdict.TOKEN.value or (secret is not None and not (answer.proof and answer.nonce)):
            raise _token_refused(secret is not None)
        reply, sealing, verdict = b"", None, Verdict.WELCOME
        if secret is None:
            verdict = _verdict(answer.refused)
        else:
            said = transcript(greeting, answer)
            reply = line_of(Proof(proof=proofs.of_dialler(secret, said)))
            verdict = _proved(secret, said, answer.proof)
            sealing = _sealing(secret, said, dials=True)
        if verdict not in (Verdict.WELCOME, Verdict.ENDED):
            raise self._refused(verdict, reply)
        if answer.node == "" or greeting.to not in ("", answer.node):
            raise RefusedError(f"somebody else answered: {_short(answer.node)}", ANOTHER_NODE)
        if verdict is Verdict.ENDED:
            raise EndedError(answer.node, reply, sealing)
        if greeting.to == "" and not (answer.host and answer.port):
            raise RefusedError("it does not say where it listens", ANOTHER_PROGRAM)
        return Met(answer.node, (answer.host, answer.port), reply, sealing)

    def _refused(self, verdict: Verdict, reply: bytes) -> RefusedError:
        match verdict:
            case Verdict.OTHER_JOB:
                return RefusedError(f"it belongs to another job than {_short(self._identity.job)}", ANOTHER_JOB, reply)
            case Verdict.NAMESAKE:
                return RefusedError(_two_agents(self._identity.node), NAMESAKE, reply)
            case _:
                return RefusedError("somebody else answered", ANOTHER_NODE, reply)


class Accepting:
    """The acceptor's end: give `greeted` the first line, send what it returns, and then obey the attributes.

    With a `fault`, close the connection, after the proof if `waits` is true. If `waits`, give the next line to
    `proved`. Otherwise the handshake is done.
    """

    def __init__(self, identity: Identity, nonce: str) -> None:
        self._identity = identity
        self._nonce = nonce
        self._said = b""
        self.greeting: Greeting | None = None
        self.fault = ""
        self.waits = False
        self.sealing: Sealing | None = None

    def greeted(self, line: bytes, is_namesake: Callable[[Greeting], bool]) -> bytes:
        """Read the greeting; returns the answer. `is_namesake`: whether another agent has the dialler's name.

        Raises ProtocolError if it is not a greeting.
        """
        identity = self._identity
        greeting = self.greeting = read(Greeting, line)
        if greeting.version != PROTOCOL_VERSION:
            if not greeting.probe:
                self.fault = _other_version(greeting.version)
            return line_of(Answer(version=PROTOCOL_VERSION, node=identity.node if greeting.to == identity.node else ""))
        if (identity.secret is None) != (greeting.nonce == ""):
            self.fault = str(_token_refused(identity.secret is not None))
            return line_of(Answer(version=PROTOCOL_VERSION, refused=Verdict.TOKEN.value))
        if identity.secret is not None and not _proves_itself(greeting, identity.secret):
            self.fault = str(_other_token())
            return line_of(Answer(version=PROTOCOL_VERSION, refused=Verdict.OTHER_TOKEN.value))
        verdict, self.fault = self._judge(greeting, is_namesake)
        host, port = (identity.host, identity.port) if greeting.to == "" else ("", 0)
        if identity.secret is None:
            known = verdict is not Verdict.OTHER_JOB
            return line_of(
                Answer(
                    version=PROTOCOL_VERSION,
                    node=identity.node if known else "",
                    host=host if known else "",
                    port=port if known else 0,
                    refused=verdict.value,
                )
            )
        answer = Answer(version=PROTOCOL_VERSION, node=identity.node, host=host, port=port, nonce=self._nonce)
        self._said = transcript(greeting, answer)
        self.waits = not greeting.probe
        proof = proofs.of_acceptor(identity.secret, verdict.name, self._said)
        return line_of(answer.model_copy(update={"proof": proof}))

    def proved(self, line: bytes) -> None:
        """Read the dialler's proof. Raises ProtocolError if it proves nothing, or if the greeting had a fault."""
        secret = self._identity.secret
        assert secret is not None, "nobody waits for a proof without a secret"
        if not proofs.same(read(Proof, line).proof, proofs.of_dialler(secret, self._said)):
            raise _other_token()
        if self.fault:
            raise ProtocolError(self.fault)
        self.sealing = _sealing(secret, self._said, dials=False)
        self.waits = False

    def _judge(self, greeting: Greeting, is_namesake: Callable[[Greeting], bool]) -> tuple[Verdict, str]:
        identity = self._identity
        if greeting.job != identity.job:
            return Verdict.OTHER_JOB, f"it belongs to job {_short(greeting.job)}, this agent to {_short(identity.job)}"
        if greeting.to not in ("", identity.node):
            return Verdict.OTHER_NODE, f"it wants {_short(greeting.to)}, this is {_short(identity.node)}"
        itself = greeting.to == "" and (greeting.host, greeting.port) == (identity.host, identity.port)
        if greeting.node == identity.node:
            return (Verdict.WELCOME, "") if itself else (Verdict.NAMESAKE, _two_agents(identity.node))
        if not greeting.probe and is_namesake(greeting):
            return Verdict.NAMESAKE, _two_agents(greeting.node)
        return Verdict.WELCOME, ""


def _proved(secret: bytes, said: bytes, proof: str) -> Verdict:
    """What the acceptor's proof says. Raises RefusedError if it proves nothing."""
    for verdict in Verdict:
        if proofs.same(proof, proofs.of_acceptor(secret, verdict.name, said)):
            return verdict
    raise _other_token()


def _proves_itself(greeting: Greeting, secret: bytes) -> bool:
    return proofs.same(greeting.proof, proofs.of_greeting(secret, greeting.model_dump()))


def _sealing(secret: bytes, said: bytes, dials: bool) -> Sealing:
    keys = [proofs.key_of_lines(secret, end, said) for end in ("dialler", "acceptor")]
    return Sealing(*(keys if dials else reversed(keys)))


def _verdict(refused: str) -> Verdict:
    try:
        return Verdict(refused)
    except ValueError:
        return Verdict.OTHER_NODE


def _other_token() -> RefusedError:
    return RefusedError(f"its token is another one: {REMEDY}", ANOTHER_TOKEN)


def _token_refused(is_mine: bool) -> RefusedError:
    if is_mine:
        return RefusedError(f"it has no token, and this agent has one: {REMEDY}", NO_TOKEN)
    return RefusedError(f"it has a token, and this agent has none: {REMEDY}", A_TOKEN)


def _other_version(version: int) -> str:
    return (
        f"it speaks protocol version {version}, this agent {PROTOCOL_VERSION}: install the same release of softrun on "
        "every node"
    )


def _two_agents(node: str) -> str:
    return f"two agents say that they are node {_short(node)}: give each its own name"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
