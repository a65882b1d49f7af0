"""Transformers for consumers: canonical events, originals and raw channels in their interpretation.
[ME-5, ME-8, ME-9, ME-16]

Canonical events are converted by one generated transformer per type. A consumer with the producer's
own interpretation receives the original raw event. Raw channels are converted from the producer's
to the consumer's interpretation in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rapport.channel.channel import Channels, events_between
from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import (
    InterpretationError,
    InvalidInput,
    RapportError,
    UnknownName,
    Unsupported,
)
from rapport.core.event import CAUSE, INTERPRETATION, Event, StoredEvent, cause_text
from rapport.core.release import without_release_headers
from rapport.core.signature import SIGNATURE, SIGNED_BY, without_raw_signature
from rapport.mediation.codegen.json_fast_path import JsonFastPath, convert_batch
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.concepts import ConceptAttribute, canonical_value
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.formats.writers import is_written_as_json, write_event_data
from rapport.mediation.interpretations.model import CANONICAL
from rapport.mediation.interpretations.registry import functions_needed as functions_called
from rapport.mediation.interpretations.repository import ActiveInterpretations, stamp_of
from rapport.mediation.memory import Functions, remembers
from rapport.mediation.reader import MediationReader
from rapport.mediation.rejections import RejectedValue, reason_of, type_mismatch
from rapport.mediation.rule_resolution import Scope
from rapport.mediation.source_bindings import RAW_POSITION, RAW_PREFIX, SourceBinding
from rapport.mediation.typed_source import as_declared, only_type, received_type
from rapport.mediation.types import TAG

_OF_OTHER_DATA = frozenset((SIGNATURE, SIGNED_BY, DATA_TYPE, DATA_ENCODING))
"""Headers that do not apply to converted data."""
_SAYS_HOW = frozenset((DATA_TYPE, DATA_ENCODING))
_ENOUGH = 8
"""Smallest number of events of one type that is worth a batch call."""


class ConsumerResult(msgspec.Struct, frozen=True, gc=False):
    """The result for one event: events, or the reason why there are none."""

    events: tuple[Event, ...] = ()
    code: str = ""
    """Empty: no fault."""
    message: str = ""
    is_made: bool = True
    """Whether a transformer ran; False for unchanged events."""
    plain: tuple[bytes, ...] = ()
    """The data of each event as JSON, if the interpretation has another format."""


class ConsumerTransformer:
    """Converts canonical events into one interpretation. `transform` never raises. `may_block`:
    site functions are called, so it needs a thread of its own; otherwise it belongs to the
    event loop. Holds generated code as long as the interpretations are in force.
    """

    def __init__(
        self,
        in_force: ActiveInterpretations,
        name: str,
        functions: Functions | None = None,
        surroundings: ConversionEnvironment | None = None,
    ) -> None:
        """Raises UnknownName with the nearest name, InterpretationError for a refused one."""
        self.name, self._in_force = name, in_force
        self._functions = functions
        self._surroundings = surroundings or ConversionEnvironment()
        self.is_canonical = name == CANONICAL
        self.is_one_way = name not in in_force.typed and name in in_force.fields
        self.stamp = _stamp(in_force, name)
        self._format = in_force.format_of(name)
        self.may_block = bool(site_functions_of(in_force, name))
        self._known_types = {each.name for each in in_force.typed.canonical.types} | {
            f"{concept}.{attribute}"
            for concept, attributes in in_force.concepts.items()
            for attribute in attributes
            if "." not in concept
        }
        self._transformers: dict[str, Transformer | RejectedValue] = {}
        self._fast_paths: dict[str, JsonFastPath | None] = {}

    def passes(self, event: Event) -> bool:
        """Whether the event is delivered unchanged: its type is not canonical, or the
        consumer uses the canonical model.
        """
        return self.is_canonical or event.type not in self._known_types

    def transform(self, stored: StoredEvent) -> ConsumerResult:
        """Converts an event; several results if it is split."""
        event = stored.event
        if self.passes(event):
            return ConsumerResult((event,), is_made=False)
        try:
            fast_path = self._fast_path(event.type)
            data = fast_path.data_of(event) if fast_path is not None else None
            if fast_path is None or data is None:
                return self._made(event, *self._canonical_value(event))
            return self._fast_result(event, fast_path.type, data)
        except Exception as error:  # one event that fails must never stop the others
            code, message, _hint = reason_of(error)
            return ConsumerResult((), code, message)

    def transform_all(self, stored: Sequence[StoredEvent]) -> list[ConsumerResult]:
        """Like `transform` for each; events of one type cost less together."""
        if len(stored) < _ENOUGH:
            return [self.transform(one) for one in stored]
        numbered = ((number, one.event) for number, one in enumerate(stored))
        converted = convert_batch(numbered, self._fast_path_of, least=_ENOUGH)
        return [
            self._fast_result(one.event, *converted[number])
            if number in converted
            else self.transform(one)
            for number, one in enumerate(stored)
        ]

    def _fast_path_of(self, event: Event) -> JsonFastPath | None:
        try:
            return None if self.passes(event) else self._fast_path(event.type)
        except Exception:
            return None  # `transform` reports it

    def _fast_path(self, type_name: str) -> JsonFastPath | None:
        if type_name not in self._fast_paths:
            self._fast_paths[type_name] = self._make_fast_path(type_name)
        return self._fast_paths[type_name]

    def transformed_types(self) -> list[str]:
        """The canonical types converted so far."""
        return list(self._fast_paths)

    def prepare(self, types: Iterable[str]) -> None:
        """Builds now what is otherwise built at the first events of these types; for an
        unused transformer, from any thread.
        """
        for type_name in types:
            if self.is_canonical or type_name not in self._known_types:
                continue
            fast_path = self._fast_path(type_name)
            if fast_path is not None:
                fast_path.prepare()

    def _attribute(self, type_name: str) -> ConceptAttribute | None:
        """The attribute of a reading; None for other events."""
        concept, _, attribute = type_name.partition(".")
        return self._in_force.concepts.get(concept, {}).get(attribute)

    def _canonical_value(self, event: Event) -> tuple[str, Any]:
        declared, data = self._attribute(event.type), event.payload()
        if declared is None:
            return event.type, data
        concept, _, attribute = event.type.partition(".")
        try:
            return concept, canonical_value(attribute, declared.type, data, event.time)
        except (LookupError, TypeError, ValueError):
            message = f"event {event.id[:60]!r} is no reading of {event.type}"
            raise RejectedValue("reading.malformed", message) from None

    def _fast_result(self, event: Event, type_name: str, data: bytes) -> ConsumerResult:
        headers = self._headers(event)
        made = Event(event.source, event.id, type_name, event.subject, event.time, data, headers)
        return ConsumerResult((made,))

    def _make_fast_path(self, type_name: str) -> JsonFastPath | None:
        """Builds the transformer too."""
        declared = self._attribute(type_name)
        concept, _, attribute = type_name.partition(".")
        try:
            plan = self._transformer(type_name if declared is None else concept).plan
        except RejectedValue:
            return None  # reported for each event after its own faults
        if not is_written_as_json(self._format):
            return None
        types = self._in_force.typed.types_met(self.name)
        return JsonFastPath(plan, types, self._surroundings, attribute, declared)

    def _headers(self, event: Event) -> dict[str, str]:
        headers = {name: text for name, text in event.headers.items() if name not in _OF_OTHER_DATA}
        headers[INTERPRETATION] = self.stamp
        return headers

    def _made(self, event: Event, type_name: str, value: Any) -> ConsumerResult:
        transformer = self._transformer(type_name)
        self._surroundings.event_time_ms = event.time
        result = transformer(value)
        headers = self._headers(event)
        plan = transformer.plan
        if not plan.several:
            return self._results([(event.id, result)], event, plan.result_type, headers)
        several = [(f"{event.id}:{number}", each) for number, each in enumerate(result)]
        return self._results(several, event, plan.result_type, headers)

    def _results(
        self, values: list[tuple[str, Any]], event: Event, type_name: str, headers: dict[str, str]
    ) -> ConsumerResult:
        events: list[Event] = []
        for own_id, value in values:
            tag = value.get(TAG) if value.__class__ is dict else None
            own_type = tag if isinstance(tag, str) else type_name
            data, marks = write_event_data(value, self._format, own_type)
            own = headers | marks if marks else headers
            events.append(
                Event(event.source, own_id, own_type, event.subject, event.time, data, own)
            )
        is_json = not events or not (events[0].headers.keys() & _SAYS_HOW)
        plain = () if is_json else tuple(msgspec.json.encode(value) for _, value in values)
        return ConsumerResult(tuple(events), plain=plain)

    def _transformer(self, type_name: str) -> Transformer:
        if type_name not in self._transformers:
            self._transformers[type_name] = self._make(type_name)
        found = self._transformers[type_name]
        if isinstance(found, RejectedValue):
            raise RejectedValue(found.code, found.message, found.hint)
        return found

    def _make(self, type_name: str) -> Transformer | RejectedValue:
        """The transformer, or why events of the type cannot be converted."""
        if self.is_one_way:
            message = f"{self.name!r} converts received events only, not canonical ones"
            return RejectedValue("interpretation.one_way", message, "declare it with types")
        try:
            made = make_transformer(
                *(self._in_force.typed, self.name, type_name, "out", self._functions),
                surroundings=self._surroundings,
                own=True,
            )
        except InterpretationError as error:
            first = error.problems[0]
            return RejectedValue(first.code, first.message, first.hint)
        except InvalidInput as error:
            return RejectedValue(error.code, error.message, error.hint)
        if any(map(remembers, made.conversions)):
            # Consumers start at any position and must get the same results.
            message = f"{type_name} in {self.name!r} depends on the events before it"
            return RejectedValue(
                "conversion.remembers", message, "use it for what is received only"
            )
        return made


def site_functions_of(in_force: ActiveInterpretations, name: str) -> tuple[str, ...]:
    """The site functions that an interpretation may call."""
    if name == CANONICAL or name not in in_force.typed:
        return ()
    return functions_called(in_force.typed, name)


def _stamp(in_force: ActiveInterpretations, name: str) -> str:
    if name in in_force.refused:
        raise InterpretationError(in_force.refused[name])
    if name in in_force.typed:
        return stamp_of(in_force.typed, name, in_force.format_of(name))
    if name in in_force.fields:
        return in_force.fields[name].stamp()
    known = [*in_force.fields, *in_force.typed.names]
    raise UnknownName("interpretation", name[:100], known, code="interpretation.unknown")


RAW_CHANNEL = "rawchannel"
ORDERED_FORMATS = ("homeassistant",)
"""Formats whose events depend on earlier ones."""
_GAP = 16
"""Gaps up to this size are read rather than skipped."""
_MOST = 1_000


class RawLocation(msgspec.Struct, frozen=True):
    channel: str
    position: int


def raw_location(event: Event, stamp: str) -> RawLocation | None:
    """The location of an event's original if it arrived in the interpretation `stamp`; None for
    another version or without a location.
    """
    headers = event.headers
    if headers.get(INTERPRETATION) != stamp:
        return None
    channel, position = headers.get(RAW_CHANNEL, ""), headers.get(RAW_POSITION, "")
    is_place = position.isascii() and position.isdigit() and len(position) < 19
    if not is_place or not channel.startswith(RAW_PREFIX):
        return None
    return RawLocation(channel, int(position))


def is_original(raw: Event, event: Event) -> bool:
    """Whether the event was made from this raw one. Headers can be forged and positions are
    those of another node, so the ids must match as well.
    """
    return raw.source == event.source and cause_text(raw.id) == event.headers.get(CAUSE)


async def read_raws(channels: Channels, wanted: Sequence[RawLocation]) -> dict[RawLocation, Event]:
    """The raw events that still exist; neighbours are read together."""
    found: dict[RawLocation, Event] = {}
    names = set(channels.names())
    for name in sorted({one.channel for one in wanted} & names):
        positions = sorted({one.position for one in wanted if one.channel == name})
        for first, last in _runs(positions):
            stored = await events_between(channels.channel(name), first, last)
            found |= {RawLocation(name, one.position): one.event for one in stored}
    return found


class DeclaredTypes:
    """The declared types of raw events in one interpretation."""

    def __init__(self, in_force: ActiveInterpretations, name: str) -> None:
        self._choice = in_force.format_of(name)
        self._format = get_format(self._choice.name, self._choice.options)
        self._scope: Scope | None = None
        self._only = ""
        if name in in_force.typed:  # the fields form has no types
            self._scope = in_force.typed.checked(name).scope
            self._only = only_type(self._scope)

    def type_of(self, raw: Event, binding: SourceBinding | None) -> str:
        """The declared type of a raw event; its own type if none is declared."""
        if self._scope is None:
            return raw.type
        tag = self._format_type(raw) if self._choice.name == "ngsi" else ""
        speaks = binding.speaks if binding is not None else ""
        return received_type(self._scope, self._only, tag, speaks, raw.type) or raw.type

    def fits(self, raw: Event, binding: SourceBinding | None) -> bool:
        """Whether a raw event conforms to its declared type; one received in another
        version may not.
        """
        scope, name = self._scope, self.type_of(raw, binding)
        if scope is None or self._choice.name in ORDERED_FORMATS:
            return True
        if not scope.types.is_complex(name):
            return False
        try:
            values = [
                as_declared(document, scope.types, name, self._choice)
                for document in self._format.read(raw, {})
            ]
        except (RejectedValue, RapportError):
            return False
        return not any(type_mismatch(value, name, scope.types) for value in values)

    def _format_type(self, raw: Event) -> str:
        try:
            return next((one.type for one in self._format.read(raw, {}) if one.type), "")
        except (RejectedValue, RapportError):
            return ""


def original_event(raw: Event, stamp: str, type_name: str) -> Event:
    """Returns the raw event unchanged for a consumer that uses the producer's own
    interpretation, with the name of its declared type.
    """
    headers = {**raw.headers, INTERPRETATION: stamp}
    return msgspec.structs.replace(raw, type=type_name, headers=headers)


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted positions as ranges to read."""
    first = last = positions[0]
    for position in positions[1:]:
        if position - last > _GAP or position - first >= _MOST:
            yield first, last
            first = position
        last = position
    yield first, last


