"""What tables of context knew at a time, read back from the log. [PO-11, CX-8]"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.explain.past_tables import TablesAtTime
from rapport.site.past_tables import context_at
from rapport.site.site import Site, load_site
from rapport.tables.context_source import (
    FOUND_CHANNEL,
    ContextAnswer,
    answer_with_record,
    answer_without_record,
)

SITE = """
[site]
name = "labs"
[concepts.room.attributes]
area = "rectangle"
status = "text"
warmth = "number"
[concepts.room.units]
warmth = "degC"
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[tables.present]
concept = "room"
context = "room status"
ids_from = "rooms"
columns = { status = "status", warmth = "celsius" }
[context]
listen = "127.0.0.1:7411"
"""
HOUR = 3_600_000
NOON = 1_772_452_800_000


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "rooms.csv").write_text("id,x1,y1,x2,y2\nr1,0,0,1,1\nr2,1,1,2,2\n")
    return load_site(tmp_path)


def told(identity: str, time: int, until: int, **values: object) -> ContextAnswer:
    entity = EntityRef("room", identity)
    record = ContextRecord("desk", entity, "status", time - 10, until, dict(values))
    return answer_with_record("present", record, time=time, hops=3, holder="127.0.0.1:7441")


def missing(identity: str, time: int) -> ContextAnswer:
    entity = EntityRef("room", identity)
    return answer_without_record(
        "present", entity, "status", time=time, why="no valid record was found"
    )


async def log_of(answers: list[ContextAnswer]) -> Channels:
    clock = ManualClock(NOON)
    channels = open_memory(clock)
    for answer in answers:
        await clock.advance(max(0, answer.time - clock.now_ms()))
        await channels.channel(FOUND_CHANNEL).append([answer.to_event(source="labs")])
    return channels


def statuses(then: TablesAtTime) -> list[object]:
    return list(then.pull.instances("room").columns["status"].tolist())


def test_the_tables_are_as_they_were_known(site: Site) -> None:
    async def scenario() -> None:
        first = told("r1", NOON + 100, NOON + 1_000, status="closed", celsius=21.5)
        second = told("r1", NOON + 500, NOON + 2_000, status="open")
        gone = missing("r1", NOON + 2_100).after(second)
        at = context_at(site.tables, site.ontology, await log_of([first, second, gone]))
        assert statuses(await at(NOON)) == [None, None]
        assert statuses(await at(NOON + 100)) == ["closed", None]
        assert statuses(await at(NOON + 500)) == ["open", None]
        assert statuses(await at(NOON + 1_999)) == ["open", None]
        assert statuses(await at(NOON + 2_000)) == [None, None]
        assert site.tables.instances("room").columns["status"].tolist() == [None, None]

    asyncio.run(scenario())


def test_what_was_known_says_who_told_it_and_how_far_away(site: Site) -> None:
    async def scenario() -> None:
        answer = told("r1", NOON + 100, NOON + 1_000, status="closed", celsius=21.5)
        at = context_at(site.tables, site.ontology, await log_of([answer]))
        (known,) = (await at(NOON + 200)).known("room", "r1")
        assert known.text == "status of r1 = 'closed', warmth of r1 = 21.5 degC"
        assert known.told == (
            "context 'room status': provided by desk, valid until 2026-03-02T12:00:01.000Z, "
            "found 3 hops away, kept at 127.0.0.1:7441"
        )
        assert known.is_known

    asyncio.run(scenario())


def test_what_was_not_known_says_why(site: Site) -> None:
    async def scenario() -> None:
        answer = told("r1", NOON + 100, NOON + 1_000, status="closed")
        later = missing("r1", NOON + 1_100).after(answer)
        channels = await log_of([answer, later, missing("r2", NOON + 1_200)])
        at = context_at(site.tables, site.ontology, channels)
        (early,) = (await at(NOON)).known("room", "r1")
        assert "it had not been asked for" in early.told
        (expired,) = (await at(NOON + 1_050)).known("room", "r1")
        assert expired.text == "nothing was known of r1"
        assert expired.told.endswith("what desk provided was valid until 2026-03-02T12:00:01.000Z")
        then = await at(NOON + 1_300)
        (gone,) = then.known("room", "r1")
        assert (
            "valid until 2026-03-02T12:00:01.000Z; asked at 2026-03-02T12:00:01.100Z" in gone.told
        )
        (never,) = then.known("room", "r2")
        assert never.told.endswith("asked at 2026-03-02T12:00:01.200Z: no valid record was found")
        assert then.known("person", "r1") == []
        (note,) = then.notes(["room"])
        assert note.text.endswith("of 2 asked for nothing was known of 2: r1, r2")

    asyncio.run(scenario())


def test_an_answer_of_long_ago_is_found_behind_many_others(site: Site) -> None:
    async def scenario() -> None:
        old = told("r1", NOON, NOON + 100 * HOUR, status="closed")
        often = [told("r2", NOON + n * HOUR, NOON + n * HOUR + 9, status="on") for n in range(60)]
        at = context_at(site.tables, site.ontology, await log_of([old, *often]))
        assert statuses(await at(NOON + 59 * HOUR)) == ["closed", "on"]
        assert statuses(await at(NOON + 59 * HOUR + 20)) == ["closed", None]

    asyncio.run(scenario())


def test_what_nobody_can_read_is_passed_over(site: Site) -> None:
    async def scenario() -> None:
        channels = await log_of([told("r1", NOON + 1, NOON + HOUR, status="open")])
        odd = make_event(source="labs", id="x", type="odd", time=NOON, data={"table": 5})
        await channels.channel(FOUND_CHANNEL).append([odd])
        at = context_at(site.tables, site.ontology, channels)
        assert statuses(await at(NOON + 2)) == ["open", None]

    asyncio.run(scenario())
