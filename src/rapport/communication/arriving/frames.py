"""Frames: what messages between the same two about the same thing have in common, written once.
[CO-1]

A frame is the JSON of a message without its id, its content and what it refers to. Names in it were
looked at when it was made; filling it costs a look-up and the content's own letters.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.arriving.limits import LONGEST_NAME
from rapport.communication.carried import Frame
from rapport.core.encoded_batch import encode_value
from rapport.core.message import AUTH, CONTROL, MESSAGE, MESSAGEINFO, Message, MessageFields

LONGEST_CONTENT = 1_000
"""In characters; what is longer costs more than these checks do, and is worth a closer look."""
NOT_USUAL = frozenset(("", CONTROL, MESSAGEINFO, AUTH))
"""Types about which more is to be asked; what is said to authenticate is not remembered here."""
_MOST_FRAMES = 20_000
_ENCODE = msgspec.json.Encoder().encode
_MESSAGE = encode_value(MESSAGE)
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
    before = MessageFields("", type, subtype, said_by, subject)
    after = MessageFields(language=language, delivery_policy=policy)  # type: ignore[arg-type]
    return Frame(
        b'",' + _ENCODE(before)[1:-1],
        _more(after),
        _more(MessageFields(urgent=urgent)),
        LONGEST_NAME - len(names),
        _MESSAGE + encode_value(subject),
    )


def _more(writing: MessageFields) -> bytes:
    """Its members, to follow others."""
    members = _ENCODE(writing)[1:-1]
    return b"," + members if members else b""


FRAMES = Frames()
