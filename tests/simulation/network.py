"""The simulated network: links between agents, first in, first out.

A process that ends closes its links: the other end hears its last words, unless what outlives it was killed as well:
then a new link is refused. A host that loses power, or a cut network, is silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from values import told_to

from simulation.conditions import Range
from softrun.agent.protocol import codec
from softrun.agent.protocol import effects as do
from softrun.agent.protocol import observations as saw
from softrun.agent.protocol.model import Address, Hello, Member, Message
from softrun.agent.workers import orphan_reaper_main as reaper

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node

HERE = "here"
"""The host of an endpoint that is the address of every node."""

# The codecs are pure, so the same bytes need not be read twice.
_encode_message = lru_cache(maxsize=4096)(codec.encode_message)
_decode_message = lru_cache(maxsize=4096)(codec.decode_message)


@dataclass(eq=False)
class Link:
    dialer: Node
    target: Node
    up: bool = False
    ends: set[str] = field(default_factory=set)  # the nodes that still hold their end
    sent_until: dict[str, float] = field(default_factory=dict)  # by receiver: when the last thing sent will arrive
    held: list[tuple[Node, Callable[[], None]]] = field(default_factory=list)  # what the cut network keeps back
    severed: bool = False  # nothing arrives on it any more
    found: bool = False

    def other(self, node: Node) -> Node:
        return self.target if node is self.dialer else self.dialer


class Network:
    """All links; the methods are what agents do with them, and what can befall the network."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._addresses: dict[Address, list[Node]] = {}  # all that ever listened there
        self._holders: dict[Address, Node] = {}  # who listens at an endpoint
        self.strangers: dict[Address, tuple[str, float]] = {}
        """What has the port of an endpoint, if nobody of this job does, and since when."""
        self._cut: set[tuple[str, str]] = set()  # senders and receivers between whom nothing passes
        self.sent_bytes = 0
        self.torn_at = -math.inf
        """When something was last kept from passing between any two."""
        self._refused_at: dict[str, float] = {}  # by name, when links to it were last refused
        self._refusing: set[tuple[str, str]] = set()  # those between whom everything is refused, both ways

    def listen(self, node: Node) -> None:
        self._addresses.setdefault(Address(node.config.host, node.config.port), []).append(node)

    def holder(self, endpoint: Address) -> Node | None:
        """Who listens at an endpoint, or did last."""
        return self._holders.get(endpoint)

    def _at(self, address: Address) -> Node | None:
        """The node whose agent listens, or did last, at this address."""
        return self._addresses[address][-1] if address in self._addresses else self._holders.get(address)

    def split(self, side: dict[str, int]) -> None:
        """Cut the network: nodes with different numbers do not reach each other."""
        self.torn_at = math.inf
        for name, number in side.items():
            self._cluster.nodes[name].side = number

    def cut_way(self, sender: str, receiver: str) -> None:
        """Nothing passes from one node to another; what the other sends still arrives."""
        self.torn_at = math.inf
        self._cut.add((sender, receiver))

    def refuse(self, pairs: Sequence[tuple[str, str]]) -> None:
        """From now on a firewall refuses all that these nodes say to each other, as if both had ended."""
        self.torn_at = math.inf
        self._refusing |= {way for a, b in pairs for way in ((a, b), (b, a))}
        self._note_refusals()
        for link in self.links():
            if (link.dialer.name, link.target.name) in self._refusing:
                for node in (link.dialer, link.target):
                    self._link_down(link, node, True)

    def has_refused(self, node: Node, within_s: float) -> bool:
        """Whether links to this node were refused so recently, although it lives."""
        self._note_refusals()
        return self._cluster.now - self._refused_at.get(node.name, -math.inf) <= within_s

    def _note_refusals(self) -> None:
        self._refused_at |= dict.fromkeys((name for way in self._refusing for name in way), self._cluster.now)

    def _refuses(self, a: Node, b: Node) -> bool:
        return (a.name, b.name) in self._refusing

    def heal(self, break_odds: float = 0.0) -> None:
        """The network is whole again. Each link over the cut breaks or goes on, with what it held back."""
        self.torn_at = min(self.torn_at, self._cluster.now)
        self._note_refusals()
        self._cut.clear()
        self._refusing.clear()
        for node in (*self._cluster.nodes.values(), *self._cluster.witnesses.started.values()):
            node.side = 0
        for link in self.links():
            held, link.held = link.held, []
            if held and self._cluster.chance(break_odds):
                for node in (link.dialer, link.target):
                    self._send(link, node, partial(self._probed, link, node), self._cluster.timing.link)
            else:
                for receiver, act in held:
                    self._send(link, receiver, act, self._cluster.timing.link)

    def links(self) -> list[Link]:
        """All of which somebody holds an end."""
        everybody = [*self._cluster.nodes.values(), *self._cluster.witnesses.started.values()]
        return [*dict.fromkeys(link for node in everybody for link in node.links)]

    def sever(self, link: Link) -> None:
        """It breaks: what is under way on it is lost, and each end learns of it by itself."""
        link.severed = True
        link.held.clear()
        for node in (link.dialer, link.target):
            delay = self._cluster.draw(self._cluster.timing.notice)
            self._cluster.after(delay, self._cluster.give, node, partial(self._probed, link, node))

    def process_ended(self, node: Node, silent: bool) -> None:
        """The kernel closes its links. `silent`: its host ended with it, so nobody is told."""
        for link in list(node.links):
            link.ends.discard(node.name)
            if not silent and link.up:
                other = link.other(node)
                self._send(link, other, partial(self._probed, link, other), self._cluster.timing.notice)

    def _passes(self, sender: Node, receiver: Node) -> bool:
        return sender.side == receiver.side and (sender.name, receiver.name) not in self._cut

    def _reachable(self, a: Node, b: Node) -> bool:
        """Whether the two can begin a connection, which takes both ways."""
        return self._passes(a, b) and self._passes(b, a)

    def dial(self, node: Node, member: Member) -> None:
        target = self._at(Address(member.host, member.port))
        if target is None:
            raise AssertionError(f"nobody ever listened at the address of {member.node}")
        self._drop(node, node.dialled.pop(member.node, None))
        if target.name != member.node:
            self._dial_another(node, member, target)
            return
        link = Link(node, target, ends={node.name})
        node.dialled[target.name] = link
        node.links[link] = None
        self._cluster.after(self._cluster.draw(self._cluster.timing.connect), self._connect, link)

    def _dial_another(self, node: Node, member: Member, target: Node) -> None:
        """Somebody else has the address of the member now, and cannot prove to be the member."""
        refuses = self._refuses(node, target)
        answers = refuses or (self._reachable(node, target) and not target.dark)
        delay = self._cluster.draw(self._cluster.timing.connect if answers else self._cluster.timing.give_up)
        down = saw.LinkDown(member.node, refused=refuses or (answers and not target.alive))
        self._cluster.after(delay, self._cluster.deliver, node, down)

    def seek(self, node: Node, seek: do.Seek) -> None:
        self._cluster.after(self._cluster.draw(self._cluster.timing.connect), self._seek, node, seek)

    def _seek(self, node: Node, seek: do.Seek) -> None:
        endpoint = seek.endpoint
        if endpoint in self.strangers:
            stranger, _ = self.strangers[endpoint]
            self._cluster.deliver(node, saw.NotFound(endpoint, stranger, doubtful=True))
            return
        target = self._at(endpoint)
        taken = target is not None and target.alive
        if seek.listens and not taken and node.alive and endpoint.host in (HERE, node.config.host):
            self._holders[endpoint] = node
            self._cluster.deliver(node, saw.Listening(endpoint))
        elif target is not None and target is not node and self._refuses(node, target):
            self._cluster.deliver(node, saw.NotFound(endpoint, refused=True))
        elif target is None or (not (target.alive or target.dark) and self._reachable(node, target)):
            told = target is not None and endpoint in self._addresses and self._tell(node, target)
            self._cluster.deliver(node, saw.NotFound(endpoint, refused=not told))
        elif target.dark or target.stalled or not self._reachable(node, target):
            accepts = target.stalled and not target.dark and self._reachable(node, target)
            seen = saw.NotFound(endpoint, doubtful=accepts)
            self._cluster.after(seek.give_up_s, self._cluster.deliver, node, seen)
        else:
            if target is not node and target.name not in node.dialled and node.alive:
                link = Link(node, target, up=True, ends={node.name, target.name}, found=True)
                node.dialled[target.name] = link
                node.links[link] = target.links[link] = None
                self._name(link, target)
            self._cluster.deliver(node, saw.Found(endpoint, target.name))

    def _name(self, link: Link, receiver: Node) -> None:
        """The acceptor of a link knows who has dialled it."""
        sender = link.other(receiver)
        old = receiver.inbound.pop(sender.name, None)
        if old is not None and old is not link:
            self._drop(receiver, old)
        receiver.inbound[sender.name] = link

    def _connect(self, link: Link) -> None:
        node, target = link.dialer, link.target
        if node.name not in link.ends:
            return
        if self._refuses(node, target):
            self._link_down(link, node, True)
        elif not self._reachable(node, target) or target.dark:
            self._cluster.after(self._cluster.draw(self._cluster.timing.give_up), self._link_down, link, node, False)
        elif not target.alive:
            self._probed(link, node)
        else:
            # The kernel accepts, whatever the agent behind it is doing.
            link.up = True
            link.ends.add(target.name)
            target.links[link] = None
            up = partial(self._observe_link, link, node, saw.LinkUp(target.name))
            self._send(link, node, up, self._cluster.timing.link)

    def say(self, node: Node, to: str | None, message: Message) -> None:
        if to is None:
            links = [link for link in node.inbound.values() if link.up]
        else:
            links = [link for link in (node.dialled.get(to), node.inbound.get(to)) if link is not None and link.up][:1]
        data = _encode_message(message) if links else b""
        self.sent_bytes += len(data) * len(links)
        assert len(data) <= codec.MAX_LINE, f"a message of {len(data)} bytes"
        for link in links:
            other = link.other(node)
            self._send(link, other, partial(self._hear, link, node, other, data), self._cluster.timing.link)

    def _send(self, link: Link, receiver: Node, act: Callable[[], None], delay: Range) -> None:
        if not self._passes(link.other(receiver), receiver):
            link.held.append((receiver, act))
            return
        at = max(self._cluster.now + self._cluster.draw(delay), link.sent_until.get(receiver.name, 0.0))
        link.sent_until[receiver.name] = at
        self._cluster.after(at - self._cluster.now, self._arrive, link, receiver, act)

    def _arrive(self, link: Link, receiver: Node, act: Callable[[], None]) -> None:
        if receiver.name in link.ends and not link.severed:
            self._cluster.give(receiver, act)

    def _hear(self, link: Link, sender: Node, receiver: Node, data: bytes) -> None:
        if receiver.name not in link.ends:
            return
        message = _decode_message(data)
        receiver.heard[sender.name] = self._cluster.now
        if isinstance(message, Hello) and sender is link.dialer:
            self._name(link, receiver)  # a link that was dialled has no name before its first message
        self._cluster.observe(receiver, saw.Heard(sender.name, message))

    def _observe_link(self, link: Link, node: Node, seen: saw.Observation) -> None:
        if node.name in link.ends:
            self._cluster.observe(node, seen)

    def _probed(self, link: Link, node: Node) -> None:
        """`node` learns that this link is no more, and has dialled once more to find out why."""
        other = link.other(node)
        told = node.name in link.ends and self._tell(node, other)
        self._link_down(link, node, self._refuses(node, other) or (not other.alive and not told))

    def _tell(self, node: Node, other: Node) -> bool:
        """What outlives the agent of `other` tells `node` of its end, if anything does. Returns whether it does."""
        if other.died is None or other.bare or not node.alive or self._refuses(node, other):
            return False
        tells_s = reaper.TELLS_S if other.result is None else reaper.TELLS_IN_ORDER_S
        if self._cluster.now > other.died + tells_s:
            return False
        words = told_to(node.engine.record, other.engine.last_words, other.engine.last_words_in_full)
        data = _encode_message(words)
        self.sent_bytes += len(data)
        self._cluster.deliver(node, saw.Heard(other.name, _decode_message(data)))
        return True

    def _link_down(self, link: Link, node: Node, refused: bool) -> None:
        """`node` learns that this link is no more."""
        if node.name not in link.ends or not node.alive:
            return
        if link.found and link.dialer is node:
            self._drop(node, node.inbound.get(link.target.name))  # what was said may be lost, and it is to know
        other = node.dialled.get(link.dialer.name)
        named = link.dialer is node or (node.inbound.get(link.dialer.name) is link and not (other and other.up))
        self._forget(node, link)
        if named:
            self._cluster.deliver(node, saw.LinkDown(link.other(node).name, refused))

    def _forget(self, node: Node, link: Link) -> None:
        link.ends.discard(node.name)
        node.links.pop(link, None)
        for held in (node.dialled, node.inbound):
            if held.get(link.other(node).name) is link:
                del held[link.other(node).name]

    def hang_up(self, node: Node, other: str) -> None:
        self._drop(node, node.dialled.get(other))

    def _drop(self, node: Node, link: Link | None) -> None:
        """This end is closed; the other end learns of it."""
        if link is None:
            return
        self._forget(node, link)
        if link.up:
            other = link.other(node)
            self._send(link, other, partial(self._link_down, link, other, False), self._cluster.timing.link)
