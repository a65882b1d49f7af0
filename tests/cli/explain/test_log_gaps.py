"""Explanations name the damaged and missing parts of the log that they had to read over. [PO-11,
CH-13, CH-14]
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.local_site import data_directory, read_channels
from rapport.cli.main import run
from rapport.core.detection import DETECTED
from rapport.core.times import format_time
from rapport.kernel.clock import ManualClock
from support.varied.changing_tables import NOW, Life, living, make_place, seen

Read = pytest.CaptureFixture[str]
DAMAGED = "are missing: segment damaged (channel events, positions 2 to 2)"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ann, a guest, was seen three times; the log is as it was written."""
    site = tmp_path / "site"
    site.mkdir()
    make_place(site)
    clock = ManualClock(NOW)

    async def story(life: Life) -> None:
        for id in ("e1", "e2", "e3"):
            await life.send(seen(id, "ann", clock.now_ms()))
            await life.pass_by(5_000)

    living(site, story, clock)
    monkeypatch.chdir(site)
    return site


def damage(site: Path) -> None:
    """Flips a byte in the second reading's record."""
    [path] = (data_directory(site) / "log" / "logs" / "events").glob("*.log")
    content = path.read_bytes()
    assert content.count(b"e2") >= 1
    path.write_bytes(content.replace(b"e2", b"e!"))


def out(capsys: Read, *arguments: str, code: int = 0) -> str:
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def why_not(capsys: Read, *more: str, code: int) -> str:
    return out(
        capsys, "why-not", "alone", "A=ann", "--at", format_time(NOW + 5_000), *more, code=code
    )


def first_detection(site: Path) -> str:
    stored = read_channels(site, lambda channels: channels.channel("detections").read_after(0))
    return next(one.event.id for one in stored if one.event.type == DETECTED)


def test_a_sound_log_has_no_gap_in_its_explanations(site: Path, capsys: Read) -> None:
    assert "missing" not in why_not(capsys, code=0)
    assert "missing" not in out(capsys, "explain", first_detection(site))


def test_why_not_names_the_gap_that_may_have_held_the_reading(site: Path, capsys: Read) -> None:
    damage(site)
    between = f"events between {format_time(NOW)} and {format_time(NOW + 10_000)} {DAMAGED}"
    assert between in why_not(capsys, code=1)
    answer = json.loads(why_not(capsys, "--json", code=1))
    [note] = [one for one in answer["notes"] if one["kind"] == "gap"]
    assert note == {
        "kind": "gap",
        "text": between,
        "channel": "events",
        "gap": {"first": 2, "last": 2, "reason": "damaged"},
    }


def test_an_explanation_names_the_gap_beside_what_held(site: Path, capsys: Read) -> None:
    damage(site)
    id = first_detection(site)
    assert DAMAGED in out(capsys, "explain", id)
    [why] = json.loads(out(capsys, "explain", id, "--json"))["why"]
    [gap] = why["gaps"]
    assert gap["gap"] == {"first": 2, "last": 2, "reason": "damaged"}
    assert why["held"]["became"] == "detected"


def test_a_missing_last_segment_is_a_gap_without_an_end(site: Path, capsys: Read) -> None:
    [path] = (data_directory(site) / "log" / "logs" / "detections").glob("*.log")
    path.unlink()
    answer = json.loads(why_not(capsys, "--json", code=0))
    [note] = [one for one in answer["notes"] if one["kind"] == "gap"]
    assert (note["channel"], note["gap"]["reason"]) == ("detections", "missing")
