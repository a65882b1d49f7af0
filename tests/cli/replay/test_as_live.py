"""`rapport replay --as-live`: what it refuses, and what it says of a log that differs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
NOW = 1_800_000_000_000


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECK, tmp_path / "site"))


async def lived(site: Path) -> None:
    """A node that ran over some readings, one of them late."""
    clock = ManualClock(NOW)
    node = make_node(load_site(site), NodeSettings(port=0), clock)
    await node.meanings.begin()
    await node.fresh_tables.begin()
    await node.policies.begin()
    await node.fresh_tables.settle()
    for id, time_ms in (("a", NOW), ("b", NOW + 9_000), ("c", NOW + 1_000)):
        clock.set_ms(max(time_ms, clock.now_ms()))
        event = make_event(
            source="positions",
            id=id,
            type="person.position",
            subject="person/2",
            time=time_ms,
            data={"key": "2", "value": [5.0, 5.0]},
        )
        await node.channels.channel("events").append([event])
        while await node.policy.step(timeout_ms=0):
            pass
    await node.stop()


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        (["--lateness", "5s"], "--lateness"),
        (["--tables", "now"], "--tables now"),
        (["--changed", "x.dpl"], "--changed"),
        (["--events", "events.csv"], "--events"),
        (["--engine", "spark"], "--engine spark"),
    ],
)
def test_what_would_change_what_live_decided_is_refused(
    site: Path, capsys: pytest.CaptureFixture[str], flags: list[str], wrong: str
) -> None:
    assert run(["replay", "--as-live", "--site", str(site), *flags]) == 2
    assert wrong in capsys.readouterr().err


def test_a_site_that_never_ran_has_nothing_to_repeat(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "--as-live", "--site", str(site)]) != 0
    assert "channel.no_log" in capsys.readouterr().err


def test_it_runs_what_is_on_record_and_says_where_that_differs(
    site: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    asyncio.run(lived(site))
    for name in CHECK.glob("*.dpl"):
        if name.stem != "or":
            (site / name.name).unlink()  # it ran all the same
    assert run(["replay", "--as-live", "--site", str(site)]) == 0
    told = capsysbinary.readouterr()
    assert b'"policy":"followed-by-not"' in told.out
    assert b"1 late and left out" in told.err
    assert b"on record" not in told.err
    assert run(["replay", "--as-live", "--policy", "or", "--site", str(site)]) == 0
    lines = capsysbinary.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith(b'{"policy":"or"') for line in lines)
    file = site / "site.toml"
    file.write_text(file.read_text().replace('lateness = "2s"', 'lateness = "20s"'))
    assert run(["replay", "--as-live", "--site", str(site)]) == 0
    told = capsysbinary.readouterr()
    assert b"detections on record that are not found here: " in told.err
    assert b"late readings on record: 1 differ from those found here" in told.err
