"""Pushed subscriptions over real HTTP: receivers that fail, hang, refuse, go and come back; the
place is durable. [CH-2]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.access.identities import EVERYTHING, Grant, Rights
from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.push import SENT_AT, SIGNATURE, is_signed
from rapport.channel.requests.request import Batch, Request
from rapport.core.errors import InvalidInput, NotAllowed, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import Chance, SystemClock
from rapport.node.push import PushSubscriptions
from rapport.scenarios.webhook_sink import WebhookSink

pytestmark = pytest.mark.slow

ME = "me"
ALLOWED = ("http://127.0.0.1:*",)
PATIENCE = 20.0


class Clock(SystemClock):
    """The machine's time, ahead by what a test says."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Place:
    """Channels in a directory and what is pushed from them."""

    def __init__(self, channels: LoggedChannels, pushing: PushSubscriptions, clock: Clock) -> None:
        self.channels, self.pushing, self.clock = channels, pushing, clock

    async def append(self, first: int, last: int) -> None:
        events = [
            Event("s", str(n), f"t{n % 2}", "", n, b'{"n":%d}' % n) for n in range(first, last + 1)
        ]
        await self.channels.channel("c").append(events)

    async def push(self, address: str = "", **fields: Any) -> Batch:
        request = Request(
            **({"query": {}} | fields if "token" not in fields else fields), push_address=address
        )
        return await self.pushing.request("c", request, identity=ME)


@asynccontextmanager
async def opened(directory: Path, **parts: Any) -> AsyncIterator[Place]:
    clock = Clock()
    channels = open_embedded(directory / "log", clock)
    rights = parts.pop("rights", Rights({ME: EVERYTHING}))
    secret = parts.pop("secret", "")
    pushing = PushSubscriptions(
        channels,
        clock,
        rights,
        allowed=parts.pop("allowed", ALLOWED),
        chance=Chance(1),
        secret=secret,
        deadline_ms=400,
    )
    await pushing.start()
    try:
        yield Place(channels, pushing, clock)
    finally:
        await pushing.stop()
        await channels.close()


def received(sink: WebhookSink) -> list[tuple[str, list[str]]]:
    """Token and ids of every batch that came in, also of those that were not answered well."""
    bodies = [json.loads(one.body) for one in sink.posted]
    return [(body["current_token"], [one["id"] for one in body["events"]]) for body in bodies]


def distinct(sink: WebhookSink) -> list[str]:
    """Ids as a receiver has them that drops batches it has seen; repeats must be the same."""
    by_token: dict[str, list[str]] = {}
    for token, ids in received(sink):
        assert by_token.setdefault(token, ids) == ids
    return [one for ids in by_token.values() for one in ids]


def names(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


async def until(fact: Callable[[], object]) -> None:
    """Waits for real servers, with a deadline."""
    async with asyncio.timeout(PATIENCE):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_history_and_then_live_messages_arrive_in_order_in_small_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            await place.append(1, 25)
            batch = await place.push(sink.url, max_push=10, handback="mine")
            assert (batch.events, batch.lease_minutes) == ((), 10)
            await until(lambda: len(distinct(sink)) == 25)
            await place.append(26, 30)
            await until(lambda: len(distinct(sink)) == 30)
            assert distinct(sink) == names(1, 30)
            assert [len(ids) for _token, ids in received(sink)] == [10, 10, 5, 5]
            first = json.loads(sink.posted[0].body)
            assert (first["channel"], first["events"][0]["handback"]) == ("c", "mine")
            assert "idempotency-key" in sink.posted[0].headers

    asyncio.run(scenario())


def test_what_is_pushed_is_signed_with_the_time_of_each_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path, secret="between us") as place, WebhookSink() as sink:
            sink.status = 503
            await place.append(1, 3)
            await place.push(sink.url)
            await until(lambda: len(sink.posted) == 1)
            sink.status = 204
            await until(lambda: len(sink.posted) == 2)
            for one in sink.posted:
                sent_at, given = one.headers[SENT_AT.lower()], one.headers[SIGNATURE.lower()]
                assert is_signed("between us", sent_at, given, one.body, place.clock.now_ms())
            assert sink.posted[0].body == sink.posted[1].body

    asyncio.run(scenario())


