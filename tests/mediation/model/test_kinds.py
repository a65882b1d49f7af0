"""Kinds of conversion by example: what the source tells, and what devices send. [ME-4]"""

from typing import Any

import msgspec
import pytest

from rapport.core.times import from_iso
from rapport.mediation.codegen.runtime import callable_of
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Enumeration,
    Formula,
    How,
    Join,
    Stateful,
    UnitChange,
    converts,
    inverse_of,
)
from rapport.mediation.conversion.currencies import ChangeCurrency, RateEvents, RateTable
from rapport.mediation.conversion.lookups import ContextLookup, ConversionEnvironment, TableLookup
from rapport.mediation.conversion.notations import ParseAngle, ParseNumber, ParseTime, WriteTime
from rapport.mediation.conversion.places import (
    FixedOrigin,
    MovingOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.interpretations.model import (
    Interpretation,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.memory import MOST_RATES, ConversionMemory, TrackedDict, remembers
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Type, Types


def numbers(*names: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(name, "number") for name in names)


ALL: tuple[Type, ...] = (
    PrimitiveType("Time", "integer"),
    ComplexType("Point", numbers("x", "y")),
    ComplexType("Polar", numbers("bearing", "distance")),
    ComplexType("LatLon", numbers("lat", "lon")),
    ComplexType("Money", (*numbers("amount"), Attribute("currency", "text"))),
    ComplexType("truck", (Attribute("key", "text"), Attribute("position", "Point", True))),
    ComplexType(
        "Rate", (Attribute("currency", "text"), *numbers("rate"), Attribute("time", "Time"))
    ),
)
TYPES = Types(ALL)


def made(conversion: Conversion, memory: ConversionMemory | None = None, around: Any = None) -> Any:
    return callable_of(conversion, {}, memory or ConversionMemory(), TYPES, around)


def code_of(call: Any, *values: Any) -> str:
    with pytest.raises(RejectedValue) as caught:
        call(*values)
    return caught.value.code


# --- the moving truck of the source


def test_a_reference_point_that_moves_is_fed_by_events_and_outlives_a_restart() -> None:
    origin = MovingOrigin("truck", x="position.x", y="position.y")
    absolute = converts("absolute", "Point", "Point", ToAbsolute(origin))
    memory = ConversionMemory()
    convert = made(absolute, memory)
    assert code_of(convert, {"x": 1, "y": 2}) == "place.no_origin"
    assert memory.feed(absolute, {"key": "t", "position": {"x": 100.0, "y": 50.0}})
    assert convert({"x": 1, "y": 2}) == {"x": 101.0, "y": 52.0}
    assert not memory.feed(absolute, {"key": "t", "temperature": 4.0})  # says nothing about it
    assert not memory.feed(absolute, {"key": "t", "position": None})
    again = made(
        absolute, ConversionMemory(msgspec.json.decode(msgspec.json.encode(memory.states)))
    )
    assert again({"x": 1, "y": 2}) == {"x": 101.0, "y": 52.0}


def test_another_kind_under_the_same_name_does_not_reuse_the_state() -> None:
    memory = ConversionMemory()
    for feed in ("truck", "ship"):
        learned = converts("c", "Point", "Point", ToAbsolute(MovingOrigin(feed)))
        assert code_of(made(learned, memory), {"x": 0, "y": 0}) == "place.no_origin"
        memory.feed(learned, {"x": 1.0, "y": 1.0})
        assert made(learned, memory)({"x": 0, "y": 0}) == {"x": 1.0, "y": 1.0}
    counting = converts("c", "text", "number", Stateful("count", initial=b"5"))
    assert memory.state_of(counting) == 5


def test_the_state_of_earlier_versions_is_still_read() -> None:
    origin = converts("c", "Point", "Point", ToAbsolute(MovingOrigin("truck")))
    memory = ConversionMemory()
    memory.feed(origin, {"x": 1.0, "y": 1.0})
    (state,) = memory.states.values()
    before = ConversionMemory(TrackedDict({"c": state}))
    assert made(origin, before)({"x": 0, "y": 0}) == {"x": 1.0, "y": 1.0}
    assert "c" not in before.states


def test_a_position_older_than_the_last_does_not_count() -> None:
    origin = MovingOrigin("Rate", x="rate", y="rate", time="time", key="who", feed_key="currency")
    conversion = Conversion("c", ("number", "number", "text"), ("Point",), ToAbsolute(origin))
    memory = ConversionMemory()
    for time, rate in ((5, 10.0), (3, 99.0), (5, 20.0)):
        memory.feed(conversion, {"currency": "a", "rate": rate, "time": time})
    assert made(conversion, memory)(0, 0, "a") == {"x": 20.0, "y": 20.0}
    assert code_of(made(conversion, memory), 0, 0, "b") == "place.no_origin"


@pytest.mark.parametrize("bad", ["here", True, float("nan"), 10**400, [], {}])
def test_a_position_of_the_wrong_kind_is_rejected_and_the_last_one_stays(bad: Any) -> None:
    conversion = converts("c", "Point", "Point", ToAbsolute(MovingOrigin("Point")))
    memory = ConversionMemory()
    memory.feed(conversion, {"x": 1.0, "y": 1.0})
    assert code_of(memory.feed, conversion, {"x": bad, "y": 2.0}).startswith("value.")
    assert made(conversion, memory)({"x": 0, "y": 0}) == {"x": 1.0, "y": 1.0}


def test_a_heading_that_is_not_sent_again_stays() -> None:
    origin = MovingOrigin("Point", heading="looks")
    conversion = converts("c", "Point", "Point", ToAbsolute(origin))
    memory = ConversionMemory()
    memory.feed(conversion, {"x": 0.0, "y": 0.0, "looks": 90.0})
    memory.feed(conversion, {"x": 10.0, "y": 0.0})
    assert made(conversion, memory)({"x": 0, "y": 2}) == {"x": 12.0, "y": 0.0}


def test_an_update_of_the_site_that_raises_leaves_the_state_as_it_was() -> None:
    conversion = converts("s", "number", "number", Stateful("f", b"7", feed="Point", update="g"))
    memory = ConversionMemory()
    assert (
        code_of(memory.feed, conversion, {}, {"g": lambda state, event: 1 / 0})
        == "conversion.raised"
    )
    assert code_of(memory.feed, conversion, {}, {}) == "conversion.unavailable"
    assert memory.state_of(conversion) == 7
    assert memory.feed(conversion, 5, {"g": lambda state, event: state + event})
    assert memory.state_of(conversion) == 12


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"x": 1.0}, ".y is missing"),
        ({"x": 1.0, "y": None}, ".y is missing"),
        ({"x": "1", "y": 2.0}, ".x: '1' is no number"),
        ({"x": float("nan"), "y": 2.0}, ".x: nan is no number"),
        ({"x": 1, "y": 2, "@type": "Money"}, "'Money' is no kind of Point"),
        ([], "[] is no Point"),
    ],
)
def test_the_result_of_a_function_is_checked_at_every_depth(result: Any, says: str) -> None:
    conversion = converts("c", "number", "Point", Call("f"))
    convert = callable_of(conversion, {"f": lambda value: result}, ConversionMemory(), TYPES)
    with pytest.raises(RejectedValue) as caught:
        convert(1)
    assert caught.value.code == "conversion.bad_result"
    assert says in caught.value.message
    listed = converts("c", "number", "[Point]", Call("f"))
    convert = callable_of(listed, {"f": lambda value: [result]}, ConversionMemory(), TYPES)
    assert code_of(convert, 1) == "conversion.bad_result"


