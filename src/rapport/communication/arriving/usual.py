"""The messages that most senders send, made into events a batch at a time. [CO-1, CO-12]

The same bytes and the same checks as one by one (`limits.shape_fault`, `Message.as_event`), for
half the cost: nothing is called per message that can be done where it stands. Whatever is unusual
or at fault is left out, and looked at by who knows the words for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.arriving.limits import LARGEST_EVENT, LONGEST_NAME
from rapport.core.event import Event
from rapport.core.message import AUTH, CONTROL, MESSAGE, MESSAGEINFO, RECENT, Message, Writing

LONGEST_CONTENT = 1_000
"""In characters; what is longer costs more than these checks do, and is worth a closer look."""
NOT_USUAL = frozenset(("", CONTROL, MESSAGEINFO, AUTH))
"""Types about which more is to be asked; what is said to authenticate is not remembered here."""
LEAST_LIMIT = 4 * LONGEST_CONTENT
"""Where contents are allowed this many bytes, such a content is never too long."""
assert LARGEST_EVENT > 6 * (LONGEST_CONTENT + LONGEST_NAME), "escaped, it fits into an event"

_ENCODER = msgspec.json.Encoder()


def usual_events(
    messages: Sequence[Message], ids: Sequence[str], source: str, headers: dict[str, str], time: int
) -> list[Event | None]:
    """The event of each message under its new id; None for one that calls for a closer look.

    `ids` and `source` are ours, so they are printable and short.
    """
    found: list[Event | None] = []
    bodies: list[bytes] = []
    noted: list[Message] = []
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
        try:
            body = _ENCODER.encode(
                Writing(
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
            )
        except UnicodeEncodeError:
            found.append(None)  # half a character
            continue
        found.append(Event(source, id, MESSAGE, subject, time, body, headers))
        if len(body) <= RECENT.longest:
            bodies.append(body)
            noted.append(msgspec.structs.replace(message, id=id))
    RECENT.note_all(bodies, noted)
    return found
