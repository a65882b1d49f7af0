"""Folders and FTP servers: `[adapters.folder]`, `[adapters.ftp]`, inputs of the kinds `folder` and
`ftp`. [CO-16, UX-2]

```toml
[adapters.folder.folders]              # addresses are folder:alarms
alarms = "out/alarms"

[adapters.ftp.servers.depot]           # addresses are ftp:depot
host = "ftp.example.org"
user = "rapport"
password = "env:DEPOT_PASSWORD"
tls = true

[inputs.pictures]
adapter = "ftp"                        # or "folder", with directory = "in"
host = "ftp.example.org"
folder = "pictures"
content = "notice"
sender = "peer:ana"
```

A peer's address names a declared folder or server (`folder:alarms`, `ftp:depot`), never a path:
what comes from outside cannot say where something is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import msgspec

from rapport.communication.adapters.secrets import read_secret_field
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.kernel.fields import Fields

AfterFetching = Literal["keep", "delete", "move"]
AFTER_FETCHING: tuple[AfterFetching, ...] = ("keep", "delete", "move")
FileContent = Literal["message", "notice"]
FILE_CONTENTS: tuple[FileContent, ...] = ("message", "notice")
FTP_PORT = 21
LARGEST_FILE = 32 * 1024 * 1024
FOLDER_KEYS = ("folders", "largest_text")
FTP_KEYS = ("servers", "largest_text")
FTP_SERVER_KEYS = ("host", "port", "user", "password", "tls", "folder", "timeout")
_FILES_KEYS = (
    *("content", "sender", "type", "subtype", "refers_to", "settle", "largest_file"),
    "most_files",
)
FOLDER_INPUT_KEYS = ("directory", *_FILES_KEYS)
FTP_INPUT_KEYS = (*FTP_SERVER_KEYS, *_FILES_KEYS, "after", "move_to")


class FolderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.folder]` table: names to directories, which exist."""

    folders: dict[str, str] = {}
    largest_text: int = 1_000_000
    """Bytes of a text that is still written; what is longer fails at once."""


class FileInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of files that come in, from a folder or from a server."""

    content: FileContent = "message"
    """`message`: a file is JSON of listing 1 or plain text. `notice`: a file is anything (a
    picture); the message tells its name, size and digest.
    """
    sender: str = ""
    """Who says what plain text and notices say, such as `peer:ana`; needed for those."""
    type: str = "FILE"
    subtype: str = ""
    refers_to: str = ""
    """The message that these files answer, if there is one."""
    settle_ms: int = 1_000
    """A file that did not change for so long is complete: longer is safer for slow writers."""
    largest_file: int = 1_000_000
    """Bytes of a file whose content becomes a message; a notice may tell of any size."""
    most_files: int = 100
    """Files taken in one look; the others come with the next."""


class FolderInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `folder`: the directory to look into, which exists."""

    directory: str
    files: FileInputSettings = FileInputSettings()


class FtpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server and a folder on it. The password is read from a file or variable, never shown."""

    host: str
    port: int = FTP_PORT
    user: str = "anonymous"
    password: str = ""
    tls: bool = False
    """FTPS: login and files are encrypted (`AUTH TLS`)."""
    folder: str = ""
    """Where files are looked for or stored; empty = where the server puts us after the login."""
    timeout_ms: int = 20_000

    def __repr__(self) -> str:
        return f"FtpServer(host={self.host!r}, port={self.port}, user={self.user!r})"


class FtpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.ftp]` table: servers that peers' addresses may name."""

    servers: dict[str, FtpServer] = {}
    largest_text: int = 1_000_000


class FtpInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the kind `ftp`."""

    server: FtpServer
    files: FileInputSettings = FileInputSettings()
    after: AfterFetching = "keep"
    """`keep` remembers what was seen; `delete` and `move` leave nothing to remember."""
    move_to: str = "done"
    """With `after = "move"`: a folder below the one that is watched; made when it is absent."""
    most_listed: int = 10_000
    """Files that a folder may hold; a fuller one is refused, since all must be remembered."""


def read_folders(table: Fields, directory: Path) -> FolderSettings:
    """What `[adapters.folder]` says; directories are relative to the site."""
    below = table.table("folders", None, '{ alarms = "out/alarms" }')
    found: dict[str, str] = {}
    for name in below.section.values if below is not None else ():
        assert below is not None
        _check_name(below, name)
        found[name] = _directory(below, name, directory)
    return FolderSettings(folders=found, largest_text=_largest_text(table))


def read_ftp(table: Fields, directory: Path) -> FtpSettings:
    """What `[adapters.ftp]` says."""
    below = table.table("servers", None, '{ depot = { host = "ftp.example.org" } }')
    found: dict[str, FtpServer] = {}
    for name in below.section.values if below is not None else ():
        assert below is not None
        _check_name(below, name)
        server = below.table(name, FTP_SERVER_KEYS, '{ host = "ftp.example.org" }')
        if server is not None:
            found[name] = _server(server, directory)
    return FtpSettings(servers=found, largest_text=_largest_text(table))


def read_folder_input(table: Fields, directory: Path) -> FolderInputSettings:
    """What an input of the kind `folder` says; the directory is relative to the site."""
    place = _directory(table, "directory", directory)
    return FolderInputSettings(directory=place, files=_files(table))


def read_ftp_input(table: Fields, directory: Path) -> FtpInputSettings:
    """What an input of the kind `ftp` says."""
    usual = FtpInputSettings(server=FtpServer(host=""))
    after = cast(AfterFetching, table.choice("after", AFTER_FETCHING, usual.after))
    move_to = table.filled_text("move_to", usual.move_to)
    if table.has("move_to") and after != "move":
        message = 'move_to only means something with after = "move"'
        table.fault("move_to", "input.move_to_without_move", message)
    if "/" in move_to or move_to in (".", ".."):
        table.wrong("move_to", "the name of a folder below", 'move_to = "done"')
    return FtpInputSettings(
        server=_server(table, directory), files=_files(table), after=after, move_to=move_to
    )


def _server(table: Fields, directory: Path) -> FtpServer:
    usual = FtpServer(host="")
    return FtpServer(
        host=table.filled_text("host", example='"ftp.example.org"'),
        port=table.number("port", usual.port, low=1, high=65_535),
        user=table.filled_text("user", usual.user),
        password=read_secret_field("password", table, directory),
        tls=table.flag("tls"),
        folder=table.text("folder", ""),
        timeout_ms=table.duration_ms("timeout", usual.timeout_ms, least=1),
    )


def _files(table: Fields) -> FileInputSettings:
    usual = FileInputSettings()
    content = cast(FileContent, table.choice("content", FILE_CONTENTS, usual.content))
    sender = table.text("sender", "")
    if sender:
        try:
            Identifier.parse(sender)
        except InvalidInput as error:
            table.report("sender", error)
    elif content == "notice":
        message = "a notice needs somebody who says it"
        table.fault("sender", "input.no_sender", message, hint='write sender = "peer:NAME"')
    return FileInputSettings(
        content=content,
        sender=sender,
        type=table.filled_text("type", usual.type),
        subtype=table.text("subtype", usual.subtype),
        refers_to=table.text("refers_to", usual.refers_to),
        settle_ms=table.duration_ms("settle", usual.settle_ms, least=1),
        largest_file=table.number("largest_file", usual.largest_file, low=1, high=LARGEST_FILE),
        most_files=table.number("most_files", usual.most_files, low=1, high=10_000),
    )


def _directory(table: Fields, key: str, site: Path) -> str:
    """An existing directory, absolute."""
    text = table.filled_text(key, example='"files"')
    if text and not (site / text).is_dir():
        message = f"there is no directory {text!r}"
        table.fault(key, "adapter.no_directory", message, hint=f"mkdir -p {text}")
    return str((site / text).resolve()) if text else ""


def _check_name(table: Fields, name: str) -> None:
    if not is_place_name(name):
        table.fault(
            name,
            "adapter.bad_place_name",
            f"{name[:80]!r} cannot be part of an address",
            hint="letters, digits, - and _, at most 64 of them",
        )


def is_place_name(text: str) -> bool:
    """Whether it can name a folder or server in an address: never a path.

    >>> is_place_name("alarms"), is_place_name("../etc")
    (True, False)
    """
    plain = text.replace("-", "").replace("_", "")
    return 0 < len(text) <= 64 and plain.isascii() and plain.isalnum()


def _largest_text(table: Fields) -> int:
    usual = FolderSettings().largest_text
    return table.number("largest_text", usual, low=1, high=LARGEST_FILE)
