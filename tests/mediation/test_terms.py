"""A condition in the consumer's words means in root what it means of the transformed value."""

import json
import math
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.query_kinds import OwnTermsMatcher
from rapport.channel.query.translation import (
    Untranslatable,
    translate,
    translate_needed,
    translate_types,
)
from rapport.channel.query.tree import And as AndAll
from rapport.channel.query.tree import (
    Arithmetic,
    Between,
    Compare,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    print_condition,
)
from rapport.core.errors import UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.core.terms import ABSENT, Constant, Linear, Opaque, Same, term_at
from rapport.core.terms import Lookup as Listed
from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.concepts import ConceptAttribute, canonical_model, canonical_value
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    UnitChange,
    converts,
)
from rapport.mediation.interpretations.model import (
    CreateAttribute,
    DropAttribute,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import ReplaceType, apply_change, load_all
from rapport.mediation.outgoing.terms import converted_term, reading_term, terms_of
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType, Types
from support.examples import examples
from support.judge.conditions import truth
from support.judge.seeing import Seeing, view_of

EXAMPLES = int(os.environ.get("RAPPORT_MEDIATION_EXAMPLES", examples(300)))
NUMBERS = st.sampled_from(
    [0, 1, -2, 30, 30.0, 25.5, -17.77777777777778, 1e6, 2**53 + 1, 1e300, 0.1, -0.0, 5e-324]
)
WORDS = st.sampled_from(["x", "y", "z", "K1"])

# --- one interpretation, word by word -----------------------------------------------------------

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "state": ConceptAttribute("text"),
        "position": ConceptAttribute("point"),
    }
}
US = Interpretation(
    name="us-desk",
    types=(
        PrimitiveType("Word", "text"),
        PrimitiveType("degF", "number"),
        PrimitiveType("ft", "number"),
        ComplexType("Spot", (Attribute("x", "ft"), Attribute("y", "ft"))),
        ComplexType(
            "UsStation",
            (
                Attribute("name", "text"),
                Attribute("time", "Time", optional=True),
                Attribute("temp", "degF", optional=True),
                Attribute("state", "Word", optional=True),
                Attribute("position", "Spot", optional=True),
                Attribute("country", "text"),
            ),
        ),
    ),
    mappings=(
        TypeMapping(
            "station",
            "UsStation",
            "out",
            (
                RenameAttribute("key", "name"),
                RenameAttribute("temperature", "temp"),
                CreateAttribute("country", "text", "US"),
            ),
        ),
    ),
    rules=(
        Rule("degC", "to-degF", "out"),
        Rule("m", "to-ft", "out"),
        Rule("station.state", "words", "out"),
    ),
    conversions=(
        converts("to-degF", "degC", "degF", UnitChange("degC", "degF")),
        converts("to-ft", "m", "ft", UnitChange("m", "ft")),
        converts("words", "text", "Word", Lookup((("an", "on"), ("aus", "off"), ("ein", "on")))),
    ),
)


@pytest.fixture(scope="module")
def desk() -> Any:
    root, problems = canonical_model(CONCEPTS)
    assert problems == []
    found, outcomes = load_all([root, US])
    assert "us-desk" in found, outcomes
    return found


def test_every_term_is_found_with_its_path(desk: Any) -> None:
    whole = terms_of(desk, "us-desk", "station").whole
    assert term_at(whole, ("name",)) == Same(("data", "key"))
    temperature = term_at(whole, ("temp",))
    assert isinstance(temperature, Linear)
    assert (temperature.path, temperature.apply(25.0)) == (("data", "temperature"), 77.0)
    state = term_at(whole, ("state",))
    assert isinstance(state, Listed)
    assert state.entries == (("an", "on"), ("aus", "off"), ("ein", "on"))
    assert term_at(whole, ("country",)) == Constant("US")
    assert term_at(whole, ("temperature",)) == term_at(whole, ("key",)) == ABSENT
    assert term_at(whole, ("position",)) == Same(("data", "position"))
    x = term_at(whole, ("position", "x"))
    assert isinstance(x, Linear)
    assert x.path == ("data", "position", "x")


