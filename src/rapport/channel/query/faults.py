"""The one error of queries: placed, with an excerpt and the nearest name. [CH-4]"""

from __future__ import annotations

from rapport.core.errors import InvalidInput, Problem, excerpt_with_caret

_EXCERPT_WIDTH = 120
_HINTS = {
    "query.unexpected": "conditions look like: type = 'a' AND data.x > 5",
    "query.bad_character": "other signs stand in quotes: 'text', data.\"room number\"",
    "query.bad_number": "numbers are written 5, 2.5 or 1e3",
    "query.bad_time": "times are written '2026-03-02T09:00:00Z'",
    "query.bad_escape": "such as LIKE '50!%' ESCAPE '!'",
    "query.wrong_kind": "compare a text with 'text', a number with 5, a truth value with TRUE",
    "query.not_a_value": "a value is a field, 'text', a number, TRUE or FALSE",
    "query.not_a_number": "calculate with numbers and fields of the payload",
    "query.not_a_literal": "write the values themselves: IN ('a', 'b')",
    "query.too_deep": "ask with a simpler condition, or in several requests",
    "query.too_many_wildcards": "use '%' instead of most '_', or compare with shorter pieces",
    "query.too_many": "ask in several requests",
}
"""What to do about a fault that has no hint of its own."""


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
    excerpt, hint = _excerpt(text, line, column), hint or _HINTS.get(code, "")
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
