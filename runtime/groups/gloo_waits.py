"""What gloo's threads in this process do and wait for, and making such a wait raise.

A thread that waits for a payload sleeps in the kernel, on an address within gloo's buffer for it. The kernel tells that
address, and a buffer begins with the address of its class's table of functions. Then gloo's own function makes the wait
raise (`UnboundBuffer::signalException`, gloo/transport/tcp/unbound_buffer.cc). All that is looked at is read as a file
(/proc/self/mem), so a wrong guess reads nothing. If the kernel does not tell, or torch was built without these symbols,
no wait is found.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_THREADS = Path("/proc/self/task")
_MEMORY = Path("/proc/self/mem")
_NAME_BYTES = 16
_RUN_LOOP = b"pt_gloo_runloop"
"""What torch calls the threads that run the collectives of a gloo group."""
_TABLE = "_ZTVN4gloo9transport3tcp13UnboundBufferE"
_SIGNAL = "_ZN4gloo9transport3tcp13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_ptrE"
_WAIT_BITSET = 9
"""The operation of a system call that waits for a condition variable (futex(2)), without its flags."""
_FLAGS = 128 | 256
_ARGUMENTS = 6
IDLE_S = 15.0
"""The longest wait for idle threads: forgotten.py looks for less long."""
LOOK_S = 0.02
_REACH = 512
"""A buffer is smaller, in bytes."""
_WORD = struct.Struct("@P")
_MESSAGE = b"Connection closed by peer: the transfer of a payload was half done when its connection ended"


class Wait(NamedTuple):
    """A thread, by the kernel's number, waits for a payload of the buffer at this address."""

    thread: int
    buffer: int


def waits(of: Iterable[int]) -> set[Wait]:
    """What these threads wait for right now."""
    gloo = _gloo()
    if gloo is None:
        return set()
    found = ((thread, gloo.buffer_around(address)) for thread in of if (address := _slept_on(thread)))
    return {Wait(thread, buffer) for thread, buffer in found if buffer is not None}


def end(wait: Wait) -> None:
    """Make the thread raise. It must still wait; no payload may come any more."""
    gloo = _gloo()
    if gloo is not None:
        gloo.signal(wait.buffer)


def threads() -> set[int]:
    """The threads of this process."""
    with suppress(OSError):
        return {int(entry.name) for entry in os.scandir(_THREADS)}
    return set()


def is_run_loop(thread: int) -> bool:
    """Whether a gloo group has this thread of its own, to run its collectives in."""
    with suppress(OSError):
        descriptor = os.open(f"{_THREADS}/{thread}/comm", os.O_RDONLY)  # a process may have hundreds of threads
        try:
            return os.read(descriptor, _NAME_BYTES).rstrip() == _RUN_LOOP
        finally:
            os.close(descriptor)
    return False


def run_loops() -> set[int]:
    """The run loops of all gloo groups of this process."""
    return {thread for thread in threads() if is_run_loop(thread)}


def busy(loops: set[int]) -> set[int]:
    """Those of these run loops that have something to do or to drop, or wait for a peer.

    One that waits for work waits without limit. One that wants the interpreter's lock looks again every few
    milliseconds. If the kernel does not tell, none is found.
    """
    return {thread for thread in loops if _works(thread)}


def become_idle(loops: set[int], ends: threading.Event) -> bool:
    """Wait until none of these run loops is busy. Returns False if that lasts for too long, or the event is set."""
    end = time.monotonic() + IDLE_S
    while busy(loops):
        if ends.wait(LOOK_S) or time.monotonic() > end:
            return False
    return True


def working() -> set[int]:
    """The run loops that have something to do or to drop, but for those that wait for a peer."""
    loops = busy(run_loops())
    return loops and loops - {wait.thread for wait in waits(loops)}


def _works(thread: int) -> bool:
    with suppress(OSError):  # it has ended
        call = _system_call(thread)
        return call is None or call[2] & ~_FLAGS != _WAIT_BITSET or call[4] != 0
    return False


def _slept_on(thread: int) -> int | None:
    """The first argument of the system call that the thread is in; an address if it waits to be woken by another."""
    with suppress(OSError):
        if call := _system_call(thread):
            return call[1]
    return None


def _system_call(thread: int) -> list[int] | None:
    """The number and the arguments of the system call that it sleeps in; None if it runs.

    Raises OSError if the thread has ended, or the kernel does not tell.
    """
    words = (_THREADS / str(thread) / "syscall").read_text().split()
    if words == ["running"]:
        return None
    try:
        call = [int(word, 0) for word in words]
    except ValueError:
        call = []
    if not call:
        raise OSError("the kernel does not tell")
    return call if len(call) > _ARGUMENTS else None


def _words(address: int) -> list[int]:
    """What the memory holds from that address on; nothing if there is no memory."""
    with suppress(OSError, OverflowError, ValueError), _MEMORY.open("rb", buffering=0) as memory:
        memory.seek(address)
        return [word for (word,) in _WORD.iter_unpack(memory.read(_REACH))]
    return []


class _Gloo:
    """What torch's library has of gloo. Raises AttributeError, OSError or ValueError if it does not have it."""

    def __init__(self) -> None:
        torch, cpp = ctypes.CDLL("libtorch_cpu.so"), ctypes.CDLL("libstdc++.so.6")
        self._table = ctypes.addressof(ctypes.c_char.in_dll(torch, _TABLE)) + 2 * _WORD.size
        self._signal = torch[_SIGNAL]
        self._make_pointer = cpp._ZNSt15__exception_ptr13exception_ptrC1EPv
        self._error = _exception(cpp)
        self._size_of = ctypes.CDLL(None).malloc_usable_size
        self._size_of.restype = ctypes.c_size_t

    def buffer_around(self, address: int) -> int | None:
        """The buffer that this address is in."""
        begin = (address - _REACH) // _WORD.size * _WORD.size
        for at, word in reversed(list(enumerate(_words(begin)))):
            if word == self._table:
                buffer = begin + at * _WORD.size
                return buffer if address < buffer + self._size_of(ctypes.c_void_p(buffer)) else None
        return None

    def signal(self, buffer: int) -> None:
        pointer = ctypes.c_void_p()
        self._make_pointer(ctypes.byref(pointer), self._error)
        self._signal(ctypes.c_void_p(buffer), ctypes.byref(pointer))  # which takes over what it points to


@functools.cache
def _gloo() -> _Gloo | None:
    try:
        return _Gloo()
    except (AttributeError, OSError, ValueError):
        return None


def _exception(cpp: ctypes.CDLL) -> ctypes.c_void_p:
    """A std::runtime_error that was not thrown yet, and is never freed."""
    cpp.__cxa_allocate_exception.restype = ctypes.c_void_p
    cpp.__cxa_init_primary_exception.restype = ctypes.c_void_p
    error = ctypes.c_void_p(cpp.__cxa_allocate_exception(ctypes.c_size_t(2 * _WORD.size)))
    cpp._ZNSt13runtime_errorC1EPKc(error, ctypes.c_char_p(_MESSAGE))
    kind, destroy = ctypes.c_char.in_dll(cpp, "_ZTISt13runtime_error"), cpp._ZNSt13runtime_errorD1Ev
    cpp.__cxa_init_primary_exception(error, ctypes.byref(kind), destroy)
    return error