@pytest.mark.parametrize(
    ("own", "in_root"),
    [
        ("data.temp > 86", "data.temperature >= 30.000000000000004"),
        ("data.temp >= 86", "data.temperature >= 30.0"),
        ("86 > data.temp", "data.temperature <= 29.999999999999996"),
        ("data.temp = 77", "data.temperature BETWEEN 24.999999999999996 AND 25.0"),
        ("data.temp = 'hot'", "data.temperature BETWEEN 1 AND 0"),
        ("data.name LIKE 'K%'", "data.key LIKE 'K%'"),
        ("data.state = 'on'", "data.state IN ('an', 'ein')"),
        ("data.state LIKE 'of%'", "data.state = 'aus'"),
        ("NOT data.state = 'on'", "data.state NOT IN ('an', 'ein')"),
        ("data.country = 'US' AND data.name = 'a'", "data.key = 'a'"),
        ("data.country = 'DE' OR data.name = 'a'", "data.key = 'a'"),
        ("data.temperature = 5", "1 / 0 = 0"),
        ("data.position.x * 2 > data.temp", None),
        ("type = 'a' AND position > 5", "type = 'a' AND position > 5"),
    ],
)
def test_conditions_are_translated_to_the_canonical_model(
    desk: Any, own: str, in_root: str | None
) -> None:
    whole = terms_of(desk, "us-desk", "station").whole
    found = translate(parse_condition(own), whole)
    text = print_condition(found)
    assert parse_condition(text) == found
    if in_root is not None and "77" not in own:
        assert text == in_root


def test_readings_are_queried_in_the_consumers_terms(desk: Any) -> None:
    forms = {
        f"station.{name}": terms_of(
            desk, "us-desk", "station", given=reading_term(name, attribute.type)
        ).whole
        for name, attribute in CONCEPTS["station"].items()
    }
    found = translate_types(parse_condition("data.temp > 86 AND time > 5"), forms)
    assert print_condition(found) == (
        "time > 5 AND type = 'station.temperature' AND data.value[0] >= 30.000000000000004"
    )
    key = print_condition(translate_types(parse_condition("data.name = 'K'"), forms))
    assert key.count(" OR ") == 2
    transform = make_transformer(desk, "us-desk", "station", "out")
    for kind, data in (
        ("temperature", {"key": "K", "value": [31.0]}),
        ("temperature", {"key": "K", "value": [30.0]}),
        ("position", {"key": "K", "value": [3.0, 4.0]}),
        ("state", {"key": "K", "value": ["an"]}),
    ):
        attribute = CONCEPTS["station"][kind]
        seen = transform(canonical_value(kind, attribute.type, data, 9))
        for own in ("data.temp > 86", "data.position.y > 13.1", "data.state = 'on'", "data.time=9"):
            condition = parse_condition(own)
            stored = event(f"station.{kind}", data)
            assert compile_condition(translate_types(condition, forms))(stored) is (
                truth(condition, {"data": seen}) is True
            )


def test_a_view_answers_queries_over_readings_in_the_words_of_the_desk(desk: Any) -> None:
    view = view_of(desk, "us-desk", CONCEPTS)
    assert sorted(view.forms) == [f"station.{name}" for name in sorted(CONCEPTS["station"])]
    own = OwnTermsMatcher(parse_condition("data.temp > 86 AND data.country = 'US'"), view)
    hot, mild = {"key": "K", "value": [31.0]}, {"key": "K", "value": [30.0]}
    assert own(event("station.temperature", hot))
    assert not own(event("station.temperature", mild))
    assert not own(event("station.state", {"key": "K", "value": ["an"]}))
    assert not own(event("nobody.knows", hot))
    (seen,) = view.see(event("station.temperature", hot))
    assert json.loads(seen.event.data) == {
        "name": "K",
        "time": 9,
        "temp": pytest.approx(87.8),
        "country": "US",
    }


