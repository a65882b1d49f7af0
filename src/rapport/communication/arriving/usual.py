"""The messages that most senders send, made into events a batch at a time. [CO-1, CO-12]

The same bytes and the same checks as one by one (`limits.shape_fault`, `Message.as_event`), for a
fraction of the cost: messages between the same two about the same thing differ in little, and what
is the same was checked and written once (`frames.py`). Whatever is unusual or at fault is left out,
and looked at by who knows the words for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.arriving.frames import FRAMES, LONGEST_CONTENT
from rapport.communication.arriving.limits import LARGEST_EVENT, LONGEST_NAME
from rapport.communication.carried import SaidMessages, are_plain
from rapport.core.encoded_batch import (
    EVENT_HEADER,
    EncodedBatch,
    bytes_header,
    encode_value,
    text_header,
)
from rapport.core.event import Event
from rapport.core.message import MESSAGE, MESSAGE_CACHE, Message

LEAST_LIMIT = 4 * LONGEST_CONTENT
"""Where contents are allowed this many bytes, such a content is never too long."""
assert LARGEST_EVENT > 6 * (LONGEST_CONTENT + LONGEST_NAME), "escaped, it fits into an event"


def usual_events(
    messages: Sequence[Message], ids: Sequence[str], source: str, headers: dict[str, str], time: int
) -> Sequence[Event | None]:
    """The event of each message under its new id; None for one that calls for a closer look. Many
    without such a one are PackedEvents, which carry their messages.

    `ids` and `source` are ours, so they are printable and short; ids have nothing to be escaped.
    """
    names = [id.encode() for id in ids]
    said, frames = FRAMES.fill(messages, names)
    if messages and None not in said and are_plain(ids):
        carried = SaidMessages(
            tuple(messages), ids, names, said, frames, headers, time  # type: ignore[arg-type]
        )  # fmt: skip
        return _packed(source, carried)
    return _made(messages, ids, said, source, headers, time)


def _made(
    messages: Sequence[Message], ids: Sequence[str], said: Sequence[bytes | None],
    source: str, headers: dict[str, str], time: int,
) -> list[Event | None]:  # fmt: skip
    found: list[Event | None] = []
    kept: list[bytes] = []
    noted: list[Message] = []
    for message, id, text in zip(messages, ids, said, strict=True):
        if text is None:
            found.append(None)
            continue
        subject, body = "" if message.receiver is None else str(message.receiver), text + b"}"
        found.append(Event(source, id, MESSAGE, subject, time, body, headers))
        if len(body) <= MESSAGE_CACHE.longest:
            kept.append(body)
            noted.append(msgspec.structs.replace(message, id=id))
    MESSAGE_CACHE.note_all(kept, noted)
    return found


def _packed(source: str, carried: SaidMessages) -> EncodedBatch:
    start = EVENT_HEADER + encode_value(source) + text_header(len(carried.names[0]))
    end, when = b"}" + encode_value(carried.headers), encode_value(carried.time)
    sizes = [len(text) + 1 for text in carried.said]
    parts: list[bytes] = []
    for name, frame, size, text in zip(
        carried.names, carried.frames, sizes, carried.said, strict=True
    ):
        parts += (start, name, frame.subject, when, bytes_header(size), text, end)
    return EncodedBatch(
        source, carried.ids, parts, data_bytes=sum(sizes), largest=max(sizes), carried=(carried,)
    )
