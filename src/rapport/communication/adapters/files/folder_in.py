"""A local folder that messages come from: complete files are taken and moved to `done`, those that
are no messages to `bad`, with the reason beside them. [CO-5, CO-16]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rapport.communication.adapters.files.file_messages import (
    SeenFile,
    message_of_file,
    notice_of_file,
)
from rapport.communication.adapters.files.folder_files import (
    BAD,
    DONE,
    digest_of,
    files_in,
    move_aside,
    read_file,
)
from rapport.communication.adapters.files.look_order import LookOrder
from rapport.communication.adapters.files.settings import FolderInputSettings
from rapport.communication.adapters.incoming.input_base import Arrival
from rapport.communication.adapters.unusable import TOO_FAST
from rapport.communication.blocking import run_blocking
from rapport.core.errors import InvalidInput, SourceUnavailable
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class FolderInput:
    """A pull adapter. Each look sees the folder twice, `settle_ms` apart: what did not change in
    between is complete. Needs no durable memory: a file is there until its message is durable. One
    that cannot be read or moved keeps nothing back.
    """

    name = "folder"

    def __init__(self, settings: FolderInputSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._directory = Path(settings.directory)
        self._taken: list[SeenFile] = []
        self._order = LookOrder()
        self._unmoved = ""
        """Why a file of this look could not be moved."""

    async def pull(self) -> list[Message]:
        """Messages of new files; raises SourceUnavailable when the folder cannot be read."""
        try:
            before = await run_blocking(partial(files_in, self._directory))
            if not before:
                return []
            await self._clock.sleep(self._settings.files.settle_ms)
            now = await run_blocking(partial(files_in, self._directory))
            complete = self._order.next(before, now, self._settings.files.most_files)
            found = await run_blocking(partial(self._read_all, complete))
        except OSError as error:
            raise SourceUnavailable(
                f"the folder cannot be read: {error.strerror}", code="folder.unavailable"
            ) from None
        self._taken = [file for file, _message in found]
        if not found:
            self._tell_unmoved()
        return [message for _file, message in found]

    async def pulled(self, _messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """The messages are durable: their files go to `done`, those not accepted to `bad`. Raises
        SourceUnavailable, after all, when one could not be moved.
        """
        taken, self._taken = self._taken, []
        for file, arrival in zip(taken, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                self._order.not_yet(file)
                continue  # taken with a later look
            folder, why = (DONE, "") if arrival.accepted else (BAD, arrival.why)
            await run_blocking(partial(self._move, file, folder, why))
        self._tell_unmoved()

    def _tell_unmoved(self) -> None:
        """Once for each file: it is left alone from now on."""
        why, self._unmoved = self._unmoved, ""
        if why:
            raise SourceUnavailable(
                f"a file cannot be moved: {why}",
                code="folder.unavailable",
                hint=f"this node must be able to write into the folder, {DONE} and {BAD}",
            )

    # --- in a thread ---

    def _read_all(self, files: Sequence[SeenFile]) -> list[tuple[SeenFile, Message]]:
        found = []
        for file in files:
            self._order.tried(file)
            try:
                found.append((file, self._read(file)))
            except FileNotFoundError:
                continue  # somebody has taken it away
            except PermissionError:
                why = "folder.unreadable: this node may not read the file"
                self._move(file, BAD, why)  # or it would stop all others
            except OSError as error:  # the disk has it no more, say: perhaps later
                _log.error("file not read", directory=str(self._directory), why=error.strerror)
            except InvalidInput as error:
                why = f"{error.code}: {error.message}\n{error.hint}".strip()
                self._move(file, BAD, why)
        return found

    def _move(self, file: SeenFile, folder: str, why: str) -> None:
        """Where it cannot be moved it stays, and the others go on."""
        try:
            move_aside(self._directory, file.name, folder, why)
        except OSError as error:
            self._order.leave([file])
            self._unmoved = error.strerror or str(error)
            _log.error("file not moved", directory=str(self._directory), why=self._unmoved)

    def _read(self, file: SeenFile) -> Message:
        taken = self._settings.files
        if taken.content == "notice":
            digest = digest_of(self._directory, file.name)
            return notice_of_file(self.name, file, digest, taken)
        raw = read_file(self._directory, file.name, taken.largest_file)
        return message_of_file(self.name, file, raw, taken)
