"""Events that are as their types declare them, turned from bytes to bytes. [ME-8, ME-9]"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from rapport.core.event import Event
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.model.plan import Plan
from rapport.mediation.model.straight import (
    Batch,
    ReadingThrough,
    Through,
    straight_batch,
    straight_reading,
    straight_through,
)
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.types import Types

_PATIENCE = 50


class Usual:
    """Events of one type, on their way to root or from it. Where most turn out not to be usual
    (attributes that no type declares, say), nothing is tried any longer.
    """

    def __init__(
        self,
        plan: Plan,
        types: Types,
        surroundings: Surroundings,
        attribute: str = "",
        declared: ConceptAttribute | None = None,
    ) -> None:
        """`attribute` and what is declared of it, when the events are readings of root."""
        self._surroundings, self._way = surroundings, [(plan, types)]
        self._is_reading = declared is not None
        self._reading: ReadingThrough | None = None
        if declared is not None:
            self._reading = straight_reading(plan, types, attribute, declared.type, surroundings)
        self.type = plan.result_type
        self._credit = _PATIENCE

    def data_of(self, event: Event) -> bytes | None:
        """What the event's data become, or None: see to it in the plain way."""
        if self._credit <= 0:
            return None
        self._surroundings.event_time_ms = event.time
        found: bytes | None = None
        if self._reading is not None:
            found = self._reading(event.data, event.time)
        elif self._through is not None:
            found = self._through(event.data)
        self._credit = _PATIENCE if found is not None else self._credit - 1
        return found

    def data_of_all(self, events: Sequence[Event]) -> list[bytes | None] | None:
        """The same for many events in one call; None where they have to be said one by one."""
        if self._credit <= 0 or self._batch is None:
            return None
        found = self._batch([event.data for event in events])
        unusual = found.count(None)
        self._credit = _PATIENCE if unusual < len(found) else self._credit - unusual
        return found

    def prepare(self) -> None:
        """Makes now what is otherwise made for the first event and for the first batch."""
        _ = self._through
        self.prepare_batch()

    def prepare_batch(self) -> None:
        """The same, where events only ever come in batches."""
        _ = self._batch

    @cached_property
    def _through(self) -> Through | None:
        """Made when the first comes alone."""
        return None if self._is_reading else straight_through(self._way, self._surroundings)

    @cached_property
    def _batch(self) -> Batch | None:
        """Made when the first batch comes: many types are only ever said one by one."""
        if self._is_reading:
            return None
        return straight_batch(self._way, surroundings=self._surroundings)
