"""Traces: events of a system of nodes, over which the 25 rules are checked. [EN-3]

Two parties write a trace. A *machine* with `trace` records its decisions (the inner kinds below).
The *shell* that carries messages (simulator, runtime, test) records with `Recorder.sent` and
`Recorder.received` which messages really crossed the machine's edge, and the state of the world
(links, starts, losses). So a machine that does one thing and records another is found out. Nothing
is traced unless a recorder is given: emit with `if trace is not None: trace(TraceEvent(...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from rapport.ensemble.protocol import (
    Headers,
    Message,
    OutgoingMessage,
    Part,
    PublishedKnowledge,
    Pull,
    PullParts,
)
from rapport.kernel.clock import Now
from rapport.transport.base import Address

RADIO: Final = "radio"
IP: Final = "ip"


class Kind(StrEnum):
    """The kind of an event; after the dash, the fields that it fills beside time and node."""

    # Written by the machine: decisions to send.
    PUBLISHED = "published"
    """A node put a new version of its own component into the world - component, version, value
    (created_ms), detail (`period` | `asked` for `publish_now`)."""
    WITHHELD = "withheld"
    """A node left out a round of its own component, as its knowledge cannot be published -
    component."""
    PASSED_ON = "passed_on"
    """A node put a version it received into the world - component, version, detail (`strategy` |
    `pulled` | `answer`: an immediate answer to a pull | `grouper`)."""
    DECIDED = "decided"
    """The strategy decided - component, version, detail (`pass` | `wait` | `keep`)."""
    BOUNDED = "bounded"
    """The boundary decided - component, version, detail (`inside` | `outside`)."""
    DROPPED = "dropped"
    """A message was not used - component, version, detail (why: `older`, `own`, `full`, ...)."""
    REPLACED = "replaced"
    """A newer version became the replica - component, version, value (created_ms)."""

    # Written by the machine: its reception buffer.
    HEADER_ADDED = "header_added"
    """A header is in the buffer from now, or has another time - component, version (held, 0 for
    none), value (global_ms), detail (`knowledge` | `headers` | `pull`: how it was learnt)."""
    HEADER_EXPIRED = "header_expired"
    """It is no longer - component, value (global_ms), detail (`time` | `full`)."""
    FLAG_SET = "flag_set"
    """Somebody pulls the component - component."""
    FLAG_CLEARED = "flag_cleared"
    """Nobody does any more - component, detail (`forwarded` | `time`)."""

    # Written by groupers and their clients.
    TABLE_PUBLISHED = "table_published"
    """A grouper published a table - other (recipient), detail (group), entries (the members'
    nodes, each with 0), value (the number of the table: grows)."""
    TABLE_APPLIED = "table_applied"
    """A client took a table as its peers - other (the grouper's node), detail (group), entries,
    value (as published)."""

    # Written by the host.
    EVALUATED = "evaluated"
    """An ensemble looked at two components - other (the local one), component (the other one),
    version (of its replica; 0: local, as it is now), detail (the ensemble)."""
    EXCHANGED = "exchanged"
    """It held and knowledge was exchanged - as EVALUATED."""
    PROCESS_RAN = "process_ran"
    """A process of a component ended - component, detail (the process, or `name: fault`)."""

    # Written by the shell: what crossed the edge of a machine (`Recorder.sent`, `.received`).
    KNOWLEDGE_SENT = "knowledge_sent"
    """- component, version, value (created_ms), medium, other (recipient; none on the radio)."""
    KNOWLEDGE_RECEIVED = "knowledge_received"
    """- the same, other: the sender."""
    HEADERS_SENT = "headers_sent"
    """- entries (component, global_ms), medium, other."""
    HEADERS_RECEIVED = "headers_received"
    PULL_SENT = "pull_sent"
    """- entries (component, version held), medium, other."""
    PULL_RECEIVED = "pull_received"
    PART_SENT = "part_sent"
    """- component, version, entries ((index, count),) with the index as text, medium, other."""
    PART_RECEIVED = "part_received"
    PART_PULL_SENT = "part_pull_sent"
    """- component, version, entries ((index, 0), ...), medium, other."""
    PART_PULL_RECEIVED = "part_pull_received"

    # Written by the shell: what the world was like.
    STARTED = "started"
    """The node runs from now."""
    STOPPED = "stopped"
    DEPLOYED = "deployed"
    """A component lives on the node from now - component."""
    REMOVED = "removed"
    LINKED = "linked"
    """What the node sends can reach `other` from now - other, medium."""
    UNLINKED = "unlinked"
    KNOWN = "known"
    """The node knows the IP address of `other` from now - other."""
    FORGOTTEN = "forgotten"
    LOST = "lost"
    """What `other` sent did not reach the node (every node, if the node is `*`): loss, collision
    - other, component and version where it was knowledge, medium, detail (why)."""


class TraceEvent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One event at one node; `Kind` documents the meaning of the fields."""

    time_ms: float
    """The steady time, the same for all nodes of a trace."""
    wall_ms: int
    """The node's wall clock, which versions and headers are in."""
    kind: Kind
    node: str
    component: str = ""
    version: int = 0
    other: str = ""
    """The peer's node; its address as text (`host:port`) where only that is known."""
    detail: str = ""
    medium: str = ""
    value: int = 0
    entries: tuple[tuple[str, int], ...] = ()


Tracing = Callable[[TraceEvent], None]
"""What a machine is given as `trace`."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a node, against which the rules check it. Periods of 0 mean never."""

    radio: bool = True
    ip: bool = False
    address: str = ""
    """On IP, as `address_text` writes it."""
    knowledge_ms: float = 5_000
    header_ms: float = 0
    pull_ms: float = 0
    knowledge_offset_ms: float | None = None
    """By steady time; none: not known, the first publication shows it."""
    header_offset_ms: float | None = None
    pull_offset_ms: float | None = None
    local_ms: float = 10_000
    global_ms: float = 20_000
    times: str = "created"
    """What counts as the time of a reception: `created` (of the version) or `received` (here)."""
    fan_out: int = 2
    immediate: bool = False
    """Pulls are answered at once with what is held, instead of marking the next version."""
    answer_gap_ms: float = 0.0
    """The same thing is not answered again within this time."""
    ahead_ms: float = 86_400_000
    """Versions further in the future are not taken."""
    forget_ms: float = 600_000
    """A component without news for so long is forgotten; then old news is new again."""
    boundary: bool = False
    """A boundary restricts what the node passes on."""
    groups: bool = False
    """Recipients come from group tables instead of a random subset of the known nodes."""
    grouper: bool = False


class System(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is true of a whole run."""

    nodes: Mapping[str, NodeFacts]
    shortest_ms: float = 0.0
    """No message arrives sooner after it was sent."""
    longest_ms: float = float("inf")
    """No message arrives later after it was sent."""
    late_ms: float = 0.0
    """How late a node may do what is due: 0 in simulations, some ms on a real machine."""
    end_ms: float | None = None
    """When the recording ended; none: with the last event."""
    losses: bool = True
    """Losses were recorded, so that a message that neither arrived nor was lost is a breach."""


class Trace(msgspec.Struct):
    """A system and what happened in it, in order of time."""

    system: System
    events: list[TraceEvent]


def address_text(address: Address) -> str:
    """How a trace writes an address."""
    return f"{address[0]}:{address[1]}"


class Recorder:
    """Collects events; as a callable it is the `trace` that machines are given.

    Below 1 us for each event; about 250 bytes, so a million of them take 250 MB.
    """

    def __init__(self, names: Mapping[Address, str] | None = None) -> None:
        """`names`: the nodes of known addresses, looked at when an address is written down."""
        self.events: list[TraceEvent] = []
        self._names = names if names is not None else {}

    def __call__(self, event: TraceEvent) -> None:
        self.events.append(event)

    def name_of(self, address: Address) -> str:
        """The node at an address; the address as text where none is known."""
        return self._names.get(address) or address_text(address)

    def sent(self, node: str, outgoing: OutgoingMessage, now: Now) -> None:
        """Records that a node sent what its machine put into the outbox."""
        to = outgoing.to
        medium, other = (RADIO, "") if to is None else (IP, self.name_of(to))
        self._record(_SENT, node, outgoing.message, other, medium, now)

    def received(self, node: str, message: Message, other: str, medium: str, now: Now) -> None:
        """Records a message about to be passed to a machine's `handle`; `other` is the sender."""
        self._record(_RECEIVED, node, message, other, medium, now)

    def happened(
        self,
        kind: Kind,
        node: str,
        now: Now,
        *,
        other: str = "",
        component: str = "",
        version: int = 0,
        medium: str = "",
        detail: str = "",
    ) -> None:
        """Records what the world was like: starts, links, losses."""
        self.events.append(
            TraceEvent(
                now.steady_ms,
                now.wall_ms,
                kind,
                node,
                component=component,
                version=version,
                other=other,
                detail=detail,
                medium=medium,
            )
        )

    def _record(
        self,
        kinds: Mapping[type, Kind],
        node: str,
        message: Message,
        other: str,
        medium: str,
        now: Now,
    ) -> None:
        component, version, value, entries = _content(message)
        self.events.append(
            TraceEvent(
                now.steady_ms,
                now.wall_ms,
                kinds[type(message)],
                node,
                component=component,
                version=version,
                other=other,
                medium=medium,
                value=value,
                entries=entries,
            )
        )


def _content(message: Message) -> tuple[str, int, int, tuple[tuple[str, int], ...]]:
    """Component, version, value and entries of a message."""
    match message:
        case PublishedKnowledge():
            return message.component, message.version, message.created_ms, ()
        case Headers():
            return "", 0, 0, tuple((held.component, held.global_ms) for held in message.headers)
        case Pull():
            return "", 0, 0, message.wanted
        case Part():
            entry = (str(message.index), message.count)
            return message.component, message.version, 0, (entry,)
        case PullParts():
            missing = tuple((str(index), 0) for index in message.missing)
            return message.component, message.version, 0, missing


_SENT: Final[Mapping[type, Kind]] = {
    PublishedKnowledge: Kind.KNOWLEDGE_SENT,
    Headers: Kind.HEADERS_SENT,
    Pull: Kind.PULL_SENT,
    Part: Kind.PART_SENT,
    PullParts: Kind.PART_PULL_SENT,
}
_RECEIVED: Final[Mapping[type, Kind]] = {
    PublishedKnowledge: Kind.KNOWLEDGE_RECEIVED,
    Headers: Kind.HEADERS_RECEIVED,
    Pull: Kind.PULL_RECEIVED,
    Part: Kind.PART_RECEIVED,
    PullParts: Kind.PART_PULL_RECEIVED,
}