# --- money


def test_the_rate_in_force_at_the_events_time_counts() -> None:
    how = ChangeCurrency("EUR", RateEvents("Rate", "EUR"), digits=2)
    conversion = converts("euros", "Money", "Money", how)
    memory, around = ConversionMemory(), ConversionEnvironment()
    for time, rate in ((2_000, 1.25), (1_000, 1.6), (3_000, 2.0)):
        memory.feed(conversion, {"currency": "USD", "rate": rate, "time": time})
    convert = made(conversion, memory, around)
    found = []
    for around.event_time_ms in (1_000, 1_999, 2_000, 9_999, None):
        found.append(convert({"amount": 10, "currency": "USD"})["amount"])
    assert found == [6.25, 6.25, 8.0, 5.0, 5.0]
    around.event_time_ms = 999
    assert code_of(convert, {"amount": 10, "currency": "USD"}) == "currency.no_rate"
    assert code_of(convert, {"amount": 10, "currency": "XXX"}) == "currency.no_rate"
    assert convert({"amount": 10, "currency": "EUR"}) == {"amount": 10, "currency": "EUR"}


def test_between_two_currencies_the_base_is_in_the_middle() -> None:
    class Rates:
        revision = 0

        def lookup(self, table: str, key: str, column: str) -> str | None:
            return None

        def rows(self, table: str, columns: Any) -> list[tuple[str, ...]]:
            return [("USD", "1.25", "2026-01-01"), ("BRL", "5", "2026-01-01")]

    how = ChangeCurrency("BRL", RateTable("rates", "EUR"), time="at")
    conversion = Conversion("c", ("number", "text", "Time"), ("Money",), how)
    convert = made(conversion, around=ConversionEnvironment(Rates()))
    assert convert(2.5, "USD", from_iso("2026-05-01T00:00Z")) == {"amount": 10.0, "currency": "BRL"}
    assert code_of(convert, 2.5, "USD", from_iso("2025-05-01T00:00Z")) == "currency.no_rate"


