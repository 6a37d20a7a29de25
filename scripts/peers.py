"""Virtual environments for what softrun is measured beside: made once, in $XDG_CACHE_HOME/softrun/peers/<name>.

As a program it makes one, unless it is up to date, and prints the path of its Python: peers.py nvrx
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

TIMEOUT_S = 900.0
CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"  # softrun's own torch, so that both have the same one


class UnavailableError(Exception):
    """The peer cannot be had here; the message is one line that says why."""


@dataclass(frozen=True)
class Peer:
    wheel: str
    requires: tuple[str, ...]  # what it needs beside what its wheel requires
    module: str  # can be imported afterwards
    platform_tag: str = ""  # of a wheel that pip would refuse, and which is installed without what it requires


PEERS = {
    # The in-process wrapper is pure Python: only the wheel's CUPTI module, which it does not import, needs that glibc.
    # 0.6.0 is the last release for Python 3.10 and 3.11; the package `inprocess` of 0.7.0 is the same, file by file.
    "nvrx": Peer(
        wheel="nvidia-resiliency-ext==0.6.0",
        platform_tag=f"manylinux_2_39_{platform.machine()}",  # later than many a machine's
        requires=("torch", "defusedxml", "httpx", "numpy", "packaging", "psutil", "pyyaml"),
        module="nvidia_resiliency_ext.inprocess",
    ),
    "torchft": Peer(wheel="torchft==0.2.0", requires=("torch", "numpy"), module="torchft"),
    "jax": Peer(wheel="jax==0.10.2", requires=("numpy",), module="jax.experimental.multihost_utils"),
    "dlrover": Peer(
        wheel="dlrover[k8s]==0.6.1", requires=("torch", "protobuf"), module="dlrover.python.master.local_master"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    try:
        print(python_of(parser.parse_args().peer))
    except UnavailableError as why:
        print(f"peers: {why}", file=sys.stderr)
        return 1
    return 0


def python_of(name: str, timeout_s: float = TIMEOUT_S) -> Path:
    """The Python of the peer's environment, which is made first if it is missing. Raises UnavailableError."""
    peer, home, deadline = PEERS[name], cache() / name, time.monotonic() + timeout_s
    python, stamp = home / "bin" / "python", home / "softrun-recipe.json"
    recipe = json.dumps({**asdict(peer), "python": sys.version, "constraints": CONSTRAINTS.read_text()})
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.parent / f"{name}.lock", deadline):
        if python.exists() and stamp.exists() and stamp.read_text() == recipe:
            return python
        shutil.rmtree(home, ignore_errors=True)
        print(f"peers: installing {peer.wheel} into {home} (once)", file=sys.stderr, flush=True)
        run("venv", [sys.executable, "-m", "venv", str(home)], deadline)
        pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--only-binary=:all:"]
        requires = [*pip, "--constraint", str(CONSTRAINTS), *peer.requires]
        run(f"what {peer.wheel} needs", requires, deadline)
        if peer.platform_tag:
            (packages,) = (home / "lib").glob("python3*/site-packages")
            forced = ["--no-deps", "--platform", peer.platform_tag, "--target", str(packages), "--upgrade", peer.wheel]
            what = f"{peer.wheel} for Python {platform.python_version()} and {peer.platform_tag}"
            run(what, [*pip, *forced], deadline)
        else:
            run(f"{peer.wheel} for Python {platform.python_version()}", [*requires, peer.wheel], deadline)
        run(f"import {peer.module}", [str(python), "-c", f"import {peer.module}"], deadline)
        stamp.write_text(recipe)
    return python


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softrun" / "peers"


@contextmanager
def locked(path: Path, deadline: float) -> Iterator[None]:
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{path} is held by another process for too long") from None
                time.sleep(0.1)
        yield


def run(what: str, command: Sequence[str], deadline: float) -> None:
    try:
        done = subprocess.run(
            command,
            timeout=max(deadline - time.monotonic(), 0),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what}: not done in time") from None
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        raise UnavailableError(f"{what}: {lines[-1].strip()}")


if __name__ == "__main__":
    sys.exit(main())
