"""A source of the fields form whose events are not JSON objects. [ME-11, ME-13]

Its format says what documents an event holds; each is then read as if it had come alone. A unit
that a document says of a value counts as the declared one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput
from rapport.core.event import INTERPRETATION, Event, StoredEvent
from rapport.mediation.as_declared import decimal_mark
from rapport.mediation.formats.base import Document, Format
from rapport.mediation.formats.named import format_named
from rapport.mediation.interpretation import Interpretation, shown
from rapport.mediation.memory import SourceMemory
from rapport.mediation.raw_reading import own_id
from rapport.mediation.rejection import Rejected, Rejection
from rapport.mediation.transformer import Transformer
from rapport.units.quantities import DecimalMark

_MOST_VARIANTS = 100
"""As many combinations of units as one source's devices may say."""

Build = Callable[[Interpretation], Transformer]


class FormattedTransformer:
    """The documents of every event through the transformer that their units call for."""

    def __init__(self, given: Interpretation, build: Build, memory: SourceMemory) -> None:
        """Raises InterpretationError when the interpretation does not fit its source, InvalidInput
        when its format cannot be as it says.
        """
        self._interpretation = _reading_texts(given, decimal_mark(given.format))
        self._format: Format = format_named(given.format.name, given.format.options)
        self._build, self._memory = build, memory
        plain = build(self._interpretation)
        self._own_id = plain.binding.own_id
        self.into, self.may_block = plain.into, plain.may_block
        self.local_zone = plain.local_zone
        self.knows_only_now = plain.knows_only_now
        self.stamp = given.stamp()
        self._variants: dict[tuple[tuple[str, str], ...], Transformer] = {(): plain}

    def source_text(self) -> str:
        """The generated Python for documents that say no units."""
        return self._variants[()].source_text()

    def apply_many(self, events: Sequence[StoredEvent]) -> tuple[list[Event], list[Rejection]]:
        """Readings and rejections of a batch, each in order; never raises."""
        readings: list[Event] = []
        rejections: list[Rejection] = []
        for stored in events:
            for result in self._apply(stored):
                if isinstance(result, Event):
                    readings.append(result)
                else:
                    rejections.append(result)
        return readings, rejections

    def _apply(self, stored: StoredEvent) -> list[Event | Rejection]:
        try:
            documents = self._format.read(stored.event, self._memory.format)
        except Rejected as fault:
            return [self._rejection(fault, stored)]
        return [self._apply_document(document, stored) for document in documents]

    def _apply_document(self, document: Document, stored: StoredEvent) -> Event | Rejection:
        raw = stored.event
        declared = own_id(document, self._own_id) if document.id else ""
        alone = msgspec.structs.replace(
            raw,
            id=declared or (f"{raw.id}:{document.id}" if document.id else raw.id),
            type=document.type or raw.type,
            time=raw.time if document.time is None else document.time,
            data=msgspec.json.encode(document.value),
        )
        try:
            transformer = self._variant(document.units)
        except Rejected as fault:
            return self._rejection(fault, stored)
        result = transformer.apply(alone, stored.position)
        if isinstance(result, Event):
            # What was declared is named; the unit that the data said stands in the data.
            headers = result.headers | {INTERPRETATION: self.stamp}
            return msgspec.structs.replace(result, headers=headers)
        return msgspec.structs.replace(result, event=raw, interpretation=self.stamp)

    def _variant(self, units: Mapping[str, str]) -> Transformer:
        """The transformer for these units; raises Rejected when they do not fit."""
        # What else a device measures makes no difference here.
        read = [shown(rule.field) for rule in self._interpretation.values]
        key = tuple((name, units[name]) for name in read if name in units)
        found = self._variants.get(key)
        if found is None:
            if len(self._variants) > _MOST_VARIANTS:
                raise Rejected(
                    "unit.too_many", f"the source says more than {_MOST_VARIANTS} sets of units"
                )
            found = self._variants[key] = self._with_units(units)
        return found

    def _with_units(self, units: Mapping[str, str]) -> Transformer:
        values = tuple(
            msgspec.structs.replace(rule, unit=units.get(shown(rule.field), rule.unit))
            for rule in self._interpretation.values
        )
        try:
            return self._build(msgspec.structs.replace(self._interpretation, values=values))
        except (InterpretationError, InvalidInput) as error:
            raise Rejected(error.code, error.message, error.hint) from None

    def _rejection(self, fault: Rejected, stored: StoredEvent) -> Rejection:
        return Rejection(
            fault.code,
            fault.message[:500],
            fault.hint[:500],
            stored.event,
            stored.position,
            self.stamp,
        )


def _reading_texts(given: Interpretation, decimal: DecimalMark | None) -> Interpretation:
    """Where the format knows only texts, numbers are texts unless a value says otherwise."""
    if decimal is None:
        return given
    values = tuple(
        msgspec.structs.replace(rule, decimal=rule.decimal or decimal) for rule in given.values
    )
    return msgspec.structs.replace(given, values=values)
