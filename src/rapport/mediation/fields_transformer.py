"""Transformers of the fields form: raw event in, reading or rejection out. [ME-8, ME-11, ME-13]

The module holds the field readers that generated text calls, the compiled transformer of a source,
and the transformer for payloads that are not JSON objects. There the format gives the documents of
an event; each is processed as a separate event, and a unit in the data replaces the declared one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InterpretationError, InvalidInput
from rapport.core.event import (
    ADDED_FIELDS,
    CAUSE,
    INTERPRETATION,
    MAX_NAME,
    Event,
    StoredEvent,
    cause_text,
)
from rapport.core.times import from_epoch, from_iso, from_pattern, parse_time
from rapport.mediation.conversion.lookups import NoTables, SiteTables, numbers_finder, text_finder
from rapport.mediation.fields_compiler import ResolvedFields, generate_transformer, resolve
from rapport.mediation.formats.base import TRUTHS, Document, Format, added_fields, decimal_mark
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.interpretations.model import (
    ConversionRule,
    FieldsInterpretation,
    dotted_path,
)
from rapport.mediation.memory import SourceMemory
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.rejections import RejectedValue, Rejection, kind_of_value, reason_of
from rapport.mediation.site_functions import WorkerConversions
from rapport.mediation.source_bindings import SourceBinding, field_id
from rapport.units.coordinates import polar_to_cartesian, relative_to_absolute
from rapport.units.quantities import DecimalMark, looks_like_number, parse_number

MISSING: Any = msgspec.UNSET
"""Marks an absent field, as opposed to null."""

_DECODE = msgspec.json.Decoder().decode
_SHOWN = 60
_DIGITS = re.compile(r"-?\d{1,19}")
_OF_RAW_DATA = frozenset((DATA_TYPE, DATA_ENCODING, ADDED_FIELDS))


def decode_object(raw: Event) -> dict[str, Any]:
    """The payload as a JSON object, with the fields added by its transport."""
    try:
        data = _DECODE(raw.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RejectedValue("payload.not_json", f"the payload cannot be read: {error}") from None
    if data.__class__ is not dict:
        raise RejectedValue(
            "payload.not_an_object",
            f"the payload is {kind_of_value(data)}, not an object",
            'a payload looks like {"reader": "r7", "tag": "E200-34"}; one value alone needs an '
            'interpretation with format = "value"',
        )
    return data if ADDED_FIELDS not in raw.headers else data | added_fields(raw)


def read_number(value: Any, field: str) -> float:
    """A JSON number as a finite float; texts and booleans are rejected."""
    kind = value.__class__
    if kind is float or kind is int:
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if math.isfinite(found):
            return found
        not_finite(field)
    if kind is str:
        mark = looks_like_number(value)
        hint = f'if numbers come as text, declare decimal = "{mark}"' if mark else ""
        raise RejectedValue("value.not_a_number", f"{field} is the text {_cut(value)}", hint)
    _wrong(value, field, "value.not_a_number", "a number")


def read_number_or_text(value: Any, field: str, decimal: DecimalMark) -> float:
    """A JSON number, or text with the declared decimal mark."""
    if value.__class__ is not str:
        return read_number(value, field)
    try:
        found = parse_number(value, decimal)
    except InvalidInput as error:
        raise RejectedValue(error.code, f"{field}: {error.message}", error.hint) from None
    if math.isfinite(found):
        return found
    not_finite(field)


def read_text(value: Any, field: str) -> str:
    if value.__class__ is str:
        return value
    _wrong(value, field, "value.not_text", "text")


def read_boolean(value: Any, field: str) -> bool:
    if value is True or value is False:
        return value
    _wrong(value, field, "value.not_a_boolean", "true or false")


def read_boolean_or_text(value: Any, field: str) -> bool:
    """A JSON boolean, or text such as `true`, `off`, `1`."""
    if value.__class__ is not str:
        return read_boolean(value, field)
    found = TRUTHS.get(value.strip().lower())
    if found is None:
        raise RejectedValue("value.not_a_boolean", f"{field} is the text {_cut(value)}")
    return found


def read_name(value: Any, field: str) -> str:
    """An identifier: text, or an integer as its digits."""
    if isinstance(value, str) and value:
        return value
    if value.__class__ is int and -(10**30) < value < 10**30:
        return str(value)
    if value == "":
        raise RejectedValue("identity.empty", f"{field} is empty")
    _wrong(value, field, "identity.not_a_name", "text or a whole number")


def subject_of(concept_and_slash: str, key: str) -> str:
    """`concept/key` as a valid subject of an envelope."""
    whole = concept_and_slash + key
    if len(whole) > MAX_NAME or not whole.isprintable():
        fault = "is too long" if len(whole) > MAX_NAME else "has unprintable characters"
        raise RejectedValue("identity.bad_name", f"the identity {_cut(key)} {fault}")
    return whole


def kept_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The raw event's headers that also apply to its reading, without those about its data
    format and added fields.
    """
    if _OF_RAW_DATA.isdisjoint(headers):
        return headers
    return {name: value for name, value in headers.items() if name not in _OF_RAW_DATA}


