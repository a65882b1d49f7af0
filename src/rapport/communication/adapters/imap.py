"""Mail from an IMAP folder: inputs of the kinds `imap` (pulled) and `imap-push` (IDLE). [CO-5,
CO-16, UX-2]

```toml
[inputs.replies]
adapter = "imap"                       # or "imap-push": notified by the server, no interval
host = "imap.example.org"
user = "alarm"
password = "file:imap.secret"
after = "move"                         # leave, flag or move mails that were read
```

`MailReader` reads a folder from its durable cursor on. `Mailbox` blocks and has a thread of its
own; errors of the driver become ours there, without anything that the server could have repeated of
the login. `ImapConnection` adds to the standard library's client bounded reading, IDLE, and
interruption from another thread.
"""

from __future__ import annotations

import asyncio
import base64
import imaplib
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self, TypeVar, cast

import msgspec
from msgspec import Meta

from rapport.communication.adapters.base import (
    read_secret_field,
)
from rapport.communication.adapters.input_base import (
    AdapterState,
    Intake,
    RejectedInput,
    kept_raw,
    refused_input,
)
from rapport.communication.adapters.mail import (
    _ENCRYPT,
    _LOCAL,
    ENCRYPTIONS,
    LARGEST_MAIL,
    Encryption,
)
from rapport.communication.adapters.mail_parser import MailLimits
from rapport.communication.adapters.mail_replies import (
    AmbiguousAnswer,
    Bounce,
    MailContext,
    MailHandlers,
    MailMeaning,
    MailWithAttachments,
    meaning_of,
)
from rapport.communication.arrivals import TOO_FAST, ArrivalResult
from rapport.communication.texts import clean
from rapport.core.errors import (
    InvalidInput,
    NotAuthenticated,
    RapportError,
    SourceUnavailable,
    Unavailable,
    Unsupported,
)
from rapport.core.event import content_id
from rapport.core.message import Message
from rapport.kernel.config_fields import Fields, keys_of
from rapport.kernel.tasks import run_blocking

# --- settings ---


AfterTaking = Literal["leave", "flag", "move"]
"""The treatment of a mail whose message is durable: left, marked as seen, or moved."""
IMAPS_PORT, IMAP_PORT = 993, 143


class ImapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `imap` or `imap-push`. The password is never shown."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535)] = IMAPS_PORT
    encryption: Encryption = "tls"
    user: str = ""
    password: str = ""
    folder: Annotated[str, Meta(min_length=1)] = "INBOX"
    after: AfterTaking = "leave"
    move_to: Annotated[str, Meta(min_length=1)] = "Rapport"
    """With `after = "move"`: the folder for mails that were read; created when it is absent."""
    from_start: bool = True
    """Whether the first pull reads existing mails, or only later ones."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 30_000
    largest_mail: Annotated[int, Meta(ge=1_000, le=LARGEST_MAIL)] = 1_000_000
    """Bytes fetched of a mail. The rest of a larger one is left out: its text stands first,
    attachments are not read. Memory is a small multiple of it.
    """
    most_mails: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Mails read in one pull."""
    most_parts: int = 100
    """MIME parts of a mail; a tenth of it may be nested."""
    idle_ms: Annotated[int, Meta(ge=1)] = 300_000
    """How long `imap-push` waits for the server before it looks by itself."""

    def __repr__(self) -> str:
        return f"ImapSettings(host={self.host!r}, port={self.port}, user={self.user!r})"


IMAP_PUSH_KEYS = keys_of(ImapSettings, but=("most_parts",))
IMAP_KEYS = tuple(key for key in IMAP_PUSH_KEYS if key != "idle")


def read_imap_input(table: Fields, directory: Path) -> ImapSettings:
    """The settings of an input of the kind `imap` or `imap-push`."""
    default = ImapSettings()
    encryption = cast(Encryption, table.choice("encryption", ENCRYPTIONS, default.encryption))
    settings = table.settings(
        ImapSettings(port=IMAPS_PORT if encryption == "tls" else IMAP_PORT),
        host=table.filled_text("host", example='"imap.example.org"'),
        encryption=encryption,
        user=table.filled_text("user", example='"alarm"'),
        password=read_secret_field("password", table, directory),
        most_parts=default.most_parts,
    )
    _check_imap(table, settings)
    return settings


