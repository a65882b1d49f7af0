"""Shared keys of datagrams: key rings, their validity, and the TOML file that stores them. [CX-9]

Members of a network share the network's keys and know each client's; a client knows only its own.
The file is readable only by its owner, replaced in one step, and reloaded while in use:

    own = "brokers"            # the holder of this file; needed only if it is ambiguous

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
import binascii
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    Problem,
    RapportError,
    SiteError,
    StoreUnavailable,
    Unavailable,
    UnknownName,
)
from rapport.core.times import format_time, parse_time
from rapport.kernel.files import create_secret_file, read_secret_file, write_atomically
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import TomlFile

KeyKind = Literal["network", "client"]
KEY_KINDS = ("network", "client")
SECRET_BYTES = 32
FOREVER_MS = 253_402_300_799_999
"""The end of the year 9999."""

RESERVED = "local"
"""A key with this owner would have the rights of the receiving process itself."""
_ID = re.compile(r"[0-9a-f]{16}\Z")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class DatagramKey:
    """A shared secret. It appears in no `repr` and no error."""

    id: str
    """Sixteen hexadecimal digits, sent in clear with each datagram."""
    owner: str
    """The identity of the key's holders."""
    kind: KeyKind
    """`network`: for members, which trust each other; `client`: for consumers and providers."""
    secret: bytes = field(repr=False)
    from_ms: int = 0
    """Valid from this wall time; the key with the latest is the newest."""
    until_ms: int = FOREVER_MS
    """Valid until before this wall time."""

    def is_valid_at(self, wall_ms: int) -> bool:
        return self.from_ms <= wall_ms < self.until_ms


def make_key(owner: str, kind: str, *, from_ms: int = 0, until_ms: int = FOREVER_MS) -> DatagramKey:
    """A new key with a random secret; raises InvalidInput."""
    secret, id = secrets.token_bytes(SECRET_BYTES), secrets.token_hex(8)
    return checked_key(id, owner, kind, secret, from_ms, until_ms)


