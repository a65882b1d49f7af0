"""A source that speaks a typed interpretation: raw events become values of root, then readings.
[ME-5, ME-8, ME-13]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec

from rapport.core.errors import InterpretationError, RapportError, UnknownName
from rapport.core.event import ADDED_FIELDS, CAUSE, INTERPRETATION, Event, StoredEvent, cause_text
from rapport.core.release import HISTORY
from rapport.mediation import fields
from rapport.mediation.as_declared import as_declared, without_undeclared
from rapport.mediation.binding import SourceBinding
from rapport.mediation.concepts import KEY, TIME, parts_of
from rapport.mediation.formats.base import Document, Format
from rapport.mediation.formats.named import format_named
from rapport.mediation.formats.payload import with_added_fields
from rapport.mediation.in_force import InForce, stamp_of
from rapport.mediation.memory import SourceMemory
from rapport.mediation.model.conversions import Chain
from rapport.mediation.model.feeding import knows_only_now
from rapport.mediation.model.memory import Functions
from rapport.mediation.model.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS, ParseTime
from rapport.mediation.model.references import feeds_of, functions_needed
from rapport.mediation.model.scope import Scope
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.transformer import Transformer, make_transformer
from rapport.mediation.raw_reading import own_id
from rapport.mediation.rejection import Rejected, Rejection
from rapport.mediation.typed_rows import TypedRows, are_rows_read
from rapport.units.timeformats import LOCAL_TIMES, LocalTimes

_NOT_LOCAL = (EPOCH_SECONDS, EPOCH_MILLISECONDS)
_ENCODE = msgspec.json.Encoder().encode


class TypedTransformer:
    """Everything one source says, in root; never raises out of `apply_many`.

    A transformer is generated for each type of event when it first comes. What one event says in
    several documents is rejected document by document. `may_block`: functions of the site are
    called, in a process of their own.
    """

    def __init__(
        self,
        binding: SourceBinding,
        in_force: InForce,
        *,
        memory: SourceMemory | None = None,
        functions: Functions | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`functions`: of the site, by name; `surroundings`: what conversions may ask.

        Raises InterpretationError or UnknownName when nothing can be said in it.
        """
        name, interpretations = binding.interpretation, in_force.typed
        self._scope = interpretations.checked(name).scope
        self._binding, self._interpretations = binding, interpretations
        self._concepts, self._functions = in_force.concepts, functions or {}
        self._choice = in_force.format_of(name)
        self._format: Format = format_named(self._choice.name, self._choice.options)
        self.memory = memory or SourceMemory()
        self.stamp, self.into = stamp_of(interpretations, name, self._choice), binding.into
        self._raw_channel = binding.raw_channel
        self._surroundings = surroundings or Surroundings()
        self.may_block = bool(functions_needed(interpretations, name))
        self.feeds = feeds_of(interpretations, name)
        self.knows_only_now = any(map(knows_only_now, self._scope.conversions.values()))
        self.local_zone = self._local_zone()
        self._times = LocalTimes(binding.zone)
        self._recorded_times = LocalTimes(binding.zone, takes_first=True)
        self._transformers: dict[str, Transformer] = {}
        self._only = only_type(self._scope)
        self._rows = self._made_rows()

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Readings (or events of root) and rejections, each in order."""
        # Some events come one at a time: a context manager would cost a tenth of the whole.
        before = LOCAL_TIMES.set(self._recorded_times if _are_recorded(events) else self._times)
        try:
            return self._apply_many(events)
        finally:
            LOCAL_TIMES.reset(before)

    def _apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        found: list[Event] = []
        rejections: list[Rejection] = []
        turned = self._rows.turned(events) if self._rows is not None else repeat(None)
        for stored, usual in zip(events, turned, strict=False):
            if usual is None:
                self._apply_alone(stored, found, rejections)
            else:
                (said, data), raw = usual, stored.event
                headers = self._headers(stored)
                found.append(Event(raw.source, raw.id, said, raw.subject, raw.time, data, headers))
        return found, rejections

    def _apply_alone(
        self, stored: StoredEvent, found: list[Event], rejections: list[Rejection]
    ) -> None:
        try:
            documents = self._format.read(stored.event, self.memory.format)
            if ADDED_FIELDS in stored.event.headers:
                documents = with_added_fields(stored.event, documents)
        except Exception as error:
            rejections.append(self._rejection(error, stored))
            return
        for document in documents:
            try:
                found += self._apply(document, stored)
            except Exception as error:  # one bad event must never stop the others
                rejections.append(self._rejection(error, stored))

    def prepare(self) -> None:
        """Generates now what is otherwise generated when an event of a type first comes."""
        mapped = [source for source, direction in self._scope.mappings if direction == "in"]
        for name in dict.fromkeys(
            each for one in mapped for each in self._scope.types.subtypes(one)
        ):
            try:
                self._transformer(name)
            except InterpretationError:
                continue  # its events are rejected with the reason when they come
            if self._rows is not None:
                self._rows.prepare(name)

    def source_text(self) -> str:
        """The generated Python for every type that can be received."""
        names = [source for source, direction in self._scope.mappings if direction == "in"]
        return "\n\n".join(self._transformer(name).source for name in names)

    def _apply(self, document: Document, stored: StoredEvent) -> list[Event]:
        type_name = self._type_of(document.type, stored.event)
        value = as_declared(document, self._scope.types, type_name, self._choice)
        if self._binding.concept:
            names = (KEY, TIME, *self._binding.attributes)
            value = without_undeclared(value, self._scope.types, type_name, names)
        self.feed(type_name, value)
        if type_name in self.feeds and not self._is_mapped(type_name):
            return []
        transformer = self._transformer(type_name)
        self._surroundings.event_time_ms = _time_of(document, stored)
        results = transformer(value)
        if not transformer.plan.several:
            return self._events(results, transformer.plan.result_type, document, "", stored)
        return [
            event
            for number, result in enumerate(results)
            for event in self._events(
                result, transformer.plan.result_type, document, str(number), stored
            )
        ]

    def feed(self, type_name: str, value: Any) -> None:
        """Lets conversions learn from a value of a type, of root or of the source's own; raises
        Rejected for one that cannot be used.
        """
        for conversion in self.feeds.get(type_name, ()):
            self.memory.states.feed(conversion, value, self._functions)

    def _events(
        self, value: Any, result_type: str, document: Document, part: str, stored: StoredEvent
    ) -> list[Event]:
        """The value as it stands in a channel: readings of a concept, or the value as it is."""
        raw = stored.event
        declared = own_id(document, self._binding.own_id) if document.id else ""
        names = (declared, part) if declared else (raw.id, document.id, part)
        id = ":".join(each for each in names if each)
        time = _time_of(document, stored)
        headers = self._headers(stored)
        said = value.get("@type") or result_type
        if said not in self._concepts:
            return [Event(raw.source, id, said, raw.subject, time, _ENCODE(value), headers)]
        if value.get(TIME) is not None:
            time = fields.root_time(value[TIME], TIME, self._binding.zone)
        return list(self._readings(said, value, Event(raw.source, id, "", "", time), headers))

    def _headers(self, stored: StoredEvent) -> dict[str, str]:
        raw = stored.event
        return {
            **fields.kept_headers(raw.headers),
            CAUSE: cause_text(raw.id),
            INTERPRETATION: self.stamp,
            "rawchannel": self._raw_channel,
            "rawposition": str(stored.position),
        }

    def _readings(
        self, concept: str, value: Mapping[str, Any], frame: Event, headers: dict[str, str]
    ) -> Iterator[Event]:
        """One reading per attribute that is there and that the source is bound to give."""
        key = fields.name(value.get(KEY, fields.MISSING), f"{concept}.{KEY}")
        subject = fields.subject(f"{concept}/", key)
        wanted = self._binding.attributes
        there = [name for name in wanted if value.get(name) is not None]
        if concept != self._binding.concept or not there:
            raise Rejected(
                "reading.empty",
                f"the event says nothing of {self._binding.concept}: {', '.join(wanted)}",
                "map it to that concept, or name what it gives in `attributes`",
            )
        for name in there:
            kind = self._concepts[concept][name].type
            parts = parts_of(value[name], kind, f"{concept}.{name}")
            yield Event(
                frame.source,
                frame.id if len(wanted) == 1 else f"{frame.id}/{name}",
                f"{concept}.{name}",
                subject,
                frame.time,
                _ENCODE({"key": key, "value": parts}),
                headers,
            )

    def _made_rows(self) -> TypedRows | None:
        """None where an event has to be looked at by itself: conversions learn from it, or it is
        made into readings.
        """
        if self.feeds or self._binding.concept or not are_rows_read(self._choice):
            return None
        return TypedRows(
            self._interpretations.types_met(self._binding.interpretation),
            self._surroundings,
            lambda event: self._type_of("", event),
            self._transformer,
            lambda transformer: transformer.plan.result_type not in self._concepts,
        )

    def _type_of(self, told: str, event: Event) -> str:
        """What the format says, else the site, else the envelope, else the only one there is."""
        found = received_type(self._scope, self._only, told, self._binding.speaks, event.type)
        if found:
            return found
        said = told or self._binding.speaks or event.type
        known = self._scope.types.complex_names
        error = UnknownName("type", said, known, code="type.unexpected")
        raise Rejected(error.code, error.message, error.hint or 'say type = "..." of the source')

    def _local_zone(self) -> str:
        """The zone of local times whose order in a file says which of two is meant; empty when
        none are, or they are of several zones.
        """
        zones = set()
        for conversion in self._scope.conversions.values():
            steps = conversion.how.steps if isinstance(conversion.how, Chain) else (conversion,)
            for how in (step.how for step in steps):
                if isinstance(how, ParseTime) and how.format not in _NOT_LOCAL and not how.fold:
                    zones.add(how.zone or self._binding.zone)
        return zones.pop() if len(zones) == 1 else ""

    def _is_mapped(self, type_name: str) -> bool:
        return self._scope.mapping_of(type_name, "in") is not None

    def _transformer(self, type_name: str) -> Transformer:
        found = self._transformers.get(type_name)
        if found is None:
            found = make_transformer(
                self._interpretations,
                self._binding.interpretation,
                type_name,
                "in",
                self._functions,
                self.memory.states,
                self._surroundings,
                # What a format has read is nobody else's, unless a conversion learns from it.
                own=not self.feeds,
            )
            self._transformers[type_name] = found
        return found

    def _rejection(self, error: Exception, stored: StoredEvent) -> Rejection:
        if isinstance(error, (Rejected, RapportError)):
            code, message, hint = error.code, error.message, error.hint
        else:
            code, message, hint = "mediation.fault", f"{type(error).__name__}: {error}", ""
        return Rejection(code, message[:500], hint[:500], stored.event, stored.position, self.stamp)


def received_type(scope: Scope, only: str, *said: str) -> str:
    """The declared type of an event: the first name of what is said that is one, else the only
    one there is, else empty.
    """
    for name in said:
        if name and scope.types.is_complex(name):
            return name
    return only


def only_type(scope: Scope) -> str:
    """The type that is received where there is just one."""
    mapped = [source for source, direction in scope.mappings if direction == "in"]
    return mapped[0] if len(mapped) == 1 else ""


def _are_recorded(events: Sequence[StoredEvent]) -> bool:
    for stored in events:  # noqa: SIM110  a generator costs as much as the rest for one event
        if HISTORY in stored.event.headers:
            return True
    return False


def _time_of(document: Document, stored: StoredEvent) -> int:
    return stored.event.time if document.time is None else document.time
