"""Lightning: a callback that carries the training of one `Trainer.fit` over to the next world's.

A Trainer knows one world, so there is a new one in each; the model may be one object for all of them.

    state, sampler = softrun.State(), softrun.ElasticSampler(dataset, global_batch_size=64)
    for world in softrun.worlds():
        with world.process_group():
            trainer = Trainer(
                **lightning_settings(world),
                callbacks=[lightning_callback(world, state, sampler)],
                strategy="ddp",
                max_epochs=10,
            )
            trainer.fit(model, DataLoader(dataset, batch_sampler=sampler))
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softrun.runtime.sampler import ElasticSampler
    from softrun.runtime.state import state as states
    from softrun.runtime.worlds import World

_COUNTED = "lightning_progress"


def lightning_callback(
    world: World,
    state: states.State,
    sampler: ElasticSampler | None = None,
    *,
    snapshot_every: int | None = None,
    checkpoints: str | Path | None = None,
) -> Any:
    """Return a Lightning callback for one world: make it, and the Trainer, anew in each.

    It puts the module, its optimizers and schedulers, the sampler, and how many steps and epochs Lightning has counted
    into `state`, and syncs it when the fit begins, so newcomers and torn ranks are healed and survivors keep all they
    have. After each optimizer step it commits, keeps a snapshot each `snapshot_every` steps if that is given, and
    checks whether the world has changed; if so, WorldChanged ends the fit, and `process_group` takes it. When the job
    is told to end, `softrun.on_leave(lambda leave: state.save(directory))` saves all that there is; `checkpoints` is
    the directory from which a job that is started again goes on.

    The model may be one object for all worlds. Do not load Lightning's own checkpoints besides. The loader's batches
    have this rank's part: multiply the loss by `world.share(sampler.batch_size).weight` if parts are not alike. Raises
    ValueError, when the fit begins, for a Trainer whose settings would lose or repeat samples.
    """
    return _callback_class()(world, state, sampler, snapshot_every, checkpoints)


def lightning_settings(world: World) -> dict[str, Any]:
    """Return the settings of a Trainer for this world: its devices and nodes, and what an ElasticSampler needs.

    They are `devices`, `num_nodes`, `plugins`, `use_distributed_sampler` and `reload_dataloaders_every_n_epochs`.
    """
    environments = _distribution("plugins.environments")

    class ElasticEnvironment(environments.TorchElasticEnvironment):  # type: ignore[misc, name-defined]
        def validate_settings(self, num_devices: int, num_nodes: int) -> None:
            """Nodes may have different numbers of workers, for a while."""

    return {
        "devices": max(world.info.local_world_size, world.local_rank + 1),  # a lower one may be lost
        "num_nodes": world.info.group_world_size,
        "plugins": [ElasticEnvironment()],
        "use_distributed_sampler": False,
        "reload_dataloaders_every_n_epochs": 1,
    }


def _distribution(module: str = "") -> Any:
    """A module of the distribution that the trainer has imported: Lightning's two do not know each other's classes."""
    name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    return import_module(f"{name}.{module}" if module else name)


def _callback_class() -> type[Any]:
    class ElasticCallback(_distribution().Callback):  # type: ignore[misc]
        def __init__(
            self,
            world: World,
            state: states.State,
            sampler: ElasticSampler | None,
            snapshot_every: int | None,
            checkpoints: str | Path | None,
        ) -> None:
            self._world, self._state, self._sampler = world, state, sampler
            self._snapshot_every, self._checkpoints = snapshot_every, checkpoints
            self._steps = 0

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Before the first loader is asked how long it is."""
            _check(trainer, self._sampler)
            state = self._state
            state.model = pl_module
            for number, optimizer in enumerate(trainer.optimizers):
                setattr(state, f"optimizer_{number}", optimizer)
            for number, config in enumerate(trainer.lr_scheduler_configs):
                setattr(state, f"scheduler_{number}", config.scheduler)
            if self._sampler is not None:
                state.sampler = self._sampler
            if not hasattr(state, _COUNTED):
                setattr(state, _COUNTED, {"steps": 0, "epochs": 0})
            if self._checkpoints is not None and state.commits is None:
                state.load(self._checkpoints)
            state.sync(self._world)
            counted = getattr(state, _COUNTED)
            _count(trainer, counted["steps"], counted["epochs"])
            self._steps = trainer.global_step

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            """After the optimizer's step, unless Lightning accumulates."""
            self._world.ping()
            if trainer.global_step == self._steps:
                return
            self._steps = trainer.global_step
            last = trainer.fit_loop.epoch_loop._num_ready_batches_reached()
            setattr(self._state, _COUNTED, {"steps": self._steps, "epochs": trainer.current_epoch + (1 if last else 0)})
            self._state.commit()
            if self._snapshot_every is not None:
                self._state.snapshot(self._snapshot_every)
            self._world.check(self._steps)

    return ElasticCallback


def _check(trainer: Any, sampler: ElasticSampler | None) -> None:
    if sampler is None:
        return
    if trainer.reload_dataloaders_every_n_epochs != 1:
        raise ValueError(
            f"Trainer has reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}: give 1, since "
            "the first epoch of a world may be what is left of one"
        )
    if trainer._accelerator_connector.use_distributed_sampler:
        raise ValueError(
            "Trainer has use_distributed_sampler=True, which would put another sampler in the place of ElasticSampler: "
            "give False"
        )


def _count(trainer: Any, steps: int, epochs: int) -> None:
    """Have a new Trainer begin where the last one was."""
    epoch_loop = trainer.fit_loop.epoch_loop
    for name in ("ready", "started", "processed", "completed"):
        setattr(trainer.fit_loop.epoch_progress.current, name, epochs)
        setattr(trainer.fit_loop.epoch_progress.total, name, epochs)
    optimizer_steps = epoch_loop.automatic_optimization.optim_progress.optimizer.step
    for progress in (optimizer_steps.total, epoch_loop.manual_optimization.optim_step_progress.total):
        progress.ready = progress.completed = steps
    epoch_loop._batches_that_stepped = steps
