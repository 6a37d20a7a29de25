"""What `scripts/demo` runs. Exits 0 only if the survivors kept their processes and the accuracy is reached."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from itertools import groupby, pairwise
from pathlib import Path

from rich.console import Console

from local_cluster import (
    LocalCluster,
    Node,
    Step,
    end_in_order_on_sigterm,
    free_port,
    listens,
    recovery,
    softrun_command,
)
from recovery_picture import draw

TRAINER = Path(__file__).parent.parent / "examples" / "train_digits.py"
WORKERS_PER_NODE = 2
ACCURACY = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds after each step, to have time to watch")
    parser.add_argument("--picture", type=Path, default=Path("recovery.png"), help="where to draw the recovery")
    args = parser.parse_args()
    end_in_order_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="softrun-demo-") as directory, LocalCluster(Path(directory)) as cluster:
        return Demo(cluster, ["--steps", str(args.steps), "--pause", str(args.pause)], args.picture).run()


class Demo:
    def __init__(self, cluster: LocalCluster, trainer_args: list[str], picture: Path) -> None:
        self.cluster = cluster
        self.picture = picture
        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self.status = self.console.status("")  # a line that lives, on a terminal; nothing elsewhere
        self.port = free_port()
        self.command = softrun_command(
            "--restart_policy=soft",
            "--nnodes=2:3",
            f"--nproc_per_node={WORKERS_PER_NODE}",
            "--rdzv_backend=c10d",
            f"--rdzv_endpoint=127.0.0.1:{self.port}",
            "--rdzv_id=demo",
            script=TRAINER,
            args=trainer_args,
        )
        self.began = time.monotonic()

    def run(self) -> int:
        self.cluster.while_waiting = self.show_progress
        with self.status:
            return self.play()

    def play(self) -> int:
        nodes = [self.start("node 1")]
        self.cluster.wait_for("node 1 listens", lambda: listens(self.port))
        nodes += [self.start("node 2"), self.start("node 3")]
        steps = self.cluster.wait_for_steps(6, each=100)
        before = newest(steps)
        self.say(f"6 workers train: processes {listed(before)}")

        victim = nodes.pop()
        survivors = before - set(victim.family())
        killed_at = victim.kill()
        self.say("node 3 is killed: SIGKILL to its agent and its 2 workers")
        gap = self.cluster.wait_for("recovery", lambda: recovery(self.cluster.steps(), killed_at, survivors))
        steps = self.cluster.wait_for_steps(4, after=killed_at, each=100)
        self.say(f"the 4 survivors have completed their next step {gap * 1000:.0f} ms after the kill")

        nodes.append(self.start("node 4"))
        joined_at = time.monotonic()
        steps = self.cluster.wait_for_steps(6, after=joined_at, each=20)
        after = newest(steps)
        self.say(f"6 workers train: processes {listed(after)}")
        self.cluster.wait_for("the end", lambda: all(node.process.poll() is not None for node in nodes), timeout_s=120)
        for node in nodes:
            if node.process.returncode != 0:
                print(node.output(), file=sys.stderr)
                return 1
        return self.report(before, survivors, after, gap, killed_at, joined_at, nodes)

    def start(self, name: str) -> Node:
        self.say(f"{name} starts")
        return self.cluster.start(name.replace(" ", "-"), self.command)

    def say(self, text: str) -> None:
        self.console.print(f"{time.monotonic() - self.began:6.1f} s  {text}")

    def show_progress(self) -> None:
        steps = self.cluster.steps()
        world = f"step {steps[-1].step}, {steps[-1].world_size} workers" if steps else "the workers start"
        self.status.update(f"{time.monotonic() - self.began:.1f} s  {world}")

    def report(
        self,
        before: set[int],
        survivors: set[int],
        after: set[int],
        gap: float,
        killed_at: float,
        joined_at: float,
        nodes: list[Node],
    ) -> int:
        steps = self.cluster.steps()
        finals = re.findall(r"final accuracy ([\d.]+) at step (\d+)", "".join(node.output() for node in nodes))
        accuracy = float(finals[0][0]) if finals else 0.0
        kept = survivors < after
        draw(steps, {"node 3 is killed": killed_at, "node 4 starts": joined_at}, "node 3 is killed", self.picture)
        tell = self.console.print
        tell()
        tell(f"gap after the kill         {gap * 1000:8.0f} ms   fault → next completed step of every survivor")
        paused = pause(steps, survivors, joined_at)
        tell(f"pause for the newcomer     {paused * 1000:8.0f} ms   the longest of any survivor")
        tell(f"steps lost at the kill     {lost(steps, survivors, killed_at):8d}")
        tell(f"steps lost at the growth   {lost(steps, survivors, joined_at):8d}")
        tell(f"survivors before           {listed(before)} less node 3's")
        tell(
            f"survivors after            {listed(survivors & after)} {'the same processes' if kept else 'NOT THE SAME'}"
        )
        tell(f"world sizes over time      {' → '.join(sizes(steps))}")
        tell(f"final accuracy             {accuracy:8.2f}      at least {ACCURACY} is asked")
        tell(f"picture of the recovery    {self.picture}")
        return 0 if kept and accuracy >= ACCURACY else 1


def newest(steps: list[Step]) -> set[int]:
    return {s.pid for s in steps if s.round == steps[-1].round}


def pause(steps: list[Step], survivors: set[int], after: float) -> float:
    """The longest time between two steps of one survivor."""
    longest = 0.0
    for pid in survivors:
        times = [s.mono for s in steps if s.pid == pid and s.mono > after]
        longest = max([longest, *(b - a for a, b in pairwise(times))])
    return longest


def lost(steps: list[Step], survivors: set[int], at: float) -> int:
    """How many steps that a survivor had completed in the world of `at` were done again in the next."""
    world = max(s.round for s in steps if s.mono <= at)
    done = max(s.step for s in steps if s.pid in survivors and s.round == world)
    begun = min(s.step for s in steps if s.pid in survivors and s.round > world)
    return max(0, done - begun + 1)


def sizes(steps: list[Step]) -> list[str]:
    """World sizes in the order of the worlds, each with the time that it was worked in."""
    return [
        f"{worked[0].world_size} ({worked[-1].mono - worked[0].mono:.1f} s)"
        for _, group in groupby(sorted(steps, key=lambda s: (s.round, s.mono)), key=lambda s: s.round)
        if (worked := list(group))
    ]


def listed(pids: set[int]) -> str:
    return " ".join(map(str, sorted(pids)))


if __name__ == "__main__":
    sys.exit(main())
