"""What a worker's function returns, on its way to the agent.

The worker writes it, pickled, into memory that it has in common with its agent, which reads it once the worker has
exited 0. So reading waits for nobody, a value may be of any size, and no file system shows the memory, which is gone
with its last descriptor.

Among processes, torch has a tensor pickled as a handle of shared memory. That is of no use once the worker has ended,
and may leave a file in /dev/shm. Here the memory of a tensor is copied, once for all tensors that share it.
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
    """Made by the agent, and given to the worker as an argument, whatever the start method."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.memfd_create("softrun-value") if descriptor is None else descriptor
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (reduction.DupFd(self._descriptor),)

    def fileno(self) -> int:
        """Of the memory."""
        return self._descriptor

    def write(self, value: Any) -> None:
        """For the worker, once. Raises SoftrunError for what does not pickle."""
        try:
            with open(self._descriptor, "wb", closefd=False) as file:
                _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        except Exception as error:  # whatever the value's own methods raise
            raise SoftrunError(f"what the function returned cannot be sent ({_words(error)}): {_REMEDY}") from error

    def read(self) -> Any:
        """For the agent, when the worker has exited 0. Raises SoftrunError for what does not unpickle."""
        if not os.fstat(self._descriptor).st_size:
            raise SoftrunError(
                "a worker exited 0 before its function returned: return from it, or leave it by sys.exit(0)"
            )
        try:
            with open(self._descriptor, "rb", closefd=False) as file:
                file.seek(0)  # where the worker has stopped writing is where both stand
                return pickle.load(file)
        except Exception as error:  # whatever the value's own methods raise
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
        if isinstance(obj, Connection):  # else its number would pickle, which in the agent is something else's
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
