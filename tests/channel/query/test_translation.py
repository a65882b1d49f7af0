"""Conditions in a consumer's own terms: thresholds to the last bit, look-ups, what is counted."""

import json
import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.index_plan import explain_query, plan_lookup
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.postgres_sql import to_sql
from rapport.channel.query.query_kinds import (
    VIEWS,
    InterpretationView,
    OwnTermsMatcher,
    make_query,
)
from rapport.channel.query.translation import Untranslatable, translate
from rapport.channel.query.tree import (
    Between,
    Compare,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    print_condition,
)
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.core.terms import (
    ABSENT,
    ANY,
    Affine,
    Cases,
    Constant,
    Elements,
    Linear,
    Lookup,
    Members,
    Opaque,
    Same,
    float_range,
    term_at,
)
from support.judge.conditions import truth

FAHRENHEIT = Linear(("data", "t"), (Affine(9.0, 160.0, 5.0),))
MISSED = 0.10000000000000005
"""Three times no float."""
STATES = Lookup(("data", "s"), (("an", "on"), ("aus", "off"), ("ein", "on")))


def stored(data: Any, kind: str = "w", position: int = 1) -> StoredEvent:
    return StoredEvent(position, 0, Event("s", "i", kind, "", 0, json.dumps(data).encode(), {}))


def members(**words: Any) -> Members:
    return Members(("data",), words, rest=True)


# --- thresholds -----------------------------------------------------------------------------------

numbers = st.floats(allow_nan=False, allow_infinity=False)
factors = st.floats(1e-6, 1e6) | st.floats(-1e6, -1e-6) | st.sampled_from([1.0, -1.0, 9.0, 0.3048])
steps = st.builds(Affine, factors, st.floats(-1e9, 1e9) | st.just(0.0), factors)
linears = st.lists(steps, min_size=1, max_size=3).map(lambda all: Linear(("data", "t"), tuple(all)))
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


@pytest.mark.slow
@given(linears, numbers, operators, st.sampled_from([0, 1, -1, 5, -5]))
def test_a_threshold_is_exact_to_the_last_bit(
    term: Linear, root: float, operator: Any, steps_away: int
) -> None:
    seen = term.apply(root)
    if not math.isfinite(seen):
        return
    wanted = seen
    for _ in range(abs(steps_away)):
        wanted = math.nextafter(wanted, math.copysign(math.inf, steps_away))
    if not math.isfinite(wanted):
        return
    own = Compare(operator, Field(("data", "x")), Literal(wanted))
    found = translate(own, members(x=term))
    for near in (root, math.nextafter(root, math.inf), math.nextafter(root, -math.inf), -root):
        if math.isfinite(near) and math.isfinite(term.apply(near)):
            expected = truth(own, {"data": {"x": term.apply(near)}})
            assert truth(found, {"data": {"t": near}}) is expected


@given(linears, st.integers(-(2**60), 2**60), operators)
def test_large_whole_numbers_are_rounded_as_the_transformer_does(
    term: Linear, root: int, operator: Any
) -> None:
    seen = term.apply(float(root))
    if not math.isfinite(seen):
        return
    own = Compare(operator, Field(("data", "x")), Literal(seen))
    found = translate(own, members(x=term))
    assert truth(found, {"data": {"t": root}}) is truth(own, {"data": {"x": seen}})


def test_a_negative_factor_turns_the_comparison() -> None:
    depth = Linear(("data", "height"), (Affine(-1.0, 0.0, 1.0),))
    found = translate(parse_condition("data.depth > 3"), members(depth=depth))
    assert print_condition(found) == "data.height <= -3.0000000000000004"


def test_a_value_that_no_number_of_root_leads_to_is_never_met() -> None:
    coarse = Linear(("data", "t"), (Affine(3.0, 0.0, 1.0),))
    assert float_range(coarse, "=", MISSED) is None
    own, found = parse_condition(f"data.x = {MISSED}"), members(x=coarse)
    assert print_condition(translate(own, found)) == "data.t BETWEEN 1 AND 0"
    unequal = translate(parse_condition(f"data.x <> {MISSED}"), found)
    assert [truth(unequal, {"data": {"t": value}}) for value in (5.0, None)] == [True, None]


def test_thresholds_beyond_all_numbers_hold_for_all_or_none() -> None:
    found = members(x=FAHRENHEIT)
    huge = Literal(10**400)
    for operator, expected in (("<", True), ("<>", True), (">", False), ("=", False)):
        own = translate(Compare(cast(Any, operator), Field(("data", "x")), huge), found)
        assert truth(own, {"data": {"t": 5.0}}) is expected
        assert truth(own, {"data": {}}) is None


