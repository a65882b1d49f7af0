"""The one error of queries: placed, with an excerpt and the nearest name. [CH-4]"""

from __future__ import annotations

from rapport.core.errors import InvalidInput, Problem, excerpt_with_caret

_EXCERPT_WIDTH = 120


class QueryError(InvalidInput):
    """A query that cannot be understood; `problems` holds its one fault with line and column."""

    code = "query.invalid"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.as_text(), code=problem.code)
        self.problems = (problem,)

    def problems_found(self) -> tuple[Problem, ...]:
        """See RapportError."""
        return self.problems


def query_fault(text: str, offset: int, code: str, message: str, hint: str = "") -> QueryError:
    """The error for the character at `offset` of a query; at the end for offsets past it."""
    before = text[:offset]
    line = before.count("\n") + 1
    column = offset - (before.rfind("\n") + 1) + 1
    excerpt = _excerpt(text, line, column)
    return QueryError(
        Problem(line=line, column=column, code=code, message=message, hint=hint, excerpt=excerpt)
    )


def _excerpt(text: str, line: int, column: int) -> str:
    """The line with a caret; of a very long line the part around the column.

    Lines end at line feeds only, as they are counted: other separators are shown as spaces.
    """
    source = "".join(sign if sign.isprintable() else " " for sign in text.split("\n")[line - 1])
    start = max(column - _EXCERPT_WIDTH // 2, 0) if len(source) > _EXCERPT_WIDTH else 0
    shown = source[start : start + _EXCERPT_WIDTH] or " "
    return excerpt_with_caret(shown, 1, column - start)
