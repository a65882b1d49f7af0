"""Files to messages: JSON of listing 1, plain text, or a notice that something was posted. Pure.
[CO-5, CO-16]
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from rapport.communication.adapters.files.settings import FileInputSettings
from rapport.core.errors import InvalidInput
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message

_PASSED_OVER = re.compile(
    r"(\..*|.*\.(tmp|part|partial|filepart|crdownload|swp|why)|.*~)\Z", re.IGNORECASE | re.DOTALL
)


class FileEntry(msgspec.Struct, frozen=True):
    """How a file looked from outside; the same twice means that nobody wrote in between."""

    name: str
    size: int
    changed: str
    """When it was changed, in the words of where it lies."""


def is_ignored(name: str) -> bool:
    """Names by which programs say that a file is not complete or not for others.

    >>> [is_passed_over(name) for name in (".x", "a.part", "a.json")]
    [True, True, False]
    """
    return bool(_PASSED_OVER.match(name))


def unchanged(before: list[FileEntry], now: list[FileEntry]) -> list[FileEntry]:
    """The files that look as they did, in the order of their change: these are complete."""
    still = set(before) & set(now)
    return sorted(still, key=lambda file: (file.changed, file.name))


def message_of_file(place: str, file: FileEntry, raw: bytes, taken: FileInputSettings) -> Message:
    """The message that a file holds; raises InvalidInput. `place` tells folders apart.

    The id is the file's own, or made of what the file is: read again it is the same.
    """
    if file.size > taken.largest_file or len(raw) > taken.largest_file:
        raise InvalidInput(
            f"the file has more than {taken.largest_file} bytes", code="message.too_long"
        )
    own_id = content_id("file", place, file.name, file.changed, hashlib.sha256(raw).hexdigest())
    if raw.lstrip()[:1] == b"{":
        message = Message.from_json(raw)
        return message if message.id else msgspec.structs.replace(message, id=own_id)
    return _said(_text(raw), own_id, taken)


def notice_of_file(place: str, file: FileEntry, digest: str, taken: FileInputSettings) -> Message:
    """The message that a file was posted: its name, size and SHA-256, as JSON."""
    name = file.name.encode("utf-8", "replace").decode()
    told = {"file": name, "size": file.size, "sha256": digest}
    own_id = content_id("notice", place, file.name, file.changed, digest)
    return _said(msgspec.json.encode(told).decode(), own_id, taken)


def _said(content: str, own_id: str, taken: FileInputSettings) -> Message:
    if not taken.sender:
        raise InvalidInput(
            "the file is plain text, and nobody is declared as its sender",
            code="input.no_sender",
            hint='write sender = "peer:NAME" for this input, or drop JSON messages',
        )
    return Message(
        type=taken.type,
        subtype=taken.subtype,
        sender=Identifier.parse(taken.sender),
        id=own_id,
        content=content,
        refers_to=taken.refers_to,
    )


def _text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidInput(
            "the file is neither JSON nor UTF-8 text",
            code="message.not_a_message",
            hint='with content = "notice" any file is told of',
        )
    return text.strip()
