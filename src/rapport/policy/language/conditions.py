"""Parses one logical line of the `conditions` section. [PO-3]

FOLLOWED-BY binds tightest. AND next to OR needs parentheses. NOT applies to single conditions only.
`for` applies to the condition right before it. A window applies to its link of a chain and to
earlier links without one; a link in parentheses is not affected.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rapport.core.times import format_duration
from rapport.policy.language.comparisons import (
    COMPARATOR_WORDS,
    begins_comparator,
    begins_comparison,
    read_comparison,
)
from rapport.policy.language.diagnostics import nearest_word
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, span
from rapport.policy.language.printer import print_expression
from rapport.policy.language.quantities import DURATION, TIMING_WORDS, WINDOW, read_duration
from rapport.policy.language.spelling import CONNECTIVES, misspelt_condition, suggest_connective
from rapport.policy.language.tree import (
    And,
    Atomic,
    Comparison,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    SilenceCondition,
    SourceSpan,
    Term,
    Within,
    negate,
)

_NEEDLESS = ("if", "when", "whenever", "while", "where", "that")
_COMPARING = (*COMPARATOR_WORDS, "at least", "at most")
LONGEST_HINT = 300
_ANY_EVENT = ("event", "events")
MAX_DEPTH = 50


class ChainLink(NamedTuple):
    """The second operand of a FOLLOWED-BY, with place and window."""

    second: Expression
    place: SourceSpan
    window_ms: int | None


def make_chain(first: Expression, links: list[ChainLink]) -> Expression:
    """Nests links to the left; returns `first` if there are none."""
    expression = first
    for second, place, window_ms in links:
        expression = FollowedBy(expression, second, place, window_ms)
    return expression


def set_chain_window(chain: FollowedBy, window_ms: int, place: SourceSpan) -> Expression:
    """Sets the window of the last link and of the links before it that have none; raises
    SyntaxFault if the last link has one."""
    if chain.window_ms is not None:
        message = f"its window is already {format_duration(chain.window_ms)}"
        raise SyntaxFault("policy.repeated_window", message, place, "leave one of them out")
    links: list[ChainLink] = []
    first: Expression = chain
    while isinstance(first, FollowedBy) and first.window_ms is None:
        links.append(ChainLink(first.second, first.place, window_ms))
        first = first.first
    return make_chain(first, links[::-1])


def inherit_windows(links: list[ChainLink]) -> list[ChainLink]:
    """Gives each link without a window the window of the next link that has one."""
    window_ms = None
    found: list[ChainLink] = []
    for link in reversed(links):
        window_ms = link.window_ms if link.window_ms is not None else window_ms
        found.append(link._replace(window_ms=window_ms))
    return found[::-1]


def read_term(cursor: TokenCursor, aliases: frozenset[str]) -> Term:
    """Reads a relationship; raises SyntaxFault.

    The policy's `aliases` determine where the name of a relationship ends.
    """
    first = cursor.take_if("word")
    if first is None:
        raise _expected_condition(cursor)
    if first.text not in aliases and (
        cursor.sees("number") or (aliases and first.text.lower() in _NEEDLESS)
    ):
        raise _nothing_before(first)
    cursor.take_if("keyword", "is")
    negated = cursor.take_if("keyword", "not") is not None
    if cursor.sees("operator"):
        raise _no_attribute(first, [], aliases)
    names = _relationship_words(cursor, aliases)
    parameter = _parameter(cursor, aliases)
    of = cursor.take_if("keyword", "of")
    timed = len(names) > 1 and _begins_time(cursor, aliases)
    second = None if timed else cursor.take_if("word")
    if second is None and len(names) > 1 and not parameter and of is None:
        second = names.pop()  # an undefined alias; the check suggests the nearest
    unknown = second is None or (bool(aliases) and second.text not in aliases)
    if (unknown and parameter and _compares(names)) or cursor.sees("operator"):
        raise _no_attribute(first, names, aliases)
    if aliases and first.text not in aliases and begins_comparator(cursor):
        raise _no_attribute(first, [second] if second else names, aliases)
    if unknown and parameter and of is None and _before_time(names)[1] is not None:
        second = None  # the unit of a time: `A is inside for 10 min`
    if not names or second is None:
        raise _expected_rest(cursor, first, names, second, aliases)
    return Term(
        first=first.text,
        function=" ".join(name.text for name in names),
        second=second.text,
        negated=negated,
        parameter=parameter,
        place=span(first.place, second.place),
        function_place=names[0].place,
        first_place=first.place,
        second_place=second.place,
    )


def _relationship_words(cursor: TokenCursor, aliases: frozenset[str]) -> list[Token]:
    """Words up to a number, a keyword, the end, a time, or a defined alias."""
    names: list[Token] = []
    while (token := cursor.peek()) is not None and token.kind == "word":
        if names and token.text in aliases:
            break
        if len(names) > 1 and _begins_time(cursor, aliases):
            break
        names.append(cursor.take())
    return names


def _begins_time(cursor: TokenCursor, aliases: frozenset[str]) -> bool:
    """True for `for 10 min` after an undefined alias; false for the `within 5m of` of a
    relationship."""
    word, unit, after = cursor.peek(), cursor.peek(2), cursor.peek(3)
    if word is None or word.text.lower() not in TIMING_WORDS:
        return False
    if not cursor.sees("number", ahead=1) or unit is None or unit.text in aliases:
        return False
    return after is None or after.text in (")", *CONNECTIVES, *TIMING_WORDS, "not")


def _parameter(cursor: TokenCursor, aliases: frozenset[str]) -> str:
    """Reads `5m` or `5 m` as `5m`; a word is a unit if it is glued to the number or more words
    follow."""
    number = cursor.take_if("number")
    if number is None:
        return ""
    unit = cursor.peek()
    if unit is not None and unit.kind == "unit":
        return number.text + cursor.take().text
    if unit is None or unit.kind != "word":
        return number.text
    followed = cursor.sees("word", ahead=1) or cursor.sees("keyword", "of", ahead=1)
    if not unit.glued and (not followed or unit.text in aliases):
        return number.text
    return number.text + cursor.take().text


def _compares(names: list[Token]) -> bool:
    """True if the words end in a comparing word."""
    words = " ".join(name.text.lower() for name in names)
    return any(words == word or words.endswith(f" {word}") for word in _COMPARING)


def _nothing_before(first: Token) -> SyntaxFault:
    """The fault for `above 30 degC`, `within 5m of B`, `if A is inside R`."""
    message = f"{first.text!r} is no alias, and a condition begins with one"
    hint = f"define {first.text!r} in the concepts, or leave it out"
    if first.text.lower() in _NEEDLESS:
        hint = f"leave {first.text!r} out: each line says what must be true, and all lines must be"
    if first.text.lower() in COMPARATOR_WORDS:
        hint = f"say what is compared, such as: temperature of S {first.text} 30 degC"
    elif first.text.lower() == "within":
        hint = "say what is near it, such as: A is within 5m of B"
    return SyntaxFault("policy.expected_condition", message, first.place, hint)


def _no_attribute(first: Token, names: list[Token], aliases: frozenset[str]) -> SyntaxFault:
    """The fault for `A above 30 degC`, `temperature above 30 degC`, `S temperature above
    30 degC`."""
    words = [name for name in names if name.text.lower() not in (*COMPARATOR_WORDS, "at")]
    other = words[0] if words and words[0].text.lower() not in ("least", "most") else None
    attribute, alias, among = "temperature", first.text, ""
    message = f"{first.text!r} alone cannot be compared, only an attribute of it"
    if first.text not in aliases:
        attribute, alias = first.text, min(aliases, default="S")
        message = f"{first.text!r} is no alias; say whose it is"
        among = f" (or another of {', '.join(sorted(aliases))})" if len(aliases) > 1 else ""
        if other is not None and other.text in aliases:
            alias, among = other.text, ""
    elif other is not None:
        attribute = other.text
    hint = f"write whose attribute it is, such as: {attribute} of {alias} ...{among}"
    return SyntaxFault("policy.missing_attribute", message, first.place, hint)


def _expected_condition(cursor: TokenCursor) -> SyntaxFault:
    token = cursor.peek()
    message = "expected a condition such as A is inside R"
    hint = "write two aliases with a relationship between them"
    if token is not None and token.kind == "keyword" and token.text in CONNECTIVES:
        message = f"{token.text.upper()} needs a condition before it"
        hint = "to go on from the line above, put it at the end of that line"
    elif token is not None:
        message += f", found {token.text!r}"
    return cursor.fault("policy.expected_condition", message, hint=hint)


def _expected_rest(
    cursor: TokenCursor,
    first: Token,
    names: list[Token],
    second: Token | None,
    aliases: frozenset[str],
) -> SyntaxFault:
    example = f"such as: {first.text} is inside R"
    if first.text not in aliases:
        example = "such as: A is inside R"
        if names and names[0].text in aliases:
            return _nothing_before(first)
    if not names:
        message = f"expected a relationship after {first.text!r}"
        return cursor.fault("policy.expected_relationship", message, hint=example)
    words, rest = _before_time(names)
    name = " ".join(token.text for token in words)
    if name in aliases and second is None:
        message = f"expected a relationship between {first.text!r} and {name!r}"
        return SyntaxFault("policy.expected_relationship", message, names[0].place, example)
    message = f"expected a second alias after {name!r}"
    place = rest.place if rest is not None else cursor.place()
    return SyntaxFault("policy.missing_alias", message, place, example)


def _before_time(names: list[Token]) -> tuple[list[Token], Token | None]:
    """Splits off a `for` or `within` that was read as part of the relationship's name."""
    if len(names) > 1 and names[-1].text.lower() in TIMING_WORDS:
        return names[:-1], names[-1]
    return names, None


