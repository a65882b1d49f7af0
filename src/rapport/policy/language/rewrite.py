"""Saying the contrary of a condition without NOT before a parenthesis, as the paper does. [PO-3]"""

from __future__ import annotations

import msgspec

from rapport.policy.language.tree import (
    And,
    Comparison,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    SilenceCondition,
    Term,
    Within,
)


def negate(expression: Expression) -> Expression | None:
    """The contrary, with NOT only before terms and comparisons; None when something in it has no
    contrary (`for`, `no`).

    `NOT (X FOLLOWED-BY Y)` becomes `(X FOLLOWED-BY NOT Y) OR NOT X`; AND and OR change places.
    """
    match expression:
        case Term() | Comparison():
            return msgspec.structs.replace(expression, negated=not expression.negated)
        case And(parts):
            contraries = _all(parts)
            return Or(contraries) if contraries is not None else None
        case Or(parts):
            contraries = _all(parts)
            return And(contraries) if contraries is not None else None
        case FollowedBy(first, second):
            contraries = _all((first, second))
            if contraries is None:
                return None
            followed = msgspec.structs.replace(expression, second=contraries[1])
            return Or((followed, contraries[0]))
        case DurationCondition() | SilenceCondition() | Within():
            return None


def _all(parts: tuple[Expression, ...]) -> tuple[Expression, ...] | None:
    """The contraries of all, None when one has none."""
    contraries = tuple(contrary for part in parts if (contrary := negate(part)) is not None)
    return contraries if len(contraries) == len(parts) else None
