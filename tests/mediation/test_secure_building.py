"""Both feeds of the secure building from site files to readings, with the site's own tables."""

import asyncio
import math

import pytest

from rapport.channel.backends.local import open_memory
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile
from rapport.mediation.config import interpretations_from_site
from rapport.mediation.fields_compiler import check_bindings
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.reader import MediationReader
from rapport.tables.config import tables_from_site
from rapport.tables.tables import Tables

SITE = """
[tables.badges]
csv = "badges.csv"
key = "tag"
[tables.sensors]
csv = "sensors.csv"
key = "id"
[interpretations]
files = ["*.interpretation.toml"]
"""
BADGES = "tag,person\nE200-34,5\nE200-35,5\n"
SENSORS = "id,kind,x_m,y_m,heading_deg\nr7,badge,10.5,3.0,\nc2,camera,20,8.25,90\n"


@pytest.fixture
def site(tmp_path, feeds_text):
    for name, text in {
        "site.toml": SITE,
        "badges.csv": BADGES,
        "sensors.csv": SENSORS,
        "feeds.interpretation.toml": feeds_text,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def load(site):
    file = TomlFile.load(site / "site.toml")
    declared, problems = tables_from_site(file, site, {})
    tables = Tables.load(site, declared, {})
    interpretations, declared = interpretations_from_site(file, site, tables.columns())
    return file, tables, interpretations, [*problems, *declared.problems]


def test_the_feeds_go_through_with_the_sites_own_tables(site, bind, badge, camera, event):
    async def scenario():
        file, tables, interpretations, problems = load(site)
        bindings = [bind("badges", "badge-readers"), bind("cameras", "cameras")]
        assert [*problems, *check_bindings(bindings, interpretations, file)] == []
        channels = open_memory(ManualClock())
        reader = MediationReader(
            channels,
            bindings,
            Repository(ActiveInterpretations(interpretations)),
            ManualClock(),
            lookups=tables,
        )
        await channels.channel("raw.badges").append(
            [event(badge, id="b1"), event(badge | {"reader": "c9"}, id="b2")]
        )
        await channels.channel("raw.cameras").append(
            [event(camera, id="c1"), event(camera | {"cam": "r7"}, id="c2")]
        )
        await reader.lane("badges").step()
        await reader.lane("cameras").step()
        stored = await channels.channel("events").read_after(0)
        return [one.event.payload() for one in stored], [
            one.event.payload() for one in await channels.channel("quarantine").read_after(0)
        ]

    readings, held = asyncio.run(scenario())
    angle, distance = math.radians(121.0), 12.4 * 0.3048
    assert readings[0] == {"key": "5", "value": [11.7, 2.6]}
    assert readings[1]["key"] == "p17"
    assert readings[1]["value"] == pytest.approx(
        [20 + distance * math.sin(angle), 8.25 + distance * math.cos(angle)], abs=1e-12
    )
    assert [(one["reason"], one["raw"]["id"]) for one in held] == [
        ("lookup.unknown", "b2"),
        ("lookup.unknown", "c2"),
    ]
    assert held[1]["message"] == "table 'sensors' has no 'heading_deg' for 'r7'"


def test_a_wrong_column_is_found_before_anything_runs(site):
    path = site / "feeds.interpretation.toml"
    path.write_text(path.read_text().replace('heading = "heading_deg"', 'heading = "heading"'))
    _file, _tables, interpretations, problems = load(site)
    assert sorted(interpretations) == ["badge-readers"]
    assert [(one.file, one.line, one.code) for one in problems] == [
        ("feeds.interpretation.toml", 16, "interpretation.unknown_column")
    ]
