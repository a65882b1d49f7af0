from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.core.errors import Corrupt, InvalidInput, RapportError, UnknownName
from rapport.pipeline.datasource import locations
from rapport.pipeline.datasource.locations import SiteFiles, location_of, spans_of
from rapport.pipeline.datasource.offsets import ChannelSpan, PositionRange
from rapport.pipeline.datasource.rows import ColumnCondition, EventChunk
from rapport.pipeline.datasource.source_options import LocationOptions

Fill = Callable[..., None]


@pytest.fixture(autouse=True)
def fresh_readers() -> None:
    locations._segments.cache_clear()


def read(
    place: SiteFiles, piece: PositionRange, *conditions: ColumnCondition, **how: bool
) -> list[EventChunk]:
    settings = {"bare": False, "passes_damage": False} | how
    with place.opened() as opened:
        return list(opened.chunks(piece, conditions, **settings))


def positions(chunks: list[EventChunk]) -> list[int]:
    return [position for chunk in chunks for position in chunk.positions]


def test_any_piece_of_a_log_is_read_exactly(fill: Fill, log: Path) -> None:
    fill(1, 100)
    place = SiteFiles(str(log))
    for after, through in ((0, 100), (3, 4), (6, 7), (7, 50), (99, 100), (0, 1)):
        chunks = read(place, PositionRange("events", after, through))
        assert positions(chunks) == list(range(after + 1, through + 1))
        events = [event for chunk in chunks for event in chunk.events]
        assert [event.id for event in events] == [f"e{n}" for n in range(after + 1, through + 1)]
        assert all(len(one.received) == len(one.events) == len(one.positions) for one in chunks)


def test_a_log_that_grows_is_read_on(fill: Fill, log: Path) -> None:
    fill(1, 10)
    place = SiteFiles(str(log))
    with place.opened() as opened:
        assert opened.span("events") == ChannelSpan(1, 10)
        fill(11, 30)
        assert opened.span("events") == ChannelSpan(1, 30)
    assert positions(read(place, PositionRange("events", 8, 30))) == list(range(9, 31))


def test_bare_events_have_no_headers(fill: Fill, log: Path) -> None:
    fill(1, 3)
    (chunk,) = read(SiteFiles(str(log)), PositionRange("events", 0, 3), bare=True)
    assert not hasattr(chunk.events[0], "headers")


def test_blocks_of_another_time_are_not_decoded(fill: Fill, log: Path, monkeypatch) -> None:
    fill(1, 70)
    decoded: list[int] = []
    decode = locations.decode_block
    monkeypatch.setattr(
        locations, "decode_block", lambda body: decoded.append(len(body)) or decode(body)
    )
    late = ColumnCondition("received", ">=", 1_772_442_000_000 + 1_000 + 64)
    assert positions(read(SiteFiles(str(log)), PositionRange("events", 0, 70), late)) == list(
        range(64, 71)
    )
    assert len(decoded) == 1


def test_what_retention_let_go_is_passed_over_and_told(fill: Fill, log: Path, capsys) -> None:
    fill(1, 200)
    segments = sorted((log / "logs" / "events").glob("*.log"))
    kept = int(segments[2].stem)
    for segment in segments[:2]:
        segment.with_suffix(".index").unlink()
        segment.unlink()
    place = SiteFiles(str(log))
    with place.opened() as opened:
        assert opened.span("events") == ChannelSpan(kept, 200)
    assert positions(read(place, PositionRange("events", 3, 200))) == list(range(kept, 201))
    assert f"events={kept - 4}" in capsys.readouterr().err


def test_a_damaged_segment_is_named_or_passed_over_when_asked(
    fill: Fill, log: Path, capsys
) -> None:
    fill(1, 200)
    segment = sorted((log / "logs" / "events").glob("*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    place = SiteFiles(str(log))
    with pytest.raises(Corrupt) as caught:
        read(place, PositionRange("events", 0, 200))
    assert caught.value.code == "log.damaged"
    assert str(segment) in caught.value.message
    left = positions(read(place, PositionRange("events", 0, 200), passes_damage=True))
    assert 190 < len(left) < 200
    assert "damage passed over" in capsys.readouterr().err


def test_a_missing_segment_is_damage(fill: Fill, log: Path) -> None:
    fill(1, 200)
    _first, second, third = sorted((log / "logs" / "events").glob("*.log"))[:3]
    second.unlink()
    with pytest.raises(Corrupt) as caught:
        read(SiteFiles(str(log)), PositionRange("events", 0, 200))
    assert f"positions {int(second.stem)} to {int(third.stem) - 1}" in caught.value.message


def test_an_unknown_channel_is_told_with_the_nearest(fill: Fill, log: Path) -> None:
    fill(1, 3)
    fill(1, 3, channel="raw.doors")
    with SiteFiles(str(log)).opened() as opened:
        with pytest.raises(UnknownName, match="evnts") as caught:
            spans_of(opened, ["evnts"], streaming=True)
        assert caught.value.nearest == ("events",)
        assert spans_of(opened, ["events", "detections"], streaming=False) == {
            "events": ChannelSpan(1, 3),
            "detections": ChannelSpan(1, 0),
        }
        assert spans_of(opened, ["raw.readers"], streaming=True) == {
            "raw.readers": ChannelSpan(1, 0)
        }
        with pytest.raises(UnknownName):
            spans_of(opened, ["raw.readers"], streaming=False)


def test_a_directory_that_is_no_site_and_a_site_without_a_log(tmp_path: Path, site: Path) -> None:
    for directory, code in ((tmp_path, "source.no_site"), (site, "channel.no_log")):
        with pytest.raises(InvalidInput) as caught, SiteFiles(str(directory)).opened():
            raise AssertionError
        assert caught.value.code == code


def test_options_say_which_place(tmp_path: Path) -> None:
    assert location_of(LocationOptions(site=str(tmp_path))) == SiteFiles(str(tmp_path))


def site_to_edit(beside: Path) -> Path:
    """A site whose log is in the directory beside it."""
    site = beside / "edited"
    site.mkdir()
    (site / "site.toml").write_text('[node]\ndata = ".."\n')
    return site


def test_a_site_that_is_being_edited_is_taken_as_it_was(
    fill: Fill, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = site_to_edit(tmp_path)
    fill(1, 5)
    place = SiteFiles(str(site))
    with place.opened() as opened:
        assert opened.span("events").last == 5
    (site / "site.toml").write_text("[node\n")
    for _again in range(2):
        with place.opened() as opened:
            assert opened.span("events").last == 5
    assert capsys.readouterr().err.count("taken as it was") == 1
    other = tmp_path / "other"
    other.mkdir()
    (other / "site.toml").write_text("[node\n")
    with pytest.raises(RapportError), SiteFiles(str(other)).opened():
        pass


def test_a_worker_that_finds_a_site_half_written_takes_it_as_the_planner_read_it(
    fill: Fill, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_to_edit(tmp_path)
    fill(1, 5)
    place = SiteFiles(str(site))
    with place.opened():
        said = locations.last_site_settings(str(site))
    assert said is not None
    (site / "site.toml").write_text("[node\n")
    monkeypatch.setattr(locations, "_well_formed", {})  # as in a process that has just begun
    with pytest.raises(RapportError), place.opened():
        pass
    locations.remember_site_settings(str(site), said)
    with place.opened() as opened:
        assert opened.span("events").last == 5