def checked_key(
    id: str, owner: str, kind: str, secret: bytes, from_ms: int, until_ms: int
) -> DatagramKey:
    """Validates the fields of a key; raises InvalidInput with the wrong one."""
    faults = {
        "the id must be 16 hexadecimal digits": not _ID.match(id),
        "an owner has up to 64 letters, digits and . _ -": not _OWNER.match(owner),
        f"the owner {RESERVED!r} is reserved for the process itself": owner == RESERVED,
        "the kind must be network or client": kind not in KEY_KINDS,
        f"the secret must be {SECRET_BYTES} bytes": len(secret) != SECRET_BYTES,
        "a key must end after it begins": not 0 <= from_ms < until_ms <= FOREVER_MS,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise InvalidInput(
                f"{fault} (key {id[:16]!r} of {owner[:64]!r})",
                code="keys.bad_key",
                hint="make keys with: rapport context keys make FILE OWNER --kind client",
            )
    return DatagramKey(id, owner, cast(KeyKind, kind), secret, from_ms, until_ms)


class DatagramKeys:
    """A key ring. It opens with all valid keys and seals with the holder's newest valid key.

    It can be replaced while in use; users check `version`.
    """

    def __init__(self, keys: Iterable[DatagramKey], *, own: str = "") -> None:
        """`own` names the holder among the owners. It is optional with a single owner of network
        keys, or a single owner and no network keys.
        """
        self.version = 0
        self._take(tuple(keys), own)

    def __repr__(self) -> str:
        return f"DatagramKeys({self.own!r}, {len(self._by_id)} keys)"

    def __iter__(self) -> Iterator[DatagramKey]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def is_member(self) -> bool:
        """Whether the holder is a member of the network; a client otherwise."""
        return self._own_keys[0].kind == "network"

    def find(self, id: str) -> DatagramKey | None:
        return self._by_id.get(id)

    def sealing(self, wall_ms: int) -> tuple[DatagramKey, int]:
        """The holder's newest valid key, and until when it stays the newest.

        Raises Unavailable if none is valid.
        """
        newest = self._newest(self._own_keys, self.own, wall_ms)
        later = [key.from_ms for key in self._own_keys if key.from_ms > wall_ms]
        return newest, min([newest.until_ms, *later])

    def still(self, key: DatagramKey, wall_ms: int) -> DatagramKey:
        """The current form of a key, or its owner's newest one if it has expired.

        Raises Unavailable if none is valid.
        """
        found = self._by_id.get(key.id)
        if found is not None and found.until_ms > wall_ms:
            return found
        others = [one for one in self._by_id.values() if one.owner == key.owner]
        return self._newest(others, key.owner, wall_ms)

    def replace_with(self, other: DatagramKeys) -> None:
        """Replaces all keys; only datagrams sealed with removed keys are lost."""
        self._take(tuple(other._by_id.values()), other.own)

    def _newest(self, keys: list[DatagramKey], owner: str, wall_ms: int) -> DatagramKey:
        valid = [key for key in keys if key.is_valid_at(wall_ms)]
        if not valid:
            raise Unavailable(
                f"no key of {owner!r} is valid now",
                code="keys.none_valid",
                hint="make a new one: rapport context keys make FILE OWNER",
                retry_after_seconds=60,
            )
        return max(valid, key=lambda key: (key.from_ms, key.id))

    def _take(self, keys: tuple[DatagramKey, ...], own: str) -> None:
        by_id = {key.id: key for key in keys}
        if len(by_id) < len(keys):
            raise InvalidInput("two keys have the same id", code="keys.bad_key")
        self.own = own or _only_owner(keys)
        self._own_keys = [key for key in keys if key.owner == self.own]
        if not self._own_keys:
            raise UnknownName(
                "owner of keys", own, [key.owner for key in keys], code="keys.unknown_owner"
            )
        if len({key.kind for key in self._own_keys}) > 1:
            raise InvalidInput(
                f"{self.own!r} has keys of both kinds",
                code="keys.bad_key",
                hint="an owner is a member of the network or a client; use two names",
            )
        self._by_id = by_id
        self.owners = frozenset(key.owner for key in keys)
        self.version += 1


def _only_owner(keys: tuple[DatagramKey, ...]) -> str:
    members = {key.owner for key in keys if key.kind == "network"}
    owners = members or {key.owner for key in keys}
    if len(owners) == 1:
        return owners.pop()
    if not owners:
        raise InvalidInput(
            "there is no key",
            code="keys.none",
            hint="make one with: rapport context keys make FILE OWNER",
        )
    raise InvalidInput(
        f"the holder is ambiguous: {', '.join(sorted(owners))}",
        code="keys.ambiguous_owner",
        hint='name the holder: own = "..." at the top of the key file',
    )


_FIELDS = {"id", "owner", "kind", "secret", "from", "until"}
_HINT = "a key has id, owner, kind, secret, and may have from and until"


def read_key_table(
    raw: bytes, *, name: str
) -> tuple[str, tuple[DatagramKey, ...], tuple[Problem, ...]]:
    """The holder's name, the keys, and all faults; no fault contains a secret."""
    try:
        file = TomlFile.parse(raw, name=name)
    except SiteError as error:
        # The excerpt would show the line, which may contain a secret.
        return "", (), tuple(msgspec.structs.replace(one, excerpt="") for one in error.problems)
    own, rows = file.values.get("own", ""), file.values.get("keys", [])
    problems = [
        _problem(file, (field,), f"the key {field!r} has no meaning here")
        for field in file.values
        if field not in ("own", "keys")
    ]
    if not isinstance(own, str):
        problems.append(_problem(file, ("own",), "own must be the name of an owner"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "", (), (*problems, _problem(file, ("keys",), "keys are tables: [[keys]]"))
    keys: list[DatagramKey] = []
    for number, row in enumerate(rows):
        try:
            keys.append(_key(row))
        except InvalidInput as error:
            problems.append(_problem(file, ("keys", f"[{number}]"), error.message))
    return own if isinstance(own, str) else "", tuple(keys), tuple(problems)


def _key(row: dict[str, Any]) -> DatagramKey:
    unknown = sorted(set(row) - _FIELDS)
    if unknown:
        raise InvalidInput(f"a key has no {unknown[0]!r}")
    texts = [row.get(field) for field in ("id", "owner", "kind", "secret")]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput("id, owner, kind and secret of a key must be texts")
    id, owner, kind, secret = (str(text) for text in texts)
    from_ms = _moment(row["from"]) if "from" in row else 0
    until_ms = _moment(row["until"]) if "until" in row else FOREVER_MS
    return checked_key(id, owner, kind, _from_base64(secret), from_ms, until_ms)


def _moment(value: object) -> int:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return round(value.timestamp() * 1_000)
    if isinstance(value, str):
        return parse_time(value)
    raise InvalidInput("from and until are times with a zone, such as 2026-01-01T00:00:00Z")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""  # fails the check of the length


def _problem(file: TomlFile, path: tuple[str, ...], message: str) -> Problem:
    line, column = file.place_of(path)
    return Problem(
        file=file.name, line=line, column=column, code="keys.bad_key", message=message, hint=_HINT
    )


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyFile:
    keys: tuple[DatagramKey, ...] = ()
    own: str = ""

    def ring(self) -> DatagramKeys:
        """The keys to seal and open with; raises InvalidInput."""
        return DatagramKeys(self.keys, own=self.own)


def load_keys(path: Path) -> DatagramKeys:
    """Loads a key ring; raises InvalidInput or SiteError, which contain no secret."""
    return read_key_file(path).ring()


def read_key_file(path: Path) -> KeyFile:
    """Reads a key file; raises InvalidInput if others may read it."""
    return _parse(path, _read(path))


def add_key(path: Path, key: DatagramKey) -> None:
    """Adds a key to a new or existing file, durably. Raises Conflict on a concurrent change."""
    if not path.exists():
        create_secret_file(path, _as_toml(KeyFile((key,))))
        return
    before = _read(path)
    known = _parse(path, before)
    _replace_file(path, before, replace(known, keys=(*known.keys, key)))


def retire_key(path: Path, id: str, at_ms: int) -> DatagramKey:
    """Ends a key at a wall time; raises UnknownName, InvalidInput if it ends sooner."""
    before = _read(path)
    known = _parse(path, before)
    found = next((key for key in known.keys if key.id == id), None)
    if found is None:
        raise UnknownName("key", id, [key.id for key in known.keys], code="keys.unknown_key")
    if found.until_ms <= at_ms:
        raise InvalidInput(
            f"the key {id} ends at {format_time(found.until_ms)} already", code="keys.ended"
        )
    # A key that is not valid yet gets a period in the past.
    retired = replace(found, from_ms=min(found.from_ms, max(at_ms - 1, 0)), until_ms=at_ms)
    keys = tuple(retired if key.id == id else key for key in known.keys)
    _replace_file(path, before, replace(known, keys=keys))
    return retired


def share_keys(path: Path, owner: str, to: Path) -> tuple[DatagramKey, ...]:
    """Creates a new file with the keys of one owner; raises UnknownName."""
    known = read_key_file(path)
    chosen = tuple(key for key in known.keys if key.owner == owner)
    if not chosen:
        owners = sorted({key.owner for key in known.keys})
        raise UnknownName("owner of keys", owner, owners, code="keys.unknown_owner")
    create_secret_file(to, _as_toml(KeyFile(chosen)))
    return chosen


class KeyFileWatch:
    """A key ring that follows its file; the server calls `refresh` regularly."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _stamp(path)
        self.keys = load_keys(path)

    def refresh(self) -> bool:
        """Reloads a changed file; returns whether it did. An unusable file is logged and the keys
        stay. Costs a `stat` if nothing changed.
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
    """Changes with content and mode: the mode may have allowed others to read the file."""
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


def _replace_file(path: Path, before: bytes, after: KeyFile) -> None:
    """Replaces the file if it is still the one that was read; a lock file excludes others."""
    lock = path.with_name(f".{path.name}.changing")
    try:
        create_secret_file(lock, b"")
    except DuplicateName:
        raise Conflict(
            f"another process changes {path}",
            code="keys.changed",
            hint=f"try it again; when no other does, remove {lock}",
        ) from None
    try:
        if path.read_bytes() != before:
            raise Conflict(
                f"{path} was changed meanwhile", code="keys.changed", hint="try it again"
            )
        write_atomically(path, _as_toml(after), mode=0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}", code="store.disk_failed"
        ) from None
    finally:
        lock.unlink(missing_ok=True)


def _as_toml(file: KeyFile) -> bytes:
    lines = ["# Secrets: a reader of this file can speak as the owners of its keys."]
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
