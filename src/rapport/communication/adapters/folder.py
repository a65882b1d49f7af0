"""Local folders as a medium and as an input: `[adapters.folder]` and inputs of the kind `folder`.
[CO-5, CO-16, UX-2]

```toml
[adapters.folder.folders]              # addresses are folder:alarms
alarms = "out/alarms"

[inputs.notes]
adapter = "folder"
directory = "in"
sender = "peer:ana"                    # of files that are plain text
```

A peer's address names a declared folder, never a path: input from outside cannot choose where a
file is written. Each delivery is a JSON file, there whole or not at all. Complete files that come
in become messages and are moved to `done`; those that are no messages to `bad`, with the reason
beside them. A file is JSON of listing 1, plain text, or (`content = "notice"`) anything: then the
message has its name, size and digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    Sent,
    TokenFor,
    adapter,
    delivery_json,
    no_token,
)
from rapport.communication.arrivals import TOO_FAST, ArrivalResult
from rapport.communication.peers import is_place_name
from rapport.core.errors import InvalidInput, RapportError, SourceUnavailable
from rapport.core.event import content_id
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import Fields, keys_of
from rapport.kernel.files import sync_path, write_atomically
from rapport.kernel.tasks import run_blocking
from rapport.kernel.telemetry import get_logger

# --- settings ---


FileContent = Literal["message", "notice"]
LARGEST_FILE = 32 * 1024 * 1024


class FolderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.folder]` table: names to directories, which exist."""

    folders: dict[str, str] = {}
    largest_text: Annotated[int, Meta(ge=1, le=LARGEST_FILE)] = 1_000_000
    """Bytes of the longest text; longer ones fail at once."""


class FileInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How files become messages, from a folder or from a server."""

    content: FileContent = "message"
    """`message`: a file is JSON of listing 1 or plain text. `notice`: a file is anything (a
    picture); the message has its name, size and digest.
    """
    sender: str = ""
    """The sender of plain text and notices, such as `peer:ana`; needed for those."""
    type: Annotated[str, Meta(min_length=1)] = "FILE"
    subtype: str = ""
    refers_to: str = ""
    """The message that these files answer, if there is one."""
    settle_ms: Annotated[int, Meta(ge=1)] = 1_000
    """A file is complete when it did not change for so long; longer is safer for slow writers."""
    largest_file: Annotated[int, Meta(ge=1, le=LARGEST_FILE)] = 1_000_000
    """Bytes of the largest file whose content becomes a message; notices have no limit."""
    most_files: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Files taken in one pull."""


class FolderInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `folder`: the directory to look into, which exists."""

    directory: str
    files: FileInputSettings = FileInputSettings()


FOLDER_KEYS, FILES_KEYS = keys_of(FolderSettings), keys_of(FileInputSettings)
FOLDER_INPUT_KEYS = ("directory", *FILES_KEYS)


def read_folders(table: Fields, directory: Path) -> FolderSettings:
    """The `[adapters.folder]` table; directories are relative to the site."""
    below = table.table("folders", None, '{ alarms = "out/alarms" }')
    found: dict[str, str] = {}
    for name in below.section.values if below is not None else ():
        assert below is not None
        check_place_name(below, name)
        found[name] = _directory(below, name, directory)
    return table.settings(FolderSettings(), folders=found)


def read_folder_input(table: Fields, directory: Path) -> FolderInputSettings:
    """The settings of an input of the kind `folder`; the directory is relative to the site."""
    place = _directory(table, "directory", directory)
    return FolderInputSettings(directory=place, files=read_files(table))


def read_files(table: Fields) -> FileInputSettings:
    settings = table.settings(FileInputSettings())
    if settings.sender:
        try:
            Identifier.parse(settings.sender)
        except InvalidInput as error:
            table.report("sender", error)
    elif settings.content == "notice":
        message = "a notice needs a sender"
        table.fault("sender", "input.no_sender", message, hint='write sender = "peer:NAME"')
    return settings


def _directory(table: Fields, key: str, site: Path) -> str:
    """An existing directory, absolute."""
    text = table.filled_text(key, example='"files"')
    if text and not (site / text).is_dir():
        message = f"there is no directory {text!r}"
        table.fault(key, "adapter.no_directory", message, hint=f"mkdir -p {text}")
    return str((site / text).resolve()) if text else ""


def check_place_name(table: Fields, name: str) -> None:
    if not is_place_name(name):
        table.fault(
            name,
            "adapter.bad_place_name",
            f"{name[:80]!r} cannot be part of an address",
            hint="letters, digits, - and _, at most 64 of them",
        )


# --- files as messages ---


_PASSED_OVER = re.compile(
    r"(\..*|.*\.(tmp|part|partial|filepart|crdownload|swp|why)|.*~)\Z", re.IGNORECASE | re.DOTALL
)


class FileEntry(msgspec.Struct, frozen=True):
    """A file in a listing; the same entry twice means that nothing was written in between."""

    name: str
    size: int
    changed: str
    """Time of the last change, in the notation of the folder."""


def is_ignored(name: str) -> bool:
    """Whether the name marks an incomplete or private file.

    >>> [is_ignored(name) for name in (".x", "a.part", "a.json")]
    [True, True, False]
    """
    return bool(_PASSED_OVER.match(name))


def unchanged(before: list[FileEntry], now: list[FileEntry]) -> list[FileEntry]:
    """Files that did not change, ordered by time of change: these are complete."""
    still = set(before) & set(now)
    return sorted(still, key=lambda file: (file.changed, file.name))


def message_of_file(place: str, file: FileEntry, raw: bytes, taken: FileInputSettings) -> Message:
    """The message in a file; raises InvalidInput. `place` identifies the folder. The id is the
    file's own, or derived from its content and time: the same when it is read again.
    """
    if file.size > taken.largest_file or len(raw) > taken.largest_file:
        raise InvalidInput(
            f"the file has more than {taken.largest_file} bytes", code="message.too_long"
        )
    own_id = content_id("file", place, file.name, file.changed, hashlib.sha256(raw).hexdigest())
    if raw.lstrip()[:1] == b"{":
        message = Message.from_json(raw)
        return message if message.id else msgspec.structs.replace(message, id=own_id)
    return _message(_text(raw), own_id, taken)


def notice_of_file(place: str, file: FileEntry, digest: str, taken: FileInputSettings) -> Message:
    """The message about a file: its name, size and SHA-256, as JSON."""
    name = file.name.encode("utf-8", "replace").decode()
    content = {"file": name, "size": file.size, "sha256": digest}
    own_id = content_id("notice", place, file.name, file.changed, digest)
    return _message(msgspec.json.encode(content).decode(), own_id, taken)


def _message(content: str, own_id: str, taken: FileInputSettings) -> Message:
    if not taken.sender:
        raise InvalidInput(
            "the file is plain text, and no sender is declared",
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
            hint='with content = "notice" any file is accepted',
        )
    return text.strip()


# --- local files ---


DONE, BAD, WHY = "done", "bad", ".why"
_MODE = 0o640
"""Rights of a written file."""
_MOST_LOOKED_AT = 100_000
_PIECE = 1 << 20
_MOST_SAME_NAMES = 10_000
_LONGEST_NAME = 255 - len(WHY)
"""Bytes of a name in a folder below: that of the reason next to it must fit, too."""
_LONGEST_END = 20


def files_in(directory: Path) -> list[FileEntry]:
    """Regular files that are not ignored; links are never followed."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_ignored(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            try:
                seen = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            found.append(FileEntry(entry.name, seen.st_size, f"{seen.st_mtime_ns:020d}"))
            if len(found) >= _MOST_LOOKED_AT:
                break
    return found


def read_file(directory: Path, name: str, most: int) -> bytes:
    """At most `most` + 1 bytes; raises OSError, also for a link."""
    with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput("this is no plain file", code="message.not_a_message")
        return file.read(most + 1)


