"""Hosts that are network namespaces: one falls silent, the network is cut between some, or loses and delays.

Skipped on a machine without root, the program `ip` and /dev/net/tun, none of which our scripts can install.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from local_network import NEEDS, LocalNetwork, able

from local_cluster import LocalCluster, Node, Step, softrun_command
from local_etcd import LocalEtcd
from storm.hosts import two_worlds

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(not able(), reason=f"needs {NEEDS}"),
]

TRAINERS = Path(__file__).parent / "trainers"
PROGRAMS = Path(__file__).parent / "programs"
LEASE = "--rdzv_conf=lease_ttl=3,keep_alive_interval=0.5"
ANY_STORE = pytest.mark.parametrize("etcd", [False, pytest.param(True, marks=pytest.mark.etcd)], ids=["c10d", "etcd"])
SOON_S = 60.0
"""Silence is noticed after 1.25 s, and what follows takes less, but for a busy machine, or TCP on a bad network."""
BAD_S = 10.0
LASTING_S = 6.0
"""A cut of which little or nothing is to be seen lasts so long: several tolerances."""


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork() as network:
        yield network


class Job:
    """One node with one worker on each of these hosts; all of them train."""

    def __init__(
        self, network: LocalNetwork, cluster: LocalCluster, hosts: str, trainer: str, *flags: str, later: str = ""
    ) -> None:
        self._network, self._cluster = network, cluster
        self._trainer = trainer
        own = ("--restart_policy=soft", f"--nnodes=1:{len(hosts + later)}", "--nproc_per_node=1", "--rdzv_id=net")
        cold = ("--no_warm_start",) if trainer == "count.py" else ()  # without torch it starts sooner
        self._flags = (*own, *cold, *flags)
        self.nodes: dict[str, Node] = {}
        for host in hosts:
            self.start(host)
        cluster.wait_for_steps(len(hosts))

    def start(self, host: str) -> None:
        """Start a node there, or start one again."""
        command = softrun_command(*self._flags, script=TRAINERS / self._trainer, args=("100000", "0.02"))
        # gloo takes the address that the name of this machine has, unless it is told the interface.
        env = {"GLOO_SOCKET_IFNAME": "eth0"}
        name = f"{host}-{len(self._cluster.nodes)}"
        self.nodes[host] = self._cluster.start(name, [*self._network.on(host), *command], env=env)

    def workers(self, hosts: str) -> set[int]:
        """The processes that train on these hosts."""
        trained = {s.pid for s in self._cluster.steps()}
        return {pid for host in hosts for pid in self.nodes[host].family() if pid in trained}


@pytest.fixture
def job(network: LocalNetwork, cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`job("abc", "count.py")` starts that trainer on three hosts. The first one has the endpoint, unless there is an
    etcd, which is on a host of its own. Hosts where nodes are started `later` are endpoints as well."""
    with ExitStack() as stack:

        def start(hosts: str, trainer: str = "count.py", *, later: str = "", etcd: bool = False, conf: str = "") -> Job:
            addresses = {host: network.add(host) for host in hosts + later}
            if etcd:
                (tmp_path / "etcd").mkdir()
                etcd_here = LocalEtcd(tmp_path / "etcd", host=network.add("etcd"), prefix=network.on("etcd"))
                backend = ("--rdzv_backend=etcd3", f"--rdzv_endpoint={stack.enter_context(etcd_here).endpoint}")
            else:
                endpoints = ",".join(f"{addresses[host]}:29400" for host in hosts[0] + later)
                backend = ("--rdzv_backend=c10d", f"--rdzv_endpoint={endpoints}")
            return Job(network, cluster, hosts, trainer, *backend, *([conf] if conf else []), later=later)

        yield start
        for node in cluster.nodes:
            node.kill()


def pids(steps: list[Step], world_size: int) -> set[int]:
    return {s.pid for s in steps if s.world_size == world_size}


def no_two_worlds(steps: list[Step]) -> None:
    assert not two_worlds(steps)


