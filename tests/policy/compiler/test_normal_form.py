"""The normal form keeps the meaning: judged by rewriting step by step with table 5.1."""

import doctest
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import SystemClock
from rapport.policy.compiler import normal_form as module
from rapport.policy.compiler.normal_form import (
    MAX_CLAUSES,
    Atom,
    NormalClause,
    SequenceAtom,
    Single,
    TextAtom,
    atoms_of_expression,
    ecnf_text,
    normalize,
    single_atom,
)
from rapport.policy.language.parser import parse_expression, parse_policy
from rapport.policy.language.tree import (
    And,
    AttributeOf,
    Comparison,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
    Within,
)

pytestmark = pytest.mark.slow

NOWHERE = SourceSpan(0, 0)


def term(name: str, negated: bool = False) -> Term:
    return Term(name, "x", "r", negated, "", NOWHERE, NOWHERE, NOWHERE, NOWHERE)


def compared(name: str, negated: bool = False) -> Comparison:
    left = AttributeOf("value", name, NOWHERE, NOWHERE)
    return Comparison(left, ">", Quantity(3.0, "m", NOWHERE), negated, NOWHERE)


def followed(first: Expression, second: Expression, window_ms: int | None = None) -> FollowedBy:
    return FollowedBy(first, second, NOWHERE, window_ms)


terms = st.builds(term, st.sampled_from("abcde"), st.booleans())
stated = (
    st.builds(compared, st.sampled_from("ab"), st.booleans())
    | st.builds(lambda inner: DurationCondition(inner, 5_000, NOWHERE), terms)
    | st.builds(
        lambda name: SilenceCondition("", name, 5_000, NOWHERE, NOWHERE), st.sampled_from("ab")
    )
)
windows = st.sampled_from((None, 2_000, 3_000))
booleans_only = st.recursive(
    terms,
    lambda inner: (
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple))
    ),
    max_leaves=8,
)
expressions = st.recursive(
    terms | stated,
    lambda inner: (
        st.builds(And, st.lists(inner, min_size=2, max_size=2).map(tuple))
        | st.builds(Or, st.lists(inner, min_size=2, max_size=2).map(tuple))
        | st.builds(followed, inner, inner, windows)
    ),
    max_leaves=6,
)
lines = expressions | st.builds(lambda inner: Within(inner, 9_000, NOWHERE), expressions)
conditions = lines | st.builds(And, st.lists(lines, min_size=2, max_size=3).map(tuple))
Step = tuple[Single, Single, int | None]


class Assignment:
    """Which singles and which steps from one to another are true."""

    def __init__(self, true_singles: set[tuple[str, ...]], true_steps: set[Step]) -> None:
        self.true_singles, self.true_steps = true_singles, true_steps

    def holds(self, atom: Atom) -> bool:
        if isinstance(atom, SequenceAtom):
            return tuple(atom) in self.true_steps
        return (positive(atom) in self.true_singles) != atom.negated


def positive(single: Single) -> tuple[str, ...]:
    """What is said, without NOT."""
    return tuple(single)[:-1]  # type: ignore[return-value]


def assignments(expression: Expression) -> st.SearchStrategy[Assignment]:
    singles = list({single_atom(found) for found in atoms_of_expression(expression)})
    steps = [
        (one, other, window_ms)
        for one in singles
        for other in singles
        for window_ms in (None, 2_000, 3_000)
    ]
    return st.builds(
        Assignment,
        st.sets(st.sampled_from(sorted({positive(single) for single in singles}))),
        st.sets(st.sampled_from(steps)),
    )


def judge(expression: Expression, world: Assignment) -> bool:
    """The meaning of the tree as written: every choice that an OR leaves is tried."""
    parts = expression.parts if isinstance(expression, And) else (expression,)
    lines = [part.inner if isinstance(part, Within) else part for part in parts]
    return all(
        any(
            all(world.holds(SequenceAtom(*step)) for step in chained)
            and all(world.holds(single) for single in alone)
            for chained, alone, _firsts, _lasts in ways(line)
        )
        for line in lines
    )


Way = tuple[set[Step], set[Single], set[Single], set[Single]]


def ways(expression: Expression) -> Iterator[Way]:
    """Ways to come true: the steps and the single conditions that must hold, what it begins with,
    what it ends with."""
    match expression:
        case Or(parts):
            for part in parts:
                yield from ways(part)
        case And(parts):
            yield from _all_ways(list(parts))
        case FollowedBy(first, second, _place, window_ms):
            for steps, _alone, firsts, lasts in ways(first):
                for more, _other, next_firsts, next_lasts in ways(second):
                    joined = {(a, b, window_ms) for a in lasts for b in next_firsts}
                    yield steps | more | joined, set(), firsts, next_lasts
        case Within():
            raise AssertionError(expression)
        case _:
            single = single_atom(expression)
            yield set(), {single}, {single}, {single}


