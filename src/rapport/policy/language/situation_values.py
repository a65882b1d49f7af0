"""Reads the measured values of a situation: calculations, `temperature of S in degC` and
aggregates such as `mean of pm10 of S in the last 24 h (at least 18 readings)`. [SI-3, SI-6]"""

from __future__ import annotations

from typing import cast, get_args

from rapport.policy.language.comparisons import COMPARATOR_WORDS
from rapport.policy.language.diagnostics import did_you_mean, nearest_word
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, span
from rapport.policy.language.quantities import TIMING_WORDS, Timing, read_constant, read_duration
from rapport.policy.language.situation_tree import (
    Aggregate,
    AggregateFunction,
    Arithmetic,
    Calculation,
    Condition,
    InUnit,
    Value,
)
from rapport.policy.language.tree import AttributeOf, Call, Quantity, SourceSpan

MAX_DEPTH = 50
FUNCTIONS: tuple[str, ...] = get_args(AggregateFunction)
_OTHER_FUNCTIONS = {
    **dict.fromkeys(("average", "avg"), "mean"),
    **dict.fromkeys(("minimum", "lowest"), "min"),
    **dict.fromkeys(("maximum", "highest"), "max"),
    **dict.fromkeys(("number", "amount"), "count"),
    **dict.fromkeys(("difference", "delta", "increase"), "change"),
    **dict.fromkeys(("slope", "trend"), "rate"),
    "total": "sum",
    "quantile": "percentile 90",
}
"""Common other names of aggregates."""
NOT_UNITS = frozenset(
    {*TIMING_WORDS, *COMPARATOR_WORDS, "at", "between", "in", "on", "times", "until", "with"}
)
"""Words after a number that are not its unit."""
_WINDOW = Timing("a duration", "policy.bad_duration", "in the last 10 min")


