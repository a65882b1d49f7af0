"""Rejections as events: the reason and the raw form, to be released later. [ME-11, ME-16]"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from rapport.core.codec import to_cloudevent
from rapport.core.event import CAUSE, INTERPRETATION, Event, cause_text
from rapport.core.ids import content_id
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.rejection import Rejection

QUARANTINE = "quarantine"
REJECTED_TYPE = "rapport.mediation.rejected"
SOURCE = "rapport.mediation"
LARGEST_COPY = 64 * 1024
"""Larger payloads are not copied; they stay where `rawchannel` and `rawposition` say."""


def rejection_event(rejection: Rejection, source: str, *, copy_raw: bool = True) -> Event:
    """The event that `quarantine` keeps; the same rejection always has the same id.

    Without `copy_raw` it only says where the raw event lies: for one too large to be copied.
    """
    raw, channel = rejection.event, RAW_PREFIX + source
    data = {
        "reason": rejection.code,
        "message": rejection.message,
        "hint": rejection.hint,
        "source": source,
        "interpretation": rejection.interpretation,
        "raw": _raw_form(raw) if copy_raw else {"source": raw.source, "id": raw.id},
    }
    headers = {
        CAUSE: cause_text(raw.id),
        "rawchannel": channel,
        "rawposition": str(rejection.position),
    }
    if rejection.interpretation:
        headers[INTERPRETATION] = rejection.interpretation
    return Event(
        source=SOURCE,
        id=content_id(channel, raw.source, raw.id, rejection.interpretation),
        type=REJECTED_TYPE,
        subject=f"source/{source}",
        time=raw.time,
        data=msgspec.json.encode(data),
        headers=headers,
    )


def _raw_form(raw: Event) -> dict[str, Any]:
    """The raw event as a CloudEvent; bytes that are not JSON go in base64, as CloudEvents says."""
    members = to_cloudevent(raw)
    if len(raw.data) > LARGEST_COPY:
        del members["data"], members["datacontenttype"]
        return members | {"datatoolarge": len(raw.data)}
    try:
        msgspec.json.decode(raw.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        del members["data"], members["datacontenttype"]
        return members | {"data_base64": base64.b64encode(raw.data).decode()}
    return members