def _all_ways(parts: list[Expression]) -> Iterator[Way]:
    if len(parts) == 1:
        yield from ways(parts[0])
        return
    for steps, alone, firsts, lasts in ways(parts[0]):
        for more, others, more_firsts, more_lasts in _all_ways(parts[1:]):
            yield steps | more, alone | others, firsts | more_firsts, lasts | more_lasts


def satisfied(clauses: tuple[NormalClause, ...], world: Assignment) -> bool:
    return all(any(world.holds(atom) for atom in clause.atoms) for clause in clauses)


@given(st.data())
def test_the_normal_form_keeps_the_meaning(data: st.DataObject) -> None:
    expression = data.draw(conditions)
    clauses = normalize(expression)
    for _ in range(5):
        world = data.draw(assignments(expression))
        assert satisfied(clauses, world) == judge(expression, world)


@given(booleans_only, st.sets(st.sampled_from("abcde")))
def test_without_followed_by_it_is_the_ordinary_normal_form(
    expression: Expression, true_terms: set[str]
) -> None:
    def evaluate(part: Expression) -> bool:
        match part:
            case And(parts):
                return all(evaluate(inner) for inner in parts)
            case Or(parts):
                return any(evaluate(inner) for inner in parts)
            case Term():
                return (part.first in true_terms) != part.negated
        raise AssertionError(part)

    world = Assignment({positive(single_atom(term(name))) for name in true_terms}, set())
    assert satisfied(normalize(expression), world) == evaluate(expression)


@given(conditions)
def test_no_clause_contains_another_of_the_same_window(expression: Expression) -> None:
    sets = [(frozenset(clause.atoms), clause.window_ms) for clause in normalize(expression)]
    assert not any(
        one[0] <= other[0] and one[1] == other[1]
        for one in sets
        for other in sets
        if one is not other
    )


@given(conditions)
def test_normalising_again_changes_nothing(expression: Expression) -> None:
    trees = {single_atom(found): found for found in atoms_of_expression(expression)}

    def as_expression(atom: Atom) -> Expression:
        if isinstance(atom, SequenceAtom):
            return followed(trees[atom.first], trees[atom.second], atom.window_ms)
        return trees[atom]

    def as_line(clause: NormalClause) -> Expression:
        line = Or(tuple(as_expression(atom) for atom in clause.atoms))
        return line if clause.window_ms is None else Within(line, clause.window_ms, NOWHERE)

    def as_sets(clauses: tuple[NormalClause, ...]) -> set[object]:
        return {(frozenset(clause.atoms), clause.window_ms) for clause in clauses}

    clauses = normalize(expression)
    rebuilt = And(tuple(as_line(clause) for clause in clauses))
    assert as_sets(normalize(rebuilt)) == as_sets(clauses)


def shown(text: str) -> list[str]:
    return ecnf_text(normalize(parse_expression(text))).splitlines()


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        (
            "a is x r FOLLOWED-BY (b is x r AND c is x r) within 2 s",
            [
                "a is x r FOLLOWED-BY b is x r within 2s",
                "a is x r FOLLOWED-BY c is x r within 2s",
            ],
        ),
        (
            "a is x r FOLLOWED-BY (b is x r OR c is x r) within 2 s",
            ["a is x r FOLLOWED-BY b is x r within 2s OR a is x r FOLLOWED-BY c is x r within 2s"],
        ),
        (
            "(a is x r OR b is x r) FOLLOWED-BY c is x r within 2 s",
            ["a is x r FOLLOWED-BY c is x r within 2s OR b is x r FOLLOWED-BY c is x r within 2s"],
        ),
        (
            "a is x r FOLLOWED-BY b is x r within 2 s FOLLOWED-BY c is x r within 3 s",
            [
                "a is x r FOLLOWED-BY b is x r within 2s",
                "b is x r FOLLOWED-BY c is x r within 3s",
            ],
        ),
        (
            "a is x r FOLLOWED-BY (b is x r FOLLOWED-BY c is x r within 3 s) within 2 s",
            [
                "a is x r FOLLOWED-BY b is x r within 2s",
                "b is x r FOLLOWED-BY c is x r within 3s",
            ],
        ),
        (
            "(a is x r FOLLOWED-BY b is x r within 2 s OR c is not x r) within 9 s",
            ["(a is x r FOLLOWED-BY b is x r within 2s OR c is not x r) within 9s"],
        ),
        (
            "((a is x r AND b is x r) OR c is not x r) within 9 s",
            ["(a is x r OR c is not x r) within 9s", "(b is x r OR c is not x r) within 9s"],
        ),
        (
            "v of s above 3 m FOLLOWED-BY (NOT v of s above 3 m OR a is x r for 5 min)",
            [
                "v of s above 3 m FOLLOWED-BY NOT v of s above 3 m"
                " OR v of s above 3 m FOLLOWED-BY a is x r for 5min"
            ],
        ),
        (
            "a is x r OR (no v of s for 2 h AND (a is x r AND b is x r) for 1 s)",
            ["a is x r OR no v of s for 2h", "a is x r OR (a is x r AND b is x r) for 1s"],
        ),
    ],
)
def test_windows_and_stated_conditions_go_through_table_5_1(text: str, clauses: list[str]) -> None:
    assert shown(text) == clauses


