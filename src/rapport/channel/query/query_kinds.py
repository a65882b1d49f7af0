"""Kinds of queries by name: `template`, `sql`, `script`, `own`, and those of plug-ins. [CH-4, ME-9]

A kind is a function from the query as received (text or object) to a `Query`. It must be
deterministic: tokens carry the query's text and compile it again, perhaps years later.

A template names the fields that must be equal, null for "any": `{"type": "badge.seen", "data":
{"room": {"floor": 2}}}` becomes `type = 'badge.seen' AND data.room.floor = 2`.

The kind `own` is a condition or template in the consumer's interpretation: `{"interpretation":
"us-desk", "where": "data.temp > 86"}` matches the events for which this is true after their
transformation. The translatable part is decided on the canonical event, by index and without a
transformation; an event whose transformation is rejected does not match and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import MAX_STEPS, parse_condition
from rapport.channel.query.scripts import Scripts, prepare_script
from rapport.channel.query.translation import TRUE, Untranslatable, translate_types
from rapport.channel.query.tree import (
    FIELDS,
    ROOTS,
    And,
    Bounds,
    Compare,
    Condition,
    Field,
    Literal,
    field_kind,
    position_bounds,
    print_condition,
)
from rapport.core.errors import InvalidInput, UnknownName, Unsupported, nearest_names
from rapport.core.event import StoredEvent
from rapport.core.terms import Term
from rapport.core.times import parse_time
from rapport.kernel.plugins import Plugins

MAX_FIELDS = 200
See = Callable[[StoredEvent], Sequence[StoredEvent]]
"""A canonical event as the consumer sees it; none when rejected, several when split."""
SQL, TEMPLATE, SCRIPT, OWN = "sql", "template", "script", "own"
MAX_QUERY = 8_192
"""Longest canonical text of a query, in characters: it travels in every token."""
KINDS = Plugins()
"""Built-in kinds and installed entry points of the group `rapport.queries`."""


def template_condition(template: dict[str, Any]) -> Condition:
    """The condition of a template; raises InvalidInput naming the member at fault."""
    parts = _parts(template, ())
    if len(parts) > MAX_FIELDS:
        raise _fault("", f"names {len(parts)} fields; {MAX_FIELDS} are allowed")
    return And(tuple(parts))


def template_text(template: dict[str, Any]) -> str:
    """The canonical text of a template, independent of the order of its members."""
    try:
        return msgspec.json.encode(template, order="sorted").decode()
    except (OverflowError, TypeError, ValueError) as error:
        raise _fault("", f"cannot be written as JSON: {error}") from None


def _parts(members: dict[str, Any], path: tuple[str, ...]) -> list[Condition]:
    parts: list[Condition] = []
    for name, value in sorted(members.items()):
        place = (*path, name)
        if not path and name not in FIELDS:
            raise _unknown_member(name)
        if len(place) > MAX_STEPS:
            raise _fault(".".join(place), f"is deeper than {MAX_STEPS} steps")
        if isinstance(value, dict) and place[0] in ROOTS:
            parts += _parts(value, place)
        elif value is not None:
            parts.append(_equal(Field(place), value))
    return parts


def _equal(field: Field, value: Any) -> Compare:
    place = ".".join(str(step) for step in field.path)
    kind = field_kind(field)
    if field.path[0] == "headers" and len(field.path) != 2:
        raise _fault(place, "must be an object of header names and texts")
    if kind == "time" and isinstance(value, str):
        try:
            return Compare("=", field, Literal(parse_time(value), is_time=True))
        except InvalidInput as error:
            raise _fault(place, error.message, error.hint) from None
    if not isinstance(value, str | int | float):
        raise _fault(place, "must be a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise _fault(place, "must be a finite number")
    is_text, is_number = isinstance(value, str), not isinstance(value, str | bool)
    if (kind == "text" and not is_text) or (kind in ("time", "number") and not is_number):
        raise _fault(place, f"must be a {kind}")
    return Compare("=", field, Literal(value))


def _unknown_member(name: str) -> InvalidInput:
    nearest = nearest_names(name, FIELDS, limit=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"fields: {', '.join(FIELDS)}"
    return InvalidInput(
        f"the template names {name[:60]!r}, which is no field",
        code="query.unknown_field",
        hint=f'{hint} Members of the payload stand under "data"',
    )


def _fault(place: str, message: str, hint: str = "") -> InvalidInput:
    where = f"the template's {place[:120]}" if place else "the template"
    return InvalidInput(f"{where} {message}", code="query.bad_template", hint=hint)


class InterpretationView(msgspec.Struct, frozen=True):
    """How a consumer sees a channel."""

    version: str
    """Changes when the terms do."""
    forms: Mapping[str, Term]
    """The form of `data` in this interpretation, by canonical event type."""
    see: See
    accepts: Callable[[StoredEvent], bool] | None = None
    """Whether an event is visible at all; without it, `see` decides."""
    may_block: bool = False
    """`see` takes too long to run in the event loop."""


class OwnTermsMatcher:
    """Decides matches in the consumer's interpretation. `rejected` counts events that could not be
    transformed though their canonical part matched.
    """

    def __init__(self, condition: Condition, view: InterpretationView) -> None:
        self.rejected = 0
        self.untranslatable: tuple[str, ...] = ()
        try:
            self.in_root = translate_types(condition, view.forms)
        except Untranslatable as error:
            self.untranslatable = error.paths
            self.in_root = translate_types(condition, view.forms, needed=True)
        self._may_match = compile_condition(self.in_root)
        self._matches = compile_condition(condition) if self.untranslatable else None
        if self.untranslatable and view.may_block:
            raise Unsupported(
                f"asking for {', '.join(self.untranslatable)}",
                "an interpretation that calls functions of the site",
                hint="query translatable fields only, and filter the rest after receiving",
            )
        self._see = view.see
        self._accepts = view.accepts

    def __call__(self, stored: StoredEvent) -> bool:
        if not self._may_match(stored):
            return False
        if self._matches is None and self._accepts is not None:
            is_seen = self._accepts(stored)
            self.rejected += not is_seen
            return is_seen
        seen = self._see(stored)
        if not seen:
            self.rejected += 1
            return False
        return self._matches is None or any(map(self._matches, seen))


class OwnTermsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The request: an interpretation, and a condition or a template (neither: all)."""

    interpretation: str
    where: str = ""
    template: dict[str, Any] | None = None


