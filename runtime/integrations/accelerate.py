"""Accelerate: an Accelerator for each world.

The loop is a trainer's own, so the rest is as in any other: a State, and an ElasticSampler.

    state = softrun.State(model=model, optimizer=optimizer, sampler=sampler)
    for world in softrun.worlds(state=state):
        with world.process_group():
            accelerator = accelerator_of(world)
            parallel, stepping = accelerator.prepare(model, optimizer)
            while sampler.epoch < epochs:
                for inputs, targets in loader:  # not prepared: the sampler shares out the batches
                    loss = mse_loss(parallel(inputs), targets) * world.share(sampler.batch_size).weight
                    stepping.zero_grad()
                    accelerator.backward(loss)
                    stepping.step()
                    state.commit()
                    world.check(sampler.steps)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softrun.runtime.worlds import World


def accelerator_of(world: World, **settings: Any) -> Any:
    """Return an Accelerator that knows this world: call it inside `World.process_group`, in each world anew.

    Accelerate keeps the rank and the number of processes for the whole life of a process, so a second Accelerator would
    take the first one's world for its own; this forgets them first. Prepare the model and the optimizer with it each
    time, but not a loader with an ElasticSampler: `accelerator.device` says where its samples belong. `settings` are
    the Accelerator's.

    Raises RuntimeError outside of the group.
    """
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState, GradientState, PartialState  # type: ignore[import-untyped]
    from torch import distributed

    if not distributed.is_initialized():
        raise RuntimeError(f"world {world.round} has no process group yet: call this inside world.process_group()")
    for kept in (AcceleratorState, PartialState, GradientState):
        kept._shared_state.clear()
    return Accelerator(**settings)
