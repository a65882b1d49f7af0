"""What this node is connected to: nodes by links, MQTT brokers, context brokers, ensemble nodes and
receivers of pushes; for each how it is, what waits, and why it is cut off. [CN-12]

Counters start over with the node. Every kind of neighbour is bounded; `left_out` counts the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit
from zlib import crc32

import msgspec

from rapport.core.errors import Unavailable
from rapport.core.urls import without_password
from rapport.node.links import LinkStatus
from rapport.transport.addresses import format_address

if TYPE_CHECKING:
    from rapport.channel.push import PushDelivery
    from rapport.node.node import Node

NeighbourKind = Literal["link", "mqtt", "context", "ensemble", "push"]
NeighbourState = Literal["well", "behind", "doubtful", "cut"]
_MOST_OF_A_KIND = 100
_MEMBER_STATES: dict[str, NeighbourState] = {
    "alive": "well",
    "suspect": "doubtful",
    "dead": "cut",
    "left": "cut",
}


class NetworkFlow(msgspec.Struct, frozen=True, kw_only=True):
    """What goes one way between this node and a neighbour in one channel."""

    way: Literal["in", "out"]
    channel: str
    count: int
    """Events since the node started."""
    behind: int = 0
    """Events that wait here to be looked at and sent."""
    more: bool = False
    """The neighbour has more than was received so far."""
    refused: int = 0
    unreadable: int = 0
    """Events that the neighbour could not read from its log."""
    last: int = 0
    """The last exchange, also one that showed nothing new; 0: none since the node started."""
    trouble: str = ""


class NetworkNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour of the node."""

    kind: NeighbourKind
    name: str
    address: str
    state: NeighbourState
    reason: str = ""
    """Why it is cut off or in doubt."""
    since: int = 0
    """Since when, as far as it is known."""
    node: str = ""
    """The id of the node at the other end of a link."""
    last: int = 0
    round_trip_ms: float | None = None
    flows: list[NetworkFlow] = []


class NetworkPart(msgspec.Struct, frozen=True, kw_only=True):
    """The node's own end of a network: its context broker or its ensemble node."""

    kind: Literal["context", "ensemble"]
    name: str
    address: str
    state: NeighbourState
    reason: str = ""
    holds: int = 0
    """Records of the broker, or components of the ensemble node."""
    copies: int = 0
    """What it holds of others: replicas."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The node and everything that it is connected to; what is cut comes first."""

    site: str
    node: str
    parts: list[NetworkPart]
    neighbours: list[NetworkNeighbour]
    left_out: int = 0


async def network_of(node: Node, identity: str) -> Network:
    """The network as an identity may see it: of pushes only its own, unless it may change the
    node.
    """
    found: list[NetworkNeighbour] = []
    left_out = 0
    for of_a_kind in (
        [one async for one in _linked(node)],
        list(_brokers(node)),
        list(_members(node)),
        [_pushed(one) for one in _visible_pushes(node, identity)],
    ):
        found += sorted(of_a_kind, key=_worst_first)[:_MOST_OF_A_KIND]
        left_out += max(len(of_a_kind) - _MOST_OF_A_KIND, 0)
    return Network(
        site=node.site.name,
        node=node.links.node,
        parts=[*_context_part(node), *_ensemble_part(node)],
        neighbours=sorted(found, key=_worst_first),
        left_out=left_out,
    )


def network_mark(node: Node) -> str:
    """A text that differs when events went over a connection or its state changed; costs little."""
    moved = (
        [(row.link, row.way, row.channel, _told_by(row)) for row in _link_rows(node)],
        [(one.push.session, one.push.messages, one.failures) for one in node.pushing.pushes()],
        [(one.name, one.address) for one in _brokers(node)],
        [(one.name, one.state) for one in _members(node)],
    )
    return format(crc32(msgspec.json.encode(moved)), "x")


def _told_by(row: LinkStatus) -> tuple[int | str, ...]:
    counts = row.counts
    return counts.stored, counts.forwarded, counts.refused, counts.more, counts.trouble


def _worst_first(one: NetworkNeighbour) -> tuple[int, str, str]:
    order: tuple[NeighbourState, ...] = ("cut", "doubtful", "behind", "well")
    return order.index(one.state), one.kind, one.name


# --- links and MQTT bridges ---


def _link_rows(node: Node) -> list[LinkStatus]:
    return [*node.links.status(), *node.bridges.status()]


