"""Any text as a policy: no crash, no hang, and every problem has a place. Work is counted in calls,
so that a slow machine fails nothing and a quadratic parser always does. [PO-3]
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, PolicyError
from rapport.policy.compiler.normal_form import normalize
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.parser import MAX_BYTES, parse_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.tree import PolicyTree
from support.examples import examples
from support.work import calls

pytestmark = pytest.mark.slow

CHECKS = Path(__file__).parents[1] / "data" / "checks"
HEAD = "concepts\n  person A\n  person B\n  room R\n  sensor S\nconditions\n"
TAIL = "actions\n  raise alarm\n    to guards\n"
FULL = f"""{HEAD}  A is inside R FOLLOWED-BY B is not within 5m of A within 10 s
  (temperature of S above 30 degC OR distance(A, B) < least(A, B)) within 3 min
  (NOT level of S at most -3.5 dB(A) AND A is inside R) for 2 hours
  no temperature of S for 3 h
  at most once per 10 min
  distinct A, B
  use the newest first
  when unsure fire
  within 5 s
{TAIL}"""
SEEDS = [FULL, *(path.read_text(encoding="utf-8") for path in sorted(CHECKS.glob("*/*.dpl")))]
PIECES = (
    *("concepts", "conditions", "actions", "person", "room", "A", "B", "R", "S", "is", "not"),
    *("inside", "within", "of", "and", "or", "FOLLOWED-BY", "NOT", "with", "property", "distinct"),
    *("consume", "use the newest", "when unsure", "for", "no", "at most once per", "at least"),
    *("temperature of S", "distance(A, B)", "above", "below", "equals", "event", "true", "for 2 h"),
    *("within 10 s", "30 degC", "5 %", "3 m/s", "°C", "dB(A)", "(", ")", ",", "=", "!=", "<", ">="),
    *("==", "'x'", "'x", '"', "5", "5m", "5e", "-3", "1e999", "\n", "\n  ", "\n    ", "\r", "\t"),
    *("#", "//", ";", ":", "é", "‘", "\x00", "\u2028", "\ud800", "_", "-", "--", "", "·", "²"),
)
CALLS_PER_CHARACTER = 120
CALLS_AT_LEAST = 20_000


def judged(text: str) -> PolicyTree | None:
    """The tree, or None after it was refused as it should be."""
    lines = len(text.splitlines())
    try:
        return parse_policy(text, name="fuzz")
    except PolicyError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.code.startswith("policy.")
            assert problem.message
            assert problem.hint
            whole = problem.code in ("policy.more_faults", "policy.too_large")
            assert problem.line >= 1 or whole
            assert problem.line <= max(lines, 1)
            assert problem.column >= 1 or whole
        return None


def check(text: str) -> None:
    trees: list[PolicyTree | None] = []
    made = calls(lambda: trees.append(judged(text)))
    assert made <= CALLS_AT_LEAST + CALLS_PER_CHARACTER * len(text)
    tree = trees[0]
    if tree is None:
        return
    assert print_policy(parse_policy(print_policy(tree), name="fuzz")) == print_policy(tree)
    formatted = format_policy(text, name="fuzz")
    assert format_policy(formatted, name="fuzz") == formatted
    try:
        normalize(tree.condition)
    except InvalidInput as error:
        assert error.code == "policy.too_many_clauses"


@given(st.text(max_size=200))
@example("")
@example("\ufeffconcepts")
def test_random_text_is_refused_with_places(text: str) -> None:
    check(text)
    check(HEAD + text + "\n" + TAIL)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join))
def test_any_salad_of_words_parses_or_is_refused_with_places(text: str) -> None:
    check(text)
    check(HEAD + text + "\n" + TAIL)
    check(HEAD + "  A is inside R\n" + TAIL + text)


@given(st.data())
def test_a_policy_with_a_few_changes_parses_or_is_refused_with_places(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(start + data.draw(st.integers(0, 12)), len(text))
        put = data.draw(st.sampled_from(PIECES) | st.text(max_size=3) | st.just(text[start:end]))
        text = text[:start] + put + text[end:]
    check(text)


@settings(max_examples=examples(5), deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(" ".join),
    st.sampled_from(("", " ", "\n", "\n  ")),
)
@example("(", "\n")
@example("A is inside R OR", "\n")
@example("NOT (A is inside R FOLLOWED-BY", " ")
@example("A", "\n")
@example("'", "")
@example("''", "")
@example("    x", "\n")
@example("5 ", "")
@example("-a", "")
@example("A is inside R FOLLOWED-BY A is inside R within 5 s", " FOLLOWED-BY ")
@example("distance(A, B) < 5 m", " AND ")
def test_64_kib_of_anything_takes_work_in_proportion(piece: str, between: str) -> None:
    unit = f"{piece}{between}" or " "
    room = MAX_BYTES - len(HEAD) - len(TAIL) - 40
    many = unit * (room // max(len(unit.encode("utf-8", "surrogatepass")), 1))
    for text in (HEAD + many + "\n" + TAIL, HEAD + "  A is inside R\n" + TAIL + many):
        made = calls(lambda text=text: judged(text))  # type: ignore[misc]
        assert made <= CALLS_AT_LEAST + CALLS_PER_CHARACTER * len(text)


def test_all_forms_at_once_parse() -> None:
    assert judged(FULL) is not None