def begins_silence_condition(cursor: TokenCursor, aliases: frozenset[str]) -> bool:
    token = cursor.peek()
    return cursor.reads("no") and token is not None and token.text not in aliases


def read_silence_condition(cursor: TokenCursor, aliases: frozenset[str]) -> SilenceCondition:
    """Reads `no temperature of S for 3 hours`; raises SyntaxFault."""
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
    """The fault for `no position A for 3 h`, `no A for 3 h`, `no position for 3 h`."""
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
    """Reads `for 10 min` after `inner`; raises SyntaxFault."""
    word = cursor.take()
    duration_ms = read_duration(cursor, DURATION)
    problem = _not_a_state(inner)
    if problem:
        hint = "put 'for' after a single condition, or after conditions joined by AND and OR"
        raise SyntaxFault("policy.bad_for", problem, word.place, hint)
    return DurationCondition(inner, duration_ms, span(start, cursor.last_place()))


def _not_a_state(expression: Expression) -> str:
    """The reason why the expression cannot have a duration; empty if it can."""
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
    """The fault for NOT before `for` or `no`, whose literal meaning is not the intended one."""
    if isinstance(expression, SilenceCondition):
        what = f"{expression.attribute or 'temperature'} of {expression.alias}"
        message = "NOT cannot stand before 'no'"
        hint = f"to watch for readings, write a comparison such as: {what} above 30 degC"
        return SyntaxFault("policy.not_before_for", message, place, hint)
    message = "NOT cannot stand before a condition with 'for'"
    contrary = negate(expression.inner)
    assert contrary is not None  # only `for` and `no` have none, and neither can be inside
    shown = print_expression(DurationCondition(contrary, expression.duration_ms, expression.place))
    hint = f"to say that the contrary lasted, write {shown}"
    if len(hint) > LONGEST_HINT:
        hint = "to say that the contrary lasted, put NOT before each single condition inside"
    return SyntaxFault("policy.not_before_for", message, place, hint)


