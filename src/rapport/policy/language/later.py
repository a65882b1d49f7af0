"""Forms of the language that are understood well enough to be refused at their place, never misread. [PO-3]"""

from __future__ import annotations

from rapport.policy.language.cursor import Cursor, SyntaxFault

_COMPARING_WORDS = ("above", "below", "over", "under", "exceeds", "equals")


def refuse_later_forms(cursor: Cursor, aliases: frozenset[str], *, after_term: bool = False) -> None:
    """Raises SyntaxFault `policy.unsupported` when a form of a later version begins here."""
    form = _form_after_term(cursor) if after_term else _form_at_start(cursor, aliases)
    if form:
        raise SyntaxFault(
            "policy.unsupported",
            f"{form} is not supported yet",
            cursor.place(),
            "state the condition as a relationship between two aliases, such as: A is inside R",
        )


def _form_at_start(cursor: Cursor, aliases: frozenset[str]) -> str:
    first = cursor.peek()
    if first is None or first.kind != "word":
        return ""
    if cursor.sees("mark", "(", ahead=1):
        return f"a comparison of functions such as {first.text}(...)"
    if first.text in aliases:
        return ""
    if cursor.sees("keyword", "of", ahead=1):
        return "a comparison of an attribute"
    if cursor.reads("no"):
        return "the silence of a source (no ... for ...)"
    if cursor.reads("at", "most"):
        return "limiting how often a policy fires (at most once per ...)"
    if cursor.reads("when", "unsure"):
        return "choosing what happens when unsure"
    return ""


def _form_after_term(cursor: Cursor) -> str:
    token = cursor.peek()
    if token is None:
        return ""
    if token.kind == "operator" or (
        token.kind == "word" and token.text.lower() in _COMPARING_WORDS
    ):
        return "a comparison"
    if cursor.reads("for"):
        return "a duration of a condition (for ...)"
    if cursor.reads("within") and cursor.sees("number", ahead=1):
        return "a window of a single condition (within ...)"
    return ""
