"""Parses the conditions of situations: comparisons, relationships, silence and quantifiers, joined
by AND and OR, and the logical lines they stand in. [SI-2, SI-8]"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rapport.policy.language.comparisons import (
    COMPARATOR_WORDS,
    begins_comparator,
    read_comparator,
)
from rapport.policy.language.conditions import LONGEST_HINT, read_silence_condition, read_term
from rapport.policy.language.definitions import read_properties
from rapport.policy.language.diagnostics import Diagnostics, nearest_word
from rapport.policy.language.lexer import (
    SyntaxFault,
    Token,
    TokenCursor,
    span,
    tokenize_situation,
)
from rapport.policy.language.quantities import DURATION, THROTTLE, read_constant, read_duration
from rapport.policy.language.situation_printer import (
    print_situation_condition,
    print_situation_value,
)
from rapport.policy.language.situation_times import read_time
from rapport.policy.language.situation_tree import (
    AndOf,
    Between,
    Condition,
    Lasting,
    Not,
    OneOf,
    OrOf,
    Quantified,
    Quantifier,
    RelationshipAtom,
    Silence,
    Value,
    ValueComparison,
)
from rapport.policy.language.situation_values import (
    MAX_DEPTH,
    ValueReader,
    is_constant,
    is_whole,
)
from rapport.policy.language.tree import Property, Quantity, SourceSpan

_PARAMETER = re.compile(r"(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)(.*)")
_PRONOUNS = {
    "nobody": "no person B",
    "nothing": "no person B",
    "somebody": "some person B",
    "someone": "some person B",
    "anybody": "some person B",
    "anyone": "some person B",
}
_SILENT = ("silent", "quiet", "offline", "missing")
_ALL = ("every", "all", "each")
_SOME = ("any", "a", "an", "one", "exists")


class LogicalLines:
    """The lines of one section as tokens: a line that ends in AND or OR goes on, and one with an
    open parenthesis."""

    def __init__(self, faults: Diagnostics, *, joined: bool = True) -> None:
        """`joined`: whether lines go on at all."""
        self.lines: list[list[Token]] = []
        self.open: list[Token] = []
        self._faults, self._joined = faults, joined
        self._open_parentheses = 0

    def add(self, line: str, number: int) -> None:
        """Adds a line of the text; one with a fault is dropped with what it goes on from."""
        before = self._faults.count
        tokens = tokenize_situation(line, number, self._faults)
        if self._faults.count != before:
            self._drop()
            return
        self.open += tokens
        marks = [token.text for token in tokens if token.kind == "mark"]
        self._open_parentheses += marks.count("(") - marks.count(")")
        if not self._goes_on():
            self.close()

    def close(self) -> None:
        """Ends the last line."""
        if self.open:
            self.lines.append(self.open)
        self._drop()

    def _goes_on(self) -> bool:
        if not self.open or not self._joined:
            return False
        last = self.open[-1]
        joins = last.kind == "keyword" and last.text in ("and", "or")
        return joins or self._open_parentheses > 0

    def _drop(self) -> None:
        self.open = []
        self._open_parentheses = 0


class ConditionReader(ValueReader):
    """Recursive descent over one logical line."""

    def line(self) -> Condition:
        """Reads the whole line; raises SyntaxFault."""
        found = self._joined(0)
        self.expect_end()
        return found

    def condition(self, level: int) -> Condition:
        opening = self.cursor.take()
        if level >= MAX_DEPTH:
            raise self.too_deep(opening.place)
        found = self._joined(level + 1)
        self.close(opening)
        return found

    def expect_end(self) -> None:
        token = self.cursor.peek()
        if token is None:
            return
        if token.kind == "mark" and token.text == ")":
            message = "there is no opening parenthesis for this one"
            hint = "leave it out, or open one before"
            raise self.cursor.fault("policy.unopened_parenthesis", message, hint=hint)
        message = f"expected AND, OR or the end of the line, found {token.text!r}"
        raise self.cursor.fault("policy.expected_operator", message, hint=self._end_hint(token))

    def _end_hint(self, token: Token) -> str:
        word = token.text.lower()
        if token.kind == "number" and self.cursor.word(1) in ("times", "time"):
            return f"did you mean: count of (...) in the last 10 min at least {token.text}"
        if word in ("until", "unless"):
            return "the section 'cleared by' says when a situation ends"
        if word == "within" and self.cursor.sees("number", ahead=1):
            return "a situation has no window; say how long it lasts: for 10 min"
        if word in ("followed-by", "then", "within"):
            return "what follows within a time is for a policy with 'conditions'"
        if word in ("during", "lasting", "since", "over"):
            return "did you mean 'for'?"
        if self.cursor.reads("at", "most") and self.cursor.word(2) == "once":
            return "write 'at most once per ...' in a line of its own"
        if word in ("at", "by") and self.cursor.word(1) in ("night", "day", "noon", "midnight"):
            return "write in a line of its own: time is between 22:00 and 06:00"
        if word in (*COMPARATOR_WORDS, "is", "at") or token.kind == "operator":
            return "a comparison has two sides; for a range write: x between 1 and 2"
        if self.cursor.sees("keyword", "of", ahead=1) and not token.glued:
            return "join values with + - * /, conditions with AND or OR"
        timing = ("for",) if self.cursor.sees("number", ahead=1) else ()
        meant = nearest_word(word, ("and", "or", *timing)) if token.kind == "word" else ""
        if meant:
            return f"did you mean {meant if meant == 'for' else meant.upper()!r}?"
        return "put the next condition on a line of its own, or join it with AND or OR"

    def _joined(self, level: int) -> Condition:
        """Reads operands joined by AND, or by OR."""
        parts = [self._operand(level)]
        joined = ""
        while (operator := self.cursor.take_if("keyword", "and", "or")) is not None:
            if joined and operator.text != joined:
                message = "AND and OR in one line need parentheses to say what belongs together"
                hint = self._mixed_hint(parts, joined, operator.text, level)
                raise SyntaxFault("policy.mixed_and_or", message, operator.place, hint)
            joined = operator.text
            parts.append(self._operand(level))
        if not joined:
            return parts[0]
        return AndOf(tuple(parts)) if joined == "and" else OrOf(tuple(parts))

    def _mixed_hint(self, parts: list[Condition], joined: str, operator: str, level: int) -> str:
        """Both readings of a line that mixes AND and OR, if they are short."""
        joins: dict[str, type[AndOf | OrOf]] = {"and": AndOf, "or": OrOf}
        rest = self._operand(level)
        first = joins[operator]((joins[joined](tuple(parts)), rest))
        second = joins[joined]((*parts[:-1], joins[operator]((parts[-1], rest))))
        shown = f"{print_situation_condition(first)}  -or-  {print_situation_condition(second)}"
        if len(shown) > LONGEST_HINT:
            return "put parentheses around the parts that belong together, or use two lines"
        return f"write {shown}"

    def _operand(self, level: int) -> Condition:
        start = self.cursor.place()
        negation = self.cursor.take_if("keyword", "not")
        if negation is not None and self.cursor.sees("keyword", "not"):
            message = "a condition is negated once"
            raise self.cursor.fault("policy.double_negation", message, hint="leave out both NOT")
        grouped = self.cursor.sees("mark", "(") and not self._is_value_group()
        part = self.condition(level) if grouped else self._atom(level)
        silence = isinstance(part, Silence) and not grouped
        if negation is not None and (silence or self.cursor.reads("for")):
            message = "NOT before a condition with 'for' needs parentheses"
            hint = "write NOT (... for 5 s)  -or-  (NOT ...) for 5 s"
            if silence:
                hint = "write NOT (no ... for 5 s)"
            raise SyntaxFault("policy.not_before_for", message, negation.place, hint)
        if self.cursor.reads("for"):
            part = self._lasting(part, start, silence=silence)
        return Not(part) if negation is not None else part

    def _lasting(self, part: Condition, start: SourceSpan, *, silence: bool) -> Condition:
        word = self.cursor.take()
        duration_ms = read_duration(self.cursor, DURATION)
        if silence or self.cursor.reads("for"):
            message = "a second 'for' needs parentheses"
            hint = "write (... for 5 s) for 10 s"
            raise SyntaxFault("policy.bad_for", message, word.place, hint)
        return Lasting(part, duration_ms, span(start, self.cursor.last_place()))

    def _is_value_group(self) -> bool:
        """True if the parenthesis here encloses a value: a sign, a comparison or `in` follows."""
        depth, ahead = 0, 0
        while (token := self.cursor.peek(ahead)) is not None:
            if token.kind == "mark":
                depth += {"(": 1, ")": -1}.get(token.text, 0)
            ahead += 1
            if depth == 0:
                break
        after = self.cursor.peek(ahead)
        if after is None or after.kind in ("sign", "operator"):
            return after is not None
        if after.kind == "keyword":
            return after.text == "is" or (after.text == "not" and depth == 0)
        if after.kind == "number":
            return after.text.startswith("-")
        return self.cursor.word(ahead) in (*COMPARATOR_WORDS, "at", "between", "in")

    def _atom(self, level: int) -> Condition:
        token = self.cursor.peek()
        if token is None or token.kind == "keyword":
            raise self._expected_condition(token)
        if token.kind == "clock":
            hint = f"write: time is between {token.text} and 06:00"
            message = f"{token.text} alone is no condition"
            raise self.cursor.fault("policy.bad_time", message, hint=hint)
        if token.kind != "word" or self._begins_value():
            return self._comparison(level)
        word = self.cursor.word()
        if token.text in self.aliases:
            return self._relationship()
        if word == "time":
            return read_time(self.cursor)
        if word == "no" and self._begins_silence():
            return self._silence()
        if word in ("some", "no") or self.cursor.reads("at", "least") or word == "at":
            return self._quantified(level)
        self._refuse_words(token)
        if self.cursor.sees("keyword", "is", "not", ahead=1) and (
            self.cursor.sees("word", ahead=2) and not begins_comparator(self.cursor, ahead=2)
        ):
            self.use(token.text, token.place)
        if begins_comparator(self.cursor, ahead=1):
            whose = min(self.aliases, default="S")
            message = f"{token.text!r} is no alias; say whose it is"
            hint = f"such as: {token.text} of {whose} ..."
            raise self.cursor.fault("policy.missing_attribute", message, hint=hint)
        return self._relationship()

    def _begins_value(self) -> bool:
        """True at `temperature of`, `distance(`, an aggregate or a truth value."""
        if self.cursor.sees("keyword", "of", ahead=1) or self.cursor.sees("mark", "(", ahead=1):
            return True
        if self.cursor.names(self.aliases):
            return False
        return self.cursor.word() in ("true", "false") or self._begins_aggregate()

    def _begins_silence(self) -> bool:
        of = self.cursor.sees("keyword", "of", ahead=2)
        alone = self.cursor.word(2) == "for" or self.cursor.word(1) == "for"
        return (
            of
            or alone
            or (self.cursor.names(self.aliases, ahead=2) and self.cursor.word(3) == "for")
        )

    def _expected_condition(self, token: Token | None) -> SyntaxFault:
        message = "expected a condition"
        hint = "such as: temperature of S above 30 degC, A is inside R"
        if token is not None:
            message = f"expected a condition, found {token.text!r}"
        if token is not None and token.text in ("and", "or"):
            hint = f"to go on from the line above, put {token.text.upper()} at its end"
        return self.cursor.fault("policy.expected_condition", message, hint=hint)

    def _refuse_words(self, first: Token) -> None:
        """Rejects words of other languages with what is meant."""
        word = first.text.lower()
        following = self.cursor.peek(1)
        shown = following.text if following is not None else "person"
        alias = self.cursor.peek(2)
        named = alias is not None and alias.kind == "word" and alias.text.lower() != "with"
        shown += f" {alias.text}" if alias is not None and named else " B"
        hint = ""
        if word in _SOME and self.cursor.sees("word", ahead=1):
            hint = f"did you mean: some {shown} with (...)"
        elif word in _ALL:
            hint = f"did you mean: no {shown} with (NOT ...)"
        elif word in _PRONOUNS and first.text not in self.aliases:
            hint = f"did you mean: {_PRONOUNS[word]} with (B is inside R)"
        elif word in ("more", "less", "fewer") and self.cursor.word(1) == "than":
            hint = f"did you mean: {self._bound(word)} person B with (...)"
        elif word == "the" and first.text not in self.aliases:
            hint = "leave 'the' out"
        elif word in ("until", "unless"):
            hint = "the section 'cleared by' says when a situation ends"
        elif word in ("if", "when", "whenever", "while", "where"):
            hint = f"leave {first.text!r} out: each line says what must be true"
        elif word == "within" and self.cursor.sees("number", ahead=1):
            hint = "a situation has no window; say how long it lasts: (...) for 5 s"
        elif word == "distinct":
            hint = "different aliases are different instances; say otherwise in the concepts: "
            hint += "A and B may be the same"
        elif word == "consume":
            hint = "leave it out: a situation lasts, and nothing of it is used up"
        elif word in COMPARATOR_WORDS or word == "between":
            hint = f"say what is compared, such as: temperature of S {word} ..."
        if hint:
            message = f"{first.text!r} begins no condition"
            raise self.cursor.fault("policy.expected_condition", message, hint=hint)

    def _bound(self, word: str) -> str:
        """`at least 4` of `more than 3`."""
        number = self.cursor.peek(2)
        count = int(number.text) if number is not None and number.text.isdecimal() else 1
        return f"at least {count + 1}" if word == "more" else f"at most {max(count - 1, 0)}"

    def _refuse_silent(self) -> None:
        """Rejects `F is silent` with the silence that is meant."""
        after = 2 if self.cursor.sees("keyword", "is", ahead=1) else 1
        word = self.cursor.word(after)
        if word in _SILENT and not self.cursor.names(self.aliases, ahead=after + 1):
            subject = self.cursor.peek()
            message = f"{word!r} is no relationship; a silence names what is not heard"
            hint = f"write: no event of {subject.text if subject else 'F'} for 30 min"
            raise self.cursor.fault("policy.bad_silence", message, hint=hint)

    def _relationship(self) -> Condition:
        self._refuse_silent()
        term = read_term(self.cursor, self.aliases)
        self.use(term.first, term.first_place)
        self.use(term.second, term.second_place)
        parameter = _PARAMETER.fullmatch(term.parameter)
        found = RelationshipAtom(
            first=term.first,
            function=term.function,
            second=term.second,
            parameter=" ".join(parameter.groups()).strip() if parameter else "",
            place=term.place,
            function_place=term.function_place,
            first_place=term.first_place,
            second_place=term.second_place,
        )
        return Not(found) if term.negated else found

    def _silence(self) -> Silence:
        found = read_silence_condition(self.cursor, self.aliases)
        self.use(found.alias, found.alias_place)
        return Silence(
            found.attribute, found.alias, found.duration_ms, found.place, found.alias_place
        )

    def _comparison(self, level: int) -> Condition:
        start = self.cursor.place()
        if self.cursor.sees("number") and self.cursor.word(1) in ("times", "time"):
            number = self.cursor.take().text
            hint = f"did you mean: count of (...) in the last 10 min at least {number}"
            message = "a number of times is a count"
            raise SyntaxFault("policy.expected_condition", message, start, hint)
        left = self.value(level)
        has_is = self.cursor.sees("keyword", "is")
        negated = self.cursor.sees("keyword", "not", ahead=int(has_is))
        ahead = has_is + negated
        if self.cursor.word(ahead) == "between":
            self._skip(ahead + 1)
            return _negated(self._between(left, start, level), negated)
        if self.cursor.word(ahead) == "one" and self.cursor.sees("keyword", "of", ahead=ahead + 1):
            self._skip(ahead + 2)
            return _negated(self._one_of(left, start), negated)
        if self.cursor.word(ahead) == "in" and self.cursor.sees("mark", "(", ahead=ahead + 1):
            message = "'in' stands before a unit or 'the last'"
            hint = f"write: {print_situation_value(left)} is one of ('x', 'y')"
            raise self.cursor.fault("policy.expected_comparison", message, hint=hint)
        shown = print_situation_value(left)
        comparator = read_comparator(self.cursor, shown, "30 degC", "between 1 and 2")
        if comparator is None:
            raise self._expected_comparison(shown)
        right = self.value(level)
        place = span(start, self.cursor.last_place())
        if is_constant(left) and is_constant(right):
            message = "both sides are constants, so there is nothing to watch"
            hint = "write an attribute on one side, such as: temperature of S"
            raise SyntaxFault("policy.constant_comparison", message, place, hint)
        found = ValueComparison(left, comparator.operator, right, place)
        return _negated(found, comparator.negated)

    def _expected_comparison(self, shown: str) -> SyntaxFault:
        message = f"expected a comparison after {shown!r}"
        hint = f"such as: {shown} above 30 degC"
        if self.cursor.word() in ("until", "unless"):
            hint = "the section 'cleared by' says when a situation ends"
        if self.cursor.reads("with") and self.cursor.word(1) == "at":
            hint = "the least number stands in parentheses: (at least 18 readings)"
        elif self.cursor.sees("keyword", "of", ahead=1):
            hint = f"did you mean: {shown} * {self.cursor.word()} of ..."
        return self.cursor.fault("policy.expected_comparison", message, hint=hint)

    def _skip(self, number: int) -> None:
        for _token in range(number):
            self.cursor.take()

    def _between(self, value: Value, start: SourceSpan, level: int) -> Between:
        low = self.value(level)
        if not self.cursor.take_if("keyword", "and"):
            message = "expected 'and' after the lower end of 'between'"
            hint = f"such as: {print_situation_value(value)} between 20 and 30 degC"
            raise self.cursor.fault("policy.bad_between", message, hint=hint)
        high = self.value(level)
        place = span(start, self.cursor.last_place())
        if is_constant(value) and is_constant(low) and is_constant(high):
            message = "all values are constants, so there is nothing to watch"
            hint = "write an attribute, such as: temperature of S"
            raise SyntaxFault("policy.constant_comparison", message, place, hint)
        return Between(value, low, high, place)

    def _one_of(self, value: Value, start: SourceSpan) -> OneOf:
        opening = self.cursor.take_if("mark", "(")
        if opening is None:
            hint = "such as: region of S is one of ('north', 'west')"
            message = "expected choices in parentheses"
            raise self.cursor.fault("policy.bad_choices", message, hint=hint)
        choices = [self._choice()]
        while self.cursor.take_if("mark", ","):
            choices.append(self._choice())
        if self.cursor.sees("text") or self.cursor.sees("number"):
            message = "expected a comma between two choices"
            raise self.cursor.fault("policy.missing_comma", message, hint="such as: ('x', 'y')")
        self.close(opening)
        return OneOf(value, tuple(choices), span(start, self.cursor.last_place()))

    def _choice(self) -> Quantity:
        found = read_constant(self.cursor, self._is_unit)
        if found is None:
            token = self.cursor.peek()
            hint = "such as: ('north', 'west')"
            if token is not None and token.kind == "word":
                hint = f"put text in quotes: '{token.text}'"
            raise self.cursor.fault("policy.bad_choices", "expected a constant", hint=hint)
        return found

    def _quantified(self, level: int) -> Quantified:
        start = self.cursor.place()
        quantifier, number = self._quantifier()
        example = f"{quantifier} {f'{number} ' if quantifier.startswith('at') else ''}person B"
        hint = f"such as: {example} with (B is inside R)"
        concept = self.cursor.name("policy.expected_concept", "a concept", hint)
        if self.cursor.reads("with") or self.cursor.sees("keyword", "is"):
            message = f"expected an alias for {concept.text!r}"
            hint = (
                f"such as: {example.removesuffix('person B')}{concept.text} B with (B is inside R)"
            )
            raise self.cursor.fault("policy.missing_alias", message, hint=hint)
        alias = self.cursor.name("policy.missing_alias", f"an alias for {concept.text!r}", hint)
        if alias.text in self.aliases:
            message = f"the alias {alias.text!r} is already defined"
            hint = "give each thing an alias of its own"
            raise SyntaxFault("policy.duplicate_alias", message, alias.place, hint)
        properties: tuple[Property, ...] = ()
        if (opening := self.cursor.take_if("mark", "(")) is not None:
            properties = read_properties(self.cursor, enclosed=True)
            self.close(opening)
        if not self.cursor.reads("with") or not self.cursor.sees("mark", "(", ahead=1):
            message = f"expected 'with' and a condition in parentheses after {alias.text!r}"
            hint = f"such as: {concept.text} {alias.text} with ({alias.text} is inside R)"
            raise self.cursor.fault("policy.bad_quantifier", message, hint=hint)
        self.cursor.take()
        outside = self.aliases
        self.aliases = outside | {alias.text}
        inner = self.condition(level)
        self.aliases = outside
        self.used.discard(alias.text)
        place = span(start, self.cursor.last_place())
        return Quantified(
            quantifier, number, concept.text, alias.text, properties, inner, place, alias.place
        )

    def _quantifier(self) -> tuple[Quantifier, int]:
        first = self.cursor.take()
        word = first.text.lower()
        if word == "some":
            return "some", 1
        if word == "no":
            return "no", 0
        second = self.cursor.word()
        if second not in ("least", "most"):
            meant = nearest_word(second, ("least", "most"))
            hint = f"did you mean 'at {meant}'?" if meant else "such as: at least 3 person B"
            message = "expected 'at least' or 'at most'"
            raise SyntaxFault("policy.bad_quantifier", message, first.place, hint)
        self.cursor.take()
        if second == "most" and self.cursor.reads("once"):
            message = "'at most once per' stands on a line of its own"
            hint = f"write it as: {THROTTLE.example}"
            raise SyntaxFault("policy.bad_once_per", message, first.place, hint)
        number = self.cursor.take_if("number")
        if number is None or not is_whole(number, least=1 if second == "least" else 0):
            message = f"expected a whole number after 'at {second}'"
            hint = f"such as: at {second} 3 person B with (B is inside R)"
            raise SyntaxFault("policy.bad_quantifier", message, first.place, hint)
        if self.cursor.word() in ("times", "time"):
            hint = f"did you mean: count of (...) in the last 10 min at {second} {number.text}"
            message = "a number of times is a count"
            raise SyntaxFault("policy.bad_quantifier", message, first.place, hint)
        return ("at least" if second == "least" else "at most"), int(number.text)


def _negated(condition: Condition, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def read_lines(
    lines: Iterable[list[Token]], aliases: frozenset[str], faults: Diagnostics
) -> tuple[Condition | None, set[str]]:
    """The lines joined by AND, None if there is none without fault; and the aliases they name."""
    parts: list[Condition] = []
    used: set[str] = set()
    for line in lines:
        reader = ConditionReader(TokenCursor(line), aliases)
        try:
            parts.append(reader.line())
            used |= reader.used
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    if len(parts) > 1:
        return AndOf(tuple(parts)), used
    return (parts[0] if parts else None), used
