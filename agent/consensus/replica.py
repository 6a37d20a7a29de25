"""The record, kept by the agents: how its members agree on the next one.

Each version of the record is agreed on by the members of the one before, each time anew, by single-decree Paxos
(Lamport, "Paxos Made Simple", 2001; that a record names the voters for the next is his reconfiguration, with a window
of one):

    leader → voters    Prepare(ballot)
    voter  → leader    Promise(what it accepted last)
    leader → voters    Accept(ballot, what the next record differs in)
    voter  → leader    Accepted
    leader → everybody Decided

The first two are left out by the record's first member, in its first ballot, and by voters that have promised with
their Hello, when they began to follow that leader.

A record is decided once every member has accepted it, but for those known to have ended, and for silent ones if a
quorum has accepted it (`softrun.agent.consensus.quorum`). So each member in touch has each record: if all others die,
it knows what was agreed on. A proposal is made only if it can be decided as far as its maker knows; else it waits, and
the engine proposes again.

That a member has ended is known by its last words, which say what it had promised and accepted: it has answered Prepare
for good, and votes no more. So it need not be counted, and the living are enough if only such members are missing.

The voters are the members, and the witness if the record has one (`softrun.agent.consensus.witness`). It is asked with
the others, and waited for only if they are too few without it: a slow or dead witness delays nothing.

Nothing is written to a disk: an agent that ends never returns under its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf
from operator import attrgetter, itemgetter

from softrun.agent.consensus.change import changed, difference, last_words
from softrun.agent.consensus.descent import IN_RECORD, Ancestry, Kin, kin_of, names_before
from softrun.agent.consensus.quorum import is_majority, is_quorum
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import (
    Accept,
    Accepted,
    Agreement,
    Ballot,
    Decided,
    Hello,
    LastWords,
    Prepare,
    Promise,
    Record,
    RecordId,
    Refused,
    Round,
    Witnessed,
    lineage,
)

NO_BALLOT: Ballot = (-1, "")
MOST_AHEAD = 1_000_000
"""How far a ballot may be ahead of what an agent has promised: each is a try for one record. Who names one beyond that
forges it, so that no agent could name a higher one."""


@dataclass(frozen=True)
class Peers:
    """What an agent knows of the others."""

    gone: Callable[[str], bool]
    """Whether the process of a node has certainly ended."""
    silent: Callable[[str], bool]
    """Whether a node is taken for dead because it was not heard, or because its host refuses. Of the witness: whether
    its vote cannot be had."""
    missed: Callable[[str], bool]
    """Whether a node is taken for dead because it was not heard, whatever its host says."""
    stands: Callable[[], bool]
    """Whether this agent is sure that its record is the newest, or follows one that is."""
    worked_s: Callable[[Round], float] = attrgetter("worked_s")
    """For how many seconds the job of this record has had a world by now."""
    now: Callable[[], float] = lambda: 0.0
    """The engine's time, in seconds."""


@dataclass
class _Attempt:
    """A ballot of this agent's that is under way."""

    ballot: Ballot
    wish: Round  # what it would ask for, or does
    missing: dict[str, None]  # the voters that have not answered what was asked last
    answered: set[str] = field(default_factory=set)
    bound: tuple[Ballot, Round] | None = None  # what the highest ballot has accepted, of those that have promised
    accept: Accept | None = None  # once it is asked for

    def hear(self, node: str) -> None:
        """Note that a voter has answered."""
        self.missing.pop(node, None)
        self.answered.add(node)

    def bind(self, accepted_in: Ballot, accepted: Round) -> None:
        """Note that a voter had accepted something: if it was decided, it is what has to be asked for."""
        if self.bound is None or accepted_in > self.bound[0]:
            self.bound = accepted_in, accepted


