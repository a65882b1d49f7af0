"""The words of the normal form: single conditions, followed-bys of two, clauses of them, and how
each is said. [PO-4]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rapport.core.times import format_duration
from rapport.policy.language.printer import print_expression
from rapport.policy.language.tree import (
    And,
    Atomic,
    Comparison,
    Expression,
    FollowedBy,
    Or,
    Term,
    Within,
)


class TermAtom(NamedTuple):
    """A term without its place, so that the same term is equal wherever it stands."""

    first: str
    function: str
    second: str
    parameter: str
    negated: bool


class TextAtom(NamedTuple):
    """A comparison, a duration or a silence by its canonical text, without NOT; the draft's
    `stated` has the tree of each text."""

    text: str
    negated: bool


Single = TermAtom | TextAtom


class SequenceAtom(NamedTuple):
    """`first FOLLOWED-BY second`, treated as one atom."""

    first: Single
    second: Single
    window_ms: int | None = None
    """Its own; None: that of its clause."""


Atom = TermAtom | TextAtom | SequenceAtom


class NormalClause(NamedTuple):
    """At least one of the atoms holds."""

    atoms: tuple[Atom, ...]
    window_ms: int | None = None
    """Its own; None: that of the policy."""


Ecnf = tuple[NormalClause, ...]


def ecnf_text(ecnf: Ecnf) -> str:
    """One clause per line."""
    return "\n".join(clause_text(clause) for clause in ecnf)


def clause_text(clause: NormalClause) -> str:
    """The clause as a line of a policy would say it."""
    text = " OR ".join(atom_text(atom) for atom in clause.atoms)
    if clause.window_ms is None:
        return text
    whole = f"({text})" if len(clause.atoms) > 1 or isinstance(clause.atoms[0], SequenceAtom) else text
    return whole + _within(clause.window_ms)


def atom_text(atom: Atom) -> str:
    """The atom as a policy would say it."""
    if isinstance(atom, SequenceAtom):
        both = f"{atom_text(atom.first)} FOLLOWED-BY {atom_text(atom.second)}"
        return both + _within(atom.window_ms)
    if isinstance(atom, TextAtom):
        return f"{'NOT ' * atom.negated}{atom.text}"
    negation = "not " if atom.negated else ""
    parameter = f" {atom.parameter} of" if atom.parameter else ""
    return f"{atom.first} is {negation}{atom.function}{parameter} {atom.second}"


def _within(window_ms: int | None) -> str:
    return "" if window_ms is None else f" within {format_duration(window_ms)}"


def term_atom(term: Term) -> TermAtom:
    """The term without its places."""
    return TermAtom(term.first, term.function, term.second, term.parameter, term.negated)


def single_atom(atomic: Atomic) -> Single:
    """What stands for the condition in the normal form, equal wherever the same is said."""
    if isinstance(atomic, Term):
        return term_atom(atomic)
    if isinstance(atomic, Comparison):
        positive = msgspec.structs.replace(atomic, negated=False)
        return TextAtom(print_expression(positive), atomic.negated)
    return TextAtom(print_expression(atomic), False)


def atoms_of_expression(expression: Expression) -> Iterator[Atomic]:
    """All that is never taken apart, in the order written; a `for` is one, whatever it holds."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from atoms_of_expression(part)
        case FollowedBy(first, second):
            yield from atoms_of_expression(first)
            yield from atoms_of_expression(second)
        case Within(inner):
            yield from atoms_of_expression(inner)
        case _:
            yield expression


def terms_of(expression: Expression) -> Iterator[Term]:
    """The relationships among them."""
    return (atom for atom in atoms_of_expression(expression) if isinstance(atom, Term))
