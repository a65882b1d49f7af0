"""Who an outbox is: its publisher's name, the epoch of its count, and where it delivers. [CH-5,
CH-6]

A new epoch begins each time the outbox is opened. So an outbox that was put back from an older
copy, and gives a number a second time, is not mistaken for a repetition of itself.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.core.errors import Corrupt
from rapport.store.files import DiskFiles, Files, read_whole, replace_whole

IDENTITY_NAME = "outbox.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What `outbox.json` says. The token is never written down."""

    publisher: str
    epoch: int
    url: str = ""
    channel: str = ""


def read_identity(directory: Path, files: Files | None = None) -> Identity | None:
    """What the outbox says of itself; None when it says nothing. Raises Corrupt and OSError."""
    path = directory / IDENTITY_NAME
    try:
        return msgspec.json.decode(read_whole(files or DiskFiles(), path), type=Identity)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="outbox.bad_identity",
            hint="the events are safe; delete that file, and the outbox takes a new name",
        ) from None


def next_identity(
    former: Identity | None, *, now_ms: int, new_name: str, url: str, channel: str
) -> Identity:
    """The identity of an outbox that is being opened: the same name, a later epoch."""
    return Identity(
        publisher=former.publisher if former else new_name,
        epoch=max(now_ms, former.epoch + 1 if former else 0),
        url=url,
        channel=channel,
    )


def write_identity(directory: Path, identity: Identity, files: Files | None = None) -> None:
    """Replaces the file in one step; durable when it returns. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(identity)) + b"\n"
    replace_whole(files or DiskFiles(), directory / IDENTITY_NAME, text)
