"""etcd3 beside any protobuf: it is neither pinned, nor is anything asked of the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster import PATIENCE_S
from local_etcd import LocalEtcd

pytestmark = pytest.mark.etcd

PROGRAM = """
import os, sys
before = dict(os.environ)
if "first" in sys.argv:
    import google.protobuf.struct_pb2, google.protobuf.descriptor_pool as pools
    # Somebody else's messages under the same names of files.
    from google.protobuf import descriptor_pb2
    for name in ("rpc.proto", "kv.proto", "auth.proto"):
        pools.Default().AddSerializedFile(descriptor_pb2.FileDescriptorProto(name=name).SerializeToString())
from softrun.agent.errors import StoreLostError
from softrun.agent.store.etcd_client import EtcdAccess
from softrun.agent.store.etcd import EtcdStore
a, b = (EtcdStore(sys.argv[2], node, EtcdAccess((sys.argv[1],)), 5, 10) for node in "ab")
assert a.create(1, b"1") == b.create(1, b"2") == b"1"
assert b.wait_beyond(0).record == b"1"
assert [a.renew().lease_number for _ in range(2)] == [1, 1]
b.leave(over=False)
assert a.wait_beyond(1).expired == (("b", 1),)
assert a.missing([("a", 1), ("b", 1)]) == {("b", 1)}
child = os.fork()
if not child:
    os._exit(len(os.listdir("/proc/self/task")))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "grpc has begun its threads in it"
import threading
def wait():
    try:
        a.wait_beyond(1)
    except StoreLostError:
        pass
waiting = threading.Thread(target=wait)
waiting.start()
waiting.join(0.2)
a.close(), b.close()
waiting.join(10)
assert not waiting.is_alive()
assert dict(os.environ) == before, "the environment was changed"
import google.protobuf
print(google.protobuf.__version__)
"""


def run_with(path: str, *args: str) -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    fork_with_threads = "ignore::DeprecationWarning:__main__"  # of Python 3.12 and later; this program means to
    command = [sys.executable, "-W", fork_with_threads, "-c", PROGRAM, *args]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout.strip()


@pytest.mark.parametrize("order", ["last", "first"])
def test_beside_the_installed_protobuf(etcd: LocalEtcd, order: str) -> None:
    assert int(run_with("", etcd.endpoint, f"installed-{order}", order).partition(".")[0]) >= 4


@pytest.mark.parametrize("version", ["3.20.3", "4.21.12", "5.29.5"])
def test_beside_another_protobuf(etcd: LocalEtcd, version: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(tmp_path), f"protobuf=={version}"], check=True, capture_output=True)
    assert run_with(str(tmp_path), etcd.endpoint, f"other-{version}") == version
