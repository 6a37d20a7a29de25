"""Checkpoints of a State in a directory that all ranks share, by torch.distributed.checkpoint.

A checkpoint is a folder, `step-…-round-…`, of torch's files and of `state.json`, which has all that is no tensor, and
the files' sizes. It is written under a hidden name and renamed when it is whole: whatever has its name can be loaded.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from softrun.runtime.state.contents import Contents, Description, View
from softrun.runtime.state.disk.aside import Aside, writer_into_memory
from softrun.runtime.state.messages import Messages

_NAME = re.compile(r"step-(\d{12})-round-(\d{9})")
_DESCRIPTION = "state.json"

_log = logging.getLogger("softrun.runtime")


class _Record(BaseModel):
    """What `state.json` holds."""

    model_config = ConfigDict(extra="forbid")

    commits: int
    sizes: dict[str, int]
    description: Description


def write(directory: Path, view: View, commits: int, round_: int, keep: int) -> Path:
    """Write a checkpoint, on all ranks of the world; returns its folder.

    Raises OSError if it could not be written, and what torch raises for a lost peer.
    """
    dcp = torchs_checkpoint()
    messages = Messages()
    folder, unfinished = _names(directory, commits, round_)
    try:
        dcp.save(dict(view.tensors), storage_writer=dcp.FileSystemWriter(unfinished))
        if messages.rank == 0:
            sizes = {path.name: path.stat().st_size for path in unfinished.iterdir()}
            record = _Record(commits=commits, sizes=sizes, description=view.description)
            _publish(unfinished, folder, record.model_dump_json().encode())
            _tidy(directory, keep)
    except (dcp.CheckpointException, OSError) as error:
        if messages.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(f"{folder} was not written: {cause_of(error)}") from error
    messages.gather([commits])  # whoever returns can rely on it
    return folder


def write_aside(aside: Aside, directory: Path, view: View, commits: int, round_: int, keep: int) -> Path:
    """As `write`, but the folder comes to be while training goes on. Raises what torch raises for a lost peer."""
    dcp = torchs_checkpoint()
    messages = Messages()
    aside.settle(messages)
    folder, unfinished = _names(directory, commits, round_)
    writer, parts = writer_into_memory(unfinished)
    if messages.rank == 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was at the same step in a world of this number
    dcp.save(dict(view.tensors), storage_writer=writer)
    told = messages.exchange(json.dumps({name: len(data) for name, data in parts.items()}).encode())
    sizes: dict[str, int] = {name: size for each in told for name, size in json.loads(each).items()}
    record = _Record(commits=commits, sizes=sizes, description=view.description).model_dump_json().encode()

    def publish() -> bool:
        """Returns False while parts are missing."""
        if not all((unfinished / name).exists() for name in sizes):
            return False
        _publish(unfinished, folder, record)
        _tidy(directory, keep)
        return True

    aside.begin(unfinished, parts, publish if messages.rank == 0 else None)
    return folder


def _names(directory: Path, commits: int, round_: int) -> tuple[Path, Path]:
    """What a checkpoint is called, and what it is called before it is whole."""
    name = f"step-{commits:012d}-round-{round_:09d}"
    return directory / name, directory / f".{name}"


def read(directory: Path, contents: Contents) -> int | None:
    """Load the newest checkpoint that is whole, on this rank; returns its number of commits, or None if there is none.

    Raises ValueError, with the key, if it does not fit what is here; then nothing is changed. Raises OSError if its
    files cannot be read: then what is here is half of each.
    """
    dcp = torchs_checkpoint()
    for folder in _newest_first(directory):
        record = _whole(folder)
        if record is None:
            continue
        try:
            filling = contents.prepare(record.description, parts_count=False)
            filling.load_plain()
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that no group is there, as is meant
                dcp.load(dict(filling.given), storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        except dcp.CheckpointException as error:
            raise OSError(f"{folder} could not be read: {cause_of(error)}") from error
        filling.load()
        _log.info("loaded %s", folder)
        return record.commits
    return None


def torchs_checkpoint() -> Any:
    """Return torch.distributed.checkpoint."""
    import torch.distributed.checkpoint

    return torch.distributed.checkpoint


def _publish(unfinished: Path, folder: Path, record: bytes) -> None:
    with (unfinished / _DESCRIPTION).open("wb") as file:
        file.write(record)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    parent = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _tidy(directory: Path, keep: int) -> None:
    """Remove old checkpoints, and what earlier worlds have not finished."""
    for folder in list(_newest_first(directory))[keep:]:
        shutil.rmtree(folder, ignore_errors=True)
    for path in directory.glob(".step-*"):
        if _NAME.fullmatch(path.name[1:]):
            shutil.rmtree(path, ignore_errors=True)


def _newest_first(directory: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), reverse=True)


def _whole(folder: Path) -> _Record | None:
    """What it holds. None, with a line in the log, if a file is missing or has not the size it was written with."""
    try:
        record = _Record.model_validate_json((folder / _DESCRIPTION).read_bytes())
        damaged = [name for name, size in record.sizes.items() if (folder / name).stat().st_size != size]
    except (OSError, ValueError) as error:
        _log.warning("%s is damaged, and passed over: %s", folder, str(error).splitlines()[0])
        return None
    if damaged:
        _log.warning("%s is damaged, and passed over: %s has another size than when it was written", folder, damaged[0])
        return None
    return record


def cause_of(error: BaseException) -> str:
    """The first thing that went wrong on any rank, in one line."""
    failures: dict[int, Any] = getattr(error, "failures", {})
    first = next((failure[0] for failure in failures.values()), error)
    return f"{type(first).__name__}: {first}".splitlines()[0]
