"""A policy in own terms over converted values is the rewritten policy over canonical values."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.query.parser import parse_condition
from rapport.channel.query.query_kinds import OwnTermsMatcher
from rapport.channel.query.tree import print_condition
from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import PolicyError, SiteError
from rapport.core.schema import AttributeType
from rapport.core.terms import ABSENT, Affine, Constant, Linear, Lookup, Members, Opaque, Same
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.compiler.interpretation import ConceptTerms, PolicyTerms, UntranslatableTerm
from rapport.policy.compiler.interpretation import canonical_properties as in_root
from rapport.policy.compiler.plan_text import predicate_text
from rapport.policy.language.tree import Property, SourceSpan
from rapport.policy.ontology import PairTable, PushSource, SiteFunction
from rapport.policy.operators.identities import satisfies
from rapport.policy.plan import Absent, Clause, Constraint, Plan
from rapport.policy.runner.local import LocalRunner
from rapport.site.interpretations import concepts_of, interpretations_of_site
from rapport.site.site import check_site, load_site
from rapport.tables.instances import Instances
from support.judge.evaluator import evaluate
from support.judge.occurrences import Reading
from support.judge.seeing import view_of
from support.varied.worlds import ONTOLOGY, WINDOW_MS, Pull, random_world, readings_batch

FEET = Affine(1250.0, 0.0, 381.0)
FAHRENHEIT = Linear(("warmth",), (Affine(9.0, 160.0, 5.0),))
STATES = Lookup(("status",), (("guest", "Gast"), ("employee", "Kraft"), ("boss", "Kraft")))
PEOPLE: dict[str, AttributeType] = {"status": "text", "position": "point", "warmth": "number"}
WARM = msgspec.structs.replace(ONTOLOGY, concepts={**ONTOLOGY.concepts, "person": PEOPLE})
OWN = PolicyTerms(
    "us-desk",
    {
        "human": ConceptTerms(
            "person",
            Members(
                (),
                {
                    "temp": FAHRENHEIT,
                    "warmth": ABSENT,
                    "status": ABSENT,
                    "state": STATES,
                    "country": Constant("US"),
                    "mood": Opaque("the conversion guess"),
                    "position": Members(
                        ("position",),
                        {
                            "x": Linear(("position", "x"), (FEET,)),
                            "y": Linear(("position", "y"), (FEET,)),
                        },
                        rest=True,
                    ),
                },
                rest=True,
            ),
        ),
        "room": ConceptTerms("room", Same(())),
    },
)
POLICY = """concepts
  human A ({0})
  human B
  room R (security='restricted')
conditions
  {1}
actions
  raise alarm
