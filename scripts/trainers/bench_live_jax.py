"""Empty blocks of JAX's `live_devices`, which live_workers has its idea from. Each process has a CPU as its device.

bench_live_jax.py BLOCKS PROCESS PROCESSES PORT; see bench_live.
"""

import sys

# Not in the environment that types are checked in.
import jax  # type: ignore[import-not-found]
from bench_turns import tell, times
from jax.experimental.multihost_utils import live_devices  # type: ignore[import-not-found]

blocks, process, processes, port = map(int, sys.argv[1:])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_recoverability", True)
jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)
devices = jax.devices()


def block() -> None:
    with live_devices(devices) as living:
        if len(living) != processes:
            raise SystemExit(f"{len(living)} of {processes} processes are there")


took = times(block, blocks)
if process == 0:
    tell(took)
jax.distributed.shutdown()
