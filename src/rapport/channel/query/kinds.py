"""Kinds of queries by name: `template`, `sql`, `script`, `own`, and what plug-ins add. [CH-4]

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
from rapport.channel.query.own_terms import VIEWS, Views, prepare_own_terms
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.printer import print_condition
from rapport.channel.query.script import Scripts, prepare_script
from rapport.channel.query.template import template_condition, template_text
from rapport.channel.query.tree import Condition
from rapport.core.errors import InvalidInput
from rapport.kernel.plugins import Plugins

SQL, TEMPLATE, SCRIPT, OWN = "sql", "template", "script", "own"
MAX_QUERY = 8_192
"""Longest canonical text of a query, in characters: it travels in every token."""


class Query(msgspec.Struct, frozen=True):
    """A query ready for use. `text` is canonical: `make_query(kind, text)` gives the same again."""

    kind: str
    text: str
    matches: Matches
    bounds: Bounds = Bounds()
    condition: Condition | None = None
    """What must be true of a match, for stores that look it up instead of reading everything: a
    match never breaks it, though what fulfils it need not match. None = nothing is known.
    """
    is_its_condition: bool = False
    """Whether what fulfils the condition matches, too."""


MakeQuery = Callable[[Any], Query]


def sql_query(given: Any) -> Query:
    """A query from the text of a condition; raises QueryError with its place."""
    if not isinstance(given, str):
        raise InvalidInput("an sql query is a text", code="query.bad_query")
    condition = parse_condition(given)
    matches = compile_condition(condition)
    text, bounds = print_condition(condition), position_bounds(condition)
    return Query(SQL, text, matches, bounds, condition, is_its_condition=True)


def template_query(given: Any) -> Query:
    """A query from a template, as an object or as JSON text."""
    template = _read_object(given) if isinstance(given, str) else given
    if not isinstance(template, dict):
        raise InvalidInput("a template is an object", code="query.bad_template")
    condition = template_condition(template)
    matches = compile_condition(condition)
    bounds = position_bounds(condition)
    text = template_text(template)
    return Query(TEMPLATE, text, matches, bounds, condition, is_its_condition=True)


def script_query(given: Any, scripts: Scripts | None = None) -> Query:
    """A query that names a script of the site; the example of a kind with code of its own."""
    made = prepare_script(given, scripts or Scripts())
    return Query(SCRIPT, made.text, made.matches, made.bounds, made.condition)


def own_query(given: Any, views: Views = VIEWS) -> Query:
    """A query in the words of an interpretation, said in root as far as that goes."""
    made = prepare_own_terms(given, views)
    return Query(OWN, made.text, made.matches, made.bounds, made.condition)


KINDS = Plugins()
"""Built-in kinds and installed entry points of the group `rapport.queries`."""
KINDS.add("queries", SQL, sql_query)
KINDS.add("queries", TEMPLATE, template_query)
KINDS.add("queries", SCRIPT, script_query)
KINDS.add("queries", OWN, own_query)


def make_query(
    kind: str, given: Any, views: Views = VIEWS, scripts: Scripts | None = None
) -> Query:
    """The query of a kind; "" takes texts for sql and objects for templates. `views` tells what
    words mean in a query of the kind `own`, `scripts` are those of the site.

    Compiled once per text while it is in use. Raises InvalidInput, UnknownName (kind).
    """
    if isinstance(given, str) and not is_encodable(given):
        raise InvalidInput("the query has lone surrogates", code="query.bad_query")
    chosen = kind or (SQL if isinstance(given, str) else TEMPLATE)
    if chosen == OWN:  # never kept: its meaning changes with interpretations
        query = own_query(given, views)
    elif chosen == SCRIPT:  # neither: a text without a version means the script of now
        query = script_query(given, scripts)
    else:
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
