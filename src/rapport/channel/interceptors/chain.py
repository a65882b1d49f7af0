"""Interceptors and their chain: the protocols, the run of events through the steps, the stored
specs. [CH-10]

There are three shapes with one method each. `on_append` and `on_delivery` see every event in the
caller's own task and must be fast. `follow` is fed from the log behind a durable cursor of its own:
it handles every event, also after a crash, and no caller waits for it. A step that fails is
skipped, never the event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from rapport.channel.log.logged_channel import CURSORS, cursor_key, reader_positions
from rapport.channel.validation import READER_PREFIX, check_reader_name
from rapport.core.errors import DuplicateName, UnknownName
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.store.base import Change, Delete, Put, RecordStore, all_records, decode_record

At = Literal["append", "delivery"]
MOST_FAULTS = 5
"""Faults in a row after which an interceptor is switched off."""
_LONGEST_ERROR = 500
T = TypeVar("T")
Step = Callable[[T], Sequence[T]]
INTERCEPTED = "intercepted"
"""Channel of dropped events and switched-off interceptors. No interceptor works on it."""
INTERCEPTORS = "interceptors"
DROPPED = "rapport.channel.dropped"
SWITCHED_OFF = "rapport.channel.interceptor_off"
_SOURCE = "rapport.channel"


@runtime_checkable
class AppendInterceptor(Protocol):
    """Sees events before they are appended."""

    def on_append(self, channel: str, event: Event) -> Sequence[Event]:
        """The events to append instead: itself, others, several; none = dropped."""


@runtime_checkable
class DeliveryInterceptor(Protocol):
    """Changes or hides events on their way to a reader."""

    def on_delivery(self, channel: str, reader: str, stored: StoredEvent) -> Sequence[StoredEvent]:
        """The event to deliver instead, with the same position; None = hidden."""


@runtime_checkable
class FollowingInterceptor(Protocol):
    """Sees events once they are durable, in order; again after a crash, so it must do things under
    ids that follow from the event.
    """

    async def follow(self, channel: str, events: Sequence[StoredEvent]) -> None:
        """Does its work for these events; durable when it returns."""


class MissingInterceptor:
    """Replaces a stored interceptor that cannot be made: its plug-in is not installed, or something
    it names is gone. Around append it is off; around delivery nothing is delivered until it is made
    or removed, as it is unknown what it would hide.
    """


Interceptor = AppendInterceptor | DeliveryInterceptor | FollowingInterceptor | MissingInterceptor


class InterceptorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An interceptor as stored. New fields go at the end with a default."""

    name: str
    channels: str
    """Name or pattern."""
    kind: str
    at: At = "append"
    settings: dict[str, Any] = {}
    order: float = 0.0
    """Lower ones run first."""


class ActiveInterceptor(msgspec.Struct):
    """An interceptor in the chain, and how it fared since the start."""

    declared: InterceptorSpec
    interceptor: Interceptor
    is_kept: bool
    """Whether it outlives a restart."""
    seen: int = 0
    changed: int = 0
    dropped: int = 0
    faults: int = 0
    faults_in_a_row: int = 0
    last_error: str = ""
    is_off: bool = False
    """Switched off after too many faults in a row."""

    @property
    def holds_back(self) -> bool:
        """Whether it is a rule of delivery that cannot be made: nothing passes without it."""
        return self.declared.at == "delivery" and isinstance(self.interceptor, MissingInterceptor)


class InterceptorStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    channels: str
    kind: str
    at: At
    settings: dict[str, Any]
    is_kept: bool
    state: Literal["on", "off", "holds back"]
    """`holds back`: it cannot be made, and nothing is delivered without it."""
    seen: int
    changed: int
    dropped: int
    faults: int
    last_error: str


def interceptor_status(standing: ActiveInterceptor) -> InterceptorStatus:
    declared = msgspec.structs.asdict(standing.declared)
    del declared["order"]
    return InterceptorStatus(
        **declared,
        is_kept=standing.is_kept,
        state="holds back" if standing.holds_back else "off" if standing.is_off else "on",
        seen=standing.seen,
        changed=standing.changed,
        dropped=standing.dropped,
        faults=standing.faults,
        last_error=standing.last_error,
    )


