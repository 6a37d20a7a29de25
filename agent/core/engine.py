"""The engine: everything an agent decides, and nothing that it does.

    observe(observation, now) -> effects

It is pure: it never sleeps, logs, reads a clock, opens a file or draws a random number, and it never blocks. All
deadlines live here; `deadline()` says when it wants a `Tick`. The driver carries the effects out in the order given.

This file decides what to do about the record, the store, the lease and the other nodes. The rest is decided in:

- `softrun.agent.core.shared_record`: where the record is, and what it will be, if the agents keep it themselves
- `softrun.agent.core.worker_news`: what the workers say and how they end
- `softrun.agent.core.departures`: how this node leaves when it, or the whole job, is told to
- `softrun.agent.core.stages`: the stages of an agent; the `match` statements below say what each observation does in
  each stage, including nothing
- `softrun.agent.rendezvous.election`: which node this one follows, or whether it leads
- `softrun.agent.core.step_barrier`: after which step the workers pause when nobody was lost
"""

from __future__ import annotations

from math import inf

from softrun.agent.core.allowance import Allowance
from softrun.agent.core.answers import Answers
from softrun.agent.core.departures import Departures
from softrun.agent.core.engine_config import EngineConfig
from softrun.agent.core.local_workers import LocalWorkers
from softrun.agent.core.shared_record import SharedRecord
from softrun.agent.core.stages import Stage, Stages
from softrun.agent.core.standing import Standing
from softrun.agent.core.step_barrier import StepBarrier
from softrun.agent.core.worker_health import WorkerHealth
from softrun.agent.core.worker_news import WorkerNews
from softrun.agent.live.live_calls import LiveCalls
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.descriptions import describe_namesake, describe_other_job, describe_round
from softrun.agent.protocol.effects import Effect, Outbox, Outcome, Result
from softrun.agent.protocol.live import Calls, Verdict
from softrun.agent.protocol.model import (
    NO_REQUEST,
    Address,
    Beat,
    LastWords,
    Member,
    Message,
    NodeIntent,
    Phase,
    Report,
    Round,
)
from softrun.agent.rendezvous import ranks, transitions
from softrun.agent.rendezvous.decisions import LeaderTimeouts
from softrun.agent.rendezvous.election import Election
from softrun.agent.rendezvous.lease_clock import LeaseClock
from softrun.policies import Response, RestartPolicyStrategy, Trigger
from softrun.runtime.calls import Call
from softrun.runtime.events import Interruption, WorkerFault, WorldChangeEvent

BARRIER_S = 5.0  # how long the agents may take to say which step their workers can reach
TELLING_S = 0.03  # how long a world takes to reach all agents and workers
TOGETHER_S = 0.3  # within which all nodes are told, if a scheduler ends the whole job
LOST = "the others went on without this node, which they took for dead"
GAVE_UP = "there were two jobs of this name, and the other one goes on"
RECORDS_AT_ONCE = 8  # a node that has nobody to agree with changes the record as soon as it wants to
LOOKS_PER_BEAT = 16  # at what follows from beats, of which a leader hears one of each node in the interval of beats
QUIET_TOLERANCES = 3  # within so many a silent node is dead, even while beats come late
SILENCE_S = 60.0  # a worker that has not asked for its world after this long may never ask


