"""The images that a keeper holds, and the memory that they are in: buffers, which are used again and again.

Memory that is new to a process costs as much time as filling it; so an image is written into the buffer of one that
was dropped, if that is about as large.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from softrun.runtime.snapshots.images import Image

WASTE = 1.25
"""How much larger than its image a buffer may be."""
LEFT_ALONE = 1 << 28
"""Bytes of memory that are never taken: the training needs some as it goes."""


COPIES = "copies"


class NoRoomError(Exception):
    """There is too little memory."""


@dataclass
class Buffer:
    """Memory that can be shared with a worker."""

    number: int
    capacity: int
    descriptor: int
    memory: mmap.mmap
    owner: str
    """Whose images it is for: one of this node's workers, which has mapped it, or COPIES."""

    def fits(self, size: int) -> bool:
        """Whether an image of that size may be put there."""
        return size <= self.capacity <= max(size * WASTE, 1)

    def close(self) -> None:
        """Give it back."""
        self.memory.close()
        os.close(self.descriptor)


@dataclass
class HeldImage:
    """One image."""

    buffer: Buffer
    size: int
    checksum: int = 0
    about: dict[str, Any] = field(default_factory=dict)
    is_sealed: bool = False
    is_safe: bool | None = None
    """Whether it and its copy are there; None while they are being made."""
    users: int = 0
    is_dropped: bool = False

    @property
    def content(self) -> memoryview:
        """Its bytes."""
        return memoryview(self.buffer.memory)[: self.size]


class HeldImages:
    """All images of a node: its own ranks', and copies of a neighbour's."""

    def __init__(self, memory_left: Callable[[], int]) -> None:
        self._memory_left = memory_left
        self._lock = threading.Lock()
        self._images: dict[Image, HeldImage] = {}
        self._buffers: dict[int, Buffer] = {}
        self._free: list[Buffer] = []
        self._made = 0

    @property
    def buffers(self) -> list[int]:
        """The numbers of all buffers."""
        with self._lock:
            return list(self._buffers)

    def make_room(self, owner: str, size: int, copies: bool) -> list[Buffer]:
        """Return two buffers for the images of a worker. Raises NoRoomError if they, or two copies, do not fit."""
        with self._lock:
            found = [buffer for buffer in self._buffers.values() if buffer.owner == owner and buffer.fits(size)][:2]
            self._check(size * (2 - len(found) + 2 * copies), f"{2 + 2 * copies} snapshots of {_told(size)}")
            made = [self._make(owner, size) for _ in range(2 - len(found))]
            self._free += made
            return found + made

    def reserve(self, image: Image, size: int, owner: str = COPIES) -> Buffer:
        """Return a buffer for an image that is about to be written. Raises NoRoomError."""
        with self._lock:
            self._drop(image)
            self._images[image] = HeldImage(buffer := self._take(owner, size), size)
            return buffer

    def seal(self, image: Image, about: dict[str, Any], expected: int | None = None) -> None:
        """It is complete. Raises KeyError if it is not there, ValueError if its checksum is not as expected."""
        with self.using(image) as held:
            checksum = zlib.crc32(held.content)
        if expected is not None and checksum != expected:
            raise ValueError("the copy has arrived damaged")
        with self._lock:
            held.about, held.checksum, held.is_sealed = about, checksum, True

    def check(self, image: Image) -> HeldImage:
        """Return a sealed image whose bytes are as they were. Raises KeyError."""
        with self.using(image) as held:
            if not held.is_sealed or zlib.crc32(held.content) != held.checksum:
                raise KeyError(image)
            return held

    def set_safe(self, image: Image, is_safe: bool) -> None:
        """It and its copy are there, or will not be."""
        with self._lock:
            if (held := self._images.get(image)) is not None:
                held.is_safe = is_safe

    def is_safe(self, image: Image) -> bool | None:
        """As of HeldImage; False if it is not there."""
        with self._lock:
            held = self._images.get(image)
            return False if held is None else held.is_safe

    def sealed(self) -> list[Image]:
        """The images that are complete."""
        with self._lock:
            return [image for image, held in self._images.items() if held.is_sealed]

    def forget(self, state: str, whole: Sequence[int] | None, since: Sequence[int]) -> None:
        """Drop all images of a State but those of the snapshot `whole`, (commits, round), and of `since` and later."""
        with self._lock:
            for image in list(self._images):
                if image.state == state and not (
                    (whole is not None and (image.commits, image.round) == tuple(whole))
                    or (image.round >= since[1] and image.commits >= since[0])
                ):
                    self._drop(image)
            if whole is not None and whole[1] == since[1]:  # all ranks of this world have an image, and need one more
                needed = Counter(held.buffer.owner for held in self._images.values())
                spare = []
                for buffer in self._free:
                    needed[buffer.owner] -= 1
                    if needed[buffer.owner] < 0:
                        spare.append(buffer)
                self._give_back(spare)

    def drop(self, image: Image) -> None:
        """Drop one that could not be completed."""
        with self._lock:
            self._drop(image)

    @contextmanager
    def using(self, image: Image) -> Iterator[HeldImage]:
        """Keep its memory as it is. Raises KeyError if it is not there."""
        with self._lock:
            held = self._images[image]
            held.users += 1
        try:
            yield held
        finally:
            with self._lock:
                held.users -= 1
                if held.is_dropped and held.users == 0:
                    self._free.append(held.buffer)

    def _drop(self, image: Image) -> None:
        held = self._images.pop(image, None)
        if held is not None:
            held.is_dropped = True
            if held.users == 0:
                self._free.append(held.buffer)

    def _take(self, owner: str, size: int) -> Buffer:
        fitting = next((buffer for buffer in self._free if buffer.owner == owner and buffer.fits(size)), None)
        if fitting is not None:
            self._free.remove(fitting)
            return fitting
        self._give_back([buffer for buffer in self._free if buffer.owner == owner])
        self._check(size, f"a snapshot of {_told(size)}")
        return self._make(owner, size)

    def _give_back(self, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            self._free.remove(buffer)
            del self._buffers[buffer.number]
            buffer.close()

    def _check(self, size: int, what: str) -> None:
        left = self._memory_left() - LEFT_ALONE
        if size > left:
            self._give_back(list(self._free))  # of earlier worlds, in which sizes and ranks were others
            left = self._memory_left() - LEFT_ALONE
        if size > left:
            raise NoRoomError(
                f"no room for {what}: {_told(size)} more are needed, and {_told(max(left, 0))} are left on this node; "
                "run fewer workers on it, shard the state over more of them, or take no snapshots"
            )

    def _make(self, owner: str, size: int) -> Buffer:
        descriptor = os.memfd_create("softrun-snapshot", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, max(size, 1))
            memory = mmap.mmap(descriptor, max(size, 1))
        except OSError as error:
            os.close(descriptor)
            raise NoRoomError(f"no room for a snapshot of {_told(size)}: {error.strerror}") from error
        self._made += 1
        self._buffers[self._made] = Buffer(self._made, max(size, 1), descriptor, memory, owner)
        return self._buffers[self._made]


def _told(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