async def _linked(node: Node) -> AsyncIterator[NetworkNeighbour]:
    since = {one.name: one.since for one in node.conditions.current()}
    rows = sorted(_link_rows(node), key=lambda row: (_is_mqtt(row), row.link))
    for (is_mqtt, name), grouped in groupby(rows, key=lambda row: (_is_mqtt(row), row.link)):
        of_one = list(grouped)
        kind: NeighbourKind = "mqtt" if is_mqtt else "link"
        flows = [await _flow(node, row) for row in of_one if row.channel]
        reason = next((row.counts.trouble for row in of_one if row.counts.trouble), "")
        yield NetworkNeighbour(
            kind=kind,
            name=name,
            address=of_one[0].url,
            node=of_one[0].peer,
            state="cut" if reason else _state_of(flows),
            reason=reason,
            since=since.get(f"{kind}.{name}", 0),
            last=max(max(row.reached, row.counts.last) for row in of_one),
            flows=flows,
        )


def _is_mqtt(row: LinkStatus) -> bool:
    return row.way.startswith("mqtt")


def _state_of(flows: Sequence[NetworkFlow]) -> NeighbourState:
    return "behind" if any(one.behind or one.more for one in flows) else "well"


async def _flow(node: Node, row: LinkStatus) -> NetworkFlow:
    is_out = row.way in ("send", "mqtt out")
    counts = row.counts
    return NetworkFlow(
        way="out" if is_out else "in",
        channel=row.channel,
        count=counts.forwarded if is_out else counts.stored,
        behind=await _waiting(node, row) if is_out else 0,
        more=counts.more,
        refused=counts.refused,
        unreadable=counts.unreadable,
        last=counts.last,
        trouble=counts.trouble,
    )


async def _waiting(node: Node, row: LinkStatus) -> int:
    """Events after the places of the readers that send for a link or bridge."""
    waiting = 0
    for channel in row.channel.split():
        if channel in node.channels.names():
            readers = (await node.maintenance.state(channel)).readers
            own = (one.behind for one in readers if _sends_for(one.reader, row))
            waiting += max(own, default=0)
    return waiting


def _sends_for(reader: str, row: LinkStatus) -> bool:
    if _is_mqtt(row):
        return reader.startswith(f"mqtt:{row.link}:")
    return reader == f"link:{row.link}"


# --- context and ensembles ---


def _brokers(node: Node) -> Iterator[NetworkNeighbour]:
    if node.context is None:
        return
    try:
        status = node.context.broker.status()
    except Unavailable:
        return  # the part says so
    for one in status.neighbours:
        yield NetworkNeighbour(
            kind="context",
            name=one.address,
            address=one.address,
            state="well",
            round_trip_ms=one.round_trip_ms,
        )


def _context_part(node: Node) -> Iterator[NetworkPart]:
    if node.context is None:
        return
    try:
        broker, is_joined = node.context.broker.status(), node.context.is_joined
    except Unavailable as error:
        yield NetworkPart(kind="context", name="", address="", state="cut", reason=error.message)
        return
    yield NetworkPart(
        kind="context",
        name=broker.address,
        address=broker.address,
        state="well" if is_joined else "cut",
        reason="" if is_joined else "none of the brokers that it is to join has answered yet",
        holds=broker.records,
        copies=broker.replicas,
    )


def _members(node: Node) -> Iterator[NetworkNeighbour]:
    if node.ensemble is None:
        return
    try:
        members = node.ensemble.running.roster()
    except Unavailable:
        return  # the part says so
    for one in members:
        state = _MEMBER_STATES.get(one.state, "doubtful")
        yield NetworkNeighbour(
            kind="ensemble",
            name=one.name,
            address=one.address,
            state=state,
            reason="" if state == "well" else f"the other nodes hold it for {one.state}",
        )


def _ensemble_part(node: Node) -> Iterator[NetworkPart]:
    if node.ensemble is None:
        return
    try:
        running = node.ensemble.running
    except Unavailable as error:
        yield NetworkPart(kind="ensemble", name="", address="", state="cut", reason=error.message)
        return
    host = running.machine.host
    withheld = next(iter(host.withheld.values()), None)
    yield NetworkPart(
        kind="ensemble",
        name=running.node,
        address=format_address(running.address),
        state="well" if withheld is None else "doubtful",
        reason="" if withheld is None else withheld.message,
        holds=len(host.components),
        copies=len(host.replicas),
    )


# --- pushes ---


def _visible_pushes(node: Node, identity: str) -> list[PushDelivery]:
    is_admin = node.rights.allows_admin(identity)
    return [one for one in node.pushing.pushes() if is_admin or one.push.identity == identity]


def _pushed(delivery: PushDelivery) -> NetworkNeighbour:
    push = delivery.push
    flow = NetworkFlow(
        way="out", channel=push.channel, count=push.messages, trouble=delivery.trouble
    )
    return NetworkNeighbour(
        kind="push",
        name=push.identity,
        address=_without_secrets(push.address),
        state="cut" if delivery.trouble else "well" if push.sent else "behind",
        reason=delivery.trouble,
        flows=[flow],
    )


def _without_secrets(url: str) -> str:
    """Scheme, host and path: a password or a query may hold a secret."""
    return urlsplit(without_password(url))._replace(query="", fragment="").geturl()
