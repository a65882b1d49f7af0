from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport_lab.ensemble.simulation.street_files import (
    read_streets,
    streets_from_geojson,
    streets_from_osm,
)
from support.examples import examples

_OSM = b"""<?xml version="1.0" encoding="UTF-8"?>
<osm version="0.6">
  <bounds minlat="52.5" minlon="13.4" maxlat="52.6" maxlon="13.5"/>
  <node id="1" lat="52.5000" lon="13.4000"/>
  <node id="2" lat="52.5010" lon="13.4000"><tag k="crossing" v="yes"/></node>
  <node id="3" lat="52.5010" lon="13.4010"/>
  <node id="9" lat="52.9" lon="13.9"/>
  <way id="10"><nd ref="1"/><nd ref="2"/><tag k="highway" v="residential"/></way>
  <way id="11"><nd ref="2"/><nd ref="3"/><tag k="highway" v="primary"/>
    <tag k="maxspeed" v="30 mph"/></way>
  <way id="12"><nd ref="3"/><nd ref="1"/><tag k="highway" v="service"/>
    <tag k="oneway" v="-1"/></way>
  <way id="13"><nd ref="1"/><nd ref="9"/><tag k="building" v="yes"/></way>
</osm>"""


def _geojson(*lines: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"type": "FeatureCollection", "features": list(lines), **more}).encode()


def _line(points: Any, kind: str = "LineString", **properties: Any) -> dict[str, Any]:
    geometry = {"type": kind, "coordinates": points}
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def test_streets_come_from_geojson_lines_that_meet_in_common_points() -> None:
    data = _geojson(
        _line([[0, 0], [300, 0], [300, 400]], maxspeed=36),
        _line([[[0, 0], [300, 400]]], "MultiLineString", oneway="yes", maxspeed="72"),
        {"type": "Feature", "geometry": None, "properties": None},
        _line([5, 5], "Point"),
        units="metres",
    )
    streets = streets_from_geojson(data)
    assert streets.places == ((0.0, 0.0), (300.0, 0.0), (300.0, 400.0))
    assert streets.metres == pytest.approx(1_200)
    assert streets.speed(0, 1) == pytest.approx(10)
    assert streets.speed(0, 2) == pytest.approx(20)
    assert streets.speed(2, 0) == 0


def test_streets_come_from_the_ways_of_an_openstreetmap_file() -> None:
    streets = streets_from_osm(_OSM)
    assert len(streets.places) == 3
    assert streets.length(0, 1) == pytest.approx(111.3, rel=0.01)
    assert streets.length(1, 2) == pytest.approx(67.8, rel=0.01)
    assert streets.speed(0, 1) == pytest.approx(30 / 3.6)
    assert streets.speed(1, 2) == pytest.approx(48.28 / 3.6, rel=0.01)
    assert (streets.speed(0, 2) > 0, streets.speed(2, 0)) == (True, 0)


def test_only_the_largest_connected_part_is_kept() -> None:
    data = _geojson(_line([[0, 0], [10, 0], [20, 0]]), _line([[500, 0], [510, 0]]), units="metres")
    assert len(streets_from_geojson(data).places) == 3


def test_the_ending_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "town.osm").write_bytes(_OSM)
    (tmp_path / "town.geojson").write_bytes(_geojson(_line([[13.4, 52.5], [13.41, 52.5]])))
    assert len(read_streets(tmp_path / "town.osm").places) == 3
    assert len(read_streets(tmp_path / "town.geojson").places) == 2
    with pytest.raises(InvalidInput) as refused:
        read_streets(tmp_path / "none.osm")
    assert refused.value.code == "streets.no_file"


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"{", "not JSON"),
        (b"[]", "no object"),
        (b'{"type": "Point"}', "type"),
        (b'{"type": "FeatureCollection"}', "features"),
        (_geojson(_line([[0, 0], [1, "x"]])), "features[0]"),
        (_geojson(_line([[0, 0], [1, 1]]), _line([[0, 0], [200, 1]])), "features[1]"),
        (_geojson(_line([[0, 0], [1, 1]], maxspeed=-5)), "features[0]"),
        (_geojson(_line("abc")), "features[0]"),
        (_geojson(_line([[0, 0], [60, 60]])), "1,000 km"),
        (_geojson(), "no street"),
        (_geojson(_line([[0, 0]])), "no street"),
    ],
    ids=[
        "cut",
        "list",
        "kind",
        "no features",
        "word",
        "far",
        "speed",
        "text",
        "wide",
        "none",
        "dot",
    ],
)
def test_a_bad_geojson_file_is_refused_with_its_place(data: bytes, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        streets_from_geojson(data, name="town.json")
    assert place in str(refused.value)
    assert refused.value.code.startswith("streets.")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((b'lat="52.5000"', b""), "4:"),
        ((b'lon="13.4010"', b'lon="x"'), "6:"),
        ((b'<nd ref="3"/><nd ref="1"/>', b'<nd ref="77"/>'), "77"),
        ((b"<osm ", b"<!DOCTYPE osm [<!ENTITY a 'b'>]><osm "), "document type"),
        ((b"</osm>", b""), "not XML"),
        ((b"osm", b"gpx"), "<osm>"),
        ((b'lon="13.4010"', b'lon="nan"'), "nowhere"),
    ],
    ids=["no lat", "word", "unknown node", "doctype", "cut", "other root", "nan"],
)
def test_a_bad_openstreetmap_file_is_refused_with_its_place(
    change: tuple[bytes, bytes], said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        streets_from_osm(_OSM.replace(*change), name="town.osm")
    assert said in str(refused.value) + refused.value.hint
    assert refused.value.code.startswith("streets.")


@settings(max_examples=examples(80))
@given(st.data())
def test_no_file_does_anything_but_give_streets_or_be_refused(data: st.DataObject) -> None:
    start = data.draw(st.sampled_from([_OSM, _geojson(_line([[1, 2], [3, 4]], maxspeed=30))]))
    broken = bytearray(start)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
        if not broken:
            break
    for read in (streets_from_geojson, streets_from_osm):
        try:
            assert read(bytes(broken)).places
        except InvalidInput as error:
            assert error.code.startswith("streets.")
