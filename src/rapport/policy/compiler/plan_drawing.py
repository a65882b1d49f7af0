"""Draws plans and logic trees as SVG, readable in light and dark. Pure, without dependencies.
[PO-5]"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections import abc
from collections.abc import Iterator
from html import escape
from typing import Literal

import msgspec

from rapport.policy.compiler.logic_tree import (
    Branch,
    FollowedByBranch,
    LogicTree,
    OrBranch,
    TermBranch,
)
from rapport.policy.compiler.plan_text import (
    clause_text,
    kind_of,
    option_lines,
    predicate_text,
    side_text,
)
from rapport.policy.language.printer import within_text
from rapport.policy.plan import (
    Clause,
    CorrelationTerm,
    LastingTerm,
    Plan,
    Side,
    TermStep,
    signed_terms,
    state_atoms,
)

Style = Literal["join", "term", "events", "tables", "result"]

_CHARACTER, _LINE = 7.25, 17.0
_PADDING, _GAP, _COLUMN_GAP, _MARGIN = 10.0, 14.0, 54.0, 20.0
_LONGEST_LINE = 46
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_LIGHT = {"join": "#eaeef2", "term": "#fff8c5", "events": "#ddf4ff", "tables": "#dafbe1"}
_DARK = {"join": "#30363d", "term": "#4b3d0b", "events": "#0c3556", "tables": "#12401f"}
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_READ, _TERMS, _CLAUSES, _MATCH, _ACTIONS = range(5)
_LEAVES = 4
"""The column of the leaves: a tree has at most five levels."""


class Box(msgspec.Struct):
    """A box with lines of text in a column; the `place_...` functions set its upper left corner."""

    lines: tuple[str, ...]
    style: Style
    column: int
    x: float = 0.0
    y: float = 0.0
    column_end: float = 0.0
    """The right edge of its column: lines bend only between columns."""

    @property
    def width(self) -> float:
        return max(text_width(line) for line in self.lines) + 2 * _PADDING

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PADDING - 4


class Join(msgspec.Struct, frozen=True):
    """A line between two boxes, by their numbers; dashed for a NOT."""

    start: int
    end: int
    dashed: bool = False


def box(text: str, style: Style, column: int, *more: str) -> Box:
    """A box whose texts are wrapped."""
    lines = [line for each in (text, *more) for line in _wrapped(each)]
    return Box(tuple(lines) or (" ",), style, column)


def text_width(text: str) -> float:
    """The width of a line: wide characters count twice, combining ones not at all."""
    cells = 0
    for character in text:
        if not unicodedata.combining(character):
            cells += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return cells * _CHARACTER


def place_columns(boxes: abc.Sequence[Box]) -> None:
    """Sets the `x` of every box: columns from left to right, as wide as their widest box."""
    left = _MARGIN
    for column in sorted({each.column for each in boxes}):
        members = [each for each in boxes if each.column == column]
        end = left + max(each.width for each in members)
        for each in members:
            each.x, each.column_end = left, end
        left = end + _COLUMN_GAP


def stack_columns(boxes: abc.Sequence[Box]) -> None:
    """Sets the `y` of every box: stacked within a column, columns centred."""
    columns = [
        [each for each in boxes if each.column == column]
        for column in sorted({each.column for each in boxes})
    ]
    heights = [stacked_height([each.height for each in members]) for members in columns]
    for members, height in zip(columns, heights, strict=True):
        top = _MARGIN + (max(heights) - height) / 2
        for each in members:
            each.y = top
            top += each.height + _GAP


def stacked_height(heights: abc.Sequence[float]) -> float:
    """The height of boxes or groups stacked below each other."""
    return sum(heights) + _GAP * max(len(heights) - 1, 0)


def place_tree(boxes: abc.Sequence[Box], children: dict[int, list[int]]) -> None:
    """Sets the `y` of every box of a tree with the root 0: a parent is centred on its children."""
    heights: dict[int, float] = {}

    def measure(number: int) -> float:
        below = stacked_height([measure(child) for child in children.get(number, [])])
        heights[number] = max(boxes[number].height, below)
        return heights[number]

    def place(number: int, top: float) -> None:
        boxes[number].y = top + (heights[number] - boxes[number].height) / 2
        own = children.get(number, [])
        start = top + (heights[number] - stacked_height([heights[child] for child in own])) / 2
        for child in own:
            place(child, start)
            start += heights[child] + _GAP

    measure(0)
    place(0, _MARGIN)


def svg(title: str, boxes: abc.Sequence[Box], joins: abc.Sequence[Join]) -> str:
    """The SVG document of placed boxes."""
    width = max(each.x + each.width for each in boxes) + _MARGIN
    height = max(each.y + each.height for each in boxes) + _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{_text(title)}</title>",
        f"<style>{_styles()}</style>",
        '<rect class="ground" width="100%" height="100%"/>',
        *(_join(boxes[join.start], boxes[join.end], dashed=join.dashed) for join in joins),
        *(line for each in boxes for line in _box(each)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _LONGEST_LINE, subsequent_indent="  ", drop_whitespace=True)


def _text(text: str) -> str:
    """Escapes text and replaces characters that XML cannot contain."""
    return escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text))


def _box(shown: Box) -> list[str]:
    place = f'x="{shown.x:.1f}" y="{shown.y:.1f}"'
    size = f'width="{shown.width:.1f}" height="{shown.height:.1f}"'
    lines = [f'<rect class="box {shown.style}" {place} {size} rx="5"/>']
    for number, line in enumerate(shown.lines):
        x, y = shown.x + _PADDING, shown.y + _PADDING + _LINE * number + 10
        # Fonts differ in width: the text is fitted to the computed width.
        fitted = f'textLength="{max(text_width(line), 1):.1f}" lengthAdjust="spacingAndGlyphs"'
        lines.append(f'<text x="{x:.1f}" y="{y:.1f}" {fitted}>{_text(line)}</text>')
    return lines


def _join(start: Box, end: Box, *, dashed: bool) -> str:
    """A line that leaves the column horizontally, bends in the gap behind it and enters the other
    box horizontally, so that it crosses no box of a tree or a neighbouring column."""
    y1, y2 = start.y + start.height / 2, end.y + end.height / 2
    bend, bent = start.column_end, start.column_end + _COLUMN_GAP
    middle = (bend + bent) / 2
    curve = f"C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {bent:.1f} {y2:.1f}"
    path = f"M{start.x + start.width:.1f} {y1:.1f} H{bend:.1f} {curve} H{end.x:.1f}"
    return f'<path class="join{" not" if dashed else ""}" d="{path}"/>'


def _styles() -> str:
    light = _colours(_LIGHT, ground="#ffffff", ink="#1f2328", line="#6e7781")
    dark = _colours(_DARK, ground="#0d1117", ink="#e6edf3", line="#8b949e")
    text = f"text{{font:12px {_FONT};white-space:pre}}"
    joins = "path{fill:none;stroke-width:1.3}.not{stroke-dasharray:5 4}rect.box{stroke-width:1}"
    return f"{text}{joins}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _colours(boxes: dict[str, str], *, ground: str, ink: str, line: str) -> str:
    fills = "".join(f".{name}{{fill:{colour}}}" for name, colour in boxes.items() if name != "join")
    return (
        f".ground{{fill:{ground}}}text{{fill:{ink}}}path,rect.box{{stroke:{line}}}"
        f"rect.join,rect.result{{fill:{boxes['join']}}}{fills}"
    )


def draw_plan(plan: Plan, *, title: str) -> str:
    """The plan as SVG, from inputs on the left to actions on the right; absence is dashed."""
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
    """Collects boxes and lines from left to right; each side has one box."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.joins: list[Join] = []
        self._sides: dict[Side, int] = {}

    def add(self, text: str, style: Style, column: int, *more: str) -> int:
        """Adds a box; returns its number."""
        self.boxes.append(box(text, style, column, *more))
        return len(self.boxes) - 1

    def join(self, start: int, end: int, *, dashed: bool = False) -> None:
        """Adds a line unless it exists."""
        joined = Join(start, end, dashed)
        if joined not in self.joins:
            self.joins.append(joined)

    def term(self, number: int, term: TermStep) -> int:
        """Adds a term with lines from its sides."""
        window = within_text(term.window_ms) if isinstance(term, CorrelationTerm) else ""
        own = self.add(f"{number} {kind_of(term)}{window}", "term", _TERMS, predicate_text(term))
        for side in _read(term):
            if side not in self._sides:
                style: Style = "tables" if side.stream is None else "events"
                self._sides[side] = self.add(side_text(side), style, _READ)
            self.join(self._sides[side], own)
        return own

    def clause(self, clause: Clause, terms: list[int]) -> int:
        """Adds a clause with lines from its terms."""
        own = self.add(clause_text(clause), "join", _CLAUSES)
        for child in clause.children:
            for number, negated in signed_terms(child):
                self.join(terms[number], own, dashed=negated)
        return own


