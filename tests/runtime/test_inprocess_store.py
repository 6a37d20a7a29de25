"""The stores under the original's names, and what rank assignments do with them."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from softrun.runtime.inprocess import Mode, State, store
from softrun.runtime.inprocess.store import BarrierOverflow, BarrierTimeout, IterationStore

SECOND = timedelta(seconds=1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> store.StoreMixin:
    """A store that this process hosts as rank 0, at the address of its environment."""
    probe = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(probe.port))
    del probe
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    made: store.StoreMixin = store.TCPStore()
    return made


def test_rank_0_hosts_the_store_of_the_environment_and_joins_one_that_is_there(server: store.StoreMixin) -> None:
    assert isinstance(server, dist.TCPStore)
    second = store.TCPStore(wait_for_workers=False)
    server.set("key", "value")  # type: ignore[attr-defined]
    assert second.get("key") == b"value"
    prefixed = store.PrefixStore(3, server)
    assert isinstance(prefixed, store.StoreMixin)
    prefixed.set("key", "of iteration 3")
    assert server.get("3/key") == b"of iteration 3"  # type: ignore[attr-defined]


def test_states_and_keys_are_exchanged_and_nothing_is_pickled(server: store.StoreMixin) -> None:
    state = State(1, 4, active_rank=1, mode=Mode.ACTIVE, fn_exception=ValueError("here"), iteration=2)
    server.send_state(state, 1)
    (told,) = server.get_states([1])
    assert (told.rank, told.mode, told.iteration, told.fn_exception) == (1, Mode.ACTIVE, 2, None)
    server.send_key(["rack", 7], 1)
    assert server.get_keys([1]) == [["rack", 7]]
    assert server.get_packed("no such key", ";") == []
    server.append("packed", "a;")  # type: ignore[attr-defined]
    server.append("packed", "b;")  # type: ignore[attr-defined]
    assert server.get_packed("packed", ";") == ["a", "b"]


def test_a_barrier_waits_for_all_and_for_no_longer_than_it_is_told(server: store.StoreMixin) -> None:
    """torch's own TCPStore has a barrier of another meaning."""
    other = store.TCPStore()
    thread = threading.Thread(target=other.barrier, args=([1], "both", 2, 30 * SECOND, SECOND / 10))
    thread.start()
    server.barrier([0], "both", 2, 30 * SECOND)
    thread.join()
    with pytest.raises(BarrierOverflow, match="barrier 'both' is for 2 ranks, and 3 came"):
        server.barrier([2], "both", 2, SECOND)
    with pytest.raises(BarrierTimeout, match=r"barrier .alone.: fewer than 2 ranks came within 0\.2 s"):
        server.barrier([0], "alone", 2, SECOND / 5, timeout_chunk=SECOND / 20)


def test_an_iterations_store_has_the_methods_of_torchs() -> None:
    torchs = dist.HashStore()
    kept = IterationStore(lambda act, timeout: act(torchs), "1/")
    kept.set("a", "1")
    kept.multi_set(["b", "c"], ["2", "3"])
    assert kept.multi_get(["a", "b", "c"]) == [b"1", b"2", b"3"]
    assert kept.add("count", 2) == 2
    assert kept.compare_set("a", "1", "4") == b"4"
    assert kept.check(["a", "b"])
    assert not kept.check(["a", "d"])
    assert kept.delete_key("a")
    assert not kept.check(["a"])
    assert torchs.get("1/b") == b"2"
    assert kept.num_keys() == torchs.num_keys()
