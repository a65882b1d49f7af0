"""Areas, longitudes and latitudes in policies: what a site may declare, and what the operators find
with them, judged by an evaluation that shares no code with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, SiteError
from rapport.kernel.clock import Chance
from rapport.kernel.toml import TomlFile
from rapport.policy import measures, relations
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.explain.geometry import (
    at_distance_on_sphere,
    distance_outside,
    extent,
    moved_point,
)
from rapport.policy.ontology import Ontology, PushSource, Relationship, SiteFunction
from rapport.policy.operators.spatial import Grid, Reach
from rapport.policy.readings import columns_of_data, read_payload
from rapport.policy.recordings.files import read_recorded
from rapport.tables.instances import Instances
from rapport.units import areas, sphere
from support.judge.holding import Reading
from support.judge.trials import Trial, judged, run_any_way
from support.varied.worlds import Pull

WINDOW_MS = 100
SITE = """
[concepts.person.attributes]
position = "point"
[concepts.zone.attributes]
area = "area"
box = "rectangle"
[concepts.truck.attributes]
place = "geo_point"
[concepts.district.attributes]
outline = "geo_area"
"""


def declared(text: str) -> tuple[Ontology, list[str]]:
    ontology, problems = ontology_from_site(TomlFile.parse((SITE + text).encode(), name="site"))
    return ontology, [f"{one.code}: {one.message} ({one.hint})" for one in problems]


# --- what a site declares ---


@pytest.mark.parametrize(
    ("between", "function", "meant"),
    [
        ('["person.position", "zone.box"]', "inside", "inside"),
        ('["person.position", "zone.area"]', "inside", "inside_area"),
        ('["truck.place", "district.outline"]', "inside", "inside_geo_area"),
        ('["person.position", "person.position"]', "near", "within"),
        ('["truck.place", "truck.place"]', "within", "within_geo"),
        ('["truck.place", "truck.place"]', "near", "within_geo"),
    ],
)
def test_a_function_is_chosen_by_the_types_of_its_ends(
    between: str, function: str, meant: str
) -> None:
    text = f'[relationships.is_so]\nbetween = {between}\nfunction = "{function}"\n'
    ontology, problems = declared(text)
    assert problems == []
    assert ontology.relationships["is_so"].function == meant


def test_the_distance_of_longitudes_and_latitudes_is_in_metres() -> None:
    text = '[functions.distance]\nof = ["truck.place", "truck.place"]\nmeasure = "distance"\n'
    ontology, problems = declared(text)
    assert problems == []
    function = ontology.functions["distance"]
    assert (function.measure, function.unit) == ("distance_geo", "m")


def test_ends_of_other_types_are_refused_with_all_that_fits() -> None:
    text = '[relationships.x]\nbetween = ["truck.place", "zone.area"]\nfunction = "inside"\n'
    [told] = declared(text)[1]
    assert told.startswith("ontology.wrong_type: the function 'inside' needs a ")
    assert "or a geo_point and a geo_area, in this order" in told
    text = '[functions.d]\nof = ["truck.place", "person.position"]\nmeasure = "distance"\n'
    [told] = declared(text)[1]
    assert "distance takes a point and a point or a geo_point and a geo_point" in told


def test_an_area_does_not_come_as_events() -> None:
    text = '[sources.s]\nconcept = "zone"\nattribute = "area"\nkey = "zone"\nvalue = ["outline"]\n'
    [told] = declared(text)[1]
    assert told.startswith("ontology.area_as_event: zone.area is an area")


def test_a_latitude_that_is_named_first_is_refused() -> None:
    text = (
        '[sources.s]\nconcept = "truck"\nattribute = "place"\nkey = "truck"\n'
        'value = ["latitude", "longitude"]\n'
    )
    [told] = declared(text)[1]
    assert told.startswith("ontology.latitude_first")
    assert 'write value = ["longitude", "latitude"]' in told


def test_degrees_have_no_unit_of_their_own() -> None:
    [told] = declared('[concepts.truck.units]\nplace = "m"\n')[1]
    assert "longitudes and latitudes are in degrees" in told


# --- readings ---


def data_of(*values: tuple[float, float]) -> list[bytes]:
    return [f'{{"key":"t","value":[{lon},{lat}]}}'.encode() for lon, lat in values]


def test_readings_beyond_the_poles_are_refused_one_by_one_and_as_columns() -> None:
    good, bad = data_of((13.4, 52.5), (-180, 90)), data_of((13.4, 52.5), (52.5, 113.4))
    keys, parts = columns_of_data(pa.array(good, pa.binary()), "geo_point") or (None, [])
    assert keys is not None
    assert [part.to_pylist() for part in parts] == [[13.4, -180.0], [52.5, 90.0]]
    assert columns_of_data(pa.array(bad, pa.binary()), "geo_point") is None
    problem = read_payload(bad[1], "geo_point")
    assert problem.code == "reading.bad_value"
    assert "a latitude is between -90 and 90" in problem.message
    assert not hasattr(read_payload(good[1], "geo_point"), "code")


def test_a_recorded_row_beyond_the_poles_is_refused_at_its_place(tmp_path: Path) -> None:
    ontology, problems = declared(
        '[sources.gps]\nconcept = "truck"\nattribute = "place"\nid = "id"\ntime = "ts"\n'
        'key = "truck"\nvalue = ["lon", "lat"]\nevents = "gps.csv"\n'
    )
    assert problems == []
    file = tmp_path / "gps.csv"
    file.write_text("id,ts,truck,lon,lat\ng1,1,t,13.4,52.5\ng2,2,t,13.4,92.5\n")
    with pytest.raises(SiteError) as refused:
        list(read_recorded(file, ontology.sources["gps"], ontology))
    [problem] = refused.value.problems
    assert (problem.code, problem.line) == ("events.bad_position", 3)
    assert "a latitude is between -90 and 90" in problem.hint


# --- the same in bulk, and indexes that lose nothing ---

GRID = st.integers(0, 6).map(float)
LON = st.one_of(st.floats(-180, 180), st.sampled_from([180.0, -180.0, 179.9999, -179.9999, 0.0]))
LAT = st.one_of(st.floats(-90, 90), st.sampled_from([90.0, -90.0, 89.9999, 0.0]))
AREAS = [
    areas.parse_area(text).text
    for text in (
        "0 0, 6 1, 3 5",
        "CIRCLE (3 3 2)",
        "POLYGON ((0 0, 6 0, 6 6, 0 6), (2 2, 4 2, 4 4))",
        "MULTIPOLYGON (((0 0, 1 0, 1 1)), ((4 4, 6 4, 6 6)))",
    )
]
GEO_AREAS = [
    areas.parse_area(text, geographic=True).text
    for text in (
        "CIRCLE (179.9999 0 5000)",
        "CIRCLE (10 89.99 20000)",
        "POLYGON ((-180 -90, 0 -90, 0 0, -180 0))",
    )
]


def column(*values: object) -> np.ndarray:
    found = np.empty((len(values), 1), object)
    found[:, 0] = values
    return found


@given(st.lists(st.tuples(GRID, GRID, st.sampled_from([*AREAS, None])), min_size=1, max_size=12))
def test_inside_an_area_is_the_same_one_by_one_and_in_bulk(rows: list) -> None:
    points, texts = np.array([row[:2] for row in rows]), column(*(row[2] for row in rows))
    relation = relations.INSIDE_AREA
    many = relation.holds_many(points, texts, None).tolist()
    assert many == [relation.holds(row[:2], (row[2],), None) for row in rows]


@given(st.lists(st.tuples(LON, LAT), min_size=1, max_size=12))
def test_the_grid_finds_every_area_that_contains_a_point(points: list) -> None:
    for relation, known in (
        (relations.INSIDE_AREA, AREAS),
        (relations.INSIDE_GEO_AREA, GEO_AREAS),
    ):
        assert relation.bounds is not None
        texts, places = column(*known), np.array(points)
        rows, found = Grid(relation.bounds(texts)).candidates(places)
        offered = set(zip(rows.tolist(), found.tolist(), strict=True))
        held = {
            (row, number)
            for row, point in enumerate(points)
            for number, text in enumerate(known)
            if relation.holds(point, (text,), None)
        }
        assert held <= offered


@given(st.tuples(LON, LAT), st.floats(-0.02, 0.02), st.floats(-0.02, 0.02), st.floats(0, 3_000))
def test_points_within_reach_on_the_sphere_lie_in_neighbouring_cells(
    first: tuple[float, float], east: float, north: float, metres: float
) -> None:
    lon = math.remainder(first[0] + east, 360.0)
    second = (lon, max(-90.0, min(90.0, first[1] + north)))
    relation = relations.WITHIN_GEO
    both = np.array([first, second])
    many = relation.holds_many(both[:1], both[1:], metres).tolist()
    assert many == [relation.holds(first, second, metres)]
    distance = measures.DISTANCE_GEO
    assert many == [distance.one(first, second) <= metres]
    if many[0]:
        reach = Reach(metres, relation.space)
        here, there = reach.cells(both).tolist()
        assert here - there in reach.around()
        assert len(set(reach.around())) == 27


# --- policies over small worlds ---

CONCEPTS = """concepts
  person A (status='guest')
  person B
  zone Z
  zone Y
