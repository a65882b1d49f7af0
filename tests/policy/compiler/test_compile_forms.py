"""Comparisons, durations, silence and own windows on their way to the plan."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.policy.compiler.compile import CompiledPolicy, compile_conditions, compile_policy
from rapport.policy.compiler.plan_text import plan_text, predicate_text
from rapport.policy.compiler.scope import table_attributes
from rapport.policy.language.printer import print_policy
from rapport.policy.ontology import Kind, Ontology
from rapport.policy.plan import (
    Absent,
    Clause,
    Compared,
    Constant,
    Constraint,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
    Sequence,
    Side,
    SideValue,
    SilentTerm,
    StateAll,
    StateAtom,
    decode_plan,
    encode_plan,
)

HEAD = """concepts
  station S
  station T (region='south')
  person A
  person B
  room R
  substance X
  substance Y
conditions
"""
TAIL = "\nactions\n  raise alarm\n"


def compiled(conditions: str, ontology: Ontology) -> CompiledPolicy:
    text = HEAD + "\n".join(f"  {line}" for line in conditions.splitlines()) + TAIL
    return compile_policy(text, name="test", ontology=ontology, window_ms=5000)


def plan_of(conditions: str, ontology: Ontology) -> Plan:
    return compiled(conditions, ontology).plan


def station(alias: str, attribute: str, *, events: bool = True) -> Side:
    constraints = (Constraint("region", "=", "south"),) if alias == "T" else ()
    stream = f"station.{attribute}" if events else None
    return Side(alias, "station", attribute, constraints, stream)


def test_one_alias_and_one_event_attribute_is_a_reading(every_form: Ontology) -> None:
    plan = plan_of("temperature of S above 86 degF", every_form)
    compared = Compared(SideValue(0, "temperature"), ">", Constant(30.0))
    assert plan.terms == (ReadingTerm(station("S", "temperature"), compared),)
    assert plan.streams() == ("station.temperature",)


def test_other_attributes_of_the_alias_come_by_its_identity(every_form: Ontology) -> None:
    (term,) = plan_of("limit of S < level of S", every_form).terms
    compared = Compared(SideValue(0, "limit"), "<", SideValue(0, "level"))
    assert term == ReadingTerm(station("S", "level"), compared)
    assert list(table_attributes(term)) == [(station("S", "level"), "limit")]


def test_two_aliases_with_one_event_attribute_are_a_query(every_form: Ontology) -> None:
    (term,) = plan_of("level of S > limit of T", every_form).terms
    compared = Compared(SideValue(0, "level"), ">", SideValue(1, "limit"))
    limit = station("T", "limit", events=False)
    assert term == QueryTerm(station("S", "level"), limit, "", compared=compared)


def test_two_event_attributes_are_a_correlation_of_two_aliases_or_one(
    every_form: Ontology,
) -> None:
    (term,) = plan_of("temperature of S > temperature of T", every_form).terms
    compared = Compared(SideValue(0, "temperature"), ">", SideValue(1, "temperature"))
    sides = (station("S", "temperature"), station("T", "temperature"))
    assert term == CorrelationTerm(*sides, "", compared=compared)
    (term,) = plan_of("dewpoint of S > temperature of S", every_form).terms
    compared = Compared(SideValue(0, "dewpoint"), ">", SideValue(1, "temperature"))
    sides = (station("S", "dewpoint"), station("S", "temperature"))
    assert term == CorrelationTerm(*sides, "", compared=compared)


def test_measured_and_looked_up_functions_read_their_own_attributes(every_form: Ontology) -> None:
    (term,) = plan_of("distance(X, Y) < minimumDistance(Y, X)", every_form).terms
    assert isinstance(term, CorrelationTerm)
    positions, ids = (SideValue(0, "position"), SideValue(1, "position")), ("id", "id")
    assert term.compared == Compared(
        Measure("distance", positions),
        "<",
        LookedUp("minimumDistance", (SideValue(1, ids[0]), SideValue(0, ids[1]))),
    )
    assert list(table_attributes(term)) == []


def test_nothing_from_events_is_a_fact(every_form: Ontology) -> None:
    plan = plan_of("temperature of S > 3 degC\nonline of S is not true", every_form)
    fact = plan.terms[1]
    compared = Compared(SideValue(0, "online"), "!=", Constant(1.0))
    side = station("S", "online", events=False)
    assert fact == ConstraintTerm(side, side, "", compared=compared)


def test_the_same_quantity_in_two_units_is_one_term(every_form: Ontology) -> None:
    plan = plan_of(
        "temperature of S above 30 degC\nNOT temperature of S above 86 degF OR wind of S over 3 kn",
        every_form,
    )
    assert len(plan.terms) == 2
    assert plan.clauses[1].children[0] == Absent(0)


def test_a_pair_window_is_part_of_the_term_unless_it_is_the_policys(every_form: Ontology) -> None:
    plan = plan_of(
        "A is within 5m of B\n(A is within 5m of B OR A is inside R) within 5 s\n"
        "A is inside R FOLLOWED-BY A is within 5m of B within 10 s",
        every_form,
    )
    windows = [t.window_ms for t in plan.terms if isinstance(t, CorrelationTerm)]
    assert windows == [None, 10_000]
    assert plan.clauses[1] == Clause((Positive(0), Positive(1)), 5_000)
    assert plan.clauses[2] == Clause((Sequence(1, 2, window_ms=10_000),))


def test_a_window_reaches_the_pairs_of_every_clause_of_its_line(every_form: Ontology) -> None:
    text = "(A is within 5m of B OR (A is inside R AND B is inside R)) within 20 s"
    plan = plan_of(text, every_form)
    assert [clause.window_ms for clause in plan.clauses] == [20_000, 20_000]
    (pair,) = (term for term in plan.terms if isinstance(term, CorrelationTerm))
    assert pair.window_ms == 20_000


def test_what_lasts_is_one_term_of_its_states(every_form: Ontology) -> None:
    text = "(temperature of S above 30 degC AND NOT limit of S > 3) for 2 hours"
    plan = plan_of(text, every_form)
    (term,) = plan.terms
    assert isinstance(term, LastingTerm)
    assert (term.first, term.second) == (station("S", "temperature"),) * 2
    assert term.duration_ms == 7_200_000
    limit = station("S", "limit", events=False)
    hot = Compared(SideValue(0, "temperature"), ">", Constant(30.0))
    high = Compared(SideValue(0, "limit"), ">", Constant(3.0))
    assert term.state == StateAll(
        (
            StateAtom(ReadingTerm(station("S", "temperature"), hot)),
            StateAtom(ConstraintTerm(limit, limit, "", compared=high), negated=True),
        )
    )
    assert list(table_attributes(term)) == [(limit, "limit")]
    assert plan.streams() == ("station.temperature",)


def test_what_is_silent_reads_one_stream_or_all(every_form: Ontology) -> None:
    (term,) = plan_of("no wind of S for 3 hours", every_form).terms
    assert term == SilentTerm(station("S", "wind"), ("station.wind",), 10_800_000)
    (term,) = plan_of("no event of A for 3 hours", every_form).terms
    assert isinstance(term, SilentTerm)
    assert term.streams == ("person.position",)


def test_what_lasts_and_what_is_silent_opens_absence(every_form: Ontology) -> None:
    for opening in ("no wind of S for 3 h", "wind of S above 3 km/h for 2 h"):
        plan = plan_of(f"{opening}\nwind of T is not above 3 km/h", every_form)
        assert [len(clause.children) for clause in plan.clauses] == [1, 1]


def test_what_the_policy_says_of_itself_reaches_the_plan(every_form: Ontology) -> None:
    plan = plan_of("wind of S above 3 kn\nat most once per 10 min\nwithin 1 min", every_form)
    assert (plan.once_per_ms, plan.window_ms) == (600_000, 60_000)
    assert "at most once per 10min" in plan_text(plan)


def test_a_kind_stands_for_its_concept_and_constraints(every_form: Ontology) -> None:
    south = Kind("southern", "station", (Constraint("region", "=", "south"),))
    ontology = msgspec.structs.replace(every_form, kinds={"southern": south})
    text = (
        "concepts\n  southern S (limit>3)\n  station T\nconditions\n  wind of S > wind of T"
        "\n  no event of S for 3 h\nactions\n  note\n"
    )
    found = compile_policy(text, name="k", ontology=ontology, window_ms=5000)
    side = found.plan.terms[0].first
    assert side.concept == "station"
    assert side.constraints == (Constraint("region", "=", "south"), Constraint("limit", ">", 3.0))
    assert [each.code for each in found.problems] == [
        "policy.can_coincide",
        "policy.meant_as_situation",
    ]
    with pytest.raises(PolicyError) as caught:
        compile_policy(
            text.replace("southern", "southren"), name="k", ontology=ontology, window_ms=5
        )
    assert caught.value.problems[0].hint == "did you mean 'southern'?"


def test_a_relationship_between_several_pairs_is_chosen_by_the_concepts(
    every_form: Ontology,
) -> None:
    plan = plan_of("A is inside R\nX is inside R", every_form)
    assert [term.first.concept for term in plan.terms] == ["person", "substance"]
    with pytest.raises(PolicyError) as caught:
        plan_of("S is inside R", every_form)
    assert "or between" in caught.value.problems[0].message


def test_lint_knows_the_aliases_of_every_form(every_form: Ontology) -> None:
    found = compiled(
        "exchange(S, T) > 3\n(A is inside R) for 3 min\nno event of B for 3 h", every_form
    )
    unused = [each.message for each in found.problems if each.code == "policy.unused_alias"]
    assert unused == ["no condition speaks of 'X'", "no condition speaks of 'Y'"]


def test_a_silence_shorter_than_a_period_is_warned_of(every_form: Ontology) -> None:
    often = msgspec.structs.replace(every_form.sources["anemometers"], period_ms=60_000)
    ontology = msgspec.structs.replace(every_form, sources={**every_form.sources, "a": often})
    codes = [each.code for each in compiled("no wind of S for 30 s", ontology).problems]
    assert "policy.window_shorter_than_period" in codes
    codes = [each.code for each in compiled("no wind of S for 2 min", ontology).problems]
    assert "policy.window_shorter_than_period" not in codes
    absence = "temperature of S above 3 degC\n{}"
    for wait, warned in (
        ("wind of S is not above 3 kn", True),
        ("(wind of S is not above 3 kn) within 2 min", False),
    ):
        codes = [each.code for each in compiled(absence.format(wait), ontology).problems]
        assert ("policy.window_shorter_than_period" in codes) is warned


def test_a_silence_that_never_follows_is_warned_of(every_form: Ontology) -> None:
    for line, warned in (
        ("wind of S > 3 kn FOLLOWED-BY no wind of S for 5 s", True),
        ("wind of S > 3 kn FOLLOWED-BY no event of S for 10 min within 1 min", True),
        ("wind of S > 3 kn FOLLOWED-BY no wind of S for 10 min within 11 min", False),
        ("wind of T > 3 kn FOLLOWED-BY no wind of S for 10 min", False),
        ("level of S > 3 FOLLOWED-BY no wind of S for 10 min", False),
        ("wind of S > 3 kn for 1 s FOLLOWED-BY no wind of S for 10 min", False),
    ):
        codes = [each.code for each in compiled(line, every_form).problems]
        assert ("policy.never_follows" in codes) is warned


ATOMS = (
    *("temperature of S above 30 degC", "NOT temperature of S above 86 degF", "level of S > 3"),
    *("level of S > limit of T", "temperature of S > temperature of T", "A is inside R"),
    *("dewpoint of S >= temperature of S", "apart(A, B) < 2 m", "A is not within 5m of B"),
    *("distance(X, Y) < minimumDistance(X, Y)", "state of S is not 'open'", "limit of S > 3"),
    *("no wind of S for 3 h", "no event of T for 2 min", "A is inside R for 10 min"),
    *("(level of S > 3 OR NOT state of S is 'x') for 2 h", "id of S is 'x'", "level of S > 3 m"),
)
conditions = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.builds(
        lambda parts, word: "(" + f" {word} ".join(parts) + ")",
        st.lists(inner, min_size=2, max_size=3),
        st.sampled_from(["AND", "OR", "FOLLOWED-BY"]),
    ),
    max_leaves=6,
)
lines = st.builds(lambda c, w: c + w, conditions, st.sampled_from(["", "", " within 10 s"]))


@pytest.mark.slow
@given(written=st.lists(lines, min_size=1, max_size=3))
def test_what_compiles_is_sound_and_printed_it_is_the_same_plan(
    written: list[str], every_form: Ontology
) -> None:
    text = HEAD + "\n".join(f"  {line}" for line in written) + TAIL
    try:
        compiled = compile_conditions(text, name="p", ontology=every_form, window_ms=5000)
    except PolicyError as error:
        assert all(problem.line and problem.hint for problem in error.problems)
        return
    plan = compiled.plan
    assert compiled.logic_tree.height() <= 5
    used = {
        number
        for clause in plan.clauses
        for child in clause.children
        for number in (
            (child.first, child.second) if isinstance(child, Sequence) else (child.term,)
        )
    }
    assert used == set(range(len(plan.terms)))
    assert len(set(plan.terms)) == len(plan.terms)
    assert decode_plan(encode_plan(plan)) == plan
    assert all(predicate_text(term) for term in plan.terms)
    again = compile_policy(
        print_policy(compiled.tree), name="p", ontology=every_form, window_ms=5000
    ).plan
    assert again == plan
