"""Status of a running node: control messages, the request for it, and the settings of the runtime.
[EN-10]

The first byte of a datagram names its kind: 1 is gossip (`ensemble/protocol.py`), 16 membership
(`overlay/swim_protocol.py`), 17 control; 18 is gossip broadcast to all in range, from its own first
byte on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, Unavailable
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.snapshots import WithheldKnowledge
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.kernel.clock import Chance, Clock
from rapport.overlay.swim_protocol import SwimSettings
from rapport.transport import station
from rapport.transport.addresses import format_address, ip_of, is_loopback, resolve
from rapport.transport.base import Address, Sender
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import open_station
from rapport.transport.udp import host_towards

SWIM: Final = 16
CONTROL: Final = 17
TO_ALL: Final = 18
SWIM_BYTE: Final = bytes([SWIM])
TO_ALL_BYTE: Final = bytes([TO_ALL])
_CONTROL_BYTE: Final = bytes([CONTROL])
_MAX_TEXT = 512 * 1024


class StatusRequest(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="S"):
    """Requests the status; answered to holders of a key, without keys to this machine."""

    id: int


class StatusAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="A"):
    """The status as JSON."""

    id: int
    text: str


Control = StatusRequest | StatusAnswer

_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode_control(message: Control) -> bytes:
    """The message as bytes, with its first byte."""
    return _CONTROL_BYTE + msgspec.msgpack.encode(message)


def decode_control(data: bytes) -> Control:
    """What follows the first byte; raises InvalidInput."""
    try:
        if len(data) > _MAX_TEXT:
            raise ValueError(f"{len(data)} bytes")
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a control message: {error}", code="ensemble.bad_message") from None


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node gossips, what it allows its components, how it watches the others."""

    gossip: GossipSettings = GossipSettings()
    """Which media there are (`radio`, `ip`) follows from how the node is opened."""
    host: HostSettings = HostSettings()
    swim: SwimSettings = SwimSettings()
    grouping: GroupingSettings = GroupingSettings()
    """Of groupers and their clients."""
    threads: int = 4
    """Processes of components that run at the same time, beside those that hang."""


def check_sealed(addresses: Iterable[Address], *, has_keys: bool) -> None:
    """Raises InvalidInput for an address that others reach while nothing would be sealed."""
    station.check_sealed(
        addresses,
        has_keys=has_keys,
        code="ensemble.no_keys",
        hint="make keys with `rapport ensemble keys make FILE OWNER --kind network` and name them "
        "with --keys FILE; without keys only addresses of this machine are used",
    )


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another node."""

    name: str
    address: str
    state: str
    """`alive`, `suspect`, `dead` or `left`."""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A component of another node, as it is known here."""

    component: str
    node: str
    roles: tuple[str, ...]
    version: int
    age_ms: float
    """Since it was received."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a node holds and does now; counters since it started."""

    node: str
    address: str
    group: str = ""
    """What it broadcasts to; empty without radio."""
    components: tuple[str, ...] = ()
    withheld: tuple[WithheldKnowledge, ...] = ()
    """Components whose knowledge cannot be published now, so that others get none."""
    members: tuple[MemberStatus, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    replica_count: int = 0
    """All of them, also where `replicas` shows only some."""
    faults: tuple[Fault, ...] = ()
    health: int = 0
    """0: this node keeps up; up to 8: it is slow, and waits longer for others."""
    namesakes: tuple[str, ...] = ()
    """Addresses of other nodes that have this node's name."""
    threads: int = 0
    waiting_calls: int = 0
    counters: dict[str, int] = {}
    fault_counts: dict[str, int] = {}
    """Faults by code; never fall, unlike what `faults` shows."""


_SHOWN = 200


def short_status(status: NodeStatus) -> str:
    """The status as JSON of some 100 kB at most: of more than 200 members, replicas or faults the
    first are shown; counters that are 0 are left out.
    """
    counters = {name: count for name, count in status.counters.items() if count}
    short = msgspec.structs.replace(
        status,
        counters=counters,
        members=status.members[:_SHOWN],
        replicas=status.replicas[:_SHOWN],
        faults=status.faults[:_SHOWN],
        withheld=status.withheld[:_SHOWN],
        components=status.components[:_SHOWN],
    )
    return msgspec.json.encode(short).decode()


_TRIES = 4


async def fetch_status(
    node: Address,
    *,
    clock: Clock,
    chance: Chance,
    keys: DatagramKeys | None = None,
    within_ms: int = 2_000,
) -> NodeStatus:
    """The status of the node at an address; raises Unavailable without an answer in time,
    InvalidInput without keys for one on another machine.
    """
    there = await resolve(node)
    check_sealed([there], has_keys=keys is not None)
    station = await open_station(_own_side(there), keys, clock)
    number = chance.getrandbits(32)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(data: bytes, sender: Sender) -> None:
        try:
            message = decode_control(data[1:])
        except InvalidInput:
            return  # not a control message
        if isinstance(message, StatusAnswer) and message.id == number and not answer.done():
            answer.set_result(message.text)

    station.receive(take)
    try:
        for _ in range(_TRIES):
            station.send(encode_control(StatusRequest(number)), there)
            done, _ = await asyncio.wait({answer}, timeout=within_ms / _TRIES / 1_000)
            if done:
                return msgspec.json.decode(answer.result(), type=NodeStatus)
    except msgspec.DecodeError as error:
        raise Corrupt(f"the node's status cannot be read: {error}") from None
    finally:
        await station.close()
    raise Unavailable(
        f"no node answered at {format_address(there)}",
        code="ensemble.no_node",
        hint="is one running there, with the same keys? A node ignores senders without a key",
    )


def _own_side(there: Address) -> Address:
    if is_loopback(there):
        found = ip_of(there[0])
        return ("::1" if found is not None and found.version == 6 else "127.0.0.1"), 0
    return host_towards(there), 0