def test_a_query_chooses_what_is_pushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            await place.push(sink.url, query="type = 't1' AND data.n > 2")
            await place.append(1, 9)
            await until(lambda: len(distinct(sink)) == 4)
            assert distinct(sink) == ["3", "5", "7", "9"]

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["failing", "hanging", "down"])
def test_a_receiver_in_trouble_gets_everything_once_it_is_well(
    tmp_path: Path, trouble: str
) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            await place.push(sink.url, max_push=3)
            await place.append(1, 3)
            await until(lambda: len(distinct(sink)) == 3)
            if trouble == "down":
                await sink.go_down()
            sink.status = {"failing": 500, "hanging": 0}.get(trouble, 204)
            await place.append(4, 9)
            await until(lambda: place.pushing.pushes()[0].failures > 0)
            assert place.pushing.pushes()[0].trouble
            if trouble == "hanging":
                await sink.go_down()  # lets those go that hang
            sink.status = 204
            await sink.come_up()
            await until(lambda: len(distinct(sink)) == 9)
            assert distinct(sink) == names(1, 9)
            await until(lambda: place.pushing.pushes()[0].failures == 0)

    asyncio.run(scenario())


def test_dead_receivers_do_not_keep_the_living_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as dead, WebhookSink() as living:
            dead.status = 0
            for _ in range(40):
                await place.push(dead.url)
            await place.append(1, 2)
            await until(lambda: all(one.failures for one in place.pushing.pushes()))
            await place.push(living.url)
            began = place.clock.steady_ns()
            await until(lambda: len(distinct(living)) == 2)
            assert (place.clock.steady_ns() - began) / 1e9 < 2

    asyncio.run(scenario())


