"""The scenes, without doors or clocks: sensors' words to readings to detections."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.core.event import Event
from rapport.core.times import format_time
from rapport.policy.runner.local import LocalRunner
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.secure_building.building_scenes import (
    EXPECTED,
    EXPECTED_UNDECIDED,
    FEET_PER_METRE,
    SITE,
    BuildingReport,
    BuildingScene,
    reports,
    scenes,
)
from rapport.site.site import Site, check_site, load_site

START_MS = 1_772_442_000_000

LISTING = """\
concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
  A is inside R
  A is not within 5m of B or B is not inside R
actions
  raise alarm
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site as it is played: the reader at the gate promises to be heard."""
    directory: Path = tmp_path_factory.mktemp("building") / "site"
    return load_site(
        prepare_site(
            directory,
            mail_port=1,
            phone_url="http://127.0.0.1:1/",
            answer_within="60s",
            gate_is_watched=True,
        )
    )


@pytest.fixture(scope="module")
def readings(site: Site, readings_of: Any) -> list[Event]:
    return list(readings_of(site, reports(START_MS)))


def alarms(found: Any) -> list[tuple[str, str]]:
    return sorted((one.bindings["A"], one.bindings["R"]) for one in found)


def unsure(runner: LocalRunner) -> list[tuple[str, str, tuple[str, ...]]]:
    undecided = runner.take_undecided()
    return [(one.bindings["A"], one.bindings["R"], one.silent) for one in undecided]


def test_the_site_has_no_problems_and_the_policy_is_the_listing() -> None:
    assert [problem for problem in check_site(SITE) if problem.severity == "error"] == []
    assert (SITE / "secure-building.dpl").read_text(encoding="utf-8") == LISTING


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_only_the_scenes_that_deserve_it_raise_an_alarm(
    site: Site, readings: list[Event], run_on: Any, batch: int
) -> None:
    found, runner = run_on(site, readings, batch=batch)
    assert runner.late == 0
    assert alarms(found) == sorted(EXPECTED)
    assert unsure(runner) == list(EXPECTED_UNDECIDED)


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.title)
def test_a_scene_alone_gets_the_verdict_it_deserves(
    site: Site, readings: list[Event], run_on: Any, scene: BuildingScene
) -> None:
    people = {sighting.person for sighting in scene.sightings}
    own = [event for event in readings if event.payload()["key"] in people]
    assert len(own) == len(scene.sightings)
    gate_lives = any(sighting.sensor == "gate" for sighting in scene.sightings)
    played = site if gate_lives else load_site(SITE)  # alone, nobody hears the gate
    found, runner = run_on(played, own)
    assert alarms(found) == [one for one in sorted(EXPECTED) if one[0] in people]
    assert unsure(runner) == [one for one in EXPECTED_UNDECIDED if one[0] in people]
    verdict = scene.verdict.split(" ")[0]
    assert verdict == ("alarm" if found else "undecided" if gate_lives else "nothing")


def test_the_three_feeds_agree_about_where_and_when_once_they_are_mediated(
    site: Site, readings_of: Any
) -> None:
    at = START_MS + 5_000
    badge = {"reader": "r10", "tag": "E100-19", "dx": 0.0, "dy": 3.7, "t": format_time(at)}
    camera = {"cam": "c3", "track": "t1", "face": "p19", "ts": at / 1_000}
    camera |= {"bearing_deg": math.degrees(math.atan2(17, 7.7)) - 45}
    camera |= {"dist_ft": math.hypot(17, 7.7) * FEET_PER_METRE}
    line = "02.03.2026 10:00:05.000;d1;E100-19;denied"
    said = [
        BuildingReport(at, "readers", badge),
        BuildingReport(at, "cameras", camera),
        BuildingReport(at, "doors", line),
    ]
    made = readings_of(site, said)
    assert {event.time for event in made} == {at}
    assert {event.payload()["key"] for event in made} == {"p19"}
    assert [event.payload()["value"] for event in made] == [pytest.approx([17, 43.7])] * 3


def test_the_log_of_the_doors_read_as_utc_would_be_an_hour_off_and_the_alarm_false(
    readings_of: Any, run_on: Any, tmp_path: Path
) -> None:
    directory = prepare_site(
        tmp_path / "site", mail_port=1, phone_url="http://127.0.0.1:1/", answer_within="60s"
    )
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('%f", zone = "Europe/Berlin"', '%f", zone = "UTC"'))
    site = load_site(directory)
    found, _runner = run_on(site, readings_of(site, reports(START_MS)))
    assert ("p09", "workshop") in alarms(found)


def test_without_its_promise_the_silence_of_the_reader_is_taken_at_its_word(
    readings: list[Event], run_on: Any
) -> None:
    found, runner = run_on(load_site(SITE), readings)
    assert alarms(found) == sorted((*EXPECTED, ("p08", "depot")))
    assert runner.take_undecided() == []


def test_the_camera_that_is_3_s_late_gives_the_verdict_of_a_camera_in_time(
    site: Site, readings: list[Event], run_on: Any
) -> None:
    in_time = sorted(readings, key=lambda event: (event.time, event.id))
    assert in_time != readings
    assert run_on(site, in_time)[0] == run_on(site, readings)[0]


def test_readings_that_arrive_later_than_the_site_waits_are_late(
    readings: list[Event], run_on: Any
) -> None:
    hasty = msgspec.structs.replace(load_site(SITE), lateness_ms=1_000)
    _found, runner = run_on(hasty, readings)
    assert runner.late > 0


def test_an_unknown_face_is_a_guest(site: Site, readings_of: Any) -> None:
    seen = {"cam": "c1", "track": "t7", "face": "unknown", "bearing_deg": 0.0, "dist_ft": 3.0}
    (made,) = readings_of(
        site, [BuildingReport(START_MS, "cameras", {**seen, "ts": START_MS / 1_000})]
    )
    assert made.payload()["key"] == "visitor"
    assert site.tables.lookup("persons", "visitor", "status") == "guest"
