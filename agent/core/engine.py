"""The engine: everything an agent decides, and nothing that it does.

    observe(observation, now) -> effects

It is pure: it never sleeps, logs, reads a clock, opens a file or draws a random number, and it never blocks. All
deadlines live here; `deadline()` says when it wants a `Tick`. The driver carries the effects out in the order given.

An agent is in one stage at a time:

    WAITING ──sealed with me──▶ WORKING ──all workers exit 0──▶ FINISHED ──closed──▶ ENDED
       ▲  ▲                      │  │                                                  ▲
       │  └─ open, or without me ┘  │ hard: the world changed; both: a worker failed   │
       └──────── RESTARTING ◀───────┘                                                  │
    any ──signal, restarts spent, store lost, join timeout──▶ LEAVING ──workers gone───┘

What happens in each stage on each observation stands in the `match` statements below, the empty cells included.
Beside its stage an agent follows a leader, or is it: `softrun.agent.rendezvous.election`. Its workers are its workers:
`softrun.agent.core.local_workers`. What befalls those of them that live is judged in
`softrun.agent.core.worker_health`; where they pause when nobody was lost is agreed on through
`softrun.agent.core.step_barrier`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from softrun.agent.core.allowance import Allowance
from softrun.agent.core.departure import Departure
from softrun.agent.core.descriptions import describe_exit, describe_other_job, describe_round
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.lease_clock import LeaseClock
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.own_report import OwnReport
from softrun.agent.core.restart_verdict import RestartVerdict
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.store_silence import StoreSilence
from softrun.agent.core.worker_health import Finding, WorkerHealth
from softrun.agent.core.worker_slot import SIGKILL, SIGTERM
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.effects import Effect, Outcome, Result
from softrun.agent.protocol.model import NO_REQUEST, Address, Member, NodeIntent, Phase, Report, Round
from softrun.agent.rendezvous import ranks, transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.election import Election
from softrun.policies import Response, RestartPolicyStrategy, Trigger
from softrun.runtime.events import WorkerStatus, WorldChangeEvent

BARRIER_S = 5.0  # for all agents to say which step their workers can reach
TELLING_S = 0.03  # for all agents and workers to hear of a world
LOOK_S = 1.0  # between two looks whether workers that ask for no world have begun
SILENCE_S = 60.0  # a worker that has not asked for its world for so long may never do so


class Stage(Enum):
    """What an agent is doing; the module shows how one stage follows another."""

    WAITING = "WAITING"  # for a world; workers are absent, or paused
    WORKING = "WORKING"
    RESTARTING = "RESTARTING"  # the workers are being stopped, to be started again
    FINISHED = "FINISHED"  # all workers have exited 0; waits for the others
    LEAVING = "LEAVING"  # the workers are being stopped for good
    ENDED = "ENDED"


class Engine:
    """One agent's decisions. Call `observe` with each observation, and a `Tick` at `deadline()`; `now` never falls."""

    def __init__(self, config: EngineConfig, policy: RestartPolicyStrategy, now: float) -> None:
        self._config = config
        self._policy = policy
        self._now = now
        self._effects: list[Effect] = []

        self.stage = Stage.WAITING
        self._since = now  # of the stage
        self._open_since = now  # since when there has been no world
        self.record: Round | None = None
        self._workers = LocalWorkers(config.local_world_size, config.grace_s, config.named_store, config.limits)
        self._health = WorkerHealth(self._workers, config.host, now)
        self._barrier = StepBarrier(self._workers)
        self._leaving: Departure | None = None
        self._verdict = RestartVerdict(config.max_restarts, config.verdict_s)

        self._replaces = False  # is a worker to be started in the place of one that failed?
        self._look_at: float | None = None  # when to look again whether workers that do not ask have begun
        self._result: Result | None = None
        self._hurry = False  # end as soon as the workers are gone, whoever may still need this agent
        self._hosts_store = False
        self._store_empty = False
        self._silence = StoreSilence(config.store_timeout_s)
        self._lingers = False  # for those who need the store that this agent hosts
        self._lease = LeaseClock()
        self._own = OwnReport(config, self._workers, self._health, self._barrier, self._lease)

        # A node that restarts its workers by itself need not wait for a peer's death to explain their failure.
        explained = config.job.max_nodes == 1 and policy.respond(Trigger.WORKER_FAILURE) is Response.STOP_MEET_START
        pauses = policy.respond(Trigger.SCALE_UP) is Response.PAUSE_MEET_WORK
        timeouts = LeaderTimeouts(
            last_call_s=config.last_call_s,
            broken_s=0.0 if explained else config.broken_s,
            barrier_s=BARRIER_S if pauses else 0.0,
            telling_s=TELLING_S,
            converges=pauses,
        )
        self._election = Election(config.node, config.beat_interval_s, config.beat_tolerance_s, timeouts, now)
        self._allowance = Allowance(config.job.max_nodes > 1, config.beat_interval_s, config.beat_tolerance_s)

    # --- the interface

    def observe(self, seen: saw.Observation, now: float) -> list[Effect]:
        """Take one observation in; returns what to do about it, in order."""
        if self.stage is Stage.ENDED:
            return []
        self._now = now
        self._effects = []
        if self._election.look(now):
            self._silence.was_away(now)
        self._take_in(seen)
        self._advance()
        self._silence.asks(self._effects, now)
        self._allow_on()
        return self._effects

    def deadline(self) -> float | None:
        """When to observe a Tick if nothing else happens first; None once this agent has ended."""
        if self.stage is Stage.ENDED:
            return None
        wanted = [
            *self._election.deadlines(),
            *self._health.deadlines(),
            self._workers.deadline(),
            self._lease.deadline(self._now),
            self._stage_deadline(),
            self._silence.deadline(leased=self._lease.leased),
            self._leaving.until if self._leaving is not None else None,
            self._look_at,
            self._late_at(),
        ]
        # What is overdue was looked at just now, and waits for something else.
        return min(at for at in wanted if at is not None and at > self._now)

    # --- observations

    def _take_in(self, seen: saw.Observation) -> None:
        match seen:
            case saw.StoreReady(hosted):
                self._hosts_store = hosted
            case saw.RecordSeen(None):
                self._silence.answered()
                self._store_empty = True
            case saw.RecordSeen(Round() as round_):
                self._silence.answered()
                if self.record is None or round_.version > self.record.version:
                    self._adopt(round_)
            case saw.StoreLost(reason):
                self._store_lost(reason)
            case saw.LeaderBeatSeen(count):
                self._silence.answered()
                self._allowance.heard(self._now)
                self._election.leader_beats(count, self.record, self._report())
            case saw.LeaseRenewed(until, lease_number, granted_s):
                self._lease_renewed(until, lease_number, granted_s)
            case saw.LeasesExpired(leases):
                for node, lease_number in leases:
                    self._lease_expired(node, lease_number)
            case saw.LinkUp(node):
                self._effects += self._election.link_up(node, self._report())
            case saw.LinkDown(node, gone):
                self._link_down(node, gone)
            case saw.Heard(node, message):
                if self._election.heeds(node):
                    self._allowance.heard(self._now)
                self._effects += self._election.hear(node, message, self._report())
            case saw.WorkerStoreOpened(port):
                self._election.leadership.lend(Address(self._config.host, port))
            case saw.WorkerExited(local_rank, launch, exitcode):
                self._worker_exited(local_rank, launch, exitcode)
            case saw.WorkerSaid(local_rank, launch, status):
                self._worker_said(local_rank, launch, status)
            case saw.ProgressSeen(local_rank):
                self._progress_seen(seen, local_rank)
            case saw.StoreUsed(local_rank, launch, port):
                self._store_used(local_rank, launch, port)
            case saw.StepSeen():
                self._effects += self._barrier.seen(seen)
            case saw.Signalled(signum):
                self._signalled(signum)
            case saw.Tick():
                pass

    def _adopt(self, round_: Round) -> None:
        before, self.record = self.record, round_
        if round_.settings != self._config.job:
            self._leave(Result(Outcome.USAGE, describe_other_job(round_.settings, self._config.job)))
            return
        if before is None and round_.phase is Phase.CLOSED:
            self._leave(Result(Outcome.JOB_OVER, "this job is over already: choose another --rdzv_id"))
            return
        self._effects += self._election.adopt(round_)
        if round_.lost and set(round_.lost) & self._peers():
            self._verdict.peer_lost(self._now)
        placed_before = self._own.is_in(before)
        placed = self._own.is_in(round_)
        if before is None or before.phase is not round_.phase:
            self._open_since = self._now
        if before is None and not placed and len(round_.members) >= round_.settings.max_nodes:
            self._note(f"all {len(round_.members)} places are taken: this node waits for one")
        if round_.phase is Phase.CLOSED:
            self._closed(round_)
        elif placed_before and not placed and self._own.intent is NodeIntent.READY:
            if self._leaving is not None:
                self._see_off(self._leaving, round_)
            else:
                self._evicted()
        elif placed and round_.phase is Phase.SEALED:
            self._sealed(round_)
        elif placed and round_.phase is Phase.OPEN:
            self._fell_short()

    def _sealed(self, round_: Round) -> None:
        told = self._workers.told
        news = told is None or told.number != round_.number
        match self.stage:
            case Stage.WAITING:
                self._meet(round_)
            case Stage.WORKING if news:
                self._meet(round_)
            case Stage.FINISHED if news:
                self._enter(round_)  # they ended while it was made, and the others wait for them there
            case Stage.WORKING | Stage.FINISHED:
                pass
            case Stage.RESTARTING | Stage.LEAVING:
                pass  # the record is looked at again when the workers are gone

    def _meet(self, round_: Round) -> None:
        """A world is sealed with this node in it: bring its workers there."""
        if not self._lease.sure(self._now):
            return  # somebody may have gone on without this node; looked at again with the next renewal
        if round_.number <= self._own.broken_round:
            return  # its workers failed there: only the next world is of use
        told = self._workers.told
        if told is not None and self._stops_for(_trigger(told, round_)):
            self._restart(charged=False)
            return
        if told is not None and self._now - self._since >= SILENCE_S:
            for local_rank in self._workers.silent():
                self._note(
                    f"the world changes, and worker {local_rank} has not asked for one in {SILENCE_S:.0f} s: for a "
                    "script that never calls worlds() or get_worker_info(), use --restart_policy hard",
                    warning=True,
                )
        self._stage(Stage.WORKING)
        self._enter(round_)
        self._note(describe_round(round_), warning=round_.number > 1)

    def _enter(self, round_: Round) -> None:
        self._effects += self._workers.enter(round_, self._own.life, self._verdict.restarts_left, self._now)
        if self._workers.incomplete:
            self._own.break_world()

    def _fell_short(self) -> None:
        match self.stage:
            case Stage.WORKING:
                self._halt()
                self._note("too few nodes are left: waiting for others", warning=True)
            case Stage.WAITING | Stage.RESTARTING | Stage.FINISHED | Stage.LEAVING:
                pass

    def _lease_renewed(self, until: float, lease_number: int, granted_s: float) -> None:
        doubted = self._lease.doubted
        lapsed = self._lease.renewed(until, lease_number, granted_s, self._now)
        self._election.judge_by_leases()
        if lapsed and self._own.intent is NodeIntent.READY:
            self._evicted("the lease of this node had expired, so the others took it for dead")
        elif doubted and not self._lease.doubted and self._workers.living():
            self._note("the lease still stands: this node goes on", warning=True)
        if self.stage is Stage.WAITING:
            self._look_again()

    def _lease_expired(self, node: str, lease_number: int) -> None:
        self._election.lease_expired(node, lease_number)
        if node != self._config.node and node in self._peers():
            self._verdict.peer_lost(self._now)

    def _fence(self) -> None:
        """This node's lease may expire soon: whoever takes its place then must not meet its workers."""
        self._lease.doubt(self._now)
        if self._workers.living():
            self._note("the lease of this node could not be renewed and may expire: its workers stop", warning=True)
        if self.stage is Stage.WORKING:
            self._own.break_world()
            self._halt()
        self._effects += self._workers.hurry(self._now)

    def _end_who_stays(self) -> None:
        """PAUSE asks a worker to leave; one that does not in time, in the middle of a checkpoint, say, is ended."""
        if self.stage is Stage.WAITING and not self._workers.has_left():
            self._note("a worker did not leave its world in time: the workers of this node are ended", warning=True)
            self._restart(charged=False, withdraw=True)
            self._effects += self._workers.hurry(self._now)

    def _evicted(self, why: str = "the others went on without this node, which they took for dead") -> None:
        """It comes back as a newcomer."""
        if not self._workers.eligible():
            why = "the others went on without this node, none of whose workers can be in a world"
        # One whose workers are being started again is on its way back already, and has said so.
        self._note(f"{why}: it joins again", warning=self.stage is not Stage.RESTARTING)
        self._own.incarnation += 1
        self._workers.stay_behind()
        match self.stage:
            case Stage.WORKING:
                self._halt()
            case Stage.WAITING | Stage.RESTARTING | Stage.FINISHED | Stage.LEAVING:
                pass

    def _halt(self) -> None:
        """This world is over and there is no other yet."""
        if self._stops_for(Trigger.SCALE_DOWN):
            self._restart(charged=False)
        else:
            self._effects += self._workers.pause(WorldChangeEvent.SCALE_DOWN, self._now)
            self._stage(Stage.WAITING)

    def _closed(self, round_: Round) -> None:
        match self.stage:
            case Stage.FINISHED:
                self._end(Result(Outcome.SUCCEEDED))
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING if round_.outcome:
                self._leave(Result(Outcome.JOB_FAILED, round_.outcome, tuple(self._verdict.failures)))
            case Stage.RESTARTING if self._verdict.charges:
                self._leave(self._workers_failed())
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING:
                self._leave(Result(Outcome.SUCCEEDED, "the job finished without this node"))
            case Stage.LEAVING:
                pass  # ends when the workers are gone

    def _worker_said(self, local_rank: int, launch: int, status: WorkerStatus) -> None:
        told = self._workers.told
        if not self._workers.said(local_rank, launch, status, self._now) or told is None:
            return
        if status.counts == told.number:
            self._effects += self._barrier.counts(local_rank, launch)
        if self._workers.has_worked():
            self._election.leadership.worked_in(told.number)
        if status.broken_round == told.number:
            self._own.broken_round = told.number
        if status.fault is None or status.fault.round != told.number:
            return
        if self._restarts_all():
            # A restart is a new process, so whoever needs one has failed.
            self._effects += self._workers.end(local_rank, self._now, hangs=False)
        else:
            self._health.told(told, local_rank, status.fault, self._now)

    def _progress_seen(self, seen: saw.ProgressSeen, local_rank: int) -> None:
        finding = self._health.look(seen, self._now)
        text = self._workers.describe(local_rank, self._now)
        match finding:
            case Finding.WELL:
                pass
            case Finding.SUSPECT if not self._restarts_all():
                self._suspect(local_rank, text)
            case Finding.STUCK:
                self._note(f"{text} and has not left its world: the others go on without it", warning=True)
            case Finding.SUSPECT | Finding.HANGS:
                self._note(f"{text} and is ended", warning=True)
                self._effects += self._workers.end(local_rank, self._now)

    def _suspect(self, local_rank: int, text: str) -> None:
        self._effects += self._workers.show(local_rank)
        if self.stage is Stage.WORKING and not self._workers.leaving(local_rank):
            self._note(f"{text}: asking for a new world", warning=True)
            self._go_on_without_silent()
            self._health.accuse(local_rank, self._now)
            self._effects += self._workers.look_at_all()
        self._health.suspect(local_rank, self._now)

    def _go_on_without_silent(self) -> None:
        """Ask for a world of those that have asked for one."""
        self._own.break_world()
        self._workers.leave_out_silent()
        self._effects += self._workers.pause(None, self._now)
        self._stage(Stage.WAITING)

    def _late_at(self) -> float | None:
        """When to go on without the workers that have yet to ask for a world."""
        joins = self._own.joins(self.record)
        return self._workers.late_at(joins) if joins or self.stage is Stage.WORKING else None

    def _look_for_late(self) -> None:
        late_at = self._late_at()
        if late_at is None or self._now < late_at or self._restarts_all():
            return
        for local_rank in self._workers.silent():
            self._note(f"worker {local_rank} has yet to ask for its world: the others go on until it does", True)
        if self._own.joins(self.record):
            self._workers.leave_out_silent()
        else:
            self._go_on_without_silent()

    def _restarts_all(self) -> bool:
        """Does a world of the same members cost all of them their processes?"""
        return self._stops_for(Trigger.WORLD_BROKEN)

    def _stops_for(self, trigger: Trigger) -> bool:
        """Does this cost the workers their processes? Those that nothing reaches, too, whatever the policy."""
        return self._workers.never_asks or self._respond(trigger) is Response.STOP_MEET_START

    def _store_used(self, local_rank: int, launch: int, port: int) -> None:
        """A worker has begun in the world that its environment names, and has not asked for any."""
        if self.stage in (Stage.WAITING, Stage.WORKING) and self._workers.uses_store(local_rank, launch, port):
            self._note(
                f"worker {local_rank} takes its world from its environment alone, and the world is another by now: the "
                "workers of this node are started again, as they are with each world under --restart_policy hard; a "
                "script that calls softrun.worlds() or get_worker_info() keeps its processes",
                warning=not self._workers.never_asks,
            )
            self._workers.never_asks = True
            self._restart(charged=False)

    def _worker_exited(self, local_rank: int, launch: int, exitcode: int) -> None:
        self._worker_gone(self._workers.exited(local_rank, launch, exitcode))

    def _worker_gone(self, failure: do.Failure | None) -> None:
        match self.stage:
            case Stage.WAITING | Stage.WORKING:
                if failure is not None:
                    self._worker_failed(failure)
                    return
                if self._workers.incomplete or (self._workers.unbuilt and not self._restarts_all()):
                    self._own.break_world()
                if self._workers.through():
                    self._effects += self._workers.dismiss(self._now)
                if self._workers.finished():
                    self._finish()
            case Stage.RESTARTING | Stage.LEAVING:
                pass  # they were asked to end; `_advance` looks whether all have
            case Stage.FINISHED:
                pass  # one that was given up long ago

    def _worker_failed(self, failure: do.Failure) -> None:
        self._verdict.failed(failure)
        self._note(f"worker of rank {failure.rank} {describe_exit(failure.exitcode)}", warning=True)
        response = self._respond(Trigger.WORKER_FAILURE)
        if self._is_ending():  # a restarted worker would be a newcomer, and finished work is never run again
            if response not in (Response.REPLACE_WORKER, Response.RECORD_FAILURE):
                self._spent()
                return
            response = Response.RECORD_FAILURE
        match response:
            case Response.STOP_MEET_START:
                # This node keeps its place, and everybody meets once: in the world that follows the broken one.
                self._own.break_world()
                self._restart(charged=True)
            case Response.WITHDRAW_AND_RETURN:
                self._restart(charged=True, withdraw=True)
            case Response.REPLACE_WORKER:
                if self._workers.restarts_of(failure.local_rank) >= self._config.max_restarts:
                    self._spent()
                else:
                    self._replaces = self._others_work()
                    self._workers.replace(failure.local_rank, outside=self._replaces)
            case Response.RECORD_FAILURE:
                if not self._workers.eligible() and not self._workers.living():
                    self._spent()
                elif self._workers.finished():
                    self._finish()
            case _:
                raise AssertionError(f"a policy answered a worker's failure with {response}")

    def _is_ending(self) -> bool:
        """Is nobody needed who would have to begin from the beginning?"""
        if self.record is not None and self.record.finishing:
            return True
        told = self._workers.told
        alone = told is not None and len(told.members) == 1
        match self._respond(Trigger.WORKER_FAILURE):
            case Response.STOP_MEET_START:
                return False  # those that are done stay so, and the others work on from their checkpoint
            case Response.WITHDRAW_AND_RETURN:
                return self._workers.through() > 0
            case _:
                return self._workers.through() > 0 and alone

    def _signalled(self, signum: int) -> None:
        result = Result(Outcome.SIGNALLED, signum=signum)
        match self.stage:
            case Stage.WORKING if self._leaving is None and self._others_may_go_on():
                self._leaving = Departure(result, self._now + self._workers.leave_s)
                self._note("this node was told to leave, and does when the others can do without it")
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING:
                self._leave(result, signum)
            case Stage.FINISHED:
                self._leave(Result(Outcome.SUCCEEDED))
            case Stage.LEAVING:
                self._hurry = True
                self._effects += self._workers.stop(SIGKILL, self._now)

    def _store_lost(self, reason: str) -> None:
        match self.stage:
            case Stage.FINISHED:
                self._end(Result(Outcome.SUCCEEDED))  # nothing is left to agree on
            case Stage.LEAVING:
                self._hurry = True
            case _:
                self._hurry = True
                self._leave(Result(Outcome.STORE_LOST, reason))

    def _link_down(self, node: str, gone: bool) -> None:
        self._election.link_down(node, gone)
        if gone and node in self._peers():
            self._verdict.peer_lost(self._now)

    # --- leaving, and letting come, between two steps

    def _others_may_go_on(self) -> bool:
        """Is there a world that this node's going makes smaller, and does not end?"""
        record = self.record
        return (
            record is not None
            and record.phase is Phase.SEALED
            and self._own.is_in(self.record)
            and not record.finishing
            and len(record.members) > record.settings.min_nodes
            and self._respond(Trigger.SCALE_DOWN) is Response.PAUSE_MEET_WORK
        )

    def _see_off(self, leaving: Departure, round_: Round) -> None:
        """The others have a world without this node."""
        if self.stage is Stage.WORKING and round_.phase is Phase.SEALED and round_.leave_after:
            leaving.seen_off = True
            self._effects += self._workers.pause(WorldChangeEvent.SCALE_DOWN, self._now, round_.leave_after)
        else:
            self._leave(leaving.result, leaving.result.signum)

    def _go(self, leaving: Departure) -> None:
        """Leave, if this node is not needed any more, or has been for long enough."""
        asked = self._election.leaders_report(self.record, self._report())
        if leaving.is_due(
            works=self.stage is Stage.WORKING,
            has_left=self._workers.has_left(),
            expelled=asked is not None and asked.expels_leavers,
            now=self._now,
        ):
            self._leave(leaving.result, leaving.result.signum)

    def _keep_in_step(self) -> None:
        """Hold the workers while the leader asks for it."""
        asked = self._election.leaders_report(self.record, self._report())
        record, told = self.record, self._workers.told
        request = NO_REQUEST
        if self.stage is Stage.WORKING and record is not None and told is not None and told.number == record.number:
            # A leader that is lost, or has gone on to the next record already, has not said that they may go on.
            request = self._barrier.request if self._barrier.request[0] == record.version else NO_REQUEST
            if asked is not None and asked.barrier_request[0] == record.version:
                request = asked.barrier_request
            elif asked is not None and asked.release_version == record.version:
                request = NO_REQUEST
        self._effects += self._barrier.follow(request)

    # --- stages

    def _stage(self, stage: Stage) -> None:
        self.stage = stage
        self._since = self._open_since = self._now

    def _restart(self, charged: bool, withdraw: bool = False) -> None:
        self._verdict.begin(charges=charged, now=self._now)
        if withdraw:
            self._own.intent = NodeIntent.AWAY  # peers see a scale-down at once, not when this node is back
        self._stage(Stage.RESTARTING)
        self._effects += self._workers.stop(SIGTERM, self._now, rewinding=not withdraw)

    def _finish(self) -> None:
        if self._workers.told is None:
            self._leave(Result(Outcome.SUCCEEDED, "the workers of this node ended before they were in a world"))
            return
        self._own.intent = NodeIntent.FINISHED
        self._stage(Stage.FINISHED)
        self._note("all workers of this node have finished")

    def _spent(self) -> None:
        """A worker has failed for good."""
        result = self._workers_failed()
        response = self._respond(Trigger.RESTARTS_SPENT)
        self._leave(result)
        if response is Response.END_JOB:
            last = self._verdict.failures[-1]
            self._own.intent = NodeIntent.FAILED
            self._own.reason = f"{self._config.node}: worker of rank {last.rank} {describe_exit(last.exitcode)}"

    def _workers_failed(self) -> Result:
        """With the failures of the last incarnation: those before it were answered by a restart."""
        return Result(Outcome.WORKERS_FAILED, failures=tuple(self._verdict.failures))

    def _leave(self, result: Result, signum: int = SIGTERM) -> None:
        self._result = result
        self._leaving = None
        self._own.intent = NodeIntent.LEFT
        self._stage(Stage.LEAVING)
        self._effects += self._workers.stop(signum, self._now)

    def _end(self, result: Result) -> None:
        if self._workers.living():
            raise AssertionError("ended with workers alive")
        self._effects += self._election.take_leave(self._report())
        self._effects.append(
            do.End(Result(result.outcome, result.reason, result.failures, result.signum, self._workers.ranks()))
        )
        self.stage = Stage.ENDED

    def _stage_deadline(self) -> float | None:
        config = self._config
        match self.stage:
            case Stage.WAITING if self.record is None or self.record.phase is Phase.OPEN:
                return self._open_since + config.join_timeout_s
            case Stage.RESTARTING if not self._workers.living():
                return self._verdict_at()
            case Stage.FINISHED:
                return self._since + config.exit_barrier_s
            case Stage.LEAVING if self._own.intent is NodeIntent.FAILED:
                return self._since + config.close_timeout_s
            case _:
                return None

    def _verdict_at(self) -> float:
        told = self._workers.told
        return self._verdict.due_at(has_peers=told is not None and len(told.members) > 1)

    # --- what follows without any news

    def _advance(self) -> None:
        lost_at = self._silence.deadline(leased=self._lease.leased)
        if lost_at is not None and self._now >= lost_at:
            self._silence.answered()
            self._store_lost(
                f"the store has not answered for {self._config.store_timeout_s:g} s: look at the host that has it; "
                "read_timeout in --rdzv_conf is how long to wait"
            )
        if self._lease.due(self._now):
            self._effects.append(do.RenewLease())
        if not self._lease.sure(self._now) and not self._lease.doubted:
            self._fence()
        if self._lease.expiring(self._now):
            self._end_who_stays()
        self._look_for_stores()
        self._look_for_late()
        self._effects += self._health.advance(self._now)
        self._effects += self._workers.tick(self._now)
        for failure in self._workers.given_up():
            self._worker_gone(failure)
        if self._leaving is not None and self.stage in (Stage.WAITING, Stage.WORKING, Stage.RESTARTING):
            self._go(self._leaving)
        before = None
        while before is not self.stage:
            before = self.stage
            self._advance_stage()
        if self.stage is Stage.ENDED:
            return
        sure, seeks = self._lease.sure(self._now), self.stage is Stage.WAITING
        self._effects += self._election.advance(self.record, self._report(), seeks, sure)
        self._keep_in_step()
        self._effects += self._election.tell(self._report())
        if self._replaces:
            self._replaces = False
            self._warm_up()  # the survivors' next world comes first: to start a process takes a while

    def _advance_stage(self) -> None:
        match self.stage:
            case Stage.WAITING:
                self._wait()
            case Stage.RESTARTING if not self._workers.living():
                if not self._verdict.charges or self._excused():
                    self._restarted()
                elif self._now >= self._verdict_at():
                    self._charge()
            case Stage.FINISHED:
                due = self._stage_deadline()
                if self._leader() is None or (due is not None and self._now >= due):
                    self._end(Result(Outcome.SUCCEEDED))
            case Stage.LEAVING if not self._workers.living():
                self._depart()
            case Stage.WORKING | Stage.RESTARTING | Stage.LEAVING | Stage.ENDED:
                pass

    def _look_for_stores(self) -> None:
        """Those that have asked for no world may have begun in one that is not theirs."""
        unasked = [] if self._restarts_all() else self._workers.unasked()
        if not unasked:
            self._look_at = None
        elif self._look_at is None or self._now >= self._look_at:
            self._look_at = self._now + LOOK_S
            self._effects += [do.LookForStore(local_rank, launch) for local_rank, launch in unasked]

    def _allow_on(self) -> None:
        """How long the workers may go on without another word of this agent."""
        if self.stage is Stage.ENDED:
            return
        if any(isinstance(effect, do.Say) for effect in self._effects):
            self._allowance.said(self._now)
        told = self._workers.told
        self._effects += self._allowance.advance(told is None or len(told.members) == 1, self._lease)

    def _peers(self) -> set[str]:
        """The nodes of the world that the workers were told of last."""
        return {m.node for m in self._workers.told.members} if self._workers.told is not None else set()

    def _excused(self) -> bool:
        """Was a peer lost at about the time at which the workers failed? Then its death is the likely cause.

        Not where workers show whether they work, and had not begun to: one that fails then may fail each time.
        """
        if self._workers.has_asked() and not (self._restarts_all() or self._workers.has_worked()):
            return False
        return self._verdict.is_excused()

    def _wait(self) -> None:
        leader = self._leader()
        if leader is not None and leader.node != self._config.node and not self._own.is_in(self.record):
            self._warm_up()
        if self.record is None and self._store_empty and self._lease.sure(self._now):
            self._effects += self._election.propose(transitions.found(self._own.member(self.record), self._config.job))
        due = self._stage_deadline()
        if due is not None and self._now >= due:
            job = self._config.job
            self._leave(
                Result(
                    Outcome.RENDEZVOUS_FAILED,
                    f"fewer than {job.min_nodes} nodes came within {self._config.join_timeout_s:g} s: start more of "
                    "them, lower --nnodes, or raise join_timeout in --rdzv_conf",
                )
            )

    def _others_work(self) -> bool:
        """Is there a world that goes on while somebody is started to join it?"""
        record = self.record
        sealed = record is not None and record.phase is Phase.SEALED and not record.finishing
        return sealed and not self._stops_for(Trigger.SCALE_UP)

    def _warm_up(self) -> None:
        """Whoever is to join those at work starts outside of their world, so that they need not wait."""
        record = self.record
        if record is not None and self._workers.absent() and self._others_work():
            own = replace(self._own.member(record), workers=self._workers.all_workers())
            expected = ranks.with_member(record, own)
            self._effects += self._workers.warm_up(expected, self._own.life, self._verdict.restarts_left, self._now)

    def _charge(self) -> None:
        """The workers are stopped, because one of them has failed, and nothing else explains it."""
        # Only a failure of this node's own costs a restart: "decrease max_restarts" (RFC, option 1).
        if self._verdict.restarts_left == 0 or self._is_ending():
            self._spent()
            return
        self._verdict.charge()
        self._restarted()

    def _restarted(self) -> None:
        """The workers are stopped: begin anew."""
        self._verdict.settle()
        if self._own.intent is NodeIntent.AWAY:
            self._own.incarnation += 1
            self._workers.renew()
            self._own.intent = NodeIntent.READY
        else:
            self._workers.rewind()
        self._stage(Stage.WAITING)
        self._look_again()

    def _look_again(self) -> None:
        """Is there a world for this node that could not be met before?"""
        record = self.record
        if record is None or record.phase is not Phase.SEALED:
            return
        if self._own.is_in(record):
            self._meet(record)

    def _depart(self) -> None:
        """The workers are gone. Does anybody still need this agent?"""
        if self._result is None:
            raise AssertionError("leaves without a result")
        record = self.record
        alone = record is None or record.phase is Phase.CLOSED or self._leader() is None
        due = self._stage_deadline()
        asked = self._own.intent is NodeIntent.FAILED and due is not None and self._now < due
        if self._hurry or alone or not (asked or self._hosts_store):
            self._end(self._result)
        elif not asked and not self._lingers:
            self._lingers = True
            self._note(
                "this agent hosts the store: it stays for the other nodes until they are done; "
                "another signal ends it, and the job with it",
                warning=True,
            )

    # --- small things

    def _report(self) -> Report:
        leadership, leaving = self._election.leadership, self._leaving is not None
        restarts_all = self._restarts_all()
        return self._own.report(self.record, leadership, leaving=leaving, restarts_all=restarts_all, now=self._now)

    def _leader(self) -> Member | None:
        return self._election.leader(self.record, self._report())

    def _respond(self, trigger: Trigger) -> Response:
        return self._policy.respond(trigger)

    def _note(self, text: str, warning: bool = False) -> None:
        self._effects.append(do.Note(text, warning))


def _trigger(told: Round, round_: Round) -> Trigger:
    match ranks.change(told, round_):
        case WorldChangeEvent.SCALE_DOWN:
            return Trigger.SCALE_DOWN
        case WorldChangeEvent.SCALE_UP:
            return Trigger.SCALE_UP
        case None:
            return Trigger.WORLD_BROKEN
