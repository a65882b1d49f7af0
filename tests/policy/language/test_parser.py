"""Reading policies: the listings of the paper, free forms, bounds, and any text at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import PolicyError
from rapport.policy.language.parser import parse_expression, parse_policy
from rapport.policy.language.printer import print_expression
from rapport.policy.language.tree import (
    And,
    AttributeOf,
    Call,
    Comparison,
    DurationCondition,
    FollowedBy,
    Or,
    Quantity,
    SilenceCondition,
    Term,
    Within,
)

CHECKS = Path(__file__).parents[2] / "data" / "checks"
HEAD = "concepts\n  person A\n  person B\n  room R\nconditions\n"
TAIL = "actions\n  raise alarm\n"


def codes(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, name="test")
    return [problem.code for problem in caught.value.problems]


def test_all_recorded_policies_parse() -> None:
    paths = sorted(CHECKS.glob("*/*.dpl"))
    assert len(paths) == 21
    for path in paths:
        assert parse_policy(path.read_text(encoding="utf-8"), name=path.stem).name == path.stem


def test_listing_5_8_has_the_tree_it_should() -> None:
    text = (CHECKS / "secure-building" / "secure-building.dpl").read_text(encoding="utf-8")
    tree = parse_policy(text, name="secure-building")
    assert [(c.concept, c.alias, c.properties[0].value) for c in tree.concepts] == [
        ("person", "A", "guest"),
        ("person", "B", "employee"),
        ("room", "R", "restricted"),
    ]
    assert isinstance(tree.condition, And)
    inside, alone = tree.condition.parts
    assert isinstance(inside, Term)
    assert (inside.first, inside.function, inside.second, inside.negated) == (
        "A",
        "inside",
        "R",
        False,
    )
    assert isinstance(alone, Or)
    assert [part.negated for part in alone.parts if isinstance(part, Term)] == [True, True]
    assert [action.phrase for action in tree.actions] == ["raise alarm"]


def test_places_are_those_of_the_text() -> None:
    tree = parse_policy(HEAD + "  A  is not within 5 m of B\n" + TAIL, name="test")
    term = tree.condition
    assert isinstance(term, Term)
    assert (term.place.line, term.place.column, term.place.length) == (6, 3, 25)
    assert (term.function_place.column, term.second_place.column) == (13, 27)
    assert term.parameter == "5m"


def test_followed_by_binds_tighter_than_and() -> None:
    expression = parse_expression("A is x R FOLLOWED-BY B is x R AND A is y B")
    assert isinstance(expression, And)
    assert isinstance(expression.parts[0], FollowedBy)


def test_chains_lean_to_the_left() -> None:
    expression = parse_expression("A is x R FOLLOWED-BY B is x R FOLLOWED-BY C is x R")
    assert isinstance(expression, FollowedBy)
    assert isinstance(expression.first, FollowedBy)


@pytest.mark.parametrize(
    "text",
    ["A inside R", "A IS INSIDE R", "A is inside of R", "(A is inside R)", "((A inside R))"],
)
def test_small_words_are_optional(text: str) -> None:
    term = parse_expression(text)
    assert isinstance(term, Term)
    assert (term.first, term.function.lower(), term.second) == ("A", "inside", "R")


@pytest.mark.parametrize(
    "text",
    [
        "A is inside R NOT FOLLOWED-BY B is inside R",
        "A is inside R FOLLOWED-BY NOT B is inside R",
        "A is inside R FOLLOWED-BY B is not inside R",
        "(A is inside R) not followed-by (B is inside R)",
    ],
)
def test_not_followed_by_negates_what_follows(text: str) -> None:
    expression = parse_expression(text)
    assert isinstance(expression, FollowedBy)
    assert isinstance(expression.first, Term)
    assert isinstance(expression.second, Term)
    assert (expression.first.negated, expression.second.negated) == (False, True)


def test_the_two_forms_of_properties_are_the_same() -> None:
    one = parse_policy(
        "concepts person A (a='x' b>3)\n room R\nconditions A x R\n" + TAIL, name="t"
    )
    other = parse_policy(
        'concepts\n person A with property a="x" and b > 3\n room R\nconditions A x R\n' + TAIL,
        name="t",
    )
    shown = [
        [(p.attribute, p.operator, p.value) for p in t.concepts[0].properties] for t in (one, other)
    ]
    assert shown[0] == shown[1] == [("a", "=", "x"), ("b", ">", 3.0)]


def properties_of(definition: str) -> list[list[tuple[str, str, object, str]]]:
    """Of each alias defined in one line: attribute, operator, value and unit."""
    text = f"concepts\n  {definition}\n  room Z\n  room Y\nconditions\n  Z x Y\n{TAIL}"
    concepts = parse_policy(text, name="t").concepts[:-2]
    return [
        [(item.attribute, item.operator, item.value, item.unit) for item in concept.properties]
        for concept in concepts
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("length > 12 m", [("length", ">", 12.0, "m")]),
        ("length>12m", [("length", ">", 12.0, "m")]),
        ("speed above 50 km/h", [("speed", ">", 50.0, "km/h")]),
        ("share is over 15 %", [("share", ">", 15.0, "%")]),
        ("length is not above 12 m", [("length", "<=", 12.0, "m")]),
        ("length not at least 12 m", [("length", "<", 12.0, "m")]),
        ("length at most 12 m", [("length", "<=", 12.0, "m")]),
        ("status is 'x'", [("status", "=", "x", "")]),
        ("status is not 'x'", [("status", "!=", "x", "")]),
        ("vip is true", [("vip", "=", "true", "")]),
        ("floor is 3", [("floor", "=", 3.0, "")]),
    ],
)
@pytest.mark.parametrize("form", ["({})", "with property {}", "with {}"])
def test_properties_are_written_in_signs_or_words_and_have_units(
    written: str, meant: list[object], form: str
) -> None:
    assert properties_of(f"truck T {form.format(written)}") == [meant]


@pytest.mark.parametrize("form", ["({})", "with properties {}"])
@pytest.mark.parametrize("between", [" ", ", ", " and "])
def test_a_word_after_a_number_is_its_unit_unless_it_is_compared_itself(
    form: str, between: str
) -> None:
    written = between.join(("floor=3", "length above 12 m", "weight>3.5 t", "height at least 2"))
    assert properties_of(f"truck T {form.format(written)}") == [
        [
            ("floor", "=", 3.0, ""),
            ("length", ">", 12.0, "m"),
            ("weight", ">", 3.5, "t"),
            ("height", ">=", 2.0, ""),
        ]
    ]


def test_without_parentheses_another_definition_may_follow_a_number() -> None:
    floor, length = ("floor", "=", 3.0, ""), ("length", ">", 12.0, "m")
    assert properties_of("truck T with floor=3 room R") == [[floor], []]
    assert properties_of("truck T with length>12 m room R") == [[length], []]
    assert properties_of("truck T with floor=3 room over room at") == [[floor], [], []]


def test_words_near_those_of_the_language_may_be_aliases() -> None:
    text = (
        "concepts\n person witin\n person nto\n room wen\nconditions\n witin is x wen\n nto x wen\n"
    )
    tree = parse_policy(text + TAIL, name="t")
    assert isinstance(tree.condition, And)


def test_a_section_s_name_is_no_action_even_with_a_comment_behind_it() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(HEAD + "  A is inside R\n" + TAIL + "  concepts # again\n", name="t")
    assert [problem.code for problem in caught.value.problems] == ["policy.repeated_section"]


def test_an_operator_at_the_end_of_a_line_goes_on_in_the_next() -> None:
    tree = parse_policy(HEAD + "  A is inside R OR # why\n\n    B is inside R\n" + TAIL, name="t")
    assert isinstance(tree.condition, Or)


def test_names_of_relationships_may_have_several_words() -> None:
    term = parse_expression("A is in front of B")
    assert isinstance(term, Term)
    assert (term.function, term.second) == ("in front", "B")


def test_windows_line_ends_and_tabs_are_fine() -> None:
    text = (HEAD + "\tA is inside R\n" + TAIL).replace("\n", "\r\n")
    assert isinstance(parse_policy(text, name="t").condition, Term)


def test_a_policy_above_64_kib_is_refused_at_once() -> None:
    assert codes(HEAD + "  A is inside R\n" * 5000 + TAIL) == ["policy.too_large"]


def test_a_long_chain_is_refused_instead_of_overflowing() -> None:
    chain = " FOLLOWED-BY ".join(["A is inside R"] * 500)
    assert codes(f"{HEAD}  {chain}\n{TAIL}") == ["policy.too_deep"]


def test_chains_inside_groups_count_together() -> None:
    group = "A is inside R"
    for _ in range(10):
        group = f"({group})" + " FOLLOWED-BY A is inside R" * 8
    assert codes(f"{HEAD}  {group}\n{TAIL}") == ["policy.too_deep"]


def test_thousands_of_faults_are_cut_off_and_counted() -> None:
    found = codes(HEAD + "  A is\n" * 2000 + TAIL)
    assert len(found) == 51
    assert found[-1] == "policy.more_faults"


def test_excerpts_of_very_long_lines_stay_short() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(HEAD + "  " + "A is inside R AND " * 2000 + "?\n" + TAIL, name="t")
    assert all(len(problem.excerpt) < 400 for problem in caught.value.problems)
    assert caught.value.problems[0].excerpt.splitlines()[1].endswith("^")


def test_the_logistics_listing_has_the_tree_it_should() -> None:
    text = """concepts
    truck T
    substance A (dangerous='yes')
    substance B (dangerous='yes')
