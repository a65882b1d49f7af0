"""Things, detections, rates, sources and the overview over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.freezer_site import MINUTE_MS, walk, warm_night, write_freezer_site
from web.conftest import NodeApi

pytestmark = pytest.mark.slow


@asynccontextmanager
async def cold_store(directory: Path) -> AsyncIterator[NodeApi]:
    """A node of the cold store that has mediated a warm night and a walk."""
    node = make_node(load_site(write_freezer_site(directory)), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            api = NodeApi(node, url)
            now_ms = node.clock.now_ms()
            await api.call("POST", "/sources/freezers", warm_night(now_ms))
            await api.call("POST", "/sources/tags", walk(now_ms))
            await api.values("freezer.temperature", 132)
            yield api
    finally:
        await node.stop()


async def detected(api: NodeApi) -> list[dict[str, Any]]:
    channel = api.node.channels.channel("detections")
    for _ in range(100):
        found = (await api.call("GET", "/detections")).json()["detections"]
        if found:
            return list(found)
        await channel.wait_after(channel.last_position(), timeout_ms=200)
    raise AssertionError("nothing was detected")


def test_things_have_present_values_curves_with_limits_and_places_on_the_plan(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path / "site") as api:
            await check_list(api)
            await check_thing(api)
            await check_curve(api)
            await check_plan(api)
            await check_detections(api)
            await check_sources(api)
            await check_overview(api)

    asyncio.run(scenario())


async def check_list(api: NodeApi) -> None:
    whole = (await api.call("GET", "/things")).json()
    counts = {one["name"]: one["count"] for one in whole["concepts"]}
    assert counts == {"freezer": 3, "person": 2, "room": 2}
    assert (whole["total"], whole["complete"]) == (7, True)
    found = (await api.call("GET", "/things?search=FREEZER%202")).json()
    assert [(one["id"], one["name"]) for one in found["things"]] == [("f2", "Freezer 2")]
    part = (await api.call("GET", "/things?concept=freezer&offset=1&limit=1")).json()
    assert (part["total"], [one["id"] for one in part["things"]]) == (3, ["f2"])
    wrong = await api.call("GET", "/things?concept=fridge")
    assert (wrong.status, wrong.json()["title"]) == (404, "name.unknown")


async def check_thing(api: NodeApi) -> None:
    page = (await api.call("GET", "/things/freezer/f2")).json()
    (temperature,) = (one for one in page["thing"]["values"] if one["attribute"] == "temperature")
    assert (temperature["value"], temperature["unit"]) == ([-19.0], "degC")
    assert temperature["source"] == "freezers"
    chain = (await api.call("GET", f"/explain/{temperature['reading']}")).json()
    assert chain["causes"][0]["data"]["id"] == "f2-118"
    assert page["thing"]["heard"] == temperature["time"]
    assert page["policies"] == [{"name": "too-warm", "alias": "F"}]
    quiet = (await api.call("GET", "/things/freezer/f3")).json()
    assert [one["attribute"] for one in quiet["thing"]["values"]] == ["name"]
    assert (await api.call("GET", "/things/freezer/f99")).status == 404


async def check_curve(api: NodeApi) -> None:
    path = "/things/freezer/f2/values?attribute=temperature"
    curve = (await api.call("GET", path)).json()
    assert curve["count"] == len(curve["times"]) == 60
    assert (min(curve["low"]), max(curve["high"])) == (-20.0, -9.5)
    assert curve["limits"] == [{"policy": "too-warm", "operator": ">", "value": -12.0}]
    assert curve["times"] == sorted(curve["times"])
    hour_ago = format_time(api.node.clock.now_ms() - 60 * MINUTE_MS)
    later = (await api.call("GET", f"{path}&from={hour_ago}")).json()
    assert 25 <= later["count"] <= 31
    backwards = await api.call("GET", f"{path}&from={hour_ago}&to=2020-01-01T00:00:00Z")
    assert (backwards.status, backwards.json()["title"]) == (400, "things.bad_time")
    assert (await api.call("GET", "/things/freezer/f2/values?attribute=mass")).status == 404
    moves = (await api.call("GET", "/things/person/p1/values?attribute=position")).json()
    assert (moves["type"], moves["values"][0]) == ("point", [2, 4])


async def check_plan(api: NodeApi) -> None:
    now = (await api.call("GET", "/plan")).json()["placed"]
    assert [one["id"] for one in now if len(one["value"]) == 4] == ["lab", "lobby"]
    (person,) = (one for one in now if len(one["value"]) == 2)
    assert (person["id"], person["value"]) == ("p1", [15.75, 4])
    at = format_time(person["time"] - 30_000)
    then = (await api.call("GET", f"/plan?at={at}")).json()["placed"]
    assert [one["value"] for one in then if len(one["value"]) == 2] == [[8.25, 4]]


async def check_detections(api: NodeApi) -> None:
    (found,) = await detected(api)
    assert (found["policy"], found["kind"]) == ("too-warm", "detected")
    assert found["things"] == [{"alias": "F", "id": "f2", "concept": "freezer"}]
    assert (await api.call("GET", f"/detections/{found['id']}")).json() == found
    assert (await api.call("GET", "/detections/e1")).status == 404
    for query, count in (
        ("policy=too-warm", 1),
        ("policy=other", 0),
        ("concept=freezer&thing=f2", 1),
        ("concept=freezer&thing=f1", 0),
        (f"before={found['position']}", 0),
    ):
        page = (await api.call("GET", f"/detections?{query}")).json()
        assert len(page["detections"]) == count, query


async def check_sources(api: NodeApi) -> None:
    await api.call("POST", "/sources/freezers", [{"freezer": "f1", "temperature": "warm"}])
    await api.node.channels.channel("quarantine").wait_after(0, timeout_ms=10_000)
    freezers, tags = (await api.call("GET", "/sources")).json()["sources"]
    assert (freezers["name"], freezers["readings"], freezers["silent"]) == ("freezers", 120, False)
    assert freezers["period_ms"] == 3_600_000
    assert [(one["reason"], one["count"]) for one in freezers["held"]] == [
        ("value.not_a_number", 1)
    ]
    assert (tags["concept"], tags["attributes"], tags["held"]) == ("person", ["position"], [])


async def check_overview(api: NodeApi) -> None:
    api.node.conditions.begin("adapter.mail", "mail cannot deliver: no server")
    shown = (await api.call("GET", "/overview")).json()
    kinds = [(one["kind"], one["name"]) for one in shown["troubles"]]
    assert kinds == [("delivery", "mail"), ("quarantine", "freezers")]
    assert "temperature is the text 'warm'" in shown["troubles"][1]["text"]
    assert [one["policy"] for one in shown["situations"]] == ["too-warm"]
    rates = {one["channel"]: one for one in (await api.call("GET", "/rates")).json()["rates"]}
    assert sum(rates["events"]["minutes"]) == 132
    assert (len(rates["events"]["minutes"]), sum(rates["quarantine"]["minutes"])) == (60, 1)


SITUATION = """concepts
  freezer F
