"""Relationships between two aliases: `A is not within 5m of B`. [PO-3]"""

from __future__ import annotations

from rapport.policy.language.comparing import COMPARATOR_WORDS, begins_comparator
from rapport.policy.language.cursor import SyntaxFault, TokenCursor, span
from rapport.policy.language.durations import TIMING_WORDS
from rapport.policy.language.misspelt import CONNECTIVES
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import Term

_NEEDLESS = ("if", "when", "whenever", "while", "where", "that")
_COMPARING = (*COMPARATOR_WORDS, "at least", "at most")


def read_term(cursor: TokenCursor, aliases: frozenset[str]) -> Term:
    """The relationship that comes next; raises SyntaxFault.

    `aliases` are those the policy defines: they tell where a relationship's name ends.
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
        second = names.pop()  # an alias nobody defined; the checker names the nearest
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
    """Words up to a number, a keyword, the end, a time, or an alias the policy defines."""
    names: list[Token] = []
    while (token := cursor.peek()) is not None and token.kind == "word":
        if names and token.text in aliases:
            break
        if len(names) > 1 and _begins_time(cursor, aliases):
            break
        names.append(cursor.take())
    return names


def _begins_time(cursor: TokenCursor, aliases: frozenset[str]) -> bool:
    """`for 10 min` after an alias nobody defined; not the `within 5m of` of a relationship."""
    word, unit, after = cursor.peek(), cursor.peek(2), cursor.peek(3)
    if word is None or word.text.lower() not in TIMING_WORDS:
        return False
    if not cursor.sees("number", ahead=1) or unit is None or unit.text in aliases:
        return False
    return after is None or after.text in (")", *CONNECTIVES, *TIMING_WORDS, "not")


def _parameter(cursor: TokenCursor, aliases: frozenset[str]) -> str:
    """`5m` or `5 m` as `5m`; a word is a unit when it is glued on or more words follow it."""
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
    """True when the words end in one for comparing, and no second alias came after it."""
    said = " ".join(name.text.lower() for name in names)
    return any(said == word or said.endswith(f" {word}") for word in _COMPARING)


def _nothing_before(first: Token) -> SyntaxFault:
    """`above 30 degC`, `within 5m of B`, `if A is inside R`."""
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
    """`A above 30 degC`, `temperature above 30 degC`, `S temperature above 30 degC`."""
    said = [name for name in names if name.text.lower() not in (*COMPARATOR_WORDS, "at")]
    other = said[0] if said and said[0].text.lower() not in ("least", "most") else None
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
    said, rest = _before_time(names)
    name = " ".join(token.text for token in said)
    if name in aliases and second is None:
        message = f"expected a relationship between {first.text!r} and {name!r}"
        return SyntaxFault("policy.expected_relationship", message, names[0].place, example)
    message = f"expected a second alias after {name!r}"
    place = rest.place if rest is not None else cursor.place()
    return SyntaxFault("policy.missing_alias", message, place, example)


def _before_time(names: list[Token]) -> tuple[list[Token], Token | None]:
    """The words before a `for` or `within` that was read as part of the relationship's name."""
    if len(names) > 1 and names[-1].text.lower() in TIMING_WORDS:
        return names[:-1], names[-1]
    return names, None