class ValueReader:
    """Recursive descent over the values of one line; `condition` is left to the subclass."""

    def __init__(self, cursor: TokenCursor, aliases: frozenset[str]) -> None:
        self.cursor = cursor
        self.aliases = aliases
        """The aliases in scope."""
        self.used: set[str] = set()

    def condition(self, level: int) -> Condition:
        """Reads a condition in parentheses, with the parentheses."""
        raise NotImplementedError

    def value(self, level: int) -> Value:
        """Reads a sum; raises SyntaxFault."""
        start = self.cursor.place()
        left, length = self._product(level), 1
        while True:
            self._refuse_glued_minus()
            sign = self.cursor.take_if("sign", "+", "-")
            if sign is None:
                return left
            if sign.text == "-":
                self._check_spaces(sign)
            length = self._longer(length)
            left = self._calculation(left, sign, self._product(level), start)

    def _product(self, level: int) -> Value:
        start = self.cursor.place()
        left, length = self._factor(level), 1
        while (sign := self.cursor.take_if("sign", "*", "/")) is not None:
            length = self._longer(length)
            left = self._calculation(left, sign, self._factor(level), start)
        return left

    def _calculation(self, left: Value, sign: Token, right: Value, start: SourceSpan) -> Value:
        place = span(start, self.cursor.last_place())
        return Calculation(left, cast("Arithmetic", sign.text), right, place)

    def _longer(self, length: int) -> int:
        if length >= MAX_DEPTH:
            raise self.too_deep(self.cursor.last_place())
        return length + 1

    def too_deep(self, place: SourceSpan) -> SyntaxFault:
        message = f"parts are nested deeper than {MAX_DEPTH}"
        return SyntaxFault("policy.too_deep", message, place, "split the policy into several")

    def _refuse_glued_minus(self) -> None:
        """Rejects `5 -3` and `(a)-3`, where the minus belongs to the number."""
        token = self.cursor.peek()
        if token is not None and token.kind == "number" and token.text.startswith("-"):
            raise self._minus(token, token.text[1:])

    def _check_spaces(self, sign: Token) -> None:
        after = self.cursor.peek()
        if sign.glued or (after is not None and after.glued):
            raise self._minus(sign, after.text if after is not None else "...")

    def _minus(self, token: Token, following: str) -> SyntaxFault:
        message = "a minus between values has spaces around it"
        return SyntaxFault("policy.minus_spaces", message, token.place, f"write: - {following}")

    def _factor(self, level: int) -> Value:
        """Reads a single value, with `in UNIT` after it."""
        start = self.cursor.place()
        found = self._single_value(level)
        if not self.cursor.reads("in") or self.cursor.sees("mark", "(", ahead=1):
            return found
        if self.cursor.reads("in", "the"):
            raise self._window_without_function(found)
        self.cursor.take()
        unit = self.cursor.take_if("unit") or self.cursor.take_if("word")
        if unit is None:
            hint = "such as: temperature of S in degC"
            raise self.cursor.fault("policy.bad_unit", "expected a unit after 'in'", hint=hint)
        return InUnit(found, unit.text, span(start, unit.place))

    def _window_without_function(self, found: Value) -> SyntaxFault:
        message = "'in the last' belongs to an aggregate"
        hint = "such as: mean of temperature of S in the last 10 min"
        if isinstance(found, AttributeOf):
            hint = f"such as: mean of {found.attribute} of {found.alias} in the last 10 min"
        return self.cursor.fault("policy.bad_aggregate", message, hint=hint)

    def _single_value(self, level: int) -> Value:
        opening = self.cursor.take_if("mark", "(")
        if opening is not None:
            if level >= MAX_DEPTH:
                raise self.too_deep(opening.place)
            found = self.value(level + 1)
            self.close(opening)
            return found
        if self._begins_aggregate():
            return self._aggregate(level)
        if self.cursor.sees("word") and self.cursor.sees("mark", "(", ahead=1):
            return self._call()
        if self.cursor.sees("word") and self.cursor.sees("keyword", "of", ahead=1):
            return self.attribute()
        constant = read_constant(self.cursor, self._is_unit)
        if constant is None:
            raise self._expected_value()
        return constant

    def close(self, opening: Token) -> None:
        """Reads a closing parenthesis; raises SyntaxFault."""
        if self.cursor.take_if("mark", ")"):
            return
        if self.cursor.peek() is not None:
            self.expect_end()
        raise SyntaxFault(
            "policy.unclosed_parenthesis",
            "there is no closing parenthesis for this one",
            opening.place,
            "close it where the part ends that belongs together",
        )

    def expect_end(self) -> None:
        """Raises SyntaxFault if tokens are left."""
        raise NotImplementedError

    def _is_unit(self, cursor: TokenCursor) -> bool:
        return cursor.word() not in NOT_UNITS and not cursor.sees("keyword", "of", ahead=1)

    def _expected_value(self) -> SyntaxFault:
        token = self.cursor.peek()
        message = "expected a value"
        hint = "such as: 30 degC, temperature of S, distance(A, B)"
        if token is not None:
            message = f"expected a value, found {token.text!r}"
            number = self.cursor.peek(1)
            if token.kind in ("word", "unit") and number is not None and number.kind == "number":
                hint = f"the unit stands after its number: {number.text} {token.text}"
            elif token.kind == "word" and token.text in self.aliases:
                hint = f"say which attribute of it, such as: temperature of {token.text}"
            elif token.kind == "word":
                hint = f"put text in quotes: '{token.text}'; an attribute has an alias: "
                hint += f"{token.text} of {min(self.aliases, default='S')}"
            elif token.kind == "clock":
                hint = "write: time is between 22:00 and 06:00"
        return self.cursor.fault("policy.expected_value", message, hint=hint)

    def alias(self, before: str) -> Token:
        """Reads an alias in scope; raises SyntaxFault with the nearest one."""
        misread = self.cursor.word() in NOT_UNITS and not self.cursor.names(self.aliases)
        if not self.cursor.sees("word") or misread:
            hint = f"such as: {before} {min(self.aliases, default='S')}"
            message = f"expected an alias after {before!r}"
            raise self.cursor.fault("policy.missing_alias", message, hint=hint)
        token = self.cursor.take()
        self.use(token.text, token.place)
        return token

    def use(self, alias: str, place: SourceSpan) -> None:
        """Notes that an alias is named; raises SyntaxFault for an unknown one."""
        if alias not in self.aliases:
            message = f"there is no alias {alias!r}"
            hint = did_you_mean(alias, self.aliases) or "define it in the concepts"
            raise SyntaxFault("policy.unknown_alias", message, place, hint)
        self.used.add(alias)

    def attribute(self) -> AttributeOf:
        """Reads `temperature of S`; raises SyntaxFault."""
        name = self.cursor.name(
            "policy.expected_value", "an attribute", "such as: temperature of S"
        )
        if not self.cursor.take_if("keyword", "of"):
            whose = min(self.aliases, default="S")
            message = f"expected 'of' after {name.text!r}"
            hint = f"say whose {name.text}, such as: {name.text} of {whose}"
            raise self.cursor.fault("policy.missing_alias", message, hint=hint)
        alias = self.alias(f"{name.text} of")
        return AttributeOf(name.text, alias.text, span(name.place, alias.place), alias.place)

    def _call(self) -> Call:
        function, opening = self.cursor.take(), self.cursor.take()
        aliases = [self.alias(f"{function.text}(")]
        while self.cursor.take_if("mark", ","):
            aliases.append(self.alias(f"{function.text}(..., "))
        if self.cursor.sees("word"):
            hint = f"such as: {function.text}(A, B)"
            message = "expected a comma between two aliases"
            raise self.cursor.fault("policy.missing_comma", message, hint=hint)
        self.close(opening)
        place = span(function.place, self.cursor.last_place())
        names = tuple(alias.text for alias in aliases)
        return Call(function.text, names, place, tuple(alias.place for alias in aliases))

    def _begins_aggregate(self) -> bool:
        """True at the name of an aggregate, also at a common or misspelt one; false at an
        attribute or function of the same name."""
        word = self.cursor.word()
        if not word:
            return False
        if word == "percentile" and self.cursor.sees("number", ahead=1):
            return True
        if self.cursor.sees("mark", "(", ahead=1):
            listed = self.cursor.sees("mark", ",", ")", ahead=3)
            return word == "count" and not (self.cursor.sees("word", ahead=2) and listed)
        if not self.cursor.sees("keyword", "of", ahead=1):
            return word in FUNCTIONS and self.cursor.sees("word", ahead=1)
        nested = self.cursor.sees("keyword", "of", ahead=3) or self.cursor.sees(
            "mark", "(", ahead=2
        )
        return nested or (word in FUNCTIONS and not self.cursor.names(self.aliases, ahead=2))

    def _aggregate(self, level: int) -> Aggregate:
        name = self.cursor.take()
        function = name.text.lower()
        if function not in FUNCTIONS:
            raise self._unknown_function(name)
        percentile = self._rank(name) if function == "percentile" else None
        if not self.cursor.take_if("keyword", "of"):
            hint = f"did you mean: {function} of temperature of S in the last 10 min"
            if self.cursor.sees("word") and self.cursor.sees("keyword", "of", ahead=1):
                whose = self.cursor.peek(2)
                shown = f"{self.cursor.take().text} of {whose.text if whose else 'S'}"
                hint = f"did you mean: {function} of {shown} in the last 10 min"
            elif self.cursor.sees("mark", "("):
                hint = "did you mean: count of (...) in the last 10 min"
            message = f"expected 'of' after {name.text!r}"
            raise SyntaxFault("policy.bad_aggregate", message, name.place, hint)
        of: AttributeOf | Condition
        if self.cursor.sees("mark", "("):
            if function != "count":
                message = f"{function!r} is of an attribute; only 'count' is of a condition"
                hint = f"such as: {function} of temperature of S in the last 10 min"
                raise self.cursor.fault("policy.bad_aggregate", message, hint=hint)
            of = self.condition(level)
        else:
            of = self.attribute()
        window_ms = self._window(function, of)
        at_least = self._at_least(function)
        place = span(name.place, self.cursor.last_place())
        found = cast("AggregateFunction", function)
        return Aggregate(found, of, window_ms, place, at_least, percentile)

    def _unknown_function(self, name: Token) -> SyntaxFault:
        word = name.text.lower()
        meant = _OTHER_FUNCTIONS.get(word) or nearest_word(word, FUNCTIONS)
        hint = f"did you mean {meant!r}?" if meant else f"known: {', '.join(FUNCTIONS)}"
        message = f"there is no aggregate {name.text!r}"
        return SyntaxFault("policy.bad_aggregate", message, name.place, hint)

    def _rank(self, name: Token) -> float:
        number = self.cursor.take_if("number")
        if number is not None and 0 < float(number.text) <= 100:
            self.cursor.take_if("unit", "%")
            return float(number.text)
        message = "a percentile has a number above 0 and at most 100"
        hint = "such as: percentile 90 of temperature of S in the last 10 min"
        place = number.place if number is not None else name.place
        raise SyntaxFault("policy.bad_aggregate", message, place, hint)

    def _window(self, function: str, of: AttributeOf | Condition) -> int:
        if not self.cursor.reads("in", "the", "last"):
            shown = f"{of.attribute} of {of.alias}" if isinstance(of, AttributeOf) else "(...)"
            message = f"expected over which time the {function} is taken"
            hint = f"write: {function} of {shown} in the last 10 min"
            raise self.cursor.fault("policy.bad_aggregate", message, hint=hint)
        for _word in ("in", "the", "last"):
            self.cursor.take()
        return read_duration(self.cursor, _WINDOW)

    def _at_least(self, function: str) -> int | None:
        """Reads `(at least 18 readings)`; None if there is none."""
        if not self.cursor.sees("mark", "("):
            return None
        opening = self.cursor.take()
        if function == "count":
            message = "a count takes no least number of readings"
            hint = "leave it out; compare the count instead, such as: count of ... at least 18"
            raise SyntaxFault("policy.bad_aggregate", message, opening.place, hint)
        least = self.cursor.reads("at", "least")
        if least:
            self.cursor.take()
            self.cursor.take()
        number = self.cursor.take_if("number")
        readings = self.cursor.word() in ("reading", "readings")
        if not least or number is None or not readings or not is_whole(number, least=1):
            hint = "write it as: (at least 18 readings)"
            message = "expected a least number of readings"
            raise SyntaxFault("policy.bad_aggregate", message, opening.place, hint)
        self.cursor.take()
        self.close(opening)
        return int(number.text)


def is_whole(number: Token, *, least: int) -> bool:
    """True for a whole number of at most nine digits, not below `least`."""
    text = number.text
    return text.isdecimal() and len(text) <= 9 and int(text) >= least


def is_constant(value: Value) -> bool:
    """True if no reading changes the value."""
    match value:
        case Quantity():
            return True
        case Calculation(left, _, right):
            return is_constant(left) and is_constant(right)
        case InUnit(inner):
            return is_constant(inner)
        case _:
            return False
