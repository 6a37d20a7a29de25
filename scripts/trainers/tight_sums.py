"""All-reduces so many floats, again and again without a pause, checks each sum and logs the first of each world."""

import sys

import torch
import torch.distributed as dist

import softrun
from softrun.runtime.steplog import log_step

LOGGED = 3

torch.set_num_threads(1)
numbers = torch.empty(int(sys.argv[1]))
for world in softrun.worlds():
    with world.process_group():
        step = 0
        while True:
            dist.all_reduce(numbers.fill_(1))
            if not (numbers[0] == numbers[-1] == world.world_size):
                raise AssertionError(f"{numbers[0]} and {numbers[-1]} in a world of {world.world_size}")
            step += 1
            if step <= LOGGED:
                log_step(world.info, world.round, step)
            world.check()
