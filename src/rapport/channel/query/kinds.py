"""Kinds of queries by name: `template`, `sql`, and what plug-ins add. [CH-4]

A kind is a function from the query as it came (text or object) to a `Query`. It must be
deterministic: tokens carry the query's text and compile it again, perhaps years later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from rapport.channel.query.bounds import Bounds, position_bounds
from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.printer import print_condition
from rapport.channel.query.template import template_condition, template_text
from rapport.core.errors import InvalidInput
from rapport.kernel.plugins import Plugins

SQL, TEMPLATE = "sql", "template"
MAX_QUERY = 8_192
"""Longest canonical text of a query, in characters: it travels in every token."""


class Query(msgspec.Struct, frozen=True):
    """A query ready for use. `text` is canonical: `make_query(kind, text)` gives the same again."""

    kind: str
    text: str
    matches: Matches
    bounds: Bounds = Bounds()


MakeQuery = Callable[[Any], Query]


def sql_query(given: Any) -> Query:
    """A query from the text of a condition; raises QueryError with its place."""
    if not isinstance(given, str):
        raise InvalidInput("an sql query is a text", code="query.bad_query")
    condition = parse_condition(given)
    matches = compile_condition(condition)
    return Query(SQL, print_condition(condition), matches, position_bounds(condition))


def template_query(given: Any) -> Query:
    """A query from a template, as an object or as JSON text."""
    template = _read_object(given) if isinstance(given, str) else given
    if not isinstance(template, dict):
        raise InvalidInput("a template is an object", code="query.bad_template")
    condition = template_condition(template)
    matches = compile_condition(condition)
    return Query(TEMPLATE, template_text(template), matches, position_bounds(condition))


KINDS = Plugins()
"""Built-in kinds and installed entry points of the group `rapport.queries`."""
KINDS.add("queries", SQL, sql_query)
KINDS.add("queries", TEMPLATE, template_query)


def make_query(kind: str, given: Any) -> Query:
    """The query of a kind; "" takes texts for sql and objects for templates.

    Compiled once per text while it is in use. Raises InvalidInput, UnknownName (kind).
    """
    if isinstance(given, str) and not is_encodable(given):
        raise InvalidInput("the query has lone surrogates", code="query.bad_query")
    chosen = kind or (SQL if isinstance(given, str) else TEMPLATE)
    query = _from_text(chosen, given) if isinstance(given, str) else _make(chosen, given)
    if len(query.text) > MAX_QUERY:
        raise InvalidInput(
            f"the query has {len(query.text)} characters; {MAX_QUERY} are allowed",
            code="query.too_long",
        )
    return query


def is_encodable(text: str) -> bool:
    """Whether a text can travel: Python's own may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=512)
def _from_text(kind: str, text: str) -> Query:
    return _make(kind, text)


def _make(kind: str, given: Any) -> Query:
    make: MakeQuery = KINDS.get("queries", kind)
    return make(given)


def _read_object(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidInput(
            f"the template is not JSON: {error}", code="query.bad_template"
        ) from None
