"""A listener's directory: its saved position, and events whose handling failed. [CH-7]

The position file is replaced atomically, so a crash leaves the old or the new one. A file that is
unreadable or belongs to another query is an error: starting over would repeat or lose events.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from rapport.channel.agents.connection import Reason
from rapport.channel.agents.listener_state import ReceivedEvent, ResumePoint
from rapport.channel.agents.outbox import open_agent_store
from rapport.core.errors import Conflict, Corrupt, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import all_blocks
from rapport.store.files import DiskFiles, Files, disk_error, read_whole, replace_whole

_log = get_logger(__name__)

PLACE_NAME = "place.json"
_FAILED = "failed"
_SEGMENT_BYTES = 1024 * 1024
_VERSION = 1


class ListenedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The channel and query that a saved position belongs to."""

    channel: str
    query: str
    """As JSON."""
    kind: str = ""
    handback: str = ""


class SavedPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `place.json`."""

    version: int = _VERSION
    session: ListenedQuery
    stands_at: ResumePoint
    check: int = 0
    """Checksum of the rest."""


class FailedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the application could not handle, with the last error and when (ms UTC)."""

    time: int
    reason: Reason
    received: ReceivedEvent


class ListenerDirectory:
    """The directory of one listener. Calls may come from any thread, `save` from one at a time.

    Opening raises StoreUnavailable (`listener.locked`: in use; or the disk fails), Corrupt
    (`listener.bad_place`) and Conflict (`listener.other_place`).
    """

    def __init__(
        self, directory: Path, session: ListenedQuery, *, files: Files | None = None
    ) -> None:
        self.directory, self._session = directory, session
        self._files: Files = files or DiskFiles()
        self._store = open_agent_store(directory, "listener", _SEGMENT_BYTES, files)
        try:
            self.saved = _read_position(self._files, directory, session)
            """The position on disk; None before the first save."""
            self.failed_count = self._store.last_position(_FAILED)
        except BaseException:
            self._store.close()
            raise
        self._process, self._closed = os.getpid(), False

    def save(self, stands_at: ResumePoint) -> None:
        """Replaces the position; durable when it returns. Raises StoreUnavailable."""
        if stands_at == self.saved:
            return
        if self._closed:
            raise StoreUnavailable("the listener is closed", code="listener.closed")
        if os.getpid() != self._process:
            raise StoreUnavailable(
                f"{self.directory} was opened before this process was forked",
                code="listener.forked",
                hint="open a listener with a directory of its own in each process",
            )
        try:
            _write_position(self._files, self.directory, self._session, stands_at)
        except OSError as error:
            raise disk_error(f"cannot save the position in {self.directory}", error) from error
        self.saved = stands_at

    def keep_failed(self, failed: FailedEvent) -> None:
        """Keeps an event aside; durable when it returns. Raises StoreUnavailable."""
        self._store.append(_FAILED, [(1, msgspec.msgpack.encode(failed))], failed.time)
        self.failed_count += 1

    def failed(self) -> list[FailedEvent]:
        """All failed events, oldest first; one that a crash repeated is listed once."""
        found: dict[int, FailedEvent] = {}
        for block in all_blocks(self._store, _FAILED):
            try:
                one = msgspec.msgpack.decode(block.body, type=FailedEvent)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("failed event unreadable", place=block.first, why=str(error))
                continue
            found.setdefault(one.received.position, one)
        return list(found.values())

    def close(self) -> None:
        """Releases the directory; a second call is no error."""
        self._closed = True
        if os.getpid() == self._process:
            self._store.close()


def _read_position(files: Files, directory: Path, session: ListenedQuery) -> ResumePoint | None:
    path = directory / PLACE_NAME
    try:
        place = msgspec.json.decode(read_whole(files, path), type=SavedPosition)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad_position_error(path, str(error)) from None
    if place.version != _VERSION:
        raise _bad_position_error(path, f"it has version {place.version}, this is for {_VERSION}")
    if place.check != _checksum(place.session, place.stands_at):
        raise _bad_position_error(path, "its checksum does not agree")
    if place.session != session:
        raise _other_query_error(path, place.session, session)
    return place.stands_at


def _write_position(
    files: Files, directory: Path, session: ListenedQuery, stands_at: ResumePoint
) -> None:
    place = SavedPosition(session=session, stands_at=stands_at, check=_checksum(session, stands_at))
    text = msgspec.json.format(msgspec.json.encode(place)) + b"\n"
    replace_whole(files, directory / PLACE_NAME, text)


def _checksum(session: ListenedQuery, stands_at: ResumePoint) -> int:
    return zlib.crc32(msgspec.json.encode((session, stands_at)))


def _bad_position_error(path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"{path} cannot be used: {why}",
        code="listener.bad_place",
        hint="put back a copy of it; or delete it, and the listener begins with its query again: "
        "drop events up to the last position you have, with acknowledge(position)",
    )


def _other_query_error(path: Path, there: ListenedQuery, wanted: ListenedQuery) -> Conflict:
    differs = [
        name
        for name in ListenedQuery.__struct_fields__
        if getattr(there, name) != getattr(wanted, name)
    ]
    differences = ", ".join(f"{name} {getattr(there, name)!r}" for name in differs)
    return Conflict(
        f"{path} is the position of another listener: it has {differences}",
        code="listener.other_place",
        hint="use another directory, or listen to the same as before",
    )
