"""The page: a little memory that an agent shares with one worker, mapped from a file in the channel.

    version, owner, beat, ping, took, step + 1      64-bit numbers from the worker (`softrun.runtime.channel.progress`)
    event, hold, leave, shows                       64-bit numbers from the agent
    told                                            the agent's newest event, as in its file
    said                                            the worker's status, as in its file

It is made with the channel and keeps its space: writing to it needs no room on the disk, no directory and no system
call. So the newest event and the status get through even if their files cannot be written, or were removed.

Times are in nanoseconds, and 0 means "not in use". **event** is the number of the newest event, written after the event
itself, so looking for one after every step costs nothing. **hold** and **leave** are explained in
`softrun.runtime.channel.allowance`. **shows** is how many times the agent has asked for the stacks of all threads.
**owner** is the process that may write the worker's part (`softrun.runtime.channel.ownership`).

A message is followed by its number, length and checksum. A reader that comes while it is being written sees that they
do not match, and reads again.
"""

from __future__ import annotations

import mmap
import struct
import zlib

VERSION = 5
MESSAGE_BYTES = 32 << 10
"""Room for a fault's text and more. A longer message is only in its file."""

_VERSION, OWNER, BEAT, PING, TOOK, STEP, EVENT, HOLD, LEAVE, SHOWS = range(10)
_NUMBERS_BYTES = 128
SIZE = _NUMBERS_BYTES + 2 * MESSAGE_BYTES


class Page:
    """The page, in memory that is already mapped. Both ends make one."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.words = memoryview(memory).cast("Q")
        """The numbers, in the order above. Reading or writing one is a single instruction."""
        self.told = Message(memory, _NUMBERS_BYTES)
        self.said = Message(memory, _NUMBERS_BYTES + MESSAGE_BYTES)

    @property
    def is_in_use(self) -> bool:
        """Whether a worker of this version shows its progress."""
        return self.words[_VERSION] == VERSION and self.words[BEAT] > 0

    def close(self) -> None:
        """Give the memory back: nobody of this process may look at it any more."""
        self.words.release()
        self._memory.close()

    def begin(self) -> None:
        """A worker shows its progress from now on."""
        self.words[_VERSION] = VERSION


class Message:
    """Room for one message. Each has one writer, whose numbers rise."""

    _HEADER = struct.Struct("=QII")  # number, length, checksum

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._begin = offset + self._HEADER.size

    @property
    def number(self) -> int:
        """The number of the current message; 0 if there is none."""
        return int(self._HEADER.unpack_from(self._memory, self._offset)[0])

    def put(self, number: int, content: bytes) -> bool:
        """Write a message; returns False if it does not fit, and leaves the last one there."""
        if len(content) > MESSAGE_BYTES - self._HEADER.size:
            return False
        self._memory[self._begin : self._begin + len(content)] = content
        self._HEADER.pack_into(self._memory, self._offset, number, len(content), zlib.crc32(content, number))
        return True

    def get(self, after: int) -> bytes | None:
        """The message, if its number is above `after`; None otherwise, and while it is being written."""
        number, length, checksum = self._HEADER.unpack_from(self._memory, self._offset)
        content = bytes(self._memory[self._begin : self._begin + length])
        return content if number > after and zlib.crc32(content, number) == checksum else None
