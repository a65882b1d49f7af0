"""The default directory: what the site file declares, and what was added while the node ran. [CO-3]

A name of the site file is the site file's: the store adds others, and members to any collective.
Every question is answered from the store as it is now, so a change counts for the next sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from rapport.communication.adapters.peer_queues import CircuitStatus
from rapport.communication.directory.records import (
    DirectoryRecords,
    Kept,
    peer_from,
    read_collective,
    shown_settings,
)
from rapport.communication.peers import Collective, Peer, SiteDirectory, names_after
from rapport.core.errors import UnknownName, nearest_names
from rapport.core.message import Identifier
from rapport.store.base import RecordStore

Origin = Literal["site", "store"]
_MOST_COMPARED = 20_000
"""Names that a wrong one is compared with."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A peer or collective as people are shown it; addresses in their shown form."""

    name: str
    origin: Origin
    settings: dict[str, Any]
    by: str = ""
    time: int = 0
    """Who said it and when; of the site file neither is known."""
    collectives: list[str] = []
    """Of a peer: where it is a member."""
    circuits: list[CircuitStatus] = []
    """Of a peer: addresses that are left alone now, since calls to them failed."""


class StoredDirectory:
    """Fits `PeerDirectory`; may be asked from any thread, each answer is a few short reads."""

    def __init__(
        self, declared: SiteDirectory, records: RecordStore, *, site: Path = Path()
    ) -> None:
        """`site` is the site's directory, where privacy functions lie."""
        self.declared, self.site = declared, site
        self.kept = DirectoryRecords(records)

    # --- as deliveries ask ---

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None."""
        if found := self.declared.peer(name):
            return found
        kept = self.kept.peer(name)
        return None if kept is None else peer_from(name, kept, self.site)

    def collective(self, name: str) -> Collective | None:
        """The collective with all its members; of large ones ask `policy_of` and `member_names`."""
        found = self.policy_of(name)
        if found is None:
            return None
        joined = set(self.kept.all_members(name)).difference(found.members)
        members = (*found.members, *sorted(joined))
        return msgspec.structs.replace(found, members=members) if joined else found

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory; who joined is left out."""
        if declared := self.declared.collective(name):
            return declared
        kept = self.kept.collective(name)
        return None if kept is None else read_collective(name, kept.settings)[0]

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; cost is that of `limit`, not of the collective."""
        if not self.has(Identifier("collective", name)):
            return []  # gone from the site file: who joined it stays kept, for when it comes back
        stored = self.kept.members(name, after, limit)
        declared = self.declared.member_names(name, after=after, limit=limit)
        return list(islice(_once(merge(declared, stored)), limit))

    # --- as people ask ---

    def peers(self, *, after: str = "", limit: int = 1000) -> list[Entry]:
        """Peers whose names come after a name, sorted."""
        names = names_after(self.declared.peer_names(), after, limit)
        return _page(self.kept.peers(after, limit), map(self._declared_peer, names), limit)

    def collectives(self, *, after: str = "", limit: int = 1000) -> list[Entry]:
        """Collectives whose names come after a name, sorted; members are not among it."""
        names = names_after(self.declared.collective_names(), after, limit)
        declared = map(self._declared_collective, names)
        return _page(self.kept.collectives(after, limit), declared, limit)

    def show_peer(self, name: str) -> Entry:
        """One peer and where it is a member; raises UnknownName with the nearest names."""
        if self.declared.peer(name):
            entry = self._declared_peer(name)
        elif kept := self.kept.peer(name):
            entry = _entry(name, kept)
        else:
            raise self.unknown("peer", name)
        named = {*self.declared.collectives_of(name), *self.kept.memberships(name)}
        return msgspec.structs.replace(entry, collectives=sorted(named))

    def show_collective(self, name: str) -> Entry:
        """One collective; raises UnknownName with the nearest names."""
        if self.declared.collective(name):
            return self._declared_collective(name)
        if kept := self.kept.collective(name):
            return _entry(name, kept)
        raise self.unknown("collective", name)

    def has(self, receiver: Identifier) -> bool:
        """Whether a message to it could find anybody; components are not in the directory."""
        name = receiver.name
        if receiver.kind == "collective":
            return bool(self.declared.collective(name) or self.kept.collective(name))
        return receiver.kind == "component" or bool(
            self.declared.peer(name) or self.kept.peer(name)
        )

    def check(self, receiver: Identifier) -> None:
        """Raises UnknownName with the nearest names when nobody is called that."""
        if not self.has(receiver):
            raise self.unknown(receiver.kind, receiver.name)

    def unknown(self, kind: str, name: str) -> UnknownName:
        """The error for a name that nobody has: the nearest of its kind, else of the other."""
        names = {
            "peer": [entry.name for entry in self.peers(limit=_MOST_COMPARED)],
            "collective": [entry.name for entry in self.collectives(limit=_MOST_COMPARED)],
        }
        error = UnknownName(kind, name, names.pop(kind), code=f"{kind}.unknown")
        for other, known in names.items():
            near = nearest_names(name, known)
            if near and (not error.nearest or near[0] == name):
                error.hint = f"did you mean {other}:{near[0]}?"
        return error

    def _declared_peer(self, name: str) -> Entry:
        peer = self.declared.peer(name)
        assert peer is not None
        settings = shown_settings({"addresses": list(peer.addresses), "delivery": peer.delivery})
        return Entry(name=name, origin="site", settings=settings)

    def _declared_collective(self, name: str) -> Entry:
        collective = self.declared.collective(name)
        assert collective is not None
        return Entry(name=name, origin="site", settings={"delivery": collective.delivery})


def _entry(name: str, kept: Kept) -> Entry:
    settings = shown_settings(kept.settings)
    return Entry(name=name, origin="store", settings=settings, by=kept.by, time=kept.time)


def _page(kept: Sequence[tuple[str, Kept]], declared: Iterable[Entry], limit: int) -> list[Entry]:
    """Both together, sorted by name; what the site file declares hides what is kept."""
    entries = {name: _entry(name, each) for name, each in kept}
    entries |= {entry.name: entry for entry in declared}
    return [entries[name] for name in sorted(entries)[:limit]]


def _once(names: Iterable[str]) -> Iterator[str]:
    """Sorted names without what stands there twice."""
    last = None
    for name in names:
        if name != last:
            yield name
        last = name
