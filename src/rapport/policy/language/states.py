"""What lasts and what is silent: `A is inside R for 10 min`, `no temperature of S for 3 hours`.
[PO-3]"""

from __future__ import annotations

from rapport.policy.language.cursor import SyntaxFault, TokenCursor, span
from rapport.policy.language.durations import DURATION, read_duration
from rapport.policy.language.faults import nearest_word
from rapport.policy.language.printer import print_expression
from rapport.policy.language.rewrite import negate
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import (
    And,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    SilenceCondition,
    SourceSpan,
    Within,
)

LONGEST_HINT = 300
_ANY_EVENT = ("event", "events")


def begins_silence_condition(cursor: TokenCursor, aliases: frozenset[str]) -> bool:
    """True when `no ...` comes next and `no` is no alias."""
    token = cursor.peek()
    return cursor.reads("no") and token is not None and token.text not in aliases


def read_silence_condition(cursor: TokenCursor, aliases: frozenset[str]) -> SilenceCondition:
    """`no temperature of S for 3 hours`; raises SyntaxFault."""
    no = cursor.take()
    attribute = None if cursor.reads("for") else cursor.take_if("word")
    of = cursor.take_if("keyword", "of")
    alias = cursor.take_if("word") if attribute is not None and of is not None else None
    if attribute is None or alias is None:
        raise _incomplete(cursor, attribute, aliases)
    if not cursor.reads("for"):
        message = f"expected how long there is no {attribute.text} of {alias.text}"
        hint = f"such as: no {attribute.text} of {alias.text} for 3 h"
        if nearest_word(cursor.word(), ("for",)):
            hint = "did you mean 'for'?"
        raise cursor.fault("policy.bad_silence", message, hint=hint)
    cursor.take()
    duration_ms = read_duration(cursor, DURATION)
    name = "" if attribute.text.lower() in _ANY_EVENT else attribute.text
    place = span(no.place, cursor.last_place())
    return SilenceCondition(name, alias.text, duration_ms, place, alias.place)


def _incomplete(
    cursor: TokenCursor, attribute: Token | None, aliases: frozenset[str]
) -> SyntaxFault:
    """`no position A for 3 h`, `no A for 3 h`, `no position for 3 h`."""
    following = cursor.peek()
    what, whose = "temperature", min(aliases, default="S")
    if attribute is not None:
        what = attribute.text
        if what in aliases:
            what, whose = "event", attribute.text
        if following is not None and following.kind == "word" and following.text.lower() != "for":
            alias_first = attribute.text in aliases
            what, whose = (following.text, whose) if alias_first else (what, following.text)
    message = "expected 'no', an attribute, 'of' and an alias"
    hint = f"did you mean: no {what} of {whose} for 3 h"
    return cursor.fault("policy.bad_silence", message, hint=hint)


def read_duration_condition(
    cursor: TokenCursor, inner: Expression, start: SourceSpan
) -> DurationCondition:
    """The `for 10 min` that comes next, of `inner`; raises SyntaxFault."""
    word = cursor.take()
    duration_ms = read_duration(cursor, DURATION)
    problem = _not_a_state(inner)
    if problem:
        hint = "put 'for' after a single condition, or after conditions joined by AND and OR"
        raise SyntaxFault("policy.bad_for", problem, word.place, hint)
    return DurationCondition(inner, duration_ms, span(start, cursor.last_place()))


def _not_a_state(expression: Expression) -> str:
    """Why the expression cannot last; empty when it can."""
    match expression:
        case FollowedBy():
            return "a FOLLOWED-BY happens at a moment, so it cannot last"
        case DurationCondition():
            return "'for' stands inside what lasts already"
        case SilenceCondition():
            return "a silence has its own 'for' already"
        case Within():
            return "a window stands inside what lasts"
        case And(parts) | Or(parts):
            return next((why for part in parts if (why := _not_a_state(part))), "")
        case _:
            return ""


def not_before_state_fault(
    expression: DurationCondition | SilenceCondition, place: SourceSpan
) -> SyntaxFault:
    """NOT before `for` or `no`: what it would mean is not what people mean by it."""
    if isinstance(expression, SilenceCondition):
        what = f"{expression.attribute or 'temperature'} of {expression.alias}"
        message = "NOT cannot stand before 'no'"
        hint = f"to watch for what is heard, write a comparison such as: {what} above 30 degC"
        return SyntaxFault("policy.not_before_for", message, place, hint)
    message = "NOT cannot stand before a condition with 'for'"
    contrary = negate(expression.inner)
    assert contrary is not None  # only `for` and `no` have none, and neither stands inside
    shown = print_expression(DurationCondition(contrary, expression.duration_ms, expression.place))
    hint = f"to say that the contrary lasted, write {shown}"
    if len(hint) > LONGEST_HINT:
        hint = "to say that the contrary lasted, put NOT before each single condition inside"
    return SyntaxFault("policy.not_before_for", message, place, hint)
