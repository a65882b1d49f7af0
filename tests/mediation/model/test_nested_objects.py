"""A batch on the JSON fast path gives deeply nested objects as single events give them, byte for
byte. [ME-8]
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.mediation.codegen.json_fast_path import (
    BatchFunction,
    EventFunction,
    compile_batch_path,
    compile_event_path,
)
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.interpretations.model import (
    DropAttribute,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

LEVELS = 6
FEET, METRES, YARDS = (PrimitiveType(name, "number") for name in ("Feet", "Metres", "Yards"))


def chain(prefix: str, deepest: str = "text") -> tuple[ComplexType, ...]:
    """Objects in objects; every one has a text and a boolean."""
    types = []
    for level in range(LEVELS):
        attributes = [Attribute(f"t{level}", "text"), Attribute("is it", "boolean", True)]
        if level + 1 < LEVELS:
            attributes.append(Attribute("below", f"{prefix}{level + 1}", level == 2))
        else:
            attributes.append(Attribute("last", deepest))
        types.append(ComplexType(f"{prefix}{level}", tuple(attributes)))
    return tuple(types)


def outer(name: str, unit: str, inner: str, about: str = "about") -> tuple[ComplexType, ...]:
    """An event with a number at the top and one in an object, and the chain beside both."""
    return (
        ComplexType(f"{name}Part", (Attribute("n", unit), Attribute("rest", inner))),
        ComplexType(
            name,
            (Attribute("n", unit), Attribute(about, inner), Attribute("part", f"{name}Part")),
        ),
    )


def world(shape: tuple[Any, ...] = (), about: str = "about") -> InterpretationRegistry:
    declared = (
        Interpretation(
            name="root",
            parent="",
            types=(FEET, METRES, YARDS, *chain("C"), *outer("Root", "Metres", "C0", about)),
        ),
        Interpretation(
            name="sent",
            types=outer("Sent", "Feet", "C0"),
            mappings=(TypeMapping("Sent", "Root", "in", shape),),
            rules=(Rule("Feet", "metres"),),
            conversions=(converts("metres", "Feet", "Metres", Formula(0.3048)),),
        ),
        Interpretation(
            name="wanted",
            types=outer("Wanted", "Yards", "C0", about),
            mappings=(TypeMapping("Root", "Wanted", "out"),),
            rules=(Rule("Metres", "yards"),),
            conversions=(converts("yards", "Metres", "Yards", Formula(1.0, 0.0, 0.9144)),),
        ),
    )
    held, found = load_all(declared)
    assert {"sent", "wanted"} <= {*held.names}, found
    return held


def both(held: InterpretationRegistry) -> tuple[BatchFunction, EventFunction]:
    plans = [
        (held.plan("sent", "Sent", "in"), held.types_met("sent")),
        (held.plan("wanted", "Root", "out"), held.types_met("wanted")),
    ]
    batch, through = compile_batch_path(plans), compile_event_path(plans)
    assert batch is not None
    assert through is not None
    return batch, through


TEXTS = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=5),
    st.sampled_from(('"', "\\", "\n", "\x00", "\x1f", "\x7f", "é", "\u2028", "🙂", "a/b", "{},:")),
)
ODD = st.sampled_from((None, 5, True, [], {}, "x"))


@st.composite
def chains(draw: st.DrawFn, level: int = 0) -> Any:
    found = {f"t{level}": draw(TEXTS), "is it": draw(st.booleans())}
    below = draw(chains(level + 1)) if level + 1 < LEVELS else draw(TEXTS)
    found["below" if level + 1 < LEVELS else "last"] = below
    fault = draw(st.integers(0, 40))
    if fault == 0:
        found[draw(st.sampled_from(sorted(found)))] = draw(ODD)
    elif fault == 1:
        del found[draw(st.sampled_from(sorted(found)))]
    elif fault == 2:
        found["unknown"] = 1
    elif fault == 3:
        found = dict(sorted(found.items(), reverse=True))
    return found


@st.composite
def written(draw: st.DrawFn) -> bytes:
    number = st.floats(-1e6, 1e6)
    part = {"n": draw(number), "rest": draw(chains())}
    event = {"n": draw(number), "about": draw(chains()), "part": part}
    how = draw(st.integers(0, 9))
    if how == 0:
        return json.dumps(event).encode()
    if how == 1:
        return json.dumps(event, separators=(",", ":")).encode()  # beyond ASCII as escapes
    data = msgspec.json.encode(event)
    if how == 2:
        place = draw(st.integers(0, len(data) - 1))
        byte = draw(st.sampled_from((b"\xff", b"\xc3", b" ", b"\t", b"}", b'"', b"0", b"\x00")))
        return data[:place] + byte + data[place + draw(st.integers(0, 1)) :]
    return data


PLAIN = both(world())
SHAPED = both(world((RenameAttribute("about", "told"),), "told"))


@given(st.lists(written(), max_size=6))
@pytest.mark.slow
def test_a_batch_gives_the_bytes_that_its_events_give_one_by_one(several: list[bytes]) -> None:
    for batch, through in (PLAIN, SHAPED):
        assert batch(several) == [through(data) for data in several]


def event(text: str = "x") -> dict[str, Any]:
    below: Any = "end"
    for level in reversed(range(LEVELS)):
        key = "below" if level + 1 < LEVELS else "last"
        below = {f"t{level}": text, "is it": True, key: below}
    return {"n": 1.0, "about": below, "part": {"n": 2.0, "rest": below}}


@pytest.mark.parametrize("odd", [0, 1, 60])
def test_many_that_are_written_otherwise_change_nothing_about_the_others(odd: int) -> None:
    batch, through = PLAIN
    several = [json.dumps(event(f"é{number}")).encode() for number in range(odd)]
    several += [msgspec.json.encode(event(f"{number}")) for number in range(5)]
    several += [b'{"n": 1}', b"", json.dumps(event("\n")).encode()]
    found = batch(several)
    assert found == [through(data) for data in several]
    assert [one is None for one in found] == [False] * (odd + 5) + [True, True, False]


def test_a_later_plan_converts_values_that_the_first_passes_on() -> None:
    """The first plan does nothing to the chain, the second calculates at its end."""
    root = Interpretation(
        name="root",
        parent="",
        types=(FEET, METRES, YARDS, *chain("C", "Metres"), *outer("Root", "Metres", "C0")),
    )
    sent = Interpretation(
        name="sent",
        types=outer("Sent", "Feet", "C0"),
        mappings=(TypeMapping("Sent", "Root", "in"),),
        rules=(Rule("Feet", "metres"),),
        conversions=(converts("metres", "Feet", "Metres", Formula(0.3048)),),
    )
    wanted = Interpretation(
        name="wanted",
        types=(*chain("W", "Yards"), *outer("Wanted", "Yards", "W0")),
        mappings=(TypeMapping("Root", "Wanted", "out"),),
        rules=(Rule("Metres", "yards"),),
        conversions=(converts("yards", "Metres", "Yards", Formula(1.0, 0.0, 0.9144)),),
    )
    held, found = load_all((root, sent, wanted))
    assert {"sent", "wanted"} <= {*held.names}, found
    batch, through = both(held)
    result = event()
    ends = [result["about"], result["part"]["rest"]]
    for end in ends:
        while "below" in end:
            end = end["below"]
        end["last"] = 9.144
    data = msgspec.json.encode(result)
    assert batch([data]) == [through(data)]
    results = through(data)
    assert results is not None
    assert b'"last":10.0' in results


def test_an_attribute_that_is_dropped_is_not_missed() -> None:
    dropped = Interpretation(
        name="sent",
        types=outer("Sent", "Feet", "C0"),
        mappings=(TypeMapping("Sent", "Root", "in", (DropAttribute("about"),)),),
        rules=(Rule("Feet", "metres"),),
        conversions=(converts("metres", "Feet", "Metres", Formula(0.3048)),),
    )
    part, whole = outer("Root", "Metres", "C0")
    bare = ComplexType("Root", tuple(each for each in whole.attributes if each.name != "about"))
    root = Interpretation(name="root", parent="", types=(FEET, METRES, *chain("C"), part, bare))
    held, found = load_all((root, dropped))
    assert "sent" in held, found
    plans = [(held.plan("sent", "Sent", "in"), held.types_met("sent"))]
    batch, through = compile_batch_path(plans), compile_event_path(plans)
    assert batch is not None
    assert through is not None
    data = msgspec.json.encode(event())
    assert batch([data]) == [through(data)]


@pytest.mark.parametrize("level", range(LEVELS))
@pytest.mark.parametrize("key", ["t", "is it", "below"])
def test_an_object_that_does_not_fit_its_type_is_never_passed_on(level: int, key: str) -> None:
    batch, through = PLAIN
    several: list[bytes] = []
    for odd in (None, 5, 1.5, True, False, [], {}, "x", "\x7f", "\x1f", "é", '"'):
        result = event()
        at = result["about"]
        for _ in range(level):
            at = at["below"]
        at[{"t": f"t{level}", "below": "below" if level + 1 < LEVELS else "last"}.get(key, key)] = (
            odd
        )
        several.append(msgspec.json.encode(result))
    found = batch(several)
    assert found == [through(data) for data in several]
    assert any(one is None for one in found)
    assert any(one is not None for one in found)


@pytest.mark.parametrize(
    "text",
    [rb"\u0041", rb"\/", rb"\n", b"\n", b"\x00", b"\xff", b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80"],
    ids=ascii,
)
def test_texts_that_can_be_written_in_two_ways_come_out_in_one(text: bytes) -> None:
    batch, through = PLAIN
    regular = msgspec.json.encode(event("HERE"))
    several = [regular.replace(b"HERE", text, count) for count in (1, 2, 7, -1)]
    assert batch(several) == [through(data) for data in several]
