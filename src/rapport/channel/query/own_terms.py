"""The query kind `own`: a condition or template in the words of the asker's interpretation. [ME-9,
CH-4]

`{"interpretation": "us-desk", "where": "data.temp > 86"}` matches the events of which this is true
once they are transformed. What can be said in root is decided there, by index and without a
transformation; an event is transformed when that is true, and one whose transformation is rejected
does not match and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rapport.channel.query.bounds import Bounds, position_bounds
from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.folding import TRUE
from rapport.channel.query.parser import parse_condition
from rapport.channel.query.printer import print_condition
from rapport.channel.query.template import template_condition
from rapport.channel.query.translating import Untranslatable, translate_types
from rapport.channel.query.tree import Condition
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.event import StoredEvent
from rapport.core.terms import Term

See = Callable[[StoredEvent], Sequence[StoredEvent]]
"""An event of root as the consumer sees it; none when it is rejected, several when it is split."""


class View(msgspec.Struct, frozen=True):
    """How a consumer sees a channel."""

    version: str
    """Changes when the terms do."""
    forms: Mapping[str, Term]
    """What `data` is in its words, by the type of event in root."""
    see: See
    accepts: Callable[[StoredEvent], bool] | None = None
    """Whether an event will be seen at all; without it, `see` tells."""
    may_block: bool = False
    """`see` takes too long to be asked while others wait."""


class OwnTerms:
    """Whether events match in the consumer's words. Counts: `rejected` are those that could not be
    transformed though all that root can tell was true.
    """

    def __init__(self, condition: Condition, view: View) -> None:
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
                hint="ask for what root can tell, and look at the rest when it has come",
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
    """What a request says: an interpretation, and a condition or a template (neither: all)."""

    interpretation: str
    where: str = ""
    template: dict[str, Any] | None = None


class Views:
    """How the consumers of a process see channels, by interpretation; the wiring tells."""

    def __init__(self) -> None:
        self._find: Callable[[str], View] = _unknown

    def use(self, find: Callable[[str], View]) -> None:
        """Sets where views come from: a function that raises UnknownName for a name it lacks."""
        self._find = find

    def get(self, interpretation: str) -> View:
        """The view in force; raises UnknownName."""
        return self._find(interpretation)


def _unknown(interpretation: str) -> View:
    raise UnknownName("interpretation", interpretation[:100], (), code="interpretation.unknown")


VIEWS = Views()


class PreparedOwnTerms(msgspec.Struct, frozen=True):
    """A request understood."""

    text: str
    matches: Matches
    bounds: Bounds
    condition: Condition


def prepare_own_terms(given: Any, views: Views = VIEWS) -> PreparedOwnTerms:
    """From the query as it came, an object or JSON; raises InvalidInput, QueryError, UnknownName.

    The text names no version: a token goes on with the interpretation that is then in force. A
    query that is kept while it changes refuses with `query.interpretation_changed`, because it may
    have been looked up by the old one.
    """
    asked = _read(given)
    if not asked.where and not asked.template:
        return _everything(asked, views)
    if asked.template is not None:
        condition = template_condition(asked.template)
    else:
        condition = parse_condition(asked.where)
    view = views.get(asked.interpretation)
    own = OwnTerms(condition, view)

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


def _everything(asked: OwnTermsRequest, views: Views) -> PreparedOwnTerms:
    """No condition: also what root has no type for, which every consumer gets as it is."""
    views.get(asked.interpretation)
    text = msgspec.json.encode(OwnTermsRequest(asked.interpretation), order="sorted").decode()
    return PreparedOwnTerms(text, lambda stored: True, Bounds(), TRUE)


def explain_own_terms(condition: Condition, view: View) -> str:
    """One sentence for people: what is asked in root, and what is decided afterwards."""
    own = OwnTerms(condition, view)
    shown = f"in root: {print_condition(own.in_root)}"
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
