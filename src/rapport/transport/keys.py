"""The keys that datagrams are sealed with: whose they are, and from when until when. [CX-9]

Every holder of a ring shares its secrets with others: members of a network share the network's
keys and know each client's; a client knows only its own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

from rapport.core.errors import InvalidInput, Unavailable, UnknownName

Kind = Literal["network", "client"]
KINDS = ("network", "client")
SECRET_BYTES = 32
FOREVER_MS = 253_402_300_799_999
"""The end of the year 9999."""

RESERVED = "local"
"""Whoever holds a key of this name would have the rights of the process that hears it."""
_ID = re.compile(r"[0-9a-f]{16}\Z")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class DatagramKey:
    """A shared secret. It is in no `repr` and no error."""

    id: str
    """Sixteen hexadecimal digits; tells which key sealed a datagram, and is no secret."""
    owner: str
    """The identity that whoever holds the key speaks as."""
    kind: Kind
    """`network`: for members, who trust each other; `client`: for one that only asks and tells."""
    secret: bytes = field(repr=False)
    from_ms: int = 0
    """Seals from this wall time on; a later one is newer."""
    until_ms: int = FOREVER_MS
    """Neither seals nor opens after this wall time."""

    def is_valid_at(self, wall_ms: int, *, grace_ms: int = 0) -> bool:
        """Whether the key is in force; the grace is for clocks that differ."""
        return self.from_ms - grace_ms <= wall_ms < self.until_ms + grace_ms


def make_key(owner: str, kind: str, *, from_ms: int = 0, until_ms: int = FOREVER_MS) -> DatagramKey:
    """A new key with a random secret; raises InvalidInput."""
    secret, id = secrets.token_bytes(SECRET_BYTES), secrets.token_hex(8)
    return checked_key(id, owner, kind, secret, from_ms, until_ms)


def checked_key(
    id: str, owner: str, kind: str, secret: bytes, from_ms: int, until_ms: int
) -> DatagramKey:
    """A key whose fields can be meant; raises InvalidInput that says which cannot."""
    faults = {
        "the id must be 16 hexadecimal digits": not _ID.match(id),
        "an owner has up to 64 letters, digits and . _ -": not _OWNER.match(owner),
        f"{RESERVED!r} is no owner, but what a process is to itself": owner == RESERVED,
        "the kind must be network or client": kind not in KINDS,
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
    return DatagramKey(id, owner, cast(Kind, kind), secret, from_ms, until_ms)


class DatagramKeys:
    """A ring of keys. Several are accepted, the newest valid one of its holder seals.

    It can be exchanged while datagrams fly: who uses it looks at `version`.
    """

    def __init__(self, keys: Iterable[DatagramKey], *, own: str = "") -> None:
        """`own` names the holder among the owners; it may be left out where there is no choice:
        one owner of network keys, or no network keys and one owner.
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
        """The key of that id."""
        return self._by_id.get(id)

    def sealing(self, wall_ms: int) -> tuple[DatagramKey, int]:
        """The holder's newest valid key, and until when no other takes its place.

        Raises Unavailable when none is valid.
        """
        newest = self._newest(self._own_keys, self.own, wall_ms)
        later = [key.from_ms for key in self._own_keys if key.from_ms > wall_ms]
        return newest, min([newest.until_ms, *later])

    def still(self, key: DatagramKey, wall_ms: int) -> DatagramKey:
        """The key as the ring has it now, or its owner's newest when its time is over.

        Raises Unavailable when none is valid.
        """
        found = self._by_id.get(key.id)
        if found is not None and found.until_ms > wall_ms:
            return found
        others = [one for one in self._by_id.values() if one.owner == key.owner]
        return self._newest(others, key.owner, wall_ms)

    def replace_with(self, other: DatagramKeys) -> None:
        """Takes the keys of another ring in place of its own; no datagram is lost by it, except
        those sealed with keys that are gone.
        """
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
        f"whose keys are these: {', '.join(sorted(owners))}?",
        code="keys.ambiguous_owner",
        hint='say who holds them: own = "..." at the top of the file of keys',
    )
