"""Plays a scenario file on the simulated world, without faults and with fixed delays, and writes what happens.

A file is prose (lines that begin with `#`), and blocks:

    start A B          what is done
    after 1s
    ----
    store: …           what happened meanwhile, exactly

The first block begins with the job: `job nodes=1:3 workers=1 policy=soft failure=no-replace restarts=3`. More settings:
`join_timeout=20`; `soft=2s hard=4s`, the limits by which every worker is watched (`watched=yes`: it is watched, without
limits of its own); `grace=2s`, from SIGTERM to SIGKILL; `last_call_wait=0.2s`, which workers give the faults of others;
`ready=5s`, how long one that was started outside of the world takes to ask for one; `step=0.1s`: workers count steps,
which take so long; `heeds=yes`: told to leave for good, they stop after an agreed step, and save, which
takes 0.5 s; `time_limit=60s`; `witness=yes`: the agents look for a witness. Directives:

    start A B           agents A and B start
    start a witness     beside them; `kill the witness`, `power off the witness`
    after 1s            time passes
    kill A              A's process is killed with its workers: its host refuses connections
    power off A         A's host is gone: silence
    stall A, wake A     A's agent does not run; it goes on
    cut A B, heal       A and B do not reach the others; the network is whole again
    worker A/0 exits 1  one worker ends by itself
    worker A/0 breaks   one worker reports that it found its world broken
    worker A/0 excepts  its training function raises: it lives, and says so (`excepts at 2`: in the wrapper at depth 2)
    worker A/0 hangs    it makes no progress and obeys nothing; the others of its world soon wait for it
    worker A/0 stops    it hangs, because a signal has stopped it
    worker A/0 recovers it goes on, and obeys what it was told meanwhile
    never ready A       the workers that A starts outside of a world never ask for one
    never asks A        the workers of A take their world from their environment alone
    worker A/0 leaves   it exits 0 in the midst of a call at whose end its peers wait for it
    sigterm A           A's agent gets SIGTERM; so do `sigint A` and `sigquit A`
    finish              every worker of the world exits 0

A trace has one line for whatever a person sees: the rounds that are agreed on, what each worker is told or sent, whose
stacks are shown, after which step it leaves where all leave together, how each agent ended. `started in` a round is
started at work; `started outside` is started beside it, PAUSED. Nodes have the beat interval 1 s and the tolerance 5 s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulation.checkers import all_checkers
from simulation.cluster import Cluster, Node, Watcher
from simulation.witness import PLACE
from simulation.workers import NEVER_S, Process
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import JobSettings, Phase, Round
from softrun.policies import WorkerFailure, load_policy
from softrun.runtime.events import Preemption, ProgressLimits, WorkerFault, WorkerState

SIGNALS = {2: "SIGINT", 3: "SIGQUIT", 9: "SIGKILL", 15: "SIGTERM"}


class Scribe(Watcher):
    """Writes the trace."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def recorded(self, before: Round | None, after: Round, by: Node) -> None:
        lost = f", lost {' '.join(after.lost)}" if after.lost else ""
        if after.phase is Phase.CLOSED:
            self._write("record: closed" + (f", failed: {after.outcome}" if after.outcome else ""))
        elif before is not None and before.finishing and set(after.finished) > set(before.finished):
            self._write(f"record: {' '.join(sorted(after.finished_nodes - before.finished_nodes))} finished")
        elif before is not None and set(after.retired) > set(before.retired):
            self._write(f"record: {' '.join(sorted({*before.voters} - {*after.voters}))} has no vote any more")
        elif before is not None and after.preemption is not None and after.number == before.number:
            self._write(f"record: round {after.number} is left for good after step {after.preemption.after}")
        elif before is not None and after.number == before.number and after.finishing and not before.finishing:
            self._write("record: admits nobody any more")
        elif before is not None and _world(before) == _world(after):
            self._write(f"record: round {after.number} {_attested(after)}")
        elif after.phase is Phase.OPEN:
            self._write(f"record: open for {_names(after)}{lost}")
        else:
            fault = f", after: {_fault(after.fault)}" if after.fault is not None else ""
            last = ", the last" if after.preemption is not None else ""
            self._write(f"record: round {after.number} sealed {_names(after)}{lost}{fault}{last}")

    def effect(self, node: Node, effect: do.Effect) -> None:
        match effect:
            case do.Spawn(tells, restarts_left):
                left = f", {restarts_left} restarts left" if restarts_left < node.config.max_restarts else ""
                for tell in tells:
                    where = "in" if tell.state is WorkerState.HEALTHY else "outside of"
                    self._write(f"{node.name}/{tell.local_rank}: started {where} {_place(tell)}{left}")
            case do.Tell(local_rank, _, state) if effect.signum:
                if state is not node.processes[local_rank].last.state:
                    self._write(f"{node.name}/{local_rank}: PAUSED, to end")
            case do.Tell(local_rank, _, WorkerState.HEALTHY, stop_after=int(step)):
                self._write(f"{node.name}/{local_rank}: waits after step {step}")
            case do.Tell(local_rank, _, WorkerState.HEALTHY, preemption=Preemption(after=step, seconds=seconds)) if (
                step
            ):
                self._write(f"{node.name}/{local_rank}: leaves for good after step {step}, in {seconds:.0f} s")
            case do.Tell(local_rank, _, WorkerState.HEALTHY, round=number) if self._is_in(node, local_rank, number):
                self._write(f"{node.name}/{local_rank}: goes on")
            case do.Tell(local_rank, _, state, change):
                why = f" {change.value}" if change is not None else ""
                where = f" {_place(effect)}" if state is WorkerState.HEALTHY else ""
                fault = " with the fault" if where and effect.fault is not None else ""
                self._write(f"{node.name}/{local_rank}: {state.value}{why}{where}{fault}")
            case do.SignalWorker(local_rank, _, signum):
                self._write(f"{node.name}/{local_rank}: gets {SIGNALS[signum]}")
            case do.ShowStacks(local_rank):
                self._write(f"{node.name}/{local_rank}: shows its stacks")
            case do.End(result):
                reason = f": {result.reason}" if result.reason else ""
                self._write(f"{node.name}: ended {result.outcome.value}{reason}")

    @staticmethod
    def _is_in(node: Node, local_rank: int, number: int) -> bool:
        return (
            node.processes[local_rank].last.round == number and node.processes[local_rank].last.stop_after is not None
        )

    def left(self, process: Process, leave_after: int) -> None:
        self._write(f"{process.name}: leaves round {process.at} after step {process.step} of {leave_after}")

    def left_for_good(self, process: Process, preemption: Preemption) -> None:
        step = f" after step {process.step}" if process.step is not None else ""
        self._write(f"{process.name}: saves in round {process.last.round}{step}")

    def worker_died(self, process: Process, exitcode: int, because: str) -> None:
        self._write(f"{process.name}: exits {exitcode}")

    def _write(self, line: str) -> None:
        self.lines.append(line)


