"""Checkpoints that are written while training goes on.

torch.distributed.checkpoint writes each rank's files into memory, which costs a copy and the collectives that it needs.
A thread of each rank then writes them into the directory, and the first rank's publishes the checkpoint when all parts
are there. No collective is made there, so a lost peer stops nobody: its part does not come, and the checkpoint stays
unfinished under its hidden name.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from softrun.runtime.state.messages import Messages

LOOK_S = 0.02
PATIENCE_S = 60.0
"""How long the first rank waits for the next part: whoever is to write it may be gone."""

_log = logging.getLogger("softrun.runtime")


class Aside:
    """The checkpoint that is being written, at most one at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._written = threading.Event()
        self._last_look = threading.Event()

    def settle(self, messages: Messages) -> None:
        """Bring the last one to its end, on all ranks of the world: it is published, or will never be."""
        if self._thread is not None:
            self._written.wait()
        messages.gather([0])  # now all parts are there that will ever be
        if self._thread is not None:
            self._last_look.set()
            self._thread.join()
            self._thread = None

    def begin(self, folder: Path, parts: Mapping[str, bytes], publish: Callable[[], bool] | None) -> None:
        """Write this rank's parts into the folder; then call `publish` until it returns True, if it is given.

        The process does not end before that.
        """
        self._written.clear()
        self._last_look.clear()
        self._thread = threading.Thread(target=self._write, args=(folder, parts, publish), name="softrun-checkpoint")
        self._thread.start()

    def _write(self, folder: Path, parts: Mapping[str, bytes], publish: Callable[[], bool] | None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in parts.items():
                _write_whole(folder / name, data)
            self._written.set()
            if publish is not None:
                self._publish(folder, publish)
        except OSError as error:
            _log.error("%s was not written: %s", folder.name[1:], error)
        finally:
            self._written.set()

    def _publish(self, folder: Path, publish: Callable[[], bool]) -> None:
        seen, give_up_at = 0, time.monotonic() + PATIENCE_S
        while True:
            last = self._last_look.wait(LOOK_S)
            if publish():
                return
            found = len(list(folder.iterdir())) if folder.is_dir() else 0
            if found > seen:
                seen, give_up_at = found, time.monotonic() + PATIENCE_S
            if last or time.monotonic() >= give_up_at:
                _log.warning("%s is not whole, and is left unfinished: a rank was lost", folder.name[1:])
                return


def _write_whole(path: Path, data: bytes) -> None:
    """It has its name only when it is whole."""
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


class _Kept(io.BytesIO):
    """A file in memory, whose content stays when it is closed: torch closes it."""

    def __init__(self, files: dict[str, bytes], name: str) -> None:
        super().__init__()
        self._files, self._name = files, name

    def close(self) -> None:
        """Keep the content."""
        if not self.closed:
            self._files[self._name] = self.getvalue()
        super().close()


def writer_into_memory(folder: Path) -> tuple[Any, dict[str, bytes]]:
    """Return a storage writer of torch's for this folder, and the files that it will have written, by their names."""
    from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemWriter

    files: dict[str, bytes] = {}

    class Memory(FileSystemBase):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:  # noqa: ARG002 - it only writes
            with _Kept(files, Path(path).name) as stream:
                yield stream

        def concat_path(self, path: Any, suffix: str) -> Path:
            return Path(path) / suffix

        def rename(self, path: Any, new_path: Any) -> None:
            files[Path(new_path).name] = files.pop(Path(path).name)

        def init_path(self, path: Any) -> Path:
            return Path(path)

        def mkdir(self, path: Any) -> None:
            pass  # when the files are written

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
            return True

        def exists(self, path: Any) -> bool:
            return Path(path).name in files

        def rm_file(self, path: Any) -> None:
            del files[Path(path).name]

    writer: Any = FileSystemWriter(folder, sync_files=False)
    writer.fs = Memory()
    return writer, files