def _check_imap(table: Fields, settings: ImapSettings) -> None:
    if table.has("move_to") and settings.after != "move":
        message = 'move_to only means something with after = "move"'
        table.fault("move_to", "input.move_to_without_move", message)
    if settings.after == "move" and settings.move_to == settings.folder:
        message = "mails would be moved to the folder they are in"
        table.fault("move_to", "input.move_to_itself", message, hint="name another folder")
    if settings.encryption == "none" and settings.host and settings.host not in _LOCAL:
        message = "the password would go over the network in the clear"
        table.fault("encryption", "input.not_encrypted", message, hint=_ENCRYPT)


# --- connection ---


_LONGEST_LINE = 10_000_000
"""A search is answered with one line: eight bytes for each mail found."""
_READ_BYTES = 65_536
_SIZE = re.compile(rb"RFC822\.SIZE (\d+)")
REFUSED = "imap.refused"
_SLACK = 65_536
"""For literals that are no mails (folder names)."""


class ImapConnection(imaplib.IMAP4):
    """Reads from the socket itself, so that it never reads more than it requested."""

    def __init__(self, *arguments: Any, longest_literal: int, **options: Any) -> None:
        self._received = bytearray()
        self._longest_literal = longest_literal
        super().__init__(*arguments, **options)

    def readline(self) -> bytes:
        """One line with its end; raises `abort` when the server closes or the line is too long."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _LONGEST_LINE:
                raise self.abort("the server wrote a line without end")
            self._receive()
        return self._pop(end + 1)

    def read(self, size: int) -> bytes:
        """So many bytes; a longer literal than was requested is refused before it is read."""
        if size > self._longest_literal:
            raise self.abort("the server sent more than was requested")
        while len(self._received) < size:
            self._receive()
        return self._pop(size)

    def idle(self, seconds: float) -> None:
        """Waits until the server sends anything, or so long; the connection can be used
        afterwards.
        """
        tag = self._new_tag()
        self.send(tag + b" IDLE\r\n")
        while not (line := self.readline()).startswith(b"+"):
            if line.startswith(tag):
                raise self.error("the server refused to wait")
        self._wait(seconds)
        self.send(b"DONE\r\n")
        while not self.readline().startswith(tag):
            continue  # what it reports meanwhile is found by the next search

    def interrupt(self) -> None:
        """From another thread: the reader gets `abort`."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def starttls(self, ssl_context: ssl.SSLContext | None = None) -> Any:
        """Encrypts; data that came in the clear after the server's agreement is refused."""
        answer = super().starttls(ssl_context)
        if self._received:
            raise self.abort("data was inserted before the connection was encrypted")
        return answer

    def _wait(self, seconds: float) -> None:
        if self._received or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        waiting.poll(seconds * 1_000)

    def _receive(self) -> None:
        arrived = self.sock.recv(_READ_BYTES)
        if not arrived:
            raise self.abort("the server closed the connection")
        self._received += arrived

    def _pop(self, count: int) -> bytes:
        popped = bytes(self._received[:count])
        del self._received[:count]
        return popped


