"""Rights to read, write, take over and control; the owners of records. [CX-9]

Rights are granted to the owner of a key, by patterns `ENTITY SCOPE` with `*` and `?`, as in
`room/* status`; without a scope, all scopes. A right to write an entity lets a key provide records
of it, not change those of others. Names of providers are texts, so a record belongs

- to the Ed25519 key in its provider's name (`station-7@ed25519.…`): every broker and consumer
  verifies the signature, also one that never met the provider,
- to the holder of the datagram key whose owner is its provider's name,
- otherwise to the identity that first wrote it at the broker.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import Literal

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.signing_keys import PublicKey, SigningKey, fingerprint_of
from rapport.transport.keys import RESERVED

Right = Literal["read", "write", "take_over", "control"]
LOCAL = RESERVED
"""The identity of the broker's own process, with every right. No key has an owner of that name."""
UNPROVEN = ""
"""The identity where nothing is sealed, which is only done within one machine."""
EVERYBODY = "*"
"""A grant under this name counts for every holder of a key."""


class ContextGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of one identity."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    take_over: tuple[str, ...] = ()
    """Whose records it may overwrite although another key provides them; needs `write`, too."""
    control: bool = False
    """Whether it may make the broker join, leave and monitor, and read its status."""


READ_AND_WRITE = ContextGrant(read=("*",), write=("*",))
EVERYTHING = ContextGrant(read=("*",), write=("*",), take_over=("*",), control=True)

_ON_ENTITIES = ("read", "write", "take_over")
_Patterns = tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]


class ContextRights:
    """The grants in force; unnamed identities have no rights. A check costs about a microsecond."""

    def __init__(
        self, grants: Mapping[str, ContextGrant], *, controls: Callable[[str], bool] | None = None
    ) -> None:
        """`controls` is called with an identity that no grant lets control the broker."""
        self.grants = dict(grants)
        self._also_controls = controls
        self._patterns: dict[tuple[str, str], _Patterns] = {}
        for identity, grant in self.grants.items():
            self._patterns[identity, "read"] = _compiled(grant.read)
            self._patterns[identity, "write"] = _compiled(grant.write)
            self._patterns[identity, "take_over"] = _compiled(grant.take_over)
        self._unbounded = {
            right
            for right in _ON_ENTITIES
            if EVERYBODY in self.grants and "*" in getattr(self.grants[EVERYBODY], right)
        }
        """Rights that everybody has on everything: patterns are not evaluated for them."""
        self._controls = {name for name, grant in self.grants.items() if grant.control}
        for right in _ON_ENTITIES:
            self._patterns.setdefault((EVERYBODY, right), ())

    @staticmethod
    def of_key_holders(is_member: Callable[[str], bool]) -> ContextRights:
        """The default rights of a site: every key reads and writes, and the network's own keys
        control. Keys are exchanged, so membership is checked each time.
        """
        return ContextRights({EVERYBODY: READ_AND_WRITE}, controls=is_member)

    @staticmethod
    def of_this_machine() -> ContextRights:
        """The rights without seals: senders on the loopback interface have every right."""
        return ContextRights({EVERYBODY: READ_AND_WRITE, UNPROVEN: EVERYTHING})

    def allows(self, identity: str, right: str, entity: EntityRef | None, scope: str) -> bool:
        """Whether the identity has the right on this scope of this entity; `control` is of the
        broker itself.
        """
        if identity == LOCAL or right in self._unbounded:
            return True
        if right == "control" or entity is None:
            is_named = identity in self._controls or EVERYBODY in self._controls
            return is_named or (self._also_controls is not None and self._also_controls(identity))
        everybody = self._patterns[EVERYBODY, right]
        patterns = self._patterns.get((identity, right), ()) + everybody
        return bool(patterns) and _matches(patterns, f"{entity.type}/{entity.id}", scope)


def _matches(patterns: _Patterns, entity: str, scope: str) -> bool:
    return any(e.match(entity) and s.match(scope) for e, s in patterns)


def split_pattern(text: str) -> tuple[str, str]:
    """The patterns for entity and scope; raises InvalidInput.

    >>> split_pattern("room/* status"), split_pattern("car/7")
    (('room/*', 'status'), ('car/7', '*'))
    """
    entity, _, scope = text.strip().rpartition(" ")
    entity, scope = (entity.strip(), scope) if entity else (scope, "*")
    if not entity or ("/" not in entity and entity != "*"):
        raise InvalidInput(
            f"{text[:80]!r} names no entities",
            code="context.bad_pattern",
            hint='write "TYPE/ID SCOPE" with * for any, for example "room/* status" or "*"',
        )
    return entity, scope


def _compiled(patterns: Iterable[str]) -> _Patterns:
    pairs = (split_pattern(text) for text in patterns)
    return tuple((_expression(e), _expression(s)) for e, s in pairs)


def _expression(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stand for others; a bracket is one, as names may have it."""
    return re.compile(translate(pattern.replace("[", "[[]")))


RecordKey = tuple[str, str, str, str]
"""Provider, entity type, entity id and scope of a record."""


_KEY_IN_NAME = "@ed25519."
_KEY_BYTES = 32
_canonical = msgspec.msgpack.Encoder(order="deterministic")


def signed_name(name: str, key: SigningKey) -> str:
    """The name of a provider that signs its records with the key."""
    return f"{name}@{key.fingerprint}"


def sign_record(record: ContextRecord, key: SigningKey) -> ContextRecord:
    """The record with the key's signature; about 0.04 ms."""
    bare = msgspec.structs.replace(record, proof=b"")
    proof = key.public.raw + key.sign(_canonical.encode(bare))
    return msgspec.structs.replace(record, proof=proof)


def names_key(provider: str) -> bool:
    """Whether the provider's name contains the key that must sign its records."""
    return _KEY_IN_NAME in provider


def is_genuine(record: ContextRecord) -> bool:
    """False for a record that the key in its provider's name did not sign. About 0.1 ms for a
    signed record; others are genuine here.
    """
    if not names_key(record.provider):
        return True
    raw, signature = record.proof[:_KEY_BYTES], record.proof[_KEY_BYTES:]
    if not record.provider.endswith(f"@{fingerprint_of(raw)}"):
        return False
    bare = msgspec.structs.replace(record, proof=b"")
    return PublicKey(record.provider, raw).is_signature_of(signature, _canonical.encode(bare))


class Ownership:
    """The owner of each record, by the identity that first wrote it; bounded.

    An owner outlives the validity of its record while the broker runs. A writer without a proven
    identity owns nothing.
    """

    __slots__ = ("_most", "_owners")

    def __init__(self, most: int) -> None:
        """Of more records than `most` those not written for longest are forgotten."""
        self._most = most
        self._owners: OrderedDict[RecordKey, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, key: RecordKey) -> str:
        """The identity that the record belongs to; empty if it has no owner yet."""
        return self._owners.get(key, "")

    def claim(self, key: RecordKey, identity: str) -> None:
        """Makes the identity the owner of the record, if it has none."""
        if key in self._owners:
            self._owners.move_to_end(key)
        elif identity:
            self._owners[key] = identity
            if len(self._owners) > self._most:
                self._owners.popitem(last=False)

    def recall(self, owners: Mapping[RecordKey, str]) -> None:
        """Takes up what was recorded before a restart."""
        for key, identity in owners.items():
            self.claim(key, identity)
