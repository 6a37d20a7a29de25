"""The snapshots of one State: when all ranks take one, and how they find and load the newest that is whole.

Each rank writes its tensors into memory of its node's keeper, which outlives the workers, and the keeper sends a copy
to that of the next node. Ranks that have the same tensors, such as those of DDP, share the work. What only an optimizer
changes is copied aside, until the optimizer's next step at most. One snapshot stays whole while the next is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from softrun.runtime.snapshots.images import (
    Address,
    Image,
    Listing,
    Snapshot,
    neighbours_of,
    newest_whole,
)
from softrun.runtime.snapshots.keeper import KeeperClient, LocalKeeper, SnapshotError, reach
from softrun.runtime.snapshots.wire import KEY_BYTES
from softrun.runtime.state.contents import Contents
from softrun.runtime.state.disk.checkpoints import cause_of, torchs_checkpoint
from softrun.runtime.state.messages import Messages
from softrun.runtime.state.snapshot_reader import snapshot_reader
from softrun.runtime.state.stored import Stored, copies_into, copy_all, wait_for_devices

NONE = -1
_SAFE, _PENDING, _FAILED = 1, 0, -1

_states: Counter[tuple[str, int]] = Counter()  # begun in this process, by their names, in each world

_log = logging.getLogger("softrun.runtime")


class _World(NamedTuple):
    """What the ranks of a world have agreed on for their snapshots."""

    owner: str
    """This worker's name for its keeper, which it has in the next world as well."""
    key: bytes
    copy_to: Address | None
    place: int
    """Of this rank among those that have the same tensors."""
    sharing: int
    """How many those are."""