class InterpretationViews:
    """The views of a process by interpretation; set by the wiring."""

    def __init__(self) -> None:
        self._find: Callable[[str], InterpretationView] = _unknown

    def use(self, find: Callable[[str], InterpretationView]) -> None:
        """Sets the source of views: a function that raises UnknownName for an unknown name."""
        self._find = find

    def get(self, interpretation: str) -> InterpretationView:
        """The view in force; raises UnknownName."""
        return self._find(interpretation)


def _unknown(interpretation: str) -> InterpretationView:
    raise UnknownName("interpretation", interpretation[:100], (), code="interpretation.unknown")


VIEWS = InterpretationViews()


class PreparedOwnTerms(msgspec.Struct, frozen=True):
    """A request understood."""

    text: str
    matches: Matches
    bounds: Bounds
    condition: Condition


def prepare_own_terms(given: Any, views: InterpretationViews = VIEWS) -> PreparedOwnTerms:
    """Parses a query as received, an object or JSON; raises InvalidInput, QueryError, UnknownName.

    The text names no version: a token continues with the interpretation in force. A query in use
    while it changes is refused with `query.interpretation_changed`, because it may have been looked
    up by the old one.
    """
    asked = _read(given)
    if not asked.where and not asked.template:
        return _everything(asked, views)
    if asked.template is not None:
        condition = template_condition(asked.template)
    else:
        condition = parse_condition(asked.where)
    view = views.get(asked.interpretation)
    own = OwnTermsMatcher(condition, view)

    def matches(stored: StoredEvent) -> bool:
        if views.get(asked.interpretation).version != view.version:
            raise InvalidInput(
                f"the interpretation {asked.interpretation!r} was changed",
                code="query.interpretation_changed",
                hint="send the query or its token again",
            )
        return own(stored)

    where = "" if asked.template is not None else print_condition(condition)
    canonical = OwnTermsRequest(asked.interpretation, where, asked.template)
    text = msgspec.json.encode(canonical, order="sorted").decode()
    return PreparedOwnTerms(text, matches, position_bounds(own.in_root), own.in_root)


def _everything(asked: OwnTermsRequest, views: InterpretationViews) -> PreparedOwnTerms:
    """No condition: includes events without a canonical type, which every consumer
    gets unchanged.
    """
    views.get(asked.interpretation)
    text = msgspec.json.encode(OwnTermsRequest(asked.interpretation), order="sorted").decode()
    return PreparedOwnTerms(text, lambda stored: True, Bounds(), TRUE)


def explain_own_terms(condition: Condition, view: InterpretationView) -> str:
    """One sentence for people: which part is decided on canonical events, and which afterwards."""
    own = OwnTermsMatcher(condition, view)
    shown = f"canonical: {print_condition(own.in_root)}"
    if not own.untranslatable:
        return shown
    return f"{shown}; decided after the transformation: {', '.join(own.untranslatable)}"


def _read(given: Any) -> OwnTermsRequest:
    try:
        if isinstance(given, str):
            asked = msgspec.json.decode(given, type=OwnTermsRequest)
        else:
            asked = msgspec.convert(given, OwnTermsRequest)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise _bad(f"this is no query in own terms: {error}") from None
    if asked.where and asked.template is not None:
        raise _bad("a query has a condition or a template, not both")
    return asked


def _bad(message: str) -> InvalidInput:
    hint = 'such as {"interpretation": "us-desk", "where": "data.temp > 86"}'
    return InvalidInput(message, code="query.bad_query", hint=hint)


class Query(msgspec.Struct, frozen=True):
    """A compiled query. `text` is canonical: `make_query(kind, text)` gives the same again."""

    kind: str
    text: str
    matches: Matches
    bounds: Bounds = Bounds()
    condition: Condition | None = None
    """A condition that every match fulfils, for stores that can look it up; an event that fulfils
    it need not match. None = unknown.
    """
    is_its_condition: bool = False
    """Whether every event that fulfils the condition matches."""


MakeQuery = Callable[[Any], Query]


def sql_query(given: Any) -> Query:
    """A query from the text of a condition; raises QueryError with its position."""
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


def own_query(given: Any, views: InterpretationViews = VIEWS) -> Query:
    """A query in an interpretation, translated to canonical terms as far as possible."""
    made = prepare_own_terms(given, views)
    return Query(OWN, made.text, made.matches, made.bounds, made.condition)


KINDS.add("queries", SQL, sql_query)
KINDS.add("queries", TEMPLATE, template_query)
KINDS.add("queries", SCRIPT, script_query)
KINDS.add("queries", OWN, own_query)


def make_query(
    kind: str, given: Any, views: InterpretationViews = VIEWS, scripts: Scripts | None = None
) -> Query:
    """The query of a kind; "" takes texts for sql and objects for templates. `views` give the
    meaning of interpretations in the kind `own`, `scripts` are those of the site.

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
