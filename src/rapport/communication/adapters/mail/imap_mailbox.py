"""One folder on an IMAP server: what is new in it, its mails, what becomes of them. [CO-16]

Blocking: runs in a thread of its own (`imap.py`). The driver's errors become ours here, without
anything that the server could have repeated of the login.
"""

from __future__ import annotations

import base64
import imaplib
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from rapport.communication.adapters.mail.imap_connection import PlainConnection, TlsConnection
from rapport.communication.adapters.mail.settings import ImapSettings
from rapport.communication.templates import clean
from rapport.core.errors import NotAuthenticated, RapportError, SourceUnavailable, Unsupported

_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
REFUSED = "imap.refused"
_SLACK = 65_536
"""Literals that are no mails (folder names) are small."""


class FetchedMail(msgspec.Struct, frozen=True):
    """The bytes of a mail, or its beginning when `cut`."""

    uid: int
    raw: bytes
    cut: bool


class Mailbox:
    """An open folder. `validity` names the numbering of its mails: another one means that every
    mail has a new number.
    """

    def __init__(self, settings: ImapSettings) -> None:
        self._settings = settings
        self._connection: PlainConnection | TlsConnection | None = None
        self.validity, self.next_uid = 0, 1
        self._can: frozenset[str] = frozenset()
        self._more = False

    def open(self) -> None:
        """Connects, logs in and opens the folder; raises SourceUnavailable or NotAuthenticated."""
        with self._told():
            self._connection = connection = self._connected()
            self._log_in(connection)
            self._can = _words(connection.capability()[1])
            answer, said = connection.select(
                quoted(self._settings.folder), readonly=self._settings.after == "leave"
            )
            if answer != "OK":
                raise self._refused(f"the folder {self._settings.folder!r} cannot be opened", said)
            self.validity = _number(connection.response("UIDVALIDITY")[1])
            self.next_uid = _number(connection.response("UIDNEXT")[1]) or 1

    def uids_after(self, uid: int) -> list[int]:
        """The numbers of all later mails, in order."""
        with self._told() as connection:
            connection.noop()  # lets the server tell of what came meanwhile
            told = connection.untagged_responses
            told.pop("EXISTS", None)
            answer, said = connection.uid("SEARCH", "UID", f"{uid + 1}:*")
            self._more = "EXISTS" in told  # told now, it is not told again while we wait
            if answer != "OK":
                raise self._refused("the folder cannot be searched", said)
            found = {int(word) for line in said if line for word in line.split() if word.isdigit()}
            return sorted(number for number in found if number > uid)  # `n:*` names the last always

    def fetch(self, uid: int) -> FetchedMail | None:
        """The mail, at most as much as the settings allow; None when it is gone."""
        most = self._settings.largest_mail
        with self._told() as connection:
            wanted = f"(RFC822.SIZE BODY.PEEK[]<0.{most}>)"
            answer, said = connection.uid("FETCH", str(uid), wanted)
            if answer != "OK":
                raise self._refused(f"mail {uid} cannot be fetched", said)
            # Servers may say the size before the mail or after it.
            literals = [part for part in said if isinstance(part, tuple)]
            about = [part[0] if isinstance(part, tuple) else part for part in said]
            size = _SIZE.search(b" ".join(part for part in about if isinstance(part, bytes)))
            if size is None:
                return None
            return FetchedMail(uid, literals[0][1] if literals else b"", int(size[1]) > most)

    def settle(self, uids: Sequence[int]) -> None:
        """Marks or moves mails that were taken, as the settings say; doing it again is harmless."""
        if not uids or self._settings.after == "leave":
            return
        numbers = ",".join(map(str, uids))
        with self._told() as connection:
            if self._settings.after == "flag":
                self._must(connection.uid("STORE", numbers, "+FLAGS.SILENT", r"(\Seen)"))
            else:
                self._move(connection, numbers)

    def wait(self, seconds: float) -> None:
        """Until the server tells of something, or so long; raises Unsupported when it cannot."""
        if "IDLE" not in self._can:
            raise Unsupported(
                "waiting for mail (IDLE)", "this IMAP server", hint='use adapter = "imap"'
            )
        if self._more:
            return
        with self._told() as connection:
            connection.idle(seconds)

    def interrupt(self) -> None:
        """From another thread: whatever is under way fails at once."""
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Leaves; a second call is no error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(imaplib.IMAP4.error, OSError, ValueError):
                connection.logout()
            with suppress(imaplib.IMAP4.error, OSError, ValueError):
                connection.shutdown()

    def _connected(self) -> PlainConnection | TlsConnection:
        settings = self._settings
        options: dict[str, Any] = {
            "timeout": settings.timeout_ms / 1_000,
            "longest_literal": settings.largest_mail + _SLACK,
        }
        if settings.encryption == "tls":
            context = ssl.create_default_context()
            return TlsConnection(settings.host, settings.port, ssl_context=context, **options)
        connection = PlainConnection(settings.host, settings.port, **options)
        if settings.encryption == "starttls":
            connection.starttls(ssl.create_default_context())
        return connection

    def _log_in(self, connection: PlainConnection | TlsConnection) -> None:
        """The server's own words stay out of the error: it may repeat what it was told."""
        user, password = self._settings.user, self._settings.password
        can = {str(word).upper() for word in connection.capabilities}
        refused = NotAuthenticated(
            f"the IMAP server {self._settings.host} refused the login of {user!r}",
            code="imap.login_refused",
            hint='check user and password; some servers need encryption = "tls" before a login',
        )
        if "LOGINDISABLED" in can:
            raise refused
        try:
            if "AUTH=PLAIN" in can:
                connection.authenticate("PLAIN", lambda _: f"\0{user}\0{password}".encode())
            else:
                connection.login(quoted(user), password)
        except imaplib.IMAP4.abort:
            raise
        except (imaplib.IMAP4.error, UnicodeError):
            raise refused from None

    def _move(self, connection: PlainConnection | TlsConnection, numbers: str) -> None:
        folder = quoted(self._settings.move_to)
        command = "MOVE" if "MOVE" in self._can else "COPY"
        answer, _said = connection.uid(command, numbers, folder)
        if answer != "OK":
            connection.create(folder)
            self._must(connection.uid(command, numbers, folder))
        if command == "COPY":
            self._must(connection.uid("STORE", numbers, "+FLAGS.SILENT", r"(\Deleted)"))
            if "UIDPLUS" in self._can:  # without it, others' deleted mails would go, too
                self._must(connection.uid("EXPUNGE", numbers))

    def _must(self, answered: tuple[str, list[Any]]) -> None:
        if answered[0] != "OK":
            raise self._refused("taken mails cannot be marked or moved", answered[1])

    def _refused(self, what: str, said: Sequence[object]) -> SourceUnavailable:
        words = b" ".join(part for part in said if isinstance(part, bytes))
        return SourceUnavailable(f"{what}: {self._harmless(words.decode('latin-1'))}", code=REFUSED)

    @contextmanager
    def _told(self) -> Iterator[PlainConnection | TlsConnection]:
        """Translates the driver's errors."""
        try:
            yield self._connection  # type: ignore[misc]
        except RapportError:
            raise
        except (imaplib.IMAP4.error, OSError, EOFError, ValueError, AttributeError) as error:
            host = self._settings.host
            raise SourceUnavailable(
                f"the IMAP server {host} cannot be used: {self._harmless(str(error))}",
                code="imap.unavailable",
                hint="it is tried again",
            ) from None

    def _harmless(self, text: str) -> str:
        password = self._settings.password
        shown = text.replace(password, "...") if password else text
        return clean(shown)[:200]


def quoted(text: str) -> str:
    """A name as IMAP writes it: in modified UTF-7, in quotation marks, in one line.

    >>> quoted("Entwürfe & Co")
    '"Entw&APw-rfe &- Co"'
    """
    written, waiting = [], ""
    for character in [*clean(text), ""]:
        if character and not " " <= character <= "~":
            waiting += character
            continue
        if waiting:
            code = base64.b64encode(waiting.encode("utf-16-be", "surrogatepass")).decode()
            written.append(f"&{code.rstrip('=').replace('/', ',')}-")
            waiting = ""
        written.append({"&": "&-", '"': r"\"", "\\": r"\\"}.get(character, character))
    return f'"{"".join(written)}"'


def _words(said: Sequence[object]) -> frozenset[str]:
    lines = [part.decode("latin-1") for part in said if isinstance(part, bytes)]
    return frozenset(word.upper() for line in lines for word in line.split())


def _number(said: Sequence[Any]) -> int:
    return int(said[0]) if said and isinstance(said[0], bytes) and said[0].isdigit() else 0
