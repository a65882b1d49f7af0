"""Sets that an index names without reading them are the sets that reading gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import InlineWriter
from rapport.channel.query.index_plan import LARGEST_INDEXABLE, is_decided
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.tree import (
    And,
    Between,
    Compare,
    Field,
    In,
    Literal,
    Or,
    print_condition,
)
from rapport.channel.requests.request import Batch, Request
from rapport.channel.requests.tokens import TokenSigner
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.store.field_index import SqliteFieldIndex
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore
from support.faults.disk import ForgetfulDisk
from support.judge.conditions import kind

INDEXED = ("type", "data.x", "data.y", "time", "headers.h")


@pytest.mark.parametrize(
    "text",
    [
        "type = 'a'",
        "'a' = type AND data.x = 5",
        "data.x BETWEEN 2 AND 3.5",
        "data.x BETWEEN -7 AND -1",
        "data.x >= 1 OR data.y IN (3, 'a')",
        "type <= 'b'",
        "time >= '2026-03-02'",
    ],
)
def test_keys_decide_where_no_two_values_share_one(text: str) -> None:
    assert is_decided(parse_condition(text), INDEXED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data.z = 5",
        "type = 'a' AND data.z = 5",
        "type = 'a' AND position > 5",
        "data.x = 0",  # FALSE has its key
        "data.x = TRUE",
        "data.x",
        "data.x <= 5",
        "data.x BETWEEN -1 AND 1",
        "data.x > 5",
        "data.x <> 5",
        "data.x = 9007199254740993",
        "data.x >= 9007199254740992",
        "data.x IN ('a', 0)",
        f"type = '{'a' * 64}'",
        "type = 'a\0b'",
        "type LIKE 'a%'",
        "NOT type = 'a'",
    ],
)
def test_where_they_do_the_events_are_looked_at(text: str) -> None:
    assert not is_decided(parse_condition(text), INDEXED)


# --- the same sets --------------------------------------------------------------------------------

ALIKE: tuple[tuple[Any, ...], ...] = (
    (0, False, -0.0, 5e-324, True, 1),
    (2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 10**30),
    (-(2**53), -(2**53) - 1, -1, 1e308),
    ("a", "a\0", "a\0b", "ab", ""),
    ("x" * 63, "x" * 64, "x" * 65, "x" * 64 + "y"),
    (1, 1.0, 1.5, 2, "1", "2", True),
)
"""Values whose keys are the same or next to each other: those of one test come from one row."""
NOT_INDEXED = (None, [1], {"a": 1})
HEADERS: tuple[dict[str, str], ...] = (
    {"ttlms": "5"},
    {"ttlms": "0"},
    {"ttlms": "1000000"},
    {"datacontenttype": "text/xml"},
    {"h": "a"},
    {"h": "a\0b"},
)


@st.composite
def events(draw: st.DrawFn, values: tuple[Any, ...]) -> tuple[str, str, int, dict[str, str]]:
    """Type, data, how much more data, headers."""
    value = st.sampled_from(values * 3 + NOT_INDEXED)
    payload = draw(st.fixed_dictionaries({"x": value}, optional={"y": value}))
    headers = draw(st.sampled_from(({},) * 20 + HEADERS))
    data = json.dumps(payload)
    if "datacontenttype" in headers:
        data = json.dumps(f"<data><x>{payload['x']}</x></data>".replace("\0", ""))
    filling = draw(st.sampled_from((0,) * 30 + (LARGEST_INDEXABLE,)))
    return draw(st.sampled_from(("a", "a", "b"))), data, filling, headers


@st.composite
def conditions(draw: st.DrawFn, values: tuple[Any, ...]) -> Any:
    """One comparison or several, of fields with values of the same row."""
    parts = tuple(_comparison(draw, values) for _ in range(draw(st.sampled_from((1, 1, 2, 3)))))
    return parts[0] if len(parts) == 1 else draw(st.sampled_from((And(parts), Or(parts))))


def _comparison(draw: st.DrawFn, values: tuple[Any, ...]) -> Any:
    field = Field(draw(st.sampled_from((("data", "x"), ("data", "x"), ("data", "y")))))
    texts = Field(draw(st.sampled_from((("type",), ("headers", "h")))))
    chosen = draw(st.lists(st.sampled_from(values), min_size=2, max_size=3))
    first, second = chosen[:2]
    operator: Any = draw(st.sampled_from(("=", "=", ">=", "<=", "<", ">")))
    form = draw(st.sampled_from(("compare", "compare", "between", "in", "text")))
    if form == "text":
        return Compare(operator, texts, Literal("a"))
    if form == "in":
        return In(field, tuple(Literal(value) for value in chosen))
    if isinstance(first, bool):
        return Compare("=", field, Literal(first))
    if form == "between" and kind(first) == kind(second):
        return Between(field, Literal(first), Literal(second))
    return Compare(operator, field, Literal(first))


class Side:
    """One of two nodes to which the same happens: one with an index, the other without."""

    def __init__(self, index: SqliteFieldIndex | None, ttl_ms: int) -> None:
        self.clock = ManualClock(1_000)
        self.log = SegmentLogStore(Path("/node"), files=ForgetfulDisk(), segment_bytes=1_500)
        self.channels = LoggedChannels(
            LogParts(
                clock=self.clock,
                log=self.log,
                records=MemoryRecordStore(),
                history=MemoryHistory(),
                writer=InlineWriter(),
                pool=None,
                fields=index,
            )
        )
        rule = ChannelRules(pattern="c", index=INDEXED, ttl_ms=ttl_ms)
        self.channels.use_rules(ChannelsConfig(rules=(rule,)))
        self.channels.source.sessions.new = lambda: bytes(8)
        self.channels.source.sessions.tokens = TokenSigner(b"0" * 32)

    async def append(self, events: Sequence[Event], feed: bool) -> None:
        await self.channels.channel("c").append(events)
        if feed and self.channels.field_feed is not None:
            self.channels.field_feed.catch_up()

    async def ask(self, **wanted: Any) -> Batch:
        return await self.channels.source.request("c", Request(**wanted), identity="i")

    async def all_batches(self, query: str, size: int) -> list[Batch]:
        batches = [await self.ask(query=query, max_messages=size)]
        while batches[-1].next_token:
            batches.append(await self.ask(token=batches[-1].next_token))
        return batches


@pytest.mark.slow
@given(st.data())
def test_foreseen_sets_are_those_that_reading_gives(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("foreseeing")
    ttl_ms = data.draw(st.sampled_from((-1, -1, -1, 0, 20)))
    index = SqliteFieldIndex(directory / "fields.sqlite")
    sides = (Side(index, ttl_ms), Side(None, ttl_ms))
    values = data.draw(st.sampled_from(ALIKE))
    blocks = data.draw(
        st.lists(st.lists(events(values), min_size=1, max_size=8), min_size=1, max_size=6)
    )
    fed = data.draw(st.lists(st.integers(0, 5).map(bool), min_size=6, max_size=6))
    taken = data.draw(st.none() | conditions(values))
    trimmed = data.draw(st.sampled_from((0, 0, 5, 12)))
    size = data.draw(st.integers(1, 3))
    asked = data.draw(st.lists(conditions(values), min_size=3, max_size=6))

    async def scenario() -> None:
        number = 0
        for block, is_fed in zip(blocks, fed, strict=False):
            numbered = [
                Event(
                    *("s", str(number + n), kind, "", number + n),
                    (body + " " * filling).encode(),
                    headers,
                )
                for n, (kind, body, filling, headers) in enumerate(block)
            ]
            number += len(block)
            for side in sides:
                await side.append(numbered, is_fed)
        for side in sides:
            if taken is not None:
                query = print_condition(taken)
                await side.ask(query=query, max_messages=size, take=True)
            await side.clock.advance(10)
            side.channels.channel("c").trim(trimmed)
        for condition in asked:
            text = print_condition(condition)
            got, expected = [await side.all_batches(text, size) for side in sides]
            assert got == expected
        for side in sides:
            await side.channels.close()

    asyncio.run(scenario())


# --- on a disk --------------------------------------------------------------------------------


async def rooms(directory: Path, headers: dict[str, str] | None = None) -> LoggedChannels:
    """1,000 events, everything fed; one of them, at 708, with other headers."""
    channels = open_embedded(directory, ManualClock(1_000), segment_bytes=10_000)
    rule = ChannelRules(pattern="c", index=("data.room",))
    channels.use_rules(ChannelsConfig(rules=(rule,)))
    for start in range(0, 1_000, 100):
        await channels.channel("c").append(
            [
                Event(
                    *("s", str(n), "t", "", n, json.dumps({"room": n % 50 + 1}).encode()),
                    headers if headers and n == 707 else {},
                )
                for n in range(start, start + 100)
            ]
        )
    feed = channels.field_feed
    assert feed is not None
    feed.catch_up()
    channels.decoded.clear()
    return channels


async def ask(channels: LoggedChannels, **wanted: Any) -> Batch:
    return await channels.source.request("c", Request(**wanted), identity="i")


def count_reads(channels: LoggedChannels, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each call reads from now on."""
    reads: list[int] = []
    log = channels.parts.log
    assert isinstance(log, SegmentLogStore)
    read = log.read_spots

    def counted(name: str, spots: Any) -> Any:
        reads.append(len(spots))
        return read(name, spots)

    monkeypatch.setattr(log, "read_spots", counted)
    return reads


