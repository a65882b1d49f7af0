"""ECNF: an AND of clauses, each an OR of terms, negated terms and followed-bys of two terms. [PO-4]

Table 5.1 of the paper says how FOLLOWED-BY is distributed; then AND over OR as usual. Duplicate
clauses and clauses that another one implies are left out. Clauses are sets of atoms kept as bits of
an integer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from rapport.core.errors import InvalidInput
from rapport.policy.language.tree import And, Expression, FollowedBy, Or, Term

MAX_CLAUSES = 1_000
_MAX_PRODUCT = 4 * MAX_CLAUSES
_MAX_CHAINS = 10_000
_MAX_WORK = 30_000_000


class Literal(NamedTuple):
    """A term without its place, so that the same term is equal wherever it stands."""

    first: str
    function: str
    second: str
    parameter: str
    negated: bool


class Pair(NamedTuple):
    """`first FOLLOWED-BY second`, treated as one atom."""

    first: Literal
    second: Literal


Atom = Literal | Pair
Ecnf = tuple[tuple[Atom, ...], ...]
_Chain = tuple[Literal, ...]
_Choice = tuple[_Chain, ...]


def normalize(condition: Expression) -> Ecnf:
    """The condition in ECNF; clauses in the order written, atoms in the order of their first
    appearance.

    Raises InvalidInput `policy.too_many_clauses` above 1,000 clauses. Worst-case cost is bounded,
    not the exponential of the textbook.

    >>> from rapport.policy.language.parser import parse_expression as read
    >>> def show(text): print(ecnf_text(normalize(read(text))))
    >>> show("a is x r FOLLOWED-BY (b is x r AND c is x r)")
    a is x r FOLLOWED-BY b is x r
    a is x r FOLLOWED-BY c is x r
    >>> show("a is x r FOLLOWED-BY (b is x r OR c is x r)")
    a is x r FOLLOWED-BY b is x r OR a is x r FOLLOWED-BY c is x r
    >>> show("(a is x r AND b is x r) FOLLOWED-BY c is x r")
    a is x r FOLLOWED-BY c is x r
    b is x r FOLLOWED-BY c is x r
    >>> show("(a is x r OR b is x r) FOLLOWED-BY c is x r")
    a is x r FOLLOWED-BY c is x r OR b is x r FOLLOWED-BY c is x r
    >>> show("a is x r FOLLOWED-BY b is x r FOLLOWED-BY c is x r")
    a is x r FOLLOWED-BY b is x r
    b is x r FOLLOWED-BY c is x r
    >>> show("a is x r OR (b is x r AND c is x r)")
    a is x r OR b is x r
    a is x r OR c is x r
    """
    table = _Clauses()
    return tuple(table.atoms_of(clause) for clause in table.of(condition))


def ecnf_text(ecnf: Ecnf) -> str:
    """One clause per line."""
    return "\n".join(" OR ".join(atom_text(atom) for atom in clause) for clause in ecnf)


def atom_text(atom: Atom) -> str:
    """The atom as a policy would say it."""
    if isinstance(atom, Pair):
        return f"{atom_text(atom.first)} FOLLOWED-BY {atom_text(atom.second)}"
    negation = "not " if atom.negated else ""
    parameter = f" {atom.parameter} of" if atom.parameter else ""
    return f"{atom.first} is {negation}{atom.function}{parameter} {atom.second}"


def literal_of(term: Term) -> Literal:
    """The term without its places."""
    return Literal(term.first, term.function, term.second, term.parameter, term.negated)


def terms_of(expression: Expression) -> Iterator[Term]:
    """All terms, in the order written."""
    match expression:
        case Term():
            yield expression
        case And(parts) | Or(parts):
            for part in parts:
                yield from terms_of(part)
        case FollowedBy(first, second):
            yield from terms_of(first)
            yield from terms_of(second)


def _too_many() -> InvalidInput:
    return InvalidInput(
        f"the condition has more than {MAX_CLAUSES:,} clauses in normal form",
        code="policy.too_many_clauses",
        hint="split the policy, or join fewer ANDs by OR",
    )


class _Clauses:
    """Numbers the atoms and multiplies clauses out; a clause is an integer with the bits of its
    atoms."""

    def __init__(self) -> None:
        self.numbers: dict[Atom, int] = {}
        self.work = 0

    def atoms_of(self, clause: int) -> tuple[Atom, ...]:
        """The atoms of a clause in the order of their numbers."""
        return tuple(atom for atom, number in self.numbers.items() if clause >> number & 1)

    def of(self, expression: Expression) -> list[int]:
        """The clauses of an expression."""
        match expression:
            case Term():
                return [self._bit(literal_of(expression))]
            case And(parts):
                return self._all([self.of(part) for part in parts])
            case Or(parts):
                return self._any([self.of(part) for part in parts])
            case FollowedBy():
                choices = _choices(expression)
                return self._any([self._all([self._links(c) for c in ch]) for ch in choices])

    def _bit(self, atom: Atom) -> int:
        return 1 << self.numbers.setdefault(atom, len(self.numbers))

    def _links(self, chain: _Chain) -> list[int]:
        """A chain a, b, c is the two followed-bys a, b and b, c (last row of table 5.1)."""
        return [self._bit(Pair(*link)) for link in pairwise(chain)]

    def _all(self, parts: list[list[int]]) -> list[int]:
        return self._absorbed([clause for part in parts for clause in part])

    def _any(self, parts: list[list[int]]) -> list[int]:
        # Parts of one clause only are joined first: they multiply nothing.
        single = 0
        for part in parts:
            if len(part) == 1:
                single |= part[0]
        product = [single]
        for part in parts:
            if len(part) > 1:
                product = self._absorbed([one | other for one in product for other in part])
        return product

    def _absorbed(self, clauses: list[int]) -> list[int]:
        """Without clauses that contain another one; the order stays."""
        unique = dict.fromkeys(clauses)
        self.work += len(clauses) + len(unique) * min(len(unique), MAX_CLAUSES)
        if len(unique) > _MAX_PRODUCT or self.work > _MAX_WORK:
            raise _too_many()
        kept: list[int] = []
        for clause in sorted(unique, key=int.bit_count):
            if not any(small & clause == small for small in kept):
                kept.append(clause)
        if len(kept) > MAX_CLAUSES:
            raise _too_many()
        chosen = set(kept)
        return [clause for clause in unique if clause in chosen]


def _choices(expression: Expression) -> list[_Choice]:
    """The ways an expression can come true, each a set of chains that all happen.

    Operands of FOLLOWED-BY are brought into this form first (as the paper does in its example), so
    that one choice is made for the whole operand and not one per part of an AND.
    """
    match expression:
        case Term():
            return [((literal_of(expression),),)]
        case Or(parts):
            return _bounded([choice for part in parts for choice in _choices(part)])
        case And(parts):
            found: list[_Choice] = [()]
            for part in parts:
                found = _merged(found, _choices(part))
            return found
        case FollowedBy(first, second):
            return _followed(_choices(first), _choices(second))


def _merged(some: list[_Choice], others: list[_Choice]) -> list[_Choice]:
    _check_product(some, others)
    return _bounded([tuple(dict.fromkeys(one + other)) for one in some for other in others])


def _followed(some: list[_Choice], others: list[_Choice]) -> list[_Choice]:
    _check_product(some, others)
    return _bounded(
        [
            tuple(dict.fromkeys(before + after for before in one for after in other))
            for one in some
            for other in others
        ]
    )


def _check_product(some: list[_Choice], others: list[_Choice]) -> None:
    chains = sum(map(len, some)) * sum(map(len, others))
    if len(some) * len(others) > MAX_CLAUSES or chains > _MAX_CHAINS:
        raise _too_many()


def _bounded(choices: list[_Choice]) -> list[_Choice]:
    unique = list(dict.fromkeys(choices))
    if len(unique) > MAX_CLAUSES or sum(map(len, unique)) > _MAX_CHAINS:
        raise _too_many()
    return unique
