"""A job whose nodes are hosts of their own, between which something goes wrong for a while: `scripts/soak --hosts`.

A firewall resets connections in one of eight patterns, an address moves to another host, an agent or a whole host is
stopped, or the founder is as soon as its first world works. Whatever happens, no two worlds work at once, all keep
their processes, and once all is well again there is one world of all.

A seed is a trouble, a size, a secret or none, a trainer, and a witness or none, in this order of how soon it changes:
all troubles and sizes with and without a secret are 72 seeds.
"""

from __future__ import annotations

import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from local_network import NEEDS, LocalNetwork, able

from local_cluster import LocalCluster, Node, Step, send, softrun_command
from storm.job import Job

TRAINERS = Path(__file__).parents[2] / "tests" / "processes" / "trainers"
ENDLESS = ("100000", "0.02")
SIZES = ("1:2", "1:3", "2:3")
TRAIN = ("count.py", "reduce.py")
"""Nothing stops the workers of the first but their agents, and those of the second sit in collectives."""
LASTS_S = (1.0, 5.0)
"""For how long it goes wrong: less than a tolerance, and several."""
TOLERANCE_S = 1.25
BLINKS_S = (0.1, 0.9)
BURST_S = 0.2
PATIENCE_S = 60.0
MOST_WORLDS = 20
"""Of one trouble. A blinking network makes one each time, at most."""


def two_worlds(steps: Sequence[Step], lease_s: float = 0.0) -> str:
    """Who stepped in an older world than one that stepped meanwhile, or in another of the same number; or nothing.

    Whoever was left behind may step on in its old world until its lease is over, which it had at most for `lease_s`.
    """
    worlds: dict[tuple[int, int], list[Step]] = {}
    for s in steps:
        worlds.setdefault((s.round, s.world_size), []).append(s)
    for (number, size), own in worlds.items():
        members = {s.pid for s in own}
        meanwhile = [s for s in steps if own[0].mono <= s.mono <= own[-1].mono and s.pid not in members]
        others = {
            s.pid for s in meanwhile if s.round == number or (s.round < number and s.mono > own[0].mono + lease_s)
        }
        # A member may have made no step before its world ended.
        if len(members) + len(others) > size:
            return f"beside world {number} of {size} there stepped {others or members}"
    return ""


class HostsJob(Job):
    """One to three hosts, each with one worker."""

    NAME = "hosts"

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        super().__init__(cluster, seed)
        rest, trouble = divmod(seed, len(TROUBLES))
        rest, size = divmod(rest, len(SIZES))
        rest, secret = divmod(rest, 2)
        rest, train = divmod(rest, len(TRAIN))
        self.trouble, self.size, self.train = TROUBLES[trouble], SIZES[size], TRAIN[train]
        self.has_secret, self.has_witness = bool(secret), bool(rest % 2)
        self.hosts = "abc"[: int(self.size[-1])]
        self.nodes: dict[str, Node] = {}
        self._stopped: dict[int, float] = {}
        self.verdict.what = " ".join(
            (self.size, self.train, *["secret"] * self.has_secret, *["witness"] * self.has_witness)
        )

    def play(self) -> None:
        if not able():
            raise RuntimeError(f"hosts need {NEEDS}")
        with LocalNetwork(self.verdict.seed) as self.network:
            try:
                self._start()
                self._go_wrong()
            except (TimeoutError, AssertionError) as error:
                self.fails(error)
            finally:
                for node in self.cluster.nodes:
                    node.kill_all()
            self._judge()
        self.keep_story()

    def _start(self) -> None:
        for host in (*self.hosts, "x", *["w"] * self.has_witness):
            self.network.add(host)
        conf = ["last_call_timeout=1"]
        if self.has_secret:
            token = self.cluster.directory / "token"
            token.write_text(secrets.token_hex(32))
            token.chmod(0o600)
            conf.append(f"token_file={token}")
        if self.has_witness:
            place = f"{self.network.address('w')}:29400"
            flags = ("--rdzv_id=hosts", f"--rdzv_endpoint={place}", f"--rdzv_conf={','.join(conf[1:])}")
            self._run("w", [sys.executable, "-m", "softrun", "witness", *flags[: 2 + self.has_secret]])
            conf.append(f"witness={place}")
        for host in self.hosts:
            self._run(host, self._command(",".join(conf)))
        self.cluster.wait_for_steps(len(self.hosts), timeout_s=PATIENCE_S)

    def _command(self, conf: str) -> list[str]:
        endpoints = [f"{self.network.address(host)}:29400" for host in self.hosts]
        self.draw.shuffle(endpoints)
        return softrun_command(
            "--restart_policy=soft",
            f"--nnodes={self.size}",
            "--nproc_per_node=1",
            "--rdzv_id=hosts",
            "--rdzv_backend=c10d",
            f"--rdzv_endpoint={','.join(endpoints)}",
            f"--rdzv_conf={conf}",
            *["--no_warm_start"] * (self.train == "count.py"),
            script=TRAINERS / self.train,
            args=ENDLESS,
        )

    def _run(self, host: str, command: list[str]) -> None:
        # gloo takes the address that the name of this machine has, unless it is told the interface.
        env = {"GLOO_SOCKET_IFNAME": "eth0", "LOGLEVEL": "INFO"}
        self.nodes[host] = self.cluster.start(host, [*self.network.on(host), *command], env)

    def _go_wrong(self) -> None:
        size, before = len(self.hosts), {s.pid for s in self.cluster.steps()}
        worlds = self._newest_world()
        self.verdict.faults.append(self.trouble.__name__)
        self.trouble(self)
        healed_at = self.network.heal()
        grown = self.cluster.wait_for_steps(size, after=healed_at, timeout_s=PATIENCE_S)
        assert {s.pid for s in grown if s.world_size == size} == before, "not all have kept their processes"
        self.verdict.tally = {
            "worlds": self._newest_world() - worlds,
            "ms to heal": round((max(self._firsts(grown).values()) - healed_at) * 1000),
        }
        assert self.verdict.tally["worlds"] <= MOST_WORLDS, "world after world"

    def _firsts(self, steps: Sequence[Step]) -> dict[int, float]:
        """When each worker made its first step in the newest world of these."""
        newest = max(s.round for s in steps)
        return {s.pid: s.mono for s in reversed(steps) if s.round == newest}

    def _newest_world(self) -> int:
        return max(s.round for s in self.cluster.steps())

    def _judge(self) -> None:
        steps = self.cluster.steps()
        for pid, at in self._stopped.items():
            # What it was stopped in it ends; it does not step again before it looks at its clock.
            own = next((s for s in steps if s.pid == pid and s.mono >= at), None)
            steps = [s for s in steps if s is not own]
        if said := two_worlds(steps, TOLERANCE_S):
            self.verdict.complaints.append(said)

    # --- what goes wrong

    def one(self) -> str:
        """Some host of the job."""
        return self.draw.choice(self.hosts)

    def lasts(self, for_s: float = 0.0) -> None:
        """Wait while it is as it is, for as long as the seed says by default."""
        end = time.monotonic() + (for_s or self.draw.uniform(*LASTS_S))
        self.cluster.wait_for("time passes", lambda: time.monotonic() >= end)

    def stop(self, pids: Sequence[int]) -> None:
        """Stop these processes for a while."""
        for pid in pids:
            send(pid, signal.SIGSTOP)
        self.lasts()
        at = time.monotonic()
        for pid in pids:
            send(pid, signal.SIGCONT)
            self._stopped[pid] = at