def _world(round_: Round) -> tuple[object, ...]:
    return round_.number, round_.phase, round_.members, round_.finishing, round_.finished


def _attested(round_: Round) -> str:
    return f"has the witness {round_.witness}" if round_.witness else "has no witness any more"


def _names(round_: Round) -> str:
    return " ".join(m.node if m.incarnation == 1 else f"{m.node}#{m.incarnation}" for m in round_.members)


def _fault(fault: WorkerFault) -> str:
    """Its first line; a simulated exception has no text."""
    return (fault.text.split("\n")[0] or "a fault") + (f" at depth {fault.depth}" if fault.depth else "")


def _place(tell: do.Tell) -> str:
    return f"round {tell.round} as {tell.info.rank} of {tell.info.world_size}"


@dataclass
class Block:
    """Some directives, and the trace that they lead to; `prose` is what stands before them."""

    prose: list[str]
    directives: list[str]
    trace: list[str]


def read(text: str) -> list[Block]:
    blocks = [Block([], [], [])]
    in_trace = False
    for line in text.splitlines():
        if line == "----":
            in_trace = True
        elif in_trace and line:
            blocks[-1].trace.append(line)
        else:
            if in_trace:
                blocks.append(Block([], [], []))
                in_trace = False
                if not line:
                    continue
            if line.startswith("#") or not line:
                blocks[-1].prose.append(line)
            else:
                blocks[-1].directives.append(line)
    if in_trace:
        blocks.append(Block([], [], []))
    return blocks


