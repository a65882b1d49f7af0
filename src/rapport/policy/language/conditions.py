"""One logical line of the `conditions` section as an expression. [PO-3]

FOLLOWED-BY binds tightest; AND beside OR needs parentheses; NOT stands before terms only.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rapport.core.errors import nearest_names
from rapport.policy.language.cursor import Cursor, SyntaxFault
from rapport.policy.language.later import refuse_later_forms
from rapport.policy.language.options import OPTION_WORDS
from rapport.policy.language.printer import print_expression
from rapport.policy.language.rewrite import negate
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import And, Expression, FollowedBy, Or, Place, Term

MAX_DEPTH = 50
_LONGEST_HINT = 300
_OPERATORS = ("and", "or", "followed-by")


class _Part(NamedTuple):
    """An expression and how deep it is nested, so that no later stage meets one too deep to
    walk."""

    expression: Expression
    depth: int


def parse_condition(tokens: list[Token], aliases: frozenset[str]) -> Expression:
    """The expression of a whole logical line; raises SyntaxFault.

    `aliases` are those the policy defines: they tell where a relationship's name ends.
    """
    parser = _ConditionParser(Cursor(tokens), aliases)
    parsed = parser.any_of(0)
    parser.expect_end()
    return parsed.expression


def _joined(operator: str, parts: tuple[Expression, ...]) -> Expression:
    return And(parts) if operator == "and" else Or(parts)


def _short(hint: str) -> str:
    """The hint, or a general one when the condition is too long to be written out again."""
    if len(hint) <= _LONGEST_HINT:
        return hint
    return "put NOT before each single condition; AND becomes OR and OR becomes AND"


class _ConditionParser:
    """Recursive descent over one line."""

    def __init__(self, cursor: Cursor, aliases: frozenset[str]) -> None:
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
        meant = nearest_names(token.text.lower(), _OPERATORS, limit=1)
        raise self.cursor.fault(
            "policy.expected_operator",
            f"expected AND, OR, FOLLOWED-BY or the end of the line, found {token.text!r}",
            hint=f"did you mean {meant[0].upper()}?" if meant else hint,
        )

    def any_of(self, level: int) -> _Part:
        """Operands joined by AND, or by OR."""
        parts = [self._sequence(level)]
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
        if len(hint) > _LONGEST_HINT:
            hint = "put parentheses around the parts that belong together"
        message = "AND and OR in one line need parentheses to say what belongs together"
        return SyntaxFault("policy.mixed_and_or", message, operator.place, hint)

    def _sequence(self, level: int) -> _Part:
        """Operands joined by FOLLOWED-BY, leaning to the left."""
        part = self._operand(level)
        while True:
            negated = self._not_before_followed_by()
            operator = self.cursor.take_if("keyword", "followed-by")
            if operator is None:
                return part
            second = self._operand(level)
            if negated is not None:
                second = self._not_following(part, second, operator, negated)
            depth = self._deeper(max(part.depth, second.depth))
            joined = FollowedBy(part.expression, second.expression, operator.place)
            part = _Part(joined, depth)

    def _not_following(
        self, first: _Part, second: _Part, operator: Token, negation: Place
    ) -> _Part:
        """`X NOT FOLLOWED-BY Y` is `X FOLLOWED-BY NOT Y`."""
        if isinstance(second.expression, Term):
            return _Part(self._negated(second.expression, negation), second.depth)
        meant = FollowedBy(first.expression, negate(second.expression), operator.place)
        message = "NOT FOLLOWED-BY cannot stand before several conditions"
        hint = _short(f"write {print_expression(meant)}")
        raise SyntaxFault("policy.not_before_parenthesis", message, negation, hint)

    def _not_before_followed_by(self) -> Place | None:
        if self.cursor.sees("keyword", "not") and self.cursor.sees(
            "keyword", "followed-by", ahead=1
        ):
            return self.cursor.take().place
        return None

    def _operand(self, level: int) -> _Part:
        opening = self.cursor.take_if("mark", "(")
        if opening is not None:
            return self._group(opening, level)
        negation = self.cursor.take_if("keyword", "not")
        if negation is None:
            return _Part(self._term(), 1)
        opening = self.cursor.take_if("mark", "(")
        if opening is not None:
            inner = self._group(opening, level)
            raise self._not_before_parenthesis(inner.expression, negation.place)
        return _Part(self._negated(self._term(), negation.place), 1)

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

    def _negated(self, expression: Term, place: Place) -> Term:
        if expression.negated:
            raise SyntaxFault(
                "policy.double_negation",
                "a condition is negated once",
                place,
                f"leave one NOT out: {print_expression(negate(expression))}",
            )
        return msgspec.structs.replace(expression, negated=True)

    def _not_before_parenthesis(self, expression: Expression, place: Place) -> SyntaxFault:
        written = print_expression(negate(expression))
        hint = f"write {written}"
        if isinstance(expression, FollowedBy):
            followed = FollowedBy(expression.first, negate(expression.second), place)
            weaker = f"if the first may not happen either-  {written}"
            hint = f"write {print_expression(followed)}  -or, {weaker}"
        message = "NOT cannot stand before a parenthesis"
        return SyntaxFault("policy.not_before_parenthesis", message, place, _short(hint))

    def _term(self) -> Term:
        refuse_later_forms(self.cursor, self.aliases)
        first = self.cursor.take_if("word")
        if first is None:
            raise self._expected_condition()
        self.cursor.take_if("keyword", "is")
        negated = self.cursor.take_if("keyword", "not") is not None
        names = self._relationship_words()
        parameter = self._parameter()
        of = self.cursor.take_if("keyword", "of")
        second = self.cursor.take_if("word")
        if second is None and len(names) > 1 and not parameter and of is None:
            second = names.pop()  # an alias nobody defined; the checker names the nearest
        if not names or second is None:
            raise self._expected_rest(first, names, second)
        last = second.place
        refuse_later_forms(self.cursor, self.aliases, after_term=True)
        start = first.place
        length = last.column + last.length - start.column if last.line == start.line else 1
        return Term(
            first=first.text,
            function=" ".join(name.text for name in names),
            second=second.text,
            negated=negated,
            parameter=parameter,
            place=Place(start.line, start.column, length),
            function_place=names[0].place,
            first_place=first.place,
            second_place=second.place,
        )

    def _relationship_words(self) -> list[Token]:
        """Words up to a number, a keyword, the end, or an alias the policy defines."""
        names: list[Token] = []
        while (token := self.cursor.peek()) is not None and token.kind == "word":
            if names and token.text in self.aliases:
                break
            names.append(self.cursor.take())
        return names

    def _parameter(self) -> str:
        """`5m` or `5 m` as `5m`; a word is a unit when it is glued on or more words follow it."""
        number = self.cursor.take_if("number")
        if number is None:
            return ""
        unit = self.cursor.peek()
        if unit is None or unit.kind != "word":
            return number.text
        followed = self.cursor.sees("word", ahead=1) or self.cursor.sees("keyword", "of", ahead=1)
        if not unit.glued and (not followed or unit.text in self.aliases):
            return number.text
        return number.text + self.cursor.take().text

    def _expected_condition(self) -> SyntaxFault:
        token = self.cursor.peek()
        message = "expected a condition such as A is inside R"
        hint = "write two aliases with a relationship between them"
        if token is not None and token.kind == "keyword" and token.text in _OPERATORS:
            message = f"{token.text.upper()} needs a condition before it"
            hint = "to go on from the line above, put it at the end of that line"
        elif token is not None:
            message += f", found {token.text!r}"
        return self.cursor.fault("policy.expected_condition", message, hint=hint)

    def _expected_rest(self, first: Token, names: list[Token], second: Token | None) -> SyntaxFault:
        example = f"such as: {first.text} is inside R"
        if first.text not in self.aliases:
            meant = nearest_names(first.text.lower(), OPTION_WORDS, limit=1)
            example = f"did you mean {meant[0]!r}?" if meant else "such as: A is inside R"
        if not names:
            message = f"expected a relationship after {first.text!r}"
            return self.cursor.fault("policy.expected_relationship", message, hint=example)
        name = " ".join(token.text for token in names)
        if name in self.aliases and second is None:
            message = f"expected a relationship between {first.text!r} and {name!r}"
            return SyntaxFault("policy.expected_relationship", message, names[0].place, example)
        message = f"expected a second alias after {name!r}"
        return self.cursor.fault("policy.missing_alias", message, hint=example)
