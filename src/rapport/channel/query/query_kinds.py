"""Kinds of queries by name: `template`, `sql`, `script`, `own`, and those of plug-ins. [CH-4, ME-9]

A kind is a function from the query as received (text or object) to a `Query`. It must be
deterministic: tokens carry the query's text and compile it again, perhaps years later.

A template names the fields that must be equal, null for "any": `{"type": "badge.seen", "data":
{"room": {"floor": 2}}}` becomes `type = 'badge.seen' AND data.room.floor = 2`.

The kind `script` is for decisions too complex for a condition: `{"name": "busy", "arguments":
{"least": 3}, "where": "type = 'desk.used'"}` calls the script that the site declares under that
name in `[channels.scripts]`, such as `busy = "scripts/busy.py:busy"`, for events that fulfil
`where`. A request never contains code: it names a script and passes values. A script is trusted
like a plug-in; its file is in the site's directory.

The kind `own` is a condition or template in the consumer's interpretation: `{"interpretation":
"us-desk", "where": "data.temp > 86"}` matches the events for which this is true after their
transformation. The translatable part is decided on the canonical event, by index and without a
transformation; an event whose transformation is rejected does not match and is counted.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec

from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import MAX_STEPS, parse_condition
from rapport.channel.query.translation import TRUE, Untranslatable, translate_types
from rapport.channel.query.tree import (
    EVERYTHING,
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

T = TypeVar("T")
MOST_LINES = 100_000
"""Lines of Python that a script may run for one message."""

Decide = Callable[[StoredEvent, Mapping[str, Any]], object]
_REFERENCE = re.compile(r"(?P<file>[^:]+\.py):(?P<function>[A-Za-z_]\w*)\Z")
_VERSION_DIGITS = 16


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


class Script(msgspec.Struct, frozen=True):
    """A function `(stored event, arguments) -> true or false`; the same for the same input."""

    decide: Decide
    version: str
    """Changes when the script does, so that a token never means something else."""


class ScriptRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    arguments: dict[str, Any] = {}
    where: str = ""
    version: str = ""
    """Set in tokens: the version of the script."""


class Scripts:
    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}

    def use(self, scripts: Mapping[str, Script]) -> None:
        """Declares scripts; one of the same name is replaced."""
        self._scripts.update(scripts)

    def names(self) -> list[str]:
        return sorted(self._scripts)

    def get(self, name: str, version: str = "") -> Script:
        """The script; raises UnknownName with the nearest, InvalidInput when it was changed."""
        if name not in self._scripts:
            raise UnknownName("script", name[:100], self.names(), code="query.unknown_script")
        script = self._scripts[name]
        if version not in ("", script.version):
            raise InvalidInput(
                f"the script {name!r} was changed since this token was given",
                code="query.script_changed",
                hint="send the query again",
            )
        return script


def script_query(given: Any, scripts: Scripts | None = None) -> Query:
    """A query that names a script of the site; raises InvalidInput, QueryError (`where`)."""
    scripts = scripts or Scripts()
    hint = 'such as {"name": "busy", "arguments": {"least": 3}}'
    request = _read_request(given, ScriptRequest, "this is no query for a script", hint)
    script = scripts.get(request.name, request.version)
    condition = parse_condition(request.where)
    where = compile_condition(condition) if condition != EVERYTHING else None
    arguments, name = request.arguments, request.name

    def matches(stored: StoredEvent) -> bool:
        if where is not None and not where(stored):
            return False
        current = scripts.get(name, script.version)  # a query may be kept for long
        return bool(run_limited(current.decide, stored, arguments))

    canonical = ScriptRequest(request.name, arguments, print_condition(condition), script.version)
    text = msgspec.json.encode(canonical, order="sorted").decode()
    return Query(SCRIPT, text, matches, position_bounds(condition), condition)


def _read_request(given: Any, type: type[T], fault: str, hint: str) -> T:
    try:
        if isinstance(given, str):
            return msgspec.json.decode(given, type=type)
        return msgspec.convert(given, type)
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{fault}: {error}", code="query.bad_query", hint=hint) from None


class _TooLong(BaseException):
    """Not an Exception, so that a script's own handlers let it pass."""


