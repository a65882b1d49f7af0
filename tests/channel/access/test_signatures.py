"""What the node makes is signed by the node, and nothing else about it changes. [CH-18]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from rapport.channel.access.signatures import OwnSigner
from rapport.channel.backends.local import open_memory
from rapport.channel.log.channels import LoggedChannels
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.signature import RAW_SIGNATURE, RAW_VERDICT, SIGNATURE, SIGNED_BY
from rapport.kernel.clock import ManualClock
from rapport.kernel.signing_keys import KeyRing, PublicKey, SigningKey, sign_event, verify_event

NODE, SCALE = SigningKey.new(), SigningKey.new()
KEYS = KeyRing([PublicKey("node", NODE.public.raw), PublicKey("scale", SCALE.public.raw)])


def made(id: str, **headers: str) -> Event:
    return make_event(source="here", id=id, type="t", time=1, data={"a": 1}, headers=headers)


def signing_channels() -> LoggedChannels:
    channels = open_memory(ManualClock(1_000))
    channels.sign_with(OwnSigner(NODE, KEYS))
    return channels


async def kept(channels: LoggedChannels, name: str, *events: Event) -> list[Event]:
    await channels.channel(name).append(events)
    return [stored.event for stored in await channels.channel(name).read_after(0)]


@pytest.mark.parametrize("channel", ["detections", "log", "quarantine", "policies", "output.mail"])
@pytest.mark.parametrize("count", [1, 20])
def test_all_that_a_node_appends_to_its_own_channels_is_signed(channel: str, count: int) -> None:
    given = [made(str(number), cause="c", actionhops="2") for number in range(count)]

    async def scenario() -> list[Event]:
        return await kept(signing_channels(), channel, *given)

    found = asyncio.run(scenario())
    assert [verify_event(event, KEYS) for event in found] == [verify_event(found[0], KEYS)] * count
    assert verify_event(found[0], KEYS).key == "node"
    assert [unsigned(event) for event in found] == given
    assert found == asyncio.run(scenario()), "the same bytes each time"


def unsigned(event: Event) -> Event:
    headers = {k: v for k, v in event.headers.items() if k not in (SIGNATURE, SIGNED_BY)}
    return msgspec.structs.replace(event, headers=headers)


def test_what_others_made_is_left_as_it_is() -> None:
    plain, signed = made("1"), sign_event(made("2"), SCALE)
    neighbours = made("3", hops="/aaaaaaaa/")

    async def scenario() -> None:
        channels = signing_channels()
        assert await kept(channels, "raw.scale", plain, signed) == [plain, signed]
        assert await kept(channels, "interpretations", neighbours, signed) == [neighbours, signed]
        (own,) = await kept(channels, "log", signed)
        assert own == signed

    asyncio.run(scenario())


class Doubled:
    """Changes the data of what is appended."""

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        return (msgspec.structs.replace(event, data=b'{"a":2}'),)


class Labelled:
    """Adds a header that no signature covers."""

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        headers = {**event.headers, "label": "x"}
        return (msgspec.structs.replace(event, headers=headers),)


def test_what_an_interceptor_changed_is_signed_by_the_node_with_the_verdict_of_what_it_was() -> (
    None
):
    signed = sign_event(made("1"), SCALE)

    async def scenario() -> tuple[Event, Event]:
        channels = signing_channels()
        channels.interceptors.add("raw.*", Doubled())
        first, second = await kept(channels, "raw.scale", signed, made("2"))
        return first, second

    first, second = asyncio.run(scenario())
    assert verify_event(first, KEYS).key == verify_event(second, KEYS).key == "node"
    assert first.headers[RAW_SIGNATURE] == signed.headers[SIGNATURE]
    assert (first.headers[RAW_VERDICT], second.headers[RAW_VERDICT]) == ("ok", "unsigned")


def test_where_the_site_does_not_sign_a_changed_event_loses_a_signature_that_is_no_longer_its() -> (
    None
):
    signed = sign_event(made("1"), SCALE)

    async def scenario(step: Doubled | Labelled) -> Event:
        channels = open_memory(ManualClock(1_000))
        channels.interceptors.add("raw.*", step)
        (found,) = await kept(channels, "raw.scale", signed)
        return found

    changed = asyncio.run(scenario(Doubled()))
    assert SIGNATURE not in changed.headers
    assert changed.headers[RAW_SIGNATURE] == signed.headers[SIGNATURE]
    assert verify_event(asyncio.run(scenario(Labelled())), KEYS).key == "scale"


def test_a_repetition_of_what_was_signed_is_still_a_repetition() -> None:
    async def scenario() -> None:
        channels = signing_channels()
        first = await channels.channel("detections").append([made("1")])
        again = await channels.channel("detections").append([made("1")])
        assert (again.positions, again.duplicates) == (first.positions, 1)
        (stored,) = await channels.channel("detections").read_after(0)
        assert isinstance(stored, StoredEvent)

    asyncio.run(scenario())
