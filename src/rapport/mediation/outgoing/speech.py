"""Events of root as one interpretation says them: one generated transformer per type. [ME-5, ME-8,
ME-9]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InterpretationError, InvalidInput, RapportError, UnknownName
from rapport.core.event import INTERPRETATION, Event, StoredEvent
from rapport.core.signature import SIGNATURE, SIGNED_BY
from rapport.mediation.concepts import ConceptAttribute, value_of
from rapport.mediation.in_force import InForce, stamp_of
from rapport.mediation.model.feeding import remembers
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.memory import Functions
from rapport.mediation.model.references import functions_needed as functions_called
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.transformer import Transformer, make_transformer
from rapport.mediation.model.types import TAG
from rapport.mediation.outgoing.written import is_json, written
from rapport.mediation.rejection import Rejected
from rapport.mediation.usual import Usual

_OF_OTHER_DATA = frozenset((SIGNATURE, SIGNED_BY, DATA_TYPE, DATA_ENCODING))
"""Headers that would be untrue of data that were transformed."""
_SAYS_HOW = frozenset((DATA_TYPE, DATA_ENCODING))
_ENOUGH = 8
"""Events of one type in a row that are worth a call for all of them."""


class Said(msgspec.Struct, frozen=True, gc=False):
    """What became of an event of root: events, or why there are none."""

    events: tuple[Event, ...] = ()
    code: str = ""
    """Empty: nothing stood in the way."""
    message: str = ""
    is_made: bool = True
    """Whether a transformer ran; False for what passes as it is."""
    plain: tuple[bytes, ...] = ()
    """The data of each event as JSON, where the interpretation has another format."""


class Speech:
    """Whatever root says, in the words of one interpretation. `say` never raises.

    `may_block`: functions of the site are called, so it belongs to a thread of its own; otherwise
    to the event loop's. Holds generated code for as long as the interpretations are in force.
    """

    def __init__(
        self,
        in_force: InForce,
        name: str,
        functions: Functions | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Raises UnknownName with the nearest name, InterpretationError for a refused one."""
        self.name, self._in_force = name, in_force
        self._functions = functions
        self._surroundings = surroundings or Surroundings()
        self.is_root = name == ROOT
        self.is_one_way = name not in in_force.typed and name in in_force.fields
        self.stamp = _stamp(in_force, name)
        self._format = in_force.format_of(name)
        self.may_block = bool(functions_needed(in_force, name))
        self._known_types = {each.name for each in in_force.typed.root.types} | {
            f"{concept}.{attribute}"
            for concept, attributes in in_force.concepts.items()
            for attribute in attributes
            if "." not in concept
        }
        self._transformers: dict[str, Transformer | Rejected] = {}
        self._usual: dict[str, Usual | None] = {}

    def passes(self, event: Event) -> bool:
        """Whether nothing is done with it: root has no type for it, or root is what is spoken."""
        return self.is_root or event.type not in self._known_types

    def say(self, stored: StoredEvent) -> Said:
        """The event in these words; several when it is split."""
        event = stored.event
        if self.passes(event):
            return Said((event,), is_made=False)
        try:
            if event.type not in self._usual:
                self._usual[event.type] = self._make_usual(event.type)
            return self._straight(event) or self._made(event, *self._root_value(event))
        except Rejected as rejected:
            return Said((), rejected.code, rejected.message[:500])
        except RapportError as error:
            return Said((), error.code, error.message[:500])
        except Exception as error:  # one event that fails must never stop the others
            return Said((), "mediation.fault", f"{type(error).__name__}: {error}"[:500])

    def say_all(self, stored: Sequence[StoredEvent]) -> list[Said]:
        """What `say` would say of each; events of one type that stand in a row cost less."""
        said: list[Said] = []
        for _type, row in groupby(stored, _type_of):
            alike = list(row)
            said += self._said_together(alike) if len(alike) >= _ENOUGH else map(self.say, alike)
        return said

    def _said_together(self, alike: Sequence[StoredEvent]) -> list[Said]:
        first = self.say(alike[0])
        usual = self._usual.get(alike[0].event.type)
        others = [one.event for one in alike[1:]]
        found = usual.data_of_all(others) if usual is not None else None
        if usual is None or found is None:
            return [first, *map(self.say, alike[1:])]
        return [
            first,
            *(
                self.say(one) if data is None else self._said_with(one.event, usual, data)
                for one, data in zip(alike[1:], found, strict=True)
            ),
        ]

    def types_said(self) -> list[str]:
        """The types of root that it was asked to say so far."""
        return list(self._usual)

    def prepare(self, types: Iterable[str]) -> None:
        """Makes now what is otherwise made when the first events of these types come; for a speech
        that nobody uses yet, from any thread.
        """
        for type_name in types:
            if self.is_root or type_name not in self._known_types:
                continue
            usual = self._usual[type_name] = self._make_usual(type_name)
            if usual is not None:
                usual.prepare()

    def _attribute(self, type_name: str) -> ConceptAttribute | None:
        """What a reading is of; None for events that are no readings."""
        concept, _, attribute = type_name.partition(".")
        return self._in_force.concepts.get(concept, {}).get(attribute)

    def _root_value(self, event: Event) -> tuple[str, Any]:
        """Type and value in root."""
        declared, data = self._attribute(event.type), event.payload()
        if declared is None:
            return event.type, data
        concept, _, attribute = event.type.partition(".")
        try:
            return concept, value_of(attribute, declared.type, data, event.time)
        except (LookupError, TypeError, ValueError):
            message = f"event {event.id[:60]!r} is no reading of {event.type}"
            raise Rejected("reading.malformed", message) from None

    def _straight(self, event: Event) -> Said | None:
        """The event, if it is what its type leads one to expect."""
        usual = self._usual[event.type]
        data = usual.data_of(event) if usual is not None else None
        if usual is None or data is None:
            return None
        return self._said_with(event, usual, data)

    def _said_with(self, event: Event, usual: Usual, data: bytes) -> Said:
        headers = self._headers(event)
        made = Event(event.source, event.id, usual.type, event.subject, event.time, data, headers)
        return Said((made,))

    def _make_usual(self, type_name: str) -> Usual | None:
        """Makes the transformer too."""
        declared = self._attribute(type_name)
        concept, _, attribute = type_name.partition(".")
        try:
            plan = self._transformer(type_name if declared is None else concept).plan
        except Rejected:
            return None  # said of every event when its turn comes, after what is wrong with itself
        if not is_json(self._format):
            return None
        types = self._in_force.typed.types_met(self.name)
        return Usual(plan, types, self._surroundings, attribute, declared)

    def _headers(self, event: Event) -> dict[str, str]:
        headers = {name: text for name, text in event.headers.items() if name not in _OF_OTHER_DATA}
        headers[INTERPRETATION] = self.stamp
        return headers

    def _made(self, event: Event, type_name: str, value: Any) -> Said:
        transformer = self._transformer(type_name)
        self._surroundings.event_time_ms = event.time
        result = transformer(value)
        headers = self._headers(event)
        plan = transformer.plan
        if not plan.several:
            return self._said([(event.id, result)], event, plan.result_type, headers)
        several = [(f"{event.id}:{number}", each) for number, each in enumerate(result)]
        return self._said(several, event, plan.result_type, headers)

    def _said(
        self, values: list[tuple[str, Any]], event: Event, type_name: str, headers: dict[str, str]
    ) -> Said:
        events: list[Event] = []
        for own_id, value in values:
            told = value.get(TAG) if value.__class__ is dict else None
            said = told if isinstance(told, str) else type_name
            data, marks = written(value, self._format, said)
            own = headers | marks if marks else headers
            events.append(Event(event.source, own_id, said, event.subject, event.time, data, own))
        is_json = not events or not (events[0].headers.keys() & _SAYS_HOW)
        plain = () if is_json else tuple(msgspec.json.encode(value) for _, value in values)
        return Said(tuple(events), plain=plain)

    def _transformer(self, type_name: str) -> Transformer:
        if type_name not in self._transformers:
            self._transformers[type_name] = self._make(type_name)
        found = self._transformers[type_name]
        if isinstance(found, Rejected):
            raise Rejected(found.code, found.message, found.hint)
        return found

    def _make(self, type_name: str) -> Transformer | Rejected:
        """The transformer, or why no event of the type can be said."""
        if self.is_one_way:
            message = f"{self.name!r} says only what is received in it, not how root is said in it"
            return Rejected("interpretation.one_way", message, "declare it with types")
        try:
            made = make_transformer(
                *(self._in_force.typed, self.name, type_name, "out", self._functions),
                surroundings=self._surroundings,
                own=True,
            )
        except InterpretationError as error:
            first = error.problems[0]
            return Rejected(first.code, first.message, first.hint)
        except InvalidInput as error:
            return Rejected(error.code, error.message, error.hint)
        if any(map(remembers, made.conversions)):
            # A consumer may begin anywhere, and two must not get different things.
            message = f"{type_name} in {self.name!r} depends on the events before it"
            return Rejected("conversion.remembers", message, "use it for what is received only")
        return made


def _type_of(stored: StoredEvent) -> str:
    return stored.event.type


def functions_needed(in_force: InForce, name: str) -> tuple[str, ...]:
    """Names of the site's functions that an interpretation may call."""
    if name == ROOT or name not in in_force.typed:
        return ()
    return functions_called(in_force.typed, name)


def _stamp(in_force: InForce, name: str) -> str:
    if name in in_force.refused:
        raise InterpretationError(in_force.refused[name])
    if name in in_force.typed:
        return stamp_of(in_force.typed, name, in_force.format_of(name))
    if name in in_force.fields:
        return in_force.fields[name].stamp()
    known = [*in_force.fields, *in_force.typed.names]
    raise UnknownName("interpretation", name[:100], known, code="interpretation.unknown")
