"""The extended conjunctive normal form (ECNF): an AND of clauses, each an OR of single conditions
and followed-bys of two. [PO-4]

FOLLOWED-BY is distributed as in table 5.1 of the paper, then AND over OR. Duplicate clauses and
clauses implied by another one with the same window are dropped. Clauses are bit sets of atoms.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.policy.language.printer import print_expression, within_text
from rapport.policy.language.tree import (
    And,
    Atomic,
    Comparison,
    Expression,
    FollowedBy,
    Or,
    Term,
    Within,
    children,
)

MAX_CLAUSES = 1_000
_MAX_PRODUCT = 4 * MAX_CLAUSES
_MAX_CHAINS = 10_000
_MAX_WORK = 30_000_000


class TermAtom(NamedTuple):
    """A term without its place, so that equal terms compare equal."""

    first: str
    function: str
    second: str
    parameter: str
    negated: bool


class TextAtom(NamedTuple):
    """A comparison, duration or silence by its canonical text without NOT; `text_atoms` of the
    draft maps texts to trees."""

    text: str
    negated: bool


Single = TermAtom | TextAtom


class SequenceAtom(NamedTuple):
    """`first FOLLOWED-BY second` as one atom."""

    first: Single
    second: Single
    window_ms: int | None = None
    """None: the clause's window."""


Atom = TermAtom | TextAtom | SequenceAtom


class NormalClause(NamedTuple):
    """At least one of the atoms holds."""

    atoms: tuple[Atom, ...]
    window_ms: int | None = None
    """None: the policy's window."""


Ecnf = tuple[NormalClause, ...]


def ecnf_text(ecnf: Ecnf) -> str:
    """One clause per line."""
    return "\n".join(clause_text(clause) for clause in ecnf)


def clause_text(clause: NormalClause) -> str:
    """The clause as a line of a policy."""
    text = " OR ".join(atom_text(atom) for atom in clause.atoms)
    if clause.window_ms is None:
        return text
    whole = (
        f"({text})" if len(clause.atoms) > 1 or isinstance(clause.atoms[0], SequenceAtom) else text
    )
    return whole + within_text(clause.window_ms)


def atom_text(atom: Atom) -> str:
    """The atom as in a policy."""
    if isinstance(atom, SequenceAtom):
        both = f"{atom_text(atom.first)} FOLLOWED-BY {atom_text(atom.second)}"
        return both + within_text(atom.window_ms)
    if isinstance(atom, TextAtom):
        return f"{'NOT ' * atom.negated}{atom.text}"
    negation = "not " if atom.negated else ""
    parameter = f" {atom.parameter} of" if atom.parameter else ""
    return f"{atom.first} is {negation}{atom.function}{parameter} {atom.second}"


def term_atom(term: Term) -> TermAtom:
    return TermAtom(term.first, term.function, term.second, term.parameter, term.negated)


def single_atom(atomic: Atomic) -> Single:
    """The atom of a condition; equal conditions give equal atoms."""
    if isinstance(atomic, Term):
        return term_atom(atomic)
    if isinstance(atomic, Comparison):
        positive = msgspec.structs.replace(atomic, negated=False)
        return TextAtom(print_expression(positive), atomic.negated)
    return TextAtom(print_expression(atomic), False)


def atoms_of_expression(expression: Expression) -> Iterator[Atomic]:
    """The atomic conditions in the order written; a `for` is one."""
    if isinstance(expression, Atomic):
        yield expression
        return
    for part in children(expression):
        yield from atoms_of_expression(part)


class _Chain(NamedTuple):
    """Conditions in order, with the window of each step."""

    steps: tuple[Single, ...]
    windows: tuple[int | None, ...] = ()


_Choice = tuple[_Chain, ...]


def normalize(condition: Expression) -> Ecnf:
    """The condition in ECNF; clauses in the order written, atoms in the order of their first
    appearance.

    Raises InvalidInput `policy.too_many_clauses` above 1,000 clauses. Worst-case cost is bounded,
    not the exponential of the textbook.

    >>> from rapport.policy.language.parser import parse_expression as read
    >>> from rapport.policy.compiler.normal_form import ecnf_text
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
    >>> show("(a is x r AND b is x r) FOLLOWED-BY c is x r within 2 s")
    a is x r FOLLOWED-BY c is x r within 2s
    b is x r FOLLOWED-BY c is x r within 2s
    >>> show("(a is x r OR (b is x r AND v of s above 3 m)) within 9 s")
    (a is x r OR b is x r) within 9s
    (a is x r OR v of s above 3 m) within 9s
    """
    table = _Clauses()
    found = table.lines(condition)
    return tuple(NormalClause(table.atoms_of(clause), window_ms) for clause, window_ms in found)