class Engine:
    """One agent's decisions. Call `observe` with each observation, and a `Tick` at `deadline()`; `now` never falls."""

    def __init__(self, config: EngineConfig, policy: RestartPolicyStrategy, now: float) -> None:
        self._config = config
        self._now = now
        self._effects = Outbox()

        self._due_at: float | None = None  # when something is due, but for the calls; None: it was not computed since
        self._hurry = False  # it ends as soon as its workers are gone, even if others still need it
        self._store_empty = False
        self._lease = LeaseClock()
        self._workers = LocalWorkers(config.local_world_size, config.grace_s, config.named_store, config.limits)
        self._answers = Answers(policy, self._workers)
        self._health = WorkerHealth(self._workers, config.host, now)
        self._barrier = StepBarrier(self._workers)
        self._calls = LiveCalls(config.node, config.job.durable)
        self._standing = Standing(
            config, self._answers, self._workers, self._health, self._barrier, self._lease, self._calls
        )
        self._stages = Stages(config, self._answers, self._workers, self._standing, self._effects, now)

        self._departures = Departures(
            config, self._answers, self._workers, self._standing, self._stages, self._effects, now
        )

        # A node that restarts its workers by itself need not wait for a peer's death to explain their failure.
        explained = config.job.max_nodes == 1 and policy.respond(Trigger.WORKER_FAILURE) is Response.STOP_MEET_START
        pauses = policy.respond(Trigger.SCALE_UP) is Response.PAUSE_MEET_WORK
        save_s = min(config.grace_s, config.join_timeout_s / 2)
        timeouts = LeaderTimeouts(
            last_call_s=config.last_call_s,
            broken_s=0.0 if explained else config.broken_s,
            quiet_s=QUIET_TOLERANCES * config.beat_tolerance_s,
            barrier_s=BARRIER_S if pauses else 0.0,
            telling_s=TELLING_S,
            converges=pauses,
            stopping_s=BARRIER_S,
            together_s=TOGETHER_S,
            gives_up_s=config.join_timeout_s - save_s,
            save_s=save_s,
            begins_again=policy.restarts_everybody(),
        )
        agrees = bool(config.endpoints)
        self._election = Election(config.node, config.beat_interval_s, config.beat_tolerance_s, timeouts, now, agrees)
        self._news = WorkerNews(
            config,
            self._answers,
            self._workers,
            self._health,
            self._barrier,
            self._standing,
            self._stages,
            self._election.leadership,
            self._effects,
        )
        self._allowance = Allowance(config.job.max_nodes > 1, config.beat_tolerance_s)
        self._shared = SharedRecord(config, self._standing, self._stages, self._election, self._effects, now)

    # --- the interface

    @property
    def stage(self) -> Stage:
        """What this agent is doing."""
        return self._stages.stage

    @property
    def record(self) -> Round | None:
        """The newest record that this agent has read."""
        return self._standing.record

    @property
    def last_words(self) -> LastWords:
        """What others are to know if this agent ends now: the same object as long as it is the same."""
        return self._shared.last_words

    @property
    def last_words_in_full(self) -> LastWords:
        """The same for those that may know nothing of what this agent knows."""
        return self._shared.last_words_in_full

    @property
    def is_cut_off(self) -> bool:
        """Whether it waits because too few members of its world are in touch."""
        return self._standing.cut_off

    def observe(self, seen: saw.Observation, now: float) -> list[Effect]:
        """Take one observation in; returns what to do about it, in order."""
        if self.stage is Stage.ENDED:
            return []
        match seen:  # in the path of a step: nothing else can follow from it, unless the record is to take it in
            case saw.Called(local_rank, launch, call) if call.epoch == self._calls.used and call.fault is None:
                if not self._config.job.durable:
                    return self._calls.called(local_rank, launch, call, now)
            case saw.Heard(node, (Calls() | Verdict()) as said):
                if not self._config.job.durable:
                    return self._calls.hear(node, said, now)
            case saw.Heard(node, Beat() as beat) if now < (due_at := self.deadline() or now):
                answer = self._hear_follower(node, beat, now)
                if answer is not None:
                    self._due_at = min(due_at, now + self._config.beat_interval_s / LOOKS_PER_BEAT)
                    return answer
        self._now, self._due_at = now, None
        self._effects.clear()
        self._shared.look(now, away=self._election.look(now))
        self._take_in(seen)
        self._advance()
        for _ in range(RECORDS_AT_ONCE):
            round_ = self._shared.agree()
            if round_ is None:
                break
            self._adopt(round_)
            self._advance()
        else:
            self._shared.put_off()
        self._allow_on()
        return list(self._effects)

    def deadline(self) -> float | None:
        """When to observe a Tick if nothing else happens first; None once this agent has ended."""
        if self.stage is Stage.ENDED:
            return None
        if self._due_at is None:
            self._due_at = self._next_due()
        late = self._calls.deadline()
        return self._due_at if late is None or late <= self._now else min(self._due_at, late)

    def _next_due(self) -> float:
        wanted = [
            *self._election.deadlines(),
            *self._news.deadlines(),
            self._lease.deadline(self._now),
            self._stages.deadline(),
            *self._shared.deadlines(),
            *self._departures.deadlines(),
        ]
        # Anything overdue was handled just now, and waits for something else.
        return min(at for at in wanted if at is not None and at > self._now)

    # --- observations

    def _take_in(self, seen: saw.Observation) -> None:
        match seen:
            case saw.RecordSeen(None):
                self._store_empty = True
            case saw.RecordSeen(Round() as round_):
                if self.record is None or round_.version > self.record.version:
                    self._adopt(round_)
            case saw.StoreLost(reason):
                self._store_lost(reason)
            case saw.LeaseRenewed(until, lease_number, granted_s):
                self._lease_renewed(until, lease_number, granted_s)
            case saw.LeasesExpired(leases):
                for node, lease_number in leases:
                    self._lease_expired(node, lease_number)
            case saw.LinkUp(node):
                self._effects += self._election.link_up(node, self._said())
                self._effects += self._calls.link_up(node)
            case saw.LinkDown(node, refused):
                self._link_down(node, refused)
            case saw.Listening() | saw.Found() | saw.NotFound():
                sought = self._shared.looked(seen, self._said())
                if sought and not self._election.silent(sought):
                    self._link_down(sought, refused=True)
            case saw.Heard(node, LastWords() as words):
                self._ended(node, words)
            case saw.Heard(node, (Calls() | Verdict()) as said):
                self._effects += self._calls.hear(node, said, self._now)
            case saw.Heard(node, message):
                self._heard(node, message)
            case saw.WorkerStoreOpened(port):
                self._election.leadership.lend(Address(self._config.host, port))
            case saw.WorkerReturned(local_rank, launch):
                self._effects += self._calls.departed(local_rank)
                self._news.returned(local_rank, launch, self._now)
            case saw.WorkerExited(local_rank, launch, exitcode):
                self._calls.gone(local_rank, launch)
                if exitcode == 0:
                    self._effects += self._calls.departed(local_rank)
                self._news.exited(local_rank, launch, exitcode, self._now)
            case saw.WorkerSaid(local_rank, launch, status):
                self._news.said(local_rank, launch, status, self._now)
            case saw.ProgressSeen():
                self._news.showed_progress(seen, self._now)
            case saw.StoreUsed(local_rank, launch, port):
                self._news.used_store(local_rank, launch, port, self._now)
            case saw.Called(local_rank, launch, call):
                self._called(local_rank, launch, call)
            case saw.StepSeen():
                self._effects += self._barrier.seen(seen)
            case saw.Signalled(signum):
                self._signalled(signum)
            case saw.Tick():
                pass

    def _heard(self, node: str, message: Message) -> None:
        news = self._shared.hear(node, message, self._said())
        if news is not None:
            self._adopt(news)
        if self.stage is Stage.ENDED:
            return
        self._effects += self._election.hear(node, message, self._said())

    def _hear_follower(self, node: str, beat: Beat, now: float) -> list[Effect] | None:
        """Take in a beat of one of many. What follows from those of all is looked at once, a little later.

        None if more may follow from this one: then it is not taken in.
        """
        if self._election.was_away(now):
            return None
        self._now = now
        self._election.look(now)
        return self._election.hear_follower(node, beat, self._said())

    def _ended(self, node: str, words: LastWords) -> None:
        """The agent of `node` has ended, and its workers with it."""
        if words.report is not None:
            self._effects += self._election.hear(node, words.report, self._said())
        is_clear, news = self._shared.bury(node, words)
        if not is_clear:
            return  # its link is down: whoever still needs to know asks again
        if news is not None:
            self._adopt(news)
        self._link_down(node, refused=True)
        self._election.mark_gone(node)

    def _called(self, local_rank: int, launch: int, call: Call) -> None:
        """A worker's first call in its world, or one that says that its block has failed."""
        self._effects += self._calls.called(local_rank, launch, call, self._now)
        told = self._workers.told
        if call.fault is None or told is None or not self._calls.is_open(call.epoch):
            return
        if call.fault and told.number == call.epoch:
            causes = ((self._workers.rank(local_rank), Interruption.EXCEPTION),)
            self._news.faulted(local_rank, WorkerFault(round=call.epoch, text=call.fault, causes=causes), self._now)
        else:  # its groups broke, though nobody may be lost; or all were to go on in a next world after some more steps
            self._standing.break_world()

    def _adopt(self, round_: Round) -> None:
        before, self._standing.record = self.record, round_
        if round_.settings != self._config.job:
            self._stages.leave(Result(Outcome.USAGE, describe_other_job(round_.settings, self._config.job)), self._now)
            return
        if before is None and round_.phase is Phase.CLOSED:
            self._stages.leave(
                Result(Outcome.JOB_OVER, "this job is over already: choose another --rdzv_id"), self._now
            )
            return
        self._shared.adopt(round_)
        self._effects += self._calls.adopt(round_, self._standing.is_in(round_))
        if not round_.says_more_than(before):
            return
        if before is not None and set(round_.lost) & set(before.by_node) & self._standing.peers:
            self._stages.verdict.peer_lost(self._now)
        placed_before = self._standing.is_in(before)
        placed = self._standing.is_in(round_)
        if before is None or before.phase is not round_.phase:
            self._stages.open_since = self._now
        if before is None and not placed and len(round_.members) >= round_.settings.max_nodes:
            self._effects.note(f"all {len(round_.members)} places are taken: this node waits for one")
        if placed and round_.preemption is not None and round_.phase is not Phase.CLOSED:
            self._departures.preempted(round_.preemption, self._now)
            self._departures.tell_workers(round_, self._now)
        if round_.phase is Phase.CLOSED:
            self._closed(round_)
        elif placed_before and not placed and self._standing.intent is NodeIntent.READY:
            if self._standing.departure is not None:
                self._departures.see_off(self._standing.departure, round_, self._now)
            else:
                self._evicted(LOST if round_.heir is None else GAVE_UP)
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
            case Stage.FINISHED if news and self._answers.begins_again:
                self._stages.restart(self._now, charged=False)
            case Stage.FINISHED if news:
                self._enter(round_)  # they ended while this world was being made, and the others wait for them in it
            case Stage.WORKING | Stage.FINISHED:
                pass
            case Stage.RESTARTING | Stage.LEAVING:
                pass  # it reads the record again when the workers are gone

    def _meet(self, round_: Round) -> None:
        """A world is sealed with this node in it: bring its workers into it."""
        if not self._lease.sure(self._now):
            return  # the others may have gone on without this node; it tries again after the next renewal
        if round_.number <= self._standing.broken_round:
            return  # its workers found this world broken: only the next one is of use
        if self._workers.are_beyond(round_):
            self._standing.broken_round = round_.number  # the next one has a number that they do not know
            return
        told = self._workers.told
        if told is not None and self._answers.stops_for(trigger := _trigger(told, round_)):
            self._stages.restart(self._now, charged=False, stands=trigger is Trigger.SCALE_UP)
            return
        if told is not None and self._now - self._stages.since >= SILENCE_S:
            for local_rank in self._workers.silent():
                self._effects.note(
                    f"the world changes, and worker {local_rank} has not asked for one in {SILENCE_S:.0f} s: for a "
                    "script that never calls worlds() or get_worker_info(), use --restart_policy hard",
                    warning=True,
                )
        self._stages.enter(Stage.WORKING, self._now)
        self._enter(round_)
        self._effects.note(describe_round(round_), warning=round_.number > 1)

    def _enter(self, round_: Round) -> None:
        self._effects += self._workers.enter(round_, self._standing.life, self._stages.verdict.restarts_left, self._now)
        if self._workers.incomplete:
            self._standing.break_world()

    def _fell_short(self) -> None:
        text = "too few nodes are left: waiting for others"
        match self.stage:
            case Stage.WORKING:
                self._stages.halt(self._now)
                self._effects.note(text, warning=True)
            case Stage.FINISHED if self._answers.begins_again:
                self._stages.restart(self._now, charged=False)
                self._effects.note(f"{text}, to begin all work again", warning=True)
            case Stage.WAITING | Stage.RESTARTING | Stage.FINISHED | Stage.LEAVING:
                pass

    def _lease_renewed(self, until: float, lease_number: int, granted_s: float) -> None:
        doubted = self._lease.doubted
        lapsed = self._lease.renewed(until, lease_number, granted_s, self._now)
        self._standing.left_behind |= lapsed
        self._election.judge_by_leases()
        if lapsed and self._standing.intent is NodeIntent.READY:
            self._evicted("the lease of this node had expired, so the others took it for dead")
        elif doubted and not self._lease.doubted and self._workers.living():
            self._effects.note("the lease still stands: this node goes on", warning=True)
        if self.stage is Stage.WAITING:
            self._look_again()

    def _lease_expired(self, node: str, lease_number: int) -> None:
        if node == self._config.node:
            self._lease.ended(lease_number, self._now)
            return
        self._election.lease_expired(node, lease_number)
        if node in self._standing.peers:
            self._stages.verdict.peer_lost(self._now)

    def _fence(self) -> None:
        """This node's lease may expire soon. Another node may then take its place, and must not meet its workers."""
        self._lease.doubt(self._now)
        if self._workers.living():
            self._effects.note(
                "the lease of this node could not be renewed and may expire: its workers stop", warning=True
            )
        if self.stage is Stage.WORKING:
            self._standing.break_world()
            self._stages.halt(self._now)
        self._effects += self._workers.hurry(self._now)

    def _end_who_stays(self) -> None:
        """End the workers if one was told to leave and has not in time: it may be in the middle of a checkpoint."""
        if self.stage is Stage.WAITING and not self._workers.has_left():
            self._effects.note(
                "a worker did not leave its world in time: the workers of this node are ended", warning=True
            )
            self._stages.restart(self._now, charged=False, withdraw=True)
            self._effects += self._workers.hurry(self._now)

    def _evicted(self, why: str) -> None:
        """The others have a world without this node: it comes back as a newcomer."""
        returns = "it joins again"
        if not self._workers.eligible():
            why, returns = "the others went on without this node", "none of its workers can be in a world now"
        # A node that is restarting its workers is on its way back already, and has said so.
        self._effects.note(f"{why}: {returns}", warning=self.stage is not Stage.RESTARTING)
        self._standing.incarnation += 1
        self._standing.left_behind = True
        self._workers.stay_behind()
        match self.stage:
            case Stage.WORKING:
                self._stages.halt(self._now)
            case Stage.WAITING | Stage.RESTARTING | Stage.FINISHED | Stage.LEAVING:
                pass

    def _closed(self, round_: Round) -> None:
        match self.stage:
            case Stage.FINISHED if not (round_.outcome and self._answers.begins_again):
                self._end(self._departures.result())
            case Stage.FINISHED:  # what it has done is worth nothing without the rest
                self._end(Result(Outcome.JOB_FAILED, round_.outcome))
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING if round_.outcome:
                self._stages.leave(
                    Result(Outcome.JOB_FAILED, round_.outcome, tuple(self._stages.verdict.failures)), self._now
                )
            case Stage.RESTARTING if self._stages.verdict.charges:
                self._stages.leave(self._stages.workers_failed(), self._now)
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING if round_.preemption is not None:
                self._stages.leave(Result(Outcome.PREEMPTED, round_.preemption.reason), self._now)
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING:
                self._stages.leave(Result(Outcome.SUCCEEDED, "the job finished without this node"), self._now)
            case Stage.LEAVING:
                pass  # ends when the workers are gone

    def _signalled(self, signum: int) -> None:
        match self.stage:
            case Stage.WAITING | Stage.WORKING | Stage.RESTARTING:
                self._departures.signalled(signum, self._now)
            case Stage.LEAVING:
                self._hurry = True
                self._departures.signalled(signum, self._now)
            case Stage.FINISHED:
                self._end(self._departures.result())  # nobody misses who has finished

    def _store_lost(self, reason: str) -> None:
        match self.stage:
            case Stage.FINISHED:
                self._end(self._departures.result())  # nothing is left to agree on
            case Stage.LEAVING:
                self._hurry = True
            case _:
                self._hurry = True
                self._stages.leave(Result(Outcome.STORE_LOST, reason), self._now, stands=True)

    def _link_down(self, node: str, refused: bool) -> None:
        self._shared.link_down(node, refused)
        self._election.link_down(node, refused)
        if refused and node in self._standing.peers:
            self._stages.verdict.peer_lost(self._now)

    # --- nodes leave and join between two steps

    def _expelled(self) -> bool:
        """Whether the leader has nobody wait for nodes that leave."""
        if self._standing.departure is None:
            return False
        asked = self._election.leaders_report(self.record, self._report())
        return asked is not None and asked.expels_leavers

    def _keep_promise(self, report: Report) -> bool:
        """Deliver no more verdicts if the leader asks for it; whether it has just asked."""
        record, told = self.record, self._workers.told
        asked = self._election.leaders_report(record, report)
        if record is None or asked is None:
            return False
        if self._coordinator_is_through(record, asked) and self._standing.broken_round < record.number:
            self._standing.break_world()
        if asked.asks_promise != record.edition or self._standing.promised == record.edition:
            return False
        self._standing.promised = record.edition
        self._calls.promise(record.number)
        if told is not None and told.number == record.number:
            self._standing.break_world()  # nothing more can be decided in it
        return True

    def _coordinator_is_through(self, record: Round, leader: Report) -> bool:
        """Whether this node leads since the first one's work is done: nobody decides on calls in this world now."""
        leads = leader.member.node == self._config.node != record.members[0].node
        if not leads or self.stage is not Stage.WORKING or self._calls.used < record.number:
            return False
        first = self._election.leadership.reports.get(record.members[0].node)
        return first is not None and (first.intent is NodeIntent.FINISHED or first.yields > 0)

    def _keep_in_step(self, report: Report) -> None:
        """Hold the workers while the leader asks for it."""
        asked = self._election.leaders_report(self.record, report)
        record, told = self.record, self._workers.told
        request = NO_REQUEST
        if self.stage is Stage.WORKING and record is not None and told is not None and told.number == record.number:
            # A leader that is lost, or has gone on to the next record already, has not said that they may go on.
            request = self._barrier.request if self._barrier.request[0] == record.edition else NO_REQUEST
            if asked is not None and asked.barrier_request[0] == record.edition:
                request = asked.barrier_request
            elif asked is not None and asked.release_edition == record.edition:
                request = NO_REQUEST
        self._effects += self._barrier.follow(request)

    # --- the end

    def _end(self, result: Result) -> None:
        if self._workers.living():
            raise AssertionError("ended with workers alive")
        self._effects += self._election.take_leave(self._report(), self.last_words)
        self._effects.append(
            do.End(Result(result.outcome, result.reason, result.failures, result.signum, self._workers.ranks()))
        )
        self._stages.enter(Stage.ENDED, self._now)

    # --- what is due, whatever was observed

    def _advance(self) -> None:
        if self._lease.due(self._now):
            self._effects.append(do.RenewLease())
        if not self._lease.sure(self._now) and not self._lease.doubted:
            self._fence()
        if self._lease.expiring(self._now):
            self._end_who_stays()
        for late in self._calls.overdue(self._now):
            self._news.is_overdue(late, self._now)
        self._news.advance(self._now)
        self._departures.advance(self._expelled(), self._now)
        before = None
        while before is not self.stage:
            before = self.stage
            self._advance_stage()
        if self.stage is Stage.ENDED:
            return
        self._lead_and_follow(self._report())
        self._shared.look_around()
        self._news.replace_failed(self._now)

    def _lead_and_follow(self, report: Report) -> None:
        """Each step may change what this node says as a leader or to its leader, and nothing else in its report."""
        sure = self._lease.sure(self._now)
        seeks, founds = self.stage is Stage.WAITING, self._shared.founds or not self._shared.is_kept
        despairs = self._shared.despairs
        self._shared.choose_witness()
        if self.record is not None:
            self._election.leadership.owe(self._calls.undecided(self.record))
        self._effects += self._election.advance(self.record, report, seeks, sure, founds, despairs)
        report = self._standing.amended(report, self._election.leadership)
        if self._keep_promise(report):
            self._effects += self._election.advance(self.record, self._report(), seeks, sure, founds, despairs)
            report = self._said()
        self._keep_in_step(report)
        self._effects += self._election.tell(self._standing.amended(report, self._election.leadership))

    def _advance_stage(self) -> None:
        match self.stage:
            case Stage.WAITING:
                self._wait()
            case Stage.RESTARTING if not self._workers.living():
                if self._stages.start_again(self._now):
                    self._look_again()
            case Stage.FINISHED:
                if self._leader() is None or self._stages.is_over(self._now):
                    self._end(self._departures.result())
            case Stage.LEAVING if not self._workers.living():
                self._depart()
            case Stage.WORKING | Stage.RESTARTING | Stage.LEAVING | Stage.ENDED:
                pass

    def _allow_on(self) -> None:
        """Tell the workers how long they may go on without hearing from this agent again."""
        if self.stage is Stage.ENDED:
            return
        if self._workers.are_out():
            self._standing.left_behind = False
        elif self._standing.left_behind or not (self.record is None or self._standing.is_placed):
            return  # the others have gone on, so nobody gets time in the world of before
        entered_at = self._stages.since if self._shared.is_kept and self.stage is Stage.WORKING else None
        for allow in self._allowance.advance(self._election.leases.until, self._lease, entered_at):
            self._effects.append(allow)
            self._effects += self._calls.be_sure(allow.leave_at or inf, self._now)

    def _wait(self) -> None:
        leader = self._leader()
        if leader is not None and leader.node != self._config.node and not self._standing.is_placed:
            self._news.warm_up(self._now)
        founds = self._shared.founds or (self._store_empty and self._lease.sure(self._now))
        if self.record is None and founds:
            self._effects += self._election.begin(transitions.found(self._standing.member(), self._config.job))
        gives_up_at = self._shared.gives_up_at
        if gives_up_at is not None and self._now >= gives_up_at:
            self._stages.leave(Result(Outcome.STORE_LOST, self._shared.failure), self._now)
        elif leader is not None and self._is_one_too_many(leader):
            self._stages.leave(Result(Outcome.USAGE, describe_namesake(leader.host)), self._now)
        elif self._stages.is_over(self._now):
            job = self._config.job
            text = (
                f"fewer than {job.min_nodes} nodes joined within {self._config.join_timeout_s:g} s: start more of "
                "them, lower --nnodes, or raise join_timeout in --rdzv_conf"
            )
            self._stages.leave(Result(Outcome.RENDEZVOUS_FAILED, text), self._now)

    def _is_one_too_many(self, leader: Member) -> bool:
        """Whether the job is one of a single node, and another one works on it: then this is a second job.

        It is not if it has lost its place to the other one.
        """
        record = self.record
        if self._standing.incarnation > 1 or self._workers.told is not None:
            return False
        if record is None or record.settings.max_nodes > 1 or record.phase is not Phase.SEALED:
            return False
        said = self._election.leadership.reports.get(leader.node)
        works = said is not None and said.intent is NodeIntent.READY and not said.leaving
        return works and leader.node != self._config.node and not self._standing.is_placed

    def _look_again(self) -> None:
        """Enter the newest world, if this node has a place there and could not enter it before."""
        record = self.record
        if record is not None and record.phase is Phase.SEALED and self._standing.is_placed:
            self._meet(record)

    def _depart(self) -> None:
        """The workers are gone. Does anybody still need this agent?"""
        if self._stages.result is None:
            raise AssertionError("leaves without a result")
        record = self.record
        alone = record is None or record.phase is Phase.CLOSED or self._leader() is None
        asked = self._standing.intent is NodeIntent.FAILED and not self._stages.is_over(self._now)
        if self._hurry or alone or not asked:
            self._end(self._stages.result)

    # --- its report and its leader

    def _report(self) -> Report:
        return self._standing.report(self._election.leadership, self._now)

    def _said(self) -> Report:
        """The report of this node at the end of the last observation."""
        return self._standing.said or self._report()

    def _leader(self) -> Member | None:
        return self._election.leader(self.record, self._report())


def _trigger(told: Round, round_: Round) -> Trigger:
    match ranks.change(told, round_):
        case WorldChangeEvent.SCALE_DOWN:
            return Trigger.SCALE_DOWN
        case WorldChangeEvent.SCALE_UP:
            return Trigger.SCALE_UP
        case None:
            return Trigger.WORLD_BROKEN
