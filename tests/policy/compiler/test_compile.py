"""From text to plan: all recorded policies, what the stages hand on, and what stays the same."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.policy import ontology as ontology_module
from rapport.policy.compiler.compile import compile_conditions, compile_policy
from rapport.policy.ontology import Ontology
from rapport.policy.plan import (
    Absent,
    Clause,
    Constraint,
    CorrelationTerm,
    Plan,
    Positive,
    QueryTerm,
    Sequence,
    Side,
    decode_plan,
    encode_plan,
    is_positive,
)

HEAD = "concepts\n  person A\n  person B\n  room R\n  building H\nconditions\n"
TAIL = "actions\n  raise alarm\n"


def plan_of(conditions: str, ontology: Ontology) -> Plan:
    text = HEAD + conditions + "\n" + TAIL
    return compile_policy(text, name="test", ontology=ontology, window_ms=5000).plan


def test_all_recorded_policies_compile(checks: Path, ontology: Ontology) -> None:
    for path in sorted(checks.glob("*/*.dpl")):
        text = path.read_text(encoding="utf-8")
        compiled = compile_conditions(text, name=path.stem, ontology=ontology, window_ms=5000)
        assert compiled.plan.policy == path.stem
        assert compiled.logic_tree.height() <= 5
        assert decode_plan(encode_plan(compiled.plan)) == compiled.plan


def test_listing_5_8_becomes_the_plan_it_should(checks: Path, ontology: Ontology) -> None:
    text = (checks / "secure-building" / "secure-building.dpl").read_text(encoding="utf-8")
    plan = compile_policy(text, name="listing", ontology=ontology, window_ms=5000).plan
    guest = (Constraint("status", "=", "guest"),)
    employee = (Constraint("status", "=", "employee"),)
    restricted = (Constraint("security", "=", "restricted"),)
    stream = "person.position"
    a = Side("A", "person", "position", guest, stream)
    b = Side("B", "person", "position", employee, stream)
    r = Side("R", "room", "area", restricted, None)
    assert plan == Plan(
        policy="listing",
        terms=(
            QueryTerm(a, r, "inside"),
            CorrelationTerm(a, b, "within", 5.0),
            QueryTerm(b, r, "inside"),
        ),
        clauses=(Clause((Positive(0),)), Clause((Absent(1), Absent(2)))),
        actions=("raise alarm",),
        window_ms=5000,
    )


def test_compiling_twice_gives_the_same_version(ontology: Ontology) -> None:
    one = plan_of("  A is inside R\n  A is within 5m of B", ontology)
    other = plan_of("  A IS INSIDE R and\n  A within 500 cm B # nearer", ontology)
    assert one == other
    assert one.version() == other.version()


def test_a_window_of_the_policy_comes_before_that_of_the_site(ontology: Ontology) -> None:
    assert plan_of("  A is inside R", ontology).window_ms == 5000
    assert plan_of("  A is inside R\n  within 2 min", ontology).window_ms == 120_000


def test_constraint_terms_open_nothing_and_need_nothing_to_open(ontology: Ontology) -> None:
    plan = plan_of("  A is inside R\n  R belongs to H", ontology)
    assert len(plan.clauses) == 2
    assert len(plan_of("  A is inside R\n  R is not belongs to H", ontology).clauses) == 2
    with pytest.raises(PolicyError) as caught:
        plan_of("  R belongs to H\n  A is not inside R", ontology)
    assert caught.value.problems[0].code == "policy.absence_alone"


def test_absence_opened_by_a_followed_by_is_fine(ontology: Ontology) -> None:
    plan = plan_of(
        "  A is inside R FOLLOWED-BY B is not inside R\n  A is not within 5m of B", ontology
    )
    assert [all(is_positive(child) for child in clause.children) for clause in plan.clauses] == [
        True,
        False,
    ]


def test_a_followed_by_of_two_absences_alone_is_refused(ontology: Ontology) -> None:
    with pytest.raises(PolicyError) as caught:
        plan_of("  A is not inside R FOLLOWED-BY B is not inside R", ontology)
    assert [problem.code for problem in caught.value.problems] == ["policy.absence_alone"]


def test_terms_left_out_with_a_warning_close_up_the_numbers(ontology: Ontology) -> None:
    text = HEAD + "  A is not inside R OR B is inside R OR A is within 5m of B\n" + TAIL
    compiled = compile_policy(text, name="t", ontology=ontology, window_ms=5000)
    assert [p.code for p in compiled.problems if p.severity == "warning"] == [
        "policy.unused_alias",
        "policy.absence_never_opens",
    ]
    assert len(compiled.plan.terms) == 2
    assert compiled.plan.clauses == (Clause((Positive(0), Positive(1))),)


def test_all_four_followed_bys_reach_the_plan(ontology: Ontology) -> None:
    plan = plan_of(
        "  A is inside R\n"
        "  A is inside R FOLLOWED-BY B is inside R\n"
        "  A is inside R FOLLOWED-BY B is not inside R\n"
        "  A is not inside R FOLLOWED-BY B is inside R\n"
        "  A is not inside R FOLLOWED-BY B is not inside R",
        ontology,
    )
    found = [child for clause in plan.clauses for child in clause.children]
    assert found[1:] == [
        Sequence(0, 1),
        Sequence(0, 1, False, True),
        Sequence(0, 1, True, False),
        Sequence(0, 1, True, True),
    ]


def test_booleans_become_numbers_that_equal_them(ontology: Ontology) -> None:
    text = f"concepts\n person A (armed=true)\n room R\nconditions\n A inside R\n{TAIL}"
    plan = compile_policy(text, name="t", ontology=ontology, window_ms=5000).plan
    (constraint,) = plan.terms[0].first.constraints
    assert constraint.value == True  # noqa: E712


PIECES = (
    *("A", "B", "R", "H", "is", "not", "inside", "within 5m of", "belongs to", "near", "\n"),
    *("AND", "OR", "FOLLOWED-BY", "(", ")", "A is inside R", "B is inside R", "R belongs to H"),
    *("A is not within 5m of B", "distinct A, B\n", "within 5 s\n", "NOT"),
)


@pytest.mark.slow
@given(words=st.lists(st.sampled_from(PIECES), max_size=14))
def test_what_compiles_is_sound_and_what_does_not_is_refused(
    words: list[str], ontology: Ontology
) -> None:
    try:
        plan = plan_of(" ".join(words), ontology)
    except PolicyError as error:
        assert all(problem.line and problem.hint for problem in error.problems)
        return
    children = [child for clause in plan.clauses for child in clause.children]
    numbers = {
        number
        for child in children
        for number in (
            (child.first, child.second) if isinstance(child, Sequence) else (child.term,)
        )
    }
    assert numbers == set(range(len(plan.terms)))
    assert len(
        {(t.first.alias, t.function, t.second.alias, t.parameter) for t in plan.terms}
    ) == len(plan.terms)
    assert any(all(is_positive(child) for child in clause.children) for clause in plan.clauses)
    assert decode_plan(encode_plan(plan)) == plan


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(ontology_module).failed == 0