@pytest.mark.parametrize("rate", ["0", "-1", "x", "1e999"])
def test_an_invalid_rate_rejects_events_that_need_the_table(rate: str) -> None:
    class Rates:
        revision = 0

        def lookup(self, table: str, key: str, column: str) -> str | None:
            return None

        def rows(self, table: str, columns: Any) -> list[tuple[str, ...]]:
            return [("USD", rate, "2026-01-01")]

    conversion = converts("c", "Money", "Money", ChangeCurrency("EUR", RateTable("rates", "EUR")))
    convert = made(conversion, around=ConversionEnvironment(Rates()))
    assert code_of(convert, {"amount": 1, "currency": "USD"}) == "lookup.bad_number"


def test_only_so_many_rates_are_kept() -> None:
    conversion = converts("c", "Money", "Money", ChangeCurrency("EUR", RateEvents("Rate", "EUR")))
    memory = ConversionMemory()
    for time in range(MOST_RATES + 5):
        memory.feed(conversion, {"currency": "USD", "rate": 1.0, "time": time})
    course = memory.state_of(conversion)["USD"]
    assert (len(course), course[0][0]) == (MOST_RATES, 5)
    assert (
        code_of(memory.feed, conversion, {"currency": "USD", "rate": 0, "time": 1})
        == "value.out_of_range"
    )


# --- times


def test_separate_date_and_time_of_day_become_a_time_and_back() -> None:
    inmet = Conversion("c", ("text", "text"), ("Time",), ParseTime("%Y/%m/%d %H%M UTC", "UTC"))
    assert made(inmet)("2026/03/02", "0914 UTC") == from_iso("2026-03-02T09:14Z")
    back = Conversion(
        "c", ("Time",), ("text", "text"), WriteTime("%d/%m/%Y %H:%M", "America/Sao_Paulo")
    )
    assert made(back)(from_iso("2026-03-02T09:14Z")) == ("02/03/2026", "06:14")


def test_a_split_attribute_takes_the_parts_of_a_written_time() -> None:
    source = ComplexType("A", (Attribute("at", "Time"),))
    target = ComplexType("B", (Attribute("day", "text"), Attribute("hour", "text")))
    cut = Conversion("cut", ("Time",), ("text", "text"), WriteTime("%Y-%m-%d %H:%M"))
    child = Interpretation(
        name="c",
        types=(PrimitiveType("Time", "integer"), source, target),
        mappings=(TypeMapping("A", "B", "in", (SplitAttribute("at", ("day", "hour"), "cut"),)),),
        conversions=(cut,),
    )
    held, found = load_all([child])
    assert "c" in held, found
    assert make_transformer(held, "c", "A", "in")({"at": 0}) == {
        "day": "1970-01-01",
        "hour": "00:00",
    }


