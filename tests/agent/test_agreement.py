"""Replicas that lose messages, take each other for dead and die never decide two records for one version, with
witnesses or without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from values import member, of_job, opened, ready, words_of

from simulation.mutants import those
from simulation.mutants.mutant import Mutant
from softrun.agent.consensus import witness
from softrun.agent.consensus.change import difference
from softrun.agent.consensus.replica import Peers, Replica
from softrun.agent.consensus.witness import Witness
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect, Note, Say
from softrun.agent.protocol.model import (
    Accept,
    Ballot,
    Hello,
    LastWords,
    Message,
    Prepare,
    Record,
    Refused,
    Round,
    Witnessed,
)
from softrun.runtime.bounds import LARGEST

NODES = "abcde"
WITNESSES = "wxy"


class Node:
    """A replica, and what its agent believes of the others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone: set[str] = set()
        self.silent: set[str] = set()
        self.doubted = False  # another has taken it for dead, so no lease of its own stands any more
        self.alive = True
        peers = Peers(
            gone=self.gone.__contains__,
            silent=self.silent.__contains__,
            missed=self.silent.__contains__,
            stands=lambda: not self.doubted,
        )
        self.replica = Replica(name, peers)

    @property
    def votes(self) -> bool:
        record = self.replica.record
        return record is not None and any(m.node == self.name for m in record.members)

    @property
    def record(self) -> Round:
        assert self.replica.record is not None
        return self.replica.record

    def news(self) -> Round | None:
        return self.replica.take()

    def goes_on(self) -> list[Effect]:
        return self.replica.advance()

    def hear(self, sender: str, message: Message) -> list[Effect]:
        """As the engine does."""
        replica = self.replica
        match message:
            case Record(round_):
                answer = replica.compare(sender, round_)
                known = replica.record
                if answer is None and (known is None or known.lineage == round_.lineage or not self.votes):
                    replica.read(round_)
                elif answer is None and replica.short:
                    replica.read(round_)  # its own world cannot go on
                return answer or []
            case Hello() | Witnessed():
                return replica.greet(sender, message)
            case _:
                assert not isinstance(message, Record | Hello)
                return replica.hear(sender, message)  # type: ignore[arg-type]