def digest_of(directory: Path, name: str) -> str:
    """The SHA-256 of a file of any size."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def move_aside(directory: Path, name: str, folder: str, why: str = "") -> None:
    """Moves a file into a folder below, beside others of its name; `why` is written next to it. A
    missing file is no error: it was moved before a crash.
    """
    below = directory / folder
    below.mkdir(exist_ok=True)
    target = _free_name(below, name)
    if why:
        write_atomically(below / f"{target}{WHY}", why.encode(), mode=_MODE)
    try:
        os.rename(directory / name, below / target)
    except FileNotFoundError:
        return
    sync_path(below)
    sync_path(directory)


def _free_name(directory: Path, name: str) -> str:
    """A free name: cut if it is too long, numbered if it exists."""
    stem, dot, end = name.rpartition(".") if "." in name else (name, "", "")
    if len(os.fsencode(end)) > _LONGEST_END:
        stem, dot, end = name, "", ""
    for number in range(1, _MOST_SAME_NAMES):
        candidate = _cut(stem, f"{dot}{end}" if number == 1 else f"-{number}{dot}{end}")
        if not os.path.lexists(directory / candidate):
            return candidate
    raise FileExistsError(f"too many files are named like {name!r}")


def _cut(stem: str, end: str) -> str:
    while len(os.fsencode(stem + end)) > _LONGEST_NAME:
        stem = stem[:-1]
    return stem + end


# --- output ---


Place = TypeVar("Place")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


class FileAdapter(ABC, Generic[Place]):
    """Writes a JSON file to the place that the address names; the same key is the same file."""

    repeatable = True

    def __init__(
        self, places: Mapping[str, Place], largest_text: int, token_for: TokenFor, *, kind: str
    ) -> None:
        """`token_for(message, peer)` is written along, as the proof of an answer; `kind`: of place,
        for people.
        """
        self._places, self._largest_text = places, largest_text
        self._token_for, self._kind = token_for, kind

    async def send(self, delivery: Delivery) -> Outcome:
        """Durable in its place = sent; a full disk or an unavailable server is worth a retry."""
        place, most = self._places.get(delivery.target), self._largest_text
        if place is None:
            return Failed(f"the site declares no such {self._kind}", retry=False)
        if len(delivery.text) > most or len(delivery.text.encode("utf-8", "replace")) > most:
            reason = f"message.too_long: the text has more than {most} bytes"
            return Failed(reason, retry=False)
        content = delivery_json(delivery, self._token_for(delivery.message, delivery.peer))
        name = file_name(delivery)
        fault = await run_blocking(partial(self._write, place, name, content))
        return fault or Sent(name)

    async def close(self) -> None:
        """Nothing is kept open."""

    @abstractmethod
    def _write(self, place: Place, name: str, content: bytes) -> Failed | None:
        """Writes the file, whole or not at all; returns the failure. Blocks."""


@adapter("folder")
class FolderAdapter(FileAdapter[str]):
    """Writes to the folder that the address names (`folder:alarms`)."""

    name = "folder"

    def __init__(self, settings: FolderSettings, token_for: TokenFor = no_token) -> None:
        super().__init__(settings.folders, settings.largest_text, token_for, kind="folder")

    def _write(self, place: str, name: str, content: bytes) -> Failed | None:
        try:
            write_atomically(Path(place, name), content, mode=_MODE)
        except OSError as error:
            return Failed(f"the folder cannot be written: {error.strerror}", retry=True)
        return None


def file_name(delivery: Delivery) -> str:
    """The name of the delivery's file; it contains nothing from outside."""
    key = delivery.key
    return f"{key if _PLAIN_NAME.match(key) else content_id(key)}.json"


# --- input ---


_log = get_logger(__name__)
_SHARE = 10
"""One part in so many of a pull is for files that were tried before."""


