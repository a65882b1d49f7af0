"""Rows of recorded files that cannot be used: each is counted, the first of each kind are kept.
[UX-3, ME-7]
"""

from __future__ import annotations

import msgspec

from rapport.core.errors import Problem

_MOST_KEPT = 1_000
_MOST_LINES = 4


class FaultyRows(msgspec.Struct, kw_only=True):
    """Rows of one file that cannot be used for one reason."""

    first: Problem
    """The first of them, with its place."""
    lines: list[int]
    """Where the first few are."""
    count: int = 1


class RowFaults:
    """Takes problems one by one; what it holds does not grow with a file full of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        """The first thousand, in the order they were found."""
        self._by_reason: dict[tuple[str, str], FaultyRows] = {}

    def report(self, problem: Problem) -> None:
        """Counts a row."""
        if len(self.problems) < _MOST_KEPT:
            self.problems.append(problem)
        known = self._by_reason.get((problem.file, problem.code))
        if known is None:
            self._by_reason[problem.file, problem.code] = FaultyRows(
                first=problem, lines=[problem.line]
            )
            return
        known.count += 1
        if len(known.lines) < _MOST_LINES:
            known.lines.append(problem.line)

    def by_reason(self) -> list[FaultyRows]:
        """By file and code, the first found first."""
        return list(self._by_reason.values())
