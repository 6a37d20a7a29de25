"""live_workers and live_barrier in one process, with an agent whose replies are written here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softrun.runtime.bounds import LARGEST
from softrun.runtime.calls import Call, Reply, Way, pack_call, pack_reply, read_call, read_reply
from softrun.runtime.events import WorkerEvent, WorkerInfo, WorkerState
from softrun.runtime.live import blocks, session
from softrun.runtime.live.blocks import live_barrier, live_workers
from softrun.runtime.live.errors import CallMismatch, Evicted, PeerFailed
from softrun.runtime.live.session import Session

MEMBERS = (("a/0", "1.1"), ("b/0", "1.1"))
ENTRY = Reply(1, tags=(("a/0", "3"), ("b/0", "5")), members=MEMBERS)
OK = Reply(2, ok=True)
INFO = WorkerInfo(
    local_rank=0, role_rank=0, rank=0, local_world_size=1, role_world_size=2, world_size=2, group_rank=0,
    group_world_size=2, master_addr="127.0.0.1", master_port=1,
)  # fmt: skip


def event(state: WorkerState, number: int, sequence: int, leave_after: int | None = None) -> WorkerEvent:
    return WorkerEvent(
        timestamp=0, worker_info=INFO, worker_state=state, round=number, sequence=sequence, leave_after=leave_after
    )


class Agent:
    """Replies in the order in which they were given, and keeps the calls."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.calls: list[Call] = []
        self.worlds = 0
        self.over = False
        self.counted: list[int | None] = []
        self.ended: WorkerEvent | None = None  # what has ended the world, as a worker between two blocks finds it

    def ask(self, call: Call) -> Reply:
        self.calls.append(call)
        return self.replies.pop(0)

    def check(self, step: int | None) -> None:
        self.counted.append(step)
        if self.ended is not None:
            raise session.WorldChanged

    def wait_for_world(self, after: int) -> WorkerEvent:
        self.worlds = after + 1 if after > 0 else 1
        self.ended = None
        return event(WorkerState.HEALTHY, self.worlds, self.worlds)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    agent = Agent()
    monkeypatch.setattr(blocks, "_session", Session())
    monkeypatch.setattr(session, "ask", agent.ask)
    monkeypatch.setattr(session, "wait_for_world", agent.wait_for_world)
    monkeypatch.setattr(session, "is_in_call", lambda: False)
    monkeypatch.setattr(session, "current_round", lambda: agent.worlds)
    monkeypatch.setattr(session.World, "check", lambda self, step: agent.check(step))
    monkeypatch.setattr(session, "last_event", lambda: agent.ended)
    monkeypatch.setattr(session.World, "changed", property(lambda self: agent.over))
    return agent


def test_the_exit_of_one_block_is_the_entry_of_the_next(agent: Agent) -> None:
    agent.replies = [ENTRY, OK, OK]
    with live_workers(3) as world:
        assert world.changed
        assert [member.name for member in world.members] == ["a/0", "b/0"]
        assert world.tags == {"a/0": 3, "b/0": 5}
        assert world.source.name == "b/0", "it is furthest"
        assert world.joined == world.members
    with live_workers(4) as world:
        assert not world.changed
    assert [call.way for call in agent.calls] == [Way.ENTRY, Way.EXIT, Way.EXIT]
    assert [call.tag for call in agent.calls] == ["3", "3", "4"]
    assert agent.calls[0].site.startswith("test_live.py:")


def test_a_block_is_a_step_whatever_is_passed(agent: Agent) -> None:
    """So that all leave a world after the same block: they count from whoever is furthest when it begins."""
    agent.replies = [ENTRY, OK, OK, Reply(over=True, lost=("b/0",)), ENTRY, OK]
    for step in (5, 5, None):
        with suppress(PeerFailed), live_workers(step):
            pass
    assert agent.counted == [6, 7]
    for step in (5, 6):
        with live_workers(step):
            pass
        agent.replies = [OK]
    assert agent.counted == [6, 7, 6], "each world anew"


def test_where_nobody_counts_blocks_are_counted(agent: Agent) -> None:
    agent.replies = [ENTRY._replace(tags=(("a/0", "null"), ("b/0", '"begin"'))), OK, OK]
    for _ in range(2):
        with live_workers():
            pass
    assert agent.counted == [1]


