"""The nodes an event has passed: so that it never runs in circles. Pure. [CH-11]

The header `hops` of a copy lists the nodes it came through, first the one where it was published:
`/a1/b2/`. A node asks a neighbour only for events that have not passed itself, and drops what has
all the same. The list is set by nodes; ordinary doors drop one that comes from outside.
"""

from __future__ import annotations

import re

import msgspec

from rapport.channel.sequences.numbers import HOPS, SEQUENCED_IN
from rapport.core.errors import InvalidInput
from rapport.core.event import Event

MOST_HOPS = 200
"""An event that passed so many nodes is not taken in: no sane graph is so wide."""
_NODE = re.compile(r"[a-z0-9]{8,64}\Z")


def check_node_id(node: str) -> str:
    """The id, if it can be one; raises InvalidInput."""
    if not _NODE.match(node):
        raise InvalidInput(
            f"{node[:70]!r} is not the id of a node",
            code="link.bad_node",
            hint="8 to 64 of a-z and 0-9",
        )
    return node


def hops_of(event: Event) -> tuple[str, ...]:
    """The nodes the event has passed, in order.

    >>> hops_of(Event("s", "1", "t", "", 0, headers={"hops": "/aaaaaaaa/bbbbbbbb/"}))
    ('aaaaaaaa', 'bbbbbbbb')
    """
    return tuple(hop for hop in event.headers.get(HOPS, "").split("/") if hop)


def has_passed(event: Event, node: str) -> bool:
    """Whether the event came through the node."""
    return f"/{node}/" in event.headers.get(HOPS, "")


def arrived_from(event: Event, sender: str) -> Event:
    """The event as the receiver keeps it: one hop longer. What its publisher counted holds only in
    the channel it was counted in, so that mark is dropped.
    """
    headers = {name: text for name, text in event.headers.items() if name != SEQUENCED_IN}
    headers[HOPS] = f"{event.headers.get(HOPS) or '/'}{sender}/"
    return msgspec.structs.replace(event, headers=headers)


def wanted_by(receiver: str, query: str) -> str:
    """The condition under which a neighbour wants events: not passed by it, and its own filter."""
    unseen = f"headers.{HOPS} IS NULL OR headers.{HOPS} NOT LIKE '%/{receiver}/%'"
    return f"({unseen}) AND ({query})" if query else unseen