conditions
    A is inside T
    B is inside T
    distance(A, B) < minimumDistance(A, B)
actions
    notify headquarters
"""
    tree = parse_policy(text, name="dangerous-goods")
    assert isinstance(tree.condition, And)
    compared = tree.condition.parts[2]
    assert isinstance(compared, Comparison)
    assert isinstance(compared.left, Call)
    assert isinstance(compared.right, Call)
    assert (compared.left.function, compared.operator, compared.right.function) == (
        "distance",
        "<",
        "minimumDistance",
    )
    assert compared.left.aliases == compared.right.aliases == ("A", "B")
    assert (compared.place.line, compared.place.column, compared.place.length) == (8, 5, 38)


@pytest.mark.parametrize(
    ("said", "operator", "negated"),
    [
        ("above", ">", False),
        ("is over", ">", False),
        ("> ", ">", False),
        ("is > ", ">", False),
        ("below", "<", False),
        ("UNDER", "<", False),
        ("at least", ">=", False),
        ("is at most", "<=", False),
        ("is", "=", False),
        ("equals", "=", False),
        ("is not", "!=", False),
        ("!=", "!=", False),
        ("is not above", ">", True),
        ("not at least", ">=", True),
        ("is not =", "=", True),
    ],
)
def test_comparisons_may_be_written_in_words_and_signs(
    said: str, operator: str, negated: bool
) -> None:
    found = parse_expression(f"temperature of S {said} 30 degC")
    assert isinstance(found, Comparison)
    assert (found.operator, found.negated) == (operator, negated)
    assert isinstance(found.left, AttributeOf)
    assert (found.left.attribute, found.left.alias) == ("temperature", "S")
    assert isinstance(found.right, Quantity)
    assert (found.right.value, found.right.unit) == (30.0, "degC")


@pytest.mark.parametrize(
    ("written", "value", "unit"),
    [
        ("30degC", 30.0, "degC"),
        ("-3.5 °C", -3.5, "°C"),
        ("15 %", 15.0, "%"),
        ("15%", 15.0, "%"),
        ("50 km/h", 50.0, "km/h"),
        ("9 m/s # fast", 9.0, "m/s"),
        ("9 m// fast", 9.0, "m"),
        ("60 dB(A)", 60.0, "dB(A)"),
        ("5 µg/m³", 5.0, "µg/m³"),
        ("1e3 V.A", 1000.0, "V.A"),
        ("7", 7.0, ""),
        ("'open'", "open", ""),
        ("TRUE", "true", ""),
    ],
)
def test_constants_have_any_unit(written: str, value: str | float, unit: str) -> None:
    found = parse_expression(f"temperature of S is {written}")
    assert isinstance(found, Comparison)
    assert isinstance(found.right, Quantity)
    assert (found.right.value, found.right.unit) == (value, unit)


def test_for_belongs_to_what_stands_right_before_it() -> None:
    found = parse_expression("A is inside R FOLLOWED-BY B is inside R for 2 hours")
    assert isinstance(found, FollowedBy)
    assert isinstance(found.second, DurationCondition)
    assert found.second.duration_ms == 7_200_000
    group = parse_expression("(A is inside R AND t of A above 3 m) for 90 minutes")
    assert isinstance(group, DurationCondition)
    assert isinstance(group.inner, And)


def test_the_contrary_may_last() -> None:
    for text in ("A is not inside R for 5 s", "(NOT A is inside R) for 5 s"):
        found = parse_expression(text)
        assert isinstance(found, DurationCondition)
        assert isinstance(found.inner, Term)
        assert found.inner.negated


def test_silence_is_that_of_an_attribute_or_of_all() -> None:
    one, all_of_it = (parse_expression(f"no {what} of S for 3 h") for what in ("position", "event"))
    assert isinstance(one, SilenceCondition)
    assert isinstance(all_of_it, SilenceCondition)
    assert (one.attribute, one.alias, one.duration_ms) == ("position", "S", 10_800_000)
    assert all_of_it.attribute == ""


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("A x R FOLLOWED-BY B x R", [None]),
        ("A x R FOLLOWED-BY B x R within 10 s", [10_000]),
        ("(A x R FOLLOWED-BY B x R) within 10 s", [10_000]),
        ("A x R FOLLOWED-BY B x R FOLLOWED-BY C x R within 10 s", [10_000, 10_000]),
        ("(A x R FOLLOWED-BY B x R FOLLOWED-BY C x R) within 10 s", [10_000, 10_000]),
        ("(A x R FOLLOWED-BY B x R) FOLLOWED-BY C x R within 10 s", [None, 10_000]),
        ("A x R FOLLOWED-BY B x R within 5 s FOLLOWED-BY C x R", [5_000, None]),
        ("(A x R FOLLOWED-BY B x R) within 5 s FOLLOWED-BY C x R", [5_000, None]),
        ("A x R FOLLOWED-BY B x R within 5 s FOLLOWED-BY C x R within 9 s", [5_000, 9_000]),
    ],
)
def test_a_window_is_that_of_its_followed_by_and_those_before_it(
    text: str, windows: list[int | None]
) -> None:
    found = parse_expression(text)
    assert print_expression(parse_expression(print_expression(found))) == print_expression(found)
    seen: list[int | None] = []
    while isinstance(found, FollowedBy):
        seen.append(found.window_ms)
        found = found.first
    assert seen[::-1] == windows


@pytest.mark.parametrize(
    "text",
    ["(A x R OR B x R) within 10 s", "A is not x R within 10 s", "t of S above 3 within 10 s"],
)
def test_a_window_after_a_whole_line_is_that_of_the_line(text: str) -> None:
    found = parse_expression(text)
    assert isinstance(found, Within)
    assert found.window_ms == 10_000


@pytest.mark.parametrize(
    "text",
    [
        "A x R within 5 s AND B x R",
        "A x R OR B x R within 5 s",
        "(A x R within 5 s)",
        "(A x R OR B x R) within 5 s FOLLOWED-BY C x R",
    ],
)
def test_a_window_anywhere_else_is_refused(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_expression(text)
    assert [problem.code for problem in caught.value.problems] == ["policy.misplaced_window"]


def test_a_relationship_may_be_called_within_and_have_a_window() -> None:
    tree = parse_policy(HEAD + "  A is within 5m of B within 10 s\n" + TAIL, name="t")
    assert isinstance(tree.condition, Within)
    assert isinstance(tree.condition.inner, Term)
    assert tree.condition.inner.parameter == "5m"


def test_options_may_be_written_in_words() -> None:
    lines = "  A is inside R\n  use the newest first\n  at most once per 10 min\n"
    tree = parse_policy(HEAD + lines + TAIL, name="t")
    assert (tree.consumption, tree.once_per_ms) == ("recent", 600_000)
    oldest = parse_policy(HEAD + "  A is inside R\n  use the oldest\n" + TAIL, name="t")
    assert oldest.consumption == "chronicle"


def test_lines_further_to_the_right_belong_to_the_action_above() -> None:
    actions = "actions\n  raise alarm  # now\n    to guards\n\tanswer within 60 s\n  call home\n"
    tree = parse_policy(HEAD + "  A is inside R\n" + actions, name="t")
    assert [action.phrase for action in tree.actions] == ["raise alarm", "call home"]
    assert [line.text for line in tree.actions[0].delivery] == ["to guards", "answer within 60 s"]
    assert (tree.actions[0].delivery[0].place.line, tree.actions[0].delivery[0].place.column) == (
        9,
        5,
    )
    assert tree.actions[1].delivery == ()


def test_an_action_beside_its_header_takes_no_lines_that_stand_left_of_it() -> None:
    tree = parse_policy(HEAD + "  A is inside R\nactions raise alarm\n  call home\n", name="t")
    assert [action.phrase for action in tree.actions] == ["raise alarm", "call home"]


PIECES = (
    *("concepts", "conditions", "actions", "person", "room", "A", "B", "R", "is", "not", "inside"),
    *("within", "of", "and", "or", "FOLLOWED-BY", "NOT", "with", "property", "distinct", "consume"),
    *("recent", "for", "no", "at most", "distance(A,", "(", ")", ",", "=", "!=", "<", ">=", "=="),
    *("'x'", "'x", '"', "5", "5m", "5e", "-3", "1e999", "\n", "\r", "\t", "#", "//", ";", ":"),
    *("é", "‘", "\x00", "\u2028", "\ud800", "_", "-", "--", ""),
)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join) | st.text(max_size=200))
def test_any_text_parses_or_is_refused_with_placed_problems(text: str) -> None:
    lines = text.splitlines()
    for candidate in (text, HEAD + text + "\n" + TAIL):
        try:
            parse_policy(candidate, name="fuzz")
        except PolicyError as error:
            assert error.problems
            for problem in error.problems:
                assert problem.code.startswith("policy.")
                assert problem.message
                assert 0 <= problem.line <= len(lines) + 8


@given(
    st.lists(
        st.sampled_from(("(", ")", "A is x R", "AND", "OR", "FOLLOWED-BY", "NOT")), max_size=80
    )
)
def test_any_mix_of_groups_and_operators_parses_or_is_refused(pieces: list[str]) -> None:
    try:
        parse_expression(" ".join(pieces))
    except PolicyError as error:
        assert all(problem.line == 1 or not pieces for problem in error.problems)