def resets_a_host(job: HostsJob) -> None:
    job.network.reset(job.network.between(job.one()))
    job.lasts()


def resets_a_way(job: HostsJob) -> None:
    """What one host sends to another."""
    job.network.reset([tuple(job.draw.sample(job.hosts, 2))])
    job.lasts()


def resets_between_two(job: HostsJob) -> None:
    job.network.reset(job.network.between(*job.draw.sample(job.hosts, 2)))
    job.lasts()


def resets_everywhere(job: HostsJob) -> None:
    job.network.reset(job.network.everywhere())
    job.lasts()


def resets_now_and_then(job: HostsJob) -> None:
    for _ in range(6):
        job.network.reset(job.network.between(job.one()))
        job.lasts(job.draw.uniform(*BLINKS_S))
        job.network.heal()
        job.lasts(job.draw.uniform(*BLINKS_S))


def resets_once(job: HostsJob) -> None:
    """All connections that send something just then; new ones are good."""
    job.network.reset(job.network.everywhere())
    job.lasts(BURST_S)


def resets_then_is_silent(job: HostsJob) -> None:
    victim = job.one()
    job.network.reset(job.network.between(victim))
    job.lasts(BURST_S)
    job.network.cut(victim)
    job.lasts()


def refuses_new_connections(job: HostsJob) -> None:
    """After all were reset."""
    job.network.reset(job.network.everywhere())
    job.lasts(BURST_S)
    job.network.reset(job.network.everywhere(), new_only=True)
    job.lasts()


def an_address_moves(job: HostsJob) -> None:
    """To a host where nobody listens, and back."""
    victim = job.one()
    job.network.move(victim, victim, "x")
    job.lasts()
    job.network.move(victim, "x", victim)


def an_agent_is_stopped(job: HostsJob) -> None:
    victim = job.one()
    job.stop([job.nodes[victim].process.pid])


def a_host_is_stopped(job: HostsJob) -> None:
    """It answers nobody meanwhile, and what it is sent is lost."""
    victim = job.one()
    job.network.cut(victim)
    job.stop(job.nodes[victim].family())


def the_founder_is_stopped(job: HostsJob) -> None:
    """As soon as the first world works, with its lease just begun."""
    ranks = {s.pid: s.rank for s in job.cluster.steps()}
    founder = next(n for n in job.nodes.values() if any(ranks.get(pid) == 0 for pid in n.family()))
    job.stop([founder.process.pid])


TROUBLES: tuple[Callable[[HostsJob], None], ...] = (
    resets_a_host,
    resets_a_way,
    resets_between_two,
    resets_everywhere,
    resets_now_and_then,
    resets_once,
    resets_then_is_silent,
    refuses_new_connections,
    an_address_moves,
    an_agent_is_stopped,
    a_host_is_stopped,
    the_founder_is_stopped,
)