def test_a_lost_member_fails_the_block_and_the_next_is_in_another_world(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, lost=("b/0",))]
    with pytest.raises(PeerFailed, match="lost in this block: b/0") as failure, live_workers(3):
        pass
    assert failure.value.failed == ("b/0",)
    agent.replies = [Reply(1, tags=(("a/0", "3"),), members=MEMBERS[:1]), OK]
    with live_workers(3) as world:
        assert world.changed
        assert world.round == 2
        assert world.joined == ()
    assert agent.calls[-2].way is Way.ENTRY, "nothing is taken from before"


def test_a_worker_that_was_left_behind_comes_back_as_another_incarnation(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, evicted=True)]
    with pytest.raises(Evicted), live_workers(3) as world:
        assert not world.came_back, "it is here for the first time"
    again = (("a/0", "2.1"), MEMBERS[1])
    agent.replies = [ENTRY._replace(members=again), OK, Reply(over=True, lost=("b/0",))]
    with live_workers(3) as world:
        assert world.came_back
        assert [member.name for member in world.joined] == ["a/0"]
    with pytest.raises(PeerFailed), live_workers(4):
        pass
    agent.replies = [Reply(1, tags=(("a/0", "3"),), members=again[:1]), OK]
    with live_workers(3) as world:
        assert not world.came_back


def test_what_another_has_raised_is_told_with_its_traceback(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, raised=("b/0",), fault="fault of rank 1\nValueError: bad batch")]
    with pytest.raises(PeerFailed, match="b/0 failed in this block: ValueError: bad batch") as failure, live_workers(3):
        pass
    assert failure.value.failed == ("b/0",)
    assert failure.value.lost == ()
    assert failure.value.remote.endswith("ValueError: bad batch")


def test_who_has_raised_gets_its_own_exception(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, raised=("a/0",), fault="ValueError")]
    with pytest.raises(ValueError, match="my own"), live_workers(3):
        raise ValueError("my own")
    assert "my own" in (agent.calls[-1].fault or "")


@pytest.mark.parametrize("lost", [(), ("b/0",)])
def test_an_exception_that_a_lost_peer_has_caused_is_none_of_its_own(agent: Agent, lost: tuple[str, ...]) -> None:
    agent.replies = [ENTRY, Reply(over=True, lost=lost)]

    def collective() -> None:
        agent.over = True
        raise RuntimeError("aborted")

    with pytest.raises(PeerFailed) as failure, live_workers(3):
        collective()
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert agent.calls[-1].fault == ""


@pytest.mark.parametrize(
    ("reply", "raised"),
    [
        (Reply(over=True, raised=("b/0",), fault="ValueError: bad batch"), PeerFailed),
        (Reply(over=True, lost=("b/0",)), PeerFailed),
        (Reply(over=True, evicted=True), Evicted),
        (Reply(over=True), PeerFailed),
    ],
)
def test_a_block_that_fails_before_this_worker_comes_to_it_has_failed_here_too(
    agent: Agent, reply: Reply, raised: type[PeerFailed]
) -> None:
    """It is a member since the end of its last block: the others have seen it in theirs, and raise."""
    agent.replies = [ENTRY, OK, reply]
    with live_workers(3):
        pass
    agent.ended = event(WorkerState.PAUSED, 1, 2)
    with pytest.raises(raised) as failure, live_workers(4):
        pytest.fail("it must not begin")
    assert type(failure.value) is raised
    assert (agent.calls[-1].way, agent.calls[-1].fault) == (Way.EXIT, "")
    agent.replies = [ENTRY, OK]
    with live_workers(4) as world:
        assert world.round == 2


@pytest.mark.parametrize("block", [True, False])
def test_a_world_that_all_leave_between_two_blocks_fails_none(agent: Agent, block: bool) -> None:
    """After a step that they have agreed on; and whoever calls a barrier is in no block."""
    agent.replies = [ENTRY, OK, ENTRY, OK]
    with live_workers(3):
        pass
    agent.ended = event(WorkerState.PAUSED, 1, 2, leave_after=6 if block else None)
    if block:
        with live_workers(4) as world:
            assert world.round == 2
    else:
        assert live_barrier().epoch == 2
    assert [call.way for call in agent.calls[:3]] == [Way.ENTRY, Way.EXIT, Way.ENTRY if block else Way.BARRIER]