def epoch_time(value: Any, field: str, unit_ms: float, decimal: DecimalMark | None = None) -> int:
    """Seconds or milliseconds since 1970; with `decimal` also as text."""
    found = (
        read_number(value, field) if decimal is None else read_number_or_text(value, field, decimal)
    )
    return _time(field, from_epoch, found, unit_ms)


def iso_time(value: Any, field: str, zone: str) -> int:
    return _time(field, from_iso, read_text(value, field), zone)


def pattern_time(value: Any, field: str, pattern: str, zone: str) -> int:
    return _time(field, from_pattern, read_text(value, field), pattern, zone)


def canonical_time(value: Any, field: str, zone: str = "") -> int:
    """Integer milliseconds, or ISO 8601 text with an offset or in the zone."""
    if value.__class__ is int or (value.__class__ is str and _DIGITS.fullmatch(value.strip())):
        return _time(field, parse_time, value)
    if value.__class__ is not str:
        _wrong(value, field, "time.bad_time", "integer milliseconds or ISO 8601 text")
    return _time(field, from_iso, value, zone)


def not_finite(field: str) -> NoReturn:
    """Rejects NaN, infinity, and integers too large for a float."""
    raise RejectedValue("value.not_finite", f"{field} is not a finite number")


def _time(field: str, read: Any, *arguments: Any) -> int:
    try:
        found: int = read(*arguments)
    except InvalidInput as error:
        raise RejectedValue(error.code, f"{field}: {error.message}", error.hint) from None
    return found


def _wrong(value: Any, field: str, code: str, wanted: str) -> NoReturn:
    if value is MISSING:
        raise RejectedValue("field.missing", f"the payload has no field {field}")
    raise RejectedValue(code, f"{field} is {kind_of_value(value)}, not {wanted}")