def _too_many() -> InvalidInput:
    return InvalidInput(
        f"the condition has more than {MAX_CLAUSES:,} clauses in normal form",
        code="policy.too_many_clauses",
        hint="split the policy, or join fewer ANDs by OR",
    )


def _misplaced_window() -> InvalidInput:
    return InvalidInput(
        "a window stands inside a condition",
        code="policy.misplaced_window",
        hint="a window is that of a FOLLOWED-BY, of a whole line, or of the policy",
    )


class _Clauses:
    """Numbers the atoms and expands clauses; a clause is an integer with one bit per atom."""

    def __init__(self) -> None:
        self.numbers: dict[Atom, int] = {}
        self.work = 0

    def atoms_of(self, clause: int) -> tuple[Atom, ...]:
        """The atoms of a clause in the order of their numbers."""
        return tuple(atom for atom, number in self.numbers.items() if clause >> number & 1)

    def lines(self, condition: Expression) -> list[tuple[int, int | None]]:
        """The clauses of all lines with their windows; a clause implies another only under the same
        window."""
        lines = condition.parts if isinstance(condition, And) else (condition,)
        found: dict[tuple[int, int | None], None] = {}
        for line in lines:
            inner, window_ms = line, None
            if isinstance(line, Within):
                inner, window_ms = line.inner, line.window_ms
            found.update(dict.fromkeys((clause, window_ms) for clause in self.of(inner)))
        kept = {
            (clause, window_ms)
            for window_ms in {own for _clause, own in found}
            for clause in self._absorbed([clause for clause, own in found if own == window_ms])
        }
        if len(kept) > MAX_CLAUSES:
            raise _too_many()
        return [each for each in found if each in kept]

    def of(self, expression: Expression) -> list[int]:
        match expression:
            case And(parts):
                return self._all([self.of(part) for part in parts])
            case Or(parts):
                return self._any([self.of(part) for part in parts])
            case FollowedBy():
                choices = _choices(expression)
                return self._any([self._all([self._links(c) for c in ch]) for ch in choices])
            case Within():
                raise _misplaced_window()
            case _:
                return [self._bit(single_atom(expression))]

    def _bit(self, atom: Atom) -> int:
        return 1 << self.numbers.setdefault(atom, len(self.numbers))

    def _links(self, chain: _Chain) -> list[int]:
        """A chain a, b, c gives the followed-bys (a, b) and (b, c), as in the last row of table
        5.1."""
        links = zip(pairwise(chain.steps), chain.windows, strict=True)
        return [self._bit(SequenceAtom(*link, window_ms)) for link, window_ms in links]

    def _all(self, parts: list[list[int]]) -> list[int]:
        return self._absorbed([clause for part in parts for clause in part])

    def _any(self, parts: list[list[int]]) -> list[int]:
        # Parts with a single clause are joined first: they do not multiply clauses.
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
        """Drops clauses that contain another one; keeps the order."""
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
    """The alternatives of an expression, each a set of chains that all occur.

    Operands of FOLLOWED-BY are expanded first (as in the paper's example), so that one alternative
    is chosen for the whole operand and not per part of an AND.
    """
    match expression:
        case Or(parts):
            return _bounded([choice for part in parts for choice in _choices(part)])
        case And(parts):
            found: list[_Choice] = [()]
            for part in parts:
                found = _merged(found, _choices(part))
            return found
        case FollowedBy(first, second, _place, window_ms):
            return _followed(_choices(first), _choices(second), window_ms)
        case Within():
            raise _misplaced_window()
        case _:
            return [(_Chain((single_atom(expression),)),)]


def _joined(before: _Chain, after: _Chain, window_ms: int | None) -> _Chain:
    windows = (*before.windows, window_ms, *after.windows)
    return _Chain(before.steps + after.steps, windows)


def _merged(some: list[_Choice], others: list[_Choice]) -> list[_Choice]:
    _check_product(some, others)
    return _bounded([tuple(dict.fromkeys(one + other)) for one in some for other in others])


def _followed(some: list[_Choice], others: list[_Choice], window_ms: int | None) -> list[_Choice]:
    _check_product(some, others)
    return _bounded(
        [
            tuple(dict.fromkeys(_joined(x, y, window_ms) for x in one for y in other))
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
