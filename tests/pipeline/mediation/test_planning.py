"""Which way events go on Spark, decided without Spark. [ME-14, PI-4]"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rapport.core.errors import UnknownName
from rapport.pipeline.mediation.meanings import Meanings, meanings_of_site
from rapport.pipeline.mediation.operations import NotColumnsError, PayloadField, bare
from rapport.pipeline.mediation.source_plans import explain_mediation, native_plan, ways_of
from rapport.site.site import load_site

SITE = """
[concepts.station.attributes]
temp  = "number"
place = "point"
[concepts.station.units]
temp = "degC"
[tables.masts]
csv = "masts.csv"
key = "id"

[sources.plain]
concept = "station"
attribute = "temp"
interpretation = "plain"
[sources.units-unknown]
concept = "station"
attribute = "temp"
interpretation = "units-unknown"
[sources.called]
concept = "station"
attribute = "temp"
interpretation = "called"
[sources.two-cases]
concept = "station"
attribute = "temp"
interpretation = "two-cases"
[sources.packed]
concept = "station"
attribute = "temp"
interpretation = "packed"
[sources.turning]
concept = "station"
attributes = ["place"]
interpretation = "turning"
type = "Seen"
[sources.rooted]
concept = "station"
attribute = "temp"
key = "key"
value = ["value"]

[interpretations.plain]
time     = { field = "t", format = "epoch_s" }
identity = { field = "who", lookup = { table = "masts", column = "name" } }
value    = { field = ["reading", "temp"], unit = "degF" }
[interpretations.units-unknown]
identity = { field = "who" }
value    = { field = "temp" }
[interpretations.called]
identity = { field = "who" }
value    = { field = "temp", unit = "degC" }
convert  = [{ call = "mysite:shift", take = ["value"], give = ["value"] }]
[interpretations.two-cases]
identity = { field = "temp" }
value    = { field = "Temp", unit = "degC" }
[interpretations.packed]
format   = "msgpack"
identity = { field = "who" }
value    = { field = "temp", unit = "degC" }
[interpretations.turning]
[interpretations.turning.types.Seen]
key   = "text"
place = "Far"
[interpretations.turning.types.Far]
x = "m"
y = "m"
[interpretations.turning.types.Truck]
x = "m"
y = "m"
[interpretations.turning.conversions.moved]
from = "Far"
to   = "Point"
relative-to-absolute = { origin = { kind = "moving", feed = "Truck" } }
[[interpretations.turning.mappings]]
from      = "Seen"
to        = "station"
direction = "in"
"""


@pytest.fixture(scope="module")
def meanings(tmp_path_factory: pytest.TempPathFactory) -> Meanings:
    directory = tmp_path_factory.mktemp("site")
    (directory / "site.toml").write_text(dedent(SITE), encoding="utf-8")
    (directory / "masts.csv").write_text("id,name\na,Anna\n", encoding="utf-8")
    return meanings_of_site(load_site(directory))


def test_every_source_has_a_way_and_a_reason_where_it_is_not_columns(meanings: Meanings) -> None:
    found = {each.source: (each.way, each.why) for each in explain_mediation(meanings)}
    assert found["plain"] == ("native", "")
    assert found["rooted"] == ("native", "")
    assert found["units-unknown"] == ("rows", "temp: its unit is not declared")
    assert found["called"] == ("rows", "convert: the function mysite:shift of the site is called")
    assert found["two-cases"] == ("rows", "payload: names of fields differ by case alone")
    assert found["packed"] == ("rows", "format: events are written as msgpack")
    assert found["turning"] == ("in order", "the conversion moved depends on earlier events")


def test_steps_are_told_with_the_way_they_go(meanings: Meanings) -> None:
    (explained,) = explain_mediation(meanings, ["plain"])
    assert explained.lines() == [
        "plain (plain): native",
        "  native  t: time, epoch_s",
        "  native  who: identity, looked up in masts",
        "  native  reading.temp: number, (x * 5.0 + -160.0) / 9.0",
    ]


def test_a_source_that_nobody_declared_is_named(meanings: Meanings) -> None:
    with pytest.raises(UnknownName, match="plainn"):
        ways_of(meanings, ["plainn"])


def test_python_alone_can_be_asked_for(meanings: Meanings) -> None:
    [way] = ways_of(meanings, ["plain"], native=False)
    assert (way.source, way.kind, way.plan) == ("plain", "rows", None)


def test_a_plan_that_is_no_columns_says_where(meanings: Meanings) -> None:
    with pytest.raises(NotColumnsError) as caught:
        native_plan(meanings, "called")
    assert caught.value.place == "convert"


def test_a_text_is_looked_at_twice_only_where_a_number_could_be_meant() -> None:
    tag = PayloadField(("tag",), "text")
    assert bare(tag, ["E1", "anna"]) == PayloadField(("tag",), "bare")
    for word in ("5", "-1.5", "1e5", "true", "{}", "[1]", ""):
        assert bare(tag, ["E1", word]) == tag


def test_planning_does_not_load_spark() -> None:
    import subprocess

    code = (
        "import sys, rapport.pipeline.mediation.expressions, "
        "rapport.pipeline.mediation.mediated_files, rapport.pipeline.mediation.source_plans; "
        "sys.exit('pyspark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_secure_building_is_mediated_by_columns() -> None:
    directory = Path(__file__).parents[3] / "src/rapport/scenarios/secure_building/site"
    found = explain_mediation(meanings_of_site(load_site(directory)))
    assert {each.source: each.way for each in found} == dict.fromkeys(
        ("readers", "gate", "cameras", "doors"), "native"
    )
    by_python = {
        (each.source, step.place) for each in found for step in each.steps if step.way == "arrow"
    }
    assert by_python == {("cameras", "place")}