class TlsConnection(ImapConnection, imaplib.IMAP4_SSL):
    """Encrypted from the first byte."""


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
        self._connection: ImapConnection | None = None
        self.validity, self.next_uid = 0, 1
        self._can: frozenset[str] = frozenset()
        self._more = False

    def open(self) -> None:
        """Connects, logs in and opens the folder; raises SourceUnavailable or NotAuthenticated."""
        with self._translated():
            self._connection = connection = self._connected()
            self._log_in(connection)
            self._can = _words(connection.capability()[1])
            answer, response = connection.select(
                quoted(self._settings.folder), readonly=self._settings.after == "leave"
            )
            if answer != "OK":
                raise self._refused(
                    f"the folder {self._settings.folder!r} cannot be opened", response
                )
            self.validity = _number(connection.response("UIDVALIDITY")[1])
            self.next_uid = _number(connection.response("UIDNEXT")[1]) or 1

    def uids_after(self, uid: int) -> list[int]:
        """The numbers of all later mails, in order."""
        with self._translated() as connection:
            connection.noop()  # lets the server report new mails
            untagged = connection.untagged_responses
            untagged.pop("EXISTS", None)
            answer, response = connection.uid("SEARCH", "UID", f"{uid + 1}:*")
            self._more = "EXISTS" in untagged  # reported now, it is not reported again by IDLE
            if answer != "OK":
                raise self._refused("the folder cannot be searched", response)
            found = {
                int(word) for line in response if line for word in line.split() if word.isdigit()
            }
            return sorted(number for number in found if number > uid)  # `n:*` names the last always

    def fetch(self, uid: int) -> FetchedMail | None:
        """The mail, up to the size of the settings; None when it no longer exists."""
        most = self._settings.largest_mail
        with self._translated() as connection:
            wanted = f"(RFC822.SIZE BODY.PEEK[]<0.{most}>)"
            answer, response = connection.uid("FETCH", str(uid), wanted)
            if answer != "OK":
                raise self._refused(f"mail {uid} cannot be fetched", response)
            # Servers may say the size before the mail or after it.
            literals = [part for part in response if isinstance(part, tuple)]
            about = [part[0] if isinstance(part, tuple) else part for part in response]
            size = _SIZE.search(b" ".join(part for part in about if isinstance(part, bytes)))
            if size is None:
                return None
            return FetchedMail(uid, literals[0][1] if literals else b"", int(size[1]) > most)

    def settle(self, uids: Sequence[int]) -> None:
        """Marks or moves mails that were read, as the settings say; repeating it is harmless."""
        if not uids or self._settings.after == "leave":
            return
        numbers = ",".join(map(str, uids))
        with self._translated() as connection:
            if self._settings.after == "flag":
                self._must(connection.uid("STORE", numbers, "+FLAGS.SILENT", r"(\Seen)"))
            else:
                self._move(connection, numbers)

    def wait(self, seconds: float) -> None:
        """Waits until the server reports news, or so long; raises Unsupported without IDLE."""
        if "IDLE" not in self._can:
            raise Unsupported(
                "waiting for mail (IDLE)", "this IMAP server", hint='use adapter = "imap"'
            )
        if self._more:
            return
        with self._translated() as connection:
            connection.idle(seconds)

    def interrupt(self) -> None:
        """From another thread: the running command fails at once."""
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Closes the connection; a second call is no error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(imaplib.IMAP4.error, OSError, ValueError):
                connection.logout()
            with suppress(imaplib.IMAP4.error, OSError, ValueError):
                connection.shutdown()

    def _connected(self) -> ImapConnection:
        settings = self._settings
        options: dict[str, Any] = {
            "timeout": settings.timeout_ms / 1_000,
            "longest_literal": settings.largest_mail + _SLACK,
        }
        if settings.encryption == "tls":
            context = ssl.create_default_context()
            return TlsConnection(settings.host, settings.port, ssl_context=context, **options)
        connection = ImapConnection(settings.host, settings.port, **options)
        if settings.encryption == "starttls":
            connection.starttls(ssl.create_default_context())
        return connection

    def _log_in(self, connection: ImapConnection) -> None:
        """Logs in. The server's own words stay out of the error: it may repeat the password."""
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

    def _move(self, connection: ImapConnection, numbers: str) -> None:
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
            raise self._refused("mails that were read cannot be marked or moved", answered[1])

    def _refused(self, what: str, response: Sequence[object]) -> SourceUnavailable:
        words = b" ".join(part for part in response if isinstance(part, bytes))
        return SourceUnavailable(f"{what}: {self._harmless(words.decode('latin-1'))}", code=REFUSED)

    @contextmanager
    def _translated(self) -> Iterator[ImapConnection]:
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
    """A name in IMAP's form: modified UTF-7, in quotation marks, in one line.

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


def _words(response: Sequence[object]) -> frozenset[str]:
    lines = [part.decode("latin-1") for part in response if isinstance(part, bytes)]
    return frozenset(word.upper() for line in lines for word in line.split())


def _number(response: Sequence[Any]) -> int:
    return (
        int(response[0])
        if response and isinstance(response[0], bytes) and response[0].isdigit()
        else 0
    )


# --- inputs ---


_PLACE = "place"
_PATIENCE = 4
"""One call may take so many timeouts: each answer of the server has one."""
_MOST_REFUSALS, _MOST_BREAKS = 3, 10
"""How often a mail is tried that the server refuses, or at which the connection ends; then it
becomes a dead letter. With the pauses between pulls the second takes a quarter of an hour.
"""
_NOT_GIVEN = "mail.refused_by_server"
_PULL_SECONDS = 60
"""A pull ends after this time with the mails it has: a longer one would be cut off, and begin with
the same mails for ever.
"""
T = TypeVar("T")


class MailCursor(msgspec.Struct, frozen=True):
    """The position in a folder: mails up to `uid`, in the numbering `validity`."""

    validity: int = 0
    uid: int = 0


class MailBatch(msgspec.Struct, frozen=True):
    """The result of reading a folder once. The next read begins at `cursor` once all is durable."""

    cursor: MailCursor
    messages: list[Message]
    uids: list[int]
    is_empty: bool
    refused: list[MailWithAttachments] = []
    """Those of `messages` whose attachments are not kept."""
    is_cut: bool = False
    """The connection has ended: marking mails needs another one."""


class MailReader:
    """Reads a folder from its durable cursor on, for pull and push."""

    def __init__(self, settings: ImapSettings, known: MailContext, handlers: MailHandlers) -> None:
        """The functions of `known` are called from a thread."""
        self.settings, self._known, self._handlers = settings, known, handlers
        depth = max(settings.most_parts // 10, 2)
        self._limits = MailLimits(
            parts=settings.most_parts, depth=depth, text=settings.largest_mail
        )
        self._state: AdapterState | None = None
        self._refusals: dict[int, int] = {}

    def open(self, state: AdapterState) -> None:
        self._state = state

    async def read(self, session: ImapSession) -> MailBatch:
        """The messages of the next mails; dead letters and bounces are written already."""
        place = self._start_cursor(session.mailbox, await self._load_cursor())
        new = await session.run(partial(session.mailbox.uids_after, place.uid))
        uids, messages, last, is_cut = list[int](), list[Message](), place.uid, False
        refused: list[MailWithAttachments] = []
        if new:
            await self._handlers.catch_up()
        loop = asyncio.get_running_loop()
        until = loop.time() + _PULL_SECONDS
        for uid in new[: self.settings.most_mails]:
            if last != place.uid and loop.time() >= until:
                break  # the others come with the next pull
            try:
                meaning = await session.run(partial(self._read, session.mailbox, uid))
            except Unavailable:
                if last == place.uid:
                    raise
                is_cut = True
                break  # perhaps because of this mail; those before it are published
            last = uid
            if not (isinstance(meaning, RejectedInput) and meaning.code == _NOT_GIVEN):
                uids.append(uid)  # a mail that could not be read stays unmarked
            if isinstance(meaning, Message):
                messages.append(meaning)
            elif isinstance(meaning, MailWithAttachments):
                messages.append(meaning.message)
                refused.append(meaning)
            elif isinstance(meaning, Bounce):
                await self._handlers.bounced(meaning)
            elif isinstance(meaning, RejectedInput):
                await self._handlers.dead_letter(meaning)
            elif isinstance(meaning, AmbiguousAnswer):
                await self._handlers.dead_letter(meaning.letter)
                messages.append(meaning.message)
        return MailBatch(
            MailCursor(place.validity, last),
            messages,
            uids,
            is_empty=last == place.uid,
            refused=refused,
            is_cut=is_cut,
        )

    async def settle(
        self, batch: MailBatch, arrivals: Sequence[ArrivalResult], session: ImapSession | None
    ) -> None:
        """Marks or moves the mails of durable messages, then commits the cursor. In this order:
        after a crash in between, mails are at most read once more.
        """
        for message, arrival in zip(batch.messages, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                return  # all of it comes again with the next pull, and known messages are dropped
            if not arrival.accepted:
                await self._handlers.dead_letter(refused_input(message, arrival.why))
        taken = [arrival.accepted for arrival in arrivals]
        accepted = [message.id for message, took in zip(batch.messages, taken, strict=True) if took]
        for one in batch.refused:
            if one.message.id in accepted:
                await self._handlers.refuse_attachments(one)
        if batch.uids and session is not None:
            await session.run(partial(session.mailbox.settle, batch.uids))
        if batch.cursor != await self._load_cursor():
            await self._opened_state().put(_PLACE, msgspec.msgpack.encode(batch.cursor))

    def _read(self, mailbox: Mailbox, uid: int) -> MailMeaning | None:
        """The meaning of a mail, None when it no longer exists; in the session's thread."""
        try:
            mail = mailbox.fetch(uid)
        except SourceUnavailable as error:
            return self._refused(mailbox, uid, error)
        if mail is None:
            return None
        meaning = meaning_of(mail.raw, self._known, self._limits, cut=mail.cut)
        raw = b"" if mail.cut else kept_raw(mail.raw)
        if isinstance(meaning, RejectedInput):
            return msgspec.structs.replace(meaning, raw=raw)
        if isinstance(meaning, AmbiguousAnswer):
            letter = msgspec.structs.replace(meaning.letter, raw=raw)
            return msgspec.structs.replace(meaning, letter=letter)
        return meaning

    async def read_again(self, found: RejectedInput) -> Message | None:
        """See RereadsInput: the meaning of a mail by the rules and addresses of now."""
        await self._handlers.catch_up()
        meaning = await run_blocking(partial(meaning_of, found.raw, self._known, self._limits))
        match meaning:
            case Message():
                return meaning
            case MailWithAttachments():
                return meaning.message
            case Bounce():
                await self._handlers.bounced(meaning)
                return None
        letter = meaning.letter if isinstance(meaning, AmbiguousAnswer) else meaning
        raise InvalidInput(letter.reason, code=letter.code)

    def _refused(self, mailbox: Mailbox, uid: int, error: SourceUnavailable) -> RejectedInput:
        """A mail that the server cannot deliver must not block later ones for ever. The connection
        worked a moment ago, so its end may be because of the mail.
        """
        most = _MOST_REFUSALS if error.code == REFUSED else _MOST_BREAKS
        failures = self._refusals.get(uid, 0) + 1
        self._refusals = {uid: failures}  # looks begin with it until it is dealt with
        if failures < most:
            raise error
        self._refusals = {}
        return RejectedInput(
            id=content_id("mail", self.settings.user, str(mailbox.validity), str(uid)),
            code=_NOT_GIVEN,
            reason=error.message,
        )

    def _start_cursor(self, mailbox: Mailbox, kept: MailCursor | None) -> MailCursor:
        """The cursor to start at; a new numbering starts at the first mail, and known mails are
        recognised by their ids.
        """
        if kept is None and not self.settings.from_start:
            return MailCursor(mailbox.validity, mailbox.next_uid - 1)
        if kept is None or kept.validity != mailbox.validity:
            return MailCursor(mailbox.validity, 0)
        return kept

    async def _load_cursor(self) -> MailCursor | None:
        kept = await self._opened_state().get(_PLACE)
        return None if kept is None else msgspec.msgpack.decode(kept, type=MailCursor)

    def _opened_state(self) -> AdapterState:
        if self._state is None:
            raise RuntimeError("the mail input was not opened")
        return self._state