def test_of_a_set_that_only_its_token_tells_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path)
        reads = count_reads(channels, monkeypatch)
        batch = await ask(channels, query="data.room = 8", max_messages=5)
        assert reads == [5]
        following = await ask(channels, token=batch.next_token)
        assert sum(reads) == 10
        assert [stored.position for stored in following.events] == [258, 308, 358, 408, 458]
        await ask(channels, query="data.room = 8 AND data.room < 9", max_messages=5)
        assert sum(reads) == 20, "what the keys do not decide is read"
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("headers", [{"ttlms": "5"}, {"datacontenttype": "text/xml"}, {"h": "\0"}])
def test_where_an_unusual_event_stands_everything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path, headers)
        reads = count_reads(channels, monkeypatch)
        await ask(channels, query="data.room = 9 AND position > 400", max_messages=4)
        assert reads == [8]
        reads.clear()
        await ask(channels, query="data.room = 9", max_messages=4)
        assert reads == [4], "far from it nothing more is read"
        await channels.close()

    asyncio.run(scenario())


def spoil(directory: Path) -> int:
    """One match in each segment but the first; how many that are."""
    damaged = 0
    for segment in sorted(directory.glob("logs/c/*.log"))[1:]:
        content = segment.read_bytes()
        spoiled = content.replace(b'{"room": 8}', b'{"room": 8 ', 1)
        segment.write_bytes(spoiled)
        damaged += spoiled != content
    return damaged


def test_damage_in_a_foreseen_set_is_reported_and_passed(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path)
        batch = await ask(channels, query="data.room = 8", max_messages=4)
        damaged = spoil(tmp_path)
        assert damaged >= 2
        positions, gone = [stored.position for stored in batch.events], 0
        while batch.next_token:
            batch = await ask(channels, token=batch.next_token)
            positions += [stored.position for stored in batch.events]
            gone += batch.gone
        assert len(positions) == len(set(positions)) == 20 - damaged
        assert 1 <= gone <= damaged
        await channels.close()

    asyncio.run(scenario())