def test_events_that_the_desk_cannot_get_are_rejected_and_counted(desk: Any) -> None:
    seeing = Seeing(desk, "us-desk", CONCEPTS)
    broken = StoredEvent(1, 0, Event("s", "i", "station.temperature", "", 9, b"{", {}))
    for unseen in (
        event("station.state", {"key": "K", "value": ["neither"]}),
        event("station.temperature", {"key": "K"}),
        event("nobody", 5),
        broken,
    ):
        assert seeing.see(unseen) == ()
    assert (seeing.transformed, seeing.rejected) == (0, 4)
    with pytest.raises(UnknownName):
        view_of(desk, "us-dsk", CONCEPTS)


# --- random types, plans, values and conditions -------------------------------------------------


def event(kind: str, data: Any) -> StoredEvent:
    return StoredEvent(1, 0, Event("s", "i", kind, "", 9, json.dumps(data).encode(), {}))


def conversions(draw: st.DrawFn, kind: str, name: str) -> Conversion:
    """Out of `kind`; to a type of its own, so that the rule cannot be meant for another."""
    number = st.sampled_from([1.0, -1.0, 1.8, 0.3048, -3.0, 9.0, 1e-3, 7.0, 1e200])
    add = st.sampled_from([0.0, 32.0, -160.0, 1e10, 0.1])
    formula = st.builds(Formula, number, add, st.sampled_from([1.0, 5.0, -3.0, 1e-3]))
    units = st.sampled_from([UnitChange("degC", "degF"), UnitChange("m", "ft")])
    texts = st.sampled_from(["on", "off", "K", 5, 2.5, True, None])
    entries = st.lists(st.tuples(st.sampled_from(["x", "y", "K1"]), texts), max_size=4).map(tuple)
    list_of = st.builds(Lookup, entries) | st.builds(Lookup, entries, texts)
    numbers = st.lists(st.tuples(NUMBERS, texts), max_size=4).map(tuple)
    if kind == "number":
        step = draw(formula | units)
        shape = draw(st.sampled_from(("one", "one", "chain", "list", "opaque", "same")))
        if shape == "one":
            return converts(name, kind, "number", step)
        if shape == "chain":
            first = converts("a", kind, kind, step)
            second = converts("b", kind, kind, draw(formula))
            return converts(name, kind, "number", Chain((first, second)))
        if shape == "list":
            return converts(name, kind, "json", Lookup(draw(numbers), draw(texts)))
        if shape == "opaque":
            return converts(name, kind, "number", Call("negate"))
    elif kind == "text":
        shape = draw(st.sampled_from(("list", "list", "chain", "same")))
        if shape == "list":
            return converts(name, kind, "json", draw(list_of))
        if shape == "chain":
            first = converts("a", kind, "json", draw(list_of))
            second = converts("b", "json", "json", draw(list_of))
            return converts(name, kind, "json", Chain((first, second)))
    return converts(name, kind, kind, Identity())


FUNCTIONS = {"negate": lambda value: -value}
INNER = (("i", "number"), ("j", "text"))


