"""Interceptors in the records, and what they leave in the log. [CH-10]"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from rapport.channel.intercept.following import reader_of
from rapport.channel.intercept.interceptor import Declared, Standing
from rapport.channel.subscriptions import CURSORS, cursor_key, reader_positions
from rapport.core.errors import Corrupt
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.ids import content_id
from rapport.store.base import Change, Delete, Put, RecordStore

INTERCEPTED = "intercepted"
"""Channel: what interceptors kept out, and interceptors that were switched off. No interceptor
works on it.
"""
INTERCEPTORS = "interceptors"
DROPPED = "rapport.channel.dropped"
SWITCHED_OFF = "rapport.channel.interceptor_off"
_SOURCE = "rapport.channel"


def put_declared(declared: Declared) -> Change:
    """The change that keeps an interceptor."""
    return Put(INTERCEPTORS, declared.name, msgspec.msgpack.encode(declared))


def load_declared(records: RecordStore) -> list[Declared]:
    """All that are kept, in order; raises Corrupt."""
    found: list[Declared] = []
    after = ""
    while page := records.find(INTERCEPTORS, after=after):
        for key, raw in page:
            try:
                found.append(msgspec.msgpack.decode(raw, type=Declared))
            except msgspec.DecodeError as error:
                raise Corrupt(
                    f"the interceptor {key!r} cannot be read: {error}",
                    code="interceptor.bad_record",
                ) from None
        after = page[-1][0]
    return sorted(found, key=lambda one: (one.order, one.name))


def forget_changes(records: RecordStore, name: str, channels: Sequence[str]) -> list[Change]:
    """What to delete when an interceptor goes: itself first, then its places."""
    reader = reader_of(name)
    changes: list[Change] = [Delete(INTERCEPTORS, name)]
    changes += [Delete(CURSORS, cursor_key(channel, reader)) for channel in channels]
    return changes


def orphans(
    records: RecordStore, channels: Sequence[str], prefix: str, known: Collection[str]
) -> list[Change]:
    """Places of interceptors that are not there: left by a crash while one was added."""
    return [
        Delete(CURSORS, cursor_key(channel, reader))
        for channel in channels
        for reader in reader_positions(records, channel)
        if reader.startswith(prefix) and reader not in known
    ]


def drop_record(channel: str, interceptor: str, event: Event, now_ms: int) -> Event:
    """The event that says that another one was kept out, and which."""
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


def off_record(standing: Standing, now_ms: int) -> Event:
    """The event that says that an interceptor was switched off, and why."""
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