# --- look-ups


def test_without_tables_or_context_nothing_is_found() -> None:
    table = converts("c", "text", "text", TableLookup("t", ("a",)))
    context = converts("c", "text", "number", ContextLookup("room", "temperature"))
    for conversion in (table, context):
        assert code_of(made(conversion), "x") == "lookup.unknown"


def test_a_present_value_of_another_kind_is_rejected() -> None:
    class Present:
        def value(self, concept: str, key: str, attribute: str) -> Any:
            return ["warm"]

    conversion = converts("c", "text", "number", ContextLookup("room", "temperature"))
    assert (
        code_of(made(conversion, around=ConversionEnvironment(None, Present())), "a")
        == "lookup.bad_value"
    )


# --- there and back


@pytest.mark.parametrize(
    ("conversion", "value"),
    [
        (
            converts("c", "Polar", "Point", ToCartesian(unit="ft")),
            {"bearing": 30.0, "distance": 12.0},
        ),
        (converts("c", "Point", "Polar", ToPolar("x", "y", to_unit="km")), {"x": 3.0, "y": -4.0}),
        (
            converts("c", "Point", "Point", ToAbsolute(FixedOrigin(5, 6, 77), unit="ft")),
            {"x": 3.0, "y": 4.0},
        ),
        (
            converts("c", "Point", "Point", ToRelative(FixedOrigin(5, 6, 77), to_unit="ft")),
            {"x": 3.0, "y": 4.0},
        ),
        (converts("c", "LatLon", "Point", ToPlan(52.5, 13.4)), {"lat": 52.6, "lon": 13.3}),
        (converts("c", "Point", "LatLon", ToLatLon(52.5, 13.4, unit="km")), {"x": 3.0, "y": 4.0}),
        (
            converts("c", "text", "Time", ParseTime("%d/%m/%Y %H:%M", "Asia/Tokyo")),
            "02/03/2026 06:14",
        ),
        (converts("c", "Time", "text", WriteTime("iso8601", "Asia/Tokyo")), 1_772_442_845_210),
        (converts("c", "text", "number", ParseNumber("comma")), "-30,05"),
        (converts("c", "text", "number", ParseAngle("latitude")), "52°31'12.000000\"N"),
        (converts("c", "number", "number", Formula(5, -160, 9)), 77.0),
        (converts("c", "number", "number", UnitChange("degF", "degC")), 77.0),
        (converts("c", "text", "number", Enumeration((("a", 1), ("b", 2)))), "b"),
        (Conversion("c", ("text", "text"), ("text",), Join(" ")), ("a", "b c")),
        (
            converts(
                "c",
                "text",
                "number",
                Chain(
                    (
                        converts("r", "text", "number", ParseNumber("comma")),
                        converts("u", "number", "number", UnitChange("degF", "degC")),
                    )
                ),
            ),
            "77",
        ),
    ],
)
def test_the_inverse_leads_back(conversion: Conversion, value: Any) -> None:
    back = inverse_of(conversion, "back")
    assert back is not None
    values = value if isinstance(value, tuple) else (value,)
    there = made(conversion)(*values)
    found = made(back)(*there) if isinstance(there, tuple) else made(back)(there)
    if isinstance(value, dict):
        assert found == pytest.approx(value, abs=1e-9)
    else:
        assert found == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    "how",
    [
        TableLookup("t", ("a",)),
        Stateful("f"),
        Formula(0.0, 1.0),
        ChangeCurrency("EUR", RateTable("r", "EUR")),
    ],
)
def test_a_lossy_conversion_has_no_inverse(how: How) -> None:
    assert inverse_of(converts("c", "number", "number", how), "back") is None


# --- columns


def test_conversions_that_remember_are_known() -> None:
    moving = converts("c", "Point", "Point", ToAbsolute(MovingOrigin("Point")))
    fixed = converts("c", "Point", "Point", ToAbsolute(FixedOrigin(0, 0)))
    assert [remembers(each) for each in (moving, fixed)] == [True, False]
    assert remembers(converts("c", "Point", "Point", Chain((fixed, moving))))