ECHO = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as udp:
    udp.bind(("", 7))
    print("listens", flush=True)
    while True:
        udp.sendto(*udp.recvfrom(100))
"""
PING = """
import socket, sys, time
with socket.socket(type=socket.SOCK_DGRAM) as udp:
    udp.settimeout(0.7)
    udp.connect((sys.argv[1], 7))
    taken = []
    for _ in range(int(sys.argv[2])):
        udp.send(str(time.monotonic()).encode())
    try:
        while len(taken) < int(sys.argv[2]):
            sent = float(udp.recv(100))
            taken.append(time.monotonic() - sent)
    except TimeoutError:
        pass
    print(len(taken), min(taken, default=0.0))
"""


def test_the_network_loses_and_delays_what_it_is_told_to(network: LocalNetwork) -> None:
    address = network.add("a")
    network.add("b")

    def pings(count: int) -> tuple[int, float]:
        """How many come back to b, and how soon the first."""
        command = [*network.on("b"), sys.executable, "-c", PING, address, str(count)]
        answered, soonest = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
        return int(answered), float(soonest)

    with subprocess.Popen([*network.on("a"), sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo:
        try:
            assert echo.stdout is not None
            echo.stdout.readline()
            assert pings(50)[0] == 50
            network.worsen(drop=0.0, delay_s=0.1)
            answered, soonest = pings(50)
            assert answered == 50
            assert soonest >= 0.2, "each way"
            network.worsen(drop=0.2, delay_s=0.0)
            assert 80 < pings(200)[0] < 170, "0.8 * 0.8 of them"
            network.heal()
            network.cut_way("a", "b")
            assert pings(5)[0] == 0
            network.heal()
            network.cut("a")
            assert pings(5)[0] == 0
            network.heal()
            assert pings(50)[0] == 50
        finally:
            echo.kill()


ANSWERS = """
import socket
with socket.create_server(("", 7)) as server:
    print("listens", flush=True)
    while True:
        peer, _ = server.accept()
        try:
            while heard := peer.recv(100):
                peer.send(heard)
        except ConnectionResetError:
            print("reset", flush=True)
"""
ASKS = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 7), timeout=5)
for line in sys.stdin:
    try:
        peer.send(b"x")
        print(peer.recv(100).decode(), flush=True)
    except ConnectionResetError:
        print("reset", flush=True)
        break
"""


