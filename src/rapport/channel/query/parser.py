"""Parses the text of a condition to its tree: the SQL-92 subset of JMS selectors. [CH-4]

OR binds weakest, then AND, NOT, comparisons, + and -, * and /, signs. `tokenize` makes tokens,
`TokenCursor` walks over them, `parse_field` reads field paths, the `need_`/`comparable` functions
check kinds. `QueryError` is the one error: with line, column, excerpt and the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal as OneOf
from typing import cast

import msgspec

from rapport.channel.query.tree import (
    EVERYTHING,
    FIELDS,
    KEYWORDS,
    ROOTS,
    And,
    Arithmetic,
    Between,
    Compare,
    Comparison,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Sign,
    Step,
    Value,
    field_kind,
    is_condition,
    is_value,
    kind_of,
)
from rapport.channel.query.values import mixed_characters
from rapport.core.errors import InvalidInput, Problem, excerpt_with_caret, nearest_names
from rapport.core.times import parse_time

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
    "query.too_deep": "use a simpler condition, or several requests",
    "query.too_many_wildcards": "use '%' instead of most '_', or compare with shorter pieces",
    "query.too_many": "use several requests",
}
"""Hints for faults without a hint of their own."""
TokenKind = OneOf["word", "keyword", "name", "number", "text", "operator", "mark", "end"]
MAX_TEXT = 8_192
"""Longest text of a condition, in characters."""
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'(?:[^']|'')*')|(?P<name>\"(?:[^\"]|\"\")+\")"
    r"|(?P<operator><>|<=|>=|=|<|>)|(?P<mark>[-+*/(),.\[\]@])"
)
_LONGEST_NUMBER = 40
_CURLY_QUOTES = "‘’‚‛“”„‟´`"
MAX_DEPTH = 32
"""How deep parentheses, NOTs and signs may nest."""
MAX_ARITHMETIC = 50
"""Most +, -, *, / in one condition: each may nest the tree by one."""
MAX_MIXED = 64
"""Most characters, in one condition, of LIKE pieces between two `%` that have `_` between letters:
the only part of a condition whose cost is not linear in the tested text.
"""
MAX_STEPS = 20
"""Longest path, in steps."""
_LARGEST_INDEX = 1_000_000
MAX_CHOICES = 1_000
"""Most literals in one IN."""


class QueryError(InvalidInput):
    """A query that cannot be understood; `problems` holds its one fault with line and column."""

    code = "query.invalid"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.as_text(), code=problem.code)
        self.problems = (problem,)

    def problems_found(self) -> tuple[Problem, ...]:
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


class Token(msgspec.Struct, frozen=True):
    """One token; `text` is its meaning: keywords in capitals, quoted text without its quotes."""

    kind: TokenKind
    text: str
    offset: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a condition and an `end`; raises QueryError at the first character at fault."""
    if len(text) > MAX_TEXT:
        raise query_fault(
            text,
            MAX_TEXT,
            "query.too_long",
            f"the condition has {len(text)} characters; {MAX_TEXT} are allowed",
            "use several requests, or IN for long lists of choices",
        )
    tokens: list[Token] = []
    offset = 0
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        if found is None:
            raise _bad_character(text, offset)
        if found.lastgroup != "space":
            tokens.append(_token(text, found))
        offset = found.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _token(whole: str, found: re.Match[str]) -> Token:
    text, offset = found[0], found.start()
    kind: TokenKind = found.lastgroup  # type: ignore[assignment]
    if kind == "word" and text.upper() in KEYWORDS:
        return Token("keyword", text.upper(), offset)
    if kind in ("text", "name"):
        quote = text[0]
        return Token(kind, text[1:-1].replace(quote * 2, quote), offset)
    if kind == "number" and len(text) > _LONGEST_NUMBER:
        raise query_fault(whole, offset, "query.bad_number", "the number is too long")
    return Token(kind, text, offset)


