"""Saying the contrary of a condition without NOT before a parenthesis, as the paper does. [PO-3]"""

from __future__ import annotations

import msgspec

from rapport.policy.language.tree import And, Expression, FollowedBy, Or, Term


def negate(expression: Expression) -> Expression:
    """The contrary, with NOT only before terms.

    `NOT (X FOLLOWED-BY Y)` becomes `(X FOLLOWED-BY NOT Y) OR NOT X`; AND and OR change places.
    """
    match expression:
        case Term():
            return msgspec.structs.replace(expression, negated=not expression.negated)
        case And(parts):
            return Or(tuple(negate(part) for part in parts))
        case Or(parts):
            return And(tuple(negate(part) for part in parts))
        case FollowedBy(first, second, place):
            return Or((FollowedBy(first, negate(second), place), negate(first)))
