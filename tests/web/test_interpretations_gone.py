"""What a reload of interpretations says of those that are gone, over HTTP and at the terminal.
[ME-5, ME-6]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from rapport.cli.main import run as command

pytestmark = pytest.mark.slow

DESK = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "lab"
type = "lab station"
[interpretations.lab]
units = { "station.temperature" = "K" }
"""
US = '[interpretations.us]\nunits = { "station.temperature" = "degF" }\n'


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def take_away(api: Any, begin: str, end: str) -> None:
    """A part of the site's file, up to where the next begins."""
    file = api.node.site.directory / "site.toml"
    head, found, rest = file.read_text().partition(begin)
    assert found
    _, _, rest = rest.partition(end)
    file.write_text(f"{head}{end}{rest}")


def test_policies_that_read_by_it_are_named(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            same = (await api.call("POST", "/interpretations/reload")).json()
            assert same == {"interpretations": [], "sources": [], "warnings": []}
            take_away(api, "[sources.cameras]", "[sources.doors]")
            take_away(api, "[interpretations.cameras]", "[interpretations.door-log]")
            done = (await api.call("POST", "/interpretations/reload")).json()
            assert done["interpretations"] == ["cameras"]
            (warning,) = done["warnings"]
            assert "'cameras' is gone, its source 'cameras' is gone, too" in warning
            assert "secure-building" in warning
            again = (await api.call("POST", "/interpretations/reload")).json()
            assert again["warnings"] == []

    run(scenario)


def test_consumers_that_were_told_in_it_are_counted_and_the_terminal_warns(
    served_node: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served_node(site_text=DESK + US) as api:
            events = api.node.channels.channel("events")
            said = [{"key": "s1", "temperature": 298.15}]
            assert (await api.call("POST", "/sources/weather", said)).status == 200
            assert await events.wait_after(0, timeout_ms=10_000)
            path = "/channels/events/events?interpretation=us"
            assert (await api.call("GET", path)).status == 200
            file = api.node.site.directory / "site.toml"
            file.write_text(file.read_text().replace(US, ""))
            site = str(api.node.site.directory)
            asked = ["mediate", "reload", "--site", site, "--url", api.url]
            assert await asyncio.to_thread(command, asked) == 0
            told = capsys.readouterr()
            assert json.loads(told.out)["interpretations"] == ["us"]
            assert "warning: the interpretation 'us' is gone: consumers got an event" in (told.err)
            assert (await api.call("GET", path)).status == 404

    run(scenario)
