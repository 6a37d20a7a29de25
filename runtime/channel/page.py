"""The page: a little memory that an agent shares with one worker, as a file of the worker's channel.

    version, owner, beat, ping, took, step + 1      64-bit numbers of the worker's (`softrun.runtime.channel.progress`)
    event, hold, leave, shows                       64-bit numbers of the agent's
    told                                            the agent's newest event, as its file has it
    said                                            the worker's status, as its file has it

It is made with the channel and keeps its room: what is written here needs no space on a disk, no directory and no
system call. So the newest event and the status get through when their files cannot be written, or were removed.

Times are nanoseconds, and 0 is "not in use". **event** is the number of the newest event, written after the event
itself: to look for one after every step costs nothing. Of **hold** and **leave** `softrun.runtime.channel.allowance`
tells. **shows** is how often the agent has asked for the stacks of all threads. **owner** is the process that may write
the worker's part (`softrun.runtime.channel.ownership`).

A message is written with its number, length and checksum behind it: who reads while it is written finds that they do
not fit, and looks again.
"""

from __future__ import annotations

import mmap
import struct
import zlib

VERSION = 5
MESSAGE_BYTES = 32 << 10
"""With room for a fault's text and more; a message that is longer is in its file alone."""

_VERSION, OWNER, BEAT, PING, TOOK, STEP, EVENT, HOLD, LEAVE, SHOWS = range(10)
_NUMBERS_BYTES = 128
SIZE = _NUMBERS_BYTES + 2 * MESSAGE_BYTES


class Page:
    """The page in memory that is mapped already; both ends have one."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.words = memoryview(memory).cast("Q")
        """By the names above. A store into one of them, or a load, is one instruction."""
        self.told = Message(memory, _NUMBERS_BYTES)
        self.said = Message(memory, _NUMBERS_BYTES + MESSAGE_BYTES)

    @property
    def is_in_use(self) -> bool:
        """Whether a worker of this version shows its progress."""
        return self.words[_VERSION] == VERSION and self.words[BEAT] > 0

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
        """Of the message that is there; 0 if there is none."""
        return int(self._HEADER.unpack_from(self._memory, self._offset)[0])

    def put(self, number: int, content: bytes) -> bool:
        """False if it does not fit: then the last one stays."""
        if len(content) > MESSAGE_BYTES - self._HEADER.size:
            return False
        self._memory[self._begin : self._begin + len(content)] = content
        self._HEADER.pack_into(self._memory, self._offset, number, len(content), zlib.crc32(content, number))
        return True

    def get(self, after: int) -> bytes | None:
        """The message, if its number is above `after`; None as well while it is being written."""
        number, length, checksum = self._HEADER.unpack_from(self._memory, self._offset)
        content = bytes(self._memory[self._begin : self._begin + length])
        return content if number > after and zlib.crc32(content, number) == checksum else None
