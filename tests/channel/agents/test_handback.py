"""A handback given with a query comes back with every message, and the source keeps nothing.
[CH-17]
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_state import ListenerSettings
from rapport.channel.backends.local import open_memory
from rapport.channel.requests.request import LONGEST_HANDBACK_BYTES, Request
from rapport.channel.requests.tokens import TokenPlace
from rapport.core.errors import InvalidInput
from rapport.core.event import make_event
from support.judge.model_source import ModelSource

EVENTS = [make_event(source="s", id=str(n), type="t", time=n) for n in range(5)]


def test_every_batch_of_the_session_carries_it_also_the_end(clock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(EVENTS)
        request = Request(query={}, handback="room 5", max_messages=2)
        batch = await channels.source.request("c", request, identity="i")
        seen = [batch.handback]
        while batch.next_token:
            token = batch.next_token
            batch = await channels.source.request("c", Request(token=token), identity="i")
            seen.append(batch.handback)
        again = await channels.source.request("c", Request(token=token, seen=True), identity="i")
        end = await channels.source.request(
            "c", Request(token=token, lease_minutes=0), identity="i"
        )
        assert [*seen, again.handback, end.handback] == ["room 5"] * 5
        await channels.close()

    asyncio.run(scenario())


def test_a_query_may_begin_with_the_next_message(clock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        await channels.channel("c").append(EVENTS[:3])
        request = Request(query={}, from_start=False)
        batch = await channels.source.request("c", request, identity="i")
        assert (batch.events, batch.next_token) == ((), None)
        taking = await channels.source.request(
            "c", Request(query={}, from_start=False, take=True), identity="i"
        )
        assert taking.events == ()
        await channels.channel("c").append(EVENTS[3:])
        goes_on = Request(token=batch.current_token, seen=True)
        token = (await channels.source.request("c", goes_on, identity="i")).next_token
        batch = await channels.source.request("c", Request(token=token), identity="i")
        assert [one.event.id for one in batch.events] == ["3", "4"]
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        Request(query={}, handback="ä" * (LONGEST_HANDBACK_BYTES // 2 + 1)),
        Request(query={}, handback="\ud800"),
        Request(token="t", handback="h"),
        Request(token="t", from_start=False),
    ],
)
def test_a_handback_is_bounded_and_belongs_to_a_query(clock, wrong: Request) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        with pytest.raises(InvalidInput) as refused:
            await channels.source.request("c", wrong, identity="i")
        assert refused.value.code in ("request.bad_handback", "request.bad_field")
        await channels.close()

    asyncio.run(scenario())


def test_a_token_written_before_there_were_handbacks_is_still_read() -> None:
    place = TokenPlace(
        channel="c",
        identity=b"i",
        session=b"s",
        kind="template",
        query="{}",
        after=0,
        through=1,
        count=1,
        reach=1,
        messages=100,
        time_range_ms=0,
    )
    # As it was written then: without the last field.
    then = msgspec.msgpack.encode(list(msgspec.structs.astuple(place))[: _fields_before()])
    assert msgspec.msgpack.decode(then, type=TokenPlace) == place


def _fields_before() -> int:
    return TokenPlace.__struct_fields__.index("handback")


def test_a_listener_gives_it_with_each_event() -> None:
    source = ModelSource()
    source.append(3)
    quick = ListenerSettings(first_pause_ms=1, longest_pause_ms=5)
    with Listener(
        "http://127.0.0.1:9", "c", handback="mine", source=source, settings=quick
    ) as listener:
        assert {one.handback for one in listener.pull(3, timeout=10)} == {"mine"}