class FileQueue:
    """The order in which one input takes files, so that one that cannot be read or moved does not
    block others. Keeps only files that still lie there; a changed file is a new one.
    """

    def __init__(self) -> None:
        self._tried: dict[FileEntry, None] = {}
        self._left: set[FileEntry] = set()

    def next(self, before: list[FileEntry], now: list[FileEntry], most: int) -> list[FileEntry]:
        """At most `most` complete files: new ones in order of change, and a tenth for files that
        were tried before, the one tried longest ago first.
        """
        there = set(now)
        self._left &= there
        self._tried = {file: None for file in self._tried if file in there}
        complete = [file for file in unchanged(before, now) if file not in self._left]
        new = [file for file in complete if file not in self._tried]
        known = set(complete)
        again = [file for file in self._tried if file in known]
        room = min(len(again), max(most // _SHARE, most - len(new)))
        return new[: most - room] + again[:room]

    def tried(self, file: FileEntry) -> None:
        """The file was tried; others go first while it lies there."""
        self._tried.pop(file, None)
        self._tried[file] = None

    def not_yet(self, file: FileEntry) -> None:
        """The file was only too early; it keeps its place."""
        self._tried.pop(file, None)

    def leave(self, files: Iterable[FileEntry]) -> None:
        """The files are processed but cannot be moved; they are ignored until they change."""
        self._left.update(files)


class FileInput(ABC):
    """A pull adapter for the files of a folder. Each pull lists it twice, `settle_ms` apart: files
    that did not change in between are complete.
    """

    def __init__(self, files: FileInputSettings, clock: Clock) -> None:
        self._files, self._clock = files, clock
        self._taken: list[FileEntry] = []
        self._order = FileQueue()
        self._unmoved: RapportError | None = None
        """Why a file of this pull could not be moved or deleted."""

    async def pull(self) -> list[Message]:
        """Messages of new files; raises what the folder raises."""
        before = await self._list()
        if not before:
            return []
        await self._clock.sleep(self._files.settle_ms)
        complete = self._order.next(before, await self._list(), self._files.most_files)
        found = await self._read_all(complete)
        self._taken = [file for file, _message in found]
        if not found:
            self._raise_unmoved()
        return [message for _file, message in found]

    async def pulled(self, messages: Sequence[Message], arrivals: Sequence[ArrivalResult]) -> None:
        """Ends the files of durable messages. Raises, after all of them, when one could not be
        moved or deleted.
        """
        taken, self._taken = self._taken, []
        accepted, refused = list[FileEntry](), list[tuple[FileEntry, Message, str]]()
        for file, message, arrival in zip(taken, messages, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                self._order.not_yet(file)  # taken with a later pull
            elif arrival.accepted:
                accepted.append(file)
            else:
                refused.append((file, message, arrival.why))
        await self._end_accepted(accepted)
        await self._end_refused(refused)
        self._raise_unmoved()

    def _raise_unmoved(self) -> None:
        """Raised once for each file, which is ignored from then on."""
        error, self._unmoved = self._unmoved, None
        if error is not None:
            raise error

    def _leave(self, file: FileEntry, error: RapportError) -> None:
        self._order.leave([file])
        self._unmoved = error

    @abstractmethod
    async def _list(self) -> list[FileEntry]:
        """The files that may be taken."""

    @abstractmethod
    async def _read_all(self, files: Sequence[FileEntry]) -> list[tuple[FileEntry, Message]]:
        """The messages of files; files without a message are ended here."""

    @abstractmethod
    async def _end_accepted(self, files: Sequence[FileEntry]) -> None:
        """Ends files whose messages are durable."""

    @abstractmethod
    async def _end_refused(self, refused: Sequence[tuple[FileEntry, Message, str]]) -> None:
        """Ends files whose messages were refused, each with the reason."""


class FolderInput(FileInput):
    """The files of a local folder. Needs no durable state: a file stays until its message is
    durable, then it is moved to `done` or `bad`.
    """

    name = "folder"

    def __init__(self, settings: FolderInputSettings, clock: Clock) -> None:
        super().__init__(settings.files, clock)
        self._directory = Path(settings.directory)

    async def _list(self) -> list[FileEntry]:
        try:
            return await run_blocking(partial(files_in, self._directory))
        except OSError as error:
            raise SourceUnavailable(
                f"the folder cannot be read: {error.strerror}", code="folder.unavailable"
            ) from None

    async def _read_all(self, files: Sequence[FileEntry]) -> list[tuple[FileEntry, Message]]:
        read = [(file, await run_blocking(partial(self._read_or_move, file))) for file in files]
        return [(file, message) for file, message in read if message is not None]

    async def _end_accepted(self, files: Sequence[FileEntry]) -> None:
        for file in files:
            await run_blocking(partial(self._move, file, DONE))

    async def _end_refused(self, refused: Sequence[tuple[FileEntry, Message, str]]) -> None:
        for file, _message, why in refused:
            await run_blocking(partial(self._move, file, BAD, why))

    # --- in a thread ---

    def _read_or_move(self, file: FileEntry) -> Message | None:
        """The message in a file; None for one that is gone, unreadable now, or moved to `bad`."""
        self._order.tried(file)
        try:
            return self._read(file)
        except FileNotFoundError:
            pass  # it was removed meanwhile
        except PermissionError:
            why = "folder.unreadable: this node may not read the file"
            self._move(file, BAD, why)  # or it would stop all others
        except OSError as error:  # the disk has it no more, say: perhaps later
            _log.error("file not read", directory=str(self._directory), why=error.strerror)
        except InvalidInput as error:
            self._move(file, BAD, f"{error.code}: {error.message}\n{error.hint}".strip())
        return None

    def _move(self, file: FileEntry, folder: str, why: str = "") -> None:
        """A file that cannot be moved stays, and the others go on."""
        try:
            move_aside(self._directory, file.name, folder, why)
        except OSError as error:
            fault = error.strerror or str(error)
            _log.error("file not moved", directory=str(self._directory), why=fault)
            unmoved = SourceUnavailable(
                f"a file cannot be moved: {fault}",
                code="folder.unavailable",
                hint=f"this node must be able to write into the folder, {DONE} and {BAD}",
            )
            self._leave(file, unmoved)

    def _read(self, file: FileEntry) -> Message:
        taken = self._files
        if taken.content == "notice":
            digest = digest_of(self._directory, file.name)
            return notice_of_file(self.name, file, digest, taken)
        raw = read_file(self._directory, file.name, taken.largest_file)
        return message_of_file(self.name, file, raw, taken)
