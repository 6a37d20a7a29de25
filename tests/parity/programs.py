"""A program that builds its agent itself, run with torch's names or with softrun's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from local_cluster import PATIENCE_S, free_port

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


def run_program(text: str, side: str, directory: Path) -> str:
    """What the program prints, with the imports of that side in the place of IMPORTS and some port for FREE_PORT."""
    program = directory / f"on_{side}.py"
    program.write_text(text.replace("IMPORTS", IMPORTS[side], 1).replace("FREE_PORT", str(free_port())))
    done = run_python(str(program), cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(cwd), "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, env=env)