class ImapSession:
    """An open mailbox and its thread."""

    def __init__(self, settings: ImapSettings) -> None:
        self.mailbox, self._settings = Mailbox(settings), settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="imap")

    async def __aenter__(self) -> Self:
        try:
            await self.run(self.mailbox.open)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    async def run(self, work: Callable[[], T], *, longest_ms: int = 0) -> T:
        """Runs blocking work; when it is cancelled or too slow the connection is cut, which ends
        it. A result that comes all the same counts.
        """
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        longest_ms = longest_ms or self._settings.timeout_ms * _PATIENCE
        try:
            done, _ = await asyncio.wait([running], timeout=longest_ms / 1_000)
            if not done:
                self.mailbox.interrupt()
                await asyncio.wait([running])
        except BaseException:
            self.mailbox.interrupt()
            await asyncio.wait([running])
            raise
        if not done and running.exception() is not None:
            raise SourceUnavailable(
                f"the IMAP server {self._settings.host} did not answer in time",
                code="imap.unavailable",
            )
        return running.result()

    async def _leave(self) -> None:
        try:
            await self.run(self.mailbox.close)
        finally:
            self._thread.shutdown(wait=False)


class ImapInput:
    """The pull adapter: each pull has a connection of its own."""

    name = "imap"

    def __init__(self, settings: ImapSettings, known: MailContext, handlers: MailHandlers) -> None:
        self._reader = MailReader(settings, known, handlers)
        self._batch: MailBatch | None = None

    async def open(self, state: AdapterState) -> None:
        self._reader.open(state)

    async def pull(self) -> list[Message]:
        """Messages of new mails; raises SourceUnavailable or NotAuthenticated."""
        async with ImapSession(self._reader.settings) as session:
            batch = self._batch = await self._reader.read(session)
            if not batch.messages and not batch.is_cut:
                await self._reader.settle(batch, (), session)
        if not batch.messages and batch.is_cut:
            await _settle_anew(self._reader, batch, ())
        return batch.messages

    async def read_again(self, found: RejectedInput) -> Message | None:
        return await self._reader.read_again(found)

    async def pulled(self, _messages: Sequence[Message], arrivals: Sequence[ArrivalResult]) -> None:
        """The messages are durable: the cursor is committed."""
        batch, self._batch = self._batch, None
        if batch is None or not batch.messages:
            return
        await _settle_anew(self._reader, batch, arrivals)


