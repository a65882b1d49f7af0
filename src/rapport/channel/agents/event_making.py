"""Events from what a program says: an Event, a mapping, or the fields. [CH-5, CH-8]"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from rapport.core.codec import encode_cloudevent
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, make_event
from rapport.kernel.chance import Ids
from rapport.kernel.clock import Clock

_FIELDS = frozenset(("source", "id", "type", "time", "subject", "data", "headers"))
_ATTRIBUTES = frozenset(("specversion", "datacontenttype", *_FIELDS)) - {"headers"}
"""Names that mean something in a CloudEvent and so cannot be headers."""


class EventMaker:
    """Fills in source, id and time where they are not said. Calls may come from any thread."""

    def __init__(self, source: str, clock: Clock, ids: Ids) -> None:
        self._source, self._clock, self._ids = source, clock, ids
        self._guard = threading.Lock()

    def make(self, event: Event | Mapping[str, Any]) -> Event:
        """An event that can be sent; raises InvalidInput for any other."""
        made = event if isinstance(event, Event) else self._from_fields(event)
        _check_sendable(made)
        return made

    def _from_fields(self, event: Mapping[str, Any]) -> Event:
        unknown = sorted(set(event) - _FIELDS)
        if unknown or "type" not in event:
            named = f"no field {unknown[0]!r}" if unknown else "no event without a type"
            raise InvalidInput(
                f"there is {named}",
                code="event.unknown_field" if unknown else "event.missing_field",
                hint=f"fields are {', '.join(sorted(_FIELDS))}",
            )
        given = {name: value for name, value in event.items() if value is not None}
        if not given.get("source") and not self._source:
            raise InvalidInput(
                "the event has no source",
                code="event.missing_field",
                hint="name it in the event, or once: Publisher(..., source='lab')",
            )
        with self._guard:
            defaults = {"source": self._source, "id": self._ids.new(), "time": self._clock.now_ms()}
        try:
            return make_event(**{**defaults, **given})
        except (TypeError, ValueError) as fault:
            raise InvalidInput(
                f"the event cannot be made: {fault}", code="event.bad_data"
            ) from None


def _check_sendable(event: Event) -> None:
    """Raises InvalidInput for what could be kept but never sent: told now, not by the node."""
    taken = sorted(_ATTRIBUTES.intersection(event.headers))
    if taken:
        raise InvalidInput(
            f"the event {event.id!r} has a header {taken[0]!r}, which is a field of every event",
            code="event.bad_header",
        )
    try:
        msgspec.json.decode(encode_cloudevent(event))
    except (ValueError, TypeError, RecursionError) as fault:
        raise InvalidInput(
            f"the event {event.id!r} cannot be written as JSON: {fault}", code="event.bad_data"
        ) from None