# --- look-ups -------------------------------------------------------------------------------------

values = st.sampled_from(["on", "off", "K", 5, 2.5, True, False, None])
keys = st.sampled_from(["a", "b", "c", 1, 2.5, True, False])
lists = st.builds(
    Lookup,
    st.just(("data", "s")),
    st.dictionaries(keys, values, max_size=4).map(lambda found: tuple(found.items())),
    values,
) | st.builds(
    Lookup,
    st.just(("data", "s")),
    st.dictionaries(keys, values, max_size=4).map(lambda found: tuple(found.items())),
)
X = Field(("data", "x"))
literals = st.sampled_from(["on", "off", "K", 5, 2, True]).map(Literal)
leaves = st.one_of(
    st.builds(Compare, operators, st.just(X), literals),
    st.builds(Compare, operators, literals, st.just(X)),
    st.builds(In, st.just(X), st.lists(literals, min_size=1, max_size=3).map(tuple)),
    st.builds(Between, st.just(X), literals, literals),
    st.builds(Like, st.just(X), st.sampled_from(["o%", "K", "%"])),
    st.just(IsNull(X)),
    st.just(X),
)


@pytest.mark.slow
@given(lists, leaves, st.sampled_from(["a", "b", "c", "d", 1, 1.0, 2.5, True, False, None]))
def test_a_look_up_becomes_the_keys_that_lead_to_what_is_asked(
    term: Lookup, own: Any, key: Any
) -> None:
    table = {(isinstance(one, bool), one): value for one, value in term.entries}
    seen: Any = None
    if key is not None:
        found = table.get((isinstance(key, bool), key), term.otherwise)
        if not isinstance(found, str | int | float | None):
            return  # rejected
        seen = found
    for condition in (own, Not(own)):
        in_root = translate(condition, members(x=term))
        expected = truth(condition, {"data": {"x": seen}})
        assert truth(in_root, {"data": {"s": key}}) is expected
        assert compile_condition(in_root)(stored({"s": key})) is (expected is True)
        assert parse_condition(print_condition(in_root)) == in_root


def test_a_look_up_compared_with_another_field_is_not_sayable() -> None:
    with pytest.raises(Untranslatable) as caught:
        translate(parse_condition("data.state = data.t"), members(state=STATES))
    assert caught.value.paths == ("data.state", "data.t")


# --- shapes ---------------------------------------------------------------------------------------


def test_paths_lead_through_objects_lists_and_what_is_not_there() -> None:
    line = Members(
        ("data", "lines", ANY),
        {"price": Linear(("data", "lines", ANY, "cost"), (Affine(2.0, 0.0, 1.0),))},
        rest=True,
    )
    whole = Members(
        ("data",),
        {
            "items": Elements(("data", "lines"), line),
            "lines": ABSENT,
            "place": Members(None, {"x": Same(("data", "x"))}, rest=False),
            "kind": Constant("sale"),
        },
        rest=True,
    )
    said = {
        "data.items[3].price >= 8": "data.lines[3].cost >= 4.0",
        "data.items[0].name = 'a'": "data.lines[0].name = 'a'",
        "data.items IS NULL": "data.lines IS NULL",
        "data.lines IS NULL": "TRUE",
        "data.place.x = 1 AND data.place IS NOT NULL": "data.x = 1",
        "data.place.y = 1": "1 / 0 = 0",
        "data.kind = 'sale'": "TRUE",
        "data.kind LIKE 'b%'": "FALSE",
        "data.kind.more = 1": "1 / 0 = 0",
        "data.items.price = 1": "1 / 0 = 0",
        "data.a + data.items[0].price > 2": "data.a + data.lines[0].cost * 2.0 > 2",
        "data.kind + 1 > data.a": "1 / 0 + 1 > data.a",
    }
    for own, in_root in said.items():
        assert print_condition(translate(parse_condition(own), whole)) == in_root


def test_subtypes_are_sayable_where_they_agree() -> None:
    whole = Cases((members(x=FAHRENHEIT), members(x=FAHRENHEIT, y=STATES)))
    assert term_at(whole, ("x",)) == FAHRENHEIT
    assert isinstance(term_at(whole, ("y",)), Opaque)


# --- the index and PostgreSQL ---------------------------------------------------------------------


def test_what_is_said_in_root_is_looked_up_by_index() -> None:
    own = parse_condition("data.temp > 86 AND data.state = 'on'")
    found = translate(own, members(temp=FAHRENHEIT, state=STATES))
    assert plan_lookup(found, ["data.t", "data.s"]) is not None
    query = make_query("sql", print_condition(found))
    assert explain_query(query, ["data.t"]) == "looked up: data.t; then tried on what was found"
    assert 30.000000000000004 in to_sql(query).parameters