"""


def compiled(properties: str, condition: str = "A is inside R") -> Any:
    text = POLICY.format(properties, condition).replace(" ()", "")
    if "B" not in condition:
        text = text.replace("  human B\n", "")
    return compile_policy(text, name="p", ontology=WARM, window_ms=WINDOW_MS, terms=OWN)


def faults(properties: str, condition: str = "A is inside R") -> list[Any]:
    with pytest.raises(PolicyError) as caught:
        compiled(properties, condition)
    errors = [each for each in caught.value.problems if each.severity == "error"]
    return [(each.code, each.line, each.hint) for each in errors]


# --- names, thresholds, texts, lengths ------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "in_root"),
    [
        ("temp>86", [("warmth", ">=", 30.000000000000004)]),
        ("temp>=86", [("warmth", ">=", 30.0)]),
        ("temp<86", [("warmth", "<=", 29.999999999999996)]),
        ("temp=86", [("warmth", "=", 30.0)]),
        ("temp!=86", [("warmth", "!=", 30.0)]),
        ("state='Gast'", [("status", "=", "guest")]),
        ("country='US'", []),
        ("country!='DE'", []),
    ],
)
def test_properties_are_rewritten_to_root(own: str, in_root: list[Any]) -> None:
    side = compiled(own).plan.terms[0].first
    assert (side.concept, side.attribute) == ("person", "position")
    assert [(each.attribute, each.operator, each.value) for each in side.constraints] == in_root


MEASURED = msgspec.structs.replace(WARM, units={"person": {"warmth": "degC"}})


@pytest.mark.parametrize(
    ("own", "in_root"),
    [
        ("temp>86", ("warmth", ">=", 30.000000000000004)),
        ("temp above 86 degF", ("warmth", ">", 30.0)),
        ("temp at most 30 degC", ("warmth", "<=", 30.0)),
        ("temp is not below 303.15 K", ("warmth", ">=", 30.0)),
    ],
)
def test_a_property_with_a_unit_means_that_quantity_in_every_interpretation(
    own: str, in_root: tuple[str, str, float]
) -> None:
    text = POLICY.format(own, "A is inside R").replace("  human B\n", "")
    found = compile_policy(text, name="p", ontology=MEASURED, window_ms=WINDOW_MS, terms=OWN)
    (constraint,) = found.plan.terms[0].first.constraints
    attribute, operator, value = in_root
    assert (constraint.attribute, constraint.operator) == (attribute, operator)
    assert constraint.value == value


def test_a_unit_is_refused_where_the_interpretation_calculates_otherwise() -> None:
    text = POLICY.format("temp above 86 degF", "A is inside R").replace("  human B\n", "")
    with pytest.raises(PolicyError) as caught:
        compile_policy(text, name="p", ontology=WARM, window_ms=WINDOW_MS, terms=OWN)
    (problem,) = caught.value.problems
    assert problem.code == "policy.untranslatable"
    assert problem.hint == "write the number without a unit, as it is in these terms"


def test_both_sides_of_a_threshold_are_told() -> None:
    found = compiled("temp>86")
    assert [(each.written, each.root) for each in found.rewritten] == [
        ("temp > 86", "warmth >= 30.000000000000004")
    ]
    (hint,) = (each for each in found.problems if each.code == "policy.own_terms")
    assert (hint.severity, hint.line, hint.column) == ("hint", 2, 12)
    assert hint.message == (
        "temp > 86 in the terms of us-desk is warmth >= 30.000000000000004 in canonical terms"
    )


def test_a_length_without_a_unit_is_in_the_units_of_positions() -> None:
    for condition, metres in (
        ("A is within 16.4 of B", 16.4 * 0.3048),
        ("A is within 5m of B", 5.0),
        ("A is within 3ft of B", 0.9144),
    ):
        (term,) = compiled("", f"{condition}\n  A is inside R").plan.terms[:1]
        assert term.parameter == pytest.approx(metres, rel=1e-15)


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("mood='good'", "policy.untranslatable"),
        ("state='Kraft'", "policy.untranslatable"),
        ("state='Nobody'", "policy.untranslatable"),
        ("state<'Gast'", "policy.untranslatable"),
        ("country='DE'", "policy.untranslatable"),
        ("country>'A'", "policy.untranslatable"),
        ("warmth>5", "policy.unknown_attribute"),
        ("tmp>5", "policy.unknown_attribute"),
        ("temp='hot'", "policy.wrong_type"),
    ],
)
def test_untranslatable_conditions_are_refused_with_place_and_hint(own: str, code: str) -> None:
    ((found, line, hint),) = faults(own)
    assert (found, line) == (code, 2)
    assert hint


def test_a_concept_that_the_interpretation_has_no_words_for_is_refused() -> None:
    text = POLICY.format("", "A is inside R").replace(" ()", "").replace("  human B\n", "")
    only = msgspec.structs.replace(OWN, concepts={"human": OWN.concepts["human"]})
    with pytest.raises(PolicyError) as caught:
        compile_policy(text, name="p", ontology=WARM, window_ms=5, terms=only)
    assert [each.code for each in caught.value.problems] == ["policy.untranslatable"]


# --- comparisons of readings ----------------------------------------------------------------------

THERMOMETER = PushSource(
    name="thermometer", concept="person", attribute="warmth", key="person", value=("t",)
)
HOT = msgspec.structs.replace(
    WARM,
    sources={**WARM.sources, "thermometer": THERMOMETER},
    units={"person": {"warmth": "degC"}},
    functions={
        "apart": SiteFunction(
            name="apart", of=(("person", "position"), ("person", "position")), measure="distance"
        ),
        "rank": SiteFunction(
            name="rank",
            of=(("person", "id"),),
            lookup=PairTable(table="ranks", keys=("id",), value="rank"),
        ),
        "reach": SiteFunction(
            name="reach",
            of=(("person", "id"),),
            lookup=PairTable(table="ranks", keys=("id",), value="reach"),
            unit="m",
        ),
    },
)
CHILL = Linear(("warmth",), (Affine(-1.0, 0.0, 1.0),))
HUMAN = OWN.concepts["human"]
OWN_READINGS = msgspec.structs.replace(
    OWN,
    concepts={
        **OWN.concepts,
        "human": msgspec.structs.replace(
            HUMAN,
            whole=msgspec.structs.replace(
                HUMAN.whole,
                members={
                    **HUMAN.whole.members,
                    "chill": CHILL,
                    "rough": Linear(("warmth",), (Affine(1e-300, 0.0, 1e10),)),
                },
            ),
        ),
    },
)


def compared(condition: str) -> Any:
    text = POLICY.format("", f"A is inside R\n  {condition}").replace(" ()", "")
    return compile_policy(text, name="p", ontology=HOT, window_ms=WINDOW_MS, terms=OWN_READINGS)


def said(condition: str) -> str:
    """The comparison in canonical terms, as the plan says it."""
    return predicate_text(compared(condition).plan.terms[1])


@pytest.mark.parametrize(
    ("own", "root"),
    [
        ("temp of A above 86", "warmth of A >= 30.000000000000004"),
        ("temp of A at least 86", "warmth of A >= 30"),
        ("temp of A below 86", "warmth of A <= 29.999999999999996"),
        ("temp of A = 86", "warmth of A = 30"),
        ("temp of A != 86", "warmth of A != 30"),
        ("86 < temp of A", "warmth of A >= 30.000000000000004"),
        ("temp of A above 30 degC", "warmth of A > 30"),
        ("temp of A above 86 degF", "warmth of A > 30"),
        ("86 degF < temp of A", "warmth of A > 30"),
        ("chill of A above 5", "warmth of A <= -5.000000000000001"),
        ("chill of A at most 5", "warmth of A >= -5"),
        ("temp of A above temp of B", "warmth of A > warmth of B"),
        ("chill of A above chill of B", "warmth of A < warmth of B"),
        ("state of A is 'Gast'", "status of A = 'guest'"),
        ("id of A is 'x'", "id of A = 'x'"),
        ("apart(A, B) below 3 ft", "distance(position of A, position of B) < 0.9144000000000001"),
        ("rank(A) above 3", "rank(id of A) > 3"),
    ],
)
def test_comparisons_are_rewritten_to_root(own: str, root: str) -> None:
    assert said(own) == root


def test_a_bare_distance_is_in_the_units_of_positions() -> None:
    term = compared("apart(A, B) below 16.4").plan.terms[1]
    assert term.compared.right.value == pytest.approx(16.4 * 0.3048, rel=1e-15)


def test_durations_silences_and_negations_are_rewritten_within() -> None:
    assert said("(temp of A above 86 AND NOT temp of A above 95) for 2 hours") == (
        "warmth of A >= 30.000000000000004 and not warmth of A >= 35.00000000000001"
    )
    assert said("no temp of A for 3 hours") == "person.warmth of A"
    assert said("no position of A for 3 hours") == "person.position of A"
    plan = compared("temp of A is not above 86").plan
    assert plan.clauses[1] == Clause((Absent(1),))
    followed = compared("temp of A above 86 FOLLOWED-BY temp of A above 95 within 10 s")
    assert len(followed.plan.terms) == 3


def test_both_sides_of_a_comparison_are_told() -> None:
    (told,) = compared("temp of A above 86").rewritten
    assert (told.written, told.root, told.place.line) == (
        "temp of A above 86",
        "warmth of A at least 30.000000000000004 degC",
        7,
    )


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("mood of A is 'good'", "policy.untranslatable"),
        ("state of A is 'Kraft'", "policy.untranslatable"),
        ("country of A is 'US'", "policy.untranslatable"),
        ("chill of A above 5 degC", "policy.untranslatable"),
        ("rough of A = 0", "policy.untranslatable"),
        ("temp of A above chill of B", "policy.untranslatable"),
        ("temp of A above rank(A)", "policy.untranslatable"),
        ("reach(A) above 3", "policy.untranslatable"),
        ("warmth of A above 5", "policy.unknown_attribute"),
        ("no warmth of A for 3 h", "policy.unknown_attribute"),
        ("tmp of A above 5", "policy.unknown_attribute"),
        ("temp of A is 'hot'", "policy.wrong_type"),
        ("temp of Q above 5", "policy.unknown_alias"),
    ],
)
def test_a_comparison_that_root_cannot_say_is_refused_with_place_and_hint(
    own: str, code: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        compared(own)
    (found,) = (each for each in caught.value.problems if each.severity == "error")
    assert (found.code, found.line) == (code, 7)
    assert found.hint


# --- exactly the same -----------------------------------------------------------------------------

numbers = st.floats(-1e12, 1e12) | st.sampled_from([0.0, 30.0, 25.0, -17.5])
factors = st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3) | st.sampled_from([1.0, 9.0, 0.3048])
linears = st.lists(
    st.builds(Affine, factors, st.floats(-1e6, 1e6) | st.just(0.0), factors),
    min_size=1,
    max_size=2,
).map(lambda steps: Linear(("warmth",), tuple(steps)))


@pytest.mark.slow
@given(linears, st.lists(numbers, min_size=1, max_size=5), st.data())
def test_a_threshold_divides_instances_as_a_comparison_of_converted_values_does(
    term: Linear, given_values: list[float], data: st.DataObject
) -> None:
    near = [math.nextafter(v, d) for v in given_values for d in (-math.inf, math.inf)]
    root = np.array([*given_values, *near, math.nan])
    own = np.array([term.apply(value) for value in root.tolist()])
    wanted = data.draw(st.sampled_from(own[:-1].tolist()) | numbers)
    operator = data.draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
    item = Property("temp", operator, wanted, SourceSpan(1, 1))
    try:
        found = in_root(item, term)
    except UntranslatableTerm:
        assert operator == "!="
        return
    ids = [str(number) for number in range(len(root))]
    constraints = [Constraint(each.attribute, each.operator, each.value) for each in found]
    expected = satisfies(
        Instances("person", ids, {"temp": own}), [Constraint("temp", operator, wanted)]
    )
    assert satisfies(Instances("person", ids, {"warmth": root}), constraints).tolist() == (
        expected.tolist()
    )


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["x", "y", None]), min_size=1),
    st.sampled_from(["x", "y", None, msgspec.UNSET]),
    st.sampled_from(["=", "!="]),
    st.sampled_from("xyz"),
)
def test_a_look_up_divides_instances_as_a_comparison_of_looked_up_values_does(
    entries: dict[str, Any], otherwise: Any, operator: Any, wanted: str
) -> None:
    term = Lookup(("status",), tuple(entries.items()), otherwise)
    try:
        found = in_root(Property("state", operator, wanted, SourceSpan(1, 1)), term)
    except UntranslatableTerm as error:
        assert error.hint
        return
    root = np.array(["a", "b", "c", "d", "e", None], object)
    default = None if otherwise is msgspec.UNSET else otherwise  # rejected: nobody sees it
    seen = [None if key is None else entries.get(key, default) for key in root]
    own = np.array(seen, object)
    ids = [str(number) for number in range(len(root))]
    constraints = [Constraint(each.attribute, each.operator, each.value) for each in found]
    expected = satisfies(
        Instances("person", ids, {"state": own}), [Constraint("state", operator, wanted)]
    )
    assert satisfies(Instances("person", ids, {"status": root}), constraints).tolist() == (
        expected.tolist()
    )


def test_detections_are_those_of_the_policy_as_written_over_converted_values() -> None:
    assert sum(detected_alike(seed) for seed in range(20)) > 10


def detected_alike(seed: int) -> int:
    """How many detections there are, once they are found to be the same."""
    chance = Chance(seed)
    world = random_world(chance)
    people = world.pull.instances("person")
    warmth = np.array([chance.choice((30.0, 30.000000000000004, 31.0)) for _ in people.ids])
    status = np.array(
        [chance.choice(("guest", "guest", "employee", None)) for _ in people.ids], object
    )
    words = dict(STATES.entries)
    own_columns = {
        "temp": np.array([FAHRENHEIT.apply(value) for value in warmth.tolist()]),
        "state": np.array([None if each is None else words[each] for each in status], object),
    }
    rooms = world.pull.instances("room")
    cart = world.pull.instances("cart")
    columns = {"warmth": warmth, "status": status}
    root = Pull({"person": Instances("person", people.ids, columns), "room": rooms, "cart": cart})
    own = Pull({"person": Instances("person", people.ids, own_columns), "room": rooms})
    attributes: dict[str, AttributeType] = {"temp": "number", "state": "text", "position": "point"}
    own_ontology = msgspec.structs.replace(
        ONTOLOGY, concepts={**ONTOLOGY.concepts, "person": attributes}
    )
    text = POLICY.format("temp>86 state='Gast'", "A is inside R\n  A is not within 2m of B")
    written = compile_policy(
        text.replace("human", "person"), name="p", ontology=own_ontology, window_ms=WINDOW_MS
    )
    rewritten = compile_policy(text, name="p", ontology=WARM, window_ms=WINDOW_MS, terms=OWN)
    expected = evaluate(written.tree, own_ontology, own, world.readings, window_ms=WINDOW_MS)
    judged = evaluate(rewritten.tree, WARM, root, world.readings, window_ms=WINDOW_MS)
    runner = LocalRunner([rewritten.plan], root, lateness_ms=10**6)
    found = runner.feed(readings_batch(world.readings)) + runner.finish()
    shown = [(each.time, each.bindings, each.causes) for each in expected]
    assert [(each.time, each.bindings, each.causes) for each in judged] == shown
    assert detection_lines(found) == detection_lines(judged)
    return len(found)


READINGS = """concepts
  human A
  human B
