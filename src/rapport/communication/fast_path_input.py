"""Frames: what messages between the same two about the same thing have in common, written once.
[CO-1]

A frame is the JSON of a message without its id, its content and what it refers to. Names in it were
looked at when it was made; filling it costs a look-up and the content's own letters.

The messages that most senders send, made into events a batch at a time. [CO-1, CO-12]

The same bytes and the same checks as one by one (`limits.shape_fault`, `Message.as_event`), for a
fraction of the cost: messages between the same two about the same thing differ in little, and what
is the same was checked and written once (`frames.py`). Whatever is unusual or at fault is left out,
and looked at by who knows the words for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.arrival_limits import LARGEST_EVENT, LONGEST_NAME
from rapport.communication.payload_cache import Frame, InputMessages, are_uniform
from rapport.core.event import Event
from rapport.core.message import AUTH, CONTROL, MESSAGE, MESSAGEINFO, RECENT, Message, Writing
from rapport.core.packed_events import EVENT_HEAD, PackedEvents, octets_head, packed, text_head

LONGEST_CONTENT = 1_000
"""In characters; what is longer costs more than these checks do, and is worth a closer look."""
NOT_USUAL = frozenset(("", CONTROL, MESSAGEINFO, AUTH))
"""Types about which more is to be asked; what is said to authenticate is not remembered here."""
_MOST_FRAMES = 20_000
_ENCODE = msgspec.json.Encoder().encode
_MESSAGE = packed(MESSAGE)
_START, _CONVERSATION = b'{"id":"', b',"conversation-id":'
_CONTENT, _REFERS = b',"content":', b',"refers-to":'


_Key = tuple[str, str, str, str, str, str, str, str, bool]


class Frames:
    """Those of the messages that passed lately: some thousands, begun anew when they are more."""

    def __init__(self, most: int = _MOST_FRAMES) -> None:
        self._most = most
        self._known: dict[_Key, Frame] = {}

    def fill(
        self, messages: Sequence[Message], names: Sequence[bytes]
    ) -> tuple[list[bytes | None], list[Frame]]:
        """For each message the data of its event without the closing brace, or None where it calls
        for a closer look; and its frame. `names`: their ids, nothing in which needs to be escaped.
        """
        said: list[bytes | None] = []
        frames: list[Frame] = []
        known = self._known
        conversations = {"": _CONTENT}
        for message, name in zip(messages, names, strict=True):
            sender, receiver = message.sender, message.receiver
            kind, to = ("", "") if receiver is None else (receiver.kind, receiver.name)
            key = (
                message.type, message.subtype, sender.kind, sender.name, kind, to,
                message.language, message.delivery_policy, message.urgent,
            )  # fmt: skip
            frame = known.get(key) or self._make(key)
            frames.append(frame)
            content, refers_to = message.content, message.refers_to
            conversation = message.conversation
            is_usual = (
                len(refers_to) + len(conversation) <= frame.room
                and len(content) <= LONGEST_CONTENT
                and not (message.id or message.ttl or message.session_token)
                and refers_to.isprintable()
            )
            if not is_usual:
                said.append(None)
                continue
            try:
                spoken = conversations.get(conversation)
                if spoken is None:
                    spoken = conversations[conversation] = _conversation(conversation)
                # Joined where it stands: this is done for every message.
                if not content:
                    said.append(_without_content(name, frame, spoken, refers_to))
                elif refers_to:
                    said.append(
                        b"".join((
                            _START, name, frame.before, spoken, _ENCODE(content), frame.after,
                            _REFERS, _ENCODE(refers_to), frame.end,
                        ))
                    )  # fmt: skip
                else:
                    said.append(
                        b"".join((
                            _START, name, frame.before, spoken, _ENCODE(content), frame.after,
                            frame.end,
                        ))
                    )  # fmt: skip
            except UnicodeEncodeError:
                said.append(None)  # half a character, or nothing that can be shown
        return said, frames

    def _make(self, key: _Key) -> Frame:
        frame = _frame(key)
        if frame.room < 0:
            return frame  # of any length: not to be kept
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[key] = frame
        return frame


def _without_content(name: bytes, frame: Frame, spoken: bytes, refers_to: str) -> bytes:
    refers = _REFERS + _ENCODE(refers_to) if refers_to else b""
    spoken = spoken.removesuffix(_CONTENT)
    return b"".join((_START, name, frame.before, spoken, frame.after, refers, frame.end))


def _conversation(name: str) -> bytes:
    """Up to the content. Raises UnicodeEncodeError for one that is not printable: that is no half
    character either, and looked at as closely.
    """
    if not name.isprintable():
        raise UnicodeEncodeError("utf-8", name, 0, 1, "not printable")
    return _CONVERSATION + _ENCODE(name) + _CONTENT


def _frame(key: _Key) -> Frame:
    type, subtype, kind, name, to_kind, to, language, policy, urgent = key
    said_by, subject = f"{kind}:{name}", f"{to_kind}:{to}" if to_kind else ""
    # Together short and printable means each is.
    names = f"{type}{subtype}{said_by}{subject}{language}"
    is_usual = len(names) <= LONGEST_NAME and type not in NOT_USUAL and name and names.isprintable()
    if not is_usual:
        return Frame(b"", b"", b"", -1, b"")
    before = Writing("", type, subtype, said_by, subject)
    after = Writing(language=language, delivery_policy=policy)  # type: ignore[arg-type]
    return Frame(
        b'",' + _ENCODE(before)[1:-1],
        _more(after),
        _more(Writing(urgent=urgent)),
        LONGEST_NAME - len(names),
        _MESSAGE + packed(subject),
    )


def _more(writing: Writing) -> bytes:
    """Its members, to follow others."""
    members = _ENCODE(writing)[1:-1]
    return b"," + members if members else b""


FRAMES = Frames()


LEAST_LIMIT = 4 * LONGEST_CONTENT
"""Where contents are allowed this many bytes, such a content is never too long."""
assert LARGEST_EVENT > 6 * (LONGEST_CONTENT + LONGEST_NAME), "escaped, it fits into an event"


def fast_input_events(
    messages: Sequence[Message], ids: Sequence[str], source: str, headers: dict[str, str], time: int
) -> Sequence[Event | None]:
    """The event of each message under its new id; None for one that calls for a closer look. Many
    without such a one are PackedEvents, which carry their messages.

    `ids` and `source` are ours, so they are printable and short; ids have nothing to be escaped.
    """
    names = [id.encode() for id in ids]
    said, frames = FRAMES.fill(messages, names)
    if messages and None not in said and are_uniform(ids):
        carried = InputMessages(
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
        if len(body) <= RECENT.longest:
            kept.append(body)
            noted.append(msgspec.structs.replace(message, id=id))
    RECENT.note_all(kept, noted)
    return found


def _packed(source: str, carried: InputMessages) -> PackedEvents:
    start = EVENT_HEAD + packed(source) + text_head(len(carried.names[0]))
    end, when = b"}" + packed(carried.headers), packed(carried.time)
    sizes = [len(text) + 1 for text in carried.said]
    parts: list[bytes] = []
    for name, frame, size, text in zip(
        carried.names, carried.frames, sizes, carried.said, strict=True
    ):
        parts += (start, name, frame.subject, when, octets_head(size), text, end)
    return PackedEvents(
        source, carried.ids, parts, data_bytes=sum(sizes), largest=max(sizes), carried=(carried,)
    )
