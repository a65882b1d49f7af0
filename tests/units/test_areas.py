"""Areas: their texts, what is refused, and which points lie inside, judged by shapely and by an
evaluation with fractions."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.units import areas
from support.examples import examples
from support.judge.areas import lies_in

SMALL = st.integers(0, 5).map(float)
ANY = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
RINGS = st.one_of(
    *(
        st.lists(st.tuples(number, number), min_size=3, max_size=9).map(tuple)
        for number in (SMALL, ANY, SMALL.map(lambda number: number / 10))
    )
)


def nudged(point: tuple[float, float]) -> list[tuple[float, float]]:
    """The point and its nearest neighbours, for which rounding would decide."""
    x, y = point
    return [(nx, ny) for nx in (x, math.nextafter(x, 9e9)) for ny in (y, math.nextafter(y, -9e9))]


def made(ring: areas.Ring) -> areas.Area | None:
    try:
        return areas.polygons(((ring,),))
    except InvalidInput:
        return None


@given(RINGS)
def test_an_outline_is_refused_exactly_when_shapely_finds_it_invalid(ring: areas.Ring) -> None:
    assert (made(ring) is not None) == bool(shapely.Polygon(ring).is_valid)


@given(RINGS, st.lists(st.tuples(SMALL, SMALL), max_size=10))
def test_points_lie_inside_as_shapely_and_fractions_say(
    ring: areas.Ring, others: list[tuple[float, float]]
) -> None:
    area = made(ring)
    if area is None:
        return
    middles = [((a[0] + b[0]) / 2, (a[1] + b[1]) / 2) for a, b in pairwise(ring)]
    points = [*others, *ring, *(near for middle in middles for near in nudged(middle))]
    many = areas.contains_many([area.text] * len(points), np.array(points)).tolist()
    assert many == [areas.contains(area, point) for point in points]
    assert many == [lies_in(point, area.text, geographic=False) for point in points]
    polygon = shapely.Polygon(ring)
    assert many == [bool(polygon.covers(shapely.Point(point))) for point in points]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3), st.data())
def test_holes_and_several_polygons_are_judged_alike(
    corners: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Squares of five that may overlap, each with a hole of two or with none."""
    parts = []
    for x, y in corners:
        outline = ((x, y), (x + 5, y), (x + 5, y + 5), (x, y + 5))
        hole = ((x + 1, y + 1), (x + 3, y + 1), (x + 3, y + 3))
        parts.append((outline, hole) if data.draw(st.booleans()) else (outline,))
    area = areas.polygons(tuple(parts))
    assert areas.parse_area(area.text).text == area.text
    points = [(x / 2, y / 2) for x in range(0, 17, 2) for y in range(1, 17)]
    many = areas.contains_many([area.text] * len(points), np.array(points)).tolist()
    assert many == [lies_in(point, area.text, geographic=False) for point in points]
    union = [shapely.Polygon(part[0], part[1:]) for part in parts]
    assert many == [any(one.covers(shapely.Point(point)) for one in union) for point in points]


@given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=12), SMALL, SMALL, SMALL)
def test_a_circle_is_what_is_within_its_radius(
    points: list[tuple[float, float]], x: float, y: float, radius: float
) -> None:
    area = areas.circle(x, y, radius)
    many = areas.contains_many([area.text] * len(points), np.array(points)).tolist()
    assert many == [areas.contains(area, point) for point in points]
    assert many == [lies_in(point, area.text, geographic=False) for point in points]


@given(st.tuples(st.floats(-180, 180), st.floats(-90, 90)), st.floats(0, 2e7), st.data())
def test_the_bounds_of_a_circle_on_the_sphere_hold_all_its_points(
    centre: tuple[float, float], radius: float, data: st.DataObject
) -> None:
    area = areas.circle(*centre, radius, geographic=True)
    for _ in range(8):
        lon, lat = data.draw(st.floats(-180, 180)), data.draw(st.floats(-90, 90))
        x1, y1, x2, y2 = area.bounds
        if areas.contains(area, (lon, lat), geographic=True):
            assert x1 <= lon <= x2
            assert y1 <= lat <= y2


def test_missing_areas_and_points_contain_nothing() -> None:
    square = areas.rectangle(0, 0, 2, 2).text
    points = np.array([[1.0, 1.0], [math.nan, 1.0], [1.0, 1.0]])
    assert areas.contains_many([square, square, None], points).tolist() == [True, False, False]
    assert areas.contains_many([], np.zeros((0, 2))).tolist() == []
    assert np.isnan(areas.bounds_of([None])).all()


TRIANGLE = "POLYGON ((0 0, 4 0, 4 3, 0 0))"


