"""Rejections as events of `quarantine`: the reason and a copy of the raw event. [ME-11, ME-16]"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from rapport.core.codec import to_cloudevent
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, INTERPRETATION, Event, cause_text, content_id
from rapport.core.times import parse_time
from rapport.mediation.rejections import Rejection
from rapport.mediation.source_bindings import RAW_PREFIX

QUARANTINE = "quarantine"
REJECTED_TYPE = "rapport.mediation.rejected"
SOURCE = "rapport.mediation"
LARGEST_COPY = 64 * 1024
"""Larger payloads are not copied; `rawchannel` and `rawposition` locate them."""
_MEMBERS = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype")


def rejection_event(
    rejection: Rejection,
    source: str,
    *,
    copy_raw: bool = True,
    attempt: int = 1,
    release: str = "",
) -> Event:
    """The event for `quarantine`; the same rejection always has the same id. Without `copy_raw`
    it only locates the raw event, for one that is too large. `attempt` counts the rejections,
    later ones by a `release`.
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
        CAUSE: cause_text(raw.id, release) if release else cause_text(raw.id),
        "rawchannel": channel,
        "rawposition": str(rejection.position),
    }
    if rejection.interpretation:
        headers[INTERPRETATION] = rejection.interpretation
    names = (channel, raw.source, raw.id, rejection.interpretation)
    return Event(
        source=SOURCE,
        id=content_id(*names, str(attempt)) if attempt > 1 else content_id(*names),
        type=REJECTED_TYPE,
        subject=f"source/{source}",
        time=raw.time,
        data=msgspec.json.encode(data),
        headers=headers,
    )


def raw_event_of(rejection: Event) -> Event | None:
    """The copied raw event; None if it was too large or the event is not a rejection."""
    try:
        members = rejection.payload_as(_RawCopy).raw
    except InvalidInput:
        return None
    if "data" in members:
        data = bytes(members["data"])
    elif "data_base64" in members:
        data = base64.b64decode(msgspec.json.decode(members["data_base64"], type=str))
    else:
        return None
    texts = {
        name: msgspec.json.decode(value, type=str)
        for name, value in members.items()
        if name not in ("data", "data_base64")
    }
    return Event(
        source=texts["source"],
        id=texts["id"],
        type=texts["type"],
        subject=texts.get("subject", ""),
        time=parse_time(texts["time"]),
        data=data,
        headers={name: text for name, text in texts.items() if name not in _MEMBERS},
    )


class _RawCopy(msgspec.Struct):
    raw: dict[str, msgspec.Raw]


def _raw_form(raw: Event) -> dict[str, Any]:
    """The raw event as a CloudEvent; data that are not JSON in base64."""
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
