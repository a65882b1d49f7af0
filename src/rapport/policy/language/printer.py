"""Prints a tree as canonical text; parsing the text gives the same tree except for
places. [PO-3]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.core.times import format_duration
from rapport.policy.language.tree import (
    Action,
    And,
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    DurationCondition,
    Expression,
    FollowedBy,
    Measured,
    Or,
    PolicyTree,
    Property,
    Quantity,
    SilenceCondition,
    Term,
    Within,
)
from rapport.policy.ontology import Constraint

OPERATOR_WORDS = {
    ">": "above",
    "<": "below",
    ">=": "at least",
    "<=": "at most",
    "=": "is",
    "!=": "is not",
}
"""Words for a comparison with a constant; two measured operands keep the operator."""


def print_policy(tree: PolicyTree) -> str:
    """The policy with one condition per line and keywords as in the paper's listings."""
    lines = ["concepts", *(f"  {print_definition(concept)}" for concept in tree.concepts)]
    parts = tree.condition.parts if isinstance(tree.condition, And) else (tree.condition,)
    lines += ["conditions", *(f"  {print_expression(part)}" for part in parts)]
    lines += [f"  {option}" for option in _options(tree)]
    lines += _guard(tree)
    lines += ["actions", *(line for action in tree.actions for line in print_action(action))]
    return "\n".join(lines) + "\n"


def _guard(tree: PolicyTree) -> list[str]:
    if tree.guard is None:
        return []
    # Imported here because that printer uses the functions of this one.
    from rapport.policy.language.situation_printer import section_lines

    return ["while", *section_lines(tree.guard)]


def print_expression(expression: Expression) -> str:
    """One line, with parentheses where the language needs them."""
    match expression:
        case Term():
            return print_term(expression)
        case Comparison():
            return _comparison(expression)
        case DurationCondition(inner, duration_ms):
            return f"{_state(inner)} for {format_duration(duration_ms)}"
        case SilenceCondition(attribute, alias, duration_ms):
            return f"no {attribute or 'event'} of {alias} for {format_duration(duration_ms)}"
        case And(parts):
            return " AND ".join(_inner(part) for part in parts)
        case Or(parts):
            return " OR ".join(_inner(part) for part in parts)
        case FollowedBy():
            return _followed(expression) + within_text(expression.window_ms)
        case Within(inner, window_ms):
            return _inner(inner) + within_text(window_ms)


def print_term(term: Term) -> str:
    """`A is not within 5m of B`."""
    words = [term.first, "is", *(["not"] if term.negated else []), term.function]
    if term.parameter:
        words += [term.parameter, "of"]
    return " ".join([*words, term.second])


def print_measured(operand: Measured) -> str:
    """An operand of a comparison.

    >>> from rapport.policy.language.tree import SourceSpan
    >>> print_measured(Quantity(30.0, "degC", SourceSpan(1, 1)))
    '30 degC'
    """
    match operand:
        case Quantity(value, unit):
            return f"{print_value(value)} {unit}" if unit else print_value(value)
        case AttributeOf(attribute, alias):
            return f"{attribute} of {alias}"
        case Call(function, aliases):
            return f"{function}({', '.join(aliases)})"


def print_definition(concept: ConceptDef) -> str:
    """`person A (status='guest')`."""
    properties = " ".join(print_property(item) for item in concept.properties)
    return f"{concept.concept} {concept.alias}" + (f" ({properties})" if properties else "")


def print_value(value: str | float) -> str:
    """A constant as written in a property.

    >>> print_value("o'clock"), print_value(3.0), print_value(0.5)
    ("'o''clock'", '3', '0.5')
    """
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    text = repr(float(value))
    return text.removesuffix(".0")


def _comparison(comparison: Comparison) -> str:
    left, right = print_measured(comparison.left), print_measured(comparison.right)
    if not isinstance(comparison.right, Quantity):
        return f"{'NOT ' * comparison.negated}{left} {comparison.operator} {right}"
    if comparison.right.value in ("true", "false"):
        right = str(comparison.right.value)
    word = OPERATOR_WORDS[comparison.operator]
    if comparison.negated and comparison.operator not in ("=", "!="):
        return f"{left} is not {word} {right}"
    return f"{'NOT ' * comparison.negated}{left} {word} {right}"


def _state(expression: Expression) -> str:
    """The state of a `for`; a leading NOT needs parentheses, or it would negate the whole."""
    text = print_expression(expression)
    alone = isinstance(expression, Term | Comparison) and not text.startswith("NOT ")
    return text if alone else f"({text})"


def _followed(chain: FollowedBy) -> str:
    """A chain without the window of its last link.

    Chains nest to the left, so only a followed-by on the right needs parentheses. A window also
    applies to earlier links without one, so a link that shall have none gets parentheses.
    """
    first, window_ms = chain.first, chain.window_ms
    if not isinstance(first, FollowedBy):
        left = _inner(first)
    elif first.window_ms is None and window_ms is not None:
        left = f"({print_expression(first)})"
    elif first.window_ms == window_ms:
        left = _followed(first)
    else:
        left = print_expression(first)
    right = _inner(chain.second)
    if isinstance(chain.second, FollowedBy):
        right = f"({right})"
    return f"{left} FOLLOWED-BY {right}"


def within_text(window_ms: int | None) -> str:
    """` within 10s`, or empty."""
    return "" if window_ms is None else f" within {format_duration(window_ms)}"


def _inner(expression: Expression) -> str:
    text = print_expression(expression)
    return f"({text})" if isinstance(expression, And | Or) else text


def print_property(item: Property) -> str:
    """`status='guest'`, `length>12 m`."""
    return f"{item.attribute}{item.operator}{print_measured(item.constant)}"


def constraints_text(constraints: Iterable[Constraint]) -> str:
    """`status='guest' floor=3`."""
    return " ".join(f"{one.attribute}{one.operator}{print_value(one.value)}" for one in constraints)


def print_action(action: Action) -> list[str]:
    """The lines of an action with its delivery lines."""
    return [f"  {action.phrase}", *(f"    {line.text}" for line in action.delivery)]


def _options(tree: PolicyTree) -> list[str]:
    options = [f"distinct {first}, {second}" for first, second in tree.distinct]
    if tree.consumption != "chronicle":
        options.append(f"consume {tree.consumption}")
    if tree.when_unsure != "hold":
        options.append(f"when unsure {tree.when_unsure}")
    if tree.window_ms is not None:
        options.append(f"within {format_duration(tree.window_ms)}")
    if tree.once_per_ms is not None:
        options.append(f"at most once per {format_duration(tree.once_per_ms)}")
    return options
