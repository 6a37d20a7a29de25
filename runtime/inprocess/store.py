"""The store through which the ranks of an iteration meet, for rank assignments of one's own.

softrun's agents host it, so no rank is special and `store_factory` is not needed; TCPStore, FileStore and PrefixStore
are torch's, with the methods of StoreMixin.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from typing import Any, TypeVar

from softrun.runtime.inprocess.exception import BarrierError, BarrierOverflow, BarrierTimeout
from softrun.runtime.inprocess.state import Mode, State

__all__ = ["BarrierError", "BarrierOverflow", "BarrierTimeout", "IterationStore", "StoreMixin"]

Result = TypeVar("Result")

PATIENCE = timedelta(minutes=5)
"""How long a rank waits for the others' keys, as torch's stores do."""


class CollectError(ValueError):
    """What one rank could not give or find. Every rank raises this, with the same text."""


class StoreMixin:
    """What rank assignments do with a store, besides torch's own methods."""

    def send_state(self, state: State, rank: int) -> None:
        """Let the other ranks know the state of this one."""
        told = {f.name: getattr(state, f.name) for f in fields(State) if f.name != "fn_exception"}
        self._self.set(f"state/{rank}", json.dumps(told | {"mode": state.mode.name}))

    def get_states(self, ranks: Iterable[int]) -> list[State]:
        """The states of these ranks, once they have been sent; without their exceptions."""
        told = [json.loads(text) for text in self._get_all([f"state/{rank}" for rank in ranks])]
        return [State(**state | {"mode": Mode[state["mode"]]}) for state in told]

    def send_key(self, key: Any, rank: int) -> None:
        """Let the other ranks know the key of this one, which JSON must be able to hold."""
        self._self.set(f"key/{rank}", json.dumps(key))

    def get_keys(self, ranks: Iterable[int]) -> list[Any]:
        """The keys of these ranks, once they have been sent."""
        return [json.loads(text) for text in self._get_all([f"key/{rank}" for rank in ranks])]

    def get_packed(self, key: str, sep: str) -> list[str]:
        """What was appended to a key, split at `sep`; nothing if nothing was."""
        if not self._self.check([key]):
            return []
        return [part for part in self._self.get(key).decode().split(sep) if part]

    def barrier(
        self,
        ranks: Iterable[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,
    ) -> None:
        """Wait until `rendezvous_count` ranks are here; `ranks` are those that come with this call.

        It waits in pieces of `timeout_chunk`, between which this rank shows that it makes progress. Raises
        BarrierTimeout, or BarrierOverflow if more have come. Use a name once.
        """
        ranks = set(ranks)
        here = self._self.add(f"barrier/{group_name}/here", len(ranks))
        if here > rendezvous_count:
            raise BarrierOverflow(f"barrier {group_name!r} is for {rendezvous_count} ranks, and {here} came")
        if here == rendezvous_count:
            self._self.set(f"barrier/{group_name}/all", "here")
        end = time.monotonic() + timeout.total_seconds()
        while not self._self.check([f"barrier/{group_name}/all"]):
            left = timedelta(seconds=end - time.monotonic())
            if left <= timedelta(0):
                raise BarrierTimeout(
                    f"barrier {group_name!r}: fewer than {rendezvous_count} ranks came within "
                    f"{timeout.total_seconds():g} s"
                )
            with suppress(Exception):  # this piece of the time is over
                self._self.wait([f"barrier/{group_name}/all"], min(left, timeout_chunk or left))

    @property
    def _self(self) -> Any:
        return self  # its other base is a store of torch's, or has its methods

    def _get_all(self, keys: Sequence[str]) -> list[bytes]:
        if not keys:
            return []
        self._self.wait(list(keys))
        return [bytes(value) for value in self._self.multi_get(list(keys))]


class IterationStore(StoreMixin):
    """The keys of one iteration's rank assignment. It has the methods of torch's Store; keys end with the iteration.

    `do` calls a function with the store, and raises TimeoutError after the given time.
    """

    def __init__(self, do: Callable[[Callable[[Any], Any], timedelta], Any], prefix: str) -> None:
        self._do = do
        self._prefix = prefix
        self._collected = 0
        self._timeout = PATIENCE

    def collect(
        self,
        rank: int,
        ranks: Sequence[int],
        give: Callable[[], Any],
        find: Callable[[list[Any]], Any],
        timeout: timedelta = PATIENCE,
    ) -> Any:
        """Every one of `ranks` gives something, the first of them finds something out of it, and all return that.

        What is given and found is JSON; `find` gets what was given in the order of `ranks`, which is the same on all.
        All must call it equally often. If `give` or `find` raises on one, CollectError is raised on all; BarrierTimeout
        if one does not come. It costs each rank three messages.
        """
        self._collected += 1
        name = f"collected/{self._collected}"
        self.set(f"{name}/{rank}", json.dumps(_outcome(give)))
        try:
            if rank == ranks[0]:
                self.set(f"{name}/found", json.dumps(_outcome(lambda: find(self._given(name, ranks, timeout)))))
            self.wait([f"{name}/found"], timeout)
        except TimeoutError as error:
            raise BarrierTimeout(f"not all of {len(ranks)} ranks have made the same rank assignment: {error}") from None
        return _value(json.loads(self.get(f"{name}/found")))

    def _given(self, name: str, ranks: Sequence[int], timeout: timedelta) -> list[Any]:
        keys = [f"{name}/{rank}" for rank in ranks]
        self.wait(keys, timeout)
        return [_value(json.loads(text), rank) for rank, text in zip(ranks, self.multi_get(keys), strict=True)]

    def set(self, key: str, value: str | bytes) -> None:
        """Give a key a value."""
        self._call(lambda store: store.set(self._prefix + key, value))

    def get(self, key: str) -> bytes:
        """The value of a key, once it has one."""
        self.wait([key])
        return bytes(self._call(lambda store: store.get(self._prefix + key)))

    def add(self, key: str, amount: int) -> int:
        """Add to a key's number, 0 at first; returns the sum."""
        return int(self._call(lambda store: store.add(self._prefix + key, amount)))

    def append(self, key: str, value: str) -> None:
        """Append to a key's value; see `get_packed`."""
        self._call(lambda store: store.append(self._prefix + key, value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        return bool(self._call(lambda store: store.check(self._all(keys))))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have a value. Raises TimeoutError."""
        self._do(lambda store: store.wait(self._all(keys), timedelta(days=365)), timeout or self._timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys that all have one."""
        return [bytes(value) for value in self._call(lambda store: store.multi_get(self._all(keys)))]

    def multi_set(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Give each key its value."""
        self._call(lambda store: store.multi_set(self._all(keys), list(values)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Give a key the desired value if it has the expected one, or none if that is ""; returns its value."""
        return bytes(self._call(lambda store: store.compare_set(self._prefix + key, expected, desired)))

    def delete_key(self, key: str) -> bool:
        """Delete a key; returns whether it was there."""
        return bool(self._call(lambda store: store.delete_key(self._prefix + key)))

    def num_keys(self) -> int:
        """How many keys there are in the whole store, this iteration's and others."""
        return int(self._call(lambda store: store.num_keys()))

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` wait if they are told nothing else."""
        self._timeout = timeout

    def _call(self, act: Callable[[Any], Result]) -> Result:
        result: Result = self._do(act, PATIENCE)
        return result

    def _all(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in keys]


def _outcome(act: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": act()}
    except TimeoutError:
        raise
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever one rank raises, all do
        return {"error": f"{type(error).__name__}: {error}"}


def _value(outcome: dict[str, Any], rank: int | None = None) -> Any:
    if "error" in outcome:
        raise CollectError(outcome["error"] if rank is None else f"on rank {rank}: {outcome['error']}")
    return outcome["value"]


def __getattr__(name: str) -> Any:
    """torch's stores are made when they are asked for: workers without torch can import this module."""
    if name not in ("TCPStore", "FileStore", "PrefixStore"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_stores())
    return globals()[name]


def _stores() -> dict[str, type]:
    import torch.distributed as dist

    class TCPStore(StoreMixin, dist.TCPStore):  # type: ignore[misc, name-defined]
        """torch's TCPStore, by default at MASTER_ADDR and MASTER_PORT: rank 0 hosts it, unless somebody does already.

        A replaced rank finds a store of your own only if its address is the same in each world, unlike MASTER_PORT.
        """

        def __init__(
            self,
            host_name: str | None = None,
            port: int | None = None,
            world_size: int | None = None,
            timeout: timedelta = PATIENCE,
            wait_for_workers: bool = True,
            multi_tenant: bool = False,
            use_libuv: bool = True,
        ) -> None:
            where = {
                "host_name": os.environ["MASTER_ADDR"] if host_name is None else host_name,
                "port": int(os.environ["MASTER_PORT"]) if port is None else port,
                "world_size": int(os.environ["WORLD_SIZE"]) if world_size is None else world_size,
                "timeout": timeout,
                "wait_for_workers": wait_for_workers,
                "multi_tenant": multi_tenant,
                "use_libuv": use_libuv,
            }
            if os.environ["RANK"] == "0":
                with suppress(RuntimeError):  # somebody else listens there
                    super().__init__(is_master=True, **where)
                    return
            super().__init__(is_master=False, **where)

    class FileStore(StoreMixin, dist.FileStore):  # type: ignore[misc, name-defined]
        """torch's FileStore."""

    class PrefixStore(StoreMixin, dist.PrefixStore):  # type: ignore[misc, name-defined]
        """torch's PrefixStore, whose prefix is an iteration's number."""

        def __init__(self, iteration: int | str, store: Any) -> None:
            super().__init__(f"{iteration}", store)

    made: dict[str, type] = {}
    for kind in (TCPStore, FileStore, PrefixStore):
        kind.__qualname__ = kind.__name__
        made[kind.__name__] = kind
    return made
