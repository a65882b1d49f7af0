"""Embedded channels on a small disk that is really full for a while; prints what happened as JSON.

Argument: a directory on that disk.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.core.errors import ChannelUnavailable, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock

BALLAST_BYTES = 400_000


async def append_until_full(channels, acknowledged: list[str]) -> ChannelUnavailable:
    for number in count(len(acknowledged)):
        event = Event("s", f"e{number}", "t", "", 0, b'"' + b"x" * 5_000 + b'"')
        try:
            await channels.channel("c").append([event])
        except ChannelUnavailable as error:
            return error
        acknowledged.append(event.id)
    raise AssertionError


async def commit_until_full(subscription, last: int) -> ChannelUnavailable:
    """Cursors with a state that grows: the records get full as well."""
    for number in count(1):
        try:
            await subscription.commit(min(number, last), b"y" * 20_000 * number)
        except ChannelUnavailable as error:
            return error
    raise AssertionError


async def ids_in(channels) -> list[str]:
    return [one.event.id for one in await channels.channel("c").read_after(0, limit=1_000_000)]


async def main(directory: Path) -> None:
    ballast = directory / "ballast"
    ballast.write_bytes(b"b" * BALLAST_BYTES)
    data, told, acknowledged = directory / "data", {}, []
    channels = open_embedded(data, SystemClock(), segment_bytes=300_000)
    subscription = await channels.subscribe("c", "r")
    refused = await append_until_full(channels, acknowledged)
    told["append"] = [refused.code, refused.status, refused.retry_after_seconds > 0]
    told["read while full"] = await ids_in(channels) == acknowledged
    refused = await commit_until_full(subscription, len(acknowledged))
    told["commit"] = [refused.code, refused.status]
    told["state is the last one kept"] = len(subscription.state) % 20_000 == 0
    kept = (subscription.position, subscription.state)
    ballast.unlink()
    before = len(acknowledged)
    for number in range(before, before + 20):
        event = Event("s", f"e{number}", "t", "", 0, b'"more"')
        await channels.channel("c").append([event])
        acknowledged.append(event.id)
    told["goes on"] = await ids_in(channels) == acknowledged
    again = await channels.subscribe("c", "r")
    told["cursor"] = (again.position, again.state) == kept
    await again.commit(before, b"small")
    try:
        await channels.close()
    except StoreUnavailable as error:
        told["close"] = error.code
    channels = open_embedded(data, SystemClock(), segment_bytes=300_000)
    told["after a restart"] = await ids_in(channels) == acknowledged
    await channels.close()
    print(json.dumps(told))


asyncio.run(main(Path(sys.argv[1])))