def run_limited(decide: Decide, stored: StoredEvent, arguments: Mapping[str, Any]) -> object:
    """The script's result; raises InvalidInput after MOST_LINES lines.

    Lines are counted, not time, so that the same message always gets the same answer. A call into C
    is one line, however long it takes.
    """
    lines = 0

    def count(_frame: FrameType, _what: str, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > MOST_LINES:
            raise _TooLong
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return decide(stored, arguments)
    except _TooLong:
        raise InvalidInput(
            f"the script ran over {MOST_LINES} lines for the message at {stored.position}",
            code="query.script_too_long",
            hint="the script must decide on each message in a few steps",
        ) from None
    finally:
        sys.settrace(before)


def load_scripts(declared: Mapping[str, str], directory: Path) -> dict[str, Script]:
    """The scripts by name; raises InvalidInput naming the one that cannot be used."""
    return {name: _load_script(name, text, directory) for name, text in declared.items()}


def check_reference(text: str) -> str:
    """The fault in a script's declaration; empty when there is none."""
    if not _REFERENCE.match(text):
        return f"{text[:100]!r} does not name a file and a function"
    return "" if _is_inside(text.partition(":")[0]) else "a script lies in the site's directory"


def _is_inside(file: str) -> bool:
    return not Path(file).is_absolute() and ".." not in Path(file).parts


def _load_script(name: str, text: str, directory: Path) -> Script:
    wrong = check_reference(text)
    if wrong:
        raise _script_fault(name, wrong, 'such as "scripts/busy.py:busy"')
    file, _colon, function = text.partition(":")
    try:
        source = (directory / file).read_bytes()
    except OSError as error:
        raise _script_fault(name, f"{file} cannot be read: {error.strerror}", "") from None
    made: dict[str, Any] = {"__name__": f"rapport_script_{name}", "__file__": str(directory / file)}
    try:
        exec(compile(source, file, "exec"), made)  # the site's own file, never request input
    except Exception as error:
        raise _script_fault(
            name, f"{file} does not run: {error!r}", "run it with Python"
        ) from error
    if not callable(made.get(function)):
        raise _script_fault(name, f"{file} has no function {function!r}", "")
    version = hashlib.sha256(source + b"\0" + function.encode()).hexdigest()[:_VERSION_DIGITS]
    return Script(made[function], version)


def _script_fault(name: str, message: str, hint: str) -> InvalidInput:
    return InvalidInput(f"script {name!r}: {message}", code="query.bad_script", hint=hint)


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
        raise _template_fault("", f"names {len(parts)} fields; {MAX_FIELDS} are allowed")
    return And(tuple(parts))


def template_text(template: dict[str, Any]) -> str:
    """The canonical text of a template, independent of the order of its members."""
    try:
        return msgspec.json.encode(template, order="sorted").decode()
    except (OverflowError, TypeError, ValueError) as error:
        raise _template_fault("", f"cannot be written as JSON: {error}") from None


def _parts(members: dict[str, Any], path: tuple[str, ...]) -> list[Condition]:
    parts: list[Condition] = []
    for name, value in sorted(members.items()):
        place = (*path, name)
        if not path and name not in FIELDS:
            raise _unknown_member(name)
        if len(place) > MAX_STEPS:
            raise _template_fault(".".join(place), f"is deeper than {MAX_STEPS} steps")
        if isinstance(value, dict) and place[0] in ROOTS:
            parts += _parts(value, place)
        elif value is not None:
            parts.append(_equal(Field(place), value))
    return parts


def _equal(field: Field, value: Any) -> Compare:
    place = ".".join(str(step) for step in field.path)
    kind = field_kind(field)
    if field.path[0] == "headers" and len(field.path) != 2:
        raise _template_fault(place, "must be an object of header names and texts")
    if kind == "time" and isinstance(value, str):
        try:
            return Compare("=", field, Literal(parse_time(value), is_time=True))
        except InvalidInput as error:
            raise _template_fault(place, error.message, error.hint) from None
    if not isinstance(value, str | int | float):
        raise _template_fault(place, "must be a text, a number, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise _template_fault(place, "must be a finite number")
    is_text, is_number = isinstance(value, str), not isinstance(value, str | bool)
    if (kind == "text" and not is_text) or (kind in ("time", "number") and not is_number):
        raise _template_fault(place, f"must be a {kind}")
    return Compare("=", field, Literal(value))


def _unknown_member(name: str) -> InvalidInput:
    nearest = nearest_names(name, FIELDS, limit=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"fields: {', '.join(FIELDS)}"
    return InvalidInput(
        f"the template names {name[:60]!r}, which is no field",
        code="query.unknown_field",
        hint=f'{hint} Members of the payload stand under "data"',
    )


def _template_fault(place: str, message: str, hint: str = "") -> InvalidInput:
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


def own_query(given: Any, views: InterpretationViews = VIEWS) -> Query:
    """A query in an interpretation, an object or JSON, translated to canonical terms as far as
    possible; raises InvalidInput, QueryError, UnknownName.

    The text names no version: a token continues with the interpretation in force. A query in use
    while it changes is refused with `query.interpretation_changed`, because it may have been looked
    up by the old one.
    """
    hint = 'such as {"interpretation": "us-desk", "where": "data.temp > 86"}'
    request = _read_request(given, OwnTermsRequest, "this is no query in own terms", hint)
    if request.where and request.template is not None:
        message = "a query has a condition or a template, not both"
        raise InvalidInput(message, code="query.bad_query", hint=hint)
    if not request.where and not request.template:
        return _everything(request, views)
    if request.template is not None:
        condition = template_condition(request.template)
    else:
        condition = parse_condition(request.where)
    view = views.get(request.interpretation)
    own = OwnTermsMatcher(condition, view)

    def matches(stored: StoredEvent) -> bool:
        if views.get(request.interpretation).version != view.version:
            raise InvalidInput(
                f"the interpretation {request.interpretation!r} was changed",
                code="query.interpretation_changed",
                hint="send the query or its token again",
            )
        return own(stored)

    where = "" if request.template is not None else print_condition(condition)
    canonical = OwnTermsRequest(request.interpretation, where, request.template)
    text = msgspec.json.encode(canonical, order="sorted").decode()
    return Query(OWN, text, matches, position_bounds(own.in_root), own.in_root)


def _everything(request: OwnTermsRequest, views: InterpretationViews) -> Query:
    """No condition: includes events without a canonical type, which all consumers get."""
    views.get(request.interpretation)
    text = msgspec.json.encode(OwnTermsRequest(request.interpretation), order="sorted").decode()
    return Query(OWN, text, lambda stored: True, Bounds(), TRUE)


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