def _cut(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


_ENCODE = msgspec.json.Encoder().encode


class FieldsTransformer:
    """One generated function for one interpretation and source. `apply` and `apply_many` never
    raise: faults become rejections. They block only if `may_block`, which means plug-in
    conversions; then keep them off the event loop.
    """

    def __init__(
        self, resolved: ResolvedFields, text: str, transform: Callable[[Event, int], Event]
    ):
        self.binding = resolved.binding
        self.interpretation = resolved.interpretation
        self.stamp = resolved.interpretation.stamp()
        self.may_block = bool(resolved.interpretation.conversions)
        self.depends_on_present = False
        self.into = resolved.binding.into
        self.local_zone = local_zone(resolved)
        self._text, self._transform = text, transform

    @staticmethod
    def build(
        interpretation: FieldsInterpretation | None,
        binding: SourceBinding,
        *,
        lookups: SiteTables | None = None,
        conversions: WorkerConversions | None = None,
    ) -> FieldsTransformer:
        """Checks, generates, compiles; None: the canonical interpretation. Raises
        InterpretationError.
        """
        resolved = resolve(interpretation, binding)
        text = generate_transformer(resolved)
        names = _names(resolved, lookups or NoTables(), conversions)
        code = compile(text, f"<transformer of {resolved.interpretation.stamp()!r}>", "exec")
        exec(code, names)  # only text from fields_compiler.py
        return FieldsTransformer(resolved, text, names["transform"])

    def source_text(self) -> str:
        """The generated Python, as printed by `rapport mediate show`."""
        return self._text

    def apply(self, event: Event, position: int = 0) -> Event | Rejection:
        """The reading of one raw event; `position` is its raw position."""
        try:
            return self._transform(event, position)
        except Exception as error:  # one bad event must never stop the others
            return Rejection(*reason_of(error), event, position, self.stamp)

    def apply_many(self, events: Iterable[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        return _separated([self.apply(stored.event, stored.position) for stored in events])


def _separated(results: list[Event | Rejection]) -> tuple[list[Event], list[Rejection]]:
    return (
        [each for each in results if isinstance(each, Event)],
        [each for each in results if isinstance(each, Rejection)],
    )


def local_zone(resolved: ResolvedFields) -> str:
    """The zone of local times; empty if times carry an offset."""
    rule = resolved.interpretation.time
    if rule is None or rule.format in ("epoch_s", "epoch_ms") or "%z" in rule.format:
        return ""
    return rule.zone or resolved.binding.zone


_SHARED: Mapping[str, Any] = {
    "__builtins__": {},
    "dict": dict,
    "float": float,
    "int": int,
    "str": str,
    "Event": Event,
    "cause_text": cause_text,
    "MISSING": MISSING,
    "decode_object": decode_object,
    "encode": _ENCODE,
    "isfinite": math.isfinite,
    "kept_headers": kept_headers,
    "number": read_number,
    "number_or_text": read_number_or_text,
    "text": read_text,
    "truth": read_boolean,
    "truth_or_text": read_boolean_or_text,
    "name": read_name,
    "subject_of": subject_of,
    "iso_time": iso_time,
    "epoch_time": epoch_time,
    "pattern_time": pattern_time,
    "root_time": canonical_time,
    "not_finite": not_finite,
    "polar_to_cartesian": polar_to_cartesian,
    "relative_to_absolute": relative_to_absolute,
}


def _names(
    resolved: ResolvedFields, lookups: SiteTables, conversions: WorkerConversions | None
) -> dict[str, Any]:
    """The only names the generated function may use."""
    names = dict(_SHARED)
    names |= {"undeclared": _undeclared, "unknown_identity": _unknown_identity}
    names["wrong_type"] = _wrong_type
    interpretation = resolved.interpretation
    if interpretation.identity.lookup is not None:
        lookup = interpretation.identity.lookup
        names["find_identity"] = text_finder(lookups, lookup.table, lookup.column)
    if interpretation.origin is not None and resolved.origin_units is not None:
        origin, (length, angle) = interpretation.origin, resolved.origin_units
        columns = [(origin.x, length), (origin.y, length)]
        columns += [(origin.heading, angle)] if origin.heading else []
        names["find_origin"] = numbers_finder(lookups, origin.table, tuple(columns))
    for number, rule in enumerate(interpretation.conversions):
        names[f"convert_{number}"] = _caller(rule, conversions)
    return names


def _caller(
    rule: ConversionRule, conversions: WorkerConversions | None
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def convert(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if conversions is None:
            raise RejectedValue(
                "conversion.unavailable", f"there is no worker for the conversion {rule.call!r}"
            )
        return conversions.call(rule, values)

    return convert


def _undeclared(value: Any, field: str) -> NoReturn:
    raise RejectedValue(
        "unit.undeclared",
        f"the unit of {field} is not declared",
        plausible_unit(field, value) or 'declare unit = "..." in the interpretation',
    )


def _unknown_identity(value: Any, field: str, table: str) -> NoReturn:
    where = f"table {table!r} does not know" if table else "the device reports an unknown identity:"
    raise RejectedValue(
        "identity.unknown",
        f"{where} {field} {str(value)[:60]!r}",
        f"add the row to {table!r}, or declare `otherwise`" if table else "declare `otherwise`",
    )


def _wrong_type(found: str, expected: str) -> NoReturn:
    raise RejectedValue(
        "type.unexpected", f"the event's type is {found[:60]!r}, declared is {expected!r}"
    )


_MOST_VARIANTS = 100
"""Maximum combinations of units that the devices of one source may send."""

Build = Callable[[FieldsInterpretation], FieldsTransformer]


class FormattedTransformer:
    """Passes each document through the transformer for its units."""

    def __init__(self, given: FieldsInterpretation, build: Build, memory: SourceMemory) -> None:
        """Raises InterpretationError if the interpretation does not fit its source,
        InvalidInput for invalid format options.
        """
        self._interpretation = _reading_texts(given, decimal_mark(given.format))
        self._format: Format = get_format(given.format.name, given.format.options)
        self._build, self._memory = build, memory
        plain = build(self._interpretation)
        self._own_id = plain.binding.own_id
        self.into, self.may_block = plain.into, plain.may_block
        self.local_zone = plain.local_zone
        self.depends_on_present = plain.depends_on_present
        self.stamp = given.stamp()
        self._variants: dict[tuple[tuple[str, str], ...], FieldsTransformer] = {(): plain}

    def source_text(self) -> str:
        """The generated Python for documents without units."""
        return self._variants[()].source_text()

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Never raises."""
        return _separated([result for stored in events for result in self._apply(stored)])

    def _apply(self, stored: StoredEvent) -> list[Event | Rejection]:
        try:
            documents = self._format.read(stored.event, self._memory.format)
        except RejectedValue as fault:
            return [Rejection(*reason_of(fault), stored.event, stored.position, self.stamp)]
        return [self._apply_document(document, stored) for document in documents]

    def _apply_document(self, document: Document, stored: StoredEvent) -> Event | Rejection:
        raw = stored.event
        declared = field_id(document.value, self._own_id) if document.id else ""
        alone = msgspec.structs.replace(
            raw,
            id=declared or (f"{raw.id}:{document.id}" if document.id else raw.id),
            type=document.type or raw.type,
            time=raw.time if document.time is None else document.time,
            data=msgspec.json.encode(document.value),
        )
        try:
            transformer = self._variant(document.units)
        except RejectedValue as fault:
            return Rejection(*reason_of(fault), stored.event, stored.position, self.stamp)
        result = transformer.apply(alone, stored.position)
        if isinstance(result, Event):
            # The cause is the whole raw event, and the stamp that of the declaration; the unit from
            # the data is in the data.
            headers = result.headers | {CAUSE: cause_text(raw.id), INTERPRETATION: self.stamp}
            return msgspec.structs.replace(result, headers=headers)
        return msgspec.structs.replace(result, event=raw, interpretation=self.stamp)

    def _variant(self, units: Mapping[str, str]) -> FieldsTransformer:
        """The transformer for these units; raises Rejected if they do not fit."""
        # Units of other values make no difference.
        read = [dotted_path(rule.field) for rule in self._interpretation.values]
        key = tuple((name, units[name]) for name in read if name in units)
        found = self._variants.get(key)
        if found is None:
            if len(self._variants) > _MOST_VARIANTS:
                raise RejectedValue(
                    "unit.too_many", f"the source says more than {_MOST_VARIANTS} sets of units"
                )
            found = self._variants[key] = self._with_units(units)
        return found

    def _with_units(self, units: Mapping[str, str]) -> FieldsTransformer:
        values = tuple(
            msgspec.structs.replace(rule, unit=units.get(dotted_path(rule.field), rule.unit))
            for rule in self._interpretation.values
        )
        try:
            return self._build(msgspec.structs.replace(self._interpretation, values=values))
        except (InterpretationError, InvalidInput) as error:
            raise RejectedValue(error.code, error.message, error.hint) from None


def _reading_texts(
    given: FieldsInterpretation, decimal: DecimalMark | None
) -> FieldsInterpretation:
    """In text formats, numbers are texts with the format's decimal mark unless a value declares
    its own.
    """
    if decimal is None:
        return given
    values = tuple(
        msgspec.structs.replace(rule, decimal=rule.decimal or decimal) for rule in given.values
    )
    return msgspec.structs.replace(given, values=values)
