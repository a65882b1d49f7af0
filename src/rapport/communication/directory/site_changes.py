"""What a site file that is read again changes about people: for the ledger, and for who is asked.
[CO-3, CO-12]

Pure.
"""

from __future__ import annotations

from typing import Any

from rapport.communication.directory.records import shown_settings
from rapport.communication.directory.telling import PeopleChange, What, memberships
from rapport.communication.peers import Collective, Peer, SiteDirectory


def changes_of_file(before: SiteDirectory, after: SiteDirectory, by: str) -> list[PeopleChange]:
    """Peers first, then collectives and who came to them or left; by name. Costs what both
    directories hold.
    """
    changes: list[PeopleChange] = []
    for name in sorted({*before.peer_names(), *after.peer_names()}):
        old, new = before.peer(name), after.peer(name)
        if old != new:
            settings = {} if new is None else _settings_of(new)
            change = _what(old, new)
            changes.append(
                PeopleChange(kind="peer", name=name, change=change, by=by, settings=settings)
            )
    for name in sorted({*before.collective_names(), *after.collective_names()}):
        changes += _of_collective(name, before.collective(name), after.collective(name), by)
    return changes


def _of_collective(
    name: str, old: Collective | None, new: Collective | None, by: str
) -> list[PeopleChange]:
    changes: list[PeopleChange] = []
    if old is None or new is None or (old.delivery, old.least) != (new.delivery, new.least):
        change = _what(old, new)
        settings: dict[str, Any] = {} if new is None else {"delivery": new.delivery}
        if new is not None and new.least:
            settings["least"] = new.least
        changes.append(
            PeopleChange(kind="collective", name=name, change=change, by=by, settings=settings)
        )
    if new is None:
        return changes  # who was in it is not told one by one
    members, were = set(new.members), set(old.members if old is not None else ())
    changes += memberships(name, "joined", sorted(members - were), by)
    return changes + memberships(name, "left", sorted(were - members), by)


def _what(old: object, new: object) -> What:
    return "added" if old is None else "removed" if new is None else "changed"


def _settings_of(peer: Peer) -> dict[str, Any]:
    return shown_settings({"addresses": list(peer.addresses), "delivery": peer.delivery})
