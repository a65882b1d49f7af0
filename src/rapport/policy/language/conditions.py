"""One logical line of the `conditions` section as an expression. [PO-3]

FOLLOWED-BY binds tightest; AND beside OR needs parentheses; NOT stands before single conditions
only; `for` belongs to what stands right before it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rapport.core.times import format_duration
from rapport.policy.language.chains import ChainLink, inherit_windows, make_chain, set_chain_window
from rapport.policy.language.comparisons import begins_comparison, read_comparison
from rapport.policy.language.cursor import SyntaxFault, TokenCursor, span
from rapport.policy.language.durations import WINDOW, read_duration
from rapport.policy.language.misspelt import misspelt_condition, suggest_connective
from rapport.policy.language.printer import print_expression
from rapport.policy.language.relationships import read_term
from rapport.policy.language.rewrite import negate
from rapport.policy.language.states import (
    LONGEST_HINT,
    begins_silence_condition,
    not_before_state_fault,
    read_duration_condition,
    read_silence_condition,
)
from rapport.policy.language.tokens import Token
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
)

MAX_DEPTH = 50


class _Part(NamedTuple):
    """An expression and how deep it is nested, so that no later stage meets one too deep to
    walk."""

    expression: Expression
    depth: int


def parse_condition(tokens: list[Token], aliases: frozenset[str]) -> Expression:
    """The expression of a whole logical line; raises SyntaxFault.

    `aliases` are those the policy defines: they tell where a relationship's name ends.
    """
    parser = _ConditionParser(TokenCursor(tokens), aliases)
    parsed = parser.any_of(0)
    parser.expect_end()
    return parsed.expression


def _joined(operator: str, parts: tuple[Expression, ...]) -> Expression:
    return And(parts) if operator == "and" else Or(parts)


def _contrary(expression: Expression) -> str:
    """What to write instead of NOT before several conditions."""
    contrary = negate(expression)
    if contrary is None:
        return "say it without 'for' and 'no': they have no contrary"
    return _short(f"write {print_expression(contrary)}")


def _short(hint: str) -> str:
    """The hint, or a general one when the condition is too long to be written out again."""
    if len(hint) <= LONGEST_HINT:
        return hint
    return "put NOT before each single condition; AND becomes OR and OR becomes AND"


class _ConditionParser:
    """Recursive descent over one line."""

    def __init__(self, cursor: TokenCursor, aliases: frozenset[str]) -> None:
        self.cursor = cursor
        self.aliases = aliases

    def expect_end(self) -> None:
        """Raises when something is left over."""
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
        """Operands joined by AND, or by OR."""
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
        """Operands joined by FOLLOWED-BY, leaning to the left.

        `alone`: nothing stands before it in the line, so a window may be that of the line.
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
        """The next FOLLOWED-BY with what follows, and how deep that is."""
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
        """`within 10 s` after a parenthesis around a chain, or after all of a line."""
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
