"""Every kind of conversion does what a second, independent reading of it does, on good values and
bad. [ME-4, ME-8]
"""

import math
import os
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Enumeration,
    How,
    UnitChange,
    converts,
)
from rapport.mediation.conversion.currencies import ChangeCurrency, RateEvents, RateTable
from rapport.mediation.conversion.lookups import ContextLookup, ConversionEnvironment, TableLookup
from rapport.mediation.conversion.notations import (
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.conversion.places import (
    FixedOrigin,
    MovingOrigin,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.interpretations.model import (
    Interpretation,
    MergeAttributes,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type
from support.examples import examples
from support.judge.mediation import Judge
from support.judge.mediation_conversions import World

EXAMPLES = int(os.environ.get("RAPPORT_MEDIATION_EXAMPLES", examples(100)))

SENSORS = [
    {"id": "r1", "x": "10.5", "y": "-3", "heading": "90", "name": "door", "open": "yes", "n": "7"},
    {"id": "r2", "x": "0", "y": "1e3", "heading": "-45.5", "name": "", "open": "no", "n": "7.5"},
    {"id": "r3", "x": "1", "y": "", "heading": "0", "name": "gate", "open": "maybe", "n": "x"},
]
RATES = [
    {"id": "1", "currency": "USD", "rate": "1.25", "valid_from": "2026-01-01"},
    {"id": "2", "currency": "USD", "rate": "1.5", "valid_from": "2026-03-01T12:00"},
    {"id": "3", "currency": "BRL", "rate": "6", "valid_from": "2026-02-01"},
]
TOLD: list[tuple[str, Any]] = [
    ("Truck", {"who": "t1", "x": 5.0, "y": 6.0, "looks": 30.0}),
    ("Truck", {"who": "t2", "x": -100, "y": 2, "looks": 0}),
    ("Truck", {"who": "t1", "x": 7.5, "y": 6.25, "looks": 180.0}),
    ("Course", {"currency": "USD", "rate": 1.1, "time": 1_000}),
    ("Course", {"currency": "USD", "rate": 1.2, "time": 5_000}),
    ("Course", {"currency": "GBP", "rate": 0.8, "time": 3_000}),
]
PRESENT = {("room", "a", "temperature"): [21.5], ("room", "a", "place"): [1.0, 2.0]}


class Tables:
    """The same rows as the judge sees, asked as a site's tables are."""

    def __init__(self) -> None:
        self.known = {"sensors": SENSORS, "rates": RATES}

    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        row = next((row for row in self.known[table] if row["id"] == key), None)
        return (row[column] or None) if row else None

    def rows(self, table: str, columns: Any) -> list[tuple[str, ...]]:
        return [tuple(row[column] for column in columns) for row in self.known[table]]


class Present:
    def value(self, concept: str, key: str, attribute: str) -> Any:
        return PRESENT.get((concept, key, attribute))


def numbers(*names: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(name, "number") for name in names)


TYPES: tuple[Type, ...] = (
    PrimitiveType("Time", "integer"),
    ComplexType("Polar", (*numbers("bearing", "distance"), Attribute("who", "text"))),
    ComplexType("Point", (*numbers("x", "y"), Attribute("who", "text", optional=True))),
    ComplexType("LatLon", numbers("lat", "lon")),
    ComplexType(
        "Money", (*numbers("amount"), Attribute("currency", "text"), Attribute("at", "Time"))
    ),
    ComplexType("DateAndTime", (Attribute("day", "text"), Attribute("hour", "text"))),
    ComplexType("Door", (Attribute("name", "text"), Attribute("open", "boolean"))),
    ComplexType("Key", (Attribute("key", "text"),)),
    ComplexType("Truck", (Attribute("who", "text"), *numbers("x", "y", "looks"))),
    ComplexType(
        "Course", (Attribute("currency", "text"), *numbers("rate"), Attribute("time", "Time"))
    ),
)
LENGTHS = st.sampled_from(("m", "ft", "km", "mi"))
ANGLES = st.sampled_from(("deg", "rad", "gon"))
FORMS = st.sampled_from(("decimal", "dms", "nmea"))
AXES = st.sampled_from(("latitude", "longitude"))
DECIMALS = st.sampled_from(("point", "comma"))
ZONES = st.sampled_from(("Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "UTC"))
PATTERNS = ("%d/%m/%Y %H:%M", "%Y-%m-%dT%H:%M:%S%z", "%d.%m.%Y, %H:%M:%S")


@st.composite
def origins(draw: st.DrawFn) -> Any:
    unit, turn = draw(LENGTHS), draw(ANGLES)
    which = draw(st.integers(0, 3))
    if which == 0:
        x, y = draw(st.floats(-1e4, 1e4)), draw(st.floats(-1e4, 1e4))
        return FixedOrigin(x, y, draw(st.floats(-400, 400)), unit, turn)
    if which == 1:
        heading = draw(st.sampled_from(("", "heading")))
        return TableOrigin("sensors", "who", heading=heading, unit=unit, heading_unit=turn)
    if which == 2:
        return MovingOrigin("Truck", "who", "who", heading="looks", unit=unit, heading_unit=turn)
    return MovingOrigin("Course", x="rate", y="rate")  # of one thing only: the last that was told


@st.composite
def place_kinds(draw: st.DrawFn) -> Conversion:
    unit, to_unit, turn = draw(LENGTHS), draw(LENGTHS), draw(ANGLES)
    latitude, longitude = draw(st.floats(-80, 80)), draw(st.floats(-180, 180))
    how, argument, result = draw(
        st.sampled_from(
            (
                (ToCartesian(angle_unit=turn, unit=unit, to_unit=to_unit), "Polar", "Point"),
                (ToPolar(angle_unit=turn, unit=unit, to_unit=to_unit), "Point", "Bare"),
                (ToPlan(latitude, longitude, 150_000.0, to_unit=to_unit), "LatLon", "Point"),
                (ToLatLon(latitude, longitude, 150_000.0, unit=unit), "Point", "LatLon"),
                (ToAbsolute(draw(origins()), unit=unit, to_unit=to_unit), "Truck", "Point"),
                (ToRelative(draw(origins()), unit=unit, to_unit=to_unit), "Truck", "Truck"),
            )
        )
    )
    return converts("c", argument, result, how)


@st.composite
def time_kinds(draw: st.DrawFn) -> Conversion:
    zone, fold = draw(ZONES), draw(st.sampled_from(("", "first", "second")))
    pattern = draw(st.sampled_from(PATTERNS))
    split = "%Y-%m-%d|%H:%M"
    return draw(
        st.sampled_from(
            (
                converts("c", "text", "Time", ParseTime("iso8601", zone, fold)),
                converts("c", "text", "Time", ParseTime("iso8601")),
                converts("c", "text", "Time", ParseTime(pattern, zone, fold)),
                converts("c", "number", "Time", ParseTime("epoch_s")),
                converts("c", "number", "Time", ParseTime("epoch_ms")),
                converts(
                    "c", "DateAndTime", "Time", ParseTime(split, zone, fold, "|", ("day", "hour"))
                ),
                converts(
                    "c", "Time", "text", WriteTime("iso8601", draw(st.sampled_from(("", zone))))
                ),
                converts("c", "Time", "text", WriteTime(pattern, zone)),
                converts("c", "Time", "number", WriteTime("epoch_s")),
                converts("c", "Time", "integer", WriteTime("epoch_s")),
                converts("c", "Time", "integer", WriteTime("epoch_ms")),
                converts("c", "Time", "DateAndTime", WriteTime(split, zone, "|", ("day", "hour"))),
            )
        )
    )


@st.composite
def other_kinds(draw: st.DrawFn) -> Conversion:
    digits = draw(st.one_of(st.none(), st.integers(0, 6)))
    decimal, axis, form = draw(DECIMALS), draw(AXES), draw(FORMS)
    rates = draw(st.sampled_from((RateTable("rates", "EUR"), RateEvents("Course", "EUR"))))
    to, time = draw(st.sampled_from(("EUR", "USD", "BRL"))), draw(st.sampled_from(("", "at")))
    money = ChangeCurrency(to, rates, time=time, digits=digits)
    otherwise = draw(st.sampled_from((msgspec.UNSET, ("none",))))
    pairs = (("ok", 1), ("fine", 1), ("bad", 2), (True, 3), (1, 4))
    words = Enumeration(pairs, draw(st.sampled_from((msgspec.UNSET, 9))))
    back = Enumeration((("ok", 1), ("fine", 1), ("bad", 2)), backwards=True)
    parsed = converts("p", "text", "number", ParseNumber(decimal))
    stretched = converts("u", "number", "number", UnitChange("degF", "degC"))
    return draw(
        st.sampled_from(
            (
                parsed,
                converts("c", "text", "number", Chain((parsed, stretched))),
                converts("c", "number", "text", WriteNumber(decimal, digits)),
                converts("c", "text", "number", ParseAngle(axis, form)),
                converts("c", "number", "text", WriteAngle(axis, form, digits or 0)),
                converts("c", "Money", "Money", money),
                converts("c", "number", "number", ChangeCurrency(to, rates, from_currency="USD")),
                converts(
                    "c", "text", "text", TableLookup("sensors", ("name",), otherwise=otherwise)
                ),
                converts("c", "text", "integer", TableLookup("sensors", ("n",))),
                converts("c", "Key", "Door", TableLookup("sensors", ("name", "open"))),
                converts("c", "text", "number", ContextLookup("room", "temperature")),
                converts("c", "Key", "Point", ContextLookup("room", "place", parts=("x", "y"))),
                converts("c", "json", "integer", words),
                converts("c", "integer", "text", back),
            )
        )
    )


BAD = st.sampled_from(
    (None, "", "text", True, [], {}, math.nan, math.inf, 1e300, -1e300, 10**400, 0.5)
)
TEXTS = st.sampled_from(
    (
        *(
            "r1",
            "r2",
            "r3",
            "r9",
            "t1",
            "t2",
            "a",
            "ok",
            "fine",
            "bad",
            "USD",
            "EUR",
            "BRL",
            "GBP",
            "XXX",
        ),
        *(
            "1.5",
            "-1,25",
            "1e3",
            " 7 ",
            "1.234,5",
            "0x10",
            "1_000",
            "NaN",
            "٣",
            "1e999",
            "+.5",
            "5.",
            "--1",
        ),
        *(
            "52°31'12.4\"N",
            "N 52 31.5",
            "12 W",
            "181 E",
            "5231.2,N",
            "-46.64",
            "S91",
            "1 60 0 N",
            "12 O",
            "7",
        ),
        *(
            "2026-03-29",
            "2026-03-29T02:30",
            "2026-10-25T02:30:00",
            "2026-10-25 02:30+01:00",
            "02:30",
            "24:00",
        ),
        *(
            "29/03/2026 02:30",
            "25/10/2026 02:30",
            "25.10.2026, 02:59:59",
            "31/02/2026 00:00",
            "2026-04-05",
        ),
        *(
            "05/04/2026 01:45",
            "0001-01-01T00:00",
            "9999-12-31T23:59:59",
            "2026-03-02T09:14:05+0100",
            "01:45",
        ),
    )
)
NUMBERS = st.one_of(
    st.floats(-1e6, 1e6),
    st.floats(-200, 200),
    st.integers(-(10**13), 10**13),
    st.sampled_from((0, -0.0, 360, 90, 180)),
)


@st.composite
def values(draw: st.DrawFn, conversion: Conversion, types: dict[str, Any]) -> Any:
    """A value for the argument; now and then nonsense, in whole or in part."""
    name = conversion.argument
    if draw(st.integers(0, 12)) == 0:
        return draw(BAD)
    if name not in types:
        kinds = {"text": TEXTS, "json": st.one_of(TEXTS, st.sampled_from((True, 1, 2, False)))}
        return draw(kinds.get(name, NUMBERS))
    found = {}
    near = isinstance(conversion.how, ToPlan) and draw(st.booleans())
    for attribute in types[name]:
        if draw(st.integers(0, 40)) == 0:
            continue
        value = draw(TEXTS if attribute.type == "text" else NUMBERS)
        if attribute.name == "bearing":  # a billion turns have no direction left in a float
            value = draw(st.floats(-720, 720))
        if near and isinstance(conversion.how, ToPlan):
            at = {"lat": conversion.how.latitude, "lon": conversion.how.longitude}[attribute.name]
            value = at + draw(st.floats(-1.2, 1.2))
        found[attribute.name] = draw(BAD) if draw(st.integers(0, 30)) == 0 else value
    return found


def outcome(convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except RejectedValue as rejected:
        return f"rejected {rejected.code}"


def alike(one: Any, other: Any, scale: float = 0.0) -> bool:
    """Equal, numbers as nearly as two ways of calculating can be."""
    if isinstance(one, dict) and isinstance(other, dict):
        scale = max([scale, *(abs(each) for each in one.values() if is_number(each))])
        return one.keys() == other.keys() and all(
            alike(one[name], other[name], scale) for name in one
        )
    if is_number(one) and is_number(other):
        near = math.isclose(one, other, rel_tol=1e-9, abs_tol=max(1e-5, 1e-9 * scale))
        return near or _is_full_turn(abs(one - other))
    return bool(one == other) or (one != one and other != other)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == value and abs(value) < 10**309


def _is_full_turn(difference: float) -> bool:
    """A bearing or longitude on the seam."""
    return any(math.isclose(difference, turn, rel_tol=1e-9) for turn in (360, 400, 2 * math.pi))


def check(conversion: Conversion, data: st.DataObject) -> None:
    types = (
        *TYPES,
        ComplexType("Bare", (*numbers("bearing", "distance"), Attribute("who", "text", True))),
    )
    held = ComplexType("Held", (Attribute("value", conversion.argument),))
    given = ComplexType("Given", (Attribute("value", conversion.result),))
    root = Interpretation(name="root", parent="", types=(*types, given))
    local = Interpretation(
        name="local",
        types=(held,),
        rules=(Rule("Held.value", conversion.name),),
        mappings=(TypeMapping("Held", "Given", "in"),),
        conversions=(conversion,),
    )
    interpretations, found = load_all([root, local])
    assert "local" in interpretations, found["local"][1]
    time = data.draw(st.sampled_from((None, 4_000, 1_772_442_845_210, 1_768_000_000_000)))
    memory, surroundings = ConversionMemory(), ConversionEnvironment(Tables(), Present())
    surroundings.event_time_ms = time
    feed(conversion, memory)
    transformer = make_transformer(
        interpretations, "local", "Held", "in", memory=memory, surroundings=surroundings
    )
    tables = {"sensors": ("id", SENSORS), "rates": ("id", RATES)}
    judge = Judge([root, local], {}, World(tables, PRESENT, TOLD, time))
    attributes = {each.name: each.attributes for each in types if isinstance(each, ComplexType)}
    for _ in range(8):
        value = {"value": data.draw(values(conversion, attributes))}
        direct = outcome(lambda each: judge.transform(each, "Held", "in"), value)
        made = outcome(transformer, value)
        assert alike(made, direct), (conversion, value, made, direct)


def feed(conversion: Conversion, memory: ConversionMemory) -> None:
    from rapport.mediation.memory import feed_types

    for wanted, fed in feed_types(conversion):
        for name, event in TOLD:
            if name == wanted:
                memory.feed(fed, event)


SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=examples(100) == EXAMPLES,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


@pytest.mark.slow
@given(place_kinds(), st.data())
@SETTINGS
def test_places_convert_as_an_independent_calculation_does(
    conversion: Conversion, data: st.DataObject
) -> None:
    check(conversion, data)


@pytest.mark.slow
@given(time_kinds(), st.data())
@SETTINGS
def test_times_convert_as_an_independent_parser_does(
    conversion: Conversion, data: st.DataObject
) -> None:
    check(conversion, data)


@pytest.mark.slow
@given(other_kinds(), st.data())
@SETTINGS
def test_numbers_angles_money_and_look_ups_convert_as_an_independent_calculation_does(
    conversion: Conversion, data: st.DataObject
) -> None:
    check(conversion, data)


@pytest.mark.parametrize(
    "how",
    [
        ToAbsolute(MovingOrigin("Truck", "who", "who")),
        ToAbsolute(TableOrigin("sensors", "who")),
        ChangeCurrency("EUR", RateTable("rates", "EUR")),
        ChangeCurrency("EUR", RateEvents("Course", "EUR"), digits=2),
        ParseTime("%d/%m/%Y", "UTC", "first", "T", ("a", "b")),
        TableLookup("t", ("a",), otherwise=("x",)),
        ContextLookup("room", "place", parts=("x", "y"), otherwise=(1, 2.5)),
        Enumeration((("a", 1), (True, None)), backwards=True),
        ToPlan(1.0, 2.0),
        WriteAngle("latitude", "nmea", 4),
    ],
)
def test_every_kind_is_json_and_comes_back(how: How) -> None:
    conversion = Conversion("c", ("text",), ("text",), how)
    assert msgspec.json.decode(msgspec.json.encode(conversion), type=Conversion) == conversion


def test_several_attributes_merge_by_a_conversion_of_several_values() -> None:
    merge = Conversion(
        "at", ("number", "number", "text"), ("Point",), ToAbsolute(TableOrigin("sensors", "who"))
    )
    seen = ComplexType("Seen", (*numbers("dx", "dy"), Attribute("reader", "text")))
    placed = ComplexType("Placed", (Attribute("position", "Point"),))
    local = Interpretation(
        name="local",
        types=(seen, placed),
        mappings=(
            TypeMapping(
                "Seen", "Placed", "in", (MergeAttributes(("dx", "dy", "reader"), "position", "at"),)
            ),
        ),
        conversions=(merge,),
    )
    root = Interpretation(name="root", parent="", types=TYPES)
    interpretations, found = load_all([root, local])
    assert "local" in interpretations, found["local"][1]
    transformer = make_transformer(
        interpretations, "local", "Seen", "in", surroundings=ConversionEnvironment(Tables())
    )
    judge = Judge([root, local], {}, World({"sensors": ("id", SENSORS)}))
    for value in (
        {"dx": 1, "dy": 2, "reader": "r1"},
        {"dx": 1, "dy": 2, "reader": "r9"},
        {"dx": 1, "dy": 2},
        {"dx": None, "dy": 2, "reader": "r1"},
        {"dx": "1", "dy": 2, "reader": "r1"},
    ):
        direct = outcome(lambda each: judge.transform(each, "Seen", "in"), value)
        assert outcome(transformer, value) == direct
    assert transformer({"dx": 1, "dy": 2, "reader": "r1"}) == {"position": {"x": 11.5, "y": -1.0}}
