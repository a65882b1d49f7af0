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
    unchanged,
)
from rapport.communication.adapters.files.folder_files import (
    BAD,
    DONE,
    digest_of,
    files_in,
    move_aside,
    read_file,
)
from rapport.communication.adapters.files.settings import FolderInputSettings
from rapport.communication.adapters.incoming.input_base import Arrival
from rapport.communication.adapters.unusable import TOO_FAST
from rapport.communication.aside import run_aside
from rapport.core.errors import InvalidInput, SourceUnavailable
from rapport.core.message import Message
from rapport.kernel.clock import Clock


class FolderInput:
    """A pull adapter. Each look sees the folder twice, `settle_ms` apart: what did not change in
    between is complete. Needs no memory: a file is there until its message is durable.
    """

    name = "folder"

    def __init__(self, settings: FolderInputSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._directory = Path(settings.directory)
        self._taken: list[str] = []

    async def pull(self) -> list[Message]:
        """Messages of new files; raises SourceUnavailable when the folder cannot be read."""
        try:
            before = await run_aside(partial(files_in, self._directory))
            if not before:
                return []
            await self._clock.sleep(self._settings.files.settle_ms)
            now = await run_aside(partial(files_in, self._directory))
            complete = unchanged(before, now, self._settings.files.most_files)
            found = await run_aside(partial(self._read_all, complete))
        except OSError as error:
            raise SourceUnavailable(
                f"the folder cannot be read: {error.strerror}", code="folder.unavailable"
            ) from None
        self._taken = [file.name for file, _message in found]
        return [message for _file, message in found]

    async def pulled(self, _messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """The messages are durable: their files go to `done`, those not accepted to `bad`."""
        taken, self._taken = self._taken, []
        for name, arrival in zip(taken, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                continue  # taken with a later look
            folder, why = (DONE, "") if arrival.accepted else (BAD, arrival.why)
            await run_aside(partial(move_aside, self._directory, name, folder, why))

    def _read_all(self, files: Sequence[SeenFile]) -> list[tuple[SeenFile, Message]]:
        found = []
        for file in files:
            try:
                found.append((file, self._read(file)))
            except FileNotFoundError:
                continue  # somebody has taken it away
            except PermissionError:
                why = "folder.unreadable: this node may not read the file"
                move_aside(self._directory, file.name, BAD, why)  # or it would stop all others
            except InvalidInput as error:
                why = f"{error.code}: {error.message}\n{error.hint}".strip()
                move_aside(self._directory, file.name, BAD, why)
        return found

    def _read(self, file: SeenFile) -> Message:
        taken = self._settings.files
        if taken.content == "notice":
            digest = digest_of(self._directory, file.name)
            return notice_of_file(self.name, file, digest, taken)
        raw = read_file(self._directory, file.name, taken.largest_file)
        return message_of_file(self.name, file, raw, taken)