def reader_of(name: str) -> str:
    return f"{READER_PREFIX}{name}"


class DroppedEvent(msgspec.Struct, frozen=True):
    interceptor: str
    event: Event


class ChainResult(msgspec.Struct):
    """The result of a chain: for each event the ones to append, the dropped ones, and interceptors
    that were switched off on the way.
    """

    groups: list[tuple[Event, ...]]
    drops: list[DroppedEvent]
    switched_off: list[ActiveInterceptor]


def pass_appended(
    chain: Sequence[ActiveInterceptor], channel: str, events: Sequence[Event]
) -> ChainResult:
    """Runs events through the steps in order; events that a step adds pass the later steps."""
    passed = ChainResult([], [], [])
    steps = [
        (standing, partial(standing.interceptor.on_append, channel))
        for standing in chain
        if not standing.is_off and isinstance(standing.interceptor, AppendInterceptor)
    ]
    for event in events:
        current: Sequence[Event] = (event,)
        for standing, step in steps:
            current = _step(standing, step, current, passed)
        passed.groups.append(tuple(current))
    return passed


def _step(
    standing: ActiveInterceptor, step: Step[Event], current: Sequence[Event], passed: ChainResult
) -> list[Event]:
    following: list[Event] = []
    for one in current:
        made = _attempt(standing, step, one, passed)
        following += made
        if not made:
            passed.drops.append(DroppedEvent(standing.declared.name, one))
    return following


def pass_delivered(
    chain: Sequence[ActiveInterceptor], channel: str, reader: str, events: Sequence[StoredEvent]
) -> tuple[list[StoredEvent], list[ActiveInterceptor]]:
    """The events for a reader, and interceptors that were switched off on the way."""
    passed = ChainResult([], [], [])
    current = list(events)
    for standing in chain:
        if standing.is_off or not isinstance(standing.interceptor, DeliveryInterceptor):
            continue
        step = partial(standing.interceptor.on_delivery, channel, reader)
        current = [made for one in current for made in _attempt(standing, step, one, passed)]
    return current, passed.switched_off


def _attempt(
    standing: ActiveInterceptor, step: Step[T], given: T, passed: ChainResult
) -> Sequence[T]:
    """The result of a step for one event; the event itself when it fails or is off."""
    if standing.is_off:
        return (given,)
    standing.seen += 1
    try:
        made = step(given)
        if not isinstance(made, (tuple, list)):
            made = tuple(made)
        is_changed = len(made) != 1 or made[0] is not given
        if is_changed and not all(isinstance(one, type(given)) for one in made):
            raise TypeError(f"it gives something that is no {type(given).__name__}")
    except Exception as error:  # a plug-in's fault must not cost the event
        note_fault(standing, error)
        if standing.is_off:
            passed.switched_off.append(standing)
        return (given,)
    standing.faults_in_a_row = 0
    if not made:
        standing.dropped += 1
    elif is_changed:
        standing.changed += 1
    return made


def note_fault(standing: ActiveInterceptor, error: Exception) -> None:
    """Counts a fault; too many in a row switch the interceptor off."""
    standing.faults += 1
    standing.faults_in_a_row += 1
    standing.last_error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    if standing.faults_in_a_row >= MOST_FAULTS:
        standing.is_off = True


def put_spec(declared: InterceptorSpec) -> Change:
    return Put(INTERCEPTORS, declared.name, msgspec.msgpack.encode(declared))


def load_specs(records: RecordStore) -> list[InterceptorSpec]:
    """All that are kept, in order; raises Corrupt."""
    found = [
        decode_record(
            raw, InterceptorSpec, f"the interceptor {key!r}", code="interceptor.bad_record"
        )
        for key, raw in all_records(records, INTERCEPTORS)
    ]
    return sorted(found, key=lambda one: (one.order, one.name))


