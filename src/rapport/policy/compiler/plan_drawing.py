"""A plan as a drawing: what is read, its terms, the clauses over them, what is done. Pure.
[PO-5]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.policy.compiler.drawing import Box, Join, Style, box, place_columns, stack_columns, svg
from rapport.policy.compiler.logic_tree import within_text
from rapport.policy.compiler.plan_text import (
    clause_text,
    kind_of,
    option_lines,
    predicate_text,
    side_text,
)
from rapport.policy.plan import (
    Absent,
    Clause,
    CorrelationTerm,
    LastingTerm,
    Plan,
    Positive,
    Sequence,
    Side,
    TermStep,
    state_atoms,
)

_READ, _TERMS, _CLAUSES, _MATCH, _ACTIONS = range(5)


def draw_plan(plan: Plan, *, title: str) -> str:
    """The plan as SVG, from what it reads on the left to what is done on the right; what must be
    absent hangs on dashed lines.
    """
    drawing = _PlanDrawing()
    terms = [drawing.term(number, term) for number, term in enumerate(plan.terms)]
    clauses = [drawing.clause(clause, terms) for clause in plan.clauses]
    match = drawing.add("all of them", "join", _MATCH, *option_lines(plan))
    for clause in clauses:
        drawing.join(clause, match)
    for action in plan.actions:
        drawing.join(match, drawing.add(action, "result", _ACTIONS))
    place_columns(drawing.boxes)
    stack_columns(drawing.boxes)
    return svg(title, drawing.boxes, drawing.joins)


class _PlanDrawing:
    """Boxes and lines, gathered from left to right; each side that is read has one box."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.joins: list[Join] = []
        self._sides: dict[Side, int] = {}

    def add(self, text: str, style: Style, column: int, *more: str) -> int:
        """A box; returns its number."""
        self.boxes.append(box(text, style, column, *more))
        return len(self.boxes) - 1

    def join(self, start: int, end: int, *, dashed: bool = False) -> None:
        """A line; one of each kind is enough."""
        joined = Join(start, end, dashed)
        if joined not in self.joins:
            self.joins.append(joined)

    def term(self, number: int, term: TermStep) -> int:
        """A term with lines from all it reads."""
        window = within_text(term.window_ms) if isinstance(term, CorrelationTerm) else ""
        own = self.add(f"{number} {kind_of(term)}{window}", "term", _TERMS, predicate_text(term))
        for side in _read(term):
            if side not in self._sides:
                style: Style = "tables" if side.stream is None else "events"
                self._sides[side] = self.add(side_text(side), style, _READ)
            self.join(self._sides[side], own)
        return own

    def clause(self, clause: Clause, terms: list[int]) -> int:
        """A clause with lines from its terms."""
        own = self.add(clause_text(clause), "join", _CLAUSES)
        for number, negated in _used(clause):
            self.join(terms[number], own, dashed=negated)
        return own


def _read(term: TermStep) -> Iterator[Side]:
    """Every side that a term reads, those of its state included."""
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from _read(atom.term)
    else:
        yield from dict.fromkeys((term.first, term.second))


def _used(clause: Clause) -> Iterator[tuple[int, bool]]:
    """The terms of a clause and whether their absence is meant."""
    for child in clause.children:
        match child:
            case Positive(term):
                yield term, False
            case Absent(term):
                yield term, True
            case Sequence():
                yield child.first, child.first_negated
                yield child.second, child.second_negated