def _bad_character(text: str, offset: int) -> Exception:
    character = text[offset]
    if character == "'":
        message, code = "the quoted text has no end", "query.unclosed_quote"
        hint = "end it with '; write '' for the sign itself"
    elif character == '"':
        message, code = "the quoted name has no end", "query.unclosed_quote"
        hint = "names stand in double quotes, texts in single ones"
    else:
        shown = character if character.isprintable() else ascii(character)
        message, code = f"the character {shown} has no meaning here", "query.bad_character"
        hint = "use straight quotes: 'text'" if character in _CURLY_QUOTES else ""
        if character == "!":
            hint = "write <> for not equal, NOT for the opposite"
    return query_fault(text, offset, code, message, hint)


class TokenCursor:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next, self._depth, self._arithmetic, self._mixed = 0, 0, 0, 0

    def sees(self, kind: TokenKind, *texts: str) -> bool:
        """Whether the next token is of `kind` and, if any are given, equals one of `texts`."""
        token = self._tokens[self._next]
        return token.kind == kind and (not texts or token.text in texts)

    def take(self) -> Token:
        """The next token; moves on, but never past the end."""
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def take_if(self, kind: TokenKind, *texts: str) -> Token | None:
        """The next token if `sees` is true; otherwise None, and the position stays."""
        return self.take() if self.sees(kind, *texts) else None

    def expect(self, kind: TokenKind, *texts: str, what: str) -> Token:
        """The next token, which must be this one; `what` is named in the error."""
        if not self.sees(kind, *texts):
            raise self.fault("query.unexpected", f"expected {what}, found {self.shown()}")
        return self.take()

    def take_name(self) -> str:
        """The next token as it was written; a keyword may be the name of a member."""
        token = self.take()
        written = self._text[token.offset : token.offset + len(token.text)]
        return written if token.kind == "keyword" else token.text

    def offset(self) -> int:
        return self._tokens[self._next].offset

    def shown(self) -> str:
        """The next token as an error names it."""
        token = self._tokens[self._next]
        return "the end" if token.kind == "end" else repr(token.text[:40])

    def fault(self, code: str, message: str, hint: str = "") -> QueryError:
        return self.fault_at(self.offset(), code, message, hint)

    def fault_at(self, offset: int, code: str, message: str, hint: str = "") -> QueryError:
        return query_fault(self._text, offset, code, message, hint)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level down while the block runs; raises QueryError when that is too deep."""
        if self._depth == MAX_DEPTH:
            raise self.fault("query.too_deep", f"nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        yield
        self._depth -= 1

    def count_arithmetic(self) -> None:
        """Raises QueryError at one operation too many."""
        self._arithmetic += 1
        if self._arithmetic > MAX_ARITHMETIC:
            raise self.fault(
                "query.too_deep", f"more than {MAX_ARITHMETIC} calculations in one condition"
            )

    def count_mixed(self, offset: int, characters: int) -> None:
        """Raises QueryError when LIKE pieces with `_` between letters are too long together."""
        self._mixed += characters
        if self._mixed > MAX_MIXED:
            raise self.fault_at(
                offset,
                "query.too_many_wildcards",
                f"LIKE has pieces of {self._mixed} characters with '_' between letters; "
                f"{MAX_MIXED} are allowed in one condition",
            )


def parse_field(cursor: TokenCursor) -> Field:
    """A field at the cursor; raises QueryError with the nearest name for an unknown one.

    `data.room`, `data."room number"`, `data.value[0]`, `data.order.@id`, `headers.traceparent`.
    """
    if not cursor.sees("word") and not cursor.sees("name"):
        raise cursor.fault(
            "query.unexpected",
            f"expected a field, a text or a number, found {cursor.shown()}",
            f"fields are {', '.join(FIELDS[:-2])}, data.NAME and headers.NAME",
        )
    start = cursor.offset()
    name = cursor.take().text
    if name not in FIELDS:
        raise cursor.fault_at(
            start, "query.unknown_field", f"there is no field {name[:60]!r}", field_hint(name)
        )
    path: list[Step] = [name]
    while step := _step(cursor):
        path += step
        if len(path) > MAX_STEPS:
            raise cursor.fault_at(start, "query.too_deep", f"a path of over {MAX_STEPS} steps")
    _check_path(cursor, path, start)
    return Field(tuple(path))


def field_hint(name: str) -> str:
    nearest = nearest_names(name.lower(), FIELDS, limit=1)
    if nearest:
        return f"did you mean {nearest[0]!r}? Fields of the payload are written data.{name[:60]}"
    return f"fields of the payload are written data.{name[:60]}"


def _step(cursor: TokenCursor) -> tuple[Step, ...]:
    if cursor.take_if("mark", "."):
        sign = "@" if cursor.take_if("mark", "@") else ""
        if not (cursor.sees("word") or cursor.sees("name") or cursor.sees("keyword")):
            raise cursor.fault(
                "query.unexpected",
                f"expected a name after the point, found {cursor.shown()}",
                'names with other signs stand in double quotes: data."room number"',
            )
        return (sign + cursor.take_name(),)
    if cursor.take_if("mark", "["):
        token = cursor.expect("number", what="the number of an element, counted from 0")
        if not token.text.isdecimal() or int(token.text) > _LARGEST_INDEX:
            raise cursor.fault_at(token.offset, "query.bad_number", "elements are counted 0, 1, 2")
        cursor.expect("mark", "]", what="]")
        return (int(token.text),)
    return ()


def _check_path(cursor: TokenCursor, path: list[Step], start: int) -> None:
    root, steps = path[0], path[1:]
    if root not in ROOTS and steps:
        raise cursor.fault_at(
            start, "query.unknown_field", f"{root!r} has no parts", "only data and headers have"
        )
    if root == "headers" and (len(steps) != 1 or not isinstance(steps[0], str)):
        raise cursor.fault_at(
            start, "query.unknown_field", "a header is written headers.NAME", "headers are texts"
        )


def need_condition(cursor: TokenCursor, node: Node, start: int) -> Condition:
    """The node as a condition; raises QueryError when it has no truth value."""
    if not is_condition(node):
        raise cursor.fault_at(
            start,
            "query.not_a_condition",
            "this is a value, not a condition",
            "compare it with something: =, <>, <, BETWEEN, IN, LIKE, IS NULL",
        )
    return cast(Condition, node)


def need_value(cursor: TokenCursor, node: Node, start: int, *, number: bool = False) -> Value:
    """The node as a value (a number if required); raises QueryError when it cannot be one."""
    if not is_value(node):
        raise cursor.fault_at(
            start, "query.not_a_value", "this is a condition; a value is expected here"
        )
    value = cast(Value, node)
    if number and kind_of(value) not in ("number", "any"):
        raise cursor.fault_at(start, "query.not_a_number", "only numbers can be calculated with")
    return value


def literal_for(cursor: TokenCursor, value: Value, other: Value, start: int) -> Value:
    """Compared with a time field, ISO text becomes milliseconds; other values stay."""
    beside_time = isinstance(other, Field) and field_kind(other) == "time"
    if not beside_time or not isinstance(value, Literal) or not isinstance(value.value, str):
        return value
    try:
        return Literal(parse_time(value.value), is_time=True)
    except InvalidInput as error:
        raise cursor.fault_at(start, "query.bad_time", error.message, error.hint) from None


def comparable(
    cursor: TokenCursor,
    left: Value,
    right: Value,
    operator: str,
    start: int,
    *,
    timeless: bool = False,
) -> None:
    """Raises QueryError for a comparison that could never be true; `timeless` requires a text."""
    kinds = (kind_of(left), kind_of(right))
    if "any" not in kinds and kinds[0] != kinds[1]:
        raise cursor.fault_at(
            start,
            "query.wrong_kind",
            f"a {kinds[0]} is never equal to a {kinds[1]}"
            if not timeless
            else f"LIKE is for texts, this is a {kinds[0]}",
        )
    if "boolean" in kinds and operator not in ("=", "<>"):
        raise cursor.fault_at(
            start, "query.wrong_kind", f"TRUE and FALSE cannot be compared by {operator}"
        )


def parse_condition(text: str) -> Condition:
    """The tree of a condition; an empty text is the condition that every event fulfils.

    Raises QueryError with line, column, excerpt and hint.
    """
    cursor = TokenCursor(text)
    if cursor.sees("end"):
        return EVERYTHING
    start = cursor.offset()
    tree = need_condition(cursor, _either(cursor), start)
    if not cursor.sees("end"):
        raise cursor.fault(
            "query.unexpected",
            f"{cursor.shown()} is not expected here",
            "join conditions with AND or OR",
        )
    return tree


def _either(cursor: TokenCursor) -> Node:
    return _joined(cursor, "OR", Or)


def _both(cursor: TokenCursor) -> Node:
    return _joined(cursor, "AND", And)


def _joined(cursor: TokenCursor, keyword: str, kind: type[Or] | type[And]) -> Node:
    below = _both if kind is Or else _opposite
    start = cursor.offset()
    first = below(cursor)
    if not cursor.sees("keyword", keyword):
        return first
    parts = [need_condition(cursor, first, start)]
    while cursor.take_if("keyword", keyword):
        start = cursor.offset()
        parts.append(need_condition(cursor, below(cursor), start))
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    return kind(tuple(flat))


def _opposite(cursor: TokenCursor) -> Node:
    if not cursor.take_if("keyword", "NOT"):
        return _predicate(cursor)
    with cursor.deeper():
        start = cursor.offset()
        return Not(need_condition(cursor, _opposite(cursor), start))


def _predicate(cursor: TokenCursor) -> Node:
    start = cursor.offset()
    left = _sum(cursor)
    if cursor.sees("operator"):
        return _comparison(cursor, need_value(cursor, left, start), start)
    if cursor.take_if("keyword", "IS"):
        negated = cursor.take_if("keyword", "NOT") is not None
        cursor.expect("keyword", "NULL", what="NULL")
        return _maybe_not(IsNull(need_value(cursor, left, start)), negated)
    negated = cursor.take_if("keyword", "NOT") is not None
    if cursor.sees("keyword", "BETWEEN", "IN", "LIKE"):
        keyword = cursor.take().text
        parse = {"BETWEEN": _between, "IN": _in, "LIKE": _like}[keyword]
        return _maybe_not(parse(cursor, need_value(cursor, left, start), start), negated)
    if negated:
        raise cursor.fault(
            "query.unexpected", f"{cursor.shown()} is not expected after NOT", "BETWEEN, IN, LIKE"
        )
    return left


def _maybe_not(condition: Condition, negated: bool) -> Condition:
    return Not(condition) if negated else condition


def _comparison(cursor: TokenCursor, left: Value, start: int) -> Node:
    operator = cast(Comparison, cursor.take().text)
    right_start = cursor.offset()
    right = need_value(cursor, _sum(cursor), right_start)
    left = literal_for(cursor, left, right, start)
    right = literal_for(cursor, right, left, right_start)
    comparable(cursor, left, right, operator, right_start)
    return Compare(operator, left, right)


def _between(cursor: TokenCursor, operand: Value, _start: int) -> Condition:
    low_start = cursor.offset()
    low = literal_for(cursor, need_value(cursor, _sum(cursor), low_start), operand, low_start)
    comparable(cursor, operand, low, ">=", low_start)
    cursor.expect("keyword", "AND", what="AND and the upper end")
    high_start = cursor.offset()
    high = literal_for(cursor, need_value(cursor, _sum(cursor), high_start), operand, high_start)
    comparable(cursor, operand, high, "<=", high_start)
    return Between(operand, low, high)


def _in(cursor: TokenCursor, operand: Value, _start: int) -> Condition:
    cursor.expect("mark", "(", what="( and a list")
    choices = [_choice(cursor, operand)]
    while cursor.take_if("mark", ","):
        if len(choices) == MAX_CHOICES:
            raise cursor.fault("query.too_many", f"more than {MAX_CHOICES} choices in one IN")
        choices.append(_choice(cursor, operand))
    cursor.expect("mark", ")", what=", or )")
    return In(operand, tuple(choices))


def _choice(cursor: TokenCursor, operand: Value) -> Literal:
    start = cursor.offset()
    choice = literal_for(cursor, need_value(cursor, _signed(cursor), start), operand, start)
    if not isinstance(choice, Literal):
        raise cursor.fault_at(start, "query.not_a_literal", "IN lists texts, numbers, TRUE, FALSE")
    comparable(cursor, operand, choice, "=", start)
    return choice


def _like(cursor: TokenCursor, operand: Value, start: int) -> Condition:
    comparable(cursor, operand, Literal(""), "=", start, timeless=True)
    pattern = cursor.expect("text", what="a quoted pattern")
    escape = ""
    if cursor.take_if("keyword", "ESCAPE"):
        token = cursor.expect("text", what="a quoted character")
        escape = token.text
        if len(escape) != 1:
            raise cursor.fault_at(token.offset, "query.bad_escape", "ESCAPE names one character")
        if pattern.text.replace(escape * 2, "").endswith(escape):
            raise cursor.fault_at(
                pattern.offset, "query.bad_escape", "the pattern ends with the escape character"
            )
    cursor.count_mixed(pattern.offset, mixed_characters(pattern.text, escape))
    return Like(operand, pattern.text, escape)


def _sum(cursor: TokenCursor) -> Node:
    return _chain(cursor, ("+", "-"))


def _product(cursor: TokenCursor) -> Node:
    return _chain(cursor, ("*", "/"))


def _chain(cursor: TokenCursor, signs: tuple[str, str]) -> Node:
    below = _product if "+" in signs else _signed
    start = cursor.offset()
    left = below(cursor)
    while cursor.sees("mark", *signs):
        cursor.count_arithmetic()
        sign = cast(Sign, cursor.take().text)
        right_start = cursor.offset()
        right = need_value(cursor, below(cursor), right_start, number=True)
        left = Arithmetic(sign, need_value(cursor, left, start, number=True), right)
    return left


def _signed(cursor: TokenCursor) -> Node:
    if cursor.take_if("mark", "+"):
        start = cursor.offset()
        with cursor.deeper():
            return need_value(cursor, _signed(cursor), start, number=True)
    if not cursor.take_if("mark", "-"):
        return _primary(cursor)
    start = cursor.offset()
    with cursor.deeper():
        operand = need_value(cursor, _signed(cursor), start, number=True)
    if isinstance(operand, Literal) and isinstance(operand.value, int | float):
        return Literal(-operand.value)
    return Negative(operand)


def _primary(cursor: TokenCursor) -> Node:
    if cursor.take_if("mark", "("):
        with cursor.deeper():
            inner = _either(cursor)
        cursor.expect("mark", ")", what=")")
        return inner
    if cursor.sees("number"):
        return Literal(_number(cursor))
    if cursor.sees("text"):
        return Literal(cursor.take().text)
    if cursor.sees("keyword", "TRUE", "FALSE"):
        return Literal(cursor.take().text == "TRUE")
    return parse_field(cursor)


def _number(cursor: TokenCursor) -> int | float:
    token = cursor.take()
    if token.text.isdecimal():
        return int(token.text)
    number = float(token.text)
    if number in (float("inf"), float("-inf")):
        raise cursor.fault_at(token.offset, "query.bad_number", "the number is too large")
    return number