def _read(term: TermStep) -> Iterator[Side]:
    """All sides of a term, including those of its state."""
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from _read(atom.term)
    else:
        yield from dict.fromkeys((term.first, term.second))


def draw_logic_tree(tree: LogicTree, *, title: str) -> str:
    """The tree as SVG: negated parts are dashed, leaves are coloured by their provision."""
    drawing = _TreeDrawing()
    for child, window_ms in zip(tree.children, tree.windows, strict=True):
        drawing.branch(child, 0, 1, within_text(window_ms))
    place_columns(drawing.boxes)
    place_tree(drawing.boxes, drawing.children)
    return svg(title, drawing.boxes, drawing.joins)


class _TreeDrawing:
    """Collects boxes and lines from the root down."""

    def __init__(self) -> None:
        self.boxes: list[Box] = [box("and", "join", 0)]
        self.joins: list[Join] = []
        self.children: dict[int, list[int]] = {}

    def branch(self, branch: Branch, parent: int, column: int, window: str) -> None:
        """Adds a branch and everything below it."""
        match branch:
            case OrBranch(children):
                own = self._add(parent, f"or{window}", "join", column)
                for child in children:
                    self.branch(child, own, column + 1, "")
            case FollowedByBranch(first, second, window_ms):
                text = f"followed-by{within_text(window_ms)}{window}"
                own = self._add(parent, text, "join", column)
                self._term(first, own, "")
                self._term(second, own, "")
            case _:
                self._term(branch, parent, window)

    def _term(self, branch: TermBranch, parent: int, window: str) -> None:
        negated = branch.atom.negated
        own = self._add(parent, branch.text() + window, "term", _LEAVES - 1, dashed=negated)
        for edge in branch.edges:
            style: Style = "events" if edge.provision == "event-based" else "tables"
            shown = (f"{edge.attribute} ({edge.provision})", f"of {edge.leaf.text()}")
            self._add(own, shown[0], style, _LEAVES, shown[1])

    def _add(
        self,
        parent: int,
        text: str,
        style: Style,
        column: int,
        *more: str,
        dashed: bool = False,
    ) -> int:
        number = len(self.boxes)
        self.boxes.append(box(text, style, column, *more))
        self.joins.append(Join(parent, number, dashed))
        self.children.setdefault(parent, []).append(number)
        return number
