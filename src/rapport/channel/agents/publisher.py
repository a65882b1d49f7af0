"""The publisher: accepts events at once, delivers them when it can. [CH-5, CH-8]"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rapport.channel.agents.connection import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    TIMEOUT_SECONDS,
    Reason,
)
from rapport.channel.agents.courier import MOST_EVENTS, Activity, Courier, SendWindow, SinkEndpoint
from rapport.channel.agents.outbox import SEGMENT_BYTES, Outbox, RejectedEvent
from rapport.channel.validation import LARGEST_DATA_BYTES, check_channel_name, check_events
from rapport.core.codec import encode_cloudevent
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.kernel.clock import Chance, Clock, Ids, SystemClock
from rapport.kernel.signing_keys import SigningKey, sign_event

_FIELDS = frozenset(("source", "id", "type", "time", "subject", "data", "headers"))
_ATTRIBUTES = frozenset(("specversion", "datacontenttype", *_FIELDS)) - {"headers"}
"""Names that mean something in a CloudEvent and so cannot be headers."""


class EventMaker:
    """Makes events from an Event, a mapping or fields; fills in missing source, id and time. Calls
    may come from any thread.
    """

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
    """Raises InvalidInput for an event that could be stored but never sent."""
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


class PublisherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit a program beside a node as well as a remote one."""

    most_events: int = MOST_EVENTS
    """Events per request. More is faster on slow lines; a lost answer repeats all of them."""
    first_pause_ms: int = FIRST_PAUSE_MS
    longest_pause_ms: int = LONGEST_PAUSE_MS
    """The pause doubles after each failure, less up to a half by chance."""
    request_seconds: float = TIMEOUT_SECONDS
    """How long a request may go without an answer."""
    segment_bytes: int = SEGMENT_BYTES
    """Delivered events leave the disk in pieces of this size."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a publisher. `accepted` counts all events ever; `settled` those accepted or
    rejected by the sink; `pending` the waiting ones.
    """

    publisher: str
    epoch: int
    accepted: int
    settled: int
    pending: int
    rejected: int
    activity: Activity
    trouble: Reason | None
    next_try_in_ms: int


class Publisher:
    """Sends events to a channel of a node, through an outbox on disk.

    `publish` returns when the event is in the outbox: it waits for the disk, never for the network,
    and network errors raise nothing. Delivery is in order, and each event is stored once, whatever
    ends or fails in between; an outbox left behind is delivered by the next publisher on it, or by
    `rapport outbox drain`.

    Calls may come from any thread. Opening raises StoreUnavailable (`outbox.locked`: in use by
    another process) and InvalidInput.
    """

    def __init__(
        self,
        outbox: str | Path,
        url: str,
        *,
        channel: str,
        token: str = "",
        source: str = "",
        settings: PublisherSettings | None = None,
        clock: Clock | None = None,
        sign_with: str | Path | None = None,
    ) -> None:
        """`sign_with`: a file with a private key (PEM, Ed25519); events are then signed before they
        are stored, so that holders of the public key can verify their origin.
        """
        chosen = settings or PublisherSettings()
        check_channel_name(channel)
        endpoint = SinkEndpoint(url, channel, token, timeout_seconds=chosen.request_seconds)
        self._clock: Clock = clock or SystemClock()
        chance = Chance.from_machine()
        ids = Ids(self._clock, chance)
        self._maker = EventMaker(source, self._clock, ids)
        self._key = SigningKey.load(Path(sign_with)) if sign_with is not None else None
        self._closed = self._done = False
        self._outbox = Outbox(
            Path(outbox),
            self._clock,
            new_name=ids.new(),
            url=url,
            channel=channel,
            segment_bytes=chosen.segment_bytes,
        )
        make_window = partial(
            SendWindow,
            most_events=chosen.most_events,
            first_pause_ms=chosen.first_pause_ms,
            longest_pause_ms=chosen.longest_pause_ms,
        )
        self._courier = Courier(self._outbox, endpoint, self._clock, chance, make_window)

    def publish(self, event: Event | Mapping[str, Any] | None = None, /, **fields: Any) -> str:
        """Accepts one event and returns its id; it survives the end of the process from then on.

        Takes an Event, a mapping, or the fields: type, data, and optionally source, subject, id,
        time (ms UTC), headers. Costs one disk sync, shared by calls of several threads;
        `publish_many` shares it too. Raises InvalidInput for a bad event, StoreUnavailable for a
        full disk.
        """
        return self.publish_many([fields if event is None else event])[0]

    def publish_many(self, events: Iterable[Event | Mapping[str, Any]]) -> list[str]:
        """Accepts events, all or none, with one disk sync; returns their ids."""
        made = [self._signed(self._maker.make(event)) for event in events]
        check_events(made, LARGEST_DATA_BYTES)
        if self._closed:
            raise StoreUnavailable("the publisher is closed", code="outbox.closed")
        self._outbox.add(made)
        self._courier.wake()
        return [event.id for event in made]

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything accepted so far is settled; False when the seconds are over or the
        delivery has stopped.
        """
        return self._courier.wait_settled(self._outbox.last, timeout)

    def resume(self, token: str | None = None) -> None:
        """Retries at once, after a stop or in a pause; with another token if one is given."""
        self._courier.resume(token)

    def status(self) -> Status:
        delivery, last, settled = self._courier.delivery(), self._outbox.last, self._outbox.settled
        return Status(
            publisher=self._outbox.identity.publisher,
            epoch=self._outbox.identity.epoch,
            accepted=last,
            settled=settled,
            pending=max(last - settled, 0),
            rejected=self._outbox.rejected_count,
            activity=delivery.activity,
            trouble=delivery.trouble,
            next_try_in_ms=delivery.next_try_in_ms,
        )

    def rejected(self) -> list[RejectedEvent]:
        """Events the node will not take, with the reason; they are kept."""
        return self._outbox.rejected()

    def close(self, wait: float | None = 0.0) -> bool:
        """Ends; first waits up to so many seconds (None: for ever) for the delivery. Returns
        whether everything is settled; the rest stays in the outbox. A second call is no error.
        """
        if self._closed or self._outbox.is_inherited:
            return self._done
        self.flush(wait)
        self._closed = True
        self._courier.end()
        self._outbox.close()
        self._done = self._outbox.settled >= self._outbox.last
        return self._done

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.close(wait=0.0 if kind else 5.0)

    def _signed(self, event: Event) -> Event:
        return event if self._key is None else sign_event(event, self._key)
