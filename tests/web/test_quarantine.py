"""The endpoints of what is held back: rights, listing, reloading with faults, releasing, mediating
again. [ME-11, ME-16]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rapport.kernel.clock import SystemClock

CAMERA = {"cam": "c2", "face": "p07", "bearing_deg": 0, "dist_ft": 12}
SAID, UNSAID = 'field = "dist_ft", unit = "ft"', 'field = "dist_ft"'


async def until(ask: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = 20) -> Any:
    async with asyncio.timeout(seconds):
        while not holds(found := (await ask()).json()):
            await SystemClock().sleep(20)
    return found


def change(api: Any, old: str, new: str) -> None:
    file = api.node.site.directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


async def say_no_unit(api: Any) -> None:
    change(api, SAID, UNSAID)
    assert (await api.call("POST", "/interpretations/reload")).status == 200


async def see(api: Any, **others: Any) -> None:
    seconds = api.node.clock.now_ms() / 1_000
    answer = await api.call("POST", "/sources/cameras", CAMERA | {"ts": seconds} | others)
    assert answer.status < 300


@pytest.mark.slow
def test_held_mended_released_and_shown(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await say_no_unit(api)
            await see(api)
            await see(api, dist_ft=14)
            listed = await until(
                lambda: api.call("GET", "/quarantine?source=cameras&reason=unit.undeclared"),
                lambda found: bool(found["held"]) and found["held"][0]["count"] == 2,
            )
            assert "always within 12..14" in listed["held"][0]["hint"]
            later = await api.call("GET", "/quarantine?since=2999-01-01T00:00:00Z")
            assert later.json()["held"] == []
            overview = (await api.call("GET", "/overview")).json()
            assert overview["held"] == [
                {"source": "cameras", "reason": "unit.undeclared", "count": 2}
            ]
            change(api, UNSAID, SAID)
            changed = (await api.call("POST", "/interpretations/reload")).json()
            assert changed == {"interpretations": ["cameras"], "sources": [], "warnings": []}
            trial = await api.call("POST", "/quarantine/release", {"dry_run": True})
            assert trial.json()["released"] == 2
            asked = await api.call("POST", "/quarantine/release", {"source": "cameras"})
            id = asked.json()["release"]
            state = await until(
                lambda: api.call("GET", f"/quarantine/releases/{id}"),
                lambda found: found["second_look"] is not None,
            )
            assert (state["released"], state["is_done"]) == (2, True)
            assert (await api.call("GET", "/quarantine")).json() == {
                "held": [],
                "released": {"cameras": 2},
            }
            held = (await api.node.channels.channel("quarantine").read_after(0))[0].event.id
            assert (await api.call("GET", f"/quarantine/{held}")).json()["state"] == "released"
            nothing = await api.call("POST", "/quarantine/release", {})
            assert (nothing.status, nothing.json()["title"]) == (400, "release.nothing_held")

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_reload_with_faults_names_all_and_changes_nothing(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            change(api, SAID, 'field = "dist_ft", unit = "feets"')
            change(api, 'format = "iso8601"', 'format = "iso8602%"')
            refused = await api.call("POST", "/interpretations/reload")
            assert refused.status == 400
            assert len(refused.json()["problems"]) >= 2
            await see(api)
            readings = api.node.channels.channel("events")
            async with asyncio.timeout(20):
                await readings.wait_after(0)

    asyncio.run(scenario())


def test_a_source_of_another_stream_needs_a_new_start(served_node: Callable[..., Any]) -> None:
    more = '[concepts.person.attributes]\nmood = "text"'
    source = '\n[sources.moods]\nconcept = "person"\nattribute = "mood"\nkey = "who"\n'

    async def scenario() -> None:
        async with served_node() as api:
            change(api, "[concepts.person.attributes]", more)
            change(
                api,
                "[interpretations.cameras]",
                source + 'value = ["m"]\n[interpretations.cameras]',
            )
            refused = await api.call("POST", "/interpretations/reload")
            assert refused.status == 400
            assert refused.json()["title"] == "reload.other_streams"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_source_that_was_unbound_is_bound_and_released(served_node: Callable[..., Any]) -> None:
    bound = (
        '[sources.oldcam]\nconcept = "person"\nattribute = "position"\n'
        'interpretation = "cameras"\nkey = "face"\nvalue = ["bearing_deg", "dist_ft"]\n\n'
    )

    async def scenario() -> None:
        async with served_node(site_keys="open_sources = true") as api:
            seconds = api.node.clock.now_ms() / 1_000
            await api.call("POST", "/sources/oldcam", CAMERA | {"ts": seconds})
            await until(
                lambda: api.call("GET", "/quarantine?source=oldcam"),
                lambda found: bool(found["held"]),
            )
            change(api, "[interpretations.cameras]", bound + "[interpretations.cameras]")
            changed = (await api.call("POST", "/interpretations/reload")).json()
            assert changed["sources"] == ["oldcam"]
            id = (await api.call("POST", "/quarantine/release", {})).json()["release"]
            await until(
                lambda: api.call("GET", f"/quarantine/releases/{id}"),
                lambda found: found["released"] == 1,
            )

    asyncio.run(scenario())


def test_looking_and_changing_need_their_rights(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="secret") as api:
            for method, path in (
                ("GET", "/quarantine"),
                ("GET", "/quarantine/x"),
                ("GET", "/quarantine/releases/x"),
                ("POST", "/quarantine/release"),
                ("POST", "/interpretations/again"),
                ("POST", "/interpretations/reload"),
            ):
                assert (await api.call(method, path)).status == 401, path
            shown = {"Authorization": "Bearer secret"}
            assert (await api.call("GET", "/quarantine", headers=shown)).status == 200
            unknown = await api.call("GET", "/quarantine/x", headers=shown)
            assert unknown.status in (400, 404)
            bad = await api.call("POST", "/interpretations/again", {"sauce": "x"}, headers=shown)
            assert (bad.status, bad.json()["title"]) == (400, "request.not_a_request")

    asyncio.run(scenario())


@pytest.mark.slow
def test_without_a_node_the_command_releases_on_the_log(served_node: Callable[..., Any]) -> None:
    async def scenario() -> Any:
        async with served_node() as api:
            await say_no_unit(api)
            await see(api)
            await until(lambda: api.call("GET", "/quarantine"), lambda found: bool(found["held"]))
            change(api, UNSAID, SAID)
            return api.node.site.directory

    site = asyncio.run(scenario())
    with (site / "site.toml").open("a") as file:
        file.write("\n[node]\nport = 9\n")  # nobody listens there
    arguments = ["mediate", "release", "--site", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", *arguments],
        capture_output=True,
        check=True,
    )
    told = msgspec.json.decode(done.stdout)
    assert (told["released"], told["is_done"]) == (1, True)
    assert told["second_look"] is not None


@pytest.mark.slow
def test_mediating_again_corrects_what_was_wrongly_understood(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            change(api, SAID, 'field = "dist_ft", unit = "m"')
            assert (await api.call("POST", "/interpretations/reload")).status == 200
            await see(api)
            async with asyncio.timeout(20):
                await api.node.channels.channel("events").wait_after(0)
            change(api, 'field = "dist_ft", unit = "m"', SAID)
            assert (await api.call("POST", "/interpretations/reload")).status == 200
            asked = await api.call("POST", "/interpretations/again", {"source": "cameras"})
            id = asked.json()["release"]
            state = await until(
                lambda: api.call("GET", f"/quarantine/releases/{id}"),
                lambda found: found["second_look"] is not None,
            )
            assert (state["corrected"], state["unchanged"]) == (1, 0)
            wrong, right = await api.node.channels.channel("events").read_after(0)
            assert right.event.headers["corrects"] == wrong.event.id

    asyncio.run(scenario())
