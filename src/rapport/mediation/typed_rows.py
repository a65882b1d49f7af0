"""What a typed source says in JSON, as its types declare it: many events in one call, from bytes to
bytes. [ME-8]

The same values as one by one, for a third of the cost. Whatever is unusual is left to who takes
events one by one, with all that is to be said about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InterpretationError
from rapport.core.event import ADDED_FIELDS, Event, StoredEvent
from rapport.mediation.formats.base import MAX_BYTES
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.surroundings import Surroundings
from rapport.mediation.model.transformer import Transformer
from rapport.mediation.model.types import Types
from rapport.mediation.rejection import Rejected
from rapport.mediation.usual import Usual

_NOT_PLAIN = frozenset((DATA_TYPE, DATA_ENCODING, ADDED_FIELDS))
_ENOUGH = 4
"""Fewer events of one type cost as much together as one by one."""

Turned = tuple[str, bytes]
"""Type and data of an event of root."""


def are_rows_read(choice: FormatChoice) -> bool:
    """Whether events in this format are the values that types speak of, one each."""
    return choice.name == "json" and not choice.options


class TypedRows:
    """The types of one source, each looked at when its first row comes."""

    def __init__(
        self,
        types: Types,
        surroundings: Surroundings,
        type_of: Callable[[Event], str],
        transformer: Callable[[str], Transformer],
        is_wanted: Callable[[Transformer], bool],
    ) -> None:
        """`type_of` and `transformer` may raise what is then said of each event by itself;
        `is_wanted`: whether what a transformer gives stands in a channel as it is.
        """
        self._types, self._surroundings = types, surroundings
        self._type_of, self._transformer, self._is_wanted = type_of, transformer, is_wanted
        self._usual: dict[str, Usual | None] = {}

    def prepare(self, type_name: str) -> None:
        """Makes now what is otherwise made for the first row of a type."""
        usual = self._of_type(type_name)
        if usual is not None:
            usual.prepare_batch()

    def turned(self, events: Sequence[StoredEvent]) -> list[Turned | None]:
        """What each event becomes; None: see to it by itself."""
        found: list[Turned | None] = [None] * len(events)
        for row in self._rows(events):
            usual = self._usual_of(events[row[0]].event)
            if usual is None:
                continue
            data = usual.data_of_all([events[number].event for number in row])
            for number, each in zip(row, data or (), strict=data is not None):
                found[number] = None if each is None else (usual.type, each)
        return found

    def _rows(self, events: Sequence[StoredEvent]) -> list[list[int]]:
        """The numbers of events of one type and in plain JSON."""
        rows: dict[str, list[int]] = {}
        for number, stored in enumerate(events):
            event = stored.event
            headers = event.headers
            if not _NOT_PLAIN.isdisjoint(headers) or len(event.data) > MAX_BYTES:
                continue
            row = rows.get(event.type)
            if row is None:
                row = rows[event.type] = []
            row.append(number)
        return [row for row in rows.values() if len(row) >= _ENOUGH]

    def _usual_of(self, event: Event) -> Usual | None:
        try:
            return self._of_type(self._type_of(event))
        except Rejected:
            return None

    def _of_type(self, type_name: str) -> Usual | None:
        if type_name not in self._usual:
            self._usual[type_name] = self._made(type_name)
        return self._usual[type_name]

    def _made(self, type_name: str) -> Usual | None:
        try:
            transformer = self._transformer(type_name)
        except InterpretationError:
            return None
        if not self._is_wanted(transformer):
            return None
        return Usual(transformer.plan, self._types, self._surroundings)