@st.composite
def consumers(draw: st.DrawFn) -> list[Interpretation]:
    """Root and a consumer that sees its one type in another shape, with other values."""
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=2, max_size=5))
    kinds = st.sampled_from(["number", "number", "text", "boolean", "Inner", "[number]", "[Inner]"])
    inner = tuple(Attribute(name, kind, draw(st.booleans())) for name, kind in INNER)
    attributes = [Attribute(name, draw(kinds), draw(st.booleans())) for name in names]
    rules, made = [], []
    places = [(f"World.{each.name}", each.type) for each in attributes]
    places += [(f"World.Inner.{name}", kind) for name, kind in INNER]
    places += [(f"World.{each.name}.number", "number") for each in attributes if "[n" in each.type]
    reachable = any("Inner" in each.type for each in attributes)
    results: dict[str, str] = {}
    for number, (pattern, kind) in enumerate(places):
        wanted = kind in ("number", "text") and draw(st.integers(0, 3)) > 0
        if not wanted or ("Inner" in pattern and not reachable) or ".number" in pattern:
            continue
        conversion = conversions(draw, kind, f"c{number}")
        made.append(conversion)
        rules.append(Rule(pattern, conversion.name, "out"))
        results[pattern] = kind if isinstance(conversion.how, Identity) else conversion.result
    shape: list[Any] = []
    promised = []
    for attribute in attributes:
        name, kind = attribute.name, results.get(f"World.{attribute.name}", attribute.type)
        fate = draw(st.sampled_from(("stay", "stay", "rename", "drop", "merge", "split")))
        if fate == "drop":
            shape.append(DropAttribute(name))
            continue
        if fate == "rename":
            shape.append(RenameAttribute(name, name := f"{name}2"))
        elif fate == "merge" and not attribute.optional and kind == "number":
            shape.append(MergeAttributes((name,), f"{name}3", "gather"))
            promised.append(Attribute(f"{name}3", "Wrap"))
            continue
        elif fate == "split" and (attribute.type, attribute.optional) == ("Inner", False):
            shape.append(SplitAttribute(name, (f"{name}4", f"{name}5"), "scatter"))
            promised += [Attribute(f"{name}4", "number"), Attribute(f"{name}5", "text")]
            continue
        promised.append(Attribute(name, kind.replace("Inner", "Inside"), attribute.optional))
    if draw(st.booleans()):
        value = draw(st.sampled_from(["up", 5, True]))
        shape.append(CreateAttribute("made", "json", value))
        promised.append(Attribute("made", "json"))
    inside = tuple(
        Attribute(each.name, results.get(f"World.Inner.{each.name}", each.type), each.optional)
        for each in inner
    )
    root = Interpretation(
        name="root",
        parent="",
        types=(ComplexType("Inner", inner), ComplexType("World", tuple(attributes))),
    )
    made += [
        Conversion("gather", ("number",), ("Wrap",), Gather(("w",))),
        Conversion("scatter", ("Inner",), ("number", "text"), Scatter(("i", "j"))),
    ]
    own = Interpretation(
        name="own",
        types=(
            ComplexType("Wrap", (Attribute("w", "number"),)),
            ComplexType("Inside", inside),
            ComplexType("Seen", tuple(promised)),
        ),
        mappings=(TypeMapping("World", "Seen", "out", tuple(shape)),),
        rules=tuple(rules),
        conversions=tuple(made),
    )
    return [root, own]


def values(draw: st.DrawFn, kind: str, types: dict[str, ComplexType]) -> Any:
    """Of a type; sometimes not quite."""
    if draw(st.integers(0, 40)) == 0:
        return draw(st.sampled_from([None, "x", True, [], {}, 10**400]))
    if kind.startswith("["):
        return [values(draw, kind[1:-1], types) for _ in range(draw(st.integers(0, 2)))]
    if kind in types:
        found = {}
        for attribute in types[kind].attributes:
            fate = draw(st.integers(0, 5)) if attribute.optional else 9
            if fate > 1:
                found[attribute.name] = values(draw, attribute.type, types)
            elif fate == 1:
                found[attribute.name] = None
        return found
    return draw({"number": NUMBERS, "text": WORDS, "boolean": st.booleans()}[kind])


def paths(seen: ComplexType, root: ComplexType) -> list[tuple[str | int, ...]]:
    """Paths a consumer may ask for, with a few that are not there."""
    found: list[tuple[str | int, ...]] = [("nowhere",), *((each.name,) for each in root.attributes)]
    for attribute in seen.attributes:
        name, kind = attribute.name, attribute.type
        if kind == "Wrap":
            found += [(name, "w")] * 4
        elif kind.startswith("["):
            found += [(name, 0), (name, 0, "i"), (name, 1, "j"), (name, "i")] * 2
        elif kind in ("Inner", "Inside"):
            found += [(name, "i"), (name, "j"), (name, "i"), (name, "j"), (name,)]
        else:
            found += [(name,)] * 4
    return found


