"""What is looked up for a condition, and that looking up changes no answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import InlineWriter
from rapport.channel.query.index_plan import explain_query, index_path, plan_lookup
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.query_kinds import Query, make_query
from rapport.channel.query.tree import print_condition
from rapport.channel.requests.request import Batch, Request
from rapport.channel.requests.tokens import TokenSigner
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.store.base import LogStore
from rapport.store.field_index import SqliteFieldIndex
from rapport.store.field_keys import AllOf, AnyOf, RangeLookup
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore
from support.judge.conditions import CONDITIONS, stored_events

INDEXED = ("type", "subject", "time", "data.x", "data.deep.z", "headers.h")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("type", "type"),
        (" data . room ", "data.room"),
        ('data."room number"[0]', 'data."room number"[0]'),
        ("data.order.@id", "data.order.@id"),
    ],
)
def test_a_declared_field_has_one_name(text: str, path: str) -> None:
    assert index_path(text) == path


@pytest.mark.parametrize("text", ["", "room", "position", "data.x data.y", "data.x = 5", "data..x"])
def test_what_is_no_field_cannot_be_declared(text: str) -> None:
    with pytest.raises(InvalidInput):
        index_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "type = 'a'",
        "'a' < type",
        "type BETWEEN 'a' AND 'b' AND data.y = 5",
        "data.x IN (1, 'a', TRUE)",
        "type LIKE 'abc%' OR data.x > 5",
        "data.x",
        "time >= '2026-03-02'",
        "headers.h = 'v' AND NOT data.x = 5",
    ],
)
def test_what_an_index_knows_is_looked_up(text: str) -> None:
    assert plan_lookup(parse_condition(text), INDEXED) is not None
    assert "looked up" in explain_query(make_query("sql", text), INDEXED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data.y = 5",
        "data.x <> 5",
        "NOT type = 'a'",
        "type LIKE '%a'",
        "data.x + 1 = 5",
        "data.x = data.deep.z",
        "data.x IS NULL",
        "type = 'a' OR data.y = 5",
        "data.x = TRUE OR FALSE",
        f"data.x IN ({', '.join(str(n) for n in range(100))})",
    ],
)
def test_what_it_does_not_know_is_read(text: str) -> None:
    assert plan_lookup(parse_condition(text), INDEXED) is None
    assert "by reading" in explain_query(make_query("sql", text), INDEXED)


def test_a_plan_has_the_form_of_its_condition() -> None:
    planned = plan_lookup(parse_condition("type = 'a' AND (data.x = 1 OR data.x = 2)"), INDEXED)
    assert isinstance(planned, AllOf)
    assert isinstance(planned.parts[1], AnyOf)
    assert isinstance(planned.parts[0], RangeLookup)
    other = Query("other", "", lambda stored: True)
    assert "kind other" in explain_query(other, INDEXED)


# --- the same answers ---------------------------------------------------------------------------

XML = "<o id='{}'><x>{}</x><x>1</x></o>"
XML_EVENTS = st.builds(
    lambda number, text: (
        json.dumps(XML.format(number, text)).encode(),
        {"datacontenttype": "text/xml"},
    ),
    st.integers(0, 3),
    st.sampled_from(["1", "1.0", " 2 ", "a", "true", "ab", ""]),
)
XML_CONDITIONS = st.sampled_from(
    [
        "data.o.x = 1",
        "data.o.x = '1'",
        "data.o.x > 1",
        "data.o.x LIKE 'a%'",
        "data.o.@id IN (1, 2)",
        "data.o.@id BETWEEN 1 AND 2 AND data.o.x",
        "data.o.x = TRUE",
    ]
).map(parse_condition)
PATHS = [*INDEXED, "data.o.x", "data.o.@id", "data.y", "data.list[0]", "data", "source"]


def open_channels(log: LogStore, index: SqliteFieldIndex | None) -> LoggedChannels:
    return LoggedChannels(
        LogParts(
            clock=ManualClock(1_000),
            log=log,
            records=MemoryRecordStore(),
            history=MemoryHistory(),
            writer=InlineWriter(),
            pool=None,
            fields=index,
        )
    )


async def all_batches(
    channels: LoggedChannels, query: Any, size: int, chance: bytes
) -> list[Batch]:
    """Every batch of a query, read by the next tokens, and each once more by its own."""
    source = channels.source
    source.sessions.new = lambda: chance[:8]
    source.sessions.tokens = TokenSigner(b"0" * 32)
    request = Request(query=query, max_messages=size)
    batch = await source.request("c", request, identity="i")
    batches = [batch]
    while batch.next_token:
        batch = await source.request("c", Request(token=batch.next_token), identity="i")
        batches.append(batch)
    for batch in tuple(batches):
        again = await source.request("c", Request(token=batch.current_token), identity="i")
        assert again.events == batch.events
    return batches


@pytest.mark.slow
@given(st.data())
def test_answers_are_the_same_with_and_without_an_index(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("planning")
    on_disk = data.draw(st.booleans())
    index = SqliteFieldIndex(directory / "fields.sqlite")
    log: LogStore = SegmentLogStore(directory, segment_bytes=600) if on_disk else MemoryLogStore()
    with_index, without = open_channels(log, index), open_channels(MemoryLogStore(), None)
    paths = tuple(data.draw(st.sets(st.sampled_from(PATHS), max_size=5)))
    conditions = data.draw(st.lists(CONDITIONS | XML_CONDITIONS, min_size=1, max_size=4))
    batches = data.draw(st.lists(st.lists(events_to_append(), min_size=1, max_size=6), max_size=6))
    fed = data.draw(st.lists(st.booleans(), min_size=len(batches), max_size=len(batches)))
    later = data.draw(st.booleans())
    size = data.draw(st.integers(1, 4))

    async def scenario() -> None:
        feed = with_index.field_feed
        assert feed is not None
        if not later:
            with_index.use_rules(rules(paths))
        number = 0
        for events, is_fed in zip(batches, fed, strict=True):
            numbered = [Event("s", str(number + n), *each) for n, each in enumerate(events)]
            number += len(events)
            await with_index.channel("c").append(numbered)
            await without.channel("c").append(numbered)
            if is_fed:
                feed.catch_up()
            if later:
                with_index.use_rules(rules(paths))
        for condition in conditions:
            text = print_condition(condition)
            expected = await all_batches(without, text, size, b"same session")
            got = await all_batches(with_index, text, size, b"same session")
            assert [batch.events for batch in got] == [batch.events for batch in expected]
            assert tokens(got) == tokens(expected)
        await with_index.close()
        await without.close()

    asyncio.run(scenario())


def tokens(batches: list[Batch]) -> list[tuple[str, str | None]]:
    return [(batch.current_token, batch.next_token) for batch in batches]


def rules(paths: tuple[str, ...]) -> ChannelsConfig:
    return ChannelsConfig(rules=(ChannelRules(pattern="c", index=paths),))


@st.composite
def events_to_append(draw: st.DrawFn) -> tuple[str, str, int, bytes, dict[str, str]]:
    event = draw(stored_events()).event
    data, headers = draw(st.just((event.data, event.headers)) | XML_EVENTS)
    return event.type, "", event.time, data, headers


# --- on a disk --------------------------------------------------------------------------------


def test_matches_far_apart_are_read_one_by_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, ManualClock(1_000), segment_bytes=200_000)
        channels.use_rules(rules(("data.room",)))
        channel = channels.channel("c")
        for start in range(0, 5_000, 500):
            await channel.append(
                [
                    Event("s", str(n), "t", "", n, json.dumps({"room": n % 1_000}).encode())
                    for n in range(start, start + 500)
                ]
            )
        feed = channels.field_feed
        assert feed is not None
        feed.catch_up()
        assert feed.lag("c", 5_000) == 0
        channels.decoded.clear()
        request = Request(query="data.room = 7", max_messages=3)
        batch = await channels.source.request("c", request, identity="i")
        assert [stored.position for stored in batch.events] == [8, 1_008, 2_008]
        assert batch.next_token
        rest = await channels.source.request("c", Request(token=batch.next_token), identity="i")
        assert [stored.position for stored in rest.events] == [3_008, 4_008]
        taken = await channels.source.request(
            "c", Request(query={"data": {"room": 7}}, take=True, max_messages=2), identity="i"
        )
        assert [stored.position for stored in taken.events] == [8, 1_008]
        again = await channels.source.request("c", Request(token=taken.current_token), identity="i")
        assert again.events == taken.events
        left = await channels.source.request("c", Request(query="data.room = 7"), identity="i")
        assert [stored.position for stored in left.events] == [2_008, 3_008, 4_008]
        await channels.close()

    asyncio.run(scenario())


def test_an_index_that_is_gone_is_made_again_and_one_that_is_broken_is_not_asked(
    tmp_path: Path,
) -> None:
    async def ask() -> list[int]:
        channels = open_embedded(tmp_path, ManualClock(1_000))
        channels.use_rules(rules(("type",)))
        if channels.channel("c").last_position() == 0:
            await channels.channel("c").append(
                [Event("s", str(n), "ab"[n % 2], "", n) for n in range(10)]
            )
        batch = await channels.source.request("c", Request(query="type = 'a'"), identity="i")
        assert channels.parts.fields is not None
        channels.parts.fields.close()
        blind = await channels.source.request("c", Request(query="type = 'a'"), identity="i")
        assert blind.events == batch.events
        await channels.close()
        return [stored.position for stored in batch.events]

    expected = asyncio.run(ask())
    for path in tmp_path.glob("fields.sqlite*"):
        path.unlink()
    assert asyncio.run(ask()) == expected == [1, 3, 5, 7, 9]


async def rooms(directory: Path) -> LoggedChannels:
    """1,000 events in 10 blocks and several segments, everything fed."""
    channels = open_embedded(directory, ManualClock(1_000), segment_bytes=10_000)
    channels.use_rules(rules(("data.room",)))
    for start in range(0, 1_000, 100):
        await channels.channel("c").append(
            [
                Event("s", str(n), "t", "", n, json.dumps({"room": n % 50}).encode())
                for n in range(start, start + 100)
            ]
        )
    feed = channels.field_feed
    assert feed is not None
    feed.catch_up()
    channels.decoded.clear()
    return channels


async def positions(channels: LoggedChannels) -> list[int]:
    batch = await channels.source.request("c", Request(query="data.room = 7"), identity="i")
    return [stored.position for stored in batch.events]


def test_what_the_log_has_let_go_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path)
        channels.parts.log.trim("c", 501)
        first = channels.parts.log.first_position("c")
        assert 1 < first <= 501
        assert await positions(channels) == [n for n in range(8, 1_000, 50) if n >= first]
        await channels.close()

    asyncio.run(scenario())


def test_an_event_whose_bytes_changed_is_not_believed_and_its_neighbours_are(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path)
        spoil(tmp_path)
        found = await positions(channels)
        assert len(found) == 19
        assert set(found) < set(range(8, 1_000, 50))
        await channels.close()

    asyncio.run(scenario())


def spoil(directory: Path) -> None:
    """One byte of one match in the second segment."""
    segment = sorted(directory.glob("logs/c/*.log"))[1]
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b'{"room": 7}', b'{"room": 7 ', 1))


def test_an_index_is_really_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        channels = await rooms(tmp_path)
        channel = channels.channel("c")

        async def refuse(position: int, *, limit: int = 1000) -> Any:
            raise AssertionError(f"read after {position}")

        monkeypatch.setattr(channel, "read_after", refuse)
        assert await positions(channels) == list(range(8, 1_000, 50))
        await channels.close()

    asyncio.run(scenario())


def test_a_field_that_cannot_be_indexed_is_refused(tmp_path: Path) -> None:
    channels = open_channels(MemoryLogStore(), SqliteFieldIndex(tmp_path / "f"))
    with pytest.raises(InvalidInput, match="room"):
        channels.use_rules(rules(("room",)))
