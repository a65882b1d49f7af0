"""What policies saw of context is on record with its place in the stream: a replay of the log, a
back-test of the lake and why-not judge by it; where nothing is on record they refuse. [PO-2, PO-8,
PO-11, CX-8]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.readonly import open_readonly
from rapport.channel.channel import Channels
from rapport.cli.main import run
from rapport.core.detection import DETECTED
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.node.node import Node
from rapport.policy.explain.why_not import WhyNotQuestion
from rapport.policy.table_history import versions_on_record
from rapport.site.explain import explainer_of
from rapport.site.site import load_site
from support.varied.known_context import SITE, badge, decided, live, living, make_place

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
OK, WRONG = 0, 2
Read = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose node lived twice."""
    place = tmp_path_factory.mktemp("labs")
    live(place)
    return place


def read(place: Path, look: Callable[[Channels], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        channels = open_readonly(place / ".rapport/log", CLOCK)
        try:
            return await look(channels)
        finally:
            await channels.close()

    return asyncio.run(work())


def found_live(place: Path, policy: str) -> list[list[str]]:
    """The causes of what the node found."""

    async def look(channels: Channels) -> list[StoredEvent]:
        return await channels.channel("detections").read_after(0, limit=1_000)

    kept = [one.event.payload() for one in read(place, look) if one.event.type == DETECTED]
    return [[id for _time, id in one["causes"]] for one in kept if one["policy"] == policy]


def said(capsys: Read, *words: str, code: int = OK) -> tuple[str, str]:
    assert run(list(words)) == code
    told = capsys.readouterr()
    return told.out, told.err


def test_what_policies_saw_of_context_is_on_record(lived: Path) -> None:
    versions = read(lived, versions_on_record)
    seen = [dict(one.tables["present"].rows) for one in versions]
    assert seen[0] == {}
    assert {"r1": "closed", "r2": "closed"} in seen
    assert {"r1": "open"} in seen
    assert seen[-1] == {"r1": "closed"}
    rising = [one.place.since for one in versions]
    assert rising == sorted(rising)


@pytest.mark.parametrize("policy", ["closed", "stays"])
def test_a_replay_of_the_log_finds_what_the_node_found(
    lived: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read, policy: str
) -> None:
    monkeypatch.chdir(lived)
    live = found_live(lived, policy)
    assert live
    out, err = said(capsys, "replay", "--from-log", "--policy", policy)
    assert [json.loads(line)["causes"] for line in out.splitlines()] == live
    assert "the tables of then are used" in err


def test_a_back_test_of_the_lake_finds_as_many(
    lived: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    monkeypatch.chdir(lived)
    live = found_live(lived, "closed")
    fired = {id for causes in live for id in causes}
    assert fired >= {"e6", "e9"}
    assert fired.isdisjoint({"e1", "e7", "e8"})
    out, _err = said(capsys, "backtest", "closed", "--json", "--history", ".rapport/lake")
    assert json.loads(out)["tallies"][0]["detections"] == len(live)


def test_why_not_agrees_about_every_reading(lived: Path) -> None:
    site, live = load_site(lived), {id for causes in found_live(lived, "closed") for id in causes}

    async def look(channels: Channels) -> None:
        asking = explainer_of(site, channels)
        for one in await channels.channel("events").read_after(0, limit=1_000):
            who = one.event.payload()["key"]
            answer = await asking.why_not(
                "closed", WhyNotQuestion(at=one.event.time, given={"A": who})
            )
            causes = {id for item in answer.fired for _time, id in item.detection.causes}
            assert (one.event.id in causes) == (one.event.id in live), one.event

    read(lived, look)


def test_with_the_tables_of_now_it_is_refused(
    lived: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    monkeypatch.chdir(lived)
    for command in (
        ("replay", "--from-log", "--policy", "closed", "--tables", "now"),
        ("backtest", "closed", "--history", ".rapport/lake", "--tables", "now"),
    ):
        _out, err = said(capsys, *command, code=WRONG)
        assert "'closed', which reads room.status from context, is not supported" in err


def test_where_nothing_is_on_record_it_is_refused_and_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    make_place(tmp_path)

    async def before(node: Node) -> None:
        await badge(node, "e1", "ann", "r1")
        await decided(node)

    text = SITE[: SITE.index("[tables.present]")] + SITE[SITE.index("[sources.badges]") :]
    (tmp_path / "site.toml").write_text(text)
    for policy in ("closed", "stays"):
        (tmp_path / f"{policy}.dpl").unlink()
    living(tmp_path, before)
    make_place(tmp_path)
    monkeypatch.chdir(tmp_path)
    _out, err = said(capsys, "replay", "--from-log", "--policy", "closed", code=WRONG)
    assert "is not supported by a replay of this log" in err
    assert "nothing is on record of the table 'present'" in err