def test_a_restart_goes_on_where_it_stood(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WebhookSink() as sink:
            async with opened(tmp_path) as place:
                await place.push(sink.url, max_push=2)
                await place.append(1, 4)
                await until(lambda: place.pushing.pushes()[0].push.messages == 4)
            async with opened(tmp_path) as place:
                assert place.pushing.pushes()[0].push.messages == 4
                await place.append(5, 6)
                await until(lambda: len(distinct(sink)) == 6)
                assert [ids for _token, ids in received(sink)] == [
                    ["1", "2"],
                    ["3", "4"],
                    ["5", "6"],
                ]

    asyncio.run(scenario())


def test_the_lease_ends_it_renewing_keeps_it_zero_cancels_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink, WebhookSink() as other:
            batch = await place.push(sink.url, lease_minutes=5)
            token = batch.current_token
            again = await place.push(other.url, token=token, lease_minutes=7)
            assert (again.lease_minutes, len(place.pushing.pushes())) == (7, 1)
            await place.append(1, 1)
            await until(lambda: distinct(other) == ["1"])
            assert sink.posted == []
            ended = await place.pushing.request(
                "c", Request(token=token, lease_minutes=0), identity=ME
            )
            assert (ended.lease_minutes, place.pushing.pushes()) == (0, [])
            await place.push(sink.url, lease_minutes=2)
            await until(lambda: distinct(sink) == ["1"])
            place.clock.ahead_ms = 2 * 60_000
            await place.append(2, 2)
            await until(lambda: not place.pushing.pushes())
            assert distinct(other) == ["1"]
        async with opened(tmp_path) as place:
            assert place.pushing.pushes() == []

    asyncio.run(scenario())


def test_a_pulled_session_goes_on_pushed_without_gap_or_repeat(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            await place.append(1, 20)
            pulled = await place.channels.source.request(
                "c", Request(query={}, max_messages=8), identity=ME
            )
            assert pulled.next_token is not None
            await place.push(sink.url, token=pulled.next_token, max_push=5)
            await until(lambda: len(distinct(sink)) == 12)
            assert distinct(sink) == names(9, 20)
            assert max(len(ids) for _token, ids in received(sink)) <= 5
            back = await place.channels.source.request(
                "c", Request(token=received(sink)[-1][0]), identity=ME
            )
            assert [stored.event.id for stored in back.events] == received(sink)[-1][1]

    asyncio.run(scenario())


def test_taken_messages_leave_the_channel_once_they_were_received(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            sink.status = 500
            await place.append(1, 3)
            await place.push(sink.url, take=True)
            await until(lambda: place.pushing.pushes()[0].failures)
            still = await place.channels.source.request("c", Request(query={}), identity=ME)
            assert len(still.events) == 3
            sink.status = 204
            await until(lambda: place.pushing.pushes()[0].push.messages == 3)
            left = await place.channels.source.request("c", Request(query={}), identity=ME)
            assert left.events == ()
            assert distinct(sink) == names(1, 3)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_batch_that_is_always_refused_is_set_aside_as_dead_letters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            await place.append(1, 2)
            await place.push(sink.url, max_push=2)
            sink.status = 422
            await until(lambda: place.channels.channel("dead_letters").last_position() == 2)
            sink.status = 204
            await place.append(3, 4)
            await until(lambda: "4" in distinct(sink))
            dead = await place.channels.channel("dead_letters").read_after(0)
            told = [stored.event.payload() for stored in dead]
            assert [one["event"]["id"] for one in told] == ["1", "2"]
            assert told[0]["code"] == "push.refused"

    asyncio.run(scenario())


def test_a_receiver_that_is_gone_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as place, WebhookSink() as sink:
            sink.status = 410
            await place.append(1, 1)
            await place.push(sink.url)
            await until(lambda: not place.pushing.pushes())
            assert len(sink.posted) == 1

    asyncio.run(scenario())


def test_who_loses_the_right_gets_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WebhookSink() as sink:
            async with opened(tmp_path) as place:
                await place.push(sink.url)
            rights = Rights({ME: Grant(subscribe=("other",))})
            async with opened(tmp_path, rights=rights) as place:
                await place.append(1, 1)
                await until(lambda: not place.pushing.pushes())
            assert sink.posted == []

    asyncio.run(scenario())


def test_what_cannot_be_pushed_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    async def refused(place: Place, code: str, **fields: Any) -> None:
        wsdl = fields.pop("wsdl", "")
        request = Request(**({"query": {}} | fields))
        with pytest.raises(RapportError) as caught:
            await place.pushing.request("c", request, identity=ME, subscriber_wsdl=wsdl)
        assert caught.value.code == code

    async def scenario() -> None:
        async with opened(tmp_path, allowed=("http://127.0.0.1:9",)) as place:
            address = "http://127.0.0.1:9/in"
            await refused(place, "push.address_not_allowed", push_address="http://127.0.0.1:8/in")
            await refused(place, "push.bad_address", push_address="mailto:me@example.org")
            await refused(place, "push.no_lease", push_address=address, lease_minutes=0)
            await refused(place, "request.bad_field", push_address=address, max_push=-1)
            await refused(place, "push.unreachable", wsdl=address)
            await refused(place, "push.address_not_allowed", wsdl="http://10.0.0.1/?wsdl")
            await refused(place, "push.bad_wsdl", wsdl="<a/>")
            assert place.pushing.pushes() == []
            assert place.channels.records.find("pushes") == []

    asyncio.run(scenario())


def test_another_cannot_use_the_token_to_renew_or_cancel(tmp_path: Path) -> None:
    async def scenario() -> None:
        rights = Rights({ME: EVERYTHING, "you": EVERYTHING})
        async with opened(tmp_path, rights=rights) as place, WebhookSink() as sink:
            token = (await place.push(sink.url)).current_token
            for fields in ({"lease_minutes": 0}, {"push_address": sink.url}):
                with pytest.raises((NotAllowed, InvalidInput)):
                    await place.pushing.request("c", Request(token=token, **fields), identity="you")
            assert len(place.pushing.pushes()) == 1

    asyncio.run(scenario())
