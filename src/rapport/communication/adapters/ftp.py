"""FTP servers as a medium and as an input: `[adapters.ftp]` and inputs of the kind `ftp`. [CO-5,
CO-16, UX-2]

```toml
[adapters.ftp.servers.depot]           # addresses are ftp:depot
host = "ftp.example.org"
user = "rapport"
password = "env:DEPOT_PASSWORD"
tls = true

[inputs.pictures]
adapter = "ftp"
host = "ftp.example.org"
folder = "pictures"
content = "notice"
sender = "peer:ana"
```

Deliveries are stored as files; an input takes the new files of a folder. `FtpFolder` is the only
user of ftplib; it blocks and is called from a thread. Errors of the driver become ours there,
without the password.
"""

from __future__ import annotations

import ftplib
import hashlib
import io
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self, cast

import msgspec
from msgspec import Meta

from rapport.communication.adapters.base import (
    Failed,
    TokenFor,
    adapter,
    no_token,
    read_secret_field,
)
from rapport.communication.adapters.folder import (
    BAD,
    FILES_KEYS,
    LARGEST_FILE,
    FileAdapter,
    FileEntry,
    FileInput,
    FileInputSettings,
    check_place_name,
    is_ignored,
    message_of_file,
    notice_of_file,
    read_files,
)
from rapport.communication.adapters.input_base import (
    AdapterState,
    DeadLetterInput,
    RejectedInput,
    kept_raw,
    refused_input,
)
from rapport.communication.texts import clean
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    SourceUnavailable,
)
from rapport.core.event import content_id
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import Fields, keys_of
from rapport.kernel.tasks import run_blocking

# --- settings ---


AfterFetching = Literal["keep", "delete", "move"]
AFTER_FETCHING: tuple[AfterFetching, ...] = ("keep", "delete", "move")
FTP_PORT = 21


class FtpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server and a folder on it. The password is read from a file or variable, never shown."""

    host: str
    port: Annotated[int, Meta(ge=1, le=65_535)] = FTP_PORT
    user: Annotated[str, Meta(min_length=1)] = "anonymous"
    password: str = ""
    tls: bool = False
    """FTPS: login and files are encrypted (`AUTH TLS`)."""
    folder: str = ""
    """The folder for files; empty = the one after the login."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 20_000

    def __repr__(self) -> str:
        return f"FtpServer(host={self.host!r}, port={self.port}, user={self.user!r})"


class FtpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.ftp]` table: servers that peers' addresses may name."""

    servers: dict[str, FtpServer] = {}
    largest_text: Annotated[int, Meta(ge=1, le=LARGEST_FILE)] = 1_000_000


class FtpInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `ftp`."""

    server: FtpServer
    files: FileInputSettings = FileInputSettings()
    after: AfterFetching = "keep"
    """`keep` remembers files; `delete` and `move` need no memory."""
    move_to: str = "done"
    """With `after = "move"`: a folder below the watched one; created when it is absent."""
    most_listed: int = 10_000
    """Most files in a folder; all of them are remembered."""


FTP_KEYS, FTP_SERVER_KEYS = keys_of(FtpSettings), keys_of(FtpServer)
FTP_INPUT_KEYS = (*FTP_SERVER_KEYS, *FILES_KEYS, "after", "move_to")


def read_ftp(table: Fields, directory: Path) -> FtpSettings:
    """The `[adapters.ftp]` table."""
    below = table.table("servers", None, '{ depot = { host = "ftp.example.org" } }')
    found: dict[str, FtpServer] = {}
    for name in below.section.values if below is not None else ():
        assert below is not None
        check_place_name(below, name)
        server = below.table(name, FTP_SERVER_KEYS, '{ host = "ftp.example.org" }')
        if server is not None:
            found[name] = _server(server, directory)
    return table.settings(FtpSettings(), servers=found)


def read_ftp_input(table: Fields, directory: Path) -> FtpInputSettings:
    """The settings of an input of the kind `ftp`."""
    default = FtpInputSettings(server=FtpServer(host=""))
    after = cast(AfterFetching, table.choice("after", AFTER_FETCHING, default.after))
    move_to = table.filled_text("move_to", default.move_to)
    if table.has("move_to") and after != "move":
        message = 'move_to only means something with after = "move"'
        table.fault("move_to", "input.move_to_without_move", message)
    if "/" in move_to or move_to in (".", ".."):
        table.wrong("move_to", "the name of a folder below", 'move_to = "done"')
    return FtpInputSettings(
        server=_server(table, directory), files=read_files(table), after=after, move_to=move_to
    )


def _server(table: Fields, directory: Path) -> FtpServer:
    return table.settings(
        FtpServer(host=""),
        host=table.filled_text("host", example='"ftp.example.org"'),
        password=read_secret_field("password", table, directory),
    )


# --- connection ---


REFUSED = "ftp.refused"
_PIECE = 65_536
_UNKNOWN_COMMAND = ("500", "502", "504")


class FtpFolder:
    """An open folder on a server; a context manager that logs in and out. Raises SourceUnavailable
    (try again), NotAuthenticated, or NotAllowed for what the server refuses for good.
    """

    def __init__(self, server: FtpServer) -> None:
        self._server = server
        self._ftp: ftplib.FTP | None = None

    def __enter__(self) -> Self:
        with self._translated():
            ftp = self._ftp = _Encrypted() if self._server.tls else ftplib.FTP(encoding="latin-1")
            ftp.encoding = "latin-1"
            try:
                ftp.connect(
                    self._server.host, self._server.port, timeout=self._server.timeout_ms / 1_000
                )
                self._log_in(ftp)
                if self._server.folder:
                    ftp.cwd(_wire(self._server.folder))
            except BaseException:
                ftp.close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ftp, self._ftp = self._ftp, None
        if ftp is None:
            return
        with suppress(OSError, EOFError, ValueError, ftplib.Error):
            ftp.quit()
        ftp.close()

    def files(self, most: int) -> list[FileEntry]:
        """The regular files in the folder; raises InvalidInput when there are more than `most`."""
        with self._translated() as ftp:
            try:
                found = [
                    _by_facts(name, facts)
                    for name, facts in ftp.mlsd(facts=["type", "size", "modify"])
                ]
            except ftplib.error_perm as error:
                if str(error)[:3] not in _UNKNOWN_COMMAND:
                    raise
                found = [self._stat(ftp, name) for name in ftp.nlst()]
        files = [file for file in found if file is not None]
        if len(files) > most:
            raise InvalidInput(
                f"the FTP folder holds more than {most} files",
                code="ftp.too_many_files",
                hint='use after = "delete" or after = "move", or clear it',
            )
        return files

    def fetch(self, name: str, most: int) -> bytes:
        """At most `most` + 1 bytes of a file."""
        content = bytearray()
        for piece in self._pieces(name):
            content += piece
            if len(content) > most:
                break
        return bytes(content[: most + 1])

    def digest_of(self, name: str) -> str:
        """The SHA-256 of a file; all of it is transferred."""
        digest = hashlib.sha256()
        for piece in self._pieces(name):
            digest.update(piece)
        return digest.hexdigest()

    def store(self, name: str, content: bytes) -> None:
        """Stores a file whole or not at all; replaces one of that name."""
        hidden = f".{name}.tmp"
        with self._translated() as ftp:
            ftp.storbinary(f"STOR {_wire(hidden)}", io.BytesIO(content))
            try:
                ftp.rename(_wire(hidden), _wire(name))
            except ftplib.error_perm:
                # A server that does not replace: delete the file first, which has the same key.
                ftp.delete(_wire(name))
                ftp.rename(_wire(hidden), _wire(name))

    def delete(self, name: str) -> None:
        """Deletes a file; a missing one is no error."""
        with self._translated() as ftp:
            try:
                ftp.delete(_wire(name))
            except ftplib.error_perm:
                if self.has(name):
                    raise

    def move(self, name: str, folder: str) -> None:
        """Moves a file into a folder below, replacing one of its name; a missing one is
        no error.
        """
        target = f"{_wire(folder)}/{_wire(name)}"
        with self._translated() as ftp:
            with suppress(ftplib.error_perm):
                ftp.mkd(_wire(folder))
            try:
                ftp.rename(_wire(name), target)
            except ftplib.error_perm:
                if not self.has(name):
                    return
                # A server that does not replace: delete the file first.
                with suppress(ftplib.error_perm):
                    ftp.delete(target)
                ftp.rename(_wire(name), target)

    def has(self, name: str) -> bool:
        with self._translated() as ftp:
            return _wire(name) in ftp.nlst()

    def _pieces(self, name: str) -> Iterator[bytes]:
        """The parts of a file. Its end is read also when the caller stops early, so that other
        commands can follow.
        """
        with self._translated() as ftp:
            ftp.voidcmd("TYPE I")
            with ftp.transfercmd(f"RETR {_wire(name)}") as source:
                complete = False
                try:
                    while piece := source.recv(_PIECE):
                        yield piece
                    complete = True
                finally:
                    if complete:
                        _end(source)
                        ftp.voidresp()
                    else:
                        source.close()
                        with suppress(ftplib.Error, OSError, EOFError):
                            ftp.voidresp()

    def _stat(self, ftp: ftplib.FTP, wire: str) -> FileEntry | None:
        """For a server without MLSD: the entry of one name; a name without a size is no file."""
        name = wire.rpartition("/")[2]
        try:
            ftp.voidcmd("TYPE I")
            size = ftp.size(name)
            changed = ftp.sendcmd(f"MDTM {name}")[4:].strip()
        except ftplib.error_perm:
            return None
        return FileEntry(_shown(name), size or 0, changed)

    def _log_in(self, ftp: ftplib.FTP) -> None:
        try:
            ftp.login(_wire(self._server.user), _wire(self._server.password))
        except ftplib.error_perm:
            raise NotAuthenticated(
                f"the FTP server {self._server.host} refused the login of {self._server.user!r}",
                code="ftp.login_refused",
                hint="check user and password; some servers need tls = true",
            ) from None
        if isinstance(ftp, ftplib.FTP_TLS):
            ftp.prot_p()

    @contextmanager
    def _translated(self) -> Iterator[ftplib.FTP]:
        """Translates the driver's errors."""
        host = self._server.host
        try:
            yield self._ftp  # type: ignore[misc]
        except RapportError:
            raise
        except ftplib.error_perm as error:
            raise NotAllowed(
                f"the FTP server {host} refused it: {self._harmless(error)}", code=REFUSED
            ) from None
        except (ftplib.Error, OSError, EOFError, ValueError) as error:
            raise SourceUnavailable(
                f"the FTP server {host} cannot be used: {self._harmless(error)}",
                code="ftp.unavailable",
                hint="it is tried again",
            ) from None

    def _harmless(self, error: Exception) -> str:
        text, password = str(error) or type(error).__name__, self._server.password
        return clean(text.replace(password, "...") if password else text)[:200]


class _Encrypted(ftplib.FTP_TLS):
    """FTPS whose transfers reuse the TLS session of the login, as many servers demand."""

    def __init__(self) -> None:
        super().__init__(context=ssl.create_default_context(), encoding="latin-1")

    def ntransfercmd(
        self, cmd: str, rest: int | str | None = None
    ) -> tuple[socket.socket, int | None]:
        plain, size = ftplib.FTP.ntransfercmd(self, cmd, rest)
        if not self._prot_p:  # type: ignore[attr-defined]
            return plain, size
        session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
        return self.context.wrap_socket(plain, server_hostname=self.host, session=session), size


def _by_facts(wire: str, facts: dict[str, str]) -> FileEntry | None:
    size = facts.get("size", "")
    if facts.get("type", "").lower() != "file" or not size.isdigit():
        return None
    return FileEntry(_shown(wire), int(size), facts.get("modify", ""))


def _end(source: socket.socket) -> None:
    """Ends an encrypted transfer; a server that does not wait for it is no fault."""
    if isinstance(source, ssl.SSLSocket):
        with suppress(OSError):
            source.unwrap()


def _wire(name: str) -> str:
    """A name for the driver, which writes Latin-1 while the server reads UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _shown(wire: str) -> str:
    return wire.encode("latin-1").decode("utf-8", "surrogateescape")


# --- output ---


@adapter("ftp")
class FtpAdapter(FileAdapter[FtpServer]):
    """Stores files at the server that the address names (`ftp:depot`), one connection each."""

    name = "ftp"

    def __init__(self, settings: FtpSettings, token_for: TokenFor = no_token) -> None:
        super().__init__(settings.servers, settings.largest_text, token_for, kind="server")

    def _write(self, place: FtpServer, name: str, content: bytes) -> Failed | None:
        try:
            with FtpFolder(place) as folder:
                folder.store(name, content)
        except RapportError as error:
            return Failed(error.message, retry=isinstance(error, SourceUnavailable))
        return None


# --- input ---


_PULL_NS = 60_000_000_000
"""A pull ends after this time with the files it has: a longer one would be cut off, and begin with
the same files for ever.
"""
_PREFIX = "seen/"
_PAGE = 1_000


class ProcessedFiles:
    """The durable list of files that an input has taken, as long as they lie there. A changed file
    is new again.
    """

    def __init__(self, state: AdapterState) -> None:
        self._state = state
        self._marks: dict[str, str] = {}

    async def open(self) -> None:
        after = ""
        while page := await self._state.keys(prefix=_PREFIX, after=after, limit=_PAGE):
            self._marks |= {key: mark.decode() for key, mark in page}
            after = page[-1][0]

    def has(self, file: FileEntry) -> bool:
        return self._marks.get(_key(file.name)) == _mark(file)

    async def note(self, files: Iterable[FileEntry]) -> None:
        """Durable when it returns."""
        marks = {_key(file.name): _mark(file) for file in files}
        await self._state.put_many({key: mark.encode() for key, mark in marks.items()})
        self._marks |= marks

    async def forget_others(self, listed: Sequence[FileEntry]) -> None:
        """Forgets files that no longer exist."""
        there = {_key(file.name) for file in listed}
        gone = [key for key in self._marks if key not in there]
        if gone:
            await self._state.forget(*gone)
            for key in gone:
                del self._marks[key]


def _key(name: str) -> str:
    return _PREFIX + content_id(name)


def _mark(file: FileEntry) -> str:
    return f"{file.size} {file.changed}"


class FtpInput(FileInput):
    """The new files of a folder on a server."""

    name = "ftp"

    def __init__(
        self, settings: FtpInputSettings, clock: Clock, set_aside: DeadLetterInput
    ) -> None:
        super().__init__(settings.files, clock)
        self._settings, self._set_aside = settings, set_aside
        self._seen: ProcessedFiles | None = None

    async def open(self, state: AdapterState) -> None:
        """Loads the list of taken files."""
        self._seen = ProcessedFiles(state)
        await self._seen.open()

    async def read_again(self, found: RejectedInput) -> Message:
        """See RereadsInput; the letter's id stands for the file's time."""
        file = FileEntry(found.subject, len(found.raw), found.id)
        return message_of_file(self._place, file, found.raw, self._files)

    @property
    def _place(self) -> str:
        return f"{self.name} {self._settings.server.host}"

    async def _list(self) -> list[FileEntry]:
        listed = await run_blocking(self._list_folder)
        seen = self._seen_files()
        await seen.forget_others(listed)
        return [file for file in listed if not is_ignored(file.name) and not seen.has(file)]

    async def _read_all(self, files: Sequence[FileEntry]) -> list[tuple[FileEntry, Message]]:
        """Raises SourceUnavailable, NotAuthenticated, NotAllowed."""
        found = await run_blocking(partial(self._fetch, files)) if files else []
        bad = [(file, one) for file, one in found if isinstance(one, RejectedInput)]
        for _file, unusable in bad:
            await self._set_aside(unusable)
        # A file that the server refuses may be fetched later.
        await self._end([file for file, one in bad if one.code != REFUSED], BAD)
        return [(file, one) for file, one in found if isinstance(one, Message)]

    async def _end_accepted(self, files: Sequence[FileEntry]) -> None:
        await self._end(files, self._settings.move_to)

    async def _end_refused(self, refused: Sequence[tuple[FileEntry, Message, str]]) -> None:
        for _file, message, why in refused:
            await self._set_aside(refused_input(message, why))
        await self._end([file for file, _message, _why in refused], BAD)

    async def _end(self, files: Sequence[FileEntry], folder: str) -> None:
        """Unusable files are never deleted: they are moved where taken ones would be deleted."""
        if not files:
            return
        if self._settings.after == "keep":
            await self._seen_files().note(files)
        else:
            await run_blocking(partial(self._remove, files, folder))

    # --- in a thread ---

    def _list_folder(self) -> list[FileEntry]:
        with FtpFolder(self._settings.server) as folder:
            return folder.files(self._settings.most_listed)

    def _fetch(self, files: Sequence[FileEntry]) -> list[tuple[FileEntry, Message | RejectedInput]]:
        found: list[tuple[FileEntry, Message | RejectedInput]] = []
        until_ns = self._clock.steady_ns() + _PULL_NS
        with FtpFolder(self._settings.server) as folder:
            for file in files:
                self._order.tried(file)
                try:
                    result = self._read(folder, file)
                except SourceUnavailable:
                    if not found:
                        raise
                    break  # perhaps because of this file: the next pull begins with others
                if result is not None:
                    found.append((file, result))
                if self._clock.steady_ns() >= until_ns:
                    break  # the others come with the next pull
        return found

    def _read(self, folder: FtpFolder, file: FileEntry) -> Message | RejectedInput | None:
        """The message in a file, why it has none, or None for a file that no longer exists."""
        taken, place, raw = self._files, self._place, b""
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
            return RejectedInput(
                id=own_id,
                code=error.code,
                reason=error.message,
                subject=name,
                raw=kept_raw(raw) if len(raw) == file.size else b"",
            )

    def _remove(self, files: Sequence[FileEntry], where: str) -> None:
        with FtpFolder(self._settings.server) as folder:
            for file in files:
                try:
                    if self._settings.after == "delete" and where != BAD:
                        folder.delete(file.name)
                    else:
                        folder.move(file.name, where)
                except NotAllowed as error:
                    self._leave(file, error)  # the others go all the same

    def _seen_files(self) -> ProcessedFiles:
        if self._seen is None:
            raise RuntimeError("the FTP input was not opened")
        return self._seen
