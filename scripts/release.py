"""What `scripts/release` runs: build, check and try the sdist and the wheel of the commit that is checked out.

It stops at the first thing that is wrong, with one line that says what.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from local_cluster import LocalCluster, end_in_order_on_sigterm, free_port, listens, softrun_command

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "agent": "softrun/agent",
    "policies": "softrun/policies",
    "runtime": "softrun/runtime",
    "scripts/entry": "softrun",
}
TRAINER = "examples/rfc_loop.py"  # needs nothing but torch
COMMAND_TIMEOUT_S = 900.0  # torch takes minutes on a slow line
JOB_TIMEOUT_S = 120.0


class ReleaseError(Exception):
    """The message is one line that says what is wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.parse_args()
    end_in_order_on_sigterm()
    try:
        with tempfile.TemporaryDirectory(prefix="softrun-release-") as directory:
            release(Path(directory))
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(directory: Path) -> None:
    if run("git status", ["git", "status", "--porcelain"], ROOT):
        raise ReleaseError("the checkout differs from its last commit: commit or stash the changes")
    source = directory / "source"
    source.mkdir()  # the committed files alone: a `build` folder in the checkout would keep renamed modules alive
    run("git archive", ["git", "archive", f"--output={directory / 'source.tar'}", "HEAD"], ROOT)
    run("tar", ["tar", "-xf", str(directory / "source.tar"), "-C", str(source)])

    say("build the sdist, and the wheel from it")
    run("python -m build", [sys.executable, "-m", "build", "--outdir", str(directory / "dist"), str(source)])
    sdist, wheel = only(directory / "dist", "*.tar.gz"), only(directory / "dist", "*.whl")
    version = wheel.name.split("-")[1]
    changelog = (source / "CHANGELOG.md").read_text()
    if f"\n## {version} (" not in changelog:
        raise ReleaseError(f"CHANGELOG.md has no section for {version}")

    say(f"check {sdist.name} and {wheel.name}")
    run("twine check", [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    check_contents(wheel, source)

    say("install the wheel in an empty environment")
    python = install(wheel, directory)
    installed = run("import softrun", [str(python), "-c", "import softrun; print(softrun.__version__)"], directory)
    if installed != version:
        raise ReleaseError(f"softrun.__version__ is {installed}, the wheel's version {version}")

    say("run a job of two nodes with it")
    run_job(python, source / TRAINER, directory)

    (ROOT / "dist").mkdir(exist_ok=True)
    for built in (sdist, wheel):
        (ROOT / "dist" / built.name).write_bytes(built.read_bytes())
        say(f"dist/{built.name} is good")
    if f"\n## {version} (unreleased)" in changelog:
        say(f"CHANGELOG.md still calls {version} unreleased")


def check_contents(wheel: Path, source: Path) -> None:
    """The wheel holds every committed module of the package, byte for byte, and nothing else."""
    wanted = {
        f"{package}/{path.relative_to(source / folder)}": path.read_bytes()
        for folder, package in PACKAGES.items()
        for path in (source / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    with zipfile.ZipFile(wheel) as packed:
        found = {name: packed.read(name) for name in packed.namelist() if ".dist-info/" not in name}
    if missing := sorted(wanted.keys() - found.keys()):
        raise ReleaseError(f"{wheel.name} lacks {', '.join(missing)}: is each folder listed in pyproject.toml?")
    if strangers := sorted(found.keys() - wanted.keys()):
        raise ReleaseError(f"{wheel.name} holds {', '.join(strangers)}, which the package does not have")
    if changed := sorted(name for name in wanted if wanted[name] != found[name]):
        raise ReleaseError(f"{wheel.name} holds other versions of {', '.join(changed)}")


def install(wheel: Path, directory: Path) -> Path:
    """The Python of a new environment with the wheel, what it requires, and the torch that softrun is tested with."""
    python = directory / "venv" / "bin" / "python"
    run("python -m venv", [sys.executable, "-m", "venv", str(directory / "venv")])
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    run("pip install", [*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)])
    return python


def run_job(python: Path, trainer: Path, directory: Path) -> None:
    """Two launchers of two workers each; both must exit 0 and leave no process behind."""
    port = free_port()
    flags = ("--restart_policy=soft", "--nnodes=2", "--nproc_per_node=2", "--rdzv_id=release")
    meet = ("--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}")
    command = softrun_command(*flags, *meet, script=trainer, python=str(python))
    with LocalCluster(directory / "job") as cluster:
        nodes = [cluster.start("node-1", command)]
        try:
            cluster.wait_for("node 1 listens", lambda: listens(port))
            nodes.append(cluster.start("node-2", command))
            codes = [node.wait(JOB_TIMEOUT_S) for node in nodes]
        except TimeoutError as error:
            print(*(node.output() for node in nodes), sep="\n", file=sys.stderr)
            raise ReleaseError(f"the job did not end: {str(error).splitlines()[0]}") from None
        if any(codes):
            print(*(node.output() for node in nodes), sep="\n", file=sys.stderr)
            raise ReleaseError(f"the job's launchers exited with {codes[0]} and {codes[1]} instead of 0, see above")
        if orphans := cluster.orphans():
            raise ReleaseError(f"the job left processes behind: {orphans}")


def run(what: str, command: Sequence[str], cwd: Path | None = None) -> str:
    """What the command writes, without the newline at its end. If it fails, its output is shown."""
    try:
        done = subprocess.run(
            command, cwd=cwd, timeout=COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{what} took longer than {COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise ReleaseError(f"{what} failed with exit code {done.returncode}, see above")
    return done.stdout.strip()


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