conditions
"""


def ontology_of(point: str, area: str, inside: str, near: str, measure: str) -> Ontology:
    parts = ("x", "y") if point == "point" else ("lon", "lat")
    return Ontology(
        concepts={
            "person": {"status": "text", "position": point},
            "zone": {"area": area, "door": point},
        },
        relationships={
            "inside": Relationship("inside", ("person", "position"), ("zone", "area"), inside),
            "near": Relationship("near", ("person", "position"), ("person", "position"), near),
            "leads": Relationship("leads", ("zone", "door"), ("zone", "area"), inside),
        },
        sources={
            "gps": PushSource(
                name="gps",
                concept="person",
                attribute="position",
                key="key",
                value=parts,
                stale_after_ms=300,
            )
        },
        functions={
            "distance": SiteFunction(
                name="distance", of=(("person", "position"),) * 2, measure=measure, unit="m"
            )
        },
    )


FLAT = ontology_of("point", "area", "inside_area", "near", "distance")
ROUND = ontology_of("geo_point", "geo_area", "inside_geo_area", "within_geo", "distance_geo")
STEP_DEGREES = 1e-5
"""About 1.1 m along a meridian, so that lengths of a few metres matter."""

Place = Callable[[float, float], tuple[float, float]]


def flat_place(x: float, y: float) -> tuple[float, float]:
    return x, y


def round_place(x: float, y: float) -> tuple[float, float]:
    """Around the 180th meridian."""
    return math.remainder(180.0 + (x - 3) * STEP_DEGREES, 360.0), -17.0 + y * STEP_DEGREES


def random_area(chance: Chance, place: Place, *, geographic: bool) -> str:
    """A circle, or a polygon on the left of the meridian where there is one."""
    if chance.randint(0, 2) == 0:
        centre = place(chance.randint(0, 6), chance.randint(0, 6))
        return areas.circle(*centre, chance.randint(0, 3), geographic=geographic).text
    widest = 2 if geographic else 6
    while True:
        count = chance.randint(3, 6)
        ring = tuple(place(chance.randint(0, widest), chance.randint(0, 6)) for _ in range(count))
        try:
            return areas.polygons(((ring,),), geographic=geographic).text
        except InvalidInput:
            continue


def random_trial(chance: Chance, *, geographic: bool) -> Trial:
    place = round_place if geographic else flat_place
    names = ["z1", "z2", "z3"]
    zone_areas = np.empty(3, object)
    zone_areas[:] = [random_area(chance, place, geographic=geographic) for _ in names]
    doors = np.array([place(chance.randint(0, 6), chance.randint(0, 6)) for _ in names])
    status = np.array(["guest", "guest", "staff"], object)
    pull = Pull(
        {
            "person": Instances("person", ["p1", "p2", "p3"], {"status": status}),
            "zone": Instances("zone", names, {"area": zone_areas, "door": doors}),
        }
    )
    time, readings = 1_000, []
    for number in range(25):
        time += chance.choice((0, 5, 10, 20, 50, WINDOW_MS))
        value = place(chance.randint(0, 6), chance.randint(0, 6))
        key = chance.choice(("p1", "p2", "p3", "ghost"))
        readings.append(Reading(time, f"e{number}", "person.position", key, value))
    terms = [
        "A is inside Z",
        "B is inside Z",
        "B is inside Y",
        f"A is near {chance.randint(0, 4)} m of B",
        f"distance(A, B) < {chance.randint(1, 4)} m",
    ]

    def term() -> str:
        return chance.choice(("", "", "NOT ")) + chance.choice(terms)

    lines = [chance.choice(terms[:4])]
    kind = chance.randint(0, 4)
    if kind == 0:
        lines.append(f"{term()} FOLLOWED-BY {chance.choice(terms)}")
    elif kind == 1:
        lines.append(f"{chance.choice(terms[:3])} for {chance.randint(1, 200)} ms")
    elif kind == 2:
        state = f"A is near {chance.randint(1, 4)} m of B AND NOT distance(A, B) < 1 m"
        lines = [f"({state}) for {chance.randint(1, 200)} ms"]
    elif kind == 3:
        lines.append(term())
    else:
        lines.append(f"Z is {chance.choice(('', 'not '))}leads Y")
    text = CONCEPTS + "".join(f"  {line}\n" for line in lines) + "actions\n  look\n"
    ontology = ROUND if geographic else FLAT
    return Trial(
        text=text,
        ontology=ontology,
        pull=pull,
        readings=tuple(readings),
        window_ms=WINDOW_MS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("geographic", [False, True])
def test_policies_find_what_the_judge_finds(geographic: bool) -> None:
    found = 0
    for seed in range(24):
        chance = Chance(seed)
        trial = random_trial(chance, geographic=geographic)
        expected = judged(trial)
        assert run_any_way(chance, trial, lateness_ms=60) == expected, trial.text
        found += len(expected.detections)
    assert found > 60


# --- explanations ---


@given(st.sampled_from(AREAS), st.tuples(st.floats(-9, 9), st.floats(-9, 9)))
@example(AREAS[3], (0.07703815055590194, 0.07703815055590194))
def test_a_moved_point_is_where_it_should_be(text: str, point: tuple[float, float]) -> None:
    relation = relations.INSIDE_AREA
    for wanted in (True, False):
        if relation.holds(point, (text,), None) != wanted:
            moved = moved_point(relation, point, (text,), inside=wanted)
            assert moved is not None
            assert relation.holds(moved, (text,), None) == wanted
    assert (distance_outside(relation, point, (text,)) == 0) == relation.holds(point, (text,), None)


@given(st.tuples(LON, st.floats(-80, 80)), st.floats(-0.01, 0.01), st.floats(1, 500))
def test_a_point_is_moved_to_a_distance_on_the_sphere(
    point: tuple[float, float], east: float, metres: float
) -> None:
    other = (math.remainder(point[0] + east, 360.0), point[1] + 0.01)
    for side in (-1, 1):
        moved = at_distance_on_sphere(point, other, metres, side)
        assert moved is not None
        apart = sphere.distance(moved, other)
        assert (apart <= metres) == (side < 0)
        assert apart == pytest.approx(metres, rel=0.02)


def test_the_extent_of_an_area_on_the_sphere_is_in_metres() -> None:
    relation = relations.INSIDE_GEO_AREA
    circle = areas.circle(13.4, 52.5, 500, geographic=True).text
    assert extent(relation, (circle,)) == pytest.approx(1_000, rel=1e-3)
    assert distance_outside(relation, (13.4, 52.51), (circle,)) == pytest.approx(612, abs=1)
