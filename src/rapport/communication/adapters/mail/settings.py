"""How mail goes out and comes in: `[adapters.mail]` and inputs of the kinds `imap` and `imap-push`.
[CO-16, UX-2]

```toml
[inputs.replies]
adapter = "imap"                       # or "imap-push": told by the server, no interval
host = "imap.example.org"
user = "alarm"
password = "file:imap.secret"
after = "move"                         # leave, flag or move what was taken
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import msgspec

from rapport.communication.adapters.secrets import read_secret_field
from rapport.kernel.config_fields import Fields

Encryption = Literal["tls", "starttls", "none"]
"""From the first byte, asked for before the login, or not at all (a server on this machine)."""

AfterTaking = Literal["leave", "flag", "move"]
"""What is done with a mail once its message is durable: nothing, marked as seen, or moved."""

ENCRYPTIONS: tuple[Encryption, ...] = ("tls", "starttls", "none")
AFTER_TAKING: tuple[AfterTaking, ...] = ("leave", "flag", "move")
IMAPS_PORT, IMAP_PORT = 993, 143
SMTP_PORTS: dict[Encryption, int] = {"tls": 465, "starttls": 587, "none": 25}
_ENCRYPT = 'write encryption = "tls"'
_LOCAL = ("127.0.0.1", "::1", "localhost")
LARGEST_MAIL = 32 * 1024 * 1024
MAIL_KEYS = (
    *("host", "port", "encryption", "sender", "reply_to", "user", "password", "timeout", "keep"),
    *("largest_text", "starttls"),
)
IMAP_KEYS = (
    *("host", "port", "encryption", "user", "password", "folder", "after", "move_to"),
    *("from_start", "timeout", "largest_mail", "most_mails"),
)
IMAP_PUSH_KEYS = (*IMAP_KEYS, "idle")


class MailSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.mail]` table. The password is read from a file or variable, never shown."""

    host: str = "127.0.0.1"
    port: int = 25
    encryption: Encryption = "none"
    sender: str = "rapport@localhost"
    """Also where the world's mail servers send what they could not deliver: read that mailbox."""
    reply_to: str = ""
    """Where people's replies go; empty = to `sender`. An `imap` input should read it."""
    user: str = ""
    password: str = ""
    timeout_ms: int = 10_000
    keep_ms: int = 5_000
    """How long an idle connection is kept: longer saves greetings, shorter frees the server."""
    largest_text: int = 1_000_000
    """Bytes of a text that is still sent; what is longer fails at once."""

    def __repr__(self) -> str:
        return f"MailSettings(host={self.host!r}, port={self.port}, user={self.user!r})"


class ImapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `imap` or `imap-push`. The password is never shown."""

    host: str = "127.0.0.1"
    port: int = IMAPS_PORT
    encryption: Encryption = "tls"
    user: str = ""
    password: str = ""
    folder: str = "INBOX"
    after: AfterTaking = "leave"
    move_to: str = "Rapport"
    """With `after = "move"`: the folder that taken mails go to; made when it is absent."""
    from_start: bool = True
    """Whether the first look takes what is there already; if not, only what comes later."""
    timeout_ms: int = 30_000
    largest_mail: int = 1_000_000
    """Bytes that are fetched of a mail. Of a larger one the rest is left out: its text stands
    first, attachments are not looked at. Memory is a small multiple of it.
    """
    most_mails: int = 100
    """Mails taken in one look; the others come with the next."""
    most_parts: int = 100
    """MIME parts of a mail, and how many of them may lie in each other is a tenth of it."""
    idle_ms: int = 300_000
    """How long `imap-push` waits for word from the server before it looks by itself."""

    def __repr__(self) -> str:
        return f"ImapSettings(host={self.host!r}, port={self.port}, user={self.user!r})"


def read_mail_settings(table: Fields, directory: Path) -> MailSettings:
    """What `[adapters.mail]` says; addresses are checked by the caller."""
    usual = MailSettings()
    # Until release 0.3 `starttls = true` says what `encryption = "starttls"` says.
    usually: Encryption = "starttls" if table.flag("starttls") else usual.encryption
    encryption = cast(Encryption, table.choice("encryption", ENCRYPTIONS, usually))
    settings = MailSettings(
        host=table.text("host", usual.host),
        port=table.number("port", SMTP_PORTS[encryption], low=1, high=65_535),
        encryption=encryption,
        sender=table.text("sender", usual.sender),
        reply_to=table.text("reply_to", ""),
        user=table.text("user", ""),
        password=read_secret_field("password", table, directory),
        timeout_ms=table.duration_ms("timeout", usual.timeout_ms, least=1),
        keep_ms=table.duration_ms("keep", usual.keep_ms),
        largest_text=table.number("largest_text", usual.largest_text, low=1, high=LARGEST_MAIL),
    )
    if settings.password and encryption == "none" and settings.host not in _LOCAL:
        message = "the password would go over the network in the clear"
        table.fault("encryption", "adapter.not_encrypted", message, hint=_ENCRYPT)
    return settings


def read_imap_input(table: Fields, directory: Path) -> ImapSettings:
    """What an input of the kind `imap` or `imap-push` says."""
    usual = ImapSettings()
    encryption = cast(Encryption, table.choice("encryption", ENCRYPTIONS, usual.encryption))
    port = IMAPS_PORT if encryption == "tls" else IMAP_PORT
    settings = ImapSettings(
        host=table.filled_text("host", example='"imap.example.org"'),
        port=table.number("port", port, low=1, high=65_535),
        encryption=encryption,
        user=table.filled_text("user", example='"alarm"'),
        password=read_secret_field("password", table, directory),
        folder=table.filled_text("folder", usual.folder),
        after=cast(AfterTaking, table.choice("after", AFTER_TAKING, usual.after)),
        move_to=table.filled_text("move_to", usual.move_to),
        from_start=table.flag("from_start", usual.from_start),
        timeout_ms=table.duration_ms("timeout", usual.timeout_ms, least=1),
        largest_mail=table.number("largest_mail", usual.largest_mail, low=1_000, high=LARGEST_MAIL),
        most_mails=table.number("most_mails", usual.most_mails, low=1, high=10_000),
        idle_ms=table.duration_ms("idle", usual.idle_ms, least=1),
    )
    _check_imap(table, settings)
    return settings


def _check_imap(table: Fields, settings: ImapSettings) -> None:
    if table.has("move_to") and settings.after != "move":
        message = 'move_to only means something with after = "move"'
        table.fault("move_to", "input.move_to_without_move", message)
    if settings.after == "move" and settings.move_to == settings.folder:
        message = "taken mails would be moved to where they are"
        table.fault("move_to", "input.move_to_itself", message, hint="name another folder")
    if settings.encryption == "none" and settings.host and settings.host not in _LOCAL:
        message = "the password would go over the network in the clear"
        table.fault("encryption", "input.not_encrypted", message, hint=_ENCRYPT)
