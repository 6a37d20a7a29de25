"""Three hosts and, for most tests, an etcd, each in a network namespace of its own: one is cut off, and healed.

Needs root and the program `ip`; in CI these tests fail without them, elsewhere they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local_cluster import LocalCluster, Node, Step, softrun_command
from local_etcd import LocalEtcd

if TYPE_CHECKING:
    from typing_extensions import Self

ABLE = os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("etcd") is not None

pytestmark = [
    pytest.mark.processes,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.skipif(not ABLE and not os.environ.get("SOFTRUN_REQUIRE_ETCD"), reason="needs root, iproute2 and etcd"),
]

TRAINERS = Path(__file__).parent / "trainers"
LEASE = "--rdzv_conf=lease_ttl=3,keep_alive_interval=0.5"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Network:
    """Hosts on one switch. Names carry this process's number, so that tests beside each other do not meet."""

    def __init__(self) -> None:
        self._mark = f"{os.getpid() % 100000}"
        self._switch = f"sr{self._mark}"
        self._hosts: dict[str, str] = {}

    def __enter__(self) -> Self:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self._switch, "link", "set", "dev", "switch", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in [*map(self.namespace, self._hosts), self._switch]:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def add(self, host: str) -> str:
        """Its address."""
        address = self._hosts[host] = f"10.77.0.{len(self._hosts) + 1}"
        ip("netns", "add", self.namespace(host))
        ip("link", "add", "eth0", "netns", self.namespace(host), "type", "veth",
           "peer", "name", host, "netns", self._switch)  # fmt: skip
        ip("-n", self._switch, "link", "set", "dev", host, "master", "switch", "up")
        ip("-n", self.namespace(host), "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", self.namespace(host), "link", "set", "dev", device, "up")
        return address

    def namespace(self, host: str) -> str:
        return f"{self._switch}-{host}"

    def on(self, host: str) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def cut(self, host: str) -> float:
        """Pull its plug: neither end is told. Returns when."""
        at = time.monotonic()
        ip("-n", self._switch, "link", "set", "dev", host, "nomaster")
        return at

    def heal(self, host: str) -> float:
        at = time.monotonic()
        ip("-n", self._switch, "link", "set", "dev", host, "master", "switch")
        return at


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


def start_nodes(
    cluster: LocalCluster, network: Network, addresses: dict[str, str], trainer: str, backend: tuple[str, ...]
) -> list[Node]:
    """A node on each host; all of them train."""
    flags = ("--restart_policy=soft", "--nnodes=1:3", "--nproc_per_node=1", "--rdzv_id=cut", *backend)
    nodes = []
    for name, own in addresses.items():
        command = softrun_command(*flags, script=TRAINERS / trainer, args=("100000", "0.01"))
        # gloo takes the address that the name of this machine has, unless it is told the interface.
        env = {"GLOO_SOCKET_IFNAME": "eth0", "HOST": own}
        nodes.append(cluster.start(name, [*network.on(name), *command], env=env))
    cluster.wait_for_steps(len(nodes))
    return nodes


@pytest.fixture
def hosts(network: Network, cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str], list[Node]]]:
    """`hosts("count.py")` starts that trainer on hosts a, b and c, which meet in an etcd on a fourth."""
    address = network.add("etcd")
    addresses = {name: network.add(name) for name in "abc"}
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(tmp_path / "etcd", host=address, prefix=network.on("etcd")) as etcd:

        def start(trainer: str) -> list[Node]:
            backend = ("--rdzv_backend=etcd3", f"--rdzv_endpoint={etcd.endpoint}", LEASE)
            return start_nodes(cluster, network, addresses, trainer, backend)

        yield start
        for node in cluster.nodes:
            node.kill()


def by_node(nodes: list[Node], steps: list[Step]) -> list[set[int]]:
    return [{s.pid for s in steps} & set(node.family()) for node in nodes]


@pytest.mark.parametrize("victim", [0, 1], ids=["a leader, perhaps", "another"])
def test_one_host_is_cut_off_and_healed(
    hosts: Callable[[str], list[Node]], network: Network, cluster: LocalCluster, victim: int
) -> None:
    nodes = hosts("count.py")
    workers = by_node(nodes, cluster.steps())
    lost = workers[victim]
    rest = set().union(*workers) - lost
    at = network.cut(nodes[victim].name)
    after = cluster.wait_for_steps(2, after=at)
    assert {s.pid for s in after if s.world_size == 2} == rest, "one world goes on"
    place_taken = min(s.mono for s in after if s.world_size == 2)
    stopped = max(s.mono for s in cluster.steps() if s.pid in lost)
    assert stopped < place_taken, "the side that is cut off has stopped before"
    assert "its workers stop" in nodes[victim].output()

    at = network.heal(nodes[victim].name)
    grown = cluster.wait_for_steps(3, after=at)
    assert {s.pid for s in grown if s.world_size == 3} == rest | lost, "and comes back with the processes that it had"
    assert not [s for s in cluster.steps() if s.pid in lost and place_taken < s.mono < at], "it did nothing meanwhile"


def test_collectives_over_the_network_recover(
    hosts: Callable[[str], list[Node]], network: Network, cluster: LocalCluster
) -> None:
    """Here the survivors sit in a collective with the host that is cut off, and nothing tells them but their agents."""
    nodes = hosts("reduce.py")
    workers = by_node(nodes, cluster.steps())
    at = network.cut("b")
    after = cluster.wait_for_steps(2, after=at)
    assert {s.pid for s in after if s.world_size == 2} == workers[0] | workers[2]
    at = network.heal("b")
    grown = cluster.wait_for_steps(3, after=at)
    assert {s.pid for s in grown if s.world_size == 3} == set().union(*workers)


def test_a_host_that_is_cut_off_from_c10d_does_nothing_beside_the_others(
    network: Network, cluster: LocalCluster
) -> None:
    """Its agent lives, and cannot know whether the others go on without it; its workers need nobody for their steps."""
    addresses = {name: network.add(name) for name in "ab"}
    times = "--rdzv_conf=keep_alive_interval=0.5,keep_alive_max_attempt=4"
    backend = ("--rdzv_backend=c10d", f"--rdzv_endpoint={addresses['a']}:29400", times)
    nodes = start_nodes(cluster, network, addresses, "count.py", backend)
    stays, lost = by_node(nodes, cluster.steps())
    at = network.cut("b")
    after = cluster.wait_for_steps(1, after=at, each=50)
    began = min(s.mono for s in after)
    assert {s.pid for s in after} == stays
    assert not [s for s in cluster.steps() if s.pid in lost and s.mono > began]
    at = network.heal("b")
    grown = cluster.wait_for_steps(2, after=at)
    assert {s.pid for s in grown if s.world_size == 2} == stays | lost
    assert not [s for s in cluster.steps() if s.pid in lost and began < s.mono < at]
    for node in nodes:
        node.kill()
