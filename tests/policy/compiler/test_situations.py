"""Policies with a situation become plans with canonical numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import PolicyError, Unsupported
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import CompiledSituation, compile_policy
from rapport.policy.compiler.plan_text import plan_text
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import Ontology
from rapport.policy.operators import check_supported, make_operator
from rapport.policy.plan import Plan, decode_plan, encode_plan
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    Arithmetic,
    BoundAlias,
    ComparedValues,
    Condition,
    ConvertedValue,
    FixedValue,
    PresentValue,
    SituationPlan,
    TableDays,
    TimeWindow,
    plan_nodes,
)
from support.varied.worlds import Pull

FOLDER = Path(__file__).parents[2] / "data" / "situations"
CASES = sorted(FOLDER.glob("*.dpl"))
SITE = """
[concepts.tank.attributes]
level = "number"
power = "number"
speed = "number"
inside = "number"
outside = "number"
kelvin = "number"
share = "number"
amount = "number"
plain = "number"
open = "boolean"
colour = "text"
limit = "number"
[concepts.tank.units]
level = "cm"
power = "W"
speed = "m/s"
inside = "degC"
outside = "degF"
kelvin = "K"
share = "1"
amount = "%"
limit = "degC"
[tables.tanks]
concept = "tank"
csv = "tanks.csv"
key = "id"
columns = { limit = "limit", colour = "colour" }
"""
SOURCE = """
[sources.{name}]
concept = "tank"
attribute = "{name}"
key = "tank"
value = "value"
"""
ATTRIBUTES = (
    *("level", "power", "speed", "inside", "outside", "kelvin", "share", "amount", "plain"),
    "open",
)


@pytest.fixture(scope="module")
def worked() -> Ontology:
    found, problems = ontology_from_site(TomlFile.load(FOLDER / "site.toml"))
    assert problems == []
    return found


@pytest.fixture(scope="module")
def tanks(tmp_path_factory: pytest.TempPathFactory) -> Ontology:
    path = tmp_path_factory.mktemp("tanks") / "site.toml"
    path.write_text(SITE + "".join(SOURCE.format(name=name) for name in ATTRIBUTES))
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


def plan_of(line: str, ontology: Ontology, concepts: str = "tank S") -> SituationPlan:
    text = f"concepts\n  {concepts}\nsituation\n  {line}\nactions\n  raise alarm\n"
    compiled = compile_policy(text, name="x", ontology=ontology, window_ms=5_000)
    assert isinstance(compiled, CompiledSituation)
    assert decode_plan(encode_plan(compiled.plan)) == compiled.plan
    return compiled.plan


def condition_of(line: str, ontology: Ontology, concepts: str = "tank S") -> Condition:
    return plan_of(line, ontology, concepts).situation


def codes_of(line: str, ontology: Ontology, concepts: str = "tank S") -> list[str]:
    with pytest.raises(PolicyError) as caught:
        plan_of(line, ontology, concepts)
    return [problem.code for problem in caught.value.problems]


def tank(attribute: str, alias: str = "S") -> PresentValue:
    given = f"tank.{attribute}" if attribute in ATTRIBUTES else None
    return PresentValue(alias, "tank", attribute, given)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_worked_case_compiles_to_a_plan_that_can_be_stored(
    path: Path, worked: Ontology
) -> None:
    text = path.read_text(encoding="utf-8")
    compiled = compile_policy(text, name=path.stem, ontology=worked, window_ms=5_000)
    assert isinstance(compiled.plan, SituationPlan)
    assert compiled.problems == ()
    stored = decode_plan(encode_plan(compiled.plan))
    assert stored == compiled.plan
    assert stored.version() == compiled.plan.version()


def test_a_plan_of_conditions_is_decoded_as_such(worked: Ontology) -> None:
    text = "concepts\n  station S\nconditions\n  temperature of S above 30 degC\nactions\n  go\n"
    plan = compile_policy(text, name="x", ontology=worked, window_ms=5_000).plan
    assert isinstance(plan, Plan)
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("inside of S above 86 degF", 30.0),
        ("inside of S above 303.15 K", 30.0),
        ("kelvin of S above 30 degC", 303.15),
        ("outside of S above 25 degC", 77.0),
        ("level of S above 2 m", 200.0),
        ("speed of S above 36 km/h", 10.0),
        ("share of S above 50 %", 0.5),
        ("share of S above 0.5", 0.5),
        ("plain of S above 3", 3.0),
        ("limit of S above 86 degF", 30.0),
        ("mean of inside of S in the last 1 h above 86 degF", 30.0),
        ("percentile 90 of level of S in the last 1 h above 1 m", 100.0),
        ("inside of S - limit of S above 3 K", 3.0),
        ("change of outside of S in the last 1 h above 5 K", 9.0),
        ("change of inside of S in the last 1 h above 9 degR", 5.0),
        ("rate of inside of S in the last 1 h above 6 K/min", 6 / 60_000),
        ("rate of outside of S in the last 1 h above 5 K/min", 9 / 60_000),
        ("rate of level of S in the last 1 h below -36 mm/h", -3.6 / 3_600_000),
        ("rate of level of S in the last 1 h above 2 m/s", 200 / 1_000),
        ("rate of amount of S in the last 1 h above 24 %/d", 24 / 86_400_000),
        ("rate of plain of S in the last 1 h above 2 1/min", 2 / 60_000),
        ("rate of speed of S in the last 1 h above 1 m/s/s", 1 / 1_000),
        ("(inside of S + limit of S) / 2 above 86 degF", 30.0),
        ("count of plain of S in the last 1 h at least 3", 3.0),
        ("inside of S in degF above 86", 86.0),
        ("share of S + 0.5 above 150 %", 1.5),
        ("level of S / level of S above 50 %", 0.5),
    ],
)
def test_a_constant_is_in_the_unit_of_the_other_side(
    line: str, value: float, tanks: Ontology
) -> None:
    condition = condition_of(line, tanks)
    assert isinstance(condition, ComparedValues)
    assert condition.right == FixedValue(value)


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("inside of S in degF above 86", ConvertedValue(tank("inside"), 1.8, 32.0)),
        ("kelvin of S in degC above 3", ConvertedValue(tank("kelvin"), 1.0, -273.15)),
        ("inside of S in degC above 3", tank("inside")),
        ("level of S in m above 3", ConvertedValue(tank("level"), 0.01)),
        (
            "rate of level of S in the last 1 h in mm/h above 3",
            ConvertedValue(AggregateValue("rate", tank("level"), 3_600_000, 2), 36_000_000.0),
        ),
        (
            "inside of S + 5 K above limit of S",
            Arithmetic(tank("inside"), "+", FixedValue(5.0)),
        ),
        (
            "inside of S - 41 degF above 5 K",
            Arithmetic(tank("inside"), "-", FixedValue(5.0)),
        ),
        (
            "(inside of S - outside of S) in degR above 9",
            ConvertedValue(
                Arithmetic(tank("inside"), "-", ConvertedValue(tank("outside"), 5 / 9, -160 / 9)),
                1.8,
            ),
        ),
        (
            "2 * level of S + 1 m above 3 m",
            Arithmetic(Arithmetic(FixedValue(2.0), "*", tank("level")), "+", FixedValue(100.0)),
        ),
        (
            "amount of S + 5 % above share of S",
            Arithmetic(ConvertedValue(tank("amount"), 0.01), "+", FixedValue(0.05)),
        ),
    ],
)
def test_a_value_is_converted_where_it_needs_to_be(
    line: str, left: object, tanks: Ontology
) -> None:
    condition = condition_of(line, tanks)
    assert isinstance(condition, ComparedValues)
    assert condition.left == left


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("inside of S + limit of S above 30 degC", "policy.temperature_weights"),
        ("2 * inside of S above 30 degC", "policy.temperature_weights"),
        ("inside of S + 5 degC above 30 degC", "policy.temperature_weights"),
        ("inside of S - limit of S above 3 degC", "policy.temperature_difference"),
        ("inside of S above inside of S - limit of S", "policy.temperature_difference"),
        ("rate of inside of S in the last 1 h above 3 degC/min", "policy.temperature_difference"),
        ("(inside of S - limit of S) in degF above 3", "policy.temperature_difference"),
        ("inside of S / limit of S above 3", "policy.wrong_units"),
        ("plain of S * inside of S above 3 degC", "policy.wrong_units"),
        ("sum of inside of S in the last 1 h above 3 degC", "policy.wrong_units"),
        ("inside of S above 30", "policy.missing_unit"),
        ("inside of S - limit of S above 3", "policy.missing_unit"),
        ("level of S + 3 above 3 m", "policy.missing_unit"),
        ("rate of level of S in the last 1 h above 3", "policy.missing_unit"),
        ("rate of level of S in the last 1 h above 3 cm", "policy.wrong_units"),
        ("level of S above 3 cm/h", "policy.wrong_units"),
        ("level of S above 3 kg", "policy.wrong_units"),
        ("level of S + power of S above 3 m", "policy.wrong_units"),
        ("level of S * power of S above 3 m", "policy.wrong_units"),
        ("3 / level of S above 3", "policy.wrong_units"),
        ("plain of S above 3 m", "policy.needless_unit"),
        ("plain of S in m above 3", "policy.needless_unit"),
        ("count of plain of S in the last 1 h above 3 m", "policy.needless_unit"),
        ("level of S above 3 cubits", "policy.unknown_unit"),
        ("level of S in cubits above 3", "policy.unknown_unit"),
        ("level of S above 1e308 km", "policy.bad_number"),
        ("plain of S above 1e200 * 1e200", "policy.bad_number"),
        ("plain of S / (3 - 3) above 3", "policy.division_by_zero"),
        ("level of S / 0 cm above 3", "policy.division_by_zero"),
        ("mean of limit of S in the last 1 h above 3 degC", "policy.no_readings"),
        ("mean of colour of S in the last 1 h above 3 degC", "policy.no_readings"),
        ("count of id of S in the last 1 h above 3", "policy.no_readings"),
        ("mean of open of S in the last 1 h above 3", "policy.wrong_type"),
        ("colour of S above 'red'", "policy.bad_operator"),
        ("colour of S above 3", "policy.bad_operator"),
        ("colour of S = 3", "policy.wrong_type"),
        ("colour of S + 1 above 3", "policy.wrong_type"),
        ("level of S = colour of S", "policy.wrong_type"),
        ("level of S is 'full'", "policy.wrong_type"),
        ("level of S is one of ('full', 'empty')", "policy.wrong_type"),
        ("plain of S between 3 and 2", "policy.bad_between"),
        ("depth of S above 3 m", "policy.unknown_attribute"),
        ("distant(S, S) above 3 m", "policy.unknown_function"),
        ("time is on holidays AND plain of S above 1", "policy.unknown_days"),
        ("time is on Mon in 'Europe/Berlim' AND plain of S above 1", "policy.unknown_zone"),
        (
            "count of (plain of S above 3 for 5 s) in the last 1 h above 3",
            "policy.bad_counted_term",
        ),
        ("count of (limit of S above 3 degC) in the last 1 h above 3", "policy.bad_counted_term"),
        ("no limit of S for 3 h", "policy.silence_without_events"),
    ],
)
def test_what_means_nothing_is_refused_with_a_hint(line: str, code: str, tanks: Ontology) -> None:
    with pytest.raises(PolicyError) as caught:
        plan_of(line, tanks)
    problems = caught.value.problems
    assert [problem.code for problem in problems][:1] == [code]
    assert all(problem.hint and problem.line == 4 and problem.column for problem in problems)


def test_a_count_of_the_readings_of_two_instances_is_refused(tanks: Ontology) -> None:
    line = "count of (level of A above level of B) in the last 1 h above 3"
    assert codes_of(line, tanks, "tank A tank B") == ["policy.bad_counted_term"]


def test_aliases_of_one_concept_are_different_unless_the_policy_says_otherwise(
    tanks: Ontology,
) -> None:
    line = "level of A > level of B\n  level of A > level of C"
    apart = plan_of(line, tanks, "tank A tank B tank C")
    assert apart.distinct == (("A", "B"), ("A", "C"), ("B", "C"))
    alike = plan_of(line, tanks, "tank A tank B tank C\n  C and A may be the same")
    assert alike.distinct == (("A", "B"), ("B", "C"))


def test_an_alias_names_the_streams_by_which_its_instances_are_known(tanks: Ontology) -> None:
    found = plan_of("level of S above 3 m", tanks)
    assert found.aliases == (
        BoundAlias("S", "tank", (), tuple(f"tank.{name}" for name in sorted(ATTRIBUTES))),
    )
    assert found.streams() == tuple(f"tank.{name}" for name in sorted(ATTRIBUTES))
    assert found.concepts() == ("tank",)
    assert plan_of("limit of S above 3 degC", tanks).table_attributes() == {("tank", "limit")}


def test_a_range_and_a_choice_are_one_atom_each(tanks: Ontology) -> None:
    constants = condition_of("inside of S between 50 and 86 degF", tanks)
    ends = [
        ComparedValues(tank("inside"), ">=", FixedValue(10.0)),
        ComparedValues(tank("inside"), "<=", FixedValue(30.0)),
    ]
    assert constants == AllOf(tuple(ends), is_atom=True)
    choice = condition_of("colour of S is one of ('red', 'blue')", tanks)
    chosen = [ComparedValues(tank("colour"), "=", FixedValue(name)) for name in ("red", "blue")]
    assert choice == AnyPart(tuple(chosen), is_atom=True)
    assert condition_of("colour of S is one of ('red')", tanks) == chosen[0]


def test_times_are_in_the_zone_of_the_site_and_in_utc_without_one(
    tanks: Ontology, worked: Ontology
) -> None:
    line = "time is between 22:00 and 06:00 on holidays"
    found = condition_of(f"{line}\n  humidity of S above 3 %", worked, "station S")
    assert isinstance(found, AllOf)
    assert found.parts[0] == TimeWindow("Europe/Berlin", 1320, 360, (TableDays("holidays"),))
    bare = condition_of("time is between 22:00 and 06:00\n  plain of S above 3", tanks)
    assert isinstance(bare, AllOf)
    assert bare.parts[0] == TimeWindow("UTC", 1320, 360)


def test_true_and_false_are_compared_as_numbers(tanks: Ontology) -> None:
    found = condition_of("open of S is true", tanks)
    assert found == ComparedValues(tank("open"), "=", FixedValue(1.0))


def test_all_faults_of_a_policy_are_reported_at_once(tanks: Ontology) -> None:
    lines = "depth of S above 3 m\n  S is near S\n  level of S above 3\n  no depth of S for 3 s"
    assert codes_of(lines, tanks) == [
        "policy.unknown_attribute",
        "policy.unknown_relationship",
        "policy.missing_unit",
        "policy.unknown_attribute",
    ]


def test_change_and_rate_need_two_readings_unless_said_and_a_count_none(tanks: Ontology) -> None:
    lines = (
        "rate of plain of S in the last 1 h (at least 1 readings) above 3 1/s\n"
        "  change of plain of S in the last 1 h above 3\n"
        "  mean of plain of S in the last 1 h above 3\n"
        "  count of plain of S in the last 1 h above 3\n"
        "  max of plain of S in the last 1 h (at least 9 readings) above 3"
    )
    nodes = plan_nodes(plan_of(lines, tanks))
    assert [node.at_least for node in nodes if isinstance(node, AggregateValue)] == [1, 2, 1, 0, 9]


def guarded(condition: str, guard: str, ontology: Ontology) -> Plan:
    text = f"concepts\n  tank A\n  tank B\nconditions\n  {condition}\nwhile\n  {guard}\n"
    text += "actions\n  raise alarm\n"
    plan = compile_policy(text, name="x", ontology=ontology, window_ms=5_000).plan
    assert isinstance(plan, Plan)
    assert decode_plan(encode_plan(plan)) == plan
    return plan


def test_a_guard_is_compiled_like_a_situation(tanks: Ontology) -> None:
    condition = "level of A > level of B"
    plan = guarded(condition, "inside of A above 86 degF\n  limit of B above 3 degC", tanks)
    assert plan.guard == AllOf(
        (
            ComparedValues(tank("inside", "A"), ">", FixedValue(30.0)),
            ComparedValues(tank("limit", "B"), ">", FixedValue(3.0)),
        )
    )
    assert {"tank.inside", "tank.level"} < set(plan.streams())
    assert all(stream.startswith("tank.") for stream in plan.streams())
    assert "while" in plan_text(plan)


def test_a_plan_without_a_guard_keeps_its_version(tanks: Ontology) -> None:
    text = "concepts\n  tank A\nconditions\n  level of A above 3 m\nactions\n  raise alarm\n"
    plan = compile_policy(text, name="x", ontology=tanks, window_ms=5_000).plan
    assert b"guard" not in encode_plan(plan)


@pytest.mark.parametrize(
    "condition",
    [
        "level of A above 3 cm",
        "level of A above 3 cm FOLLOWED-BY NOT level of B above 3 cm",
        "level of A above 3 cm\n  level of A above 5 cm OR level of B above 3 cm",
    ],
)
def test_a_guard_names_only_what_every_detection_is_about(condition: str, tanks: Ontology) -> None:
    with pytest.raises(PolicyError) as caught:
        guarded(condition, "inside of A above 3 degC\n  inside of B above 3 degC", tanks)
    assert [problem.code for problem in caught.value.problems] == ["policy.unbound_alias"]
    assert caught.value.problems[0].hint


def test_a_guarded_plan_is_refused_where_operators_run_alone(tanks: Ontology) -> None:
    plan = guarded("level of A > level of B", "inside of A above 3 degC", tanks)
    assert check_supported(plan) == []
    with pytest.raises(Unsupported, match="'while'"):
        make_operator(plan, Pull({}))
