"""Collects the problems of a policy text, each with line, column, excerpt and hint. [PO-3]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.core.errors import Problem, Severity, excerpt_with_caret, nearest_names
from rapport.policy.language.tree import SourceSpan

_MAX_FAULTS = 50
_EXCERPT_WIDTH = 120


class Diagnostics:
    """The problems of one policy text; after 50 further ones are only counted."""

    def __init__(self, name: str, text: str) -> None:
        self.file = f"{name}.dpl"
        self.text = text
        self._problems: list[Problem] = []
        self._noted: set[tuple[str, str, SourceSpan]] = set()
        self._left_out = 0

    @property
    def count(self) -> int:
        """All faults, shown or not."""
        return len(self._problems) + self._left_out

    def add(
        self,
        code: str,
        message: str,
        place: SourceSpan | None = None,
        *,
        hint: str = "",
        severity: Severity = "error",
    ) -> None:
        """Adds a problem at `place`, or of the whole text. A repeated problem is added once: the
        normal form may repeat its condition."""
        where = place or SourceSpan(0, 0)
        if (code, message, where) in self._noted:
            return
        self._noted.add((code, message, where))
        if len(self._problems) >= _MAX_FAULTS:
            self._left_out += severity == "error"
            return
        self._problems.append(
            Problem(
                file=self.file,
                line=where.line,
                column=where.column,
                severity=severity,
                code=code,
                message=message,
                hint=hint,
                excerpt=_excerpt(self.text, where),
            )
        )

    def warn(
        self, code: str, message: str, place: SourceSpan | None = None, *, hint: str = ""
    ) -> None:
        """Adds a warning."""
        self.add(code, message, place, hint=hint, severity="warning")

    def has_errors(self) -> bool:
        """True if the policy cannot be used."""
        return any(problem.severity == "error" for problem in self._problems)

    def problems(self) -> tuple[Problem, ...]:
        """All problems in the order of the text."""
        found = sorted(self._problems, key=lambda problem: (problem.line, problem.column))
        if self._left_out:
            message = f"{self._left_out} more faults are not shown"
            hint = "mend those above first"
            found.append(
                Problem(file=self.file, code="policy.more_faults", message=message, hint=hint)
            )
        return tuple(found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or with the known names if none is near."""
    names = sorted(set(known))
    nearest = nearest_names(name, names, limit=1) or _same_but_for_case(name, names)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"known: {', '.join(names[:8])}" if names else ""


def nearest_word(word: str, known: Iterable[str]) -> str:
    """The word of the language that was probably meant; empty if none is near.

    >>> nearest_word("ro", ["and", "or"]), nearest_word("insde", ["for", "inside"])
    ('or', 'inside')
    """
    words = list(known)
    swapped = (each for each in words if sorted(each) == sorted(word))
    nearest = nearest_names(word, words, limit=1)
    return next(swapped, nearest[0] if nearest else "")


def _same_but_for_case(name: str, names: list[str]) -> tuple[str, ...]:
    return tuple(known for known in names if known.casefold() == name.casefold())


def _excerpt(text: str, place: SourceSpan) -> str:
    shown = excerpt_with_caret(text, place.line, place.column)
    source, _, _caret = shown.partition("\n")
    if len(source) <= _EXCERPT_WIDTH:
        return shown
    # In a very long line only the part around the column is shown.
    start = max(place.column - _EXCERPT_WIDTH // 2, 0)
    part = source[2 + start : start + _EXCERPT_WIDTH].rstrip()
    return f"  {part}\n  {' ' * (place.column - 1 - start)}^"
