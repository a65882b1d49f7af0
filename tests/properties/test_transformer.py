"""The generated transformer gives what a slow, direct reading of the rules gives. [ME-8]"""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.times import from_epoch, from_iso, from_pattern
from rapport.mediation.fields_transformer import FieldsTransformer
from rapport.mediation.interpretations.model import (
    ConversionRule,
    FieldsInterpretation,
    IdentityLookup,
    IdentityRule,
    OriginRule,
    TimeRule,
    ValueRule,
)
from rapport.mediation.rejections import RejectedValue, Rejection
from rapport.mediation.source_bindings import SourceBinding
from rapport.units.coordinates import polar_to_cartesian, relative_to_absolute
from rapport.units.quantities import converter, parse_number
from support.examples import examples

pytestmark = pytest.mark.slow

ABSENT = object()
TABLES = {
    ("people", "a", "person"): "p1",
    ("people", "5", "person"): "p2",
    ("places", "a", "x"): "10",
    ("places", "a", "y"): "-2.5",
    ("places", "a", "h"): "90",
    ("places", "b", "x"): "1e3",
    ("places", "b", "y"): "many",
    ("places", "5", "x"): "0",
    ("places", "5", "y"): "0",
    ("places", "5", "h"): "30.5",
}


class Tables:
    revision = 0

    def lookup(self, table: str, key: str, column: str) -> str | None:
        return TABLES.get((table, key, column))


