"""Peers and collectives as they are kept in the record store, and as they are said. [CO-3]

What is kept is what was said: the keys of the site file's `[peers.NAME]` and `[collectives.NAME]`.
So it is checked by the site file's own rules, and a later version reads it by its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from rapport.communication.declaring import people as declare_people
from rapport.communication.declaring.people import COLLECTIVE_KEYS, PEER_KEYS
from rapport.communication.peers import Collective, Peer, adapter_of, shown_address
from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.kernel.config_fields import Fields
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import Section, TomlFile
from rapport.store.base import Change, Delete, Put, RecordStore

PEERS, COLLECTIVES = "people.peers", "people.collectives"
MEMBERS, MEMBERSHIPS = "people.members", "people.memberships"
"""Both ways of the same: (collective, peer) and (peer, collective)."""
LONGEST_NAME = 100
_PAGE = 1_000
_PLAIN = frozenset(("addresses",))
"""Settings that need no second reading: they were checked when they were kept."""
_STAND_IN = "member"

Settings = Mapping[str, Any]

_log = get_logger(__name__)


class Kept(msgspec.Struct, frozen=True):
    """One entry of the store: what was said, by whom and when."""

    settings: dict[str, Any]
    by: str = ""
    time: int = 0


def check_name(name: str) -> None:
    """Raises InvalidInput unless the name can stand in an identifier, an address and a log."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"{name[:LONGEST_NAME]!r} cannot be a name",
            code="people.bad_name",
            hint=f"a name has 1 to {LONGEST_NAME} printable characters, no blank at its ends",
        )


def read_peer(
    name: str, settings: Settings, adapters: Collection[str], site: Path
) -> tuple[Peer, list[Problem]]:
    """The peer that the settings describe, and what the site file would warn of; `site` is where
    its privacy functions lie.

    Raises SiteError with every fault.
    """
    table = _table("peers", name, settings, PEER_KEYS)
    peer = declare_people.read_peer(name, table, adapters, site)
    return peer, _warnings(table)


def read_collective(
    name: str, settings: Settings, members: Sequence[str] = ()
) -> tuple[Collective, list[Problem]]:
    """The collective that the settings describe, with these members; raises SiteError."""
    if "members" in settings:
        raise InvalidInput(
            "members are no setting", code="people.bad_members", hint="let them join instead"
        )
    # Members come and go here: what the rules say of them is not asked.
    table = _table("collectives", name, {**settings, "members": [_STAND_IN]}, COLLECTIVE_KEYS)
    known = {_STAND_IN: Peer(name=_STAND_IN, addresses=())}
    read = declare_people.read_collective(name, table, known)
    warnings = [each for each in _warnings(table) if each.code != "collective.least_too_many"]
    return msgspec.structs.replace(read, members=tuple(members)), warnings


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The settings without what addresses keep secret."""
    addresses = settings.get("addresses", ())
    given = [addresses] if isinstance(addresses, str) else addresses
    shown = {"addresses": [shown_address(entry) for entry in given]} if given else {}
    return {**settings, **shown}


class DirectoryRecords:
    """The entries of the store; every call is a short one to the record store and blocks."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def peer(self, name: str) -> Kept | None:
        """What was said of a peer, or None."""
        return _kept(self._records.get(PEERS, name))

    def collective(self, name: str) -> Kept | None:
        """What was said of a collective, or None."""
        return _kept(self._records.get(COLLECTIVES, name))

    def peers(self, after: str, limit: int) -> list[tuple[str, Kept]]:
        """Peers whose names come after a name, sorted."""
        return _all_kept(self._records.find(PEERS, after=after, limit=limit))

    def collectives(self, after: str, limit: int) -> list[tuple[str, Kept]]:
        """Collectives whose names come after a name, sorted."""
        return _all_kept(self._records.find(COLLECTIVES, after=after, limit=limit))

    def members(self, collective: str, after: str, limit: int) -> list[str]:
        """Names of who joined, sorted; cost is that of `limit`."""
        return self._second_names(MEMBERS, collective, after, limit)

    def all_members(self, collective: str) -> Iterator[str]:
        """All who joined, read in pages."""
        yield from self._all_second(MEMBERS, collective)

    def is_member(self, collective: str, peer: str) -> bool:
        """Whether the peer joined."""
        return self._records.get(MEMBERS, _pair(collective, peer)) is not None

    def memberships(self, peer: str) -> Iterator[str]:
        """The collectives that a peer joined, read in pages."""
        yield from self._all_second(MEMBERSHIPS, peer)

    def apply(self, changes: Sequence[Change]) -> None:
        """All or none; durable when it returns."""
        self._records.apply(changes)

    def _second_names(self, table: str, first: str, after: str, limit: int) -> list[str]:
        prefix = _pair(first, "")
        found = self._records.find(
            table, prefix=prefix, after=_pair(first, after) if after else "", limit=limit
        )
        return [key[len(prefix) :] for key, _ in found]

    def _all_second(self, table: str, first: str) -> Iterator[str]:
        after = ""
        while names := self._second_names(table, first, after, _PAGE):
            yield from names
            after = names[-1]


def kept_bytes(kept: Kept) -> bytes:
    """The entry as it stands in the store."""
    return msgspec.json.encode(kept)


def joined(collective: str, peer: str) -> list[Change]:
    """What is written when a peer joins."""
    return [
        Put(MEMBERS, _pair(collective, peer), b""),
        Put(MEMBERSHIPS, _pair(peer, collective), b""),
    ]


def left(collective: str, peer: str) -> list[Change]:
    """What is written when a peer leaves."""
    return [
        Delete(MEMBERS, _pair(collective, peer)),
        Delete(MEMBERSHIPS, _pair(peer, collective)),
    ]


def peer_from(name: str, kept: Kept, site: Path) -> Peer:
    """The kept peer. One whose settings this version cannot read has no address: their quiet hours
    may be among what cannot be read, so nobody is told rather than somebody at night.
    """
    addresses = tuple(kept.settings.get("addresses", ()))
    if kept.settings.keys() <= _PLAIN:
        return Peer(name=name, addresses=addresses)
    try:
        # An adapter that is no more makes an address useless, not the peer unreadable.
        adapters = {adapter_of(entry) for entry in addresses}
        return read_peer(name, kept.settings, adapters, site)[0]
    except SiteError as error:
        _log.error("a kept peer cannot be read", peer=name, error=error.message)
        return Peer(name=name, addresses=())


def _pair(first: str, second: str) -> str:
    """The first name is escaped, so that no name is the beginning of another one's keys; the second
    is not, so that keys sort as names do.
    """
    return f"{quote(first, safe='')}/{second}"


def _kept(raw: bytes | None) -> Kept | None:
    return None if raw is None else msgspec.json.decode(raw, type=Kept)


def _all_kept(found: Sequence[tuple[str, bytes]]) -> list[tuple[str, Kept]]:
    return [(name, msgspec.json.decode(raw, type=Kept)) for name, raw in found]


def _table(kind: str, name: str, settings: Settings, known: Collection[str]) -> Fields:
    """The settings as a table of a site file that has nothing else."""
    values = dict(settings)
    file = TomlFile(f"{kind}.{name}", "", {kind: {name: values}})
    return Fields(Section(file, (kind, name), values), [], known=known, strict=True)


def _warnings(table: Fields) -> list[Problem]:
    """What is wrong without being an error; raises SiteError when there are errors."""
    if errors := [each for each in table.problems if each.severity == "error"]:
        raise SiteError(errors)
    return table.problems
