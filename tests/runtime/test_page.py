"""Messages in memory that is shared."""

from __future__ import annotations

import mmap

import pytest

from softrun.runtime.channel.page import MESSAGE_BYTES, SIZE, Page


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, SIZE)


def test_a_message_is_read_until_there_is_a_later_one(memory: mmap.mmap) -> None:
    told, said = Page(memory).told, Page(memory).said
    assert told.get(0) is None
    assert told.put(1, b"one")
    assert said.put(7, b"")
    assert (told.get(0), told.get(1), said.number, said.get(6)) == (b"one", None, 7, b"")
    assert told.put(2, b"x" * (MESSAGE_BYTES - 16))
    assert said.get(6) == b""
    assert not told.put(3, b"x" * (MESSAGE_BYTES - 15))
    assert told.number == 2


def test_a_message_that_is_being_written_is_not_read(memory: mmap.mmap) -> None:
    told = Page(memory).told
    told.put(1, b"first")
    begin = memory.find(b"first")
    memory[begin : begin + 2] = b"se"  # as far as the writer has come
    assert told.get(0) is None
    told.put(2, b"second")
    assert told.get(0) == b"second"
