"""No worker, and no helper of an agent, gets the job's secrets, whichever way it is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from local_cluster import Begin, LocalCluster, free_port, softrun_command
from local_cluster import begin as by_itself
from local_etcd import LocalEtcd

pytestmark = pytest.mark.processes

SECRETS = {"SOFTRUN_ETCD_PASSWORD": "hush-hush", "SOFTRUN_TOKEN_FILE": "secret-of-the-job"}
WORKER = """
import json, os, sys, time
seen = dict(os.environ)
inherited = open("/proc/self/environ", "rb").read().decode()
name = f"{sys.argv[1]}/{os.environ['LOCAL_RANK']}"
with open(name + ".part", "w") as out:
    json.dump([seen, inherited], out)
os.rename(name + ".part", name)
time.sleep(600)
"""


@pytest.fixture
def launch() -> Begin:
    """The environment of a process in /proc is what it was executed with."""
    return by_itself


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> list[str]:
    match request.param:
        case "standalone":
            return ["--standalone"]
        case "c10d":
            return ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{free_port()}"]
        case _:
            etcd: LocalEtcd = request.getfixturevalue("etcd")
            return ["--rdzv_backend=etcd3", f"--rdzv_endpoint={etcd.endpoint}"]


BACKENDS = ["standalone", "c10d", pytest.param("etcd3", marks=pytest.mark.etcd)]


@pytest.mark.parametrize("start", ["warm", "cold"])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_secrets_stay_with_the_agent(cluster: LocalCluster, tmp_path: Path, backend: list[str], start: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    token = tmp_path / SECRETS["SOFTRUN_TOKEN_FILE"]
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    told = tmp_path / "told"
    told.mkdir()
    flags = [
        *backend,
        f"--rdzv_id=secrets-{start}",
        "--nproc_per_node=2",
        *(["--no_warm_start"] if start == "cold" else []),
    ]
    secrets = {**SECRETS, "SOFTRUN_TOKEN_FILE": str(token)}
    node = cluster.start("a", softrun_command(*flags, script=script, args=[str(told)]), secrets)
    cluster.wait_for("the workers tell", lambda: {path.name for path in told.iterdir()} >= {"0", "1"})
    for rank in "01":
        seen, inherited = json.loads((told / rank).read_text())
        assert not SECRETS.keys() & seen.keys()
        assert not [text for text in (*seen.values(), inherited) if _has_a_secret(text)]
    family = node.family()
    assert len(family) >= 4, "the agent, its workers and a helper"
    for pid in family:  # the agent itself among them: its memory is not for other processes of the user
        assert not _has_a_secret(Path(f"/proc/{pid}/environ").read_text(errors="replace")), pid
        assert not _has_a_secret(Path(f"/proc/{pid}/cmdline").read_text(errors="replace")), pid
    assert not _has_a_secret(node.output())


def _has_a_secret(text: str) -> bool:
    return any(part in text for pair in SECRETS.items() for part in pair)


def test_the_environment_is_otherwise_as_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    odd = {"SOFTRUN_ETCD_PASSWORD": "", "SOFTRUN_TOKEN_FILES": "x", "ANOTHER": "SOFTRUN_TOKEN_FILE=y"}
    node = cluster.start("a", softrun_command("--standalone", script=script, args=[str(tmp_path)]), odd)
    cluster.wait_for("the worker tells", lambda: (tmp_path / "0").exists())
    seen, _ = json.loads((tmp_path / "0").read_text())
    assert "SOFTRUN_ETCD_PASSWORD" not in seen
    assert {name: seen[name] for name in ("SOFTRUN_TOKEN_FILES", "ANOTHER", "PATH")} == {
        "SOFTRUN_TOKEN_FILES": "x",
        "ANOTHER": "SOFTRUN_TOKEN_FILE=y",
        "PATH": os.environ["PATH"],
    }
    assert b"ANOTHER=SOFTRUN_TOKEN_FILE=y" in Path(f"/proc/{node.process.pid}/environ").read_bytes().split(b"\0")