def write(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += block.prose
        if block.directives:
            lines += [*block.directives, "----", *block.trace, ""]
    return "\n".join(lines).rstrip("\n") + "\n"


class Player:
    def __init__(self) -> None:
        self.scribe = Scribe()
        self.cluster = Cluster(random.Random(0), watchers=[*all_checkers(), self.scribe])
        self._job = JobSettings(1, 4, "soft", "no-replace")
        self._workers = 1
        self._restarts = 3
        self._join_timeout_s = 600.0
        self._grace_s = 30.0
        self._time_limit_s: float | None = None
        self._last_call_wait_s = 0.0
        self._never_ready: set[str] = set()
        self._never_asks: set[str] = set()

    def play(self, blocks: list[Block]) -> Iterator[list[str]]:
        """The trace of each block."""
        for block in blocks:
            for directive in block.directives:
                self._do(directive)
            yield self.scribe.lines[:]
            self.scribe.lines.clear()

    def _do(self, directive: str) -> None:
        match directive.split():
            case ["job", *settings]:
                self._configure(dict(setting.split("=") for setting in settings))
            case ["start", "a", "witness"]:
                self.cluster.witnesses.start()
            case ["kill", "the", "witness"]:
                self.cluster.witnesses.end()
            case ["power", "off", "the", "witness"]:
                self.cluster.witnesses.end(silent=True)
            case ["start", *names]:
                for name in names:
                    self._start(name)
            case ["after", span]:
                self.cluster.run_until(self.cluster.now + float(span.removesuffix("s")))
            case ["kill", name]:
                self.cluster.crash(self._node(name))
            case ["power", "off", name]:
                self.cluster.crash(self._node(name), silent=True)
            case ["stall", name]:
                self.cluster.stall(self._node(name))
            case ["wake", name]:
                self.cluster.wake(self._node(name))
            case ["cut", *names]:
                self.cluster.network.split(dict.fromkeys(names, 1))
            case ["heal"]:
                self.cluster.network.heal()
            case ["worker", name, "exits", code]:
                self._process(name).leaving = code == "0"
                self.cluster.workers.end(self._process(name), int(code))
            case ["worker", name, "leaves"]:
                process = self._process(name)
                self.cluster.workers.say(process, called=process.last.round)
                self.cluster.workers.end(process, 0)
            case ["worker", name, "breaks"]:
                process = self._process(name)
                self.cluster.workers.say_broken(process, process.last.round)
            case ["worker", name, "excepts", *at]:
                process = self._process(name)
                depth = int(at[1]) if at else 0
                self.cluster.workers.say_fault(process, process.last.round, self._last_call_wait_s, depth)
            case ["worker", name, "hangs" | "stops" as how]:
                self.cluster.workers.hang(self._process(name), stopped=how == "stops")
            case ["worker", name, "recovers"]:
                self.cluster.workers.recover(self._process(name))
            case ["never", "ready", name]:
                self._never_ready.add(name)
            case ["never", "asks", name]:
                self._never_asks.add(name)
            case ["sigterm" | "sigint" | "sigquit" as sent, name]:
                signum = {name.lower(): number for number, name in SIGNALS.items()}[sent]
                self.cluster.deliver(self._node(name), saw.Signalled(signum))
            case ["finish"]:
                record = self.cluster.store.round
                assert record is not None
                self.cluster.workers.finish(record.number, (0.001, 0.001))
            case _:
                raise ValueError(f"no such directive: {directive!r}")

    def _configure(self, settings: dict[str, str]) -> None:
        least, most = settings.get("nodes", "1:4").split(":")
        policy, failure = settings.get("policy", "soft"), settings.get("failure", "no-replace")
        witness = PLACE if settings.get("witness") == "yes" else None
        self._job = JobSettings(int(least), int(most), policy, failure, witness=witness)
        self._workers = int(settings.get("workers", "1"))
        self._restarts = int(settings.get("restarts", "3"))
        self._join_timeout_s = float(settings.get("join_timeout", "600"))
        self._grace_s = _seconds(settings, "grace") or 30.0
        self._last_call_wait_s = _seconds(settings, "last_call_wait") or 0.0
        soft, hard = _seconds(settings, "soft"), _seconds(settings, "hard")
        if soft or hard or "watched" in settings:
            self.cluster.habits.limits = ProgressLimits(soft=soft, hard=hard)
        if step_s := _seconds(settings, "step"):
            self.cluster.habits.step_s = (step_s, step_s)
        self.cluster.habits.heeds, self.cluster.habits.save_s = settings.get("heeds") == "yes", (0.5, 0.5)
        self._time_limit_s = _seconds(settings, "time_limit")
        if ready_s := _seconds(settings, "ready"):
            self.cluster.timing = replace(self.cluster.timing, worker_ready=(ready_s, ready_s))

    def _start(self, name: str) -> None:
        config = EngineConfig(
            job=self._job,
            node=name,
            host=f"host-{name}",
            port=7000,
            role="trainer",
            local_world_size=self._workers,
            max_restarts=self._restarts,
            join_timeout_s=self._join_timeout_s,
            grace_s=self._grace_s,
            time_limit_s=self._time_limit_s,
        )
        node = self.cluster.start(
            config, load_policy(self._job.restart_policy, WorkerFailure(self._job.worker_failure))
        )
        if name in self._never_ready:
            node.slow_to_ready_s = NEVER_S
        node.never_asks = name in self._never_asks
        # One after the other, so that the order in which they are found is the order in which they stand.
        self.cluster.run_until(self.cluster.now + 0.02)

    def _node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    def _process(self, name: str) -> Process:
        node, local_rank = name.split("/")
        return self.cluster.nodes[node].processes[int(local_rank)]


def _seconds(settings: dict[str, str], name: str) -> float | None:
    return float(settings[name].removesuffix("s")) if name in settings else None