conditions
  {0}
actions
  raise alarm
"""
SPOKEN: dict[str, AttributeType] = {"temp": "number", "chill": "number"}
"""What the policies below read, as attributes of their own: the judge's view."""


@pytest.mark.parametrize(
    "condition",
    [
        "temp of A above 86",
        "temp of A below 86 FOLLOWED-BY temp of A is not above 86",
        "chill of A at least -30",
        "temp of A above 86\n  NOT temp of B below 86",
        "(temp of A at least 86 AND NOT temp of A above 87.8) for 2 s",
        "no temp of A for 3 s",
        "chill of A above chill of B",
    ],
)
def test_readings_are_compared_as_their_converted_values_would_be(condition: str) -> None:
    assert sum(read_alike(condition, seed) for seed in range(5)) > 5


def read_alike(condition: str, seed: int) -> int:
    """How many detections there are, once they are found to be the same."""
    chance = Chance(seed)
    near = (30.0, 30.000000000000004, 29.999999999999996, 31.0)
    root = [
        Reading(time, f"e{time:06}", "person.warmth", chance.choice("abc"), (chance.choice(near),))
        for time in range(1_000, 20_000, 700)
    ]
    sources = {
        name: PushSource(name=name, concept="person", attribute=name, key="k", value=("v",))
        for name in SPOKEN
    }
    spoken = msgspec.structs.replace(HOT, concepts={"person": SPOKEN}, sources=sources, units={})
    only = {"person": {"warmth": PEOPLE["warmth"]}}
    hot = msgspec.structs.replace(HOT, concepts=only, sources={"thermometer": THERMOMETER})
    name = next(each for each in SPOKEN if each in condition)  # one of them
    term = {"temp": FAHRENHEIT, "chill": CHILL}[name]
    own = [
        msgspec.structs.replace(each, stream=f"person.{name}", value=(term.apply(each.value[0]),))
        for each in root
    ]
    text = READINGS.format(condition)
    written = compile_policy(
        text.replace("human", "person"), name="p", ontology=spoken, window_ms=3_000
    )
    rewritten = compile_policy(text, name="p", ontology=hot, window_ms=3_000, terms=OWN_READINGS)
    found = [
        [(each.time, each.bindings, each.causes) for each in detections(plan, batch)]
        for plan, batch in (
            (written.plan, readings_batch(own, spoken)),
            (rewritten.plan, readings_batch(root, hot)),
        )
    ]
    assert found[0] == found[1]
    return len(found[0])