class Snapshots:
    """Takes and loads the snapshots of one State. All ranks of a world call each method at the same step."""

    def __init__(self) -> None:
        self._state = ""  # its name for the keepers, from the first `newest` on
        self._keeper: LocalKeeper | None = None
        self._world: _World | None = None  # None also if no snapshots can be taken there
        self._agreed_in: int | None = None  # the round of the world in which the ranks have agreed
        self._last: Image | None = None  # of this world
        self._is_written = False
        self._whole: tuple[int, int] | None = None  # commits and round of the last one that is known to be whole
        self._copying: threading.Thread | None = None
        self._told: set[str] = set()

    def take(self, contents: Contents, steady: Callable[[], set[int]], commits: int, round_: int, every: int) -> bool:
        """Begin to take a snapshot if it is time; returns whether one was begun.

        `steady` returns the addresses of the tensors that only an optimizer changes. Raises SnapshotError if there is
        no room for it.
        """
        if self._agreed_in != round_:
            self._agree(contents)
            self._agreed_in = round_
        if self._world is None or commits % every:
            return False
        messages = Messages()
        rows = messages.gather([*(self._whole or (NONE, NONE)), self._verdict()])
        verdicts = {verdict for _, _, verdict in rows}
        if _PENDING in verdicts:
            self._tell_once("a snapshot is left out, since the last one is still being written: take them less often")
            return False
        if self._last is not None and verdicts == {_SAFE}:
            self._whole = self._last.commits, self._last.round
        elif (newest := max((commits, round_) for commits, round_, _ in rows)) > (NONE, NONE):
            self._whole = newest
        image = Image(state=self._state, commits=commits, round=round_, rank=messages.rank, world_size=messages.size)
        self._begin(image, contents, steady, self._world)
        return True

    def finish_copying(self) -> None:
        """Wait until the tensors may be changed."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    # --- coming back

    def newest(self, contents: Contents, round_: int) -> int:
        """The number of commits of the newest image that this node holds; NONE without one."""
        self._state = self._state or _name_of(contents, round_)
        if (keeper := self._reach_own(start=False)) is None:
            return NONE
        state = self._state
        try:
            return max((image.commits for image in keeper.listing().images if image.state == state), default=NONE)
        except (OSError, ValueError):
            self._lose_keeper()
            return NONE

    def find(self, messages: Messages) -> tuple[Snapshot, bytes] | None:
        """The newest snapshot that is whole, and the key with which it can be read; None if there is none."""
        keeper = self._reach_own(start=False)
        said: dict[str, Any] = {"key": secrets.token_hex(KEY_BYTES)}
        try:
            if keeper is not None:
                said["listing"] = keeper.listing().model_dump()
        except OSError:
            self._lose_keeper()
            keeper = None
        told = [json.loads(text) for text in messages.exchange(json.dumps(said).encode())]
        key = bytes.fromhex(told[0]["key"])
        if keeper is not None:
            keeper.trust(key)
        messages.gather([0])  # all keepers trust it
        listings = [Listing.model_validate(each["listing"]) for each in told if "listing" in each]
        found = newest_whole(listings, self._state)
        return None if found is None else (found, key)

    def load(self, snapshot: Snapshot, key: bytes, contents: Contents, rank: int) -> int:
        """Load a snapshot, on this rank; returns how many bytes were read.

        Raises ValueError, with the key, if it does not fit what is here, and then nothing is changed; SnapshotError and
        OSError if it cannot be read.
        """
        dcp = torchs_checkpoint()
        source = _Source(snapshot, key, self._reach_own(start=False))
        try:
            images = [(image, Stored.model_validate(source.about(image))) for image, _ in snapshot.images]
            _, own = images[rank if rank < len(images) else 0]
            filling = contents.prepare(own.description, parts_count=False)
            filling.load_plain()
            dcp.load(dict(filling.given), storage_reader=snapshot_reader(images, source.fetch), no_dist=True)
            filling.load()
        except dcp.CheckpointException as error:
            raise SnapshotError(f"the snapshot of step {snapshot.commits} cannot be read: {cause_of(error)}") from error
        finally:
            source.close()
        self._whole = snapshot.commits, snapshot.round
        return source.received

    # --- in one world

    def _agree(self, contents: Contents) -> None:
        """Find out who the neighbours are, who has the same tensors, and whether there is room."""
        self.finish_copying()
        self._world = self._last = self._agreed_in = None
        messages = Messages()
        keeper = self._reach_own(start=True)
        said = {
            "address": None if keeper is None else self._address_of(keeper),
            "key": secrets.token_hex(KEY_BYTES),
            "part": contents.part,
        }
        told = [json.loads(text) for text in messages.exchange(json.dumps(said).encode())]
        without = [rank for rank, each in enumerate(told) if each["address"] is None]
        if without or keeper is None:
            self._tell_once(f"no snapshots are taken: the ranks {without} have no agent that keeps them")
            return
        key = bytes.fromhex(told[0]["key"])
        addresses = [(str(host), int(port)) for host, port in (each["address"] for each in told)]
        copy_to = neighbours_of(addresses)[messages.rank]
        owner = f"worker {addresses[: messages.rank].count(addresses[messages.rank])}"
        alike = [rank for rank, each in enumerate(told) if each["part"] == contents.part]
        world = _World(owner, key, copy_to, alike.index(messages.rank), len(alike))
        refused: SnapshotError | None = None
        is_gone = False
        try:
            keeper.trust(key)
            stored = Stored.of(contents.view(), world.place, world.sharing)
            keeper.make_room(world.owner, stored.size, copies=copy_to is not None)
        except SnapshotError as error:
            refused = error
        except OSError:
            is_gone = True
            self._lose_keeper()
        found = messages.gather([refused is not None, is_gone])
        ranks = [rank for rank, (is_refused, _) in enumerate(found) if is_refused]
        if refused is not None:
            raise refused
        if ranks:
            raise SnapshotError(f"there is no room for the snapshots of the ranks {ranks}, whose logs say more")
        if any(is_gone for _, is_gone in found):
            self._tell_once("no snapshots are taken in this world: a keeper has died")
        else:
            self._world = world

    def _address_of(self, keeper: LocalKeeper) -> Address | None:
        try:
            return keeper.address()
        except OSError:
            self._lose_keeper()
            return None

    def _begin(self, image: Image, contents: Contents, steady: Callable[[], set[int]], world: _World) -> None:
        self._last, self._is_written = image, False
        keeper = self._reach_own(start=True)
        if keeper is None:
            return
        try:
            view = contents.view()
            stored = Stored.of(view, world.place, world.sharing)
            keeper.forget(image.state, self._whole, (image.commits, image.round))
            now, later = copies_into(keeper.reserve(world.owner, image, stored.size), stored, view.local, steady())
        except (OSError, SnapshotError) as error:
            self._tell_once(f"no snapshot is taken: {error}")
            if isinstance(error, OSError):
                self._lose_keeper()
            return
        copy_all(now)
        wait_for_devices(later)

        def finish() -> None:
            try:
                copy_all(later)
                keeper.seal(image, stored.model_dump(), world.copy_to, world.key)
                self._is_written = True
            except (OSError, SnapshotError) as error:
                self._tell_once(f"a snapshot was not completed: {error}")

        self._copying = threading.Thread(target=finish, name="softrun-snapshot")
        self._copying.start()

    def _verdict(self) -> int:
        """How this rank's part of the last snapshot is."""
        if self._last is None:
            return _SAFE
        if self._copying is not None and self._copying.is_alive():
            return _PENDING
        if not self._is_written or self._keeper is None:
            return _FAILED
        try:
            return {True: _SAFE, None: _PENDING, False: _FAILED}[self._keeper.is_safe(self._last)]
        except OSError:
            self._lose_keeper()
            return _FAILED

    def _reach_own(self, *, start: bool) -> LocalKeeper | None:
        self.finish_copying()  # it has the connection until then
        if self._keeper is None:
            try:
                self._keeper = LocalKeeper.find(start=start)
            except OSError as error:
                self._tell_once(f"this node's keeper of snapshots cannot be reached: {error}")
        return self._keeper

    def _lose_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def _tell_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            _log.warning("%s", text)


