"""Forms of the language that are understood well enough to be refused at their place, never
misread. [PO-3]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.policy.language.cursor import Cursor, SyntaxFault

_COMPARING_WORDS = ("above", "below", "over", "under", "exceeds", "equals")
_AS_RELATIONSHIP = "state it as a relationship between two aliases, such as: A is inside R"


class _Form(NamedTuple):
    """What was written, and what to write instead."""

    name: str
    instead: str


def refuse_later_forms(
    cursor: Cursor, aliases: frozenset[str], *, after_term: bool = False
) -> None:
    """Raises SyntaxFault `policy.unsupported` when a form of a later version begins here."""
    form = _form_after_term(cursor) if after_term else _form_at_start(cursor, aliases)
    if form is not None:
        message = f"{form.name} is not supported yet"
        raise SyntaxFault("policy.unsupported", message, cursor.place(), form.instead)


def _form_at_start(cursor: Cursor, aliases: frozenset[str]) -> _Form | None:
    first = cursor.peek()
    if first is None or first.kind != "word":
        return None
    if cursor.sees("mark", "(", ahead=1):
        return _Form(f"comparing functions such as {first.text}(...)", _AS_RELATIONSHIP)
    if first.text in aliases:
        return None
    if cursor.sees("keyword", "of", ahead=1):
        return _Form("comparing an attribute", _AS_RELATIONSHIP)
    if cursor.reads("no"):
        return _Form("the silence of a source (no ... for ...)", _AS_RELATIONSHIP)
    if cursor.reads("at", "most"):
        return _Form(
            "limiting how often a policy fires (at most once per ...)", "leave the line out"
        )
    return None


def _form_after_term(cursor: Cursor) -> _Form | None:
    token = cursor.peek()
    if token is None:
        return None
    comparing = token.kind == "word" and token.text.lower() in _COMPARING_WORDS
    if token.kind == "operator" or comparing:
        return _Form("a comparison", _AS_RELATIONSHIP)
    if cursor.reads("for"):
        return _Form("the duration of a condition (for ...)", "leave 'for ...' out")
    if cursor.reads("within") and cursor.sees("number", ahead=1):
        instead = "put 'within ...' on a line of its own: it is then the window of the policy"
        return _Form("a window of a single condition (within ...)", instead)
    return None