class Third(Node):
    """A witness. What it hears last is news."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.witness = Witness(name, 0.0)
        self.now = 0.0
        self._before: Round | None = None

    @property
    def votes(self) -> bool:
        return False  # it proposes nothing

    def news(self) -> Round | None:
        before, self._before = self._before, self.witness.record
        return self._before if self._before is not before else None

    def goes_on(self) -> list[Effect]:
        return []

    def hear(self, sender: str, message: Message) -> list[Effect]:
        effects = self.witness.observe(saw.Heard(sender, message), self.now)
        return [effect for effect in effects if not isinstance(effect, Note)]


class Cluster:
    """Some nodes, their messages under way, and all that was ever decided."""

    def __init__(self, count: int, splits: bool = True, witnesses: int = 0, *, ignorant: bool = False) -> None:
        """`splits`: nodes that are not members begin anew, as if all members were gone. `ignorant`: the witnesses have
        not been shown the record."""
        self._splits = splits
        self.names = NODES[:count]
        self.witnesses = WITNESSES[:witnesses]
        self.everyone = self.names + self.witnesses
        self.nodes = {name: Node(name) for name in self.names} | {name: Third(name) for name in self.witnesses}
        self.under_way: list[tuple[str, str, Message]] = []
        self.decided: dict[tuple[str, int], Round] = {}
        self._made = 0
        first = of_job("a@1", opened(*(member(name) for name in self.names)), witness=self.witnesses[:1])
        for node in self.nodes.values():
            if not isinstance(node, Third):
                node.replica.read(first)
            elif not ignorant:
                node.hear("a", Record(first))
            self._do(node, [])

    # --- what may happen, whoever and whichever message it is

    def propose(self, name: str, others: int) -> None:
        """It proposes a record of its own making, of some of the nodes in some order, as a member or as a newcomer."""
        node = self.nodes[name]
        if node.alive and not isinstance(node, Third) and (node.votes or self._splits):
            record = node.record
            self._made += 1
            chosen = [each for at, each in enumerate(self.names) if others >> at & 1] or [name]
            if others & 1:
                chosen.reverse()
            members = tuple(member(each) for each in (chosen if node.votes else [name]))
            voter = ["", *self.witnesses][(others >> 8) % (1 + len(self.witnesses))]
            proposal = replace(record, version=record.version + 1, number=self._made, members=members, witness=voter)
            self._do(node, node.replica.propose(proposal) if node.votes else node.replica.begin(proposal))

    def deliver(self, which: int, *, again: bool) -> None:
        """`again`: it arrives, and is repeated later."""
        if not self.under_way:
            return
        which %= len(self.under_way)
        sender, target, message = self.under_way[which] if again else self.under_way.pop(which)
        node = self.nodes[target]
        if node.alive:
            self._do(node, node.hear(sender, message))

    def lose(self, which: int) -> None:
        if self.under_way:
            self.under_way.pop(which % len(self.under_way))

    def greet(self, name: str, target: str, *, follows: bool = False) -> None:
        """There is a new link. `follows`: to a node that this one takes for the leader from now on."""
        node = self.nodes[name]
        if not node.alive or name == target:
            return
        if isinstance(node, Third):
            known = node.witness.record
            knows = Witnessed(known.id) if known is not None else Witnessed()
            self.under_way.append((name, target, knows))
            return
        record = node.record
        if isinstance(self.nodes[target], Third):
            self.under_way.append((name, target, Record(record)))
        else:
            promise = node.replica.promise_ahead(target) if follows else None
            hello = Hello(ready(member(name), record.id), promise)
            self.under_way.append((name, target, hello))

    def suspect(self, name: str, target: str) -> None:
        """Rightly or not."""
        if name != target:
            self.nodes[name].silent.add(target)
            self.nodes[target].doubted = True

    def trust(self, name: str, target: str) -> None:
        self.nodes[name].silent.discard(target)

    def die(self, name: str) -> None:
        self.nodes[name].alive = False

    def learn(self, name: str, target: str) -> None:
        """One hears the last words of another that has died; a witness leaves none."""
        node, dead = self.nodes[name], self.nodes[target]
        if dead.alive or name == target or isinstance(node, Third) or isinstance(dead, Third):
            return
        node.gone.add(target)
        if node.alive:
            if not node.replica.bury(target, dead.replica.last_words):
                assert node.replica.bury(target, dead.replica.last_words_in_full)
            self._do(node, [])

    def forget(self, name: str) -> None:
        """A witness does not hear its job for a while, and may turn to another."""
        node = self.nodes[name]
        if isinstance(node, Third):
            node.now += witness.FORGET_S

    # --- what follows

    def _do(self, node: Node, effects: list[Effect]) -> None:
        for effect in [*effects, *(node.goes_on() if node.alive else ())]:
            assert isinstance(effect, Say)
            for target in [effect.node] if effect.node is not None else self.names:
                if target != node.name:
                    self.under_way.append((node.name, target, effect.message))
        round_ = node.news()
        if round_ is not None:
            known = self.decided.setdefault((round_.lineage, round_.version), round_)
            assert known == round_, "two records are one version"

    def heal(self) -> None:
        """Nobody is taken for dead any more, everybody says hello, and all that is said arrives."""
        for node in self.nodes.values():
            node.silent.clear()
        for name in self.everyone:
            for target in self.everyone:
                self.greet(name, target)
        self._settle()

    def _settle(self) -> None:
        while self.under_way:
            self.deliver(0, again=False)

    def records(self) -> Iterator[Round]:
        for name in self.names:
            if self.nodes[name].alive:
                yield self.nodes[name].record


STEPS = ["propose", *["deliver"] * 4, "repeat", "lose", "greet", "follow", "suspect", "trust"]
DEADLY = ["die", "learn", "learn"]
number = st.integers(0, 1 << 16)
step = st.tuples(st.sampled_from(STEPS), number, number)
deadly = st.tuples(st.sampled_from(DEADLY), number, number)


def run(cluster: Cluster, steps: list[tuple[str, int, int]]) -> None:
    everyone = cluster.everyone
    for what, one, two in steps:
        name, target = everyone[one % len(everyone)], everyone[two % len(everyone)]
        match what:
            case "suspect" if name in cluster.witnesses:
                cluster.forget(name)
            case "propose":
                cluster.propose(name, two)
            case "deliver" | "repeat":
                cluster.deliver(one, again=what == "repeat")
            case "lose":
                cluster.lose(one)
            case "greet" | "follow":
                cluster.greet(name, target, follows=what == "follow")
            case "suspect":
                cluster.suspect(name, target)
            case "trust":
                cluster.trust(name, target)
            case "die":
                cluster.die(name)
            case "learn":
                cluster.learn(name, target)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 5), st.lists(step | step | step | deadly, min_size=10, max_size=80))
def test_one_version_is_one_record(count: int, steps: list[tuple[str, int, int]]) -> None:
    run(Cluster(count), steps)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 4), st.integers(1, 3), st.lists(step | step | step | deadly, min_size=10, max_size=80))
def test_with_witnesses_too(count: int, witnesses: int, steps: list[tuple[str, int, int]]) -> None:
    run(Cluster(count, witnesses=witnesses), steps)


@pytest.mark.slow
def test_one_version_is_one_record_in_rare_orders_of_events() -> None:
    """What hypothesis hardly ever draws: nearly each mutant of the replica that is not safe dies within these seeds."""
    for seed in range(4000):
        try:
            run_seed(seed, witnesses=False)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
def test_nor_is_it_with_witnesses() -> None:
    for seed in range(4000):
        try:
            run_seed(seed, witnesses=True)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def run_seed(seed: int, witnesses: bool) -> None:
    draw = random.Random(seed)
    count = draw.choice([2, 2, 2, 4, 4, 3] if witnesses else [2, 2, 3, 3, 4, 5])
    dying = draw.choice([0.0, 0.05, 0.1])
    kinds = [DEADLY if draw.random() < dying else STEPS for _ in range(draw.randint(20, 80))]
    steps = [(draw.choice(kind), draw.randrange(1 << 16), draw.randrange(1 << 16)) for kind in kinds]
    thirds = draw.choice([1, 1, 2, 3]) if witnesses else 0
    run(Cluster(count, witnesses=thirds, ignorant=draw.random() < 0.3), steps)


# --- voters and witnesses that are wrong


@pytest.mark.parametrize("right", [True, False])
def test_what_the_dead_had_promised_counts_for_those_that_do_not_count_the_dead(right: bool) -> None:
    """Of four, a promises the ballot of d and dies. So b and c, who know that, go on in a higher one."""
    if right:
        of_four_one_has_promised_and_is_dead()
        return
    (mutant,) = those("of four")
    with mutant.alive(), pytest.raises(AssertionError, match="two records are one version"):
        of_four_one_has_promised_and_is_dead()


def of_four_one_has_promised_and_is_dead() -> None:
    cluster = Cluster(4, splits=False)

    def pass_on(sender: str, target: str) -> None:
        sent = next(at for at, each in enumerate(cluster.under_way) if each[:2] == (sender, target))
        cluster.deliver(sent, again=False)

    for name, target in ("db", "dc", "bd", "cd"):
        cluster.suspect(name, target)
    cluster.propose("d", 0b1000)
    pass_on("d", "a")  # prepare
    pass_on("a", "d")
    cluster.die("a")
    cluster.learn("c", "a")
    cluster.propose("c", 0b0110)
    pass_on("c", "b")  # prepare
    pass_on("b", "c")
    pass_on("c", "b")  # accept
    pass_on("b", "c")
    assert len(cluster.decided) == 2, "b and c are two of the three whose votes count"
    pass_on("d", "b")  # prepare
    pass_on("d", "b")  # accept
    cluster.learn("d", "a")
    pass_on("b", "d")  # refused; or else that it promises
    pass_on("b", "d")  # and accepts
    cluster.heal()
    assert len({record.name for record in cluster.records()}) == 1


WORLD = of_job("a@1", opened(*(member(name) for name in "abc")))
HIGHEST: Ballot = (LARGEST, "c")
OF_HIGHEST_BALLOT = {
    "prepare": Prepare(HIGHEST, WORLD.id),
    "accept": Accept(HIGHEST, difference(WORLD, replace(WORLD, version=2)), WORLD.id),
    "refused": Refused(HIGHEST, WORLD.id),
    "a promise ahead": Hello(ready(member("c"), WORLD.id), (LARGEST, "b")),
    "last words": replace(words_of(WORLD), promised=HIGHEST),
}


@pytest.mark.parametrize("message", OF_HIGHEST_BALLOT.values(), ids=OF_HIGHEST_BALLOT)
def test_who_names_the_highest_ballot_of_all_prevents_no_higher_one(message: Message) -> None:
    b = Node("b")
    b.replica.read(WORLD)
    if isinstance(message, LastWords):
        b.replica.bury("c", message)
    else:
        b.hear("c", message)
    said = [each.message for each in b.replica.propose(replace(WORLD, version=2)) if isinstance(each, Say)]
    assert [each.ballot for each in said if isinstance(each, Prepare)] == [(1, "b")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "witnesses"),
    [
        *((mutant, False) for mutant in those("agreed on")),
        *((mutant, True) for mutant in those("agreed on with witnesses")),
    ],
    ids=lambda value: value.name if isinstance(value, Mutant) else "",
)
def test_a_wrong_voter_is_found_out(mutant: Mutant, witnesses: bool) -> None:
    found = ""
    with mutant.alive():
        for seed in range(10_000):
            try:
                run_seed(seed, witnesses)
            except AssertionError as error:
                found = str(error)
                break
    assert found.startswith("two records are one version"), "it lives"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(2, 5), st.lists(step, max_size=60))
def test_when_all_live_and_hear_each_other_they_agree_on_a_next_record(
    count: int, steps: list[tuple[str, int, int]]
) -> None:
    agree_on_a_next_record(Cluster(count, splits=False), steps)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 4), st.integers(1, 3), st.lists(step, max_size=60))
def test_and_so_they_do_with_witnesses(count: int, witnesses: int, steps: list[tuple[str, int, int]]) -> None:
    agree_on_a_next_record(Cluster(count, splits=False, witnesses=witnesses), steps)


def agree_on_a_next_record(cluster: Cluster, steps: list[tuple[str, int, int]]) -> None:
    run(cluster, steps)
    cluster.heal()
    before = max(cluster.records(), key=lambda record: record.version)
    for _ in range(4):  # one that is refused tries again, as the engine does; so is one that may have been accepted
        cluster.propose(before.members[0].node, 0)
        cluster.heal()
    assert min(record.version for record in cluster.records()) > before.version