def test_in_a_wrapper_the_function_is_interrupted_before_its_next_block(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.replies = [ENTRY, OK]
    with live_workers(3):
        pass
    agent.ended = event(WorkerState.PAUSED, 1, 2)
    monkeypatch.setattr(session, "is_in_call", lambda: True)
    monkeypatch.setattr(session, "hold", lambda sequence: pytest.fail("interrupted"))
    with pytest.raises(pytest.fail.Exception, match="interrupted"), live_workers(4):
        pass


def test_who_is_left_behind_is_told_so(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, evicted=True)]
    with pytest.raises(Evicted), live_workers(3):
        pass


def test_a_mismatch_is_raised_and_leaves_the_world(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(2, mistake="a/0 ends block 1 at x.py:1 while b/0 ends block 2 at y.py:2")]
    with pytest.raises(CallMismatch, match="while b/0"), live_workers(3):
        pass


def test_a_late_failure_of_the_device_fails_the_block(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, raised=("a/0",), fault="x")]

    def synchronize() -> None:
        raise RuntimeError("a kernel failed")

    with pytest.raises(RuntimeError, match="a kernel failed"), live_workers(3, sync=synchronize):
        pass
    assert "a kernel failed" in (agent.calls[-1].fault or "")


def test_who_ends_in_its_block_waits_for_nobody(agent: Agent) -> None:
    agent.replies = [ENTRY]
    with pytest.raises(KeyboardInterrupt), live_workers(3):
        raise KeyboardInterrupt
    assert len(agent.calls) == 1


def test_a_barrier_is_asked_again_in_the_next_world(agent: Agent) -> None:
    agent.replies = [Reply(over=True, lost=("b/0",)), Reply(1, tags=(("a/0", '"x"'),), members=MEMBERS[:1])]
    live = live_barrier("x")
    assert live.names == ("a/0",)
    assert live.tags == {"a/0": "x"}
    assert live.epoch == 2
    agent.replies = [Reply(1, tags=(("a/0", "null"),), members=MEMBERS[:1])]
    live_barrier(scope=live.members)
    assert agent.calls[-1].scope == ("a/0",)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: live_workers(0, block_timeout=0), ValueError, "block_timeout 0 is no number"),
        (lambda: live_barrier(scope=()), ValueError, "the scope is empty"),
        (lambda: live_barrier([1]), TypeError, "list is none: pass the step"),
        (lambda: live_barrier("x" * 300), TypeError, "at most 200 characters"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    agent: Agent, call: Callable[[], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=rf"^[^\n]*{says}[^\n]*$"):
        call()
    assert agent.calls == []


def test_a_call_inside_a_block_is_refused(agent: Agent) -> None:
    agent.replies = [ENTRY, Reply(over=True, raised=("a/0",), fault="x")]
    with pytest.raises(RuntimeError, match=r"a call inside the block that began at test_live.py:\d+"), live_workers(3):
        live_barrier()


def test_a_call_in_another_thread_is_refused(agent: Agent) -> None:
    refused: list[str] = []

    def call() -> None:
        try:
            live_barrier()
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "in the main thread" in refused[0]
    assert agent.calls == []


# --- the packets

texts = st.text(max_size=20)
names = st.builds("{}/{}".format, st.text(min_size=1, max_size=20).filter(str.isprintable), st.integers(0, 99))
calls = st.builds(
    Call, st.integers(), st.integers(0, LARGEST), st.sampled_from(Way), st.lists(names).map(tuple),
    texts.filter(str.isprintable), texts, st.none() | texts, st.floats(0, 1e9),
)  # fmt: skip
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
replies = st.builds(
    Reply, st.integers(), st.none() | st.just(False), pairs, st.lists(texts).map(tuple), texts, pairs,
    st.booleans(), st.lists(texts).map(tuple), st.lists(texts).map(tuple), texts, st.booleans(),
)  # fmt: skip


@given(calls)
def test_a_call_comes_back_as_it_was(call: Call) -> None:
    assert read_call(pack_call(call)) == call


@given(st.integers(), replies | st.builds(Reply, st.integers(), st.just(True), *map(st.just, Reply()[2:])))
def test_a_reply_comes_back_as_it_was(number: int, reply: Reply) -> None:
    assert [read_reply(packet) for packet in pack_reply(reply, number, 0)] == [(number, reply), (0, reply)]


@given(st.binary(max_size=50) | st.lists(st.integers() | texts, max_size=9).map(lambda v: str(v).encode()))
def test_what_is_no_call_is_a_value_error(packet: bytes) -> None:
    with pytest.raises(ValueError, match="a call cannot be read"):
        read_call(packet)
