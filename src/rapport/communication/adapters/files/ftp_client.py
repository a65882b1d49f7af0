"""A folder on an FTP server: list, fetch, store, take away. The only home of ftplib. [CO-16]

Blocking: called from a thread. The driver's errors become ours here; nothing that the server says
after the login can hold the password unnoticed.
"""

from __future__ import annotations

import ftplib
import hashlib
import io
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from rapport.communication.adapters.files.file_messages import FileEntry
from rapport.communication.adapters.files.settings import FtpServer
from rapport.communication.templates import clean
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    SourceUnavailable,
)

REFUSED = "ftp.refused"
_PIECE = 65_536
_UNKNOWN_COMMAND = ("500", "502", "504")


class FtpFolder:
    """An open folder; as a context manager it logs in and leaves.

    Raises SourceUnavailable (try again), NotAuthenticated, or NotAllowed for what the server
    refuses for good.
    """

    def __init__(self, server: FtpServer) -> None:
        self._server = server
        self._ftp: ftplib.FTP | None = None

    def __enter__(self) -> Self:
        with self._told():
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
        """The plain files in the folder; raises InvalidInput when there are more than `most`."""
        with self._told() as ftp:
            try:
                found = [
                    _by_facts(name, facts)
                    for name, facts in ftp.mlsd(facts=["type", "size", "modify"])
                ]
            except ftplib.error_perm as error:
                if str(error)[:3] not in _UNKNOWN_COMMAND:
                    raise
                found = [self._asked(ftp, name) for name in ftp.nlst()]
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
        """The SHA-256 of a file of any size; all of it is transferred."""
        digest = hashlib.sha256()
        for piece in self._pieces(name):
            digest.update(piece)
        return digest.hexdigest()

    def store(self, name: str, content: bytes) -> None:
        """The file is there whole under its name, or not at all; one of that name is replaced."""
        hidden = f".{name}.tmp"
        with self._told() as ftp:
            ftp.storbinary(f"STOR {_wire(hidden)}", io.BytesIO(content))
            try:
                ftp.rename(_wire(hidden), _wire(name))
            except ftplib.error_perm:
                # A server that does not replace: make room. What lies there has the same key.
                ftp.delete(_wire(name))
                ftp.rename(_wire(hidden), _wire(name))

    def delete(self, name: str) -> None:
        """Deletes a file; one that has gone already is no error."""
        with self._told() as ftp, suppress(_Gone):
            _unless_gone(ftp, name, lambda: ftp.delete(_wire(name)))

    def move(self, name: str, folder: str) -> None:
        """Moves a file into a folder below, replacing one of its name; gone already is no error."""
        target = f"{_wire(folder)}/{_wire(name)}"
        with self._told() as ftp, suppress(_Gone):
            with suppress(ftplib.error_perm):
                ftp.mkd(_wire(folder))
            try:
                _unless_gone(ftp, name, lambda: ftp.rename(_wire(name), target))
            except ftplib.error_perm:
                # A server that does not replace: make room.
                with suppress(ftplib.error_perm):
                    ftp.delete(target)
                ftp.rename(_wire(name), target)

    def has(self, name: str) -> bool:
        """Whether something of that name lies there."""
        with self._told() as ftp:
            return _wire(name) in ftp.nlst()

    def _pieces(self, name: str) -> Iterator[bytes]:
        """Whoever stops early leaves the transfer: its end is read, so that more can follow."""
        with self._told() as ftp:
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

    def _asked(self, ftp: ftplib.FTP, wire: str) -> FileEntry | None:
        """A server without MLSD is asked about each name; what has no size is no file."""
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
    def _told(self) -> Iterator[ftplib.FTP]:
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


class _Gone(Exception):
    """The file has been taken away before."""


class _Encrypted(ftplib.FTP_TLS):
    """FTPS whose transfers continue the session of the login: many servers take no others."""

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
    """Says the end of an encrypted transfer; a server that does not wait for it is no fault."""
    if isinstance(source, ssl.SSLSocket):
        with suppress(OSError):
            source.unwrap()


def _unless_gone(ftp: ftplib.FTP, name: str, work: object) -> None:
    assert callable(work)
    try:
        work()
    except ftplib.error_perm:
        if _wire(name) in ftp.nlst():
            raise
        raise _Gone from None


def _wire(name: str) -> str:
    """A name as the driver takes it: it writes Latin-1, the server reads UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("latin-1")


def _shown(wire: str) -> str:
    return wire.encode("latin-1").decode("utf-8", "surrogateescape")
