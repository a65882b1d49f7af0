"""The dangerous goods scene by scene: trackers' words to readings to what headquarters is told."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import SiteError
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.scenarios.dangerous_goods.goods_play import GoodsRun, play, stage, told
from rapport.scenarios.dangerous_goods.goods_scenes import EXPECTED, SECONDS, SITE, reports, scenes
from rapport.site.site import Site, check_site, load_site

START_MS = 1_772_442_000_000

LISTING = """\
concepts
    truck T
    substance A (dangerous='yes')
    substance B (dangerous='yes')
conditions
    A is inside T
    B is inside T
    distance(A, B) < minimumDistance(A, B)
actions
    notify headquarters
"""
"""The logistics listing of the source, word for word."""


@pytest.fixture(scope="module")
def site() -> Site:
    return load_site(SITE)


@pytest.fixture(scope="module")
def readings(site: Site, readings_of: Any) -> list[Event]:
    return list(readings_of(site, reports(START_MS)))


def changed_site(directory: Path, **texts: str) -> Path:
    """A copy of the site with one text of `site.toml` exchanged."""
    copy = directory / "site"
    shutil.copytree(SITE, copy)
    file = copy / "site.toml"
    text = file.read_text(encoding="utf-8")
    assert texts["old"] in text
    file.write_text(text.replace(texts["old"], texts["new"]), encoding="utf-8")
    return copy


def test_the_policy_is_the_listing_of_the_source_and_two_lines_that_keep_it_quiet() -> None:
    lines = (SITE / "dangerous-goods.dpl").read_text(encoding="utf-8").splitlines()
    ours = ["    distinct A, B", "    at most once per 10 min"]
    assert [line for line in lines if line in ours] == ours
    assert [line for line in lines if line not in ours] == LISTING.splitlines()


def test_the_site_has_no_problems_but_a_hint_at_the_substance_that_the_table_leaves_out() -> None:
    (hint,) = check_site(SITE)
    assert hint.severity == "hint"
    assert "'minimumDistance' has no row for sodium-6" in hint.message


def test_both_brands_of_trackers_give_metres_from_the_left_rear_corner(
    readings: list[Event],
) -> None:
    placed = {item.name: (item.x, item.y) for scene in scenes() for item in scene.items}
    seen = {event.payload()["key"]: event.payload()["value"] for event in readings}
    assert seen == {name: pytest.approx(list(place)) for name, place in placed.items()}
    assert {event.time for event in readings} >= {START_MS, START_MS + 5_000}


@pytest.mark.parametrize("batch", [1, 7, 10_000])
def test_headquarters_is_told_of_each_pair_that_is_too_near_once(
    site: Site, readings: list[Event], run_on: Any, batch: int
) -> None:
    found, runner = run_on(site, readings, batch=batch)
    assert runner.late == 0
    assert sorted(told(one) for one in found) == sorted(EXPECTED)


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.title)
def test_a_scene_alone_gets_the_verdict_it_deserves(
    site: Site, readings: list[Event], run_on: Any, scene: Any
) -> None:
    names = {item.name for item in scene.items}
    own = [event for event in readings if event.payload()["key"] in names]
    found, _runner = run_on(site, own)
    expected = [one for one in EXPECTED if names >= set(one[1:3])]
    assert [told(one) for one in found] == expected
    assert bool(expected) != scene.verdict.startswith("nothing")


def test_the_listing_alone_would_tell_every_second(
    readings: list[Event], run_on: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "site"
    shutil.copytree(SITE, copy)
    (copy / "dangerous-goods.dpl").write_text(LISTING, encoding="utf-8")
    found, _runner = run_on(load_site(copy, policies=["dangerous-goods"]), readings)
    assert [told(one) for one in found] == [EXPECTED[0]] * SECONDS


def test_after_ten_minutes_what_still_stands_too_near_is_told_again(
    site: Site, readings_of: Any, run_on: Any
) -> None:
    later = START_MS + 10 * 60_000
    own = readings_of(site, [*reports(START_MS), *reports(later)])
    found, _runner = run_on(site, own)
    times = [one.time for one in found if one.policy == "dangerous-goods"]
    assert len(times) == 2
    assert times[1] - times[0] == 10 * 60_000


def test_inches_taken_for_centimetres_find_what_is_not_there_and_miss_what_is(
    tmp_path: Path, readings_of: Any, run_on: Any
) -> None:
    wrong = load_site(changed_site(tmp_path, old='unit = "in"', new='unit = "cm"'))
    found, _runner = run_on(wrong, readings_of(wrong, reports(START_MS)))
    said = {told(one)[1:] for one in found if one.policy == "dangerous-goods"}
    assert said == {("peroxide-3", "turpentine-3", "t3")}


def test_feet_taken_for_metres_part_what_may_stay_together(
    tmp_path: Path, readings_of: Any, run_on: Any
) -> None:
    wrong = load_site(changed_site(tmp_path, old='unit = "ft"', new='unit = "m"'))
    found, _runner = run_on(wrong, readings_of(wrong, reports(START_MS)))
    said = {told(one)[1:] for one in found if one.policy == "never-together"}
    assert said == {("detonators-7", "fireworks-7", "t7"), ("detonators-7", "lighters-7", "t7")}


def test_metres_are_not_compared_with_a_table_in_feet(tmp_path: Path) -> None:
    mixed = changed_site(
        tmp_path, old='value = "metres"\nunit = "m"', new='value = "metres"\nunit = "ft"'
    )
    with pytest.raises(SiteError) as refused:
        load_site(mixed)
    assert [problem.code for problem in refused.value.problems] == ["policy.wrong_units"]


@pytest.mark.slow
def test_the_play_tells_headquarters_by_mail_once_for_each_pair(tmp_path: Path) -> None:
    async def scenario() -> GoodsRun:
        clock = SystemClock()
        async with stage(tmp_path / "site", clock) as scene:
            return await play(scene, clock, lambda _line: None)

    played = asyncio.run(scenario())
    assert played.as_expected()
    assert played.left_out == 2 * (SECONDS - 1)
    subjects = sorted({subject for _to, subject in played.mails})
    assert subjects == [
        "acid-2 and acetone-2 stand too near each other on truck t2",
        "detonators-7 and fireworks-7 may not be on one truck (t7)",
    ]
