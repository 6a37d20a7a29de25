"""What a worker's function returns, on its way to the agent.

The worker pickles it into memory that it shares with its agent, and the agent reads it once the worker has exited 0. So
reading never waits, a value may have any size, and no file is left behind: the memory goes with its last descriptor.

Between processes, torch pickles a tensor as a handle of shared memory. That is useless once the worker has ended, and
may leave a file in /dev/shm. Here the memory of a tensor is copied, once for all tensors that share it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import weakref
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_typed_storage

from softrun.agent.errors import SoftrunError


class ReturnedValue:
    """The agent makes it and gives it to the worker as an argument, with any start method."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.memfd_create("softrun-value") if descriptor is None else descriptor
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self._descriptor),)

    def fileno(self) -> int:
        """The descriptor of the shared memory."""
        return self._descriptor

    def write(self, value: Any) -> None:
        """Write the value, once, in the worker. Raises SoftrunError if it cannot be pickled."""
        try:
            with open(self._descriptor, "wb", closefd=False) as file:
                _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as error:  # the value's own methods may raise anything
            raise SoftrunError(f"what the function returned cannot be sent ({_words(error)}): {_REMEDY}") from error

    def read(self) -> Any:
        """Read the value in the agent, after the worker has exited 0. Raises SoftrunError if it cannot be unpickled."""
        if not os.fstat(self._descriptor).st_size:
            raise SoftrunError(
                "a worker exited 0 before its function returned: return from it, or leave it by sys.exit(0)"
            )
        try:
            with open(self._descriptor, "rb", closefd=False) as file:
                file.seek(0)  # the position is shared, and stands where the worker stopped writing
                return pickle.load(file)
        except Exception as error:  # the value's own methods may raise anything
            raise SoftrunError(f"what a worker returned cannot be read ({_words(error)}): {_REMEDY}") from error


_REMEDY = "return something that pickles, or write it to a file"


def _inherited(descriptor: Any) -> ReturnedValue:
    return ReturnedValue(descriptor.detach())


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.storage.TypedStorage:
            return reduce_typed_storage(obj)  # type: ignore[no-untyped-call]
        if type(obj) is torch.UntypedStorage:
            return _storage, (_memory(obj), str(obj.device))
        if isinstance(obj, Connection):  # its number means something else in the agent
            raise TypeError("a Connection is of use in its own process only")
        return NotImplemented


def _memory(storage: torch.UntypedStorage) -> pickle.PickleBuffer:
    host = storage.cpu()  # type: ignore[no-untyped-call]
    memory: Any = (ctypes.c_char * host.nbytes()).from_address(host.data_ptr())
    memory.owner = host
    return pickle.PickleBuffer(memory)


def _storage(memory: bytearray, device: str) -> torch.UntypedStorage:
    if not memory:
        return torch.UntypedStorage(0, device=device)  # type: ignore[no-untyped-call]
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return storage if device == "cpu" else storage.to(device=torch.device(device))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
