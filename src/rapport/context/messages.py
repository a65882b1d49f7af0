"""The messages of v1, between brokers and from and to clients. [CX-2, CX-3]

Structs with short tags; the order of the fields is the order on the wire, new ones go at the end
with a default. `id` is chosen by who asks and is unique for it; what is repeated with the same id
is the same message.
"""

from __future__ import annotations

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.transport.base import Address

RECEIVED, PROCESSED = 101, 102
INTERNAL_ERROR, NOT_FOUND = 201, 202
BAD_REQUEST = 301
NOT_ALLOWED, TOO_BUSY = 401, 503
_OVERTAKEN = 100
"""Notices that one of them may be late by."""
MEANINGS = {
    RECEIVED: "received",
    PROCESSED: "processed",
    INTERNAL_ERROR: "internal error",
    NOT_FOUND: "no valid data found",
    BAD_REQUEST: "bad request",
    NOT_ALLOWED: "not allowed",
    TOO_BUSY: "too busy",
}


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="t", gc=False):
    """A message; frozen, compared by value."""


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is asked for."""

    entity: EntityRef
    scope: str


class Put(_Message, frozen=True, array_like=True, tag="put", gc=False):
    """Provider to broker: this is true. Answered by Status 101 and, when on disk, 102."""

    id: int
    record: ContextRecord
    advertises: bool = False


class Request(_Message, frozen=True, array_like=True, tag="req", gc=False):
    """Consumer to broker. Answered by Answer or Status."""

    id: int
    question: Question
    within_ms: int = 2_000
    fresh: bool = False
    """Only from the broker that the provider gives it to: no copy is an answer."""


class Answer(_Message, frozen=True, array_like=True, tag="ans", gc=False):
    """Broker to consumer: the record, and how many hops away it was found."""

    id: int
    record: ContextRecord
    hops: int = 0


class Status(_Message, frozen=True, array_like=True, tag="st", gc=False):
    """Broker to client: how the request `id` stands; `why` is for people."""

    id: int
    status: int
    why: str = ""


class Ask(_Message, frozen=True, array_like=True, tag="ask", gc=False):
    """Broker to broker: a walker, or a flood, looking for a record.

    `search` names the request in the whole network; `walker` counts its walkers; `hop` counts the
    steps it made and makes the acknowledged hop unique; `path` begins with the consumer and ends
    with who sent this on.
    """

    search: int
    walker: int
    hop: int
    question: Question
    path: tuple[Address, ...]
    left_ms: int
    """What is left of the deadline."""
    hops_left: int
    strategy: str = "walk"
    identity: str = ""
    """Who asks, as the entry broker knows it."""
    doubtful: bool = False
    """Whether some broker on the way did not answer, so that a refusal proves little."""
    without: tuple[Address, ...] = ()
    """Brokers that were asked and hold it no longer, or are silent: copies of what they held are no
    answer.
    """
    fresh: bool = False
    """As of the request: no copy is an answer."""


class Found(_Message, frozen=True, array_like=True, tag="fnd", gc=False):
    """Broker to broker, back along the path: the record; `marks` are the places on the path (from
    0) where it is to be replicated; `holder` is the broker its provider gives it to.
    """

    search: int
    walker: int
    hop: int
    record: ContextRecord
    path: tuple[Address, ...]
    marks: tuple[int, ...]
    holder: Address
    hops: int = 0


class Refused(_Message, frozen=True, array_like=True, tag="ref", gc=False):
    """Broker to broker, back along the path of the request: nothing found."""

    search: int
    walker: int
    hop: int
    path: tuple[Address, ...]
    status: int = NOT_FOUND
    why: str = ""
    doubtful: bool = False
    """Worth another try: not everything could be asked."""


class Heard(_Message, frozen=True, array_like=True, tag="hrd", gc=False):
    """The acknowledgement of one hop of an Ask, Found or Refused."""

    search: int
    walker: int
    hop: int
    kind: str


class Probe(_Message, frozen=True, array_like=True, tag="prb", gc=False):
    """Look-ahead: do you, or those up to `depth` further, have it? Answered directly to `asker`
    by who has.
    """

    search: int
    walker: int
    hop: int
    question: Question
    depth: int
    asker: Address
    without: tuple[Address, ...] = ()
    fresh: bool = False
    """Both as of the question."""


class Have(_Message, frozen=True, array_like=True, tag="hav", gc=False):
    """The answer to a probe, from who has the record."""

    search: int
    walker: int
    hop: int
    record: ContextRecord
    holder: Address


class Ping(_Message, frozen=True, array_like=True, tag="png", gc=False):
    """Are you there? Anybody may ask who has a key."""

    id: int


class Pong(_Message, frozen=True, array_like=True, tag="pon", gc=False):
    """I am; how loaded I am (0 idle, 1 full), and a filter of the questions that I can answer."""

    id: int
    load: float = 0.0
    filter: bytes = b""


class Join(_Message, frozen=True, array_like=True, tag="joi", gc=False):
    """Broker to broker: let us be neighbours. Answered by Welcome. `by_hand`: somebody drew the
    topology, so one that was only asked looks for no others.
    """

    id: int
    by_hand: bool = False


class Welcome(_Message, frozen=True, array_like=True, tag="wel", gc=False):
    """Yes, and others you may know; or no, I have enough."""

    id: int
    accepted: bool = True
    others: tuple[Address, ...] = ()


class Departed(_Message, frozen=True, array_like=True, tag="dep", gc=False):
    """Flooded with a small TTL: `broker` has left, by itself or (`abrupt`) found silent."""

    id: int
    broker: Address
    ttl: int
    abrupt: bool = False


class Command(_Message, frozen=True, array_like=True, tag="cmd", gc=False):
    """Controller to broker: `join` these, `leave`, or `monitor` your neighbours."""

    id: int
    what: str
    brokers: tuple[Address, ...] = ()


class Watch(_Message, frozen=True, array_like=True, tag="wat", gc=False):
    """Consumer to broker, and entry broker to holder: tell me about this while the lease lasts, on
    each change (`every_ms` 0) or every so often.
    """

    id: int
    question: Question
    lease_ms: int
    every_ms: int = 0
    identity: str = ""
    at_holder: bool = False
    """From a broker: about what you hold; do not look elsewhere."""


class Unwatch(_Message, frozen=True, array_like=True, tag="unw", gc=False):
    """No longer."""

    id: int


class Notice(_Message, frozen=True, array_like=True, tag="not", gc=False):
    """What a Watch asked for; acknowledged by Noticed, sent again until then or superseded."""

    id: int
    number: int
    record: ContextRecord


def is_late(number: int, last: int) -> bool:
    """Whether a Notice with that number is a repetition, or was overtaken by the last one that was
    taken. One far below is neither: its broker began anew, with its clock set back.
    """
    return 0 <= last - number < _OVERTAKEN


class Noticed(_Message, frozen=True, array_like=True, tag="ntd", gc=False):
    """The acknowledgement of a Notice."""

    id: int
    number: int


class Outdated(_Message, frozen=True, array_like=True, tag="out", gc=False):
    """Replicas older than this are void. Flooded with a small TTL where the site wants it; and
    from who gave a replica to who got it, which is acknowledged by Heard of kind `out`.
    """

    id: int
    key: tuple[str, str, str, str]
    before: int
    ttl: int
    called: bool = False
    """Whether it comes from who gave the replica."""


Hop = Ask | Found | Refused
"""What is acknowledged hop by hop."""

Message = (
    Put
    | Request
    | Answer
    | Status
    | Ask
    | Found
    | Refused
    | Heard
    | Probe
    | Have
    | Ping
    | Pong
    | Join
    | Welcome
    | Departed
    | Command
    | Watch
    | Unwatch
    | Notice
    | Noticed
    | Outdated
)
