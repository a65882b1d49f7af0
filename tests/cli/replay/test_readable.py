"""`rapport replay --readable` and `--changed`: what a rule found for people to read, and what a
changed one would have found instead. [PO-9, UX-3]
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rapport.cli.main import run

Read = pytest.CaptureFixture[str]
SITE = """
[concepts.station.attributes]
temperature = "number"
wind = "number"
[concepts.station.units]
temperature = "degC"
wind = "m/s"
[sources.temperatures]
concept = "station"
attribute = "temperature"
key = "station"
value = "temperature"
events = "days.csv"
[sources.winds]
concept = "station"
attribute = "wind"
key = "station"
value = "wind"
events = "days.csv"
[peers.chief]
addresses = ["inbox:"]
[actions."call"]
send_to = "peer:chief"
text = "hot"
"""
HOT = """concepts
  station S
conditions
  temperature of S above 30 degC
  at most once per 1 day
actions
  call
"""
LASTING = """concepts
  station S
conditions
  (temperature of S above 30 degC and wind of S above 5 m/s) for 2 hours
actions
  call
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Ten days; from the third to the fifth it is hot in the afternoon."""
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "hot.dpl").write_text(HOT)
    rows = ["id,time,station,temperature,wind"]
    for hour in range(240):
        day, clock = hour // 24 + 1, hour % 24
        warm = 20 + (day if 12 <= clock < 16 and 3 <= day <= 5 else 0) * 3
        rows.append(f"e{hour},2026-03-{day:02}T{clock:02}:00:00Z,hill,{warm + 0.5},8")
    (tmp_path / "days.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def said(capsys: Read, site: Path, *arguments: str) -> tuple[str, str]:
    assert run(["replay", "--site", str(site), *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_people_see_when_who_and_because_of_what(site: Path, capsys: Read) -> None:
    out, err = said(capsys, site, "--readable")
    assert out.splitlines() == [
        "480 events, 2026-03-01 00:00:00 to 2026-03-10 23:00:00 (UTC)",
        "",
        "hot  2 detections",
        "  2026-03-04 12:00:00  S = hill  temperature of hill = 32.5 degC",
        "  2026-03-05 12:00:00  S = hill  temperature of hill = 35.5 degC",
        "  per day  ···██·····  at most 1",
        "  6 left out, at most once per 24 h",
    ]
    assert err == "2 detections in 480 events\n"


def test_values_are_told_with_how_long_before_they_were(site: Path, capsys: Read) -> None:
    (site / "hot.dpl").write_text(LASTING)
    out, _err = said(capsys, site, "--readable", "--show", "1")
    lines = out.splitlines()
    values = "temperature of hill = 32.5 degC, wind of hill = 8 m/s (-2 h)"
    assert f"  2026-03-04 14:00:00  S = hill  {values}" in lines
    assert "  and 1 more, see --show" in lines


def test_times_are_those_of_the_zone_that_was_asked_for(site: Path, capsys: Read) -> None:
    out, _err = said(capsys, site, "--readable", "--zone", "America/Sao_Paulo")
    assert "2026-03-04 09:00:00  S = hill" in out
    assert "(America/Sao_Paulo)" in out


def test_an_unknown_zone_is_refused(site: Path, capsys: Read) -> None:
    assert run(["replay", "--site", str(site), "--readable", "--zone", "Mars/Base"]) == 2
    assert "cli.bad_zone" in capsys.readouterr().err


def test_what_is_undecided_is_told_with_who_was_silent(site: Path, capsys: Read) -> None:
    text = SITE.replace("[sources.winds]", '[sources.winds]\nperiod = "1min"')
    before, winds, after = text.partition("[sources.winds]")
    (site / "site.toml").write_text(before + winds + after.replace("days.csv", "winds.csv"))
    (site / "hot.dpl").write_text(
        HOT.replace("  at most once per 1 day", "  NOT wind of S above 5 m/s")
    )
    (site / "days.csv").write_text("id,time,station,temperature\ne1,300000,hill,35\n")
    (site / "winds.csv").write_text("id,time,station,wind\nw1,0,hill,2\nw2,400000,hill,2\n")
    out, _err = said(capsys, site, "--readable")
    assert "hot  0 detections" in out
    assert "1 undecided, since nothing came from winds" in out


def test_the_text_goes_into_a_file_too(site: Path, tmp_path: Path, capsys: Read) -> None:
    out = tmp_path / "found.txt"
    assert said(capsys, site, "--readable", "--out", str(out))[0] == ""
    assert "2026-03-04 12:00:00  S = hill" in out.read_text(encoding="utf-8")


def test_a_year_and_a_moment_fit_into_a_line(site: Path, capsys: Read) -> None:
    (site / "hot.dpl").write_text(HOT.replace("  at most once per 1 day\n", ""))
    head = "id,time,station,temperature,wind\n"
    (site / "days.csv").write_text(head + "a,2026-01-01,hill,35,1\nb,2026-12-31,hill,35,1\n")
    out, _err = said(capsys, site, "--readable")
    assert f"  per week  █{'·' * 51}█  at most 1" in out
    (site / "days.csv").write_text(head + "a,0,hill,35,1\nb,1,hill,35,1\nc,7200000,hill,35,1\n")
    out, _err = said(capsys, site, "--readable")
    assert "1970-01-01 00:00:00.001  S = hill" in out
    assert "  per hour  █·▄  at most 2" in out


def test_what_only_one_version_finds_is_listed(
    site: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    other = tmp_path / "tried"
    other.mkdir()
    (other / "hot.dpl").write_text(HOT.replace("30 degC", "29 degC"))
    assert run(["replay", "--site", str(site), "--changed", str(other / "hot.dpl")]) == 0
    captured = capsysbinary.readouterr()
    assert [json.loads(line) for line in captured.out.splitlines()] == [
        {
            "policy": "hot",
            "found_by": "changed",
            "time": 1772539200000,
            "bindings": {"S": "hill"},
            "causes": ["e60"],
        }
    ]
    assert captured.err == b"2 detections, 3 by hot.dpl, in 480 events\n"


def test_the_difference_for_people(site: Path, tmp_path: Path, capsys: Read) -> None:
    other = tmp_path / "stricter.txt"
    other.write_text(HOT.replace("30 degC", "33 degC"))
    out, _err = said(capsys, site, "--policy", "hot", "--changed", str(other), "--readable")
    assert out.splitlines()[2:] == [
        "hot  1 found by both, 1 by the site's version alone (-), 0 by stricter.txt alone (+)",
        "  - 2026-03-04 12:00:00  S = hill  temperature of hill = 32.5 degC",
    ]


def test_the_same_policy_makes_no_difference(site: Path, capsys: Read) -> None:
    shutil.copy(site / "hot.dpl", site / "hot.txt")
    out, _err = said(capsys, site, "--policy", "hot", "--changed", str(site / "hot.txt"))
    assert out == ""


@pytest.mark.parametrize(
    ("name", "text", "wanted", "code"),
    [
        ("hott.dpl", HOT, 2, "policy.unknown"),
        ("hot.txt", HOT.replace("temperature", "temperatur"), 1, "hot.txt:4"),
        ("hot.txt", None, 1, "policy.unreadable"),
    ],
)
def test_a_changed_policy_that_cannot_be_tried_is_refused(
    site: Path, tmp_path: Path, capsys: Read, name: str, text: str | None, wanted: int, code: str
) -> None:
    other = tmp_path / "tried" / name
    other.parent.mkdir()
    if text is not None:
        other.write_text(text)
    assert run(["replay", "--site", str(site), "--changed", str(other)]) == wanted
    assert code in capsys.readouterr().err


WARM = """concepts
  station S