def leaves(draw: st.DrawFn, field: Any) -> Any:
    literal = (
        NUMBERS | st.sampled_from([86, 77.0, 98.6, "on", "K", "x", True, False, 10**400, -85.3])
    ).map(Literal)
    operator = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    number = (
        field
        | NUMBERS.map(Literal)
        | st.builds(Arithmetic, st.sampled_from("+-*/"), field, field | NUMBERS.map(Literal))
        | st.builds(Negative, field)
    )
    return draw(
        st.one_of(
            st.builds(Compare, operator, field, literal),
            st.builds(Compare, operator, field, literal),
            st.builds(Compare, operator, literal, field),
            st.builds(Compare, operator, number, number),
            st.builds(Between, field, literal, literal),
            st.builds(Between, number, number, number),
            st.builds(In, field, st.lists(literal, min_size=1, max_size=3).map(tuple)),
            st.builds(Like, field, st.sampled_from(["o%", "K_", "%", "x"])),
            st.builds(IsNull, field),
            field,
        )
    )


def conditions(draw: st.DrawFn, field: Any, depth: int = 2) -> Any:
    form = draw(st.integers(0, 4)) if depth else 0
    if form <= 1:
        return leaves(draw, field)
    if form == 2:
        return Not(conditions(draw, field, depth - 1))
    parts = tuple(conditions(draw, field, depth - 1) for _ in range(2))
    return AndAll(parts) if form == 3 else Or(parts)


def near(draw: st.DrawFn, term: Any, value: Any) -> Any:
    """A literal that a value of root hits exactly, or misses by the least."""
    if not isinstance(term, Linear) or value.__class__ not in (int, float):
        return None
    try:
        hit = term.apply(float(value))
    except OverflowError:
        return None
    step = draw(st.sampled_from([0, 0, 1, -1]))
    hit = math.nextafter(hit, math.inf * step) if step else hit
    return hit if math.isfinite(hit) else None


@pytest.mark.slow
@given(consumers(), st.data())
@settings(
    max_examples=EXAMPLES // 3,
    deadline=None,
    derandomize=examples(300) == EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
def test_a_condition_in_own_terms_selects_the_same_before_and_after_the_conversion(
    family: list[Interpretation], data: st.DataObject
) -> None:
    interpretations, outcomes = load_all(family)
    assert "own" in interpretations, outcomes["own"][1]
    types = {each.name: each for each in family[0].types if isinstance(each, ComplexType)}
    seen_type = next(each for each in family[1].types if each.name == "Seen")
    assert isinstance(seen_type, ComplexType)
    whole = terms_of(interpretations, "own", "World").whole
    transform = make_transformer(interpretations, "own", "World", "out", FUNCTIONS)
    known = paths(seen_type, types["World"])
    field = st.sampled_from(known).map(lambda path: Field(("data", *path)))
    for _ in range(12):
        value = data.draw(st.composite(lambda draw: values(draw, "World", types))())
        condition = data.draw(st.composite(lambda draw: conditions(draw, field))())
        path = data.draw(st.sampled_from(known))
        term = term_at(whole, path)
        if isinstance(term, Linear) and isinstance(value, dict):
            held = value.get(str(term.path[1])) if len(term.path) == 2 else None
            hit = data.draw(st.composite(lambda draw, t=term, h=held: near(draw, t, h))())
            if hit is not None:
                operator = data.draw(st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]))
                condition = Compare(operator, Field(("data", *path)), Literal(hit))
        try:
            seen = transform(value)
        except RejectedValue:
            continue
        expected = truth(condition, {"data": seen})
        needed = truth(translate_needed(condition, whole), {"data": value})
        assert needed is True or expected is not True
        try:
            found = translate(condition, whole)
        except Untranslatable as error:
            assert error.paths
            continue
        assert truth(found, {"data": value}) is expected, print_condition(found)
        if 10**400 not in (value.values() if isinstance(value, dict) else ()):
            assert compile_condition(found)(event("World", value)) is (expected is True)