def lines_of(*lines: str) -> list[str]:
    text = "".join(f"  {line}\n" for line in lines)
    policy = f"concepts\n  person a\n  person b\n  room r\nconditions\n{text}actions\n  x\n"
    return ecnf_text(normalize(parse_policy(policy, name="test").condition)).splitlines()


def test_equal_clauses_are_merged_only_under_the_same_window() -> None:
    plain, wide = "a is x r OR b is x r", "(a is x r OR b is x r) within 9s"
    assert lines_of(plain, plain) == [plain]
    assert lines_of(plain, wide) == [plain, wide]
    assert lines_of(wide, wide) == [wide]
    assert lines_of(wide, "a is x r within 9 s") == ["a is x r within 9s"]
    assert lines_of(wide, "a is x r") == [wide, "a is x r"]


def test_the_same_followed_by_with_two_windows_is_two_atoms() -> None:
    one, other = (f"a is x r FOLLOWED-BY b is x r within {time}" for time in ("2s", "3s"))
    assert lines_of(one, other, one) == [one, other]


def test_a_comparison_is_stated_by_its_positive_text() -> None:
    text = "v of s is not above 3000 m AND NOT v of s is 'open' AND t of s is not 'open'"
    assert [clause.atoms for clause in normalize(parse_expression(text))] == [
        (TextAtom("v of s above 3000 m", True),),
        (TextAtom("v of s is 'open'", True),),
        (TextAtom("t of s is not 'open'", False),),
    ]


def test_what_lasts_is_not_taken_apart() -> None:
    found = parse_expression("(a is x r OR b is x r) for 5 s AND c is x r")
    assert [type(atom) for atom in atoms_of_expression(found)] == [DurationCondition, Term]
    assert [each.first for each in atoms_of_expression(found) if isinstance(each, Term)] == ["c"]


def test_a_window_inside_a_condition_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        normalize(Or((term("a"), Within(term("b"), 5, NOWHERE))))
    assert caught.value.code == "policy.misplaced_window"


def test_windows_do_not_lift_the_bound_of_clauses() -> None:
    many = tuple(Within(term(f"a{i}"), i + 1, NOWHERE) for i in range(MAX_CLAUSES + 1))
    with pytest.raises(InvalidInput) as caught:
        normalize(And(many))
    assert caught.value.code == "policy.too_many_clauses"
    assert len(normalize(And(many[1:]))) == MAX_CLAUSES


def test_above_a_thousand_clauses_it_is_refused() -> None:
    pairs = [And((term(f"a{i}"), term(f"b{i}"))) for i in range(10)]
    with pytest.raises(InvalidInput) as caught:
        normalize(Or(tuple(pairs)))
    assert caught.value.code == "policy.too_many_clauses"
    assert len(normalize(Or(tuple(pairs[:9])))) == 512
    with pytest.raises(InvalidInput):
        normalize(And(tuple(term(f"a{i}") for i in range(MAX_CLAUSES + 1))))


@pytest.mark.parametrize(
    "expression",
    [
        Or(tuple(And((term(f"a{i}"), term(f"b{i}"), term(f"c{i}"))) for i in range(400))),
        Or((And(tuple(term(f"a{i}") for i in range(900))), *(term(f"b{i}") for i in range(900)))),
        Or(
            tuple(
                And(tuple(term(f"a{(i * 7 + k * 5) % 12}") for k in range(4))) for i in range(400)
            )
        ),
        followed(
            And(tuple(Or((term(f"a{i}"), term(f"b{i}"))) for i in range(40))),
            And(tuple(Or((term(f"c{i}"), term(f"d{i}"))) for i in range(40))),
        ),
        followed(
            And(tuple(term(f"a{i}") for i in range(300))),
            And(tuple(term(f"b{i}") for i in range(300))),
        ),
    ],
    ids=["wide or", "one long and", "absorbing", "choices", "many pairs"],
)
def test_no_condition_takes_long(expression: Expression) -> None:
    clock = SystemClock()
    started = clock.steady_ns()
    try:
        normalize(expression)
    except InvalidInput as error:
        assert error.code == "policy.too_many_clauses"
    assert clock.steady_ns() - started < 10_000_000_000


def test_the_examples_of_table_5_1_hold() -> None:
    assert doctest.testmod(module).failed == 0
