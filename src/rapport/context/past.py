"""What was told in the past: read from the channel `context`. [CX-8]"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import BACKWARDS_MS, position_before
from rapport.context.keeping import CHANNEL, IDENTITY
from rapport.core.context_record import CONTEXT_RECORD, ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent, as_subject
from rapport.kernel.telemetry import get_logger

_AT_ONCE = 2_000

_log = get_logger(__name__)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """An update of the past: what was told, when, and by whom."""

    record: ContextRecord
    told: int
    """When the broker got it, ms UTC."""
    identity: str
    position: int


async def history(
    channels: Channels,
    entity: EntityRef,
    scope: str = "",
    *,
    since: int | None = None,
    until: int | None = None,
) -> AsyncIterator[Past]:
    """The updates of an entity (and scope, if one is given) that were told from `since` until
    before `until`, in the order of the log. The beginning is searched, the rest is read through.
    What cannot be read is left out, and logged.
    """
    channel, subject = channels.channel(CHANNEL), as_subject(str(entity))
    position = 0 if since is None else await position_before(channel, since)
    while batch := await channel.read_after(position, limit=_AT_ONCE):
        for stored in batch:
            if until is not None and stored.received >= until:
                continue
            if stored.event.subject != subject or stored.received < (since or 0):
                continue
            past = _past(stored)
            if past is None or past.record.entity != entity:
                continue
            if scope in ("", past.record.scope):
                yield past
        position = batch[-1].position
        if until is not None and batch[-1].received >= until + BACKWARDS_MS:
            return


def _past(stored: StoredEvent) -> Past | None:
    if stored.event.type != CONTEXT_RECORD:
        return None
    try:
        record = ContextRecord.from_event(stored.event)
    except InvalidInput as error:
        _log.warning("not a context record", position=stored.position, error=str(error))
        return None
    return Past(
        record=record,
        told=stored.received,
        identity=stored.event.headers.get(IDENTITY, ""),
        position=stored.position,
    )
