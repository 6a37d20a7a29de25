"""Compiled functions in worlds whose ranks, sizes and groups differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.tensor._random as random_of_dtensors
from gloo_ranks import Me, run
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from softrun.runtime.groups.abort import track_groups
from softrun.runtime.groups.groups import leave_groups
from softrun.runtime.groups.leftovers import meshes

WORLDS = 12  # dynamo compiles a function eight times


class Compiler:
    """Counts what it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        self.count += 1
        return graph


def times_rank(numbers: torch.Tensor) -> torch.Tensor:
    return numbers * dist.get_rank() + dist.get_world_size()


def gathered(numbers: torch.Tensor, group: Any) -> torch.Tensor:
    everybodys: torch.Tensor = functional.all_gather_tensor(numbers, 0, group)
    return functional.wait_tensor(everybodys) + 1  # type: ignore[no-any-return]


def doubled(numbers: torch.Tensor) -> torch.Tensor:
    return numbers * 2


def compile_in_many_worlds(me: Me) -> int:
    """The ranks swap their places in each world. Whatever they are, a group of the same name has another size."""
    track_groups()
    stays = Compiler()
    with_rank, with_group = (torch.compile(each, backend="eager") for each in (times_rank, gathered))
    without = torch.compile(doubled, backend=stays)
    numbers = torch.ones(3)
    for world in range(WORLDS):
        meshes.begin_world(world + 1)
        rank = (me.rank + world) % me.size
        me.build(f"world {world}", rank=rank)
        pair, alone = dist.new_group([0, 1]), [dist.new_group([each]) for each in range(me.size)][rank]
        own, other = (pair, alone) if world % 2 else (alone, pair)
        for group in (own, other):
            size = dist.get_world_size(group)
            assert with_group(numbers, group).tolist() == [2.0] * 3 * size
        assert with_rank(numbers).tolist() == [rank + me.size] * 3
        assert without(numbers).tolist() == [2.0] * 3
        leave_groups(in_trouble=True)
    return stays.count


@pytest.mark.slow
def test_no_compiled_function_keeps_the_ranks_of_the_last_world() -> None:
    assert run(compile_in_many_worlds, 2) == [1, 1]


def compile_for_meshes(me: Me) -> int:
    track_groups()
    compiler = Compiler()

    def whole(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left @ right).redistribute(placements=[Replicate()])  # type: ignore[operator, no-any-return]

    compiled = torch.compile(whole, backend=compiler)
    for world in range(WORLDS):
        meshes.begin_world(world + 1)
        me.build(f"world {world}")
        for _ in range(world % 3):
            dist.new_group([0])
        mesh = init_device_mesh("cpu", (me.size,))
        shards, all_of_it = (distribute_tensor(torch.ones(4, 4), mesh, [kind]) for kind in (Shard(0), Replicate()))
        for _ in range(2):
            assert compiled(shards, all_of_it).to_local().sum() == 4 * 4 * 4
        leave_groups(in_trouble=True)
    return compiler.count


def test_what_has_meshes_is_compiled_in_each_world_and_never_given_up() -> None:
    assert run(compile_for_meshes, 1) == [WORLDS]


def test_the_random_numbers_of_dtensors_are_synchronized_anew() -> None:
    random_of_dtensors._rng_tracker = object()  # type: ignore[assignment]
    meshes.end_world()
    assert random_of_dtensors._rng_tracker is None
