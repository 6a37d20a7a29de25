"""One run of a plan with real agents and workers: the driver's part of it.

The driver starts the launchers, does what a rank cannot do to itself (continue it, kill its node, start another one),
lets the work end once all that should be there are at work again, and waits for the launchers. Every wait is bounded,
and one that fails is evidence like any other.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from local_cluster import Begin, LocalCluster, begin, free_port, listens, send, softrun_command
from storm.evidence import Diaries, Evidence, Line
from storm.expect import must_be_there
from storm.plan import HARD_TIMEOUT_S, LATE, LAYOUTS, NEWCOMER, SOFT_TIMEOUT_S, Plan

TRAINERS = Path(__file__).parent / "trainers"
POLL_S = 0.03
UNREACHED_S = 20.0  # a fault whose phase nobody reaches for so long is left out
SETTLE_S = 40.0  # for all to be at work again, after what has struck last
END_S = 40.0  # for all to end, after the work may
GONE_S = 5.0
SETTLED_STEPS = 2
TOLD_CHARACTERS = 200_000  # of a log: a world that begins time and again writes millions


class StoppedError(Exception):
    """Whoever asked for this run wants it no more."""


class Run:
    def __init__(
        self,
        plan: Plan,
        directory: Path,
        etcd: str | None,
        stop: threading.Event | None = None,
        begin: Begin = begin,
    ) -> None:
        self._plan, self._directory, self._etcd = plan, directory, etcd
        self._stop = stop or threading.Event()
        for name in ("diary", "channels", "tmp"):
            (directory / name).mkdir()
        faults = [{**vars(f), "slot": [f.slot.node, f.slot.local_rank]} for f in plan.faults]
        (directory / "plan.json").write_text(json.dumps(faults))
        self._diaries = Diaries(directory / "diary")
        self._cluster = LocalCluster(directory, _environment(directory), begin)
        self._port = free_port()
        self._resumes: list[tuple[float, int]] = []  # when to continue which process
        self._struck_at = time.monotonic()  # the last fault
        self._overdue: list[str] = []

    def run(self) -> Evidence:
        began = time.monotonic()
        with self._cluster:
            for node in self._plan.nodes:
                self._start(node)
            if self._plan.hurries:
                self._watch("not all have come", self._have_come, SETTLE_S)
                self._let_end()
            self._watch("not all were at work again", self._is_settled, SETTLE_S)
            self._let_end()
            self._struck_at = time.monotonic()
            self._watch("it did not end", self._has_ended, END_S)
            self._wait_for(lambda: not self._cluster.orphans(), GONE_S)
            return self._evidence(began)

    # --- what it does

    def _start(self, name: str) -> None:
        node = self._cluster.start(name, self._command(), {"STORM_NODE": name})
        pid = self._directory / f".agent-{name}"
        pid.write_text(str(node.process.pid))
        pid.rename(self._directory / f"agent-{name}")
        if self._plan.store == "c10d" and len(self._cluster.nodes) == 1:  # it is to host the store
            self._wait_for(lambda: listens(self._port), SETTLE_S)

    def _command(self) -> list[str]:
        plan = self._plan
        nodes = len(plan.nodes)
        most = nodes + any(fault.kind == "newcomer" for fault in plan.faults)
        backend = "etcd3" if plan.store == "etcd" else "c10d"
        conf = "last_call_timeout=1" + (",lease_ttl=2,keep_alive_interval=0.5" if plan.store == "etcd" else "")
        timeouts = (f"--soft_timeout={SOFT_TIMEOUT_S}", f"--hard_timeout={HARD_TIMEOUT_S}")
        return softrun_command(
            "--restart_policy=soft",
            f"--worker_failure={plan.policy}",
            f"--max_restarts={plan.max_restarts}",
            f"--nnodes=1:{most}" if nodes > 1 else "--nnodes=1",
            f"--nproc_per_node={LAYOUTS[plan.layout][1]}",
            f"--rdzv_backend={backend}",
            f"--rdzv_endpoint={self._etcd if plan.store == 'etcd' else f'127.0.0.1:{self._port}'}",
            f"--rdzv_id={self._directory.name}",
            f"--rdzv_conf={conf}",
            "--shutdown_timeout=2",
            f"--log_dir={self._directory / 'logs'}",
            *(timeouts if plan.stalls and plan.family not in ("wrapper", "callbacks") else ()),
            script=TRAINERS / f"{plan.family}.py",
        )

    def _let_end(self) -> None:
        (self._directory / "finish").touch()

    def _look(self) -> None:
        """At what is new, and do what is due."""
        if self._stop.is_set():
            raise StoppedError
        for line in self._diaries.read():
            if line.what == "fault":
                self._struck_at = time.monotonic()
                self._follow(line)
        now = time.monotonic()
        for due in [due for due in self._resumes if due[0] <= now]:
            self._resumes.remove(due)
            send(due[1], signal.SIGCONT)

    def _follow(self, line: Line) -> None:
        """Do the driver's part of a fault that a rank reports."""
        fault = self._plan.faults[line.number]
        if fault.resumes_s is not None:
            self._resumes.append((line.mono + fault.resumes_s, line.pid))
        if fault.kind == "newcomer":
            self._start(NEWCOMER)
        if fault.kind == "node":
            next(node for node in self._cluster.nodes if node.name == fault.slot.node).kill()

    # --- what it waits for

    def _watch(self, what: str, condition: Callable[[], bool], patience_s: float) -> None:
        """Until the condition holds; patience begins anew with every fault."""
        while not condition():
            if time.monotonic() > self._struck_at + patience_s:
                self._overdue.append(f"{what} within {patience_s:g} s")
                self._ask_for_stacks()
                return
            time.sleep(POLL_S)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _have_come(self) -> bool:
        self._look()
        ended = {node.name for node in self._cluster.nodes if node.process.poll() is not None}
        awaited = {slot for slot in self._plan.slots if slot.node not in ended}
        return {line.slot for line in self._diaries.lines} >= awaited

    def _is_settled(self) -> bool:
        """Has all struck that can, and are all at work who should be?"""
        self._look()
        if self._launchers_ended() or self._plan.hurries:
            return True
        numbers = {line.number for line in self._diaries.lines if line.what == "fault"}
        wanted = {fault.number for fault in self._plan.faults if fault.phase not in LATE}
        waited = time.monotonic() - self._struck_at
        struck = [self._plan.faults[number] for number in sorted(numbers)]
        if self._resumes or (wanted - numbers and waited < UNREACHED_S):
            return False
        return self._at_work() >= {(slot.node, slot.local_rank) for slot in must_be_there(struck, self._plan)}

    def _at_work(self) -> set[tuple[str, int]]:
        steps = [line for line in self._diaries.lines if line.what == "step" and line.mono > self._struck_at]
        newest = max((line.round for line in steps), default=0)
        counts: dict[tuple[str, int], int] = {}
        for line in steps:
            if line.round == newest:
                key = (line.slot.node, line.slot.local_rank)
                counts[key] = counts.get(key, 0) + 1
        return {slot for slot, count in counts.items() if count >= SETTLED_STEPS}

    def _has_ended(self) -> bool:
        self._look()
        return self._launchers_ended()

    def _launchers_ended(self) -> bool:
        return all(node.process.poll() is not None for node in self._cluster.nodes)

    def _ask_for_stacks(self) -> None:
        pids = {line.pid for line in self._diaries.lines}
        for node in self._cluster.nodes:
            for pid in pids & set(node.family()):
                send(pid, signal.SIGUSR1)
        self._wait_for(lambda: False, 0.3)

    # --- what is known then

    def _evidence(self, began: float) -> Evidence:
        self._diaries.read()
        lines = sorted(self._diaries.lines, key=lambda line: line.mono)
        logs = {node.name: node.output() for node in self._cluster.nodes}
        rounds = [line.round for line in lines]
        rounds += [int(number) for log in logs.values() for number in re.findall(r"\bround (\d+): \d+ nodes", log)]
        ended = {node.name: node.process.poll() for node in self._cluster.nodes}
        return Evidence(
            self._plan,
            lines,
            codes={name: code for name, code in ended.items() if code is not None},
            rounds=max(rounds, default=0),
            overdue="; ".join(self._overdue),
            orphans=len(self._cluster.orphans()),
            left=self._left(),
            log_bytes={name: len(log) for name, log in logs.items()},
            took_s=time.monotonic() - began,
        )

    def _left(self) -> tuple[str, ...]:
        """Files that the launchers have left; a node that was killed whole could remove none."""
        if any(node.process.returncode is None for node in self._cluster.nodes):
            return ()
        if any(fault.kind == "node" for fault in self._plan.faults):
            return ()
        return tuple(
            str(path.relative_to(self._directory))
            for folder in ("channels", "tmp")
            for path in sorted((self._directory / folder).rglob("*"))
        )


