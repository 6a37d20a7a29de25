"""A program that builds its agent itself, run with torch's names or with softrun's."""

from __future__ import annotations

import sys
from pathlib import Path

from nursery import Nursery

from local_cluster import free_port

IMPORTS = {
    "torchrun": """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch, launch_agent
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
""",
    "softrun": """
from softrun import LaunchConfig, LocalElasticAgent, elastic_launch, get_rendezvous_handler, launch_agent
""",
}


def run_program(nursery: Nursery, text: str, side: str, directory: Path) -> str:
    """What the program prints, with the imports of that side in the place of IMPORTS and some port for FREE_PORT."""
    program = directory / f"on_{side}.py"
    program.write_text(text.replace("IMPORTS", IMPORTS[side], 1).replace("FREE_PORT", str(free_port())))
    done = nursery.run([sys.executable, str(program)], directory)
    assert done.returncode == 0, done.stderr
    return done.stdout
