"""Explaining endpoints find deleted events of the log in the node's lake, say so, and say when
there was no time to look. [PO-11, CH-16]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.access.identities import LOCAL
from rapport.channel.channel import Channels
from rapport.channel.event_lookup import CauseNode
from rapport.cli.main import run as command
from rapport.core.detection import DETECTED
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import make_event
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.lake.bronze import export_channels
from rapport.node.history import LONGEST_MS, NOT_FINISHED, History
from rapport.node.node import Node

pytestmark = pytest.mark.slow


class Impatient(SystemClock):
    """A steady clock that stands still for some looks, and then is far ahead."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def steady_ns(self) -> int:
        self.looks -= 1
        return 0 if self.looks >= 0 else 10**15


async def detected_guest(api: Any) -> tuple[str, int]:
    """A guest alone in a room; the id of the detection, and when it was."""
    at = api.node.clock.now_ms()
    body = {"reader": "r1", "tag": "E200-01", "dx": 2.0, "dy": 3.0, "t": format_time(at)}
    assert (await api.call("POST", "/sources/readers", body)).status == 200
    while True:
        answer = await api.call("GET", "/channels/detections/events?wait=10s")
        for one in answer.json()["events"]:
            if one["type"] == DETECTED:
                return one["id"], at


async def export_and_let_go(node: Node, names: list[str]) -> Path:
    """As the exporter and retention do, of everything in some channels."""
    lake = node.site.directory / node.settings.data / "lake"
    await export_channels(node.channels, lake)
    for name in names:
        channel = node.channels.channel(name)
        last = channel.last_position()
        node.channels.parts.log.close_piece(name)  # type: ignore[attr-defined]
        await channel.append([make_event(source="later", id=f"last.{name}", type="other", time=0)])
        channel.trim(last + 1)
        assert channel.first_position() == last + 1
    return lake


def nodes_of(tree: Any) -> Iterator[Any]:
    yield tree
    for cause in tree["causes"]:
        yield from nodes_of(cause)


def is_partial(tree: CauseNode) -> bool:
    return bool(tree.missing) or any(map(is_partial, tree.causes))


def without_places(answer: Any) -> Any:
    """An answer but for what it says about where it was found."""
    if isinstance(answer, list):
        return [without_places(one) for one in answer]
    if isinstance(answer, dict):
        left = ("found_in", "found", "notes")
        return {key: without_places(one) for key, one in answer.items() if key not in left}
    return answer


def test_what_the_log_let_go_of_is_found_in_the_lake_and_that_is_said(
    served_node: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            detection, at = await detected_guest(api)
            asked = [
                f"/explain/{detection}",
                f"/explain/{detection}/why",
                f"/policies/secure-building/why-not?at={at}&who=A%3Dp01&window=60s",
            ]
            before = [(await api.call("GET", path)).json() for path in asked]
            assert all("lake" not in str(answer.get("notes")) for answer in before)
            assert before[2]["fired"]
            lake = await export_and_let_go(api.node, ["events", "raw.readers"])
            after = [(await api.call("GET", path)).json() for path in asked]
            assert without_places(after) == without_places(before)
            places = {one["channel"]: one["found_in"] for one in nodes_of(after[0])}
            assert places == {"detections": "log", "events": "lake", "raw.readers": "lake"}
            assert {one["found_in"] for one in nodes_of(before[0])} == {"log"}
            for answer in after:
                assert "read from the lake" in str(answer["notes"])
            lakes = {one["channel"] for one in after[1]["found"] if one["where"] == "lake"}
            assert lakes == {"events", "raw.readers"}
            await commands_say_it(api, detection, at, capsys)
            await bounded(api.node, lake, detection)

    asyncio.run(asyncio.wait_for(scenario(), 240))


async def commands_say_it(
    api: Any, detection: str, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    site = str(api.node.site.directory)
    why_not = ["why-not", "secure-building", "A=p01", "--at", str(at), "--window", "60s"]
    why_not += ["--site", site, "--url", api.url, "--within"]
    assert await asyncio.to_thread(command, [*why_not, "90s"]) == 0
    assert "secure-building fired" in capsys.readouterr().out
    assert await asyncio.to_thread(command, [*why_not, "10min"]) == 2
    assert "a question may take up to 5min" in capsys.readouterr().err
    asked = ["explain", detection, "--site", site, "--url", api.url]
    assert await asyncio.to_thread(command, asked) == 0
    said = capsys.readouterr().out
    assert "A is inside R" in said
    assert "E200-01" in said
    assert "found in the lake" in said


async def bounded(node: Node, lake: Path, detection: str) -> None:
    """Whenever the time is over: all of it, a part that is called one, or that it is not finished;
    never that there is no such event.
    """

    async def one(channels: Channels) -> int:
        return len(await channels.channel("events").read_after(0))

    shown: set[str] = set()
    for looks in range(3, 40):
        for ask in (lambda h: h.causes(detection, LOCAL), lambda h: h.ask(one)):
            try:
                found, looked = await ask(History(node.channels, lake, Impatient(looks)))
            except Unavailable as error:
                assert error.code == NOT_FINISHED, looks
                shown.add("nothing")
                continue
            if isinstance(found, int):
                assert found == 2, looks
            elif any("not read to its end" in note for note in looked.notes):
                assert is_partial(found), looks
                shown.add("a part")
            else:
                assert not is_partial(found), looks
                shown.add("all")
    assert shown == {"nothing", "a part", "all"}
    with pytest.raises(InvalidInput, match="may take up to"):
        await History(node.channels, lake, SystemClock()).ask(one, within_ms=LONGEST_MS + 1)
