"""How an agent finds its job, and how a job finds the agents that look for it: at the endpoints.

An agent without a record looks for the job at every endpoint. If one is its own address, and nobody listens there, it
does. It founds the job if nobody is at those before it in the list, and whoever is at those after it says that it has
none either. Where something accepts and says nothing an agent may be stopped, or yet to come to its proxy, and one with
another token or of another release may have the job: then nobody founds another.

The job may outlive the agents that listened at its endpoints. So its leader looks at those, too, where no node of the
job is known to listen: for an agent that has come there, and would found a second job, or to listen there itself. It
also looks for the members that it does not hear: one that is refused is dead, and one that answers may know more.
"""

from __future__ import annotations

from collections.abc import Callable

from softrun.agent.protocol import effects as do
from softrun.agent.protocol.effects import Effect
from softrun.agent.protocol.model import Address

LOOK_S = 0.15  # between two looks at an endpoint
GIVE_UP_S = 0.3
STRANGERS_S = 3.0  # whatever has the port may be about to end
VISITS = 64  # looks at addresses of members that may be under way at a time


class Search:
    """One agent's search. Times are the engine's, in seconds.

    `endpoints` are in the order in which they found the job; without any, nothing is searched for.
    """

    def __init__(self, node: str, endpoints: tuple[Address, ...], strangers_s: float = STRANGERS_S) -> None:
        """`strangers_s`: how long to wait for strangers that bar the way to end."""
        self._node = node
        self._strangers_s = strangers_s
        self._endpoints = self._places = endpoints
        self._holders: dict[Address, str] = {}  # who listens there, as far as is known
        self._asked: set[Address] = set()
        self._stale: set[Address] = set()  # asked before this agent was away
        self._look_at: dict[Address, float] = {}  # not before
        self._empty: set[Address] = set()  # nobody answered there at the last look
        self._visits: dict[Address, str] = {}  # members and others that are looked for, not under way yet
        self._visiting: dict[Address, str] = {}
        self.strangers: dict[Address, str] = {}
        """What else has the port of an endpoint."""
        self._doubtful: set[Address] = set()  # nobody answered there, but an agent of this job may be there
        self._told: set[Address] = set()  # the endpoints whose silence was told of
        self._strange_since: float | None = None  # strangers bar the way

    # --- what is seen

    def listening(self, endpoint: Address) -> None:
        """This agent listens there."""
        self._answered(endpoint)
        self._holders[endpoint] = self._node

    def found(self, endpoint: Address, node: str, now: float) -> str:
        """`node` listens there. Returns the member that was looked for, if one was."""
        sought = self._visiting.get(endpoint, "")
        self._answered(endpoint)
        self._look_at[endpoint] = now + LOOK_S
        if not sought:
            self._holders[endpoint] = node
        return sought

    def not_found(self, endpoint: Address, stranger: str, now: float, *, doubtful: bool = False) -> str:
        """Nobody answers there; `doubtful`: see `NotFound`. Returns the member that was looked for, if one was."""
        sought = self._visiting.get(endpoint, "")
        self._look_at[endpoint] = now + LOOK_S
        is_stale = endpoint in self._stale
        self._answered(endpoint)
        self._holders.pop(endpoint, None)
        if is_stale:
            return sought
        (self._doubtful if doubtful else self._empty).add(endpoint)
        if stranger:
            self.strangers[endpoint] = stranger
            if self._strange_since is None and self._is_barred:
                self._strange_since = now
        return sought

    def _answered(self, endpoint: Address) -> None:
        self._visiting.pop(endpoint, None)
        self._asked.discard(endpoint)
        self._stale.discard(endpoint)
        self._empty.discard(endpoint)
        self._doubtful.discard(endpoint)
        self.strangers.pop(endpoint, None)

    # --- what is done

    def founds(self, is_jobless: Callable[[str], bool]) -> bool:
        """Whether this agent is the one to found the job, if it has met none.

        `is_jobless`: whether a node has said, since it was found, that it has met none either.
        """
        others = iter(self._endpoints)
        for endpoint in others:
            if self._holders.get(endpoint) == self._node:
                return all(self._is_free(other, is_jobless) for other in others)
            if endpoint not in self._empty:
                return False
        return False

    def _is_free(self, endpoint: Address, is_jobless: Callable[[str], bool]) -> bool:
        """Whether nobody is there who has a job."""
        holder = self._holders.get(endpoint)
        return endpoint in self._empty if holder is None else holder == self._node or is_jobless(holder)

    @property
    def gives_up_at(self) -> float | None:
        """When to give up because strangers bar the way to the job, unless they go; None: there is hope."""
        if self._strange_since is None:
            return None
        if not self._is_barred:
            self._strange_since = None
            return None
        return self._strange_since + self._strangers_s

    @property
    def _is_barred(self) -> bool:
        """Whether strangers have the port of every endpoint, or one of them may be an agent of this job."""
        strange = [endpoint for endpoint in self._endpoints if endpoint in self.strangers]
        return len(strange) == len(self._endpoints) or any(endpoint in self._doubtful for endpoint in strange)

    def is_empty(self, address: Address) -> bool:
        """Whether nobody answered there at the last look."""
        return address in self._empty

    def look_again(self, address: Address) -> None:
        """What was seen there is of no use any more: look there at once."""
        self._empty.discard(address)
        self._doubtful.discard(address)
        self._look_at.pop(address, None)

    def forget(self) -> None:
        """This agent was away. What it has seen anywhere, or looks at right now, may not hold any more."""
        self._stale |= self._asked
        self._empty.clear()
        self._doubtful.clear()

    def visit(self, address: Address, now: float, node: str = "") -> None:
        """Look for `node`, or for whoever is there, at its address. Nothing happens if it was just looked for."""
        if address not in self._visiting and now >= self._look_at.get(address, now):
            self._visits[address] = node

    def advance(
        self, searches: bool, heir: Address | None, in_touch: Callable[[str], bool], now: float
    ) -> list[Effect]:
        """Return the looks that are due. `searches`: this agent has to find its job, or those that look for it.

        `heir` is where else to find it; `in_touch`: whether there is a link with a node, so that it need not be found.
        """
        self._places = (*self._endpoints, heir) if heir is not None else self._endpoints
        self._holders = {
            endpoint: node for endpoint, node in self._holders.items() if node == self._node or in_touch(node)
        }
        effects: list[Effect] = []
        for endpoint in self._waiting() if searches else ():
            if now >= self._look_at.get(endpoint, now):
                self._asked.add(endpoint)
                effects.append(do.Seek(endpoint, GIVE_UP_S, listens=endpoint in self._endpoints))
        while self._visits and len(self._visiting) < VISITS:
            address = next(iter(self._visits))
            node = self._visits.pop(address)
            if in_touch(node):
                continue
            self._visiting[address] = node
            effects.append(do.Seek(address, GIVE_UP_S, listens=False))
        return effects

    def deadline(self, searches: bool) -> float | None:
        """When `advance` must be called without any news."""
        due = (self._look_at[place] for place in self._waiting() if place in self._look_at)
        return min(due, default=None) if searches else None

    def _waiting(self) -> list[Address]:
        return [e for e in self._places if e not in self._holders and e not in self._asked]

    def doubt(self, endpoint: Address) -> str:
        """Say, once for each endpoint, that nobody founds a job because of its silence; "": there is nothing to say."""
        is_silent = endpoint in self._doubtful and endpoint not in self.strangers
        if not is_silent or endpoint in self._told or endpoint not in self._endpoints:
            return ""
        self._told.add(endpoint)
        return f"something accepts at {endpoint} and says nothing: until it answers or ends no job is founded beside it"

    def failure(self, searched_s: float) -> str:
        """Say that no job was found in `searched_s` seconds, and what to do."""
        names = ", ".join(map(str, self._endpoints))
        for endpoint, stranger in sorted(
            self.strangers.items(), key=lambda item: (item[0] not in self._doubtful, item)
        ):
            return f"{stranger} answers at {endpoint}: end it there, or choose another --rdzv_endpoint"
        for endpoint in (endpoint for endpoint in self._endpoints if endpoint in self._doubtful):
            return (
                f"something accepts at {endpoint} and says nothing: if that is a stopped agent wake it or end it, if "
                "it is a proxy start the agent behind it, else choose another --rdzv_endpoint"
            )
        return (
            f"no agent of this job answers at {names} after {searched_s:g} s: start the agent of that host, or correct "
            "--rdzv_endpoint"
        )
