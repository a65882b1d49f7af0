"""Two nodes whose roots differ: one reads the other as any consumer does, and understands it as any
source. [ME-9, CH-11]
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.federation import links_from_site
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.toml import TomlFile
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import Site, load_site
from rapport.web.app import serving

pytestmark = pytest.mark.slow

BOLOGNA = """
[site]
name = "bologna"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
key = "key"
value = ["temperature"]
[interpretations.for-boston]
units = { "station.temperature" = "degF" }
"""
BOSTON = """
[site]
name = "boston"
[concepts.site.attributes]
heat = "number"
[concepts.site.units]
heat = "degF"
[sources.bologna]
concept = "site"
attribute = "heat"
interpretation = "italian"
[interpretations.italian.types."for-boston station"]
key = "text"
time = { type = "Time", optional = true }
temperature = { type = "degF", optional = true }
[[interpretations.italian.mappings]]
from = "for-boston station"
to = "site"
direction = "in"
rename = { temperature = "heat" }
[links.bologna]
url = "URL"
interpretation = "for-boston"
rename = { events = "raw.bologna" }
"""


def make_site(directory: Path, text: str) -> Site:
    directory.mkdir(exist_ok=True)
    (directory / "site.toml").write_text(text)
    return load_site(directory)


@asynccontextmanager
async def running(directory: Path, text: str) -> AsyncIterator[tuple[Node, str]]:
    node = make_node(make_site(directory, text), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            yield node, url
    finally:
        await node.stop()


def send(url: str, *values: Any) -> None:
    body = json.dumps(list(values)).encode()
    request = urllib.request.Request(f"{url}/sources/weather", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def test_readings_cross_from_one_root_to_another_each_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "bologna", BOLOGNA) as (_there, url):
            await asyncio.to_thread(send, url, {"key": "b1", "temperature": 25.0})
            for first in (0, 1):  # the second time it goes on at the kept place
                text = BOSTON.replace("URL", url)
                async with running(tmp_path / "boston", text) as (here, _):
                    if first:
                        await asyncio.to_thread(send, url, {"key": "b2", "temperature": 100.0})
                    events = here.channels.channel("events")
                    assert await events.wait_after(first, timeout_ms=20_000)
                    found = await events.read_after(0)
                    values = [json.loads(one.event.data) for one in found]
                    assert [(one["key"], one["value"]) for one in values] == [
                        ("b1", [77.0]),
                        ("b2", [212.0]),
                    ][: first + 1]
                    assert {one.event.type for one in found} == {"site.heat"}
                    assert found[0].event.headers["rawchannel"] == "raw.bologna"
                    assert here.channels.channel("raw.bologna").last_position() == first + 1

    asyncio.run(asyncio.wait_for(scenario(), 50))


def test_what_is_sent_has_no_interpretation_of_the_neighbour(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        '[links.x]\nurl = "http://10.0.0.2:8484"\nsend = ["a"]\ninterpretation = "y"\n'
    )
    _links, (problem,) = links_from_site(TomlFile.load(tmp_path / "site.toml"))
    assert (problem.code, problem.line) == ("link.one_way", 4)
