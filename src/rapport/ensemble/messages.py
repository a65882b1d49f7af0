"""What nodes say to each other. Times are wall clocks in ms; a new field goes at the end with a
default, as the order of fields is the order on the wire. [EN-4, EN-5, EN-8, EN-9]
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.transport.base import Address


class Published(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="KN"):
    """The knowledge of a component in one version; passed on as it is."""

    component: str
    version: int
    created_ms: int
    node: str
    """The node that the component lives on."""
    roles: tuple[str, ...]
    body: Any
    """The values: in msgpack on real media; in simulations whatever is cheapest, never changed."""
    address: Address | None = None
    """Of that node on IP; none on media without addresses."""
    groups: tuple[str, ...] = ()
    """What the component's ensembles partition it into (`Ensemble.group`); groupers go by it."""


class Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """That a component spoke, and when it was last received."""

    component: str
    global_ms: int
    """The latest reception by anybody, as far as is known."""
    address: Address | None = None
    """Where to pull it straight from, on IP."""


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="HD"):
    """What was received lately; never passed on."""

    headers: tuple[Header, ...]
    node: str = ""
    """Who says so; empty where no strategy needs to know its neighbours."""
    head: str = ""
    """Of the cluster that node is in (`gossip/clusters.py`)."""


class Pull(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PL"):
    """Asks for newer versions than the asker has; never passed on."""

    wanted: tuple[tuple[str, int], ...]
    """Component and the version that the asker has, 0 for none."""
    reply_to: Address | None = None
    """Where to answer straight, on IP."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PT"):
    """One part of a Published that is larger than the medium takes."""

    component: str
    version: int
    index: int
    count: int
    checksum: int
    data: bytes


class PullParts(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PP"):
    """Asks the neighbours for the parts of a version that did not arrive."""

    component: str
    version: int
    missing: tuple[int, ...]
    reply_to: Address | None = None


Message = Published | Headers | Pull | Part | PullParts


class Outgoing(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a machine wants sent: to one address on IP, or to all in range of the radio."""

    message: Message
    to: Address | None = None
