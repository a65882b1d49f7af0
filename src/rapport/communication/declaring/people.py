"""What the site says about people: `[peers.NAME]`, `[collectives.NAME]`, and every fault in them.
[CO-3, CO-8, UX-2]

The directory reads what was said at run time by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

from rapport.communication.addresses import address_fault
from rapport.communication.declaring.privacy import read_privacy
from rapport.communication.delivering.tracking import CollectiveDelivery, PeerDelivery
from rapport.communication.peers import Collective, Peer
from rapport.communication.privacy.hours import is_zone
from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields, suggest

PEER_DELIVERIES = ("to-all-channels", "at-least-one", "preferred")
COLLECTIVE_DELIVERIES = ("to-any", "to-all-members", "at-least 3")
"""As they are written; any number may stand for the 3."""

PEER_KEYS = (
    "addresses",
    "delivery",
    "fallback",
    "fallback_after",
    "zone",
    "quiet",
    "on_quiet",
    "privacy",
)
COLLECTIVE_KEYS = ("members", "delivery")

_AT_LEAST = re.compile(r"at-least(?:\s+(\S+))?\s*\Z")


def read_peer(name: str, table: Fields, adapters: Collection[str], directory: Path) -> Peer:
    """One `[peers.NAME]`; what is wrong is among the table's problems."""
    addresses = table.texts("addresses", ())
    if table.is_empty("addresses"):
        table.fault(
            "addresses",
            "peer.no_address",
            f"nobody can reach {name!r}: it has no address",
            hint='write addresses = ["mail:someone@example.org"] or ["inbox:"]',
        )
    for entry in addresses:
        if fault := address_fault(entry, adapters):
            table.report("addresses", fault)
    if len(set(addresses)) < len(addresses):
        table.fault("addresses", "peer.address_twice", f"{name!r} has the same address twice")
    delivery = table.choice("delivery", PEER_DELIVERIES, "at-least-one")
    fallback = table.flag("fallback")
    if fallback and delivery != "preferred":
        table.fault(
            "fallback",
            "peer.fallback_without_preferred",
            'fallback only means something with delivery = "preferred"',
        )
    fallback_after = table.duration_ms("fallback_after", 0, least=1)
    if fallback_after and not fallback:
        table.fault(
            "fallback_after",
            "peer.fallback_after_without_fallback",
            "fallback_after only means something with fallback = true",
            hint='write delivery = "preferred" and fallback = true, or leave it out',
        )
    return Peer(
        name=name,
        addresses=addresses,
        delivery=cast(PeerDelivery, delivery),
        fallback=fallback,
        fallback_after=fallback_after,
        privacy=read_privacy(table, directory),
        zone=zone if is_zone(zone := table.text("zone", "")) else "",
    )


def read_collective(name: str, table: Fields, peers: Mapping[str, Peer]) -> Collective:
    """One `[collectives.NAME]`; what is wrong is among the table's problems."""
    members = table.texts("members", ())
    if table.is_empty("members"):
        table.fault(
            "members",
            "collective.empty",
            f"nobody is in {name!r}",
            hint='write members = ["NAME", ...] with names of [peers.NAME]',
        )
    for member in members:
        if member not in peers:
            table.fault(
                "members",
                "collective.unknown_member",
                f"{member!r} is not a peer",
                hint=suggest(member, peers),
            )
    if len(set(members)) < len(members):
        table.fault("members", "collective.member_twice", f"{name!r} names a member twice")
    delivery, least = _collective_delivery(table)
    if least > len(set(members)):
        table.fault(
            "delivery",
            "collective.least_too_many",
            f"{name!r} needs {least}, but only {len(set(members))} are in it",
            hint="name more members, or ask for fewer; members may also join at run time",
            severity="warning",
        )
    return Collective(name=name, members=members, delivery=delivery, least=least)


def parse_collective_delivery(text: str) -> tuple[CollectiveDelivery, int]:
    """The policy and of how many it needs to be done; raises InvalidInput.

    >>> parse_collective_delivery("at-least 3"), parse_collective_delivery("to-any")
    (('at-least', 3), ('to-any', 0))
    """
    if text in ("to-any", "to-all-members"):
        return cast(CollectiveDelivery, text), 0
    found = _AT_LEAST.match(text)
    number = found[1] if found else None
    if number is not None and number.isascii() and number.isdigit() and 0 < int(number) < 10**6:
        return "at-least", int(number)
    if found:
        raise InvalidInput(
            f"{text[:40]!r} does not say how many",
            code="collective.bad_least",
            hint='write a whole number from 1, such as "at-least 3"',
        )
    raise InvalidInput(
        f"'delivery' cannot be {text[:40]!r}",
        code="site.unknown_choice",
        hint=suggest(text, COLLECTIVE_DELIVERIES),
    )


def _collective_delivery(table: Fields) -> tuple[CollectiveDelivery, int]:
    try:
        return parse_collective_delivery(table.text("delivery", "to-any"))
    except InvalidInput as error:
        table.report("delivery", error)
        return "to-any", 0
