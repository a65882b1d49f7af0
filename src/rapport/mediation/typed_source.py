"""The transformer of a source with a typed interpretation: raw events become canonical values, then
readings. [ME-5, ME-8, ME-11, ME-13]

SenML, NGSI and Home Assistant send units with their numbers; these override the declared unit, so
the number is converted to it first. A SenML or Home Assistant value without a unit is rejected.
CSV, XML and single values are texts and are parsed where a number is declared.

Regular JSON events of one type are converted in batches from bytes to bytes, at a third of the
cost; irregular ones are processed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InterpretationError, InvalidInput, UnknownName
from rapport.core.event import ADDED_FIELDS, CAUSE, INTERPRETATION, Event, StoredEvent, cause_text
from rapport.core.release import HISTORY
from rapport.core.times import LOCAL_TIMES, LocalTimes
from rapport.mediation.codegen.json_fast_path import JsonFastPath, convert_batch
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.concepts import KEY, TIME, reading_parts
from rapport.mediation.conversion.conversions import plain_steps
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.conversion.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS, ParseTime
from rapport.mediation.fields_transformer import (
    MISSING,
    canonical_time,
    kept_headers,
    read_name,
    subject_of,
)
from rapport.mediation.formats.base import (
    MAX_BYTES,
    TRUTHS,
    Document,
    Format,
    decimal_mark,
    with_added_fields,
)
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.interpretations.registry import feeds_of, functions_needed
from rapport.mediation.interpretations.repository import ActiveInterpretations, stamp_of
from rapport.mediation.memory import Functions, SourceMemory, depends_on_present
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.rejections import RejectedValue, Rejection, reason_of
from rapport.mediation.rule_resolution import Scope
from rapport.mediation.source_bindings import SourceBinding, field_id
from rapport.mediation.types import TAG, TypeRef, Types, element_of
from rapport.units.catalogue import BY_NAME
from rapport.units.quantities import Affine, DecimalMark, converter, parse_number

_NOT_PLAIN = frozenset((DATA_TYPE, DATA_ENCODING, ADDED_FIELDS))
_ENOUGH = 4
"""Smaller batches cost as much as single events."""


def is_plain_json(choice: FormatChoice) -> bool:
    """Whether each event in this format is one value of a declared type."""
    return choice.name == "json" and not choice.options


_FORMATS_WITH_UNITS = ("senml", "homeassistant")
"""Formats whose data carry the unit; NGSI may leave it to the data model."""
_NO_UNIT = "1"


def as_declared(document: Document, types: Types, type_name: str, choice: FormatChoice) -> Any:
    """The document's value as its type declares it; raises RejectedValue for a text that is not the
    declared number, and for a unit that is unknown, missing or of another dimension. Other
    faults are left to the transformer, which names their path.
    """
    value: Any = document.value
    decimal = decimal_mark(choice)
    if decimal is not None:
        value = _read(value, types, type_name, decimal, type_name)
    if document.units or choice.name in _FORMATS_WITH_UNITS:
        value = _in_declared_units(value, document, types, type_name, choice)
    return value


def without_undeclared(value: Any, types: Types, type_name: str, names: Iterable[str]) -> Any:
    """Removes those of `names` that the type does not declare. Types are open, but an
    undeclared field with the name of a concept's attribute would become that attribute without
    a declared unit.
    """
    actual = value.get(TAG, type_name)
    if not types.is_complex(actual):
        return value
    declared = types.attributes(actual)
    strange = [name for name in names if name in value and name not in declared]
    return {name: value[name] for name in value if name not in strange} if strange else value


def _in_declared_units(
    value: Any, document: Document, types: Types, type_name: str, choice: FormatChoice
) -> Any:
    changed = dict(value)
    for name, declared in types.attributes(type_name).items():
        if declared.type not in BY_NAME or changed.get(name).__class__ not in (int, float):
            continue
        unit = document.units.get(name)
        if unit is not None:
            changed[name] = _arithmetic(name, unit, declared.type).apply(float(changed[name]))
        elif choice.name in _FORMATS_WITH_UNITS and declared.type != _NO_UNIT:
            raise RejectedValue(
                "unit.undeclared",
                f"the data have no unit for {name}",
                plausible_unit(name, changed[name]) or "let the device send it",
            )
    return changed


def _arithmetic(name: str, unit: str, declared: str) -> Affine:
    try:
        return converter(unit, declared)
    except InvalidInput as error:
        raise RejectedValue(error.code, f"{name}: {error.message}", error.hint) from None


def _read(value: Any, types: Types, reference: TypeRef, decimal: DecimalMark, path: str) -> Any:
    element = element_of(reference)
    if element is not None:
        # A single XML element is not a list yet.
        several = value if value.__class__ is list else [value]
        return [_read(each, types, element, decimal, path) for each in several]
    if value.__class__ is dict and types.is_complex(reference):
        return {
            name: _read_part(name, each, types, reference, decimal, path)
            for name, each in value.items()
        }
    return _scalar(value, types.kind(reference), decimal, path) if value.__class__ is str else value


def _read_part(
    name: str, value: Any, types: Types, owner: str, decimal: DecimalMark, path: str
) -> Any:
    declared = types.attributes(owner).get(name)
    if declared is None or value is None:
        return value
    return _read(value, types, declared.type, decimal, f"{path}.{name}")


def _scalar(text: str, kind: str, decimal: DecimalMark, path: str) -> Any:
    if kind == "boolean":
        return TRUTHS.get(text.strip().lower(), text)
    if kind not in ("number", "integer"):
        return text
    try:
        found = parse_number(text, decimal)
    except InvalidInput as error:
        raise RejectedValue(error.code, f"{path}: {error.message}", error.hint) from None
    return int(found) if kind == "integer" and found == found // 1 else found


_NOT_LOCAL = (EPOCH_SECONDS, EPOCH_MILLISECONDS)
_ENCODE = msgspec.json.Encoder().encode


class TypedTransformer:
    """Converts all events of one source to canonical ones; `apply_many` never raises. A
    transformer is generated per event type at its first event. The documents of an event are
    rejected individually. `may_block`: site functions are called in a worker process.
    """

    def __init__(
        self,
        binding: SourceBinding,
        in_force: ActiveInterpretations,
        *,
        memory: SourceMemory | None = None,
        functions: Functions | None = None,
        surroundings: ConversionEnvironment | None = None,
    ) -> None:
        """`functions`: site functions by name; `surroundings`: what conversions may look
        up. Raises InterpretationError or UnknownName.
        """
        name, interpretations = binding.interpretation, in_force.typed
        self._scope = interpretations.checked(name).scope
        self._binding, self._interpretations = binding, interpretations
        self._concepts, self._functions = in_force.concepts, functions or {}
        self._choice = in_force.format_of(name)
        self._format: Format = get_format(self._choice.name, self._choice.options)
        self.memory = memory or SourceMemory()
        self.stamp, self.into = stamp_of(interpretations, name, self._choice), binding.into
        self._raw_channel = binding.raw_channel
        self._surroundings = surroundings or ConversionEnvironment()
        self.may_block = bool(functions_needed(interpretations, name))
        self.feeds = feeds_of(interpretations, name)
        self.depends_on_present = any(map(depends_on_present, self._scope.conversions.values()))
        self.local_zone = self._local_zone()
        self._times = LocalTimes(binding.zone)
        self._recorded_times = LocalTimes(binding.zone, takes_first=True)
        self._transformers: dict[str, Transformer] = {}
        self._only = only_type(self._scope)
        is_single = bool(self.feeds or binding.concept)  # they learn, or become readings
        self._has_fast_path = not is_single and is_plain_json(self._choice)
        self._fast_paths: dict[str, JsonFastPath | None] = {}

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Readings (or canonical events) and rejections, each in order."""
        # Some events come one at a time: a context manager would cost a tenth of the whole.
        before = LOCAL_TIMES.set(self._recorded_times if _are_recorded(events) else self._times)
        try:
            return self._apply_many(events)
        finally:
            LOCAL_TIMES.reset(before)

    def _apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        found: list[Event] = []
        rejections: list[Rejection] = []
        converted: Mapping[int, tuple[str, bytes]] = {}
        if self._has_fast_path and len(events) >= _ENOUGH:
            plain = [(n, one.event) for n, one in enumerate(events) if _is_plain(one.event)]
            converted = convert_batch(plain, self._fast_path_of, least=_ENOUGH)
        for number, stored in enumerate(events):
            fast = converted.get(number)
            if fast is None:
                self._apply_alone(stored, found, rejections)
                continue
            raw, headers = stored.event, self._headers(stored)
            found.append(
                Event(raw.source, raw.id, fast[0], raw.subject, raw.time, fast[1], headers)
            )
        return found, rejections

    def _fast_path_of(self, event: Event) -> JsonFastPath | None:
        try:
            return self._fast_path(self._type_of("", event))
        except RejectedValue:
            return None  # reported when it is processed alone

    def _fast_path(self, type_name: str) -> JsonFastPath | None:
        if type_name not in self._fast_paths:
            self._fast_paths[type_name] = self._make_fast_path(type_name)
        return self._fast_paths[type_name]

    def _make_fast_path(self, type_name: str) -> JsonFastPath | None:
        try:
            plan = self._transformer(type_name).plan
        except InterpretationError:
            return None
        if plan.result_type in self._concepts:
            return None
        types = self._interpretations.types_met(self._binding.interpretation)
        return JsonFastPath(plan, types, self._surroundings)

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
        """Generates now what is otherwise generated at the first event of a type."""
        mapped = [source for source, direction in self._scope.mappings if direction == "in"]
        for name in dict.fromkeys(
            each for one in mapped for each in self._scope.types.subtypes(one)
        ):
            try:
                self._transformer(name)
            except InterpretationError:
                continue  # its events are rejected with the reason
            fast_path = self._fast_path(name) if self._has_fast_path else None
            if fast_path is not None:
                fast_path.prepare_batch()

    def source_text(self) -> str:
        """The generated Python for every received type."""
        names = [source for source, direction in self._scope.mappings if direction == "in"]
        return "\n\n".join(self._transformer(name).source for name in names)

    def _apply(self, document: Document, stored: StoredEvent) -> list[Event]:
        type_name = self._type_of(document.type, stored.event)
        value = as_declared(document, self._scope.types, type_name, self._choice)
        if self._binding.concept:
            names = (KEY, TIME, *self._binding.attributes)
            value = without_undeclared(value, self._scope.types, type_name, names)
        self.feed(type_name, value)
        if type_name in self.feeds and self._scope.mapping_of(type_name, "in") is None:
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
        """Updates conversions from a value of a canonical type or of the source's own;
        raises RejectedValue.
        """
        for conversion in self.feeds.get(type_name, ()):
            self.memory.states.feed(conversion, value, self._functions)

    def _events(
        self, value: Any, result_type: str, document: Document, part: str, stored: StoredEvent
    ) -> list[Event]:
        """The readings of a concept, or the value as an event of its type."""
        raw = stored.event
        declared = field_id(document.value, self._binding.own_id) if document.id else ""
        names = (declared, part) if declared else (raw.id, document.id, part)
        id = ":".join(each for each in names if each)
        time = _time_of(document, stored)
        headers = self._headers(stored)
        type_name = value.get("@type") or result_type
        if type_name not in self._concepts:
            return [Event(raw.source, id, type_name, raw.subject, time, _ENCODE(value), headers)]
        if value.get(TIME) is not None:
            time = canonical_time(value[TIME], TIME, self._binding.zone)
        return list(self._readings(type_name, value, Event(raw.source, id, "", "", time), headers))

    def _headers(self, stored: StoredEvent) -> dict[str, str]:
        raw = stored.event
        return {
            **kept_headers(raw.headers),
            CAUSE: cause_text(raw.id),
            INTERPRETATION: self.stamp,
            "rawchannel": self._raw_channel,
            "rawposition": str(stored.position),
        }

    def _readings(
        self, concept: str, value: Mapping[str, Any], frame: Event, headers: dict[str, str]
    ) -> Iterator[Event]:
        """One reading per bound attribute with a value."""
        key = read_name(value.get(KEY, MISSING), f"{concept}.{KEY}")
        subject = subject_of(f"{concept}/", key)
        wanted = self._binding.attributes
        there = [name for name in wanted if value.get(name) is not None]
        if concept != self._binding.concept or not there:
            raise RejectedValue(
                "reading.empty",
                f"the event has no value of {self._binding.concept}: {', '.join(wanted)}",
                "map it to that concept, or name what it gives in `attributes`",
            )
        for name in there:
            kind = self._concepts[concept][name].type
            parts = reading_parts(value[name], kind, f"{concept}.{name}")
            yield Event(
                frame.source,
                frame.id if len(wanted) == 1 else f"{frame.id}/{name}",
                f"{concept}.{name}",
                subject,
                frame.time,
                _ENCODE({"key": key, "value": parts}),
                headers,
            )

    def _type_of(self, format_type: str, event: Event) -> str:
        """The type from the format, the site, the envelope, or the only received type."""
        found = received_type(
            self._scope, self._only, format_type, self._binding.speaks, event.type
        )
        if found:
            return found
        name = format_type or self._binding.speaks or event.type
        known = self._scope.types.complex_names
        error = UnknownName("type", name, known, code="type.unexpected")
        raise RejectedValue(
            error.code, error.message, error.hint or 'declare type = "..." of the source'
        )

    def _local_zone(self) -> str:
        """The zone of local times that a file's row order can disambiguate; empty if there
        is none or several.
        """
        zones = set()
        for conversion in self._scope.conversions.values():
            for how in (step.how for step in plain_steps(conversion)):
                if isinstance(how, ParseTime) and how.format not in _NOT_LOCAL and not how.fold:
                    zones.add(how.zone or self._binding.zone)
        return zones.pop() if len(zones) == 1 else ""

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
                # A parsed document is not shared unless a conversion learns from it.
                own=not self.feeds,
            )
            self._transformers[type_name] = found
        return found

    def _rejection(self, error: Exception, stored: StoredEvent) -> Rejection:
        return Rejection(*reason_of(error), stored.event, stored.position, self.stamp)


def received_type(scope: Scope, only: str, *names: str) -> str:
    """The first of the names that is a declared type, else the only received type, else empty."""
    for name in names:
        if name and scope.types.is_complex(name):
            return name
    return only


def only_type(scope: Scope) -> str:
    """The received type if there is only one."""
    mapped = [source for source, direction in scope.mappings if direction == "in"]
    return mapped[0] if len(mapped) == 1 else ""


def _is_plain(event: Event) -> bool:
    return _NOT_PLAIN.isdisjoint(event.headers) and len(event.data) <= MAX_BYTES


def _are_recorded(events: Sequence[StoredEvent]) -> bool:
    for stored in events:  # noqa: SIM110  a generator costs as much as the rest for one event
        if HISTORY in stored.event.headers:
            return True
    return False


def _time_of(document: Document, stored: StoredEvent) -> int:
    return stored.event.time if document.time is None else document.time
