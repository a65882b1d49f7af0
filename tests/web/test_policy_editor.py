"""What a policy editor asks of a node: words, differences, trials over the log. [CN-7]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from support.freezer_site import MINUTE_MS, TOKEN, warm_night, write_freezer_site
from web.conftest import NodeApi

TEXT = {"Content-Type": "text/plain; charset=utf-8"}
WARM = """concepts
  freezer F
situation
  temperature of F above {limit} degC
actions
  tell ana
"""
IN_FORCE = """concepts
  freezer F
conditions
  temperature of F above -12 degC for 2 min
actions
  tell ana
"""


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


@asynccontextmanager
async def cold_store(directory: Path, *, closed: bool = False) -> AsyncIterator[NodeApi]:
    site = load_site(write_freezer_site(directory, closed=closed))
    node = make_node(site, NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            yield NodeApi(node, url)
    finally:
        await node.stop()


async def with_a_warm_night(api: NodeApi) -> int:
    """The time of the node when it was read."""
    now_ms = api.node.clock.now_ms()
    done = await api.call("POST", "/sources/freezers", warm_night(now_ms))
    assert done.status == 200
    events = api.node.channels.channel("events")
    while events.last_position() < 120:
        assert await events.wait_after(events.last_position(), timeout_ms=20_000)
    return now_ms


def test_the_words_of_the_site_have_units_and_sources(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            words = (await api.call("GET", "/ontology")).json()
            [freezer] = [one for one in words["concepts"] if one["name"] == "freezer"]
            assert freezer["attributes"] == [
                {
                    "name": "temperature",
                    "type": "number",
                    "unit": "degC",
                    "sources": ["freezers"],
                },
                {"name": "name", "type": "text", "unit": "", "sources": []},
            ]
            assert words["actions"] == ["tell ana"]
            assert [one["name"] for one in words["relationships"]] == ["inside"]

    run(scenario)


def test_a_trial_gives_the_episodes_of_a_situation_with_begin_and_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            now_ms = await with_a_warm_night(api)
            text = WARM.format(limit=-12).encode()
            tried = (await api.call("POST", "/policies/new/try?days=1", text, TEXT)).json()
            assert (tried["kind"], tried["compared"], tried["is_whole"]) == ("situation", "", True)
            assert tried["readings"] == 120
            [episode] = tried["episodes"]
            assert episode["bindings"] == {"F": "f2"}
            assert episode["begin"] == now_ms - 60 * MINUTE_MS
            assert episode["end"] == now_ms - 40 * MINUTE_MS
            assert episode["change"] == "added"
            assert "new" not in api.node.policy.policies()

    run(scenario)


def test_a_trial_says_what_the_version_in_force_finds_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            await with_a_warm_night(api)
            same = await api.call("POST", "/policies/too-warm/try", IN_FORCE.encode(), TEXT)
            assert [one["change"] for one in same.json()["episodes"]] == ["same"]
            higher = IN_FORCE.replace("-12", "-5").encode()
            gone = (await api.call("POST", "/policies/too-warm/try", higher, TEXT)).json()
            assert gone["counts"] == {"same": 0, "moved": 0, "added": 0, "gone": 1}
            [episode] = gone["episodes"]
            assert (episode["bindings"], episode["change"]) == ({"F": "f2"}, "gone")
            before = await api.call(
                "POST", "/policies/too-warm/try?until=2020-01-01T00:00:00Z", higher, TEXT
            )
            assert (before.json()["readings"], before.json()["episodes"]) == (0, [])

    run(scenario)


def test_a_text_that_does_not_compile_is_not_tried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            wrong = IN_FORCE.replace("temperature", "temprature").encode()
            refused = await api.call("POST", "/policies/too-warm/try", wrong, TEXT)
            assert refused.status == 400
            [problem] = refused.json()["problems"]
            assert (problem["line"], problem["column"]) == (4, 3)
            assert "temperature" in problem["hint"]
            bad = await api.call(
                "POST", "/policies/too-warm/try?until=noon", IN_FORCE.encode(), TEXT
            )
            assert (bad.status, bad.json()["title"]) == (400, "replay.bad_span")

    run(scenario)


def test_a_second_save_based_on_the_same_version_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path) as api:
            base = (await api.call("GET", "/policies/too-warm")).json()["version"]
            address = f"/policies/too-warm?how=replace&expects={base}"
            first, second = IN_FORCE.replace("-12", "-11"), IN_FORCE.replace("-12", "-10")
            assert (await api.call("POST", address, first.encode(), TEXT)).status == 200
            refused = await api.call("POST", address, second.encode(), TEXT)
            assert (refused.status, refused.json()["title"]) == (409, "state.stale_version")
            [problem] = refused.json()["problems"]
            assert "-  temperature of F above -11 degC for 2 min" in problem["excerpt"]
            assert "+  temperature of F above -10 degC for 2 min" in problem["excerpt"]
            compared = await api.call("POST", "/policies/too-warm/compare", second.encode(), TEXT)
            shown = compared.json()
            assert "-11" in shown["difference"]
            assert shown["version"] != base
            new = await api.call("POST", "/policies/new/compare", second.encode(), TEXT)
            assert new.json()["version"] == ""

    run(scenario)


def test_trying_and_comparing_need_an_editor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cold_store(tmp_path, closed=True) as api:
            bearer = TEXT | {"Authorization": f"Bearer {TOKEN}"}
            for act in ("try", "compare"):
                address = f"/policies/too-warm/{act}"
                assert (await api.call("POST", address, b"", bearer)).status == 403
            assert (await api.call("GET", "/ontology", headers=bearer)).status == 200

    run(scenario)
