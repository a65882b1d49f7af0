"""Memory of a source: what formats and stateful conversions keep from event to event. [ME-4]

It is stored as one record per entry, so that saving costs what changed. Conversions learn moving
origins, exchange rates and states of site functions from events: a state and an event give the next
state; an unusable event changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Literal, overload

import msgspec

from rapport.core.errors import Corrupt
from rapport.core.event import content_id
from rapport.mediation.conversion.conversions import Conversion, Stateful, plain_steps
from rapport.mediation.conversion.currencies import ChangeCurrency, RateEvents
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.conversion.notations import whole_number
from rapport.mediation.conversion.places import MovingOrigin, ToAbsolute, ToRelative
from rapport.mediation.rejections import RejectedValue, finite, number, text
from rapport.store.base import Change, Delete, Put, RecordStore
from rapport.units.quantities import converter

_NOTHING = object()


class TrackedDict(dict[str, Any]):
    """A dict of JSON that tracks changed keys, in the order of their last change. Values must
    be replaced, not mutated in place: a mutation is not noticed.
    """

    def __init__(self, given: Mapping[str, Any] | None = None, *, is_saved: bool = False) -> None:
        super().__init__(given or {})
        self._changed: dict[str, None] = {} if is_saved else dict.fromkeys(self)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.note(key)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.note(key)

    @overload
    def pop(self, key: str) -> Any: ...
    @overload
    def pop(self, key: str, default: Any) -> Any: ...
    def pop(self, key: str, default: Any = _NOTHING) -> Any:
        if key in self:
            self.note(key)
            return super().pop(key)
        if default is _NOTHING:
            raise KeyError(key)
        return default

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> TrackedDict:
        return TrackedDict({key: deepcopy(value, memo) for key, value in self.items()})

    def note(self, key: str) -> None:
        """Marks the key as changed or removed."""
        self._changed.pop(key, None)
        self._changed[key] = None

    def take_changed(self) -> list[str]:
        """Returns and clears the changed keys, including removed ones."""
        changed, self._changed = self._changed, {}
        return list(changed)


Function = Callable[..., Any]
Functions = Mapping[str, Function]
"""Site functions by the names that `Call` and `Stateful` use."""


def name_of_state(conversion: Conversion) -> str:
    """The storage key of a state: the conversion's name and its feeds, so that a conversion of
    another kind under the same name does not reuse it. Class names of conversion kinds are part
    of stored keys.

    >>> name_of_state(Conversion("count", ("text",), ("number",), Stateful("count_texts")))
    'count'
    """

    if isinstance(conversion.how, Stateful):
        return conversion.name
    kind = type(conversion.how).__name__
    return "\x1f".join((conversion.name, kind, *(feed for feed, _ in feed_types(conversion))))


class ConversionMemory:
    """The states of conversions by name, as JSON. States of built-in conversions are tracked
    key by key; the state of a site function is replaced as a whole.
    """

    def __init__(self, states: Mapping[str, Any] | None = None) -> None:
        self.states = states if isinstance(states, TrackedDict) else TrackedDict(states)
        self._names: dict[int, tuple[Conversion, str]] = {}
        """Keyed by identity, since the lookup happens for every event."""

    def state_of(self, conversion: Conversion) -> Any:
        """The present state; initially empty or the declared initial state of a site
        function.
        """
        name = self._name(conversion)
        if name not in self.states:
            self.states[name] = self._first(conversion)
        return self.states[name]

    def _name(self, conversion: Conversion) -> str:
        known = self._names.get(id(conversion))
        if known is None or known[0] is not conversion:
            known = self._names[id(conversion)] = conversion, name_of_state(conversion)
        return known[1]

    def _first(self, conversion: Conversion) -> Any:
        how = conversion.how
        if isinstance(how, Stateful):
            return msgspec.json.decode(how.initial)
        # Earlier versions stored built-in states under the bare name.
        before = self.states.get(conversion.name)
        return (
            self.states.pop(conversion.name) if isinstance(before, TrackedDict) else TrackedDict()
        )

    def feed(self, conversion: Conversion, event: Any, functions: Functions | None = None) -> bool:
        """Updates the state from an event of a type the conversion is fed by. Returns False
        if the event is irrelevant or outdated. Raises Rejected for an unusable event; the
        state is then unchanged.
        """

        found = next_state(conversion, self.state_of(conversion), event, functions or {})
        if found is None:
            return False
        name = self._name(conversion)
        if found[0] is not self.states[name] or isinstance(conversion.how, Stateful):
            self.states[name] = found[0]
        return True


MEMORY_TABLE = "mediation.memory"
PARTS_TABLE = "mediation.memory.parts"
_PAGE = 1_000
_MemoryPartOf = Literal["format", "states"]


class _MemoryHead(msgspec.Struct, omit_defaults=True):
    """The head record of a source's memory; `content` is the former format with everything in
    one record.
    """

    position: int
    changes: int = 0
    content: _LegacyContent | None = None


class _LegacyContent(msgspec.Struct):
    format: dict[str, Any]
    states: dict[str, Any]


class _MemoryPart(msgspec.Struct, array_like=True):
    """One entry: `of[name]`, or `of[name][key]` of a map stored by keys. `number` orders the
    changes; an entry for a whole name (a value or the start of a map) supersedes earlier
    entries of that name.
    """

    of: _MemoryPartOf
    name: str
    key: str | None
    number: int
    value: Any = None
    is_map: bool = False


class MemoryChanges(msgspec.Struct, frozen=True):
    """Records to write together, and the keys to mark again if the write fails."""

    records: list[Change]
    taken: list[tuple[TrackedDict, str]]

    def failed(self) -> None:
        """Marks the keys as changed again, so that they are saved with the next change."""
        for changed, key in self.taken:
            changed.note(key)


_READ_SAVED = msgspec.json.Decoder(_MemoryHead)
_READ_PART = msgspec.json.Decoder(_MemoryPart)


class SourceMemory:
    """The memory of a format and of stateful conversions, as JSON. `position` is the raw
    position up to which events are included. It is saved after their readings are stored and
    before the reader's position: events up to it must not be processed again.
    """

    def __init__(self, source: str = "") -> None:
        self.position = 0
        self.format: dict[str, Any] = TrackedDict()
        self.states = ConversionMemory()
        self._source, self._changes = source, 0

    def save(self, position: int) -> MemoryChanges | None:
        """Returns the records to write after everything up to `position` was processed;
        None without changes. Costs what changed.
        """
        records: list[Change] = []
        taken: list[tuple[TrackedDict, str]] = []
        for of, part in self._parts_by_name():
            for name in part.take_changed():
                taken.append((part, name))
                records.append(self._part(part, of, name, None))
                value = part.get(name)
                if isinstance(value, TrackedDict):
                    for key in list(value):  # a new map: save all of it
                        value.note(key)
            for name, value in list(part.items()):
                for key in value.take_changed() if isinstance(value, TrackedDict) else ():
                    taken.append((value, key))
                    records.append(self._part(value, of, name, key))
        if not records:
            return None
        self.position = position
        head = msgspec.json.encode(_MemoryHead(position, self._changes))
        return MemoryChanges([*records, Put(MEMORY_TABLE, self._source, head)], taken)

    @staticmethod
    def restore(records: RecordStore | None, source: str) -> SourceMemory:
        """Restores the memory from records, empty without any; raises Corrupt. Costs what
        is stored.
        """
        memory = SourceMemory(source)
        head = records.get(MEMORY_TABLE, source) if records is not None else None
        if head is None or records is None:
            return memory
        try:
            saved = _READ_SAVED.decode(head)
            parts = [_READ_PART.decode(one) for one in _parts(records, source)]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"the memory of a source cannot be read: {error}",
                code="mediation.bad_memory",
            ) from None
        memory.position, memory._changes = saved.position, saved.changes
        memory._take(saved.content, parts)
        return memory

    def _take(self, content: _LegacyContent | None, parts: list[_MemoryPart]) -> None:
        if content is not None:
            self.format = TrackedDict(_as_maps(content.format))
            self.states = ConversionMemory(TrackedDict(_as_maps(content.states)))
            return
        found: dict[_MemoryPartOf, dict[str, Any]] = {"format": {}, "states": {}}
        for part in sorted(parts, key=lambda each: each.number):
            known = found[part.of]
            if part.key is None:
                known[part.name] = TrackedDict() if part.is_map else part.value
            elif isinstance(known.get(part.name), TrackedDict):
                known[part.name][part.key] = part.value
        for values in found.values():
            for value in values.values():
                if isinstance(value, TrackedDict):
                    value.take_changed()
        self.format = TrackedDict(found["format"], is_saved=True)
        self.states = ConversionMemory(TrackedDict(found["states"], is_saved=True))

    def _parts_by_name(self) -> list[tuple[_MemoryPartOf, TrackedDict]]:
        states = self.states.states
        assert isinstance(self.format, TrackedDict)
        return [("format", self.format), ("states", states)]

    def _part(self, kept: TrackedDict, of: _MemoryPartOf, name: str, key: str | None) -> Change:
        """The record of one entry, or its deletion."""
        own, place = self._key(of, name, key), name if key is None else key
        if place not in kept:
            return Delete(PARTS_TABLE, own)
        self._changes += 1
        value = kept[place]
        is_map = key is None and isinstance(value, TrackedDict)
        part = _MemoryPart(of, name, key, self._changes, None if is_map else value, is_map)
        return Put(PARTS_TABLE, own, msgspec.json.encode(part))

    def _key(self, of: _MemoryPartOf, name: str, key: str | None) -> str:
        """A short key for any name; source names contain no line break."""
        return f"{self._source}\n{content_id(of, name, *(() if key is None else (key,)))}"


def _as_maps(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: TrackedDict(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


def _parts(records: RecordStore, source: str) -> list[bytes]:
    found: list[bytes] = []
    prefix, after = f"{source}\n", ""
    while page := records.find(PARTS_TABLE, prefix=prefix, after=after, limit=_PAGE):
        found += [value for _key, value in page]
        after = page[-1][0]
    return found


MOST_ORIGINS = 100_000
"""Maximum number of moving origins; the least recently updated is dropped."""
MOST_RATES = 1_000
"""Maximum number of rates per currency; the oldest is dropped."""


def feed_types(conversion: Conversion) -> Iterator[tuple[str, Conversion]]:
    """The event types that a conversion, or a step of its chain, learns from."""
    for step in plain_steps(conversion):
        how = step.how
        if isinstance(how, Stateful) and how.feed:
            yield how.feed, step
        elif isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, MovingOrigin):
            yield how.origin.feed, step
        elif isinstance(how, ChangeCurrency) and isinstance(how.rates, RateEvents):
            yield how.rates.feed, step


def remembers(conversion: Conversion) -> bool:
    """Whether its result depends on earlier events, so that events must be processed in order."""
    is_stateful = any(isinstance(step.how, Stateful) for step in plain_steps(conversion))
    return is_stateful or any(feed_types(conversion))


def depends_on_present(conversion: Conversion) -> bool:
    """Whether its result depends on the time of the call and cannot be reproduced later.
    Exchange rates are stored with their times and can.
    """
    return any(
        isinstance(how.origin, MovingOrigin)
        if isinstance(how, (ToAbsolute, ToRelative))
        else isinstance(how, (Stateful, ContextLookup))
        for how in (step.how for step in plain_steps(conversion))
    )


def next_state(
    conversion: Conversion, state: Any, event: Any, functions: Functions
) -> tuple[Any] | None:
    """The state after an event; None: unchanged. Raises Rejected."""
    how = conversion.how
    if isinstance(how, Stateful):
        return (_updated(conversion.name, how, state, event, functions),)
    if isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, MovingOrigin):
        return _moved(conversion.name, how.origin, state, event)
    if isinstance(how, ChangeCurrency) and isinstance(how.rates, RateEvents):
        return _rated(conversion.name, how.rates, state, event)
    return None


def _updated(name: str, how: Stateful, state: Any, event: Any, functions: Functions) -> Any:
    update = functions.get(how.update)
    if update is None:
        raise RejectedValue(
            "conversion.unavailable", f"{name}: there is no function {how.update[:60]!r}"
        )
    try:
        return update(state, event)
    except RejectedValue:
        raise
    except Exception as error:
        message = f"{name}: {type(error).__name__}: {error}"[:200]
        raise RejectedValue("conversion.raised", message) from error


def _moved(name: str, origin: MovingOrigin, state: Any, event: Any) -> tuple[Any] | None:
    x, y = value_at(event, origin.x), value_at(event, origin.y)
    if x is None or y is None:
        return None
    key = text(value_at(event, origin.feed_key), name) if origin.feed_key else ""
    time = value_at(event, origin.time) if origin.time else None
    time_ms = None if time is None else whole_number(time, name)
    known = state.get(key)
    if known is not None and time_ms is not None and time_ms < (known[3] or time_ms):
        return None
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    position = [finite(length.apply(number(each, name)), name) for each in (x, y)]
    heading = value_at(event, origin.heading) if origin.heading else None
    if heading is not None:
        looks = finite(turn.apply(number(heading, name)), name)
    else:
        looks = known[2] if known else 0.0
    state.pop(key, None)  # least recently updated first
    state[key] = [*position, looks, time_ms]
    if len(state) > MOST_ORIGINS:
        del state[next(iter(state))]
    return (state,)


def _rated(name: str, rates: RateEvents, state: Any, event: Any) -> tuple[Any] | None:
    currency, rate = value_at(event, rates.currency), value_at(event, rates.rate)
    began = value_at(event, rates.time)
    if currency is None or rate is None or began is None:
        return None
    value, time_ms = number(rate, name), whole_number(began, name)
    if value <= 0:
        raise RejectedValue(
            "value.out_of_range", f"{name}: {value} is no rate", "rates are above zero"
        )
    course = [entry for entry in state.get(text(currency, name), ()) if entry[0] != time_ms]
    course.insert(bisect_right(course, time_ms, key=lambda entry: entry[0]), [time_ms, value])
    state[currency] = course[-MOST_RATES:]
    return (state,)


def value_at(event: Any, path: str) -> Any:
    """The value of an attribute or of a nested one, `position.x`; None if absent."""
    if not isinstance(event, dict):
        return None
    if path in event:
        return event[path]
    first, _, rest = path.partition(".")
    return value_at(event.get(first), rest) if rest else None