class Replica:
    """One agent's copy of the record, its vote on the next one, and its own proposal for it."""

    def __init__(self, node: str, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self.record: Round | None = None
        self._before: Round | None = None  # the one that it knew before this record
        self._left: list[Round] = []  # the last record of each other job that was this one
        self._ancestry = Ancestry()
        self._named = 0  # how many records it has given a name
        self._promised = NO_BALLOT
        self._accepted_in = NO_BALLOT
        self._accepted: Round | None = None
        self._accepted_at = -inf
        self._attempt: _Attempt | None = None
        self._last_words: dict[str, LastWords] = {}  # of members that have ended
        self._votes_left: dict[str, tuple[Ballot, Round]] = {}  # what they had accepted as the next record
        self._promises_left = NO_BALLOT  # the highest ballot that one of them had promised
        self._own_words = LastWords()
        self._words_are_of: tuple[Round | None, Round | None, Ballot, Ballot] = None, None, NO_BALLOT, NO_BALLOT
        self._promised_ahead: dict[str, Ballot] = {}  # to this agent, by voters that were not asked
        self._news: Round | None = None
        self.since = -inf
        """When this agent accepted the record; -inf: it was told of it."""
        self.accepted_by_all = False
        """Whether the record is its own proposal, and has been accepted by all of its members that had a vote."""
        self.short = False
        """Whether a proposal waits because too few members of the record are in touch."""
        self.dropped = False
        """Whether its last proposal has come to nothing: nobody was ever asked to accept it."""

    def left_behind_at(self, node: str) -> float | None:
        """When this agent accepted a next record that takes `node` for dead; None: it has accepted none."""
        return self._accepted_at if self._accepted is not None and node in self._accepted.lost else None

    @property
    def missing(self) -> Collection[str]:
        """The voters whose answer to its own proposal is missing."""
        return self._attempt.missing if self._attempt is not None else ()

    @property
    def last_words(self) -> LastWords:
        """What this agent would have others know if it ended now: the same object as long as it is the same."""
        record, accepted, *ballots = self._words_are_of
        same_votes = accepted is self._accepted and ballots == [self._accepted_in, self._promised]
        if record is not self.record or not same_votes:
            self._words_are_of = self.record, self._accepted, self._accepted_in, self._promised
            self._own_words = self._last_words_after(self._before)
        return self._own_words

    @property
    def last_words_in_full(self) -> LastWords:
        """The same for those that have neither its record nor the one before."""
        return self._last_words_after(None)

    def _last_words_after(self, before: Round | None) -> LastWords:
        promised = max(self._promised, self._accepted_in)
        some = promised if promised != NO_BALLOT else None
        return last_words(before, self.record, some, self._accepted_in, self._accepted)

    def take(self) -> Round | None:
        """Return the record if it has changed since the last call."""
        news, self._news = self._news, None
        return news

    # --- proposing

    def falls_short(self) -> bool:
        """Return whether too few voters of the record are in touch to decide on anything, which `short` says then."""
        voters = self._voters(self.record) if self.record is not None and self._votes(self._node) else {}
        out = {node: None for node in voters if self._is_out(node)}
        self.short = bool(voters) and not self._suffices(voters.keys() - out.keys(), out)
        return self.short

    def begin(self, round_: Round) -> list[Effect]:
        """Make `round_` the first record of a job of this agent's own, in which nobody else has a say yet.

        Only for an agent that has no vote: there was no job, or all members of the last record are gone.
        """
        if self._votes(self._node):
            raise AssertionError("a member may not begin anew beside the others")
        version = self.record.version + 1 if self.record is not None else 1
        if round_.version != version:
            return []  # made from an older record
        while (name := lineage(self._node, version)) in {left.lineage for left in self._left}:
            version += 1  # it has begun anew at this one before, and a name is one job's
        first = replace(round_, version=version, lineage=name, witness="", split_from="")
        first = replace(first, name=self._new_name(), past=(), by_proof=())
        self.read(first)
        return [do.Say(None, Record(first, stands=True))]

    def propose(self, round_: Round) -> list[Effect]:
        """Try to make `round_` the next record. Returns the effects; `take` has the record that is decided, if any.

        Nothing comes of one that was made from another record than the newest, or by an agent that has no vote.
        """
        record = self.record
        if record is None or not self._votes(self._node):
            return []
        if (round_.version, round_.name) != (record.version + 1, record.name):
            return []  # made from an older record
        if self.falls_short():
            return []
        if self._attempt is not None and self._attempt.accept is not None:
            return []  # some may have accepted it, so it comes to its end first
        ahead = max((number for number, _ in self._promised_ahead.values()), default=0)
        if record.members[0].node == self._node and self._promised == self._promises_left == NO_BALLOT and not ahead:
            self._attempt = self._new_attempt(0, round_)
            return self._ask_to_accept(self._attempt, round_)
        if self._attempt is not None and self._attempt.ballot == self._promised:
            self._attempt.wish = round_
            return []
        number = max(ahead, self._promised[0] + 1, 1)
        if (number, self._node) < self._promises_left:
            number = self._promises_left[0] + 1
        self._attempt = self._new_attempt(number, round_)
        prepare = Prepare(self._attempt.ballot, record.id)
        self._promised = prepare.ballot
        if self._accepted is not None:
            self._attempt.bind(self._accepted_in, self._accepted)
        self._attempt.hear(self._node)
        for node, ballot in self._promised_ahead.items():
            self._take_promise(node, ballot)
        return [*self._ask_the_others(record, prepare, self._attempt), *self.advance()]

    def _ask_the_others(self, record: Round, prepare: Prepare, attempt: _Attempt) -> list[Effect]:
        """Return the effects that ask those that have not promised yet, if they are needed."""
        if len(attempt.answered) == 1:
            return _say(record, prepare)
        if self._suffices(attempt.answered, attempt.missing):
            return []
        return [do.Say(node, prepare) for node in attempt.missing]

    def advance(self) -> list[Effect]:
        """Go on with this agent's own proposal if that is possible now. Call it after every observation."""
        attempt = self._attempt
        if attempt is not None and attempt.accept is None and attempt.ballot < self._promised:
            self._drop()  # it may not vote for its own lower ballot any more
            attempt = None
        if self.record is None or attempt is None or not self._suffices(attempt.answered, attempt.missing):
            return []
        if attempt.accept is None:
            for accepted_in, accepted in self._votes_left.values():
                attempt.bind(accepted_in, accepted)
            return self._ask_to_accept(attempt, attempt.bound[1] if attempt.bound is not None else attempt.wish)
        decided = Decided(attempt.ballot, attempt.accept.after, by_proof=not is_quorum(self.record, attempt.answered))
        effects = _say(self.record, decided)
        by_all = all(node in attempt.answered for node in attempt.wish.voters if self.record.votes(node))
        self._adopt(_decided(attempt.wish, by_proof=decided.by_proof), self._accepted_at, accepted_by_all=by_all)
        return effects

    def _new_attempt(self, number: int, wish: Round) -> _Attempt:
        if self.record is None:
            raise AssertionError("a ballot without voters")
        self.dropped = False
        return _Attempt((number, self._node), wish, self._voters(self.record))

    def _drop(self) -> None:
        """Give up its attempt. The engine proposes again after a while."""
        if self._attempt is not None:
            self.dropped = self._accepted is None  # it accepts itself what it asks others to accept
        self._attempt = None

    def _ask_to_accept(self, attempt: _Attempt, round_: Round) -> list[Effect]:
        if self.record is None:
            raise AssertionError("a ballot without voters")
        if round_ is attempt.wish:
            round_ = self._christened(round_, self.record)
        attempt.wish = round_
        attempt.accept = Accept(attempt.ballot, difference(self.record, round_), self.record.id)
        attempt.missing = self._voters(self.record)
        attempt.answered.clear()
        self._vote(attempt.ballot, round_)
        attempt.hear(self._node)
        return [*_say(self.record, attempt.accept), *self.advance()]

    def _christened(self, wish: Round, record: Round) -> Round:
        """Return a record of its own making, with a name and those of the records before it."""
        return replace(wish, name=self._new_name(), past=names_before(record), by_proof=record.by_proof)

    def _new_name(self) -> str:
        self._named += 1
        return blake2b(f"{self._node} {self._named}".encode(), digest_size=8).hexdigest()

    # --- promises that nobody asked for

    def promise_ahead(self, node: str) -> Ballot | None:
        """Promise the next ballot of `node`, which this agent follows from now on. None: it has to ask, or need not."""
        record = self.record
        if record is None or self._accepted is not None or not (self._votes(self._node) and self._votes(node)):
            return None
        if self._promised == NO_BALLOT and record.members[0].node == node:
            return None
        if self._promised[1] != node:
            self._promised = (max(self._promised[0], 0) + 1, node)
        return self._promised

    def _promised_by(self, node: str, hello: Hello) -> None:
        record = self.record
        if record is None or hello.known.name != record.name:
            return
        if hello.promises is None or self._is_beyond(hello.promises):
            return
        if hello.promises[1] == self._node and self._votes(node):
            self._promised_ahead[node] = hello.promises
            self._take_promise(node, hello.promises)

    def _take_promise(self, node: str, ballot: Ballot) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.accept is None and attempt.ballot == ballot:
            attempt.hear(node)

    # --- what others say

    def hear(self, node: str, message: Agreement) -> list[Effect]:
        """Take in a message from `node`. Returns what to answer."""
        record = self.record
        if record is None:
            return []
        if message.after.name != record.name:
            return self._asked_about_another(node, message, record)
        if self._is_beyond(message.promised if isinstance(message, Refused) else message.ballot):
            return []
        match message:
            case Accept(ballot, change):
                round_ = changed(record, change)
                return self._asked_to_accept(node, ballot, round_) if round_ is not None else []
            case Prepare(ballot) if self._votes(self._node):
                if ballot < self._promised:
                    return [do.Say(node, Refused(self._promised, record.id))]
                self._promised = ballot
                return [do.Say(node, self._promise(message))]
            case Promise(ballot) if (attempt := self._under_way(ballot)) and not attempt.accept:
                self._promised_with(node, message, attempt, record)
            case Accepted(ballot) if (attempt := self._under_way(ballot)) and attempt.accept:
                attempt.hear(node)
            case Refused(promised):
                self._promised = max(self._promised, promised)
                if self._attempt is not None and promised > self._attempt.ballot:
                    self._drop()
            case Decided(ballot, _, by_proof) if self._accepted is not None and self._accepted_in == ballot:
                self._adopt(_decided(self._accepted, by_proof=by_proof), self._accepted_at)
            case _:
                pass  # of another ballot
        return []

    def _promised_with(self, node: str, promise: Promise, attempt: _Attempt, record: Round) -> None:
        if promise.accepted_in is not None and promise.accepted is not None:
            accepted = changed(record, promise.accepted)
            if accepted is None:
                return
            attempt.bind(promise.accepted_in, accepted)
        attempt.hear(node)

    def _asked_about_another(self, node: str, message: Agreement, record: Round) -> list[Effect]:
        """Show the record to who asks about an older one: the next was decided without its knowing."""
        match message:
            case Prepare() if self.knows(message.after):
                return self.show(node)
            case Accept(change=change) if change.round.name != record.name and self.knows(message.after):
                return self.show(node)
            case _:
                return []

    def is_behind(self, message: Agreement | Hello) -> bool:
        """Whether the sender of a message that was heard knows a record that this agent does not."""
        known = message.known if isinstance(message, Hello) else message.after
        if self.record is None:
            return isinstance(message, Accept | Decided | Prepare) and known.version > 0
        match message:
            case Hello() | Accept() | Prepare():
                return self._ancestry.kin(known) is Kin.NEWER
            case Decided():  # what comes after that
                return self._ancestry.kin(known) in (Kin.NEWER, Kin.SAME)
            case _:
                return False

    def greet(self, node: str, hello: Hello | Witnessed) -> list[Effect]:
        """Return what a node that has said what it knows lacks: the record, or what it is to vote on."""
        record = self.record
        if record is None:
            return []
        if isinstance(hello, Hello):
            self._promised_by(node, hello)
        known = self._ancestry.kin(hello.known)
        effects: list[Effect] = []
        if known not in (Kin.SAME, Kin.NEWER):
            effects.append(self._show(node, record, apart_from=hello.known.name if known is Kin.SPLIT else ""))
        if self._attempt is not None and known in (Kin.SAME, Kin.OLDER) and node not in self._attempt.answered:
            effects.append(do.Say(node, self._attempt.accept or Prepare(self._attempt.ballot, record.id)))
        return effects

    def compare(self, node: str, round_: Round) -> list[Effect] | None:
        """Return what to answer `node`, which knows this record; None if this agent is to make something of it."""
        for last in (self.record, *self._left):
            own = last is self.record
            match self.kin(round_) if own else kin_of(last, round_) if last is not None else Kin.OTHER:
                case Kin.NEWER:
                    return None
                case Kin.OLDER if last is not None:
                    return [self._show(node, last)]
                case Kin.SAME if last is not None:
                    # It may come back to a job that it has left, but not to vote anew: it no longer knows what it has
                    # promised.
                    return None if not own and not _votes_in(last, self._node) else []
                case _:
                    pass
        return None

    def kin(self, round_: Round) -> Kin:
        """Return what another record is to this agent's."""
        return self._ancestry.kin(round_.id, round_.past)

    def knows(self, other: RecordId) -> bool:
        """Return whether that is this agent's record, or one before it."""
        return other.version > 0 and self._ancestry.kin(other) in (Kin.SAME, Kin.OLDER)

    def show(self, node: str | None, over: str = "", apart_from: str = "") -> list[Effect]:
        """Return the effect that shows the record to `node`; None: to all that have dialled. The rest: see `Record`."""
        return [self._show(node, self.record, over, apart_from)] if self.record is not None else []

    def _show(self, node: str | None, round_: Round, over: str = "", apart_from: str = "") -> Effect:
        stands = round_ is self.record and self._peers.stands()
        return do.Say(node, Record(round_, stands, self._peers.worked_s(round_), over, apart_from))

    def read(self, round_: Round) -> None:
        """Take in a record that was decided, whatever its version."""
        left = [each for each in (self.record, *self._left) if each is not None]
        self._left = [each for each in left if kin_of(each, round_) in (Kin.OTHER, Kin.SPLIT)]
        self._adopt(round_)

    def bury(self, node: str, words: LastWords) -> bool:
        """Take in what `node` knew when it ended. Returns whether that is clear: else it has to be asked in full."""
        theirs = None
        if words.round is not None and self._knows_less_than(words.round.round):
            before = next((own for own in (self.record, self._before) if own and own.name == words.before.name), None)
            theirs = changed(before, words.round) if before is not None or not words.before.version else None
            if theirs is None:
                return False
        self._last_words[node] = words
        if theirs is not None:
            self.read(theirs)
            return True
        is_clear = self._take_vote_left(node)
        self._heed_votes_left()
        return is_clear

    def _knows_less_than(self, round_: Round) -> bool:
        return self.record is not None and kin_of(self.record, round_) is Kin.NEWER

    def _take_vote_left(self, node: str) -> bool:
        """A member that has ended may have voted on what follows this record. Returns whether it is clear for what."""
        words, record = self._last_words[node], self.record
        if record is None or words.round is None or words.round.round.name != record.name:
            return True
        if not record.votes(node):
            return True
        if words.promised is not None and self._is_beyond(words.promised):
            del self._last_words[node]
            return True
        self._promises_left = max(self._promises_left, words.promised or NO_BALLOT)
        if words.accepted_in is None or words.accepted is None:
            return True
        accepted = changed(record, words.accepted)
        if accepted is None:
            del self._last_words[node]
        else:
            self._votes_left[node] = words.accepted_in, accepted
        return accepted is not None

    def _heed_votes_left(self) -> None:
        """A ballot that a member that has ended had promised is one that this agent's own may not be below."""
        record = self.record
        if record is None:
            return
        if self._attempt is not None and self._attempt.ballot < self._promises_left:
            self._drop()
        if self._votes_left and not self._votes(self._node) and all(map(self._is_buried, record.voters)):
            _, accepted = max(self._votes_left.values(), key=itemgetter(0))
            self.read(_decided(accepted, by_proof=True))  # nobody else can decide on anything else any more

    def _is_buried(self, node: str) -> bool:
        """Whether it is known what `node` had accepted when it ended: at the most what its last words say."""
        words, record = self._last_words.get(node), self.record
        if words is None or record is None:
            return False
        return words.round is None or kin_of(record, words.round.round) in (Kin.SAME, Kin.OLDER)

    # --- helpers

    def _adopt(self, round_: Round, since: float = -inf, *, accepted_by_all: bool = False) -> None:
        self._before, self.record = self.record, round_
        self._news = round_
        self._ancestry.adopt(round_)
        self.since, self.accepted_by_all = since, accepted_by_all
        self._begin_version()

    def _begin_version(self) -> None:
        self._promised = self._accepted_in = NO_BALLOT
        self._accepted = self._attempt = None
        self._promised_ahead.clear()
        self.short = self.dropped = False
        members = self.record.by_node if self.record is not None else {}
        self._last_words = {node: words for node, words in self._last_words.items() if node in members}
        self._votes_left, self._promises_left = {}, NO_BALLOT
        for node in [*self._last_words]:
            self._take_vote_left(node)
        self._heed_votes_left()

    def _is_beyond(self, ballot: Ballot) -> bool:
        return ballot[0] > self._promised[0] + MOST_AHEAD

    def _voters(self, record: Round) -> dict[str, None]:
        """The voters in rank order, then those that will not answer: so the first shows who is waited for. At the end
        the witness."""
        voters = dict.fromkeys(sorted(record.voters, key=self._is_out))
        return voters | {record.witness: None} if record.witness else voters

    def _votes(self, node: str) -> bool:
        return self.record is not None and _votes_in(self.record, node)

    def _is_out(self, node: str) -> bool:
        if node == self._node:
            return False
        return self._is_buried(node) or self._peers.gone(node) or self._peers.silent(node)

    def _suffices(self, present: Collection[str], missing: dict[str, None]) -> bool:
        """Whether the voters that are `present` may decide without those that are `missing`."""
        record = self.record
        if record is None:
            raise AssertionError("a ballot without voters")
        first = next(iter(missing), record.witness)
        if first != record.witness and not self._is_out(first):
            return False  # the usual case, for each answer of thousands
        members = [node for node in missing if node != record.witness]
        if not all(self._is_out(node) for node in members):
            return False
        ended = {node for node in self._last_words if self._is_buried(node)}
        if is_majority(record, present) or is_majority(record, present, ended):
            return True
        # What is refused proves so little that half of them wait as they do for silent ones.
        if not all(node in ended or self._peers.missed(node) for node in members):
            return False
        return is_quorum(record, present) or is_quorum(record, present, ended)

    def _under_way(self, ballot: Ballot) -> _Attempt | None:
        return self._attempt if self._attempt is not None and self._attempt.ballot == ballot else None

    def _asked_to_accept(self, node: str, ballot: Ballot, round_: Round) -> list[Effect]:
        if self.record is None:
            raise AssertionError("a ballot without voters")
        if not self._votes(self._node):
            self._accept(ballot, round_)  # until it is decided
            return []
        if ballot < self._promised:
            return [do.Say(node, Refused(self._promised, self.record.id))]
        self._vote(ballot, round_)
        return [do.Say(node, Accepted(ballot, self.record.id))]

    def _vote(self, ballot: Ballot, round_: Round) -> None:
        self._promised = ballot
        self._accept(ballot, round_)

    def _accept(self, ballot: Ballot, round_: Round) -> None:
        self._accepted_in, self._accepted, self._accepted_at = ballot, round_, self._peers.now()

    def _promise(self, prepare: Prepare) -> Promise:
        if self._accepted is None or self.record is None:
            return Promise(prepare.ballot, after=prepare.after)
        return Promise(prepare.ballot, self._accepted_in, difference(self.record, self._accepted), prepare.after)


def _say(record: Round, message: Agreement) -> list[Effect]:
    """Say something to all voters of `record`, and to whoever else has dialled: the leader has dialled the witness."""
    effects: list[Effect] = [do.Say(None, message)]
    return [*effects, do.Say(record.witness, message)] if record.witness else effects


def _decided(round_: Round, *, by_proof: bool) -> Round:
    """Return the record as it is once it is decided. `by_proof`: by less than a quorum, as all others have ended."""
    if not by_proof:
        return round_
    return replace(round_, by_proof=(*round_.by_proof[-IN_RECORD + 1 :], (round_.version, round_.name)))


def _votes_in(record: Round, node: str) -> bool:
    return record.votes(node) or (node != "" and node == record.witness)