class _Source:
    """Where the images of a snapshot are read: in this node's keeper, if it has them, or in another one's."""

    def __init__(self, snapshot: Snapshot, key: bytes, own: LocalKeeper | None) -> None:
        self._addresses = dict(snapshot.images)
        self._key = key
        self._clients: dict[Address, KeeperClient] = {}
        self._own = own
        if own is not None:
            self._clients[own.address()] = own
        self.received = 0

    def about(self, image: Image) -> dict[str, Any]:
        """What its owner has said of it."""
        return dict(self._try_all(image, lambda client: client.about(image)))

    def fetch(self, image: Image, start: int, room: memoryview) -> None:
        """Fill `room` with the image's bytes from `start`."""
        self._try_all(image, lambda client: client.read(image, start, room))
        self.received += len(room)

    def close(self) -> None:
        """End the connections to other nodes."""
        for client in self._clients.values():
            if client is not self._own:
                client.close()

    def _try_all(self, image: Image, do: Callable[[KeeperClient], Any]) -> Any:
        """Whoever cannot do it is not asked for that image again."""
        failed: Exception | None = None
        for address in sorted(self._addresses[image], key=lambda address: address not in self._clients):
            try:
                if address not in self._clients:
                    self._clients[address] = reach(address, self._key)
                return do(self._clients[address])
            except (OSError, SnapshotError) as error:
                failed = error
                self._addresses[image].remove(address)
        raise SnapshotError(f"the part of rank {image.rank} of the snapshot cannot be read: {failed}")


def _name_of(contents: Contents, round_: int) -> str:
    """The same for the State of a worker that is started again; another one for a second State in the same world."""
    digest = hashlib.sha256(json.dumps(contents.names).encode()).hexdigest()[:16]
    _states[digest, round_] += 1
    return f"{digest}-{_states[digest, round_]}"