def detections(plan: Plan, batch: pa.RecordBatch) -> list[Detection]:
    runner = LocalRunner([plan], Pull({}), lateness_ms=10**6)
    return runner.feed(batch) + runner.finish()


# --- a site ---------------------------------------------------------------------------------------

SITE = """
[site]
name = "weather"
[concepts.station.attributes]
warmth = "number"
status = "text"
position = "point"
[concepts.station.units]
warmth = "degC"
[concepts.room.attributes]
area = "rectangle"
[relationships.inside]
between = ["station.position", "room.area"]
function = "inside"
[tables.stations]
concept = "station"
csv = "stations.csv"
key = "id"
columns = { warmth = "warmth", status = "status" }
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = { area = ["x1", "y1", "x2", "y2"] }
[sources.positions]
concept = "station"
attribute = "position"
key = "station"
value = ["x", "y"]
[interpretations.us-desk]
units = { "station.warmth" = "degF" }
[policies]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "stations.csv").write_text("id,warmth,status\nk1,31,ok\n", encoding="utf-8")
    (tmp_path / "rooms.csv").write_text("id,x1,y1,x2,y2\nr,0,0,5,5\n", encoding="utf-8")
    say(tmp_path, "hot", "86")
    say(tmp_path, "cold", "1 degC")
    return tmp_path


def say(site: Path, name: str, threshold: str) -> None:
    text = (
        f"concepts\n  station A (warmth>{threshold})\n  room R\n"
        "conditions\n  A is inside R\nactions\n  raise alarm\n"
    )
    (site / f"{name}.dpl").write_text(text, encoding="utf-8")


def constraints(site: Path) -> dict[str, float | str]:
    policies = load_site(site).policies
    return {name: each.plan.terms[0].first.constraints[0].value for name, each in policies.items()}


def write_site(site: Path, lines: str) -> None:
    (site / "site.toml").write_text(SITE + lines, encoding="utf-8")


def test_a_site_says_in_whose_terms_its_policies_are(site: Path) -> None:
    write_site(site, 'interpretation = "us-desk"\n')
    text = (site / "hot.dpl").read_text(encoding="utf-8")
    names = load_site(site).policies["hot"].rewritten
    assert [each.written for each in names] == ["warmth > 86"]
    assert constraints(site) == pytest.approx({"hot": 30.000000000000004, "cold": 1.0})
    say(site, "cold", "1")
    assert constraints(site)["cold"] == pytest.approx(-17.222222222222218)
    say(site, "cold", "1 degC")
    write_site(site, '[policies.interpretations]\nhot = "us-desk"\n')
    assert constraints(site) == pytest.approx({"hot": 30.000000000000004, "cold": 1.0})
    assert (site / "hot.dpl").read_text(encoding="utf-8") == text
    codes = {problem.code for problem in check_site(site)}
    assert "policy.own_terms" in codes


def test_a_number_without_its_unit_is_refused_in_root_and_understood_in_ones_own_terms(
    site: Path,
) -> None:
    write_site(site, 'interpretation = "us-desk"\n[policies.interpretations]\nhot = "root"\n')
    with pytest.raises(SiteError) as caught:
        load_site(site)
    (problem,) = caught.value.problems
    assert (problem.code, problem.hint) == ("policy.missing_unit", "write: 86 degC")
    say(site, "hot", "86 degF")
    assert constraints(site) == pytest.approx({"hot": 30.0, "cold": 1.0})


def test_an_interpretation_that_is_not_there_is_named_with_the_nearest(site: Path) -> None:
    write_site(site, '[policies.interpretations]\nhot = "us-dsk"\n')
    with pytest.raises(SiteError) as caught:
        load_site(site)
    (problem,) = caught.value.problems
    assert (problem.code, problem.hint) == (
        "policy.unknown_interpretation",
        "did you mean 'us-desk'?",
    )
    assert problem.line > 0


def test_the_how_to_page_says_what_happens(site: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/own-terms.md").read_text(encoding="utf-8")
    desk, policies = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (policy,) = re.findall(r"```dpl\n(.*?)```", page, re.DOTALL)
    told, asked = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    own, _, _ = SITE.partition("[interpretations.us-desk]")
    text = re.sub(r"\bwarmth\b", "heat", own.replace("station", "machine"))
    text = text.replace('csv = "machines.csv"', 'csv = "stations.csv"')
    text = text.replace('heat = "heat"', 'heat = "warmth"')
    (site / "site.toml").write_text(text + desk + policies, encoding="utf-8")
    for old in ("hot", "cold"):
        (site / f"{old}.dpl").unlink()
    (site / "overheated.dpl").write_text(policy, encoding="utf-8")
    (site / "frost.dpl").write_text(policy.replace("86", "1 degC"), encoding="utf-8")
    loaded = load_site(site)
    (found,) = loaded.policies["overheated"].rewritten
    assert told.strip() == f"{found.place.line}: {found.written}  ->  {found.root}"
    assert loaded.policies["frost"].rewritten == ()
    interpretations = interpretations_of_site(loaded.file, site, loaded.ontology)
    view = view_of(interpretations, "us-desk", concepts_of(loaded.ontology))
    where = msgspec.json.decode(asked)["query"]["where"]
    own = OwnTermsMatcher(parse_condition(where), view)
    assert own.untranslatable == ()
    canonical = "type = 'machine.heat' AND data.value[0] >= 30.000000000000004"
    assert print_condition(own.in_root) == canonical


@pytest.mark.parametrize("lines", ["interpretation = 5\n", "interpretations = 5\n"])
def test_a_wrong_kind_of_name_is_refused(site: Path, lines: str) -> None:
    write_site(site, lines)
    assert "site.wrong_type" in {problem.code for problem in check_site(site)}
