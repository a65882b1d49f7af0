"""FTP out and in: deliveries stored as files, and a folder that peers post into. [CO-5, CO-16]"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.delivery_json import delivery_json
from rapport.communication.adapters.files.file_messages import (
    SeenFile,
    is_passed_over,
    message_of_file,
    notice_of_file,
)
from rapport.communication.adapters.files.folder_out import file_name, is_too_long, too_long
from rapport.communication.adapters.files.ftp_client import REFUSED, FtpFolder
from rapport.communication.adapters.files.ftp_seen import SeenFiles
from rapport.communication.adapters.files.look_order import LookOrder
from rapport.communication.adapters.files.settings import FtpInputSettings, FtpServer, FtpSettings
from rapport.communication.adapters.incoming.input_base import AdapterState, Arrival
from rapport.communication.adapters.mail.ids import TokenFor, no_token
from rapport.communication.adapters.unusable import TOO_FAST, SetAside, Unusable, not_accepted
from rapport.communication.blocking import run_blocking
from rapport.core.errors import InvalidInput, NotAllowed, RapportError, SourceUnavailable
from rapport.core.ids import content_id
from rapport.core.message import Message
from rapport.kernel.clock import Clock

BAD = "bad"
_LOOK_NS = 60_000_000_000
"""After so long a look ends with what it has fetched: one that takes too long is cut off, and
without any end it would begin with the same files for ever.
"""


@adapter("ftp")
class FtpAdapter:
    """Stores a JSON file at the server that the address names (`ftp:depot`); the same key is the
    same file.
    """

    name = "ftp"
    repeatable = True

    def __init__(self, settings: FtpSettings, token_for: TokenFor = no_token) -> None:
        """`token_for(message, peer)` is written along, as the proof of an answer."""
        self._settings, self._token_for = settings, token_for

    async def send(self, delivery: Delivery) -> Outcome:
        """Whole at the server = sent; a server that is away is worth a retry."""
        server = self._settings.servers.get(delivery.target)
        if server is None:
            return Failed("the site declares no such server", retry=False)
        if is_too_long(delivery.text, self._settings.largest_text):
            return Failed(too_long(self._settings.largest_text), retry=False)
        content = delivery_json(delivery, self._token_for(delivery.message, delivery.peer))
        name = file_name(delivery)
        try:
            await run_blocking(partial(_store, server, name, content))
        except RapportError as error:
            return Failed(error.message, retry=isinstance(error, SourceUnavailable))
        return Sent(name)

    async def close(self) -> None:
        """A connection lives for one file only."""


def _store(server: FtpServer, name: str, content: bytes) -> None:
    with FtpFolder(server) as folder:
        folder.store(name, content)


class FtpInput:
    """A pull adapter that takes what is new in a folder. Each look lists it twice, `settle_ms`
    apart: a file that did not change in between is complete. One that cannot be fetched or taken
    away keeps nothing back.
    """

    name = "ftp"

    def __init__(self, settings: FtpInputSettings, clock: Clock, set_aside: SetAside) -> None:
        self._settings, self._clock, self._set_aside = settings, clock, set_aside
        self._seen: SeenFiles | None = None
        self._taken: list[SeenFile] = []
        self._order = LookOrder()
        self._not_ended: NotAllowed | None = None
        """Why a file of this look could not be taken away."""

    async def open(self, state: AdapterState) -> None:
        """Takes up the memory of what was seen."""
        self._seen = SeenFiles(state)
        await self._seen.open()

    async def pull(self) -> list[Message]:
        """Messages of new files; raises SourceUnavailable, NotAuthenticated, NotAllowed."""
        before = await self._new_files()
        if not before:
            return []
        await self._clock.sleep(self._settings.files.settle_ms)
        now, most = await self._new_files(), self._settings.files.most_files
        found = await run_blocking(partial(self._fetch, self._order.next(before, now, most)))
        bad = [(file, one) for file, one in found if isinstance(one, Unusable)]
        for _file, unusable in bad:
            await self._set_aside(unusable)
        # What the server refuses it may give later.
        await self._end([file for file, one in bad if one.code != REFUSED], BAD)
        good = [(file, one) for file, one in found if isinstance(one, Message)]
        self._taken = [file for file, _message in good]
        if not good:
            self._tell_not_ended()
        return [message for _file, message in good]

    async def pulled(self, messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """The messages are durable: their files are remembered, deleted or moved. Raises
        NotAllowed, after all, when the server refuses it for one.
        """
        taken, self._taken = self._taken, []
        good, bad = list[SeenFile](), list[SeenFile]()
        for file, message, arrival in zip(taken, messages, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                self._order.not_yet(file)
                continue  # taken with a later look
            if not arrival.accepted:
                await self._set_aside(not_accepted(message, arrival.why))
            (good if arrival.accepted else bad).append(file)
        await self._end(good, self._settings.move_to)
        await self._end(bad, BAD)
        self._tell_not_ended()

    def _tell_not_ended(self) -> None:
        """Once for each file: it is left alone from now on."""
        refused, self._not_ended = self._not_ended, None
        if refused is not None:
            raise refused

    async def _new_files(self) -> list[SeenFile]:
        listed = await run_blocking(self._list)
        seen = self._seen_files()
        await seen.forget_others(listed)
        return [file for file in listed if not is_passed_over(file.name) and not seen.has(file)]

    async def _end(self, files: Sequence[SeenFile], folder: str) -> None:
        """What cannot be used is never deleted: it is moved where taken ones would be deleted."""
        if not files:
            return
        if self._settings.after == "keep":
            await self._seen_files().note(files)
        else:
            await run_blocking(partial(self._take_away, files, folder))

    # --- in a thread ---

    def _list(self) -> list[SeenFile]:
        with FtpFolder(self._settings.server) as folder:
            return folder.files(self._settings.most_listed)

    def _fetch(self, files: Sequence[SeenFile]) -> list[tuple[SeenFile, Message | Unusable]]:
        if not files:
            return []
        found: list[tuple[SeenFile, Message | Unusable]] = []
        until_ns = self._clock.steady_ns() + _LOOK_NS
        with FtpFolder(self._settings.server) as folder:
            for file in files:
                self._order.tried(file)
                try:
                    result = self._read(folder, file)
                except SourceUnavailable:
                    if not found:
                        raise
                    break  # perhaps because of this file: the next look begins with others
                if result is not None:
                    found.append((file, result))
                if self._clock.steady_ns() >= until_ns:
                    break  # the others come with the next look
        return found

    def _read(self, folder: FtpFolder, file: SeenFile) -> Message | Unusable | None:
        """None for a file that has gone meanwhile. What is wrong with one keeps back no others."""
        taken, place = self._settings.files, f"{self.name} {self._settings.server.host}"
        try:
            if taken.content == "notice":
                return notice_of_file(place, file, folder.digest_of(file.name), taken)
            most = taken.largest_file
            raw = folder.fetch(file.name, most) if file.size <= most else b""
            return message_of_file(place, file, raw, taken)
        except InvalidInput as error:
            if error.code == REFUSED and not folder.has(file.name):
                return None
            name = file.name.encode("utf-8", "replace").decode()
            own_id = content_id("file", place, file.name, str(file.size), file.changed)
            return Unusable(id=own_id, code=error.code, reason=error.message, subject=name)

    def _take_away(self, files: Sequence[SeenFile], where: str) -> None:
        with FtpFolder(self._settings.server) as folder:
            for file in files:
                try:
                    if self._settings.after == "delete" and where != BAD:
                        folder.delete(file.name)
                    else:
                        folder.move(file.name, where)
                except NotAllowed as error:
                    self._order.leave([file])
                    self._not_ended = error  # the others go all the same

    def _seen_files(self) -> SeenFiles:
        if self._seen is None:
            raise RuntimeError("the FTP input was not opened")
        return self._seen
