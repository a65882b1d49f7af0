"""What a broker's topics or an address hold, as samples of new sources. [CN-6, CH-12]"""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from rapport.channel.mqtt.bridge import Broker, Packet, check_subscription, filter_of
from rapport.channel.mqtt.client import BrokerClient
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.urls import address_parts, without_password
from rapport.kernel.settings import read_secret
from rapport.kernel.tasks import run_blocking
from rapport.mediation.guessing.proposal import source_name
from rapport.site.new_source import NewSource, readable
from rapport.site.topics import survey_topics

BROKERS, ADDRESSES = ("mqtt://", "mqtts://"), ("http://", "https://")
_MOST_FETCHED, _FETCH_SECONDS = 4 * 1024 * 1024, 20
_MOST_PACKETS, _MOST_GROUPS = 2_000, 8


async def listen(
    origin: str, directory: Path, *, name: str = "", password: str = "", listen_ms: int = 10_000
) -> list[NewSource]:
    """What there is to add: one source of an address, one for each form of messages of a broker.

    `password` names a secret of the site (`env:NAME`, `file:PATH`). Raises InvalidInput for an
    address that cannot be asked, Unavailable.
    """
    if origin.startswith(BROKERS):
        return await _of_broker(origin, directory, name, password, listen_ms)
    if not origin.startswith(ADDRESSES):
        raise _bad_address("this is neither a broker nor a web address", origin)
    try:
        parts = urlsplit(origin)
    except ValueError as error:
        raise _bad_address(str(error), origin) from None
    named = name or source_name(PurePosixPath(parts.path).stem or "source")
    raw = await run_blocking(lambda: readable(_fetched(origin)))
    return [NewSource(name=named, raw=raw, origin=parts.hostname or "")]


def _bad_address(message: str, origin: str) -> InvalidInput:
    return InvalidInput(
        f"{message}: {without_password(origin)[:100]}",
        code="source.bad_address",
        hint="say mqtt://USER@HOST:PORT/TOPIC/FILTER or http://HOST/PATH; "
        "a password is named as env:NAME or file:PATH",
    )


def _fetched(url: str) -> bytes:
    """The document at an address, at most 4 MiB."""
    try:
        with urllib.request.urlopen(url, timeout=_FETCH_SECONDS) as answer:
            return bytes(answer.read(_MOST_FETCHED))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(
            f"cannot fetch {without_password(url)}: {error}",
            code="source.no_answer",
            hint="is the address right, and does it answer within 20 s?",
        ) from None


async def _of_broker(
    origin: str, directory: Path, name: str, password: str, listen_ms: int
) -> list[NewSource]:
    parts = address_parts(origin)
    subscription = unquote(parts.path.lstrip("/")) + (f"#{parts.fragment}" if "#" in origin else "")
    subscription = subscription or "#"
    check_subscription(subscription)
    if parts.password or not parts.hostname:
        raise _bad_address("this address of a broker cannot be used", origin)
    secure = parts.scheme == "mqtts"
    port = parts.port or (8883 if secure else 1883)
    broker = Broker(host=parts.hostname, port=port, secure=secure, user=parts.username or "")
    secret = read_secret(password, directory) if password else ""
    packets = await _receive(broker, secret, subscription, listen_ms)
    groups = survey_topics(subscription, packets)
    if not groups:
        raise Unavailable(
            f"no message with a number came within {listen_ms / 1_000:g} s ({len(packets)} others)",
            code="source.nothing_heard",
            hint="is the topic filter right? listen longer",
        )
    bridge = {"broker": f"{parts.scheme}://{broker.place}"}
    bridge |= {"user": broker.user} if broker.user else {}
    bridge |= {"password": password} if password else {}
    named = name or source_name(next((one for one in subscription.split("/") if one.isalnum()), ""))
    return [
        NewSource(
            name=named if len(groups) == 1 else f"{named}-{group.quantity or number}",
            raw=group.sample,
            origin=group.subscription,
            bridge=bridge,
            topics=group,
        )
        for number, group in enumerate(groups[:_MOST_GROUPS], start=1)
    ]


async def _receive(
    broker: Broker, password: str, subscription: str, listen_ms: int
) -> list[Packet]:
    """What a broker sends within a time, retained messages among it."""
    client_id = f"rapport-add-{uuid4().hex[:8]}"
    client = BrokerClient(broker, password, client_id, [filter_of(subscription)], keeps_place=False)
    found: list[Packet] = []

    async def gather() -> None:
        while len(found) < _MOST_PACKETS:
            one = await client.arrived.get()
            client.acknowledge(one.packet.number, one.quality)
            found.append(one.packet)

    client.start()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(gather(), listen_ms / 1_000)
        if not found and client.trouble:
            raise Unavailable(
                client.trouble, code="mqtt.unreachable", hint="is the address of the broker right?"
            )
    finally:
        await client.stop()
    return found
