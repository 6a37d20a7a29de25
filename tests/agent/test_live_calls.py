"""The calls of live_workers between a few nodes: by hand, and under random orders, losses and ends of epochs."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from values import member, sealed

from softrun.agent.live.live_calls import LEAVE_S, LiveCalls, Overdue
from softrun.agent.protocol.effects import Answered, Effect, Say
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.protocol.model import NodeIntent, Report, Round
from softrun.agent.rendezvous import promises
from softrun.agent.rendezvous.transitions import decide, taking_in
from softrun.runtime.calls import Call, Reply, Way
from softrun.runtime.events import WorkerFault

Said = Calls | Verdict


class Net:
    """Nodes with two workers each in one world, and the messages between them, in order on each way."""

    def __init__(self, nodes: str = "abc", workers: int = 2, durable: bool = False) -> None:
        self.world = sealed(*(member(node, workers=workers) for node in nodes))
        self.nodes = {node: LiveCalls(node, durable) for node in nodes}
        self.ways: dict[tuple[str, str], deque[Said]] = {}
        self.replies: dict[str, list[Reply]] = {}
        self.answered: dict[str, list[int]] = {}  # the numbers of the calls
        self.numbers = 0
        for node in nodes:
            self.do(node, self.nodes[node].adopt(self.world, placed=True))

    def do(self, node: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(str() as to, (Calls() | Verdict()) as said):
                    self.ways.setdefault((node, to), deque()).append(said)
                case Answered(callers, reply):
                    for local_rank, launch, number in callers:
                        assert launch == 1
                        self.replies.setdefault(f"{node}/{local_rank}", []).append(reply)
                        self.answered.setdefault(f"{node}/{local_rank}", []).append(number)
                case _:
                    raise AssertionError(effect)

    def call(self, name: str, way: Way = Way.ENTRY, **fields: object) -> int:
        node, _, local_rank = name.partition("/")
        self.numbers += 1
        call = Call(self.numbers, self.world.number, way, site="train.py:1")._replace(**fields)
        self.do(node, self.nodes[node].called(int(local_rank), 1, call, 0.0))
        return self.numbers

    def all_call(self, way: Way = Way.ENTRY, **fields: object) -> None:
        for node in self.nodes:
            for local_rank in range(2):
                self.call(f"{node}/{local_rank}", way, **fields)

    def deliver(self, source: str, to: str) -> None:
        said = self.ways[source, to].popleft()
        self.do(to, self.nodes[to].hear(source, said, 0.0))

    def settle(self) -> None:
        while due := [way for way, said in self.ways.items() if said]:
            self.deliver(*due[0])

    def last(self, name: str) -> Reply:
        return self.replies[name][-1]

    def record(self, round_: Round) -> None:
        for node, calls in self.nodes.items():
            self.do(node, calls.adopt(round_, placed=node in round_.by_node))


def test_all_get_one_verdict_once_all_have_called() -> None:
    net = Net()
    net.call("a/0", tag="3")
    net.call("a/1", tag="3")
    net.call("b/0", tag="3")
    net.call("b/1", tag="3")
    net.call("c/1", tag="3")
    net.settle()
    assert net.replies == {}
    net.call("c/0", tag="4")
    net.settle()
    assert len(net.replies) == 6
    reply = net.last("b/1")
    assert reply.turn == 1
    assert reply.ok is None
    assert dict(reply.tags)["c/0"] == "4"
    assert [name for name, _ in reply.members] == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]
    net.all_call(Way.EXIT, tag="4")
    net.settle()
    assert {replies[-1].ok for replies in net.replies.values()} == {True}
    assert {replies[-1].turn for replies in net.replies.values()} == {2}


def test_a_node_says_one_thing_for_all_its_workers() -> None:
    net = Net()
    net.call("b/0")
    assert not net.ways.get(("b", "a"))
    net.call("b/1")
    assert len(net.ways["b", "a"]) == 1


def test_a_worker_that_is_through_is_waited_for_no_more_and_fails_the_block_that_it_was_in() -> None:
    net = Net()
    net.all_call()
    net.settle()
    for name in ("a/0", "a/1", "b/0", "b/1", "c/0"):
        net.call(name, Way.EXIT)
    net.settle()
    net.do("c", net.nodes["c"].departed(1))
    net.settle()
    assert {name for name, replies in net.replies.items() if len(replies) == 2} == {"a/0", "a/1", "b/0", "b/1", "c/0"}
    assert net.last("a/0").ok is False
    assert net.last("a/0").gone == ("c/1",)
    for name in ("a/0", "a/1", "b/0", "b/1", "c/0"):
        net.call(name)
    net.settle()
    assert net.last("c/0").turn == 3


def test_scopes_do_not_wait_for_each_other() -> None:
    net = Net()
    some = ("a/1", "b/0")
    for name in some:
        net.call(name, Way.BARRIER, scope=some, tag='"x"')
    net.settle()
    assert {name: reply[-1].tags for name, reply in net.replies.items()} == dict.fromkeys(
        some, (("a/1", '"x"'), ("b/0", '"x"'))
    )
    everybody = tuple(sorted(f"{node}/{rank}" for node in "abc" for rank in range(2)))
    for name in everybody[:-1]:
        net.call(name, Way.BARRIER)
    net.call(everybody[-1], Way.BARRIER, scope=everybody)
    net.settle()
    assert {reply[-1].turn for name, reply in net.replies.items() if name not in some} == {1}
    assert net.last("a/1").turn == 1, "another scope, so another count"


def test_scopes_that_cannot_be_asked_about_are_refused_at_once() -> None:
    net = Net()
    net.call("a/0", Way.BARRIER, scope=("a/0", "z/7"))
    assert "no worker of this world is called 'z/7'" in net.last("a/0").mistake
    net.call("a/0", Way.BARRIER, scope=("a/1",))
    assert "the scope does not name a/0, which asks" in net.last("a/0").mistake


def test_calls_that_do_not_belong_together_are_a_mistake_of_all() -> None:
    net = Net()
    net.all_call(tag="1")
    net.settle()
    for name in ("a/0", "a/1", "b/0", "b/1", "c/0"):
        net.call(name, Way.EXIT, tag="1")
    net.call("c/1", Way.EXIT, tag="2", site="other.py:9")
    net.settle()
    mistakes = {replies[-1].mistake for replies in net.replies.values()}
    assert len(mistakes) == 1
    (text,) = mistakes
    assert "c/1 ends block 2 at other.py:9 while a/0 ends block 1 at train.py:1" in text
    for name in ("a/0", "a/1", "b/0", "b/1", "c/0"):
        net.call(name, Way.ENTRY)
    net.call("c/1", Way.BARRIER)
    net.settle()
    mistakes = {replies[-1].mistake for replies in net.replies.values()}
    assert len(mistakes) == 1
    assert "c/1 is at a barrier" in mistakes.pop()


def test_a_call_that_was_given_up_does_not_answer_another_one() -> None:
    net = Net("ab")
    net.all_call()
    net.settle()
    net.all_call(Way.EXIT)
    net.call("b/0", Way.ENTRY)
    net.settle()
    assert "was given up" in net.last("b/0").mistake
    assert net.last("b/1").ok is True


def test_newcomers_are_healed_in_their_first_block_so_it_ends_at_any_step() -> None:
    net = Net("ab")
    net.call("a/0", tag="7")
    net.call("a/1", tag="7")
    net.call("b/0", tag="0")
    net.call("b/1", tag="0")
    net.settle()
    net.call("a/0", Way.EXIT, tag="7")
    net.call("a/1", Way.EXIT, tag="7")
    net.call("b/0", Way.EXIT, tag="0")
    net.call("b/1", Way.EXIT, tag="0")
    net.settle()
    assert net.last("b/1").ok is True


def test_what_was_said_to_a_lost_link_is_said_again() -> None:
    net = Net("ab")
    net.all_call()
    net.ways["b", "a"].clear()
    net.do("b", net.nodes["b"].link_up("a"))
    net.settle()
    assert net.last("b/0").turn == 1
    net.all_call(Way.EXIT)
    net.deliver("b", "a")
    net.ways["a", "b"].clear()
    assert len(net.replies["b/0"]) == 1
    net.do("b", net.nodes["b"].link_up("a"))
    net.settle()
    assert net.last("b/0").ok is True
    assert net.last("a/0").ok is True


def test_a_node_that_leaves_after_an_agreed_step_ends_its_blocks_with_the_others_until_then() -> None:
    net = Net("ab")
    net.all_call()
    net.settle()
    net.all_call(Way.EXIT)
    without = replace(sealed(net.world.members[0], number=net.world.number + 1), leave_after=7)
    net.record(without)
    net.settle()
    assert {net.last(name).ok for name in net.replies} == {True}
    net.call("b/0", Way.EXIT)
    net.record(replace(without, version=without.version + 1, leave_after=0))
    assert net.last("b/0").evicted


def test_durable_calls_are_answered_by_the_record_alone() -> None:
    net = Net("ab", durable=True)
    coordinator = net.nodes["a"]
    net.all_call()
    net.settle()
    assert net.replies == {}
    begun = decide(net.world, coordinator.undecided(net.world))
    net.record(begun)
    assert {net.last(name).turn for name in net.replies} == {1}
    assert coordinator.undecided(begun) == ()
    net.all_call(Way.EXIT)
    net.settle()
    assert {net.last(name).turn for name in net.replies} == {1}, "the last answer, which the record has, is no new one"
    without = replace(begun, version=3, number=2, members=net.world.members[:1], leave_after=7)
    net.record(without)
    net.record(decide(without, coordinator.undecided(without)))
    assert {net.last(name).ok for name in net.replies} == {True}, "also on the node that leaves after that step"


def test_what_durable_calls_have_come_to_when_their_world_ends_is_what_the_record_says() -> None:
    net = Net("ab", durable=True)
    net.all_call()
    net.settle()
    net.record(replace(net.world, version=net.world.version + 1, number=2))
    assert all(net.last(name).over for name in net.replies)


def test_who_makes_no_call_in_time_is_told_to_leave_and_then_ended() -> None:
    """All members are late in the same moment: one of them hangs, and the others wait for it. So all leave first."""
    net = Net("a")
    calls = net.nodes["a"]
    assert calls.deadline() is None
    net.all_call(timeout_s=5.0)
    assert calls.deadline() == 5
    assert calls.overdue(4.9) == []
    assert calls.overdue(5.1) == [Overdue(0, 5.0, was_told=False), Overdue(1, 5.0, was_told=False)]
    assert calls.deadline() == 5.1 + LEAVE_S
    net.call("a/1", Way.EXIT, fault="")
    net.record(replace(net.world, version=2, number=net.world.number + 1))
    assert calls.overdue(5.1 + LEAVE_S) == [Overdue(0, 5.0, was_told=True)]
    assert calls.deadline() is None


def test_an_epoch_that_ends_ends_the_time_of_those_that_are_in_a_block() -> None:
    net = Net("a")
    net.all_call(timeout_s=5.0)
    net.record(replace(net.world, version=2, number=net.world.number + 1))
    assert net.nodes["a"].deadline() is None


def test_an_epoch_ends_and_with_it_the_blocks_that_had_no_verdict() -> None:
    net = Net()
    net.all_call()
    net.settle()
    net.call("a/0", Way.EXIT)
    net.call("b/1", Way.EXIT, fault="ValueError: bad")
    kept = [m for m in net.world.members if m.node != "c"]
    fault = WorkerFault(round=net.world.number, text="ValueError: bad", causes=((3, "EXCEPTION"),))
    after = replace(net.world, version=9, number=net.world.number + 1, members=tuple(kept), fault=fault)
    net.record(after)
    over = net.last("a/0")
    assert over.over
    assert over.lost == ("c/0", "c/1")
    assert over.raised == ("b/1",)
    assert over.fault == "ValueError: bad"
    late = net.call("c/0", Way.EXIT)
    assert net.answered["c/0"][-1] == late
    assert net.last("c/0").evicted


def test_an_early_message_waits_until_its_epoch_is_known() -> None:
    net = Net("ab")
    after = replace(net.world, version=9, number=net.world.number + 1)
    net.do("b", net.nodes["b"].adopt(after, placed=True))
    net.world = after
    net.call("b/0")
    net.call("b/1")
    net.settle()
    net.do("a", net.nodes["a"].adopt(after, placed=True))
    net.call("a/0")
    net.call("a/1")
    net.settle()
    assert net.last("b/0").turn == 1


# --- an epoch ends in the middle of a broadcast


def report(net: Net, node: str) -> Report:
    (own,) = (m for m in net.world.members if m.node == node)
    return Report(own, NodeIntent.READY, promised=net.world.version, verdicts=net.nodes[node].delivered())


def next_world(net: Net, heard: str, reports: dict[str, Report]) -> Round:
    """The record that ends the epoch, of those that are heard."""
    members = tuple(m for m in net.world.members if m.node in heard)
    after = replace(net.world, version=net.world.version + 1, number=net.world.number + 1, members=members)
    return taking_in(after, promises.verdicts(net.world, reports))


def ended(net: Net, heard: str) -> Round:
    """The record with which one of those that are heard ends the epoch: all of them promise."""
    for node in heard:
        net.nodes[node].promise(net.world.number)
    return next_world(net, heard, {node: report(net, node) for node in heard})


@pytest.mark.parametrize("told", ["", "b", "c", "bc"])
def test_a_coordinator_dies_in_the_middle_of_its_broadcast(told: str) -> None:
    """Either all survivors have the verdict, or none has."""
    net = Net()
    net.all_call()
    net.settle()
    net.all_call(Way.EXIT)
    net.deliver("b", "a")
    net.deliver("c", "a")
    for node in told:
        net.deliver("a", node)
    net.record(ended(net, "bc"))
    outcomes = {net.last(name).ok for name in ("b/0", "b/1", "c/0", "c/1")}
    assert outcomes == ({True} if told else {None})
    assert {net.last(name).over for name in ("b/0", "b/1", "c/0", "c/1")} == {not told}


def test_after_its_promise_a_node_delivers_nothing() -> None:
    net = Net()
    net.all_call()
    net.settle()
    net.all_call(Way.EXIT)
    net.deliver("b", "a")
    net.deliver("c", "a")
    after = ended(net, "bc")
    net.settle()
    assert len(net.replies["b/0"]) == 1, "the verdict came after the promise"
    net.record(after)
    assert net.last("b/0").over


class Storm:
    """Random orders: workers call, messages arrive late or never, epochs end at any moment, nodes are left behind.

    The end of an epoch takes a while: who is heard promises, one after the other, then the record reaches one after the
    other. The coordinator ends it by its own promise alone.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.net = Net("abcd"[: self.rng.randint(2, 4)])
        self.waits: dict[str, Call] = {}
        self.inside: set[str] = set()
        self.exits: dict[str, int] = {}  # how many blocks of this epoch each worker has asked to end
        self.told: dict[int, dict[str, bool]] = {}  # of each exit of this epoch what each worker was told
        self.heard = ""
        self.owing: list[str] = []
        self.reports: dict[str, Report] = {}
        self.after: Round | None = None
        self.behind: list[str] = []

    def run(self) -> None:
        ways = (self._call, self._call, self._deliver, self._deliver, self._deliver, self._link, self._end)
        for _ in range(self.rng.randint(100, 600)):
            self.rng.choice(ways)()
            self._look()

    def _look(self) -> None:
        for name, replies in self.net.replies.items():
            for number, reply in zip(self.net.answered[name], replies, strict=True):
                call = self.waits.pop(name)
                assert call.number == number
                self.inside.discard(name)
                if call.way is Way.EXIT:
                    self.told.setdefault(self.exits[name], {})[name] = reply.ok is True
                if not reply.over:
                    self.inside.add(name)
            replies.clear()
            self.net.answered[name].clear()

    def _call(self) -> None:
        here = [node for node in self.net.world.by_node if node in self.net.nodes and node not in self.behind]
        free = [name for node in here for rank in range(2) if (name := f"{node}/{rank}") not in self.waits]
        if free and self.after is None:
            name = self.rng.choice(free)
            way = Way.EXIT if name in self.inside else Way.ENTRY
            self.exits[name] = self.exits.get(name, 0) + (way is Way.EXIT)
            self.waits[name] = Call(self.net.numbers + 1, self.net.world.number, way)
            self.net.call(name, way)

    def _deliver(self) -> None:
        if due := [way for way, said in self.net.ways.items() if said]:
            self.net.deliver(*self.rng.choice(due))

    def _link(self) -> None:
        """A link breaks, with all that is on it, and is there again."""
        if self.rng.random() < 0.3 and len(self.net.nodes) > 1:
            one, other = self.rng.sample(sorted(self.net.nodes), 2)
            for source, to in ((one, other), (other, one)):
                self.net.ways.pop((source, to), None)
            for source, to in ((one, other), (other, one)):
                self.net.do(source, self.net.nodes[source].link_up(to))

    def _end(self) -> None:
        if self.behind:
            self._adopt()
        elif self.owing:
            node = self.owing.pop()
            self.net.nodes[node].promise(self.net.world.number)
            self.reports[node] = report(self.net, node)
            if not self.owing:
                self.after = next_world(self.net, self.heard, self.reports)
                self.behind = sorted(self.net.nodes)
        elif self.rng.random() < 0.2:
            coordinator, *others = (m.node for m in self.net.world.members)
            alone = not others or self.rng.random() < 0.5
            stays = [node for node in others if self.rng.random() < 0.8]
            self.heard = "".join([coordinator, *stays] if alone else stays or others[:1])
            self.owing, self.reports = list(coordinator if alone else self.heard), {}

    def _adopt(self) -> None:
        assert self.after is not None
        node = self.behind.pop(self.rng.randrange(len(self.behind)))
        self.net.do(node, self.net.nodes[node].adopt(self.after, placed=node in self.heard))
        self._look()
        if not self.behind:
            for exit_, told in self.told.items():
                stayed = {name: ok for name, ok in told.items() if name[0] in self.heard}
                assert len(set(stayed.values())) <= 1, f"exit {exit_} of world {self.net.world.number}: {stayed}"
            self._begin(self.after)

    def _begin(self, world: Round) -> None:
        self.net.world, self.after = world, None
        self.net.nodes = {node: calls for node, calls in self.net.nodes.items() if node in self.heard}
        self.net.ways = {way: said for way, said in self.net.ways.items() if set(way) <= self.net.nodes.keys()}
        self.waits, self.inside = {}, set()
        self.exits, self.told = {}, {}


@pytest.mark.parametrize("chunk", range(4))
def test_whatever_the_order_all_that_stay_are_told_the_same(chunk: int) -> None:
    for seed in range(chunk, 800, 4):
        Storm(seed).run()