# --- what cannot be said ------------------------------------------------------------------------


def test_opaque_terms_are_named() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(ComplexType("Name", (Attribute("first", "text"), Attribute("last", "text"))),),
    )
    own = Interpretation(
        name="own",
        types=(ComplexType("Full", (Attribute("name", "text"),)),),
        mappings=(
            TypeMapping(
                "Name", "Full", "out", (MergeAttributes(("first", "last"), "name", "join"),)
            ),
        ),
        conversions=(Conversion("join", ("text", "text"), ("text",), Join()),),
    )
    found, _ = load_all([root, own])
    whole = terms_of(found, "own", "Name").whole
    assert isinstance(term_at(whole, ("name",)), Opaque)
    condition = parse_condition("data.name = 'a b' AND position > 5")
    with pytest.raises(Untranslatable) as caught:
        translate(condition, whole)
    assert caught.value.paths == ("data.name",)
    assert caught.value.code == "query.untranslatable"
    assert print_condition(translate_needed(condition, whole)) == "position > 5"


def test_a_replaced_type_is_queried_through_both_stages() -> None:
    celsius = ComplexType("Report", (Attribute("t", "number"), Attribute("s", "text")))
    kelvin = ComplexType(
        "Report2", (Attribute("t", "number"), Attribute("s", "text"), Attribute("n", "text"))
    )
    root = Interpretation(name="root", parent="", types=(celsius,))
    own = Interpretation(
        name="own",
        rules=(Rule("Report.t", "double", "out"),),
        conversions=(converts("double", "number", "number", Formula(2.0)),),
    )
    found, _ = load_all([root, own])
    names = (("s", "s"),)
    replaced, problems = apply_change(
        found,
        ReplaceType(
            "Report",
            kelvin,
            forth=converts("forth", "Report", "Report2", Call("forth")),
            back=converts("back", "Report2", "Report", Rename(names)),
        ),
    )
    assert not [problem for problem in problems if problem.severity == "error"], problems
    term = term_at(terms_of(replaced, "own", "Report2").whole, ("t",))
    assert isinstance(term, Linear)
    assert (term.path, term.apply(4.0)) == (("data", "t"), 8.0)


def test_a_null_within_a_chain_is_looked_up_like_anything_else() -> None:
    first = converts("first", "text", "json", Lookup((("a", None), ("b", "x")), "y"))
    second = converts("second", "json", "json", Lookup((("x", 1),), 2))
    chain = converts("chain", "text", "json", Chain((first, second)))
    assert converted_term(chain, Same(("data", "s")), Types(())) == Listed(
        ("data", "s"), (("a", 2), ("b", 1)), otherwise=2
    )
    looked_up = converted_term(first, Same(("data", "s")), Types(()))
    assert converted_term(second, looked_up, Types(())) == Listed(
        ("data", "s"), (("a", None), ("b", 1)), otherwise=2
    )


def test_subtypes_that_agree_are_sayable_and_others_are_not() -> None:
    root = Interpretation(
        name="root",
        parent="",
        types=(
            ComplexType("Place", (Attribute("x", "number"), Attribute("y", "number"))),
            ComplexType("Tower", (Attribute("z", "number"),), ("Place",)),
            ComplexType("Seen", (Attribute("at", "Place"),)),
        ),
    )
    own = Interpretation(
        name="own",
        rules=(Rule("Place.x", "double", "out"), Rule("Tower.y", "double", "out")),
        conversions=(converts("double", "number", "number", Formula(2.0)),),
    )
    found, _ = load_all([root, own])
    whole = terms_of(found, "own", "Seen").whole
    assert isinstance(term_at(whole, ("at", "x")), Linear)
    assert isinstance(term_at(whole, ("at", "y")), Opaque)
    assert term_at(whole, ("at",)) == Same(("data", "at"))