class ImapPushInput:
    """The push adapter: one connection waits for the server (IDLE)."""

    name = "imap-push"

    def __init__(self, settings: ImapSettings, known: MailContext, handlers: MailHandlers) -> None:
        self._reader = MailReader(settings, known, handlers)
        self._intake: Intake | None = None

    async def start(self, intake: Intake) -> None:
        """Begins to listen; an unavailable server is tried again with growing pauses."""
        self._intake = intake
        self._reader.open(intake.state)
        intake.schedule(self._listen, name="imap")

    async def read_again(self, found: RejectedInput) -> Message | None:
        return await self._reader.read_again(found)

    async def stop(self) -> None:
        """The listening task has been cancelled before, and with it the connection."""
        self._intake = None

    async def _listen(self) -> None:
        idle_ms = self._reader.settings.idle_ms
        async with ImapSession(self._reader.settings) as session:
            while (intake := self._intake) is not None:
                batch = await self._reader.read(session)
                # Also of no messages: the mailbox can be read.
                arrivals = await intake.publish(batch.messages)
                if any(arrival.reason == TOO_FAST for arrival in arrivals):
                    # The supervisor of this task calls it again, later each time.
                    raise Unavailable("the engine takes no more now", code="input.too_fast")
                if batch.is_cut:
                    await _settle_anew(self._reader, batch, arrivals)
                    raise Unavailable("the connection has ended", code="imap.unavailable")
                await self._reader.settle(batch, arrivals, session)
                if batch.is_empty:
                    wait = partial(session.mailbox.wait, idle_ms / 1_000)
                    longest_ms = idle_ms + self._reader.settings.timeout_ms * _PATIENCE
                    await session.run(wait, longest_ms=longest_ms)


async def _settle_anew(
    reader: MailReader, batch: MailBatch, arrivals: Sequence[ArrivalResult]
) -> None:
    """As `settle`, with a new connection where one is needed."""
    if reader.settings.after == "leave":
        await reader.settle(batch, arrivals, None)
        return
    async with ImapSession(reader.settings) as session:
        await reader.settle(batch, arrivals, session)