class RawConsumerTransformer:
    """Converts raw events of one source into one interpretation; never raises."""

    def __init__(
        self,
        source: str,
        consumer: ConsumerTransformer,
        sources: MediationReader,
        in_force: ActiveInterpretations,
    ) -> None:
        """Raises Unsupported for a source whose events depend on their order."""
        binding = sources.binding(source)
        self.stamp = consumer.stamp
        self.consumer = consumer
        self.is_own = binding is not None and binding.interpretation == consumer.name
        """Whether source and consumer use the same interpretation."""
        self._binding = binding
        self._types = DeclaredTypes(in_force, consumer.name) if self.is_own else None
        self._in_order = binding is not None and _in_order_only(in_force, binding)
        if not self.is_own and binding is not None and self._in_order:
            raise Unsupported(
                f"reading raw.{source} in another interpretation",
                "a source whose events depend on those before them",
                hint=f"read {binding.into!r}, where they have got their meaning in order",
            )
        self._meaning = sources.isolated_transformer(source)
        self.may_block = self._meaning.may_block or consumer.may_block

    def transform_all(self, stored: Sequence[StoredEvent]) -> list[ConsumerResult]:
        """Returns raw events unchanged if both sides use the same interpretation, else
        converts them. An event received in another version of the interpretation is
        converted via the canonical model. Events of one type cost less together.
        """
        originals = {one.position: self._original(one.event) for one in stored}
        others = {one.position: one for one in stored if originals[one.position] is None}
        results = self._results(list(others.values())) if others else {}
        return [originals[one.position] or results[one.position] for one in stored]

    def _original(self, raw: Event) -> ConsumerResult | None:
        if self._types is None:
            return None
        if not self._in_order and not self._types.fits(raw, self._binding):
            return None
        name = self._types.type_of(raw, self._binding)
        return ConsumerResult((original_event(raw, self.stamp, name),), is_made=False)

    def _results(self, stored: Sequence[StoredEvent]) -> dict[int, ConsumerResult]:
        """The results by position."""
        found, rejections = self._meaning.apply_many(stored)
        raw = {str(one.position): one for one in stored}
        canonical = [_as_canonical(each, raw[each.headers[RAW_POSITION]]) for each in found]
        parts: dict[int, list[ConsumerResult]] = {one.position: [] for one in stored}
        for event, result in zip(canonical, self.consumer.transform_all(canonical), strict=True):
            parts[event.position].append(result)
        faults: dict[int, tuple[str, str]] = {}
        for one in rejections:
            faults.setdefault(one.position, (one.code, one.message))
        return {
            position: _combined(several, faults.get(position))
            for position, several in parts.items()
        }


def _as_canonical(event: Event, raw: StoredEvent) -> StoredEvent:
    sealed = without_raw_signature(without_release_headers(event), raw.event)
    return StoredEvent(raw.position, raw.received, sealed)


def _combined(parts: Sequence[ConsumerResult], fault: tuple[str, str] | None) -> ConsumerResult:
    """The result for one raw event; mediation faults come before conversion faults."""
    faults = [fault] if fault else [(one.code, one.message) for one in parts if one.code]
    code, message = faults[0] if faults else ("", "")
    return ConsumerResult(tuple(event for part in parts for event in part.events), code, message)


def _in_order_only(in_force: ActiveInterpretations, binding: SourceBinding) -> bool:
    name = binding.interpretation
    if not name or name in in_force.refused:
        return False
    if name not in in_force.typed and name not in in_force.fields:
        return False
    if in_force.format_of(name).name in ORDERED_FORMATS:
        return True
    if name not in in_force.typed:
        return False
    return any(map(remembers, in_force.typed.checked(name).scope.conversions.values()))