def forget_changes(records: RecordStore, name: str, channels: Sequence[str]) -> list[Change]:
    """Deletions when an interceptor is removed: itself first, then its cursors."""
    reader = reader_of(name)
    changes: list[Change] = [Delete(INTERCEPTORS, name)]
    changes += [Delete(CURSORS, cursor_key(channel, reader)) for channel in channels]
    return changes


def orphans(
    records: RecordStore, channels: Sequence[str], prefix: str, known: Collection[str]
) -> list[Change]:
    """Cursors of missing interceptors, left by a crash while one was added."""
    return [
        Delete(CURSORS, cursor_key(channel, reader))
        for channel in channels
        for reader in reader_positions(records, channel)
        if reader.startswith(prefix) and reader not in known
    ]


def drop_record(channel: str, interceptor: str, event: Event, now_ms: int) -> Event:
    return make_event(
        source=_SOURCE,
        id=content_id(DROPPED, channel, interceptor, event.source, event.id),
        type=DROPPED,
        subject=channel,
        time=now_ms,
        data={
            "channel": channel,
            "interceptor": interceptor,
            "event": {"source": event.source, "id": event.id, "type": event.type},
        },
        headers={CAUSE: cause_text(event.id)},
    )


def off_record(standing: ActiveInterceptor, now_ms: int) -> Event:
    declared = standing.declared
    return make_event(
        source=_SOURCE,
        id=content_id(SWITCHED_OFF, declared.name, str(now_ms)),
        type=SWITCHED_OFF,
        subject=declared.name,
        time=now_ms,
        data={
            "interceptor": declared.name,
            "channels": declared.channels,
            "faults": standing.faults,
            "error": standing.last_error,
        },
    )


class InterceptorRoster:
    """Interceptors by name. The chain of a channel is looked up once, until something changes."""

    def __init__(self) -> None:
        self._standing: dict[str, ActiveInterceptor] = {}
        self._chains: dict[str, tuple[ActiveInterceptor, ...]] = {}
        self._changing: set[str] = set()
        """Names that are just being added or removed."""

    def __contains__(self, name: str) -> bool:
        return name in self._standing

    def __len__(self) -> int:
        return len(self._standing)

    def names(self) -> list[str]:
        return list(self._standing)

    def put(self, standing: ActiveInterceptor) -> None:
        self._standing[standing.declared.name] = standing
        self._chains.clear()

    def drop(self, name: str) -> None:
        del self._standing[name]
        self._chains.clear()

    def in_order(self) -> list[ActiveInterceptor]:
        return sorted(
            self._standing.values(), key=lambda one: (one.declared.order, one.declared.name)
        )

    def chain(self, channel: str) -> tuple[ActiveInterceptor, ...]:
        found = self._chains.get(channel)
        if found is None:
            found = tuple(
                one
                for one in self.in_order()
                if channel != INTERCEPTED and fnmatchcase(channel, one.declared.channels)
            )
            self._chains[channel] = found
        return found

    def order(self, before: str) -> float:
        """An order at the end, or right before another one; raises UnknownName."""
        orders = [one.declared.order for one in self.in_order()]
        if not before:
            return (orders[-1] if orders else 0.0) + 1.0
        if before not in self._standing:
            raise UnknownName("interceptor", before, self.names())
        place = self._standing[before].declared.order
        lower = [order for order in orders if order < place]
        return (lower[-1] + place) / 2 if lower else place - 1.0

    def check_new(self, declared: InterceptorSpec) -> None:
        """Raises InvalidInput for a name that cannot be one, DuplicateName for one in use."""
        check_reader_name(reader_of(declared.name))
        if declared.name in self._standing or declared.name in self._changing:
            raise DuplicateName(
                f"there is an interceptor named {declared.name!r}", code="interceptor.duplicate"
            )

    def known(self, name: str) -> ActiveInterceptor:
        """Raises UnknownName, also for one that is just being removed."""
        standing = self._standing.get(name)
        if standing is None or name in self._changing:
            raise UnknownName("interceptor", name, self.names())
        return standing

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """While held, no other call adds or removes this one."""
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def free_name(self, kind: str) -> str:
        taken = self._standing.keys() | self._changing
        return next(name for n in count(1) if (name := f"{kind}-{n}") not in taken)