situation
  temperature of S above 30 degC for 1 h
cleared by
  temperature of S below 25 degC
actions
  call
"""


@pytest.fixture
def warm(site: Path) -> Path:
    """The same days, watched by a situation."""
    (site / "hot.dpl").write_text(WARM)
    return site


def test_a_situation_is_one_line_from_its_beginning_to_its_end(warm: Path, capsys: Read) -> None:
    out, err = said(capsys, warm, "--readable")
    assert out.splitlines()[1:] == [
        "",
        "hot  2 situations, 6 h in all",
        "  2026-03-04 13:00:00  S = hill  for 3 h  temperature of hill = 32.5 degC",
        "  2026-03-05 13:00:00  S = hill  for 3 h  temperature of hill = 35.5 degC",
        "  per day  ···██·····  at most 1",
    ]
    assert err == "2 situations began, 2 ended in 480 events\n"


def test_a_situation_without_an_end_is_still_open(warm: Path, capsys: Read) -> None:
    (warm / "hot.dpl").write_text(WARM.replace("below 25 degC", "below 10 degC"))
    out, err = said(capsys, warm, "--readable")
    assert "hot  1 situation\n" in out
    assert "  2026-03-04 13:00:00  S = hill  still open  temperature" in out
    assert err == "1 situation began, 0 ended in 480 events; 1 still open\n"


def test_detections_and_situations_are_counted_each(warm: Path, capsys: Read) -> None:
    (warm / "once.dpl").write_text(HOT)
    _out, err = said(capsys, warm)
    assert err == "2 detections, 2 situations began, 2 ended in 480 events\n"


def test_a_lower_limit_finds_the_same_situations_earlier_and_one_more(
    warm: Path, capsys: Read
) -> None:
    (warm / "changed.dpl").write_text(WARM.replace("above 30 degC", "above 29 degC"))
    changed = ("--policy", "hot", "--changed", str(warm / "changed.dpl"))
    out, err = said(capsys, warm, *changed, "--readable")
    assert out.splitlines()[2:] == [
        "hot  2 found by both, 0 by the site's version alone (-), 1 by changed.dpl alone (+)",
        "  + 2026-03-03 13:00:00  S = hill  for 3 h  temperature of hill = 29.5 degC",
    ]
    assert err == "2 situations, 3 by changed.dpl, in 480 events\n"
    [line] = map(json.loads, said(capsys, warm, *changed)[0].splitlines())
    assert (line["found_by"], line["bindings"]) == ("changed", {"S": "hill"})


def test_a_situation_and_the_conditions_it_replaces_find_the_same_where_they_meet(
    warm: Path, capsys: Read
) -> None:
    (warm / "changed.dpl").write_text(HOT.replace("  at most once per 1 day\n", ""))
    out, _err = said(
        capsys, warm, "--policy", "hot", "--changed", str(warm / "changed.dpl"), "--readable"
    )
    assert "hot  2 found by both, 0 by the site's version alone (-), 2 by changed.dpl" in out
