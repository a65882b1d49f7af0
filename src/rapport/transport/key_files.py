"""Keys on disk: a TOML file that only its owner can read, changed whole, taken up while in use.
[CX-9]

    own = "brokers"            # who holds this file; needed only where it cannot be told

    [[keys]]
    id = "0123456789abcdef"
    owner = "brokers"
    kind = "network"           # or "client"
    secret = "..."             # 32 bytes in base64
    from = 2026-01-01T00:00:00Z
    until = 2027-01-01T00:00:00Z
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, replace
from pathlib import Path

from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    RapportError,
    SiteError,
    StoreUnavailable,
    UnknownName,
)
from rapport.core.times import format_time
from rapport.kernel.paths import sync_path
from rapport.kernel.secret_files import read_secret_file, write_secret_file
from rapport.kernel.telemetry import get_logger
from rapport.transport.key_table import read_key_table
from rapport.transport.keys import FOREVER_MS, DatagramKey, DatagramKeys

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What a file of keys says."""

    keys: tuple[DatagramKey, ...] = ()
    own: str = ""

    def ring(self) -> DatagramKeys:
        """The keys to seal and open with; raises InvalidInput."""
        return DatagramKeys(self.keys, own=self.own)


def load_keys(path: Path) -> DatagramKeys:
    """The ring in a file; raises InvalidInput or SiteError, which tell no secret."""
    return read_key_file(path).ring()


def read_key_file(path: Path) -> KeyFile:
    """What a file says; a file that others may read is refused."""
    return _parse(path, _read(path))


def add_key(path: Path, key: DatagramKey) -> None:
    """Adds a key to a file, or makes the file; durable. Raises Conflict when another changes it."""
    if not path.exists():
        write_secret_file(path, _as_toml(KeyFile((key,))))
        return
    before = _read(path)
    known = _parse(path, before)
    _replace(path, before, replace(known, keys=(*known.keys, key)))


def retire_key(path: Path, id: str, at_ms: int) -> DatagramKey:
    """Lets a key end at a wall time; raises UnknownName, InvalidInput for one that ends sooner."""
    before = _read(path)
    known = _parse(path, before)
    found = next((key for key in known.keys if key.id == id), None)
    if found is None:
        raise UnknownName("key", id, [key.id for key in known.keys], code="keys.unknown_key")
    if found.until_ms <= at_ms:
        raise InvalidInput(
            f"the key {id} ends at {format_time(found.until_ms)} already", code="keys.ended"
        )
    # A key that has not begun is retired by beginning and ending in the past.
    retired = replace(found, from_ms=min(found.from_ms, max(at_ms - 1, 0)), until_ms=at_ms)
    keys = tuple(retired if key.id == id else key for key in known.keys)
    _replace(path, before, replace(known, keys=keys))
    return retired


def share_keys(path: Path, owner: str, to: Path) -> tuple[DatagramKey, ...]:
    """Makes a new file with the keys of one owner, to be given to it; raises UnknownName."""
    known = read_key_file(path)
    chosen = tuple(key for key in known.keys if key.owner == owner)
    if not chosen:
        owners = sorted({key.owner for key in known.keys})
        raise UnknownName("owner of keys", owner, owners, code="keys.unknown_owner")
    write_secret_file(to, _as_toml(KeyFile(chosen)))
    return chosen


class KeyFileWatch:
    """A ring that follows its file: whoever serves calls `refresh` now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _stamp(path)
        self.keys = load_keys(path)

    def refresh(self) -> bool:
        """Takes up a changed file; true when it did. A file that cannot be used is logged, and the
        keys stay as they were. Costs a `stat` when nothing changed.
        """
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.keys.replace_with(load_keys(self._path))
        except RapportError as error:
            _log.error("keys stay as they were", file=str(self._path), error=error.message)
            return False
        return True


def _stamp(path: Path) -> tuple[int, int, int]:
    """Another after any change, of its mode too: others may have been let read it till now."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ctime_ns, found.st_size, found.st_ino)


def _read(path: Path) -> bytes:
    raw = read_secret_file(path)
    if path.stat().st_mode & 0o077:
        raise InvalidInput(
            f"others may read the keys in {path}",
            code="keys.readable_by_others",
            hint=f"chmod 600 {path}; if they may have been read, make new ones",
        )
    return raw


def _parse(path: Path, raw: bytes) -> KeyFile:
    own, keys, problems = read_key_table(raw, name=path.name)
    if problems:
        raise SiteError(problems)
    return KeyFile(keys, own)


def _replace(path: Path, before: bytes, after: KeyFile) -> None:
    """Puts the new file in place of the one that was read; whole, durable, by one at a time."""
    part = path.with_name(f".{path.name}.changing")
    try:
        write_secret_file(part, _as_toml(after))
    except DuplicateName:
        raise Conflict(
            f"another process changes {path}",
            code="keys.changed",
            hint=f"try it again; when no other does, remove {part}",
        ) from None
    try:
        if path.read_bytes() != before:
            raise Conflict(
                f"{path} was changed meanwhile", code="keys.changed", hint="try it again"
            )
        os.replace(part, path)
        sync_path(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}", code="store.disk_failed"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _as_toml(file: KeyFile) -> bytes:
    lines = ["# Secrets: whoever reads this file can speak as the owners of its keys."]
    if file.own:
        lines += [f'own = "{file.own}"']
    for key in file.keys:
        lines += [
            "",
            "[[keys]]",
            f'id = "{key.id}"',
            f'owner = "{key.owner}"',
            f'kind = "{key.kind}"',
            f'secret = "{base64.b64encode(key.secret).decode()}"',
            f"from = {format_time(key.from_ms)}",
        ]
        if key.until_ms != FOREVER_MS:
            lines += [f"until = {format_time(key.until_ms)}"]
    return ("\n".join(lines) + "\n").encode()