# --- the kind `own` -------------------------------------------------------------------------------


class Desk:
    """A consumer that sees temperatures in degrees Fahrenheit and cannot see what has none."""

    def __init__(self) -> None:
        self.version = "1"
        self.transformed = 0

    def find(self, name: str) -> InterpretationView:
        if name != "us-desk":
            raise UnknownName("interpretation", name, ["us-desk"], code="interpretation.unknown")
        upper = Members(("data",), {"temp": FAHRENHEIT, "loud": Opaque("a function")}, rest=True)
        return InterpretationView(self.version, {"w": upper}, self.see)

    def see(self, event: StoredEvent) -> list[StoredEvent]:
        self.transformed += 1
        data = json.loads(event.event.data)
        if "rejected" in data:
            return []
        temp = None if data.get("t") is None else FAHRENHEIT.apply(data["t"])
        loud = str(data.get("s")).upper()
        return [stored({**data, "temp": temp, "loud": loud}, event.event.type, event.position)]


@pytest.fixture
def desk() -> Any:
    desk = Desk()
    VIEWS.use(desk.find)
    yield desk
    VIEWS.__init__()  # type: ignore[misc]


def test_a_query_in_own_terms_transforms_only_what_root_cannot_refuse(desk: Desk) -> None:
    query = make_query("own", {"interpretation": "us-desk", "where": "data.temp > 86"})
    assert make_query("own", query.text).text == query.text
    found = [query.matches(stored({"t": t})) for t in (29.0, 30.0, 30.000000000000004, 31.0)]
    assert found == [False, False, True, True]
    assert desk.transformed == 2
    assert not query.matches(stored({"t": 99.0}, kind="other"))
    assert query.condition is not None
    assert plan_lookup(query.condition, ["data.t"]) is not None


def test_what_is_rejected_does_not_match_and_is_counted(desk: Desk) -> None:
    own = OwnTermsMatcher(parse_condition("NOT data.temp > 86"), desk.find("us-desk"))
    assert own(stored({"t": 3.0}))
    assert not own(stored({"t": 3.0, "rejected": 1}))
    assert not own(stored({"t": 99.0, "rejected": 1}))
    assert own.rejected == 1


def test_what_cannot_be_said_in_root_is_decided_after_the_transformation(desk: Desk) -> None:
    asked = {"interpretation": "us-desk", "where": "data.temp > 86 AND data.loud = 'X'"}
    query = make_query("own", asked)
    found = [query.matches(stored(data)) for data in ({"t": 31.0, "s": "x"}, {"t": 31.0, "s": "y"})]
    assert found == [True, False]
    before = desk.transformed
    assert not query.matches(stored({"t": 3.0, "s": "x"}))
    assert desk.transformed == before
    view = desk.find("us-desk")
    own = OwnTermsMatcher(parse_condition(asked["where"]), view)
    assert print_condition(own.in_root) == "type = 'w' AND data.t >= 30.000000000000004"
    assert own.untranslatable == ("data.loud",)


def test_templates_are_in_own_terms_too(desk: Desk) -> None:
    query = make_query("own", {"interpretation": "us-desk", "template": {"data": {"temp": 86}}})
    assert make_query("own", query.text).text == query.text
    assert query.matches(stored({"t": 30.0}))
    assert not query.matches(stored({"t": 30.1}))


def test_a_kept_query_refuses_when_its_interpretation_changed_and_a_new_one_goes_on(
    desk: Desk,
) -> None:
    query = make_query("own", {"interpretation": "us-desk", "where": "data.temp > 86"})
    desk.version = "2"
    with pytest.raises(InvalidInput) as caught:
        query.matches(stored({"t": 31.0}))
    assert caught.value.code == "query.interpretation_changed"
    assert make_query("own", query.text).matches(stored({"t": 31.0}))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"interpretation": "us-dsk"}, "interpretation.unknown"),
        ({"where": "data.x = 1"}, "query.bad_query"),
        ("{", "query.bad_query"),
        ({"interpretation": "us-desk", "where": "data.x ="}, "query.unexpected"),
        ({"interpretation": "us-desk", "where": "x", "template": {}}, "query.bad_query"),
        ({"interpretation": "us-desk", "template": {"nope": 1}}, "query.unknown_field"),
    ],
)
def test_a_faulty_query_in_own_terms_is_refused(desk: Desk, asked: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_query("own", asked)
    assert caught.value.code == code


def test_without_any_view_the_interpretation_is_unknown() -> None:
    with pytest.raises(UnknownName):
        make_query("own", {"interpretation": "us-desk"})
