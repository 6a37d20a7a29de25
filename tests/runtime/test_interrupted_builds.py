"""Building and leaving a group, interrupted at every line: nothing is left behind, and the next group can be built."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from gloo_ranks import Me, run
from torch.distributed import destroy_process_group  # by name, as many programs have it
from torch.distributed.device_mesh import init_device_mesh

from softrun.runtime.groups import books, group_registry, groups
from softrun.runtime.groups.books import destroying_nothing_does

if TYPE_CHECKING:
    from typing_extensions import Self

TORCHS = ("distributed_c10d.py", "rendezvous.py", "device_mesh.py")
WATCHED = (*TORCHS, "group_registry.py", "gloo.py", "groups.py", "contextlib.py")


class Interrupted(BaseException):
    """As RestartRequest, which a signal's handler raises between any two lines."""


class InterruptAt:
    """Raises in the so-many-th line that is executed in the block, in torch's code and ours."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.raised = False

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(None)
        return kind is Interrupted

    def _called(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.endswith(WATCHED) else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Callable[..., Any] | None:
        # Leaving a `with` counts as its line again, and there a signal's handler does not run.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not text.startswith("with "):
            self._left -= 1
            if self._left == 0:
                self.raised = True
                raise Interrupted
        return self._line


def alone(body: Callable[[], None]) -> None:
    """In a process of its own: one that has had gloo's threads does not bear the forks of other tests."""

    def noted_there(_me: Me) -> None:
        group_registry.track_groups()
        destroying_nothing_does(groups.leave_unfinished_groups)
        body()

    run(noted_there)


def leave() -> None:
    groups.leave_groups(in_trouble=True)


def build() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def build_mesh() -> None:
    build()
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    assert mesh["shard"].size() == 1


def works() -> None:
    build_mesh()
    dist.barrier()
    assert dist.get_world_size() == 1


@pytest.mark.parametrize("leave", [leave, destroy_process_group])
@pytest.mark.parametrize("interrupted", [build, build_mesh])
def test_whatever_line_a_build_is_interrupted_at(interrupted: Callable[[], None], leave: Callable[[], None]) -> None:
    alone(lambda: interrupt_each_line(interrupted, leave))


def interrupt_each_line(interrupted: Callable[[], None], leave: Callable[[], None]) -> None:
    interrupted()  # torch imports some of its modules when they are needed, and an import that is cut short stays so
    leave()
    line, raised = 0, True
    while raised:
        line += 1 + line // 40
        with InterruptAt(line) as interrupt:
            interrupted()
        raised = interrupt.raised
        leave()
        assert books.are_empty()
        assert not group_registry._builds
    assert line > 100, "nothing was traced"
    works()


def test_whatever_line_a_destruction_is_interrupted_at() -> None:
    alone(interrupt_each_line_of_a_destruction)


def interrupt_each_line_of_a_destruction() -> None:
    line, raised = 0, True
    while raised:
        line += 1
        build()
        with InterruptAt(line) as interrupt:
            dist.destroy_process_group()
        raised = interrupt.raised
        leave()
        assert books.are_empty()
    assert line > 15, "nothing was traced"
    works()


def test_what_was_never_built_can_be_destroyed() -> None:
    def destroy_nothing_and_something() -> None:
        destroy_process_group()
        dist.destroy_process_group()
        build()
        destroy_process_group()
        assert not dist.is_initialized()

    alone(destroy_nothing_and_something)


def test_a_group_that_is_not_the_default_one_is_destroyed_as_ever() -> None:
    def destroy_a_sub_group() -> None:
        build()
        other = dist.new_group([0])
        dist.destroy_process_group(other)
        assert dist.is_initialized()
        with pytest.raises(ValueError, match="Invalid process group"):
            dist.destroy_process_group(other)

    alone(destroy_a_sub_group)
