"""The messages that most senders send, made into events a batch at a time. [CO-1, CO-12]

The same bytes and the same checks as one by one (`limits.shape_fault`, `Message.as_event`), for
half the cost: nothing is called per message that can be done where it stands. Whatever is unusual
or at fault is left out, and looked at by who knows the words for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.arriving.limits import LARGEST_EVENT, LONGEST_NAME
from rapport.communication.carried import SaidMessages, are_plain
from rapport.core.event import Event
from rapport.core.message import (
    AUTH,
    CONTROL,
    MESSAGE,
    MESSAGEINFO,
    RECENT,
    Identifier,
    Message,
    Writing,
)
from rapport.core.packed_events import (
    EVENT_HEAD,
    WORTH_PACKING,
    PackedEvents,
    octets_head,
    packed,
    text_head,
)

LONGEST_CONTENT = 1_000
"""In characters; what is longer costs more than these checks do, and is worth a closer look."""
NOT_USUAL = frozenset(("", CONTROL, MESSAGEINFO, AUTH))
"""Types about which more is to be asked; what is said to authenticate is not remembered here."""
LEAST_LIMIT = 4 * LONGEST_CONTENT
"""Where contents are allowed this many bytes, such a content is never too long."""
assert LARGEST_EVENT > 6 * (LONGEST_CONTENT + LONGEST_NAME), "escaped, it fits into an event"

_ENCODER = msgspec.json.Encoder()


_MESSAGE = packed(MESSAGE)


def usual_events(
    messages: Sequence[Message], ids: Sequence[str], source: str, headers: dict[str, str], time: int
) -> Sequence[Event | None]:
    """The event of each message under its new id; None for one that calls for a closer look. Many
    without such a one are PackedEvents, which carry their messages.

    `ids` and `source` are ours, so they are printable and short.
    """
    bodies = usual_bodies(messages, ids)
    if len(messages) >= WORTH_PACKING and None not in bodies and are_plain(ids):
        said = [body[:-1] for body in bodies]  # type: ignore[index]
        return _packed(tuple(messages), ids, said, source, headers, time)
    return _made(messages, ids, bodies, source, headers, time)


def _made(
    messages: Sequence[Message], ids: Sequence[str], bodies: Sequence[bytes | None],
    source: str, headers: dict[str, str], time: int,
) -> list[Event | None]:  # fmt: skip
    found: list[Event | None] = []
    kept: list[bytes] = []
    noted: list[Message] = []
    for message, id, body in zip(messages, ids, bodies, strict=True):
        if body is None:
            found.append(None)
            continue
        subject = "" if message.receiver is None else str(message.receiver)
        found.append(Event(source, id, MESSAGE, subject, time, body, headers))
        if len(body) <= RECENT.longest:
            kept.append(body)
            noted.append(msgspec.structs.replace(message, id=id))
    RECENT.note_all(kept, noted)
    return found


def _packed(
    messages: Sequence[Message], ids: Sequence[str], said: Sequence[bytes],
    source: str, headers: dict[str, str], time: int,
) -> PackedEvents:  # fmt: skip
    start = EVENT_HEAD + packed(source) + text_head(len(ids[0]))
    end, packed_time = b"}" + packed(headers), packed(time)
    names = [id.encode() for id in ids]
    sizes = [len(text) + 1 for text in said]
    known: dict[Identifier | None, bytes] = {}
    middles: list[bytes] = []
    parts: list[bytes] = []
    for message, name, text, size in zip(messages, names, said, sizes, strict=True):
        receiver = message.receiver
        middle = known.get(receiver)
        if middle is None:
            subject = "" if receiver is None else str(receiver)
            middle = known[receiver] = _MESSAGE + packed(subject) + packed_time
        middles.append(middle)
        parts += (start, name, middle, octets_head(size), text, end)
    carried = SaidMessages(messages, ids, names, said, middles, headers, time)
    return PackedEvents(
        source, ids, parts, data_bytes=sum(sizes), largest=max(sizes), carried=(carried,)
    )


def usual_bodies(messages: Sequence[Message], ids: Sequence[str]) -> list[bytes | None]:
    """The data of each message's event; None for one that calls for a closer look."""
    found: list[bytes | None] = []
    for message, id in zip(messages, ids, strict=True):
        sender, receiver, content = message.sender, message.receiver, message.content
        said_by = f"{sender.kind}:{sender.name}"
        subject = f"{receiver.kind}:{receiver.name}" if receiver is not None else ""
        type, subtype, language = message.type, message.subtype, message.language
        conversation, refers_to = message.conversation, message.refers_to
        names = f"{type}{subtype}{said_by}{subject}{conversation}{language}{refers_to}"
        # Together short and printable means each is.
        is_usual = (
            len(names) <= LONGEST_NAME
            and len(content) <= LONGEST_CONTENT
            and type not in NOT_USUAL
            and sender.name
            and not (message.id or message.ttl or message.session_token)
            and names.isprintable()
        )
        if not is_usual:
            found.append(None)
            continue
        writing = Writing(
            id,
            type,
            subtype,
            said_by,
            subject,
            conversation,
            content,
            0,
            language,
            "",
            message.delivery_policy,
            refers_to,
            message.urgent,
        )
        try:
            found.append(_ENCODER.encode(writing))
        except UnicodeEncodeError:
            found.append(None)  # half a character
    return found
