"""A logic tree as a drawing, root to the left. Pure. [PO-5]"""

from __future__ import annotations

from rapport.policy.compiler.drawing import Box, Join, Style, box, place_columns, place_tree, svg
from rapport.policy.compiler.logic_tree import (
    Branch,
    FollowedByBranch,
    LogicTree,
    OrBranch,
    TermBranch,
    within_text,
)

_LEAVES = 4
"""The column of the leaves: a tree is five high at most."""


def draw_logic_tree(tree: LogicTree, *, title: str) -> str:
    """The tree as SVG: negated parts hang on dashed lines, leaves are coloured by what gives
    them.
    """
    drawing = _TreeDrawing()
    for child, window_ms in zip(tree.children, tree.windows, strict=True):
        drawing.branch(child, 0, 1, within_text(window_ms))
    place_columns(drawing.boxes)
    place_tree(drawing.boxes, drawing.children)
    return svg(title, drawing.boxes, drawing.joins)


class _TreeDrawing:
    """Boxes and lines, gathered from the root down."""

    def __init__(self) -> None:
        self.boxes: list[Box] = [box("and", "join", 0)]
        self.joins: list[Join] = []
        self.children: dict[int, list[int]] = {}

    def branch(self, branch: Branch, parent: int, column: int, window: str) -> None:
        """Adds a branch and all below it."""
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
