"""The driver: the one loop of an agent. It brings observations to the engine and carries out its effects.

    sockets, pidfds, threads, signals ──observations──▶ engine ──effects──▶ store, links, supervisor

It waits for the first thing that happens, or for the engine's next deadline, and wakes for nothing else. Calls of
live_workers, for which all workers wait in each step, are answered before it looks at what else may be due.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable

from softrun.agent.core.engine import Engine
from softrun.agent.links.links import Links
from softrun.agent.loop.observation_queue import ObservationQueue
from softrun.agent.loop.ready_files import handle_ready
from softrun.agent.proof.testament import Words
from softrun.agent.protocol import effects as do
from softrun.agent.protocol.codec import encode_message
from softrun.agent.protocol.effects import Effect, Result
from softrun.agent.protocol.model import LastWords
from softrun.agent.protocol.observations import Tick
from softrun.agent.protocol.printable import printable
from softrun.agent.store.base import StoreThreads
from softrun.agent.workers.call_lines import ONLY_CALLS
from softrun.agent.workers.stores import WorkerStores
from softrun.agent.workers.supervisor import Supervisor
from softrun.runtime.clock import boottime

NOTE_CHARACTERS = 2000  # of a line for the log; a part of it may come from other nodes
LONGEST_SLEEP_S = 3600.0  # epoll takes no more than some weeks
CALLS_S = 0.005  # how long nothing but workers' calls is looked at, if there is nothing else: a step waits for them

logger = logging.getLogger("softrun")


class Driver:
    """The loop of one agent: it observes, and carries effects out. `keep` keeps its last words in case it is killed."""

    def __init__(
        self,
        engine: Engine,
        selector: selectors.BaseSelector,
        observations: ObservationQueue,
        store: StoreThreads | None,
        links: Links,
        worker_stores: WorkerStores,
        supervisor: Supervisor,
        keep: Callable[[Words], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._engine = engine
        self._selector = selector
        self._observations = observations
        self._store = store
        self._links = links
        self._worker_stores = worker_stores
        self._supervisor = supervisor
        self._keep = keep
        self._last_words: LastWords | None = None
        self._clock = clock

    def run(self) -> Result:
        """Run until the engine ends. No worker is alive then."""
        if self._store is not None:
            self._store.start()
        else:
            self._observations.put(Tick())
        deadline, looked_at, quick = None, 0.0, False
        while True:
            while (observation := self._observations.take()) is not None:
                effects = self._engine.observe(observation, self._clock())
                self._keep_last_words()
                for effect in effects:
                    if isinstance(effect, do.End):
                        return effect.result
                    if not isinstance(effect, do.Say):
                        self._links.flush()  # nobody waits for what this agent does besides
                    self._carry_out(effect)
            self._links.flush()
            if quick:
                timeout: float | None = CALLS_S
            else:
                deadline = self._engine.deadline()
                wanted = [at for at in (deadline, self._links.deadline()) if at is not None]
                timeout = min(max(0.0, min(wanted) - self._clock()), LONGEST_SLEEP_S) if wanted else None
            came = handle_ready(self._selector, timeout)
            now = self._clock()
            quick = came == {ONLY_CALLS} and now < looked_at + CALLS_S
            if quick:
                continue
            looked_at = now
            self._links.sweep()
            self._supervisor.listen()
            if deadline is not None and now >= deadline:
                self._observations.put(Tick())

    def _keep_last_words(self) -> None:
        """Before anybody hears of what this agent has decided."""
        words = self._engine.last_words
        if words is self._last_words:
            return
        self._last_words = words
        known, before = words.round.round if words.round is not None else None, words.before.name
        if known is not None:
            self._links.knows((known.name, *known.past))
        in_full = encode_message(self._engine.last_words_in_full)
        self._keep(Words(known.name if known is not None else "", before, encode_message(words), in_full))

    @property
    def _stored(self) -> StoreThreads:
        if self._store is None:
            raise AssertionError("asked of a store that this job does not have")
        return self._store

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case do.Answered(callers, reply):
                self._supervisor.reply(callers, reply)
            case do.Tell():
                self._supervisor.tell(effect)
            case do.Spawn():
                self._supervisor.spawn(effect)
            case do.SignalWorker(local_rank, launch, signum):
                self._supervisor.signal(local_rank, launch, signum)
            case do.Release(local_rank, launch):
                self._supervisor.release(local_rank, launch)
            case do.LookAtProgress(local_rank, launch):
                self._supervisor.look(local_rank, launch)
            case do.LookAtStep(local_rank, launch):
                self._supervisor.look_at_step(local_rank, launch)
            case do.LookForStore(local_rank, launch):
                self._supervisor.look_for_store(local_rank, launch)
            case do.ShowStacks(local_rank, launch):
                self._supervisor.show_stacks(local_rank, launch)
            case do.Allow(hold_at, leave_at):
                self._supervisor.allow(hold_at, leave_at)
            case do.Propose(round_):
                self._stored.propose(round_)
            case do.RenewLease():
                self._stored.renew()
            case do.EndLease(node, lease_number, by, version):
                self._stored.end_lease((node, lease_number), by, version)
            case do.OpenWorkerStore():
                self._worker_stores.open()
            case do.CloseWorkerStore(port):
                self._worker_stores.close(port)
            case do.Dial(member):
                self._links.dial(member)
            case do.Seek():
                self._links.seek(effect)
            case do.HangUp(node):
                self._links.hang_up(node)
            case do.Say(node, message):
                self._links.say(node, message)
            case do.Note(text, warning, detail, error):
                usual = logging.WARNING if warning else logging.DEBUG if detail else logging.INFO
                logger.log(logging.ERROR if error else usual, "%s", printable(text, NOTE_CHARACTERS))
            case do.End():
                raise AssertionError("End is not an effect to carry out")