class Conversions:
    """Carried out here and now; one of them refuses what is negative."""

    def call(self, rule: ConversionRule, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if rule.call == "refuse" and values[0] < 0:
            raise RejectedValue("conversion.raised", "negative")
        if rule.call == "nonsense":
            return tuple(None for _ in rule.give)
        return tuple(value * 2 for value in values)


# --- the judge: rules read one by one, nothing generated


class No(Exception):
    """Why not."""


def judge(rules: FieldsInterpretation, binding: SourceBinding, raw: Event) -> Any:
    """(key, time, value) or the code of the rejection, straight from the words of the rules."""
    try:
        return _judge(rules, binding, raw)
    except No as no:
        return str(no)
    except RejectedValue as no:
        return no.code


def _judge(rules: FieldsInterpretation, binding: SourceBinding, raw: Event) -> Any:
    if rules.type and raw.type != rules.type:
        raise No("type.unexpected")
    data = _object(raw.data)
    numeric = binding.type not in ("text", "boolean")
    for rule in rules.values:
        if not rule.unit and (numeric or rule.name not in binding.parts):
            raise No("unit.undeclared")
    time = raw.time if rules.time is None else _time(rules.time, _at(data, rules.time.field))
    key = _identity(rules.identity, data)
    if len(f"{binding.concept}/{key}") > 256 or not key.isprintable():
        raise No("identity.bad_name")
    values = {rule.name: _value(rule, binding, _at(data, rule.field)) for rule in rules.values}
    for conversion in rules.conversions:
        results = Conversions().call(conversion, tuple(values[name] for name in conversion.take))
        for name, result in zip(conversion.give, results, strict=True):
            values[name] = _number(result)
    if binding.type == "point":
        values["x"], values["y"] = _place(rules.origin, values, data)
    parts = [values[part] for part in binding.parts]
    if numeric and not all(math.isfinite(part) for part in parts):
        raise No("value.not_finite")
    return key, time, parts


def _object(raw: bytes) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        raise No("payload.not_json") from None
    if not isinstance(data, dict):
        raise No("payload.not_an_object")
    return data


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return ABSENT
        data = data[name]
    return data


def _present(value: Any) -> Any:
    if value is ABSENT:
        raise No("field.missing")
    return value


def _number(value: Any) -> float:
    if isinstance(_present(value), bool) or not isinstance(value, int | float):
        raise No("value.not_a_number")
    try:
        number = float(value)
    except OverflowError:
        raise No("value.not_finite") from None
    if not math.isfinite(number):
        raise No("value.not_finite")
    return number


def _name(value: Any) -> str:
    if isinstance(_present(value), str):
        if not value:
            raise No("identity.empty")
        return value
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 10**30:
        raise No("identity.not_a_name")
    return str(value)


def _time(rule: TimeRule, value: Any) -> int:
    try:
        if rule.format in ("epoch_s", "epoch_ms"):
            return from_epoch(_number(value), 1000.0 if rule.format == "epoch_s" else 1.0)
        if not isinstance(_present(value), str):
            raise No("value.not_text")
        if rule.format == "iso8601":
            return from_iso(value, rule.zone)
        return from_pattern(value, rule.format, rule.zone)
    except InvalidInput as error:
        raise No(error.code) from None


def _identity(rule: IdentityRule, data: dict[str, Any]) -> str:
    seen = _at(data, rule.field)
    nobody = (isinstance(seen, str) and seen in rule.nobody) or (seen is None and rule.otherwise)
    found: str | None = None
    if not nobody:
        found = _name(seen)
        if rule.lookup is not None:
            found = Tables().lookup(rule.lookup.table, found, rule.lookup.column)
    if found is not None:
        return found
    if not rule.otherwise:
        raise No("identity.unknown")
    return "".join(
        piece if isinstance(piece, str) else _name(_at(data, piece)) for piece in rule.otherwise
    )


def _value(rule: ValueRule, binding: SourceBinding, value: Any) -> Any:
    if binding.type == "text":
        if not isinstance(_present(value), str):
            raise No("value.not_text")
        return value
    if binding.type == "boolean":
        if not isinstance(_present(value), bool):
            raise No("value.not_a_boolean")
        return value
    if rule.decimal and isinstance(value, str):
        try:
            value = parse_number(value, rule.decimal)
        except InvalidInput as error:
            raise No(error.code) from None
    root = {"bearing": "deg", "x": "m", "y": "m", "distance": "m"}.get(rule.name, rule.to)
    return converter(rule.unit, root).apply(_number(value))


def _place(
    origin: OriginRule | None, values: dict[str, float], data: dict[str, Any]
) -> tuple[float, float]:
    def column(key: str, name: str) -> float:
        text = Tables().lookup(origin.table, key, name) if origin else None
        if text is None:
            raise No("lookup.unknown")
        try:
            return parse_number(text)
        except InvalidInput:
            raise No("lookup.bad_number") from None

    x = y = heading = 0.0
    if origin is not None:
        key = _name(_at(data, origin.key))
        x, y = column(key, origin.x), column(key, origin.y)
        heading = column(key, origin.heading) if origin.heading else 0.0
    if "x" not in values:
        seen = polar_to_cartesian(values["bearing"] + heading, values["distance"])
        return x + seen[0], y + seen[1]
    if origin is not None and origin.heading:
        return relative_to_absolute(values["x"], values["y"], x, y, heading)
    return x + values["x"], y + values["y"]


# --- random declarations and random data

FIELDS = (*"abcdefghijklmnopqrstuvwxyz", "it's", "n\n", "a.b")
paths = st.one_of(
    st.sampled_from(FIELDS).map(lambda name: (name,)),
    st.tuples(st.sampled_from(FIELDS), st.sampled_from(FIELDS)),
)
LENGTHS, ANGLES = ("m", "ft", "km", "mm"), ("deg", "rad", "gon")
decimals = st.sampled_from([None, "point", "comma"])
times = st.none() | st.builds(
    TimeRule,
    paths,
    st.sampled_from(["iso8601", "epoch_s", "epoch_ms", "%d.%m.%Y %H:%M"]),
    st.sampled_from(["", "UTC", "Europe/Berlin"]),
)
identities = st.builds(
    IdentityRule,
    paths,
    st.none() | st.just(IdentityLookup("people", "person")),
    st.sampled_from([(), ("unknown",), ("unknown", "")]),
    st.sampled_from([(), ("visitor",), ("u:", ("b",)), (("c",), "-", ("a", "b"))]),
)
origins = st.none() | st.builds(
    OriginRule,
    st.just("places"),
    paths,
    st.just("x"),
    st.just("y"),
    st.sampled_from(["h", "h", ""]),
)
conversions = st.lists(st.sampled_from(["double", "double", "refuse", "nonsense"]), max_size=1)


def lengths(name: str) -> st.SearchStrategy[ValueRule]:
    units = st.sampled_from([*LENGTHS * 6, ""])
    return st.builds(ValueRule, st.just(name), paths, units, st.just(""), decimals)


bearings = st.builds(
    ValueRule, st.just("bearing"), paths, st.sampled_from(ANGLES), st.just(""), decimals
)
temperatures = st.builds(
    ValueRule,
    st.just("value"),
    paths,
    st.sampled_from(["degF", "degC", "K", ""]),
    st.just("degC"),
    decimals,
)
plain = st.builds(ValueRule, st.just("value"), paths)


@st.composite
def declarations(draw: st.DrawFn) -> tuple[FieldsInterpretation, SourceBinding]:
    kind = draw(st.sampled_from([*["point", "polar"] * 3, "number", "text", "boolean"]))
    values = {
        "point": st.tuples(lengths("x"), lengths("y")),
        "polar": st.tuples(bearings, lengths("distance")),
        "number": st.tuples(temperatures),
        "text": st.tuples(plain),
        "boolean": st.tuples(plain),
    }[kind]
    names = {"point": ("x", "y"), "polar": ("bearing", "distance"), "number": ("value",)}.get(kind)
    called = draw(conversions) if names else []
    placed = kind in ("point", "polar")
    rules = FieldsInterpretation(
        name="random",
        type=draw(st.sampled_from(["", "", "", "", "", "seen"])),
        time=draw(times),
        identity=draw(identities),
        values=draw(values),
        origin=draw(origins) if placed else None,
        conversions=tuple(ConversionRule(call, names or (), names or ()) for call in called),
    )
    binding = SourceBinding(
        source="s",
        concept="c",
        attribute="a",
        type="point" if placed else kind,  # type: ignore[arg-type]
    )
    return rules, binding


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e3, 1e3),
    st.integers(-5, 5),
    st.integers(),
    st.just(10**400),
    st.just(1772442845.3),
    st.just(1772442845300),
)
texts = st.one_of(
    st.sampled_from(["", "a", "b", "5", "unknown", "2026-03-02T09:14:05.210Z", "02.03.2026 10:00"]),
    st.sampled_from(["1,5", "1.5", "1e999", "x" * 300, "line\nbreak", "2026-03-29T02:30"]),
    st.text(max_size=5),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
nested = st.one_of(
    scalars,
    st.dictionaries(st.sampled_from(FIELDS), scalars, max_size=3),
    st.lists(scalars, max_size=2),
)
objects = st.dictionaries(st.sampled_from(FIELDS), nested, max_size=5)
GOOD_TIMES = {
    "iso8601": ["2026-03-02T09:14:05.210Z", "2026-03-02T09:14:05+01:00", "2026-07-01T00:00"],
    "epoch_s": [1772442845.3, 0, -5.25, 1772442845],
    "epoch_ms": [1772442845300, 0.4],
}


def good_values(declared: tuple[FieldsInterpretation, SourceBinding]) -> list[tuple[Any, Any]]:
    """For each field that the rules name, values that should do."""
    rules, binding = declared
    fitting: list[tuple[Any, Any]] = []
    if rules.time is not None:
        written = GOOD_TIMES.get(rules.time.format, ["02.03.2026 10:00", "01.07.2026 23:59"])
        fitting.append((rules.time.field, st.sampled_from(written)))
    unknown = ["unknown", None] if rules.identity.otherwise else []
    fitting.append((rules.identity.field, st.sampled_from(["a", "5", 5, *unknown])))
    for piece in rules.identity.otherwise:
        if not isinstance(piece, str):
            fitting.append((piece, st.sampled_from(["t1", 7])))
    of_kind = {"text": st.text(), "boolean": st.booleans()}.get(binding.type, st.floats(-1e6, 1e6))
    fitting.extend((rule.field, of_kind) for rule in rules.values)
    if rules.origin is not None:
        fitting.append((rules.origin.key, st.sampled_from(["a", "a", "a", "5", "5", "b"])))
    return fitting


seldom = st.sampled_from([*[False] * 10, True, *[False] * 10])


@st.composite
def cases(draw: st.DrawFn) -> tuple[FieldsInterpretation, SourceBinding, bytes]:
    """Rules and a payload that fits them more often than not."""
    declared = draw(declarations())
    if draw(seldom):
        odd = draw(st.one_of(nested.map(msgspec.json.encode), st.binary(max_size=10)))
        return (*declared, odd)
    data: dict[str, Any] = draw(objects) if draw(st.booleans()) else {}
    for path, good in good_values(declared):
        value = draw(nested) if draw(seldom) else draw(good)
        _put(data, path, value)
    return (*declared, msgspec.json.encode(data))


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        below = data.get(name)
        data[name] = below = below if isinstance(below, dict) else {}
        data = below
    data[path[-1]] = value


@given(cases(), st.sampled_from(["seen", "seen", "other"]))
def test_the_generated_transformer_gives_what_the_rules_say(case, kind):
    rules, binding, payload = case
    raw = Event("s", "e1", kind, "", 7, payload)
    expected = judge(rules, binding, raw)
    transformer = FieldsTransformer.build(
        rules, binding, lookups=Tables(), conversions=Conversions()
    )
    result = transformer.apply(raw, 1)
    if isinstance(result, Rejection):
        assert result.code == expected
    else:
        data = result.payload()
        assert (data["key"], result.time, data["value"]) == expected
        assert result.subject == f"c/{data['key']}"


@given(cases(), st.lists(objects.map(msgspec.json.encode), max_size=5))
def test_a_batch_gives_what_its_events_give_one_by_one(case, others):
    rules, binding, payload = case
    batch = [payload, *others, payload]
    transformer = FieldsTransformer.build(
        rules, binding, lookups=Tables(), conversions=Conversions()
    )
    stored = [
        StoredEvent(position, 0, Event("s", f"e{position}", "seen", "", 7, payload))
        for position, payload in enumerate(batch, start=1)
    ]
    one_by_one = [transformer.apply(one.event, one.position) for one in stored]
    readings, rejections = transformer.apply_many(stored)
    assert readings == [one for one in one_by_one if isinstance(one, Event)]
    assert rejections == [one for one in one_by_one if isinstance(one, Rejection)]


def test_random_data_reaches_readings_and_many_reasons():
    """The property above would be hollow if most were rejected for one reason."""
    seen: dict[str, int] = {}

    @settings(max_examples=examples(500), deadline=None, database=None, derandomize=True)
    @given(cases())
    def collect(case):
        rules, binding, payload = case
        outcome = judge(rules, binding, Event("s", "e", "seen", "", 1, payload))
        placed = ", turned" if rules.origin and rules.origin.heading else ""
        name = outcome if isinstance(outcome, str) else f"reading of {binding.type}{placed}"
        seen[name] = seen.get(name, 0) + 1

    collect()
    readings = {name: count for name, count in seen.items() if name.startswith("reading")}
    assert len(readings) == 5, seen
    # How many exactly depends on the generator's version and on what else is imported.
    assert sum(readings.values()) >= 30, seen
    assert readings["reading of point, turned"] >= 3, seen
    assert len(seen) - len(readings) >= 8, seen
