"""Commands that look back use the rows that tables had then: replay, back-test, why-not, on a log
and on a lake. [PO-2, PO-11]
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.cli.main import run
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from support.varied.changing_tables import NOW, Life, living, make_place, people, seen

pytestmark = pytest.mark.slow
Read = pytest.CaptureFixture[str]
OK, NO, WRONG = 0, 1, 2


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ann was a guest at first, then an employee; today she is a guest again. Her lake has all."""
    site = tmp_path / "site"
    site.mkdir()
    make_place(site)
    clock = ManualClock(NOW)

    async def story(life: Life) -> None:
        await life.send(seen("e1", "ann", NOW))
        await life.pass_by(5_000)
        people(site, "employee", "employee", "employee")
        await life.refresh()
        await life.send(seen("e2", "ann", clock.now_ms()))
        await life.pass_by(5_000)
        await life.send(seen("e3", "eve", clock.now_ms()))
        await life.pass_by(5_000)
        people(site, "guest", "employee", "employee")
        await life.refresh()
        await life.send(seen("e4", "ann", clock.now_ms()))
        await life.pass_by(5_000)
        await export_channels(life.node.channels, life.node.site.data_directory / "lake")

    living(site, story, clock)
    monkeypatch.chdir(site)
    return site


def said(capsys: Read, *arguments: str, code: int = OK) -> tuple[str, str]:
    assert run(list(arguments)) == code
    read = capsys.readouterr()
    return read.out, read.err


def causes(lines: str) -> list[str]:
    return [id for line in lines.splitlines() for id in json.loads(line)["causes"]]


def test_a_replay_of_the_log_uses_the_rows_of_then_and_says_so(place: Path, capsys: Read) -> None:
    asked = ("replay", "--from-log", "--policy", "inside")
    out, err = said(capsys, *asked)
    assert causes(out) == ["e1", "e4"]
    assert "the tables of then are used, 3 versions on record" in err
    out, err = said(capsys, *asked, "--tables", "now")
    assert causes(out) == ["e1", "e2", "e4"]
    assert "tables" not in err
    out, _err = said(capsys, *asked, "--tables", "then", "--since", str(NOW + 6_000))
    assert causes(out) == ["e4"]


def test_a_back_test_of_a_lake_uses_the_rows_of_then(place: Path, capsys: Read) -> None:
    asked = ("backtest", "inside", "--json")
    for history in ((), ("--history", ".rapport/lake")):
        out, err = said(capsys, *asked, *history)
        assert json.loads(out)["tallies"][0]["detections"] == 2
        assert "3 versions on record" in err
    out, _err = said(capsys, *asked, "--tables", "now")
    assert json.loads(out)["tallies"][0]["detections"] == 3
    out, _err = said(capsys, "backtest", "inside", "--explain", "--show", "2")
    assert "ann was inside lab" in out


def test_a_lake_apart_from_its_site_is_enough(place: Path, capsys: Read) -> None:
    (place / ".rapport/lake").rename(place.parent / "lake")
    lake = str(place.parent / "lake")
    out, _err = said(capsys, "backtest", "inside", "--json", "--history", lake)
    assert json.loads(out)["tallies"][0]["detections"] == 2
    asked = ("why-not", "inside", "A=ann", "--lake", lake, "--at")
    out, _err = said(capsys, *asked, str(NOW + 5_000), code=NO)
    assert "the recorded rows of that time" in out
    out, _err = said(capsys, *asked, str(NOW), code=OK)
    assert "inside fired" in out


def test_why_not_on_the_log_tells_by_the_rows_of_then(place: Path, capsys: Read) -> None:
    out, _err = said(capsys, "why-not", "inside", "A=ann", "--at", str(NOW + 5_000), code=NO)
    assert "did not fire" in out
    assert "loaded again with other rows, once; this uses the recorded rows of that time" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("replay", "--tables", "then"), "recorded files are read with the tables of now"),
    ],
    ids=["files"],
)
def test_what_does_not_go_together_is_refused(
    place: Path, capsys: Read, arguments: tuple[str, ...], reason: str
) -> None:
    _out, err = said(capsys, *arguments, code=WRONG)
    assert reason in err


def test_rows_of_then_that_are_not_on_record_are_refused_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    make_place(tmp_path)
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        channels = open_embedded(tmp_path / ".rapport/log", ManualClock(NOW))
        await channels.channel("events").append([seen("e1", "ann", NOW)])
        await channels.close()

    asyncio.run(fill())
    asked = ("replay", "--from-log", "--policy", "inside")
    out, err = said(capsys, *asked)
    assert causes(out) == ["e1"]
    assert "tables" not in err
    _out, err = said(capsys, *asked, "--tables", "then", code=WRONG)
    assert "nothing is on record of the tables" in err


def test_rows_that_were_replaced_at_once_end_in_a_replay_what_they_ended_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Read
) -> None:
    site, clock = make_place(tmp_path), ManualClock(NOW)
    live: list[int] = []

    async def story(life: Life) -> None:
        for id, after_ms in (("e1", 0), ("e2", 2_500), ("e3", 3_500)):
            clock.set_ms(NOW + after_ms)
            await life.send(seen(id, "ann", clock.now_ms()))
            if id == "e2":
                for status in ("employee", "guest"):
                    people(site, status, "employee", "guest")
                    await life.refresh()
        await life.pass_by(9_000)
        live.extend(one.time for one in await life.told() if one.policy == "lasting")
        assert len({one.place.since for one in await life.versions()}) == 2

    living(site, story, clock)
    monkeypatch.chdir(site)
    out, _err = said(capsys, "replay", "--from-log", "--policy", "lasting")
    assert [json.loads(line)["time"] for line in out.splitlines()] == live
