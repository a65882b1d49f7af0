"""Constants with their units: `30 degC`, `15 %`, `'open'`, `true`. [PO-3]"""

from __future__ import annotations

import math
from collections.abc import Callable

from rapport.policy.language.cursor import SyntaxFault, TokenCursor, span
from rapport.policy.language.tree import Quantity


def read_constant(cursor: TokenCursor, is_unit: Callable[[TokenCursor], bool]) -> Quantity | None:
    """The constant that comes next, None without one; raises SyntaxFault for too large a number.

    `is_unit` says whether the word after a number belongs to it.
    """
    token = cursor.peek()
    if token is None:
        return None
    if token.kind == "number":
        return _number(cursor, is_unit)
    if token.kind == "text":
        return Quantity(cursor.take().text, "", token.place)
    if token.kind == "word" and token.text.lower() in ("true", "false"):
        return Quantity(cursor.take().text.lower(), "", token.place)
    return None


def _number(cursor: TokenCursor, is_unit: Callable[[TokenCursor], bool]) -> Quantity:
    number = cursor.take()
    value = float(number.text)
    if not math.isfinite(value):
        message = "the number is too large"
        raise SyntaxFault("policy.bad_number", message, number.place, "at most 1e308")
    if not cursor.sees("unit") and not (cursor.sees("word") and is_unit(cursor)):
        return Quantity(value, "", number.place)
    unit = cursor.take()
    return Quantity(value, unit.text, span(number.place, unit.place))
