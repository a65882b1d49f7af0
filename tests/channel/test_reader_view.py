"""What one reader sees through delivery interceptors; the doors are tried in tests/web. [CH-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rapport.channel.access.identities import access_from_site, check_identity_name
from rapport.channel.backends.local import open_memory
from rapport.channel.interceptors.chain import InterceptorSpec
from rapport.channel.interceptors.registry import delivered_at_rest
from rapport.channel.requests.request import Request
from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile


class Twice:
    """Gives each event twice, under one position."""

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        return (stored, stored)


def numbered(count: int) -> list[Event]:
    return [Event("s", str(n), "t", "", n, b'{"n":%d}' % n) for n in range(1, count + 1)]


@pytest.mark.parametrize("query", [{}, "data.n > 0"])
def test_several_for_one_are_never_cut_in_the_middle(query: object) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        channels.interceptors.add("c", Twice(), at="delivery")
        await channels.channel("c").append(numbered(5))
        found: list[int] = []
        request = Request(query=query, max_messages=2)
        while request is not None:
            batch = await channels.source.request("c", request, identity="me")
            found += [stored.position for stored in batch.events]
            token = batch.next_token
            request = Request(token=token, max_messages=2) if token else None
        assert found == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    asyncio.run(scenario())


def test_hidden_events_are_gone_on_past_and_cost_a_reader_no_wait() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        await channels.interceptors.declare(
            "hide", "c", "filter", {"where": "data.n > 2500"}, at="delivery"
        )
        await channels.channel("c").append(numbered(3_000))
        batch = await channels.source.request("c", Request(query="data.n > 1"), identity="me")
        assert batch.events[0].position == 2_501

    asyncio.run(scenario())


def test_an_interceptor_that_only_the_node_can_make_shows_nothing_at_rest() -> None:
    channels, stored = open_memory(ManualClock()), [StoredEvent(1, 1, numbered(1)[0])]
    kept = [
        InterceptorSpec(
            name="m", channels="c", kind="mediate", at="delivery", settings={"interpretation": "x"}
        )
    ]
    with pytest.raises(Unsupported, match="interceptor 'm'"):
        delivered_at_rest(kept, channels, ManualClock(), "c", "local", stored)
    assert delivered_at_rest(kept, channels, ManualClock(), "d", "local", stored) == stored


def test_nobody_is_named_like_a_reader_that_interceptors_let_through() -> None:
    with pytest.raises(InvalidInput):
        check_identity_name("intercept.phone")
    text = b'[access."intercept.phone"]\nsubscribe = ["*"]\n'
    _access, problems = access_from_site(TomlFile.parse(text, name="site.toml"))
    assert "access.bad_name" in [problem.code for problem in problems]
