"""The rows of the report's tables: what each figure counts, and by which evidence. [PI-6, CO-18]

Field names are the columns in `gold/`. Durations and times are milliseconds; times are UTC. Nothing
is concluded from one state of the ledger about another: each count names the lines it rests on.
"""

from __future__ import annotations

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """How long something took: of `timed` cases, percentiles by nearest rank (each is a value that
    occurred).
    """

    timed: int
    median: int
    p90: int
    p99: int
    longest: int


class PolicyCount(msgspec.Struct, frozen=True):
    """How often a policy was detected and left undecided, and when first and last (event time)."""

    policy: str
    count: int
    undecided: int
    second_look: int
    """Detections found only when released readings were looked at again."""
    first: int | None
    last: int | None


class HourCount(msgspec.Struct, frozen=True):
    """What a policy found in an hour of event time that begins at `hour`."""

    policy: str
    hour: int
    detected: int
    undecided: int


class SilentCount(msgspec.Struct, frozen=True):
    """Situations left undecided because this source should have been heard and was not; one that
    rests on two silent sources counts for both.
    """

    policy: str
    silent: str
    count: int


class LateCount(msgspec.Struct, frozen=True):
    """Readings that came after their time had been decided; `source` is empty where the lake does
    not have the reading.
    """

    source: str
    count: int
    first: int
    last: int


class FunnelRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far what a policy found went. Each step is counted by its own evidence."""

    policy: str
    detected: int
    with_message: int
    """Detections that a message names as its reason."""
    messages: int
    """Known by their own event or by a line of the ledger."""
    missing: int
    """Of these, messages whose own event the lake does not have."""
    handed: int
    """A medium took it for somebody: handed, or confirmed at once."""
    confirmed: int
    answered: int
    escalated: int
    done: int
    failed: int
    timed_out: int
    open: int
    unmapped: int
    """Actions that the site maps to nothing: no message was written."""


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """How reliably and how fast somebody is reached and answers, over the messages they were asked
    about.
    """

    peer: str
    asked: int
    reached: int
    """A medium took it."""
    answered: int
    unanswered: int
    """Reached, and no answer so far."""
    unreached: int
    """Neither reached nor answered."""
    failed: int
    """Given up: no address of theirs took it."""
    timed_out: int
    refused: int
    held: int
    response: Spread | None = None
    """From the first medium that took it to the first answer; answers that came before any medium
    was known to have taken it have no time."""


class AdapterRow(msgspec.Struct, frozen=True, kw_only=True):
    """How reliable and how fast an adapter is, over its deliveries (message, peer and address)."""

    adapter: str
    deliveries: int
    attempts: int
    failed_attempts: int
    reached: int
    confirmed: int
    failed: int
    """The newest line says failed, and it is not tried again."""
    waiting: int
    """Queued, unknown after a crash, or failed and to be tried again."""
    stopped: int
    timed_out: int
    """Reached, and the peer did not answer in time."""
    answered: int
    """Reached, and the peer answered."""
    handing: Spread | None = None
    """From the first queueing until the medium took it."""
    response: Spread | None = None
    """From this medium's taking it to the peer's first answer."""


class DeliveryCount(msgspec.Struct, frozen=True):
    """How many deliveries through an adapter are in a state now."""

    adapter: str
    state: str
    count: int


class MessageCount(msgspec.Struct, frozen=True):
    """How many messages ended in a result (done, failed, timed_out), or are open or unmapped."""

    result: str
    count: int


class SensorToPhone(msgspec.Struct, frozen=True):
    """How fast the deliveries of a policy were that a medium took.

    `from_door`: since the door had the last reading of the situation; a window that had to pass
    before the situation was certain is in it. `after_due`: since the situation was certain.
    """

    policy: str
    deliveries: int
    from_door: Spread
    after_due: Spread


class MediationRow(msgspec.Struct, frozen=True):
    """What an interpretation made of a source's events."""

    source: str
    interpretation: str
    readings: int
    released: int
    """Readings that were held back first."""
    corrections: int
    rejected: int
    """Raw events without a meaning, each once however often it was tried."""
    set_aside: int
    """Readings that policies could not use."""


class ReasonCount(msgspec.Struct, frozen=True):
    """What went to quarantine for a reason: `count` events, rejected `times` in all."""

    reason: str
    source: str
    interpretation: str
    found_by: str
    count: int
    times: int
    first: int
    last: int


class ChannelRow(msgspec.Struct, frozen=True):
    """What a channel received."""

    channel: str
    events: int
    first: int
    last: int
    minutes: int
    """Minutes with an event."""
    busiest: int
    """Events in the busiest minute."""
    missing: int
    """Positions between the first and the last that the lake does not have."""
    gaps: int
    """Stretches of a minute or more without an event."""
    longest_gap: int


class GapRow(msgspec.Struct, frozen=True):
    """A stretch of a minute or more in which a channel received nothing."""

    channel: str
    begin: int
    end: int
    duration: int


class DelayRow(msgspec.Struct, frozen=True):
    """How long after its time an event of a source was received."""

    channel: str
    source: str
    events: int
    ahead: int
    """Events whose time lies after their arrival: the source's clock is ahead."""
    delay: Spread


class SeriesPoint(msgspec.Struct, frozen=True):
    """Events of a channel in the stretch of time that begins at `begin`."""

    channel: str
    begin: int
    events: int


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the provenance of a conversation."""

    conversation: str
    relation: str
    """shows, led to, told, answered, escalated, refers to, appended."""
    from_kind: str
    from_id: str
    to_kind: str
    to_id: str
    via: str = ""
    """The adapter that told, the policy that led to it, the channel it was appended to."""
    state: str = ""
    """Of a delivery its newest state, of a message its result."""
    time: int | None = None


class GossipRow(msgspec.Struct, frozen=True, kw_only=True):
    """How knowledge spread to a node, by the summaries of its ensemble node."""

    node: str
    begin: int
    end: int
    covered: int
    """Of the time between, how much the summaries speak of."""
    sent: int
    """Messages: one to all in range counts once, one to several addresses for each."""
    received: int
    first: int
    """Versions of components of which it held nothing."""
    replaced: int
    """Versions that took an older one's place."""
    replicas: int
    """Components of other nodes that it knew at the end."""
    age: Spread | None = None
    """Of the older ones, when they were replaced: since their creation. Percentiles are at most a
    thirty-second too low."""


class GossipMessages(msgspec.Struct, frozen=True):
    """How many messages of a kind a node sent and received."""

    node: str
    kind: str
    sent: int
    received: int


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a broker gave answers of a kind: `here` (it had the record), `elsewhere` (another
    had it), `not_found`, `refused`.
    """

    broker: str
    answer: str
    requests: int
    response_us: Spread | None = None
    """In microseconds, from having the request until the answer was sent. Percentiles are at most
    a thirty-second too low."""