def _environment(directory: Path) -> dict[str, str]:
    return {
        "STORM": str(directory),
        "STORM_SOFT_TIMEOUT_S": str(SOFT_TIMEOUT_S),
        "STORM_HARD_TIMEOUT_S": str(HARD_TIMEOUT_S),
        "SOFTRUN_CHANNEL_ROOT": str(directory / "channels"),
        "TMPDIR": str(directory / "tmp"),
        "LOGLEVEL": "INFO",
    }


def tell(directory: Path) -> str:
    """All that a run has left to read, in the order of time as far as it is known."""
    diaries = Diaries(directory / "diary")
    diaries.read()
    parts = [f"--- diaries\n{_told(diaries.lines)}"]
    for path in sorted((*directory.glob("*.log"), *directory.glob("diary/*.stacks"))):
        text = path.read_text(errors="replace")
        if len(text) > TOLD_CHARACTERS:
            text = f"{text[: TOLD_CHARACTERS // 2]}\n…\n{text[-TOLD_CHARACTERS // 2 :]}"
        if text:
            parts.append(f"--- {path.name}\n{text}")
    return "\n".join(parts)


def _told(lines: list[Line]) -> str:
    """Of the steps of a process in one world the first and the last."""
    lines = sorted(lines, key=lambda line: line.mono)
    began = lines[0].mono if lines else 0.0
    last = {(line.pid, line.round): line for line in lines if line.what == "step"}
    firsts: set[tuple[int, int]] = set()
    told = []
    for line in lines:
        key = (line.pid, line.round)
        if line.what == "step" and key in firsts and last[key] is not line:
            continue
        if line.what == "step":
            firsts.add(key)
        more = f" step {line.step}" if line.step else ""
        world = f" world {line.round} of {line.size}" if line.round else ""
        fault = f" #{line.number}" if line.number >= 0 else ""
        name = f"{line.slot.node}/{line.slot.local_rank}"
        told.append(f"{line.mono - began:8.3f} {name} ({line.pid}) {line.what}{fault}{more}{world}")
    return "\n".join(told)