@pytest.mark.parametrize(
    "text",
    [
        TRIANGLE,
        "polygon((0 0,4 0,4 3))",
        "SRID=25832; POLYGON Z ((0 0 7, 4 0 7, 4 3 7, 0 0 7))",
        "MULTIPOLYGON (((0 0, 4 0, 4 3, 0 0)))",
        '{"type": "Polygon", "coordinates": [[[0, 0], [4, 0, 12.5], [4, 3], [0, 0]]]}',
        '{"type": "Feature", "properties": {}, "geometry":'
        ' {"type": "MultiPolygon", "coordinates": [[[[0, 0], [4, 0], [4, 3], [0, 0]]]]}}',
        "[[0, 0], [4, 0], [4, 3]]",
        "[[[0, 0], [4, 0], [4, 3], [0, 0]]]",
        "[0, 0, 4, 0, 4, 3]",
        "0 0, 4 0, 4 3",
        "(0, 0), (4, 0), (4, 3)",
        "0 0 0 0 4 0 4 3 0 0",
    ],
)
def test_the_same_area_is_read_from_every_form(text: str) -> None:
    assert areas.parse_area(text).text == TRIANGLE


def test_lists_of_points_may_have_a_decimal_comma() -> None:
    assert areas.parse_area("0 0; 0,5 0; 0,5 1", decimal=",").bounds == (0.0, 0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("POLYGON ((0 0, 1 1))", "an outline of 2 different points"),
        ("POLYGON ((0 0, 1 1, 0 0, 1 1))", "the outline touches itself"),
        ("POLYGON ((0 0, 4 4, 4 0, 0 4))", "the outline crosses itself near 4 0"),
        ("POLYGON ((0 0, 9 0, 9 9), (1 1, 8 20, 8 1))", "the outline crosses that of a hole"),
        ("POLYGON ((0 0, 9 0, 9 9), (20 20, 21 20, 21 21))", "a hole is not within its outline"),
        (
            "POLYGON ((0 0, 9 0, 9 9, 0 9), (1 1, 8 1, 8 8, 1 8), (2 2, 3 2, 3 3))",
            "a hole lies in another hole",
        ),
        ("POLYGON EMPTY", "the area is empty"),
        ("POLYGON ((0 0, nan 1, 2 2))", "nan 1 is no point"),
        ("POLYGON ((0 0, 1e300 1, 2 2))", "is no point"),
        ("POLYGON ((0 0, 1 x, 2 2))", "'x' is not a number"),
        ("POLYGON ((0 0, 1 1, 2", "is no area"),
        ("POLYGON ((0 0, (1 1), 2 2))", "is no area"),
        ("LINESTRING (0 0, 1 1)", "LINESTRING is no area"),
        ('{"type": "Point", "coordinates": [1, 2]}', "GeoJSON of type 'Point' is no area"),
        ("[[0, 0], [1, 0], [1, true]]", "is no area"),
        ("[[[[[[", "is no JSON"),
        ("1 2 3", "has 3 numbers, which are no points"),
        ("CIRCLE (1 2)", "is no circle"),
        ("CIRCLE (1 2 -3)", "-3 is no radius"),
        ("", "has 0 numbers"),
    ],
)
def test_what_is_no_area_is_refused_with_a_hint(text: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        areas.parse_area(text)
    assert told in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("POLYGON ((0 0, 4 91, 4 0))", "a latitude is between -90 and 90"),
        ("POLYGON ((52.5 103.4, 52.6 103.4, 52.6 103.5))", "the longitude comes first"),
        ("POLYGON ((200 0, 201 0, 201 1))", "a longitude is between -180 and 180"),
        ("POLYGON ((177 -19, -178 -19, -178 -16, 177 -16))", "cut the area at the 180th meridian"),
        ("CIRCLE (0 95 10)", "a latitude is between -90 and 90"),
        ("SRID=25832; POLYGON ((1 1, 2 1, 2 2))", "SRID 4326"),
    ],
)
def test_longitudes_and_latitudes_have_their_ranges(text: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        areas.parse_area(text, geographic=True)
    assert hint in refused.value.hint


@given(st.text(alphabet='POLYGNCIRE()[]{}",:0123456789.-e ', max_size=40))
def test_any_text_is_an_area_or_refused(text: str) -> None:
    try:
        area = areas.parse_area(text)
    except InvalidInput as error:
        assert error.code == "area.invalid"
    else:
        again = areas.area_of(area.text, False)
        assert (again.text, again.bounds) == (area.text, area.bounds)


def test_an_outline_of_many_points_is_checked_and_asked_in_portions() -> None:
    angles = np.linspace(0, 2 * math.pi, 3_000, endpoint=False)
    ring = [[math.cos(angle) * 9, math.sin(angle) * 9] for angle in angles]
    area = areas.parse_area(json.dumps(ring))
    points = np.array([[0.0, 0.0], [8.9, 0.0], [9.1, 0.0]] * 300)
    assert areas.contains_many([area.text] * 900, points).tolist() == [True, True, False] * 300


def test_the_distance_outside_is_to_the_nearest_border() -> None:
    square = areas.rectangle(0, 0, 4, 4)
    assert areas.distance_outside(square, (2, 2)) == 0
    assert areas.distance_outside(square, (7, 8)) == 5
    assert areas.distance_outside(areas.circle(0, 0, 2), (0, 5)) == 3
    around = areas.rectangle(13.0, 52.0, 13.1, 52.1, geographic=True)
    apart = areas.distance_outside(around, (13.2, 52.05), geographic=True)
    assert apart == pytest.approx(6_839, abs=2)
