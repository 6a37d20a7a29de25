"""torch's process for asynchronous checkpoints (`async_save` with `AsyncCheckpointerType.PROCESS`).

torch starts it with the first save, and keeps it for as long as the trainer lives. It is a rank of a group of its own,
of the processes of all ranks. In the next world that group may lack a member, so no save would end; and a newcomer,
which has no such process yet, would wait for the others to meet for a new one. So each world has its own.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import suppress
from typing import Any

from softrun.runtime.groups import native

_MODULE = "torch.distributed.checkpoint._async_process_executor"

_begun: weakref.WeakSet[Any] = weakref.WeakSet()
_killed: weakref.WeakSet[Any] = weakref.WeakSet()


def note_checkpoint_processes() -> None:
    """Note each that is begun from now on: torch itself knows of one only once it is up, which may never be.

    Idempotent. Never imports torch: call it again when it is imported.
    """
    kind: Any = getattr(sys.modules.get(_MODULE), "_AsyncCheckpointProcess", None)
    if kind is None or hasattr(kind.__init__, "softrun_notes"):
        return
    begin, wait = kind.__init__, kind._wait_for_response

    @functools.wraps(begin)
    def noting(self: Any, *args: Any, **options: Any) -> None:
        _begun.add(self)
        begin(self, *args, **options)

    @functools.wraps(wait)
    def waiting(self: Any, *args: Any, **options: Any) -> Any:
        if self in _killed:
            self._save_process.kill()  # it was not started at that time
        return wait(self, *args, **options)

    noting.softrun_notes = True  # type: ignore[attr-defined]
    kind.__init__, kind._wait_for_response = noting, waiting


def kill_checkpoint_process() -> None:
    """A peer may be lost: whoever waits for a save, or for the process to be up, gets an error.

    Any thread may call it.
    """
    for process in list(_begun):
        _killed.add(process)
        with suppress(AttributeError):  # not started yet
            process._save_process.kill()
    retire_checkpoint_process()


def retire_checkpoint_process() -> None:
    """Another world begins: the next save begins another process. A save that is under way is completed first."""
    module: Any = sys.modules.get(_MODULE)
    process = getattr(module, "_CHECKPOINT_PROCESS", None)
    if process is not None:
        module._CHECKPOINT_PROCESS = None
        # Whoever lets go of it last has it ended, and waits for that.
        native.start([process].clear, "softrun-checkpoint-process")
