"""The canonical text of a policy: parsing it gives the same tree, places aside. [PO-3]"""

from __future__ import annotations

from rapport.core.times import format_duration
from rapport.policy.language.tree import (
    And,
    ConceptDef,
    Expression,
    FollowedBy,
    Or,
    PolicyTree,
    Property,
    Term,
)


def print_policy(tree: PolicyTree) -> str:
    """The policy with one condition per line and keywords as in the paper's listings."""
    lines = ["concepts", *(f"  {_definition(concept)}" for concept in tree.concepts)]
    parts = tree.condition.parts if isinstance(tree.condition, And) else (tree.condition,)
    lines += ["conditions", *(f"  {print_expression(part)}" for part in parts)]
    lines += [f"  {option}" for option in _options(tree)]
    lines += ["actions", *(f"  {action.phrase}" for action in tree.actions)]
    return "\n".join(lines) + "\n"


def print_expression(expression: Expression) -> str:
    """One line; parentheses where the language needs them."""
    match expression:
        case Term():
            return print_term(expression)
        case And(parts):
            return " AND ".join(_inner(part) for part in parts)
        case Or(parts):
            return " OR ".join(_inner(part) for part in parts)
        case FollowedBy(first, second):
            # Chains lean to the left, so only a followed-by on the right needs parentheses.
            left = print_expression(first) if isinstance(first, FollowedBy) else _inner(first)
            right = _inner(second)
            if isinstance(second, FollowedBy):
                right = f"({right})"
            return f"{left} FOLLOWED-BY {right}"


def print_term(term: Term) -> str:
    """`A is not within 5m of B`."""
    words = [term.first, "is", *(["not"] if term.negated else []), term.function]
    if term.parameter:
        words += [term.parameter, "of"]
    return " ".join([*words, term.second])


def print_value(value: str | float) -> str:
    """A constant as it stands in a property.

    >>> print_value("o'clock"), print_value(3.0), print_value(0.5)
    ("'o''clock'", '3', '0.5')
    """
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    text = repr(float(value))
    return text.removesuffix(".0")


def _inner(expression: Expression) -> str:
    text = print_expression(expression)
    return f"({text})" if isinstance(expression, And | Or) else text


def _definition(concept: ConceptDef) -> str:
    properties = " ".join(_property(item) for item in concept.properties)
    return f"{concept.concept} {concept.alias}" + (f" ({properties})" if properties else "")


def _property(item: Property) -> str:
    return f"{item.attribute}{item.operator}{print_value(item.value)}"


def _options(tree: PolicyTree) -> list[str]:
    options = [f"distinct {first}, {second}" for first, second in tree.distinct]
    if tree.consumption != "chronicle":
        options.append(f"consume {tree.consumption}")
    if tree.when_unsure != "hold":
        options.append(f"when unsure {tree.when_unsure}")
    if tree.window_ms is not None:
        options.append(f"within {format_duration(tree.window_ms)}")
    return options
