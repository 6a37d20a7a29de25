"""A block of work that succeeds on all workers of the world, or raises on all of them.

    while step < total:
        try:
            with softrun.live_workers(step) as world:      # entry: the same world on all
                world.process_group()                      # built again in each world
                loss = forward_backward(world)             # a stuck collective is aborted if a member is lost
        except softrun.PeerFailed as error:                # on every member
            continue
        optimizer.step()                                   # only after the block has succeeded on all
        step += 1

Source: "Fault tolerant distributed JAX", `live_devices`. What is promised there and here, and where they differ, is in
the documentation, "live_workers".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType

from softrun.runtime.live.members import Live, Member, Tag
from softrun.runtime.live.session import Observer, Session
from softrun.runtime.live.world import LiveWorld

_session = Session()


def live_workers(
    step: Tag = None, *, sync: Callable[[], object] | None = None, block_timeout: float | None = None
) -> LiveBlock:
    """Return a block to enter: its work succeeds on all workers of the world, or raises on all of them.

    Call it in the main thread of every worker, and enter it at once. It waits for all the others, and yields a
    `LiveWorld`, the same on all; a worker that comes later joins between two blocks. `step` is what this worker has
    completed, the same for all that were in the last block; `LiveWorld.tags` tells those of newcomers.

    `sync` is called at the end of the block: pass `torch.cuda.synchronize`, since a kernel that fails later would fail
    after the commit. `block_timeout`: seconds from one call to the next. If a worker takes longer, its stacks are
    shown, all leave their world, and who has not left it two seconds later is ended. None: no limit.

    If a member is lost or raises, all members raise `PeerFailed`, and those that have raised their own exception: at
    the end of the block, or where it begins if a worker comes to it too late. Collectives that wait for it are aborted,
    and the process groups are gone: the next block is in another world. What the block has changed in place stays
    changed, so let the optimizer step after the block. Raises `Evicted` if the others have gone on without this node,
    `CallMismatch` on all if the workers are at different places or steps, and RuntimeError for a call in another
    thread, inside a block, or outside of softrun.
    """
    if block_timeout is not None and not 0 < block_timeout < 1e9:
        raise ValueError(f"block_timeout {block_timeout} is no number of seconds above 0: leave it out for no limit")
    return LiveBlock(step, sync, block_timeout or 0.0)


def live_barrier(tag: Tag = None, scope: Iterable[Member | str] | None = None) -> Live:
    """Wait until every living worker has called, and return who they are: the same on all of them.

    `scope`: the members, or their names, that are asked about, this worker among them; None: all workers of the world.
    Workers in different scopes do not wait for each other. A worker that is lost meanwhile is not waited for. `tag` is
    shown to the others. Raises as `live_workers` does.
    """
    names = () if scope is None else tuple(sorted({each if isinstance(each, str) else each.name for each in scope}))
    if scope is not None and not names:
        raise ValueError("the scope is empty: leave it out to ask about all workers")
    return _session.barrier(tag, names, _caller())


def observe_calls(observer: Observer) -> None:
    """Show all later calls of this process to an observer; for softrun itself, see `softrun.testing.record`."""
    _session.observer = observer


class LiveBlock:
    """What `live_workers` returns: enter it once."""

    def __init__(self, step: Tag, sync: Callable[[], object] | None, timeout_s: float) -> None:
        self._step, self._sync, self._timeout_s = step, sync, timeout_s

    def __enter__(self) -> LiveWorld:
        self._site = _caller()
        return _session.enter(self._step, self._site, self._timeout_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._sync is not None:
            try:
                self._sync()
            except Exception as late:
                _session.fail(late, self._site)
                raise
        if error is None:
            _session.succeed(self._step, self._site, self._timeout_s)
        elif isinstance(error, Exception):
            _session.fail(error, self._site)
        else:
            _session.give_up(error)


def _caller() -> str:
    """Where the trainer is."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