class _Part(NamedTuple):
    """An expression and its nesting depth, which is bounded for all later stages."""

    expression: Expression
    depth: int


def parse_condition(tokens: list[Token], aliases: frozenset[str]) -> Expression:
    """Parses a logical line; raises SyntaxFault.

    The policy's `aliases` determine where the name of a relationship ends.
    """
    parser = _ConditionParser(TokenCursor(tokens), aliases)
    parsed = parser.any_of(0)
    parser.expect_end()
    return parsed.expression


def _joined(operator: str, parts: tuple[Expression, ...]) -> Expression:
    return And(parts) if operator == "and" else Or(parts)


def _contrary(expression: Expression) -> str:
    """A hint that replaces NOT before several conditions."""
    contrary = negate(expression)
    if contrary is None:
        return "say it without 'for' and 'no': they have no contrary"
    return _short(f"write {print_expression(contrary)}")


def _short(hint: str) -> str:
    """The hint, or a general one if the repeated condition is too long."""
    if len(hint) <= LONGEST_HINT:
        return hint
    return "put NOT before each single condition; AND becomes OR and OR becomes AND"


class _ConditionParser:
    """Recursive descent over one line."""

    def __init__(self, cursor: TokenCursor, aliases: frozenset[str]) -> None:
        self.cursor = cursor
        self.aliases = aliases

    def expect_end(self) -> None:
        """Raises SyntaxFault if tokens are left."""
        token = self.cursor.peek()
        if token is None:
            return
        if token.kind == "mark" and token.text == ")":
            raise self.cursor.fault(
                "policy.unopened_parenthesis",
                "there is no opening parenthesis for this one",
                hint="leave it out, or open one before",
            )
        hint = "put the next condition on a line of its own, or join it with AND or OR"
        meant = suggest_connective(self.cursor)
        raise self.cursor.fault(
            "policy.expected_operator",
            f"expected AND, OR, FOLLOWED-BY or the end of the line, found {token.text!r}",
            hint=f"did you mean {meant}?" if meant else hint,
        )

    def any_of(self, level: int) -> _Part:
        """Reads operands joined by AND, or by OR."""
        parts = [self._sequence(level, alone=level == 0)]
        joined = ""
        while (operator := self.cursor.take_if("keyword", "and", "or")) is not None:
            if joined and operator.text != joined:
                raise self._mixed(parts, joined, operator, level)
            joined = operator.text
            parts.append(self._sequence(level))
        if not joined:
            return parts[0]
        expressions = tuple(part.expression for part in parts)
        depth = self._deeper(max(part.depth for part in parts))
        return _Part(_joined(joined, expressions), depth)

    def _mixed(self, parts: list[_Part], joined: str, operator: Token, level: int) -> SyntaxFault:
        rest = self._sequence(level)
        so_far = tuple(part.expression for part in parts)
        left = _joined(operator.text, (_joined(joined, so_far), rest.expression))
        last = _joined(operator.text, (so_far[-1], rest.expression))
        right = _joined(joined, (*so_far[:-1], last))
        hint = f"write {print_expression(left)}  -or-  {print_expression(right)}"
        if len(hint) > LONGEST_HINT:
            hint = "put parentheses around the parts that belong together"
        message = "AND and OR in one line need parentheses to say what belongs together"
        return SyntaxFault("policy.mixed_and_or", message, operator.place, hint)

    def _sequence(self, level: int, *, alone: bool = False) -> _Part:
        """Reads operands joined by FOLLOWED-BY, nested to the left.

        `alone`: it begins the line, so a window may apply to the whole line.
        """
        first = self._operand(level)
        if self.cursor.reads("within"):
            first = self._window_of_operand(first, alone)
        links: list[ChainLink] = []
        depth = first.depth
        while (link := self._link(first.expression, level)) is not None:
            depth = self._deeper(max(depth, link[1]))
            links.append(link[0])
        return _Part(make_chain(first.expression, inherit_windows(links)), depth)

    def _link(self, first: Expression, level: int) -> tuple[ChainLink, int] | None:
        """Reads the next FOLLOWED-BY and its operand; returns the link and its depth."""
        negated = self._not_before_followed_by()
        operator = self.cursor.take_if("keyword", "followed-by")
        if operator is None:
            return None
        second = self._operand(level)
        if negated is not None:
            second = self._not_following(first, second, operator, negated)
        window_ms = None
        if self.cursor.reads("within"):
            self.cursor.take()
            window_ms = read_duration(self.cursor, WINDOW)
        return ChainLink(second.expression, operator.place, window_ms), second.depth

    def _window_of_operand(self, part: _Part, alone: bool) -> _Part:
        """Reads `within 10 s` after a chain in parentheses or after a whole line."""
        word = self.cursor.take()
        window_ms = read_duration(self.cursor, WINDOW)
        if isinstance(part.expression, FollowedBy):
            return _Part(set_chain_window(part.expression, window_ms, word.place), part.depth)
        if alone and self.cursor.peek() is None:
            place = span(word.place, self.cursor.last_place())
            return _Part(Within(part.expression, window_ms, place), part.depth + 1)
        raise SyntaxFault(
            "policy.misplaced_window",
            "a window stands after a FOLLOWED-BY, after a whole line, or on a line of its own",
            word.place,
            f"put the condition on a line of its own, or all of the line in parentheses: "
            f"(...) within {format_duration(window_ms)}",
        )

    def _not_following(
        self, first: Expression, second: _Part, operator: Token, negation: SourceSpan
    ) -> _Part:
        """`X NOT FOLLOWED-BY Y` is `X FOLLOWED-BY NOT Y`."""
        if isinstance(second.expression, Term | Comparison | DurationCondition | SilenceCondition):
            return _Part(self._negated(second.expression, negation), second.depth)
        contrary = negate(second.expression)
        message = "NOT FOLLOWED-BY cannot stand before several conditions"
        hint = "say it without 'for' and 'no': they have no contrary"
        if contrary is not None:
            meant = FollowedBy(first, contrary, operator.place)
            hint = _short(f"write {print_expression(meant)}")
        raise SyntaxFault("policy.not_before_parenthesis", message, negation, hint)

    def _not_before_followed_by(self) -> SourceSpan | None:
        if self.cursor.sees("keyword", "not") and self.cursor.sees(
            "keyword", "followed-by", ahead=1
        ):
            return self.cursor.take().place
        return None

    def _operand(self, level: int) -> _Part:
        start = self.cursor.place()
        negation = self.cursor.take_if("keyword", "not")
        opening = self.cursor.take_if("mark", "(")
        if opening is not None:
            part = self._group(opening, level)
            if negation is not None:
                raise self._not_before_parenthesis(part.expression, negation.place)
        else:
            part = _Part(self._single(), 1)
        if self.cursor.reads("for"):
            part = _Part(
                read_duration_condition(self.cursor, part.expression, start), part.depth + 1
            )
        if negation is None:
            return part
        assert isinstance(part.expression, Term | Comparison | DurationCondition | SilenceCondition)
        return _Part(self._negated(part.expression, negation.place), part.depth)

    def _single(self) -> Term | Comparison | SilenceCondition:
        if begins_silence_condition(self.cursor, self.aliases):
            return read_silence_condition(self.cursor, self.aliases)
        fault = misspelt_condition(self.cursor, self.aliases)
        if fault is not None:
            raise fault
        if begins_comparison(self.cursor, self.aliases):
            return read_comparison(self.cursor, self.aliases)
        return read_term(self.cursor, self.aliases)

    def _group(self, opening: Token, level: int) -> _Part:
        if level >= MAX_DEPTH:
            raise SyntaxFault(
                "policy.too_deep",
                f"parentheses are nested deeper than {MAX_DEPTH}",
                opening.place,
                "split the policy into several",
            )
        inner = self.any_of(level + 1)
        if not self.cursor.take_if("mark", ")"):
            if self.cursor.peek() is not None:
                self.expect_end()
            raise SyntaxFault(
                "policy.unclosed_parenthesis",
                "there is no closing parenthesis for this one",
                opening.place,
                "close it where the part ends that belongs together",
            )
        return inner

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise self.cursor.fault(
                "policy.too_deep",
                f"conditions are nested deeper than {MAX_DEPTH}",
                hint="split the policy into several",
            )
        return depth + 1

    def _negated(self, expression: Atomic, place: SourceSpan) -> Expression:
        if isinstance(expression, DurationCondition | SilenceCondition):
            raise not_before_state_fault(expression, place)
        contrary = msgspec.structs.replace(expression, negated=not expression.negated)
        if expression.negated:
            raise SyntaxFault(
                "policy.double_negation",
                "a condition is negated once",
                place,
                f"leave one NOT out: {print_expression(contrary)}",
            )
        return contrary

    def _not_before_parenthesis(self, expression: Expression, place: SourceSpan) -> SyntaxFault:
        hint = _contrary(expression)
        if isinstance(expression, FollowedBy):
            second = negate(expression.second)
            if second is not None:
                followed = msgspec.structs.replace(expression, second=second)
                weaker = f"if the first may not happen either-  {hint.removeprefix('write ')}"
                hint = f"write {print_expression(followed)}  -or, {weaker}"
        message = "NOT cannot stand before a parenthesis"
        return SyntaxFault("policy.not_before_parenthesis", message, place, _short(hint))
