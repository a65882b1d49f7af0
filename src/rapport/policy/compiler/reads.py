"""Which attributes a policy reads from tables, and where it names them. [PO-2, PO-5]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.policy.compiler.atoms import atoms_of_expression
from rapport.policy.compiler.scope import IDENTITY
from rapport.policy.language.tree import (
    AttributeOf,
    Comparison,
    DurationCondition,
    Expression,
    SourceSpan,
)
from rapport.policy.plan import (
    Compared,
    Constant,
    LastingTerm,
    Operand,
    Side,
    SideValue,
    SilentTerm,
    TermStep,
    state_atoms,
)


def table_attributes(term: TermStep) -> Iterator[tuple[Side, str]]:
    """Each side with an attribute that tables give; constraints and the identity aside."""
    match term:
        case SilentTerm():
            return
        case LastingTerm():
            for atom in state_atoms(term.state):
                yield from table_attributes(atom.term)
        case _ if term.compared is not None:
            for value in _values(term.compared):
                side = (term.first, term.second)[value.side]
                own = side.stream is not None and value.attribute == side.attribute
                if not own and value.attribute != IDENTITY:
                    yield side, value.attribute
        case _:
            for side in (term.first, term.second):
                if side.stream is None and side.attribute != IDENTITY:
                    yield side, side.attribute


def first_mentions(expression: Expression) -> dict[tuple[str, str], SourceSpan]:
    """Where a condition first names `attribute of alias`, by alias and attribute."""
    places: dict[tuple[str, str], SourceSpan] = {}
    for atomic in atoms_of_expression(expression):
        if isinstance(atomic, DurationCondition):
            places = first_mentions(atomic.inner) | places
        if isinstance(atomic, Comparison):
            for operand in (atomic.left, atomic.right):
                if isinstance(operand, AttributeOf):
                    places.setdefault((operand.alias, operand.attribute), operand.place)
    return places


def _values(compared: Compared) -> Iterator[SideValue]:
    for operand in (compared.left, compared.right):
        yield from _values_of(operand)


def _values_of(operand: Operand) -> tuple[SideValue, ...]:
    if isinstance(operand, SideValue):
        return (operand,)
    return () if isinstance(operand, Constant) else operand.of
