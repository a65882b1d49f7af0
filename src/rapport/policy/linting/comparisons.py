"""Which values a plan compares with constants, and what that requires of them. [PO-12]"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rapport.policy.language.tree import Operator
from rapport.policy.linting.requirements import Requirement
from rapport.policy.plan import (
    Compared,
    Constant,
    ConstraintTerm,
    Operand,
    Plan,
    Positive,
    ReadingTerm,
    Side,
    SideValue,
    StateTerm,
)

Value = tuple[str, str]
"""An attribute of an alias."""
_TURNED: dict[Operator, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}


def comparisons_of(plan: Plan) -> dict[tuple[str, str], list[Requirement]]:
    """What every match requires of an attribute of a concept, where it is compared with constants;
    only of concepts that the policy has one alias of.
    """
    aliases: dict[str, set[str]] = defaultdict(set)
    for term in plan.terms:
        for side in (term.first, term.second):
            aliases[side.concept].add(side.alias)
    found: dict[tuple[str, str], list[Requirement]] = defaultdict(list)
    for kind in (ReadingTerm, ConstraintTerm):
        for (_alias, attribute), terms in single_comparisons(plan, kind).items():
            concept = terms[0].first.concept
            if len(aliases[concept]) == 1:
                wanted = [one for term in terms if (one := required_by(term.compared))]
                found[concept, attribute] += wanted
    return found


def single_comparisons(
    plan: Plan, kind: type[ReadingTerm | ConstraintTerm]
) -> dict[Value, list[ReadingTerm | ConstraintTerm]]:
    """The terms of a kind that every match has and that compare one value with a constant."""
    found: dict[Value, list[ReadingTerm | ConstraintTerm]] = defaultdict(list)
    for clause in plan.clauses:
        (child, *more) = clause.children
        if more or not isinstance(child, Positive):
            continue
        term = plan.terms[child.term]
        if isinstance(term, ReadingTerm | ConstraintTerm) and isinstance(term, kind):
            for value, _required in values_of(term):
                found[value].append(term)
    return dict(found)


def required_by(compared: Compared | None) -> Requirement | None:
    """What a comparison of one value with a constant requires of it."""
    if compared is None:
        return None
    return next(
        (one for operand, one in operands_of(compared) if isinstance(operand, SideValue)), None
    )


def values_of(term: StateTerm) -> Iterator[tuple[Value, Requirement]]:
    """The values that a term compares with a constant, with what that requires of them."""
    if term.compared is None:
        return
    sides: tuple[Side, Side] = (term.first, term.second)
    for operand, required in operands_of(term.compared):
        if isinstance(operand, SideValue):
            yield (sides[operand.side].alias, operand.attribute), required


def operands_of(compared: Compared) -> Iterator[tuple[Operand, Requirement]]:
    """Each operand that is compared with a constant, with what that requires of it."""
    if isinstance(compared.right, Constant):
        yield compared.left, Requirement(compared.operator, compared.right.value)
    if isinstance(compared.left, Constant):
        yield compared.right, Requirement(_TURNED[compared.operator], compared.left.value)
