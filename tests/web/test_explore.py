"""Channels explored over HTTP: newest events by condition and time, dead letters for operators, the
ledger as pages and files. [CN-11]
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.event_lookup import TimeRange, find_newest
from rapport.communication.ledger_export import safe_cell
from rapport.core.event import Event, StoredEvent
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.freezer_site import TOKEN, write_freezer_site
from web.conftest import NodeApi

Open = Callable[..., Any]
BOSS = {"Authorization": f"Bearer {TOKEN}"}


def event(number: int, **data: Any) -> dict[str, Any]:
    return {"id": str(number), "source": "s", "type": "seen", "data": {"number": number, **data}}


async def search(api: NodeApi, channel: str, **query: Any) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    answer = await api.call("GET", f"/channels/{channel}/search?{text}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def numbers(found: dict[str, Any]) -> list[int]:
    return [one["data"]["number"] for one in found["events"]]


def test_the_newest_matching_events_come_first_and_the_search_goes_on_before_them(
    served_node: Open,
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            given = [event(n, even=n % 2 == 0) for n in range(1, 1_301)]
            await api.call("POST", "/channels/mine/events", given)
            condition = "data.even%20=%20TRUE"
            page = await search(api, "mine", query=condition, limit=3)
            assert (numbers(page), page["last"]) == ([1_300, 1_298, 1_296], 1_300)
            page = await search(api, "mine", query=condition, limit=3, before=page["next"])
            assert numbers(page) == [1_294, 1_292, 1_290]
            rare = await search(api, "mine", query="data.number%20<%203")
            assert (numbers(rare), rare["next"]) == ([2, 1], 0)
            nothing = await search(api, "mine", query="data.number%20<%200")
            assert (nothing["events"], nothing["next"]) == ([], 0)
            assert nothing["reached"] > 0

    asyncio.run(scenario())


def test_a_mistake_in_a_condition_is_refused_with_its_place(served_node: Open) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("POST", "/channels/mine/events", [event(1)])
            path = "/channels/mine/search?"
            answer = await api.call("GET", f"{path}query=typo%20=%20'x'")
            (problem,) = answer.json()["problems"]
            assert (answer.status, problem["code"]) == (400, "query.unknown_field")
            assert (problem["line"], problem["column"]) == (1, 1)
            assert "'type'" in problem["hint"]
            past = await api.call("GET", f"{path}from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z")
            assert (past.status, past.json()["title"]) == (400, "search.bad_time")
            unknown = await api.call("GET", "/channels/nothing-here/search")
            assert unknown.status == 404

    asyncio.run(scenario())


class TimedChannel:
    """A channel whose events arrived at given times."""

    name = "timed"

    def __init__(self, times: list[int], size: int = 0) -> None:
        self.events = [
            StoredEvent(n, time, Event("s", str(n), "t", "", time, data=b"1" * (size or 1)))
            for n, time in enumerate(times, 1)
        ]

    def last_position(self) -> int:
        return len(self.events)

    async def read_after(self, position: int, *, limit: int = 1_000) -> list[Any]:
        return self.events[position : position + min(limit, 7)]


def test_a_search_keeps_to_the_times_of_arrival_and_to_a_size() -> None:
    async def seen(events: Any) -> Any:
        return events

    async def found(channel: TimedChannel, arrived: TimeRange, **more: int) -> list[int]:
        page = await find_newest(
            *(channel, seen, lambda _one: True, SystemClock()),  # type: ignore[arg-type]
            arrived=arrived,
            before=more.get("before", 0),
            limit=more.get("limit", 100),
        )
        return [one.position for one in page.events] + [page.next]

    async def scenario() -> None:
        minutes = TimedChannel([minute * 60_000 for minute in range(1, 41)])
        some = TimeRange(since=10 * 60_000, until=13 * 60_000)
        assert await found(minutes, some) == [12, 11, 10, 0]
        assert await found(minutes, some, before=12, limit=1) == [11, 11]
        assert await found(minutes, TimeRange(until=3 * 60_000)) == [2, 1, 0]
        large = TimedChannel([1, 2, 3, 4], size=5 * 1024 * 1024)
        assert await found(large, TimeRange()) == [4, 4]
        assert await found(large, TimeRange(), before=4) == [3, 3]

    asyncio.run(scenario())


def test_channels_are_listed_to_those_who_may_read_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_site(tmp_path) as api:
            await api.node.channels.channel("mine").append([])
            warm = [{"freezer": "f1", "time": format_time(1_700_000_000_000), "temperature": -18}]
            assert (await api.call("POST", "/sources/freezers", warm, BOSS)).status == 200
            listed = (await api.call("GET", "/channels", None, BOSS)).json()["channels"]
            raw = next(one for one in listed if one["name"] == "raw.freezers")
            assert (raw["last"], raw["received"] > 0) == (1, True)
            narrow = {"Authorization": f"Bearer {NARROW}"}
            seen = (await api.call("GET", "/channels", None, narrow)).json()["channels"]
            assert [one["name"] for one in seen] == ["raw.freezers"]
            assert (await api.call("GET", "/channels/events/search", None, narrow)).status == 403

    asyncio.run(scenario())


NARROW = "0123456789abcdefXYZ-narrow-token"
OPERATOR = "0123456789abcdefXYZ-operator-token"
_MORE = """
[access.narrow]
token = "file:narrow.token"
subscribe = ["raw.freezers"]
[access.olga]
token = "file:olga.token"
role = "operator"
[access.viktor]
token = "file:viktor.token"
role = "viewer"
"""
VIEWER = "0123456789abcdefXYZ-viewer-token"


@asynccontextmanager
async def closed_site(directory: Path) -> AsyncIterator[NodeApi]:
    """A served node whose callers have different roles."""
    folder = write_freezer_site(directory / "cold", closed=True)
    for name, token in (("narrow", NARROW), ("olga", OPERATOR), ("viktor", VIEWER)):
        (folder / f"{name}.token").write_text(token)
    with (folder / "site.toml").open("a") as file:
        file.write(_MORE)
    node = make_node(load_site(folder), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            yield NodeApi(node, url)
    finally:
        await node.stop()


def test_an_operator_looks_after_dead_letters_and_only_an_admin_publishes_them_anew(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with closed_site(tmp_path) as api:
            olga = {"Authorization": f"Bearer {OPERATOR}"}
            viktor = {"Authorization": f"Bearer {VIEWER}"}
            channels = api.node.channels
            warm = [{"freezer": "f1", "time": format_time(1_700_000_000_000), "temperature": -18}]
            await api.call("POST", "/sources/freezers", warm, BOSS)
            (stored, *_) = await channels.channel("raw.freezers").read_after(0)
            letter = await append_dead_letter(
                channels, "raw.freezers", "gone", stored, ValueError("no"), 3
            )
            assert (await api.call("GET", "/dead-letters", None, viktor)).status == 403
            (shown,) = (await api.call("GET", "/dead-letters", None, olga)).json()
            assert (shown["id"], shown["message"], shown["state"]) == (
                letter,
                "ValueError: no",
                "open",
            )
            again = await api.call("POST", "/dead-letters/replay", {"ids": [letter]}, olga)
            assert again.status == 422
            assert "republish" in again.json()["hint"]
            anew = {"ids": [letter], "republish": True}
            refused = await api.call("POST", "/dead-letters/replay", anew, olga)
            assert (refused.status, refused.json()["title"]) == (403, "access.not_admin")
            refused = await api.call("POST", "/dead-letters/forget", {"ids": [letter]}, viktor)
            assert refused.status == 403
            done = await api.call("POST", "/dead-letters/forget", {"ids": [letter]}, olga)
            assert done.json() == {"letters": [letter]}
            assert (await api.call("GET", "/dead-letters", None, olga)).json() == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_ledger_is_searched_by_person_kind_and_state_and_exported_whole(
    served_node: Open,
) -> None:
    async def scenario() -> None:
        async with served_node(site_text='[peers.zoe]\naddresses = ["inbox:"]\n') as api:
            texts = ["=HYPERLINK(1)", "all is well, really", 'a "quoted"\ntext']
            for number, text in enumerate(texts):
                sent = {
                    "type": "TEST" if number == 1 else "ALARM",
                    "subtype": "X",
                    "sender": "component:ops",
                    "receiver": "peer:zoe",
                    "content": text,
                }
                answer = await api.call("POST", "/messages", [sent])
                assert answer.status in (200, 201, 202), answer.body
            await delivered(api, 3)
            found = await records(api, "person=zoe&kind=ALARM&state=handed")
            assert sorted(one["text"] for one in found) == sorted([texts[0], texts[2]])
            assert {one["sender"] for one in found} == {"component:ops"}
            assert await records(api, "kind=DRILL") == []
            first = (await api.call("GET", "/ledger/records?kind=ALARM&limit=1")).json()
            rest = (
                await api.call("GET", f"/ledger/records?kind=ALARM&after={first['next']}")
            ).json()
            every = await records(api, "kind=ALARM")
            assert first["records"] + rest["records"] == every

            answer = await api.call("GET", "/ledger/records?kind=ALARM&format=csv")
            assert answer.headers["content-type"].startswith("text/csv")
            assert "ledger.csv" in answer.headers["content-disposition"]
            rows = list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))
            assert [row["message"] for row in rows] == [one["message"] for one in every]
            assert {row["text"] for row in rows} == {"'=HYPERLINK(1)", texts[2]}
            assert {row["kind"] for row in rows} == {"ALARM"}
            accepted = {"Accept": "application/vnd.apache.parquet"}
            whole = await api.call("GET", "/ledger/records", None, accepted)
            table = pq.read_table(io.BytesIO(whole.body))
            assert table.num_rows == len(await records(api, ""))
            assert set(table.column("text").to_pylist()) >= set(texts)
            empty = await api.call("GET", "/ledger/records?kind=DRILL&format=parquet")
            assert pq.read_table(io.BytesIO(empty.body)).num_rows == 0
            wrong = await api.call("GET", "/ledger/records?format=xlsx")
            assert (wrong.status, wrong.json()["title"]) == (400, "ledger.bad_format")

    asyncio.run(scenario())


async def records(api: NodeApi, query: str) -> list[dict[str, Any]]:
    answer = await api.call("GET", f"/ledger/records?{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


async def delivered(api: NodeApi, count: int) -> None:
    """Waits until so many messages stand in the inbox."""
    log = api.node.channels.channel("log")
    async with asyncio.timeout(30):
        while len(await records(api, "state=handed&person=zoe")) < count:
            await log.wait_after(log.last_position(), timeout_ms=200)


def test_a_cell_that_a_spreadsheet_would_run_is_marked_as_a_text() -> None:
    assert [safe_cell(text)[0] for text in ("=1", "+1", "-1", "@a", "\t=1", " =1", "\r=1")] == [
        *("'" for _ in range(7))
    ]
    assert safe_cell("a=1") == "a=1"
    assert safe_cell("") == ""
