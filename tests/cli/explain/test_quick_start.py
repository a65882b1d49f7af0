"""The first minutes with a new site: a reading of last March on a fresh node is explained as what
it was, from the log, from the lake, and from the lake behind a log that let it go. [PO-11, UX-8,
CH-16]
"""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from pathlib import Path

import pytest
from msgspec import convert

from rapport.channel.backends.local import open_embedded
from rapport.cli.local_site import read_channels
from rapport.cli.main import run
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import make_event
from rapport.kernel.clock import SystemClock
from support.faults.rounds import wait_until
from support.processes.node import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("quick-start")]
Read = pytest.CaptureFixture[str]

POSTED = b'{"reader":"r1","tag":"E200-01","dx":1.2,"dy":-0.4,"t":"2026-03-02T09:14:05.210Z"}'


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site after `init`, `up`, and the reading of the page."""
    site = tmp_path_factory.mktemp("quick") / "my-site"
    assert run(["init", str(site), "--template", "secure-building"]) == 0
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        host, port = node.doors
        request = urllib.request.Request(
            f"http://{host}:{port}/sources/readers",
            POSTED,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status < 300
        assert wait_until(lambda: told(site)), "no alarm for the reading of the page"
        node.stop()
    return site


def ask(site: Path, *more: str) -> list[str]:
    asked = ["secure-building", "A=p01", "--at", "2026-03-02T09:14:05Z"]
    return ["why-not", *asked, "--site", str(site), *more]


def told(site: Path) -> bool:
    """Time is moved on by the clock: five seconds without an employee are over at once."""
    found = read_channels(site, lambda channels: channels.channel("detections").read_after(0))
    return any(one.event.type == DETECTED for one in found)


def shown(capsys: Read, command: list[str], code: int = 0) -> str:
    capsys.readouterr()
    assert run(command) == code
    return capsys.readouterr().out


def detection_id(site: Path, capsys: Read) -> str:
    [fired] = json.loads(shown(capsys, ask(site, "--json")))["fired"]
    return convert(fired["detection"], Detection).id()


def test_the_reading_of_the_page_fired_and_nothing_speaks_against_it(
    played: Path, capsys: Read
) -> None:
    answer = shown(capsys, ask(played))
    assert "secure-building fired for A = p01" in answer
    assert "✓ A is inside R" in answer
    assert "Around it" not in answer


def test_the_lake_gives_the_same_text(played: Path, tmp_path: Path, capsys: Read) -> None:
    detection = detection_id(played, capsys)
    site = Path(shutil.copytree(played, tmp_path / "site"))
    exported = json.loads(shown(capsys, ["pipeline", "export", "--site", str(site)]))
    explained = ["explain", detection[:12], "--site", str(site)]
    by_log = shown(capsys, ask(site)), shown(capsys, explained)
    assert "E200-01" in by_log[1]
    lake = ["--lake", exported["lake"]]
    assert (shown(capsys, ask(site, *lake)), shown(capsys, [*explained, *lake])) == by_log
    shutil.rmtree(site / ".rapport" / "log")
    assert (shown(capsys, ask(site, *lake)), shown(capsys, [*explained, *lake])) == by_log


def test_what_the_log_let_go_of_is_read_from_the_lake_and_that_is_said(
    played: Path, tmp_path: Path, capsys: Read
) -> None:
    detection = detection_id(played, capsys)
    site = Path(shutil.copytree(played, tmp_path / "site"))
    lake = json.loads(shown(capsys, ["pipeline", "export", "--site", str(site)]))["lake"]
    explained = ["explain", detection, "--site", str(site)]
    before = shown(capsys, ask(site)), shown(capsys, explained)
    asyncio.run(let_go(site / ".rapport" / "log", ["events", "raw.readers"]))
    after = shown(capsys, ask(site)), shown(capsys, explained)
    for was, now in zip(before, after, strict=True):
        assert now.startswith(was.rstrip("\n"))
        assert f"no longer in the log and was read from the lake {lake}" in now.replace("\n", " ")
    shutil.rmtree(lake)
    assert "no longer in the log" in shown(capsys, explained)


async def let_go(log: Path, names: list[str]) -> None:
    """As retention does, but of everything."""
    channels = open_embedded(log, SystemClock())
    for name in names:
        last = channels.channel(name).last_position()
        channels.parts.log.close_piece(name)  # type: ignore[attr-defined]
        await channels.channel(name).append(
            [make_event(source="later", id="last", type="other", time=0)]
        )
        channels.channel(name).trim(last + 1)
    await channels.close()


def test_a_damaged_file_of_the_lake_is_named(played: Path, tmp_path: Path, capsys: Read) -> None:
    detection = detection_id(played, capsys)
    site = Path(shutil.copytree(played, tmp_path / "site"))
    lake = Path(json.loads(shown(capsys, ["pipeline", "export", "--site", str(site)]))["lake"])
    [file] = (lake / "bronze" / "detections").glob("day=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    command = ["explain", detection, "--site", str(site), "--lake", str(lake)]
    assert run(command) != 0
    assert str(file) in capsys.readouterr().err.replace("\n", "")
