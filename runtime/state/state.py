"""The state of a training that survives: all ranks leave `State.sync` with the same step, and whole.

In each world the ranks compare how far they are, in one small all-gather. Ranks that lack something get it from those
that have it: newcomers, a rank whose optimizer's step was interrupted half-way, and survivors that are a step behind
because the loss struck between two ranks' steps. If nobody lacks anything, nothing is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from softrun.runtime.live.world import LiveWorld
from softrun.runtime.state.buffers import Buffers
from softrun.runtime.state.contents import Contents, Description, Filling
from softrun.runtime.state.disk.aside import Aside
from softrun.runtime.state.disk.checkpoints import read, write, write_aside
from softrun.runtime.state.healing import Healing, heal
from softrun.runtime.state.messages import Messages
from softrun.runtime.state.plan import NOTHING, TORN, Plan, Row, StateLostError, disowned, plan_of
from softrun.runtime.state.snapshots import Snapshots
from softrun.runtime.state.steps import Phase, Steps
from softrun.runtime.state.transport import CheckpointTransport
from softrun.runtime.worker import current_round, is_open

_log = logging.getLogger("softrun.runtime")


class HasRound(Protocol):
    """A world: `World`, or that of a block of live_workers."""

    @property
    def round(self) -> int:
        """The number of the world."""


class Held(NamedTuple):
    """What a rank had before parts were replaced by others, until the next sync."""

    contents: Contents
    progress: int
    is_ready: bool


class State:
    """What the training has, by names of your own: objects with `state_dict` and `load_state_dict`, and plain values.

        state = softrun.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, step=0)
        for world in softrun.worlds(state=state):
            with world.process_group():                # all ranks go on from the same step, as by state.sync(world)
                while state.step < total:
                    loss(model, sampler).backward()
                    optimizer.step()
                    state.commit()                     # right after the optimizer: this step is complete
                    world.check(state.step)

    The names become attributes. Plain values are numbers, strings, None, tensors, and lists, tuples and dicts of them;
    assign to them as you like. Call `commit` after each optimizer's step, before anything that may fail: it adds 1 to
    `step`, if there is one, and commits the sampler. A model may be wrapped (DDP), or not, but the same on all ranks.

    Raises TypeError for a part that has one of the two methods alone, or whose state cannot be sent.
    """

    def __init__(self, **parts: Any) -> None:
        self._contents = Contents()
        self._buffers = Buffers()
        self._has_new_parts = True  # whose buffers were not looked for yet
        self._is_first = True  # the next commit, in its world: the first forward pass may have made buffers
        self._snapshots = Snapshots()
        self._aside = Aside()
        self._transport: CheckpointTransport | None = None
        self._steps = Steps(before=self._snapshots.finish_copying)
        self._commits: int | None = None  # None before the first sync: this rank has nothing that others would miss
        self._is_torn = False  # while it is healed, and while a step is committed
        self._round = 0  # of the world of the last sync
        self._has_gradients = False
        self._held: Held | None = None
        for name, part in parts.items():
            if hasattr(type(self), name):
                raise ValueError(f"State has a method {name!r}: choose another name for that part")
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            return self._contents.get(name)
        raise AttributeError(name)

    def __setattr__(self, name: str, part: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, part)
        else:
            if self._held is None and self._commits is not None and self._contents.is_part(name):
                self._held = Held(self._contents.copy(), self._progress, self._is_ready)
            self._contents.put(name, part)
            self._steps.watch(name, part)
            if self._contents.is_part(name):
                self._has_new_parts = True

    @property
    def commits(self) -> int | None:
        """How many steps were committed in all; None before the first `sync` or `load`."""
        return self._commits

    def commit(self) -> None:
        """The step is complete on this rank: call it on all ranks, right after the optimizer's step."""
        self._is_torn = True  # if it is interrupted here, in a wrapped function
        self._contents.commit()
        self._steps.commit()
        self._commits = (self._commits or 0) + 1
        self._has_gradients = False
        self._keep_buffers(look=self._is_first)
        self._is_first = False
        self._is_torn = False

    def ready(self) -> None:
        """Tell that all ranks have all gradients of this step. It makes a sharded state survive the loss of any rank.

        Call it on all ranks right before the optimizer's step, after a collective that no rank begins before its
        backward pass has ended. If a loss then strikes while some ranks have taken the step and others have not, `sync`
        has the others take it as well, so that no shard is left at a step that nobody else has any more.

            loss.backward()
            dist.all_reduce(loss)       # whoever gets past this knows that every rank has its gradients
            state.ready()
            optimizer.step()
            state.commit()
        """
        self._has_gradients = True

    def snapshot(self, every: int = 1) -> bool:
        """Keep a snapshot in memory that outlives the workers, each `every` steps; returns whether one was begun.

        Call it on all ranks after each `commit`, outside of everything else that the ranks do together. If the workers
        are restarted, or if no survivor has what is lost, `sync` goes on from the newest snapshot that is whole. Each
        rank's part is written into its node's memory while the next forward and backward passes run, and copied to the
        next node; two are kept, so one is whole at any time. Ranks with the same tensors (DDP) share the work.

            optimizer.step()
            state.commit()
            state.snapshot(every=100)

        Before an optimizer's step, the rest of the copying is waited for. Do not change the parameters otherwise. If a
        snapshot is still being written when the next is due, that one is left out. Without an agent of softrun, nothing
        is kept, and the log says so once.

        The first call in each world raises SnapshotError, with the arithmetic, if there is no room for them; any call
        raises what torch raises for a lost peer.
        """

        def steady() -> set[int]:
            return self._contents.optimized(self._steps.watched)

        return self._snapshots.take(self._contents, steady, self._commits or 0, self._round, every)

    def save(self, path: str | Path, keep: int = 2, wait: bool = True) -> Path:
        """Write a checkpoint into the directory `path`, which all ranks share; returns the checkpoint's folder.

        Call it on all ranks of a world, between two steps. A checkpoint has its name only when it is whole; then the
        `keep` newest stay. Its files are those of torch.distributed.checkpoint, so a sharded state can be loaded by any
        number of ranks. Raises OSError if it cannot be written, and what torch raises for a lost peer.

        `wait=False`: return as soon as all of it is in memory, which takes as much of that as this rank's part has, and
        write the files while training goes on. The folder comes when they are whole; if they cannot be written, or a
        rank is lost before, the log says so and there is no folder. One is written at a time: the next call waits for
        the last one, and so does the end of the process, unless a signal ends it.
        """
        if is_open() and current_round() != self._round:
            self.sync()  # a rank may lack what others have, in a world that was formed to save
        what = (Path(path), self._contents.view(), self._commits or 0, self._round, keep)
        if not wait:
            return write_aside(self._aside, *what)
        self._aside.settle(Messages())
        return write(*what)

    def load(self, path: str | Path) -> int | None:
        """Load the newest whole checkpoint in the directory `path`; returns its number of commits, or None without one.

        Call it on each rank before the first `sync`, when the parts are built; it talks to nobody. A damaged checkpoint
        is passed over. Raises ValueError, with the key, if a checkpoint is of other parts, and OSError if it cannot be
        read. torch's files are pickles: load none from a place where others may write.
        """
        commits = read(Path(path), self._contents)
        if commits is not None:
            self._commits = commits
            self._steps.forget()
            self._buffers = Buffers()
            self._has_new_parts = True
        return commits

    def heal_by(self, transport: CheckpointTransport | None) -> None:
        """Have `transport` carry the tensors of later healings, on all ranks alike; None: softrun's own way.

        Which ranks need what, and whether it fits, is found out as ever. torchft's transports fit, too; some of them
        unpickle what they receive, which softrun itself never does.
        """
        self._transport = transport

    def sync(self, world: HasRound | None = None, on_progress: Callable[[Healing], None] | None = None) -> int:
        """Give all ranks the same state, the newest that is whole; returns how many bytes this rank has received.

        Call it on all ranks of a world, after its group was built and before the first step. `on_progress(healing)` is
        called in this thread whenever bytes arrive. At the beginning, the first rank's state counts.

        If no rank has what some rank lacks, or if all have just begun, all go on from the newest snapshot in memory.

        Raises StateLostError if there is none; ValueError, with the key, if what this rank has does
        not fit what the others have, and then nothing of it is changed; and what torch raises if a peer is lost: then
        call it again in the next world.
        """
        self._round = self._round_of(world)
        self._snapshots.finish_copying()
        messages = Messages()
        has = Held(self._contents, self._progress, self._is_ready) if self._held is None else self._held
        own = Row(has.progress, has.contents.part, self._contents.part, has.is_ready)
        in_memory = self._snapshots.newest(self._contents, self._round)
        told = messages.gather([*own, isinstance(world, LiveWorld) and world.came_back, in_memory])
        rows = disowned([Row(*row) for *row, _, _ in told], [bool(is_void) for *_, is_void, _ in told])
        newest_in_memory = max(in_memory for *_, in_memory in told)
        try:
            plan = plan_of(rows)
        except StateLostError as lost:
            received = self._load_snapshot(messages)
            if received is None:
                raise lost from None
        else:
            received = self._load_snapshot(messages) if 2 * newest_in_memory > plan.newest else None
            if received is None:
                received = self._go_on(messages, rows, plan, has, on_progress)
        self._contents.resume()
        return received

    def _round_of(self, world: HasRound | None) -> int:
        if world is not None:
            return world.round
        return current_round() if is_open() else self._round + 1

    def _load_snapshot(self, messages: Messages) -> int | None:
        """Load the newest snapshot that is whole, on all ranks; returns how many bytes this rank has read, or None if
        there is none."""
        if (found := self._snapshots.find(messages)) is None:
            return None
        snapshot, key = found
        self._is_torn = True
        received = self._snapshots.load(snapshot, key, self._contents, messages.rank)
        messages.gather([snapshot.commits])  # all have it: whoever is lost now is lost in a state that all have
        self._begin_at(2 * snapshot.commits)
        if messages.rank == 0:
            _log.info("all go on from the snapshot of step %d", snapshot.commits)
        return received

    def _go_on(
        self,
        messages: Messages,
        rows: Sequence[Row],
        plan: Plan,
        has: Held,
        on_progress: Callable[[Healing], None] | None,
    ) -> int:
        """Give all ranks what some have; returns how many bytes this rank has received."""
        own = rows[messages.rank].progress
        # Whoever is behind was through with its forward pass: otherwise the others could not have taken the step.
        if is_undone := own == plan.newest >= 0 and own % 2 == 0:
            self._buffers.put_back()
        self._take_the_step(messages, rows, plan, has.contents)
        received = self._heal(messages, plan, has.contents, on_progress) if plan.sources else 0
        if self._held is not None and messages.rank not in plan.sources:
            filling = self._contents.prepare((view := has.contents.view()).description)
            filling.take_from(view)
            filling.load()
        self._begin_at(plan.newest, has_kept=is_undone and not received)
        if plan.newest > 0 and plan.newest % 2:
            _log.warning(
                "a step was complete but committed on no rank, and is committed now: call commit() right after the "
                "optimizer's step, before anything that may fail"
            )
            self.commit()
        return received

    def _begin_at(self, progress: int, *, has_kept: bool = False) -> None:
        """All ranks have this progress now. `has_kept`: the copies of the buffers are what the buffers are."""
        self._held = None
        self._commits = max(progress, 0) // 2
        self._has_gradients = self._is_torn = False
        self._steps.forget()
        self._contents.forget_gradients()
        if self._has_new_parts or not has_kept:
            self._keep_buffers()
        self._is_first = True

    def _keep_buffers(self, *, look: bool = False) -> None:
        if look or self._has_new_parts:
            self._buffers.look(self._contents.trained())
            self._has_new_parts = False
        else:
            self._buffers.keep()

    def _take_the_step(self, messages: Messages, rows: Sequence[Row], plan: Plan, has: Contents) -> None:
        """Ranks that are ready take the step that others have taken; what else that step changed, they are told."""
        if messages.rank in plan.late and rows[messages.rank].progress % 2 == 0:
            has.step()
            if self._held is not None:
                self._held = Held(has, self._held.progress + 1, is_ready=False)
        if plan.newest % 2 == 0:
            teller = next(rank for rank, row in enumerate(rows) if row.progress == plan.newest)
            for rank in plan.late:
                if messages.rank == teller:
                    messages.send_text(has.view().text, rank)
                elif messages.rank == rank:
                    has.take_plain(Description.model_validate_json(messages.receive_text(teller)))

    @property
    def _is_ready(self) -> bool:
        return self._has_gradients and self._steps.phase is Phase.WHOLE

    @property
    def _progress(self) -> int:
        phase = self._steps.phase
        if self._is_torn or (phase is Phase.TORN and self._commits is not None):
            return TORN
        if self._commits is None:
            return NOTHING
        return 2 * self._commits + (phase is Phase.COMPLETE)

    def _heal(
        self,
        messages: Messages,
        plan: Plan,
        contents: Contents,
        on_progress: Callable[[Healing], None] | None,
    ) -> int:
        has, newest, sources = contents.view(), plan.newest, plan.sources
        digests = [each for (each,) in messages.gather([has.digest() if newest == NOTHING else has.outline()])]
        if newest == NOTHING:
            sources = {to: of for to, of in sources.items() if digests[to] != digests[of[0]]}
        for of in sources.values():
            if len({digests[rank] for rank in of}) > 1:
                raise ValueError(f"the ranks {list(of)} hold different tensors: build the same parts on all ranks")
        received = heal(messages, sources, has, self._prepare, on_progress, self._transport, newest)
        self._is_torn = False
        return received

    def _prepare(self, theirs: Description) -> Filling:
        filling = self._contents.prepare(theirs)
        filling.load_plain()
        self._is_torn = True
        return filling
