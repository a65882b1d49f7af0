"""Asking a running node how it is. [EN-10]"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, Unavailable
from rapport.ensemble.runtime.control import (
    AskStatus,
    StatusAnswer,
    decode_control,
    encode_control,
)
from rapport.ensemble.runtime.settings import check_sealed
from rapport.ensemble.runtime.status import NodeStatus
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.transport.addresses import format_address, ip_of, is_loopback, resolve
from rapport.transport.base import Address, Sender
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import open_station
from rapport.transport.udp import host_towards

_TRIES = 4


async def ask_status(
    node: Address,
    *,
    clock: Clock,
    chance: Chance,
    keys: DatagramKeys | None = None,
    within_ms: int = 2_000,
) -> NodeStatus:
    """The status of the node at an address; raises Unavailable when nobody answers in time,
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
            return  # of somebody else
        if isinstance(message, StatusAnswer) and message.id == number and not answer.done():
            answer.set_result(message.text)

    station.receive(take)
    try:
        for _ in range(_TRIES):
            station.send(encode_control(AskStatus(number)), there)
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
        hint="is one running there, and with the same keys? A node hears nobody without a key",
    )


def _own_side(there: Address) -> Address:
    if is_loopback(there):
        found = ip_of(there[0])
        return ("::1" if found is not None and found.version == 6 else "127.0.0.1"), 0
    return host_towards(there), 0