situation
  temperature of F above -12 degC
actions
  tell ana
"""


def test_an_open_situation_stands_on_the_overview_with_who_looks_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "warm-now.dpl").write_text(SITUATION)
        async with cold_store(tmp_path / "site") as api:
            now_ms = api.node.clock.now_ms()
            readings = [
                {"freezer": name, "temperature": value, "time": format_time(now_ms + after)}
                for after, name, value in ((0, "f3", -4.5), (10, "f1", -18.0), (5_000, "f1", -18.0))
            ]
            await api.call("POST", "/sources/freezers", readings)
            (opened,) = await opened_situations(api)
            assert opened["policy"] == "warm-now"
            assert opened["things"] == [{"alias": "F", "id": "f3", "concept": "freezer"}]
            assert (opened["acknowledged_by"], opened["began"]) == ("", now_ms)
            body = {"bindings": {"F": "f3"}, "by": "ana"}
            done = await api.call("POST", "/policies/warm-now/acknowledge", body)
            assert done.status == 200
            assert (await opened_situations(api, by="ana"))[0]["acknowledged_by"] == "ana"
            path = "/things/freezer/f3/values?attribute=temperature"
            limits = (await api.call("GET", path)).json()["limits"]
            assert {"policy": "warm-now", "operator": ">", "value": -12.0} in limits
            page = (await api.call("GET", "/things/freezer/f3")).json()
            assert {"name": "warm-now", "alias": "F"} in page["policies"]

    asyncio.run(scenario())


async def opened_situations(api: NodeApi, by: str = "") -> list[dict[str, Any]]:
    """The open situations, once there are any and `by` looks after the first."""
    channel = api.node.channels.channel("detections")
    for _ in range(100):
        found = (await api.call("GET", "/overview")).json()["open"]
        if found and found[0]["acknowledged_by"] == by:
            return list(found)
        await channel.wait_after(channel.last_position(), timeout_ms=200)
    raise AssertionError("nothing is open")