def test_a_firewall_resets_connections(network: LocalNetwork) -> None:
    """Both ends believe it, and it refuses new connections if it is told to."""
    address = network.add("a")
    network.add("b")
    told = [*network.on("a"), sys.executable, "-uc", ANSWERS]
    asking = [*network.on("b"), sys.executable, "-uc", ASKS, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(told, stdout=subprocess.PIPE, text=True) as answers:
        try:
            assert answers.stdout is not None
            assert answers.stdout.readline() == "listens\n"

            with subprocess.Popen(asking, **pipes) as asks:  # type: ignore[call-overload]
                assert asks.stdin is not None
                assert asks.stdout is not None
                print("1", file=asks.stdin, flush=True)
                assert asks.stdout.readline() == "x\n"
                network.reset(network.everywhere(), new_only=True)
                print("2", file=asks.stdin, flush=True)
                assert asks.stdout.readline() == "x\n", "the old one is good"
                refused = subprocess.run(asking, input="1\n", capture_output=True, text=True, check=False)
                assert "ConnectionRefusedError" in refused.stderr
                network.reset(network.everywhere())
                print("3", file=asks.stdin, flush=True)
                assert asks.stdout.readline() == "reset\n"
            assert answers.stdout.readline() == "reset\n"
            network.heal()
            good = subprocess.run(asking, input="1\n", capture_output=True, text=True, check=True)
            assert good.stdout == "x\n"
        finally:
            answers.kill()


def lasted(cluster: LocalCluster, since: float, for_s: float) -> None:
    """Wait until something has lasted so long."""
    cluster.wait_for("time passes", lambda: time.monotonic() >= since + for_s)


@ANY_STORE
@pytest.mark.parametrize("victim", ["a", "b"])
def test_one_host_is_cut_off_and_healed(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, victim: str, etcd: bool
) -> None:
    job_ = job("abc", etcd=etcd, conf=LEASE if etcd else "")
    lost = job_.workers(victim)
    rest = job_.workers("abc".replace(victim, ""))
    at = network.cut(victim)
    after = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert pids(after, 2) == rest, "one world goes on"
    place_taken = min(s.mono for s in after if s.world_size == 2)
    stopped = max(s.mono for s in cluster.steps() if s.pid in lost)
    assert stopped < place_taken, "the side that is cut off has stopped before"
    if etcd:  # its workers look at the clock themselves, and a busy agent may say so later
        cluster.wait_for("it says so", lambda: "its workers stop" in job_.nodes[victim].output(), SOON_S)

    at = network.heal()
    grown = cluster.wait_for_steps(3, after=at, timeout_s=SOON_S)
    assert pids(grown, 3) == rest | lost, "and comes back with the processes that it had"
    assert not [s for s in cluster.steps() if s.pid in lost and place_taken < s.mono < at], "it did nothing meanwhile"
    no_two_worlds(cluster.steps())


@ANY_STORE
def test_collectives_over_the_network_recover(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, etcd: bool
) -> None:
    """Here the survivors sit in a collective with the host that is cut off, and nothing tells them but their agents."""
    job_ = job("abc", "reduce.py", etcd=etcd, conf=LEASE if etcd else "")
    everybody, rest = job_.workers("abc"), job_.workers("ac")
    at = network.cut("b")
    after = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert pids(after, 2) == rest
    at = network.heal()
    grown = cluster.wait_for_steps(3, after=at, timeout_s=SOON_S)
    assert pids(grown, 3) == everybody


@pytest.mark.parametrize("ways", ["ab", "ba"], ids=["the second does not hear", "the first does not hear"])
def test_a_way_between_two_hosts_is_cut(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, ways: str
) -> None:
    job_ = job("abc")
    everybody = job_.workers("abc")
    at = network.cut_way(*ways)
    lasted(cluster, at, LASTING_S)
    at = network.heal()
    grown = cluster.wait_for_steps(3, after=at, timeout_s=SOON_S)
    assert pids(grown, 3) == everybody
    no_two_worlds(cluster.steps())


def test_two_followers_do_not_reach_each_other(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster
) -> None:
    """Their workers need each other no more than their agents do, so nothing happens."""
    job_ = job("abc")
    everybody = job_.workers("abc")
    at = network.cut("b", "c")
    lasted(cluster, at, LASTING_S)
    assert pids(cluster.wait_for_steps(3, after=time.monotonic(), timeout_s=SOON_S), 3) == everybody
    at = network.heal()
    cluster.wait_for_steps(3, after=at, timeout_s=SOON_S)
    assert len({s.round for s in cluster.steps() if s.world_size == 3}) == 1, "it is the same world"


def test_of_two_hosts_the_first_goes_on(job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster) -> None:
    """Whichever plug is pulled: the two are the halves of the world, and the first node decides."""
    job_ = job("ab")
    stays, lost = job_.workers("a"), job_.workers("b")
    at = network.cut("b")
    after = cluster.wait_for_steps(1, after=at, each=50, timeout_s=SOON_S)
    began = min(s.mono for s in after if s.world_size == 1)
    assert pids(after, 1) == stays
    at = network.heal()
    grown = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert pids(grown, 2) == stays | lost
    assert not [s for s in cluster.steps() if s.pid in lost and began < s.mono < at]
    no_two_worlds(cluster.steps())


def test_of_two_hosts_the_second_waits_for_the_first(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster
) -> None:
    """It cannot know that nobody goes on there."""
    job_ = job("ab")
    waits = job_.workers("b")
    at = network.cut("a")
    job_.nodes["a"].kill()
    lasted(cluster, at, LASTING_S)
    assert not [s for s in cluster.steps() if s.world_size == 1]
    assert job_.workers("b") == waits, "it keeps its process"


@ANY_STORE
def test_a_poor_network(job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, etcd: bool) -> None:
    """One frame in fifty is lost, and an answer takes 40 ms: the job goes on."""
    job_ = job("abc", etcd=etcd)
    everybody = job_.workers("abc")
    at = network.worsen(drop=0.02, delay_s=0.02)
    lasted(cluster, at, LASTING_S)
    assert pids(cluster.wait_for_steps(3, after=at + LASTING_S / 2, timeout_s=SOON_S), 3) == everybody
    no_two_worlds(cluster.steps())


@ANY_STORE
def test_a_bad_network(job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, etcd: bool) -> None:
    """A fifth of all frames is lost, and an answer takes 0.4 s. Workers may pause for as long as TCP is stuck, but
    nothing is lost for good."""
    job_ = job("abc", etcd=etcd)
    everybody = job_.workers("abc")
    at = network.worsen(drop=0.2, delay_s=0.2)
    lasted(cluster, at, BAD_S)
    until = network.heal()
    grown = cluster.wait_for_steps(3, after=until, timeout_s=SOON_S)
    assert pids(grown, 3) == everybody
    no_two_worlds(cluster.steps())


@pytest.mark.parametrize("silent", [False, True], ids=["its host answers", "silent"])
def test_the_first_host_is_killed(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster, silent: bool
) -> None:
    job_ = job("abc")
    rest = job_.workers("bc")
    if silent:
        network.cut("a")
    at = job_.nodes["a"].kill()
    after = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert pids(after, 2) == rest
    network.heal()
    job_.start("a")
    grown = cluster.wait_for_steps(3, after=time.monotonic(), timeout_s=SOON_S)
    assert rest < pids(grown, 3), "the first host comes again, and they are in touch"
    no_two_worlds(cluster.steps())


def test_a_job_that_forged_last_words_have_made_two_becomes_one(
    job: Callable[..., Job], network: LocalNetwork, cluster: LocalCluster
) -> None:
    """The first goes on without the second, and that as well, as it has heard that the first has ended."""
    job_ = job("ab")
    both = job_.workers("ab")
    network.add("x")
    command = [sys.executable, str(PROGRAMS / "forge_last_words.py"), "net", network.address("a"), "29400"]
    with subprocess.Popen([*network.on("x"), *command], stdout=subprocess.PIPE) as forger:
        try:
            assert forger.stdout is not None
            assert forger.stdout.readline()
            at = network.cut("a", "b")
            assert forger.wait(SOON_S) == 0
        finally:
            forger.kill()

    def apart() -> bool:
        return pids([s for s in cluster.steps() if s.mono > at], 1) == both

    cluster.wait_for("two worlds", apart, SOON_S)
    lasted(cluster, time.monotonic(), LASTING_S)
    at = network.heal()
    grown = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert pids(grown, 2) == both, "and one again, with the processes that they had"
    said = [line for node in job_.nodes.values() for line in node.output().splitlines() if "has become two" in line]
    assert len(said) == 2, "once each"
    assert all("Here: version" in line and "There: version" in line for line in said)


def test_nobody_founds_a_job_beside_an_agent_that_is_stopped(job: Callable[..., Job], cluster: LocalCluster) -> None:
    """Its host accepts and says nothing. That may be the job, and it is."""
    job_ = job("a", later="b")
    first = job_.workers("a")
    job_.nodes["a"].signal(signal.SIGSTOP)
    job_.start("b")
    cluster.wait_for("b to say why it waits", lambda: "and says nothing" in job_.nodes["b"].output() or None)
    lasted(cluster, time.monotonic(), LASTING_S)
    assert not [s for s in cluster.steps() if s.pid not in first], "it does not train alone"
    at = job_.nodes["a"].signal(signal.SIGCONT)
    grown = cluster.wait_for_steps(2, after=at, timeout_s=SOON_S)
    assert first < pids(grown, 2)
