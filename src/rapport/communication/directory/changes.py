"""Changes of the directory while a node runs: checked like the site file, durable, and told in
`log`. [CO-3, CO-12]

One change at a time; each holds for the next sending when the call returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from rapport.channel.channel import Channels
from rapport.communication.adapters.adapter_config import BUILT_IN
from rapport.communication.aside import run_aside, surely
from rapport.communication.directory.records import (
    COLLECTIVES,
    PEERS,
    Kept,
    Settings,
    check_name,
    joined,
    kept_bytes,
    left,
    read_collective,
    read_peer,
    shown_settings,
)
from rapport.communication.directory.site_changes import changes_of_file
from rapport.communication.directory.stored import StoredDirectory
from rapport.communication.directory.telling import PeopleChange, PeopleOutbox, memberships
from rapport.communication.peers import SiteDirectory, adapter_of
from rapport.core.errors import Conflict, InvalidInput, Problem
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Delete, Put, RecordStore

_MOST_AT_ONCE = 200_000

T = TypeVar("T")


class DirectoryChanges:
    """Adds, changes and removes entries of the store, one change at a time.

    `changed` are told the name of every peer that was touched, after the change counts.
    """

    def __init__(
        self,
        directory: StoredDirectory,
        records: RecordStore,
        channels: Channels,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        adapters: Callable[[], Collection[str]],
        file: str = "site.toml",
    ) -> None:
        """`adapters` names those that can deliver now; `file` is where declared names stand."""
        self._directory, self._records, self._clock = directory, records, clock
        self._adapters, self._file = adapters, file
        self._outbox = PeopleOutbox(records, channels, clock, new_id)
        self._turn = asyncio.Lock()
        self.changed: list[Callable[[str], Awaitable[None] | None]] = []

    async def open(self) -> None:
        """Appends what a crash may have left unsaid."""
        await self._outbox.tell()

    async def put_peer(self, name: str, settings: Settings, *, by: str) -> list[Problem]:
        """Adds the peer or replaces all its settings; gives what the site file would warn of.

        Raises Conflict for a name of the site file, SiteError with every fault.
        """
        return await self._change(partial(self._put_peer, name, settings, by), touched=[name])

    async def change_peer(self, name: str, settings: Settings, *, by: str) -> list[Problem]:
        """Changes only the settings that are given; None takes one away. Raises UnknownName."""
        return await self._change(partial(self._change_peer, name, settings, by), touched=[name])

    async def remove_peer(self, name: str, *, by: str) -> None:
        """Forgets the peer, who leaves every collective; raises UnknownName, Conflict."""
        await self._change(partial(self._remove_peer, name, by), touched=[name])

    async def put_collective(
        self, name: str, settings: Settings, members: Sequence[str] | None = None, *, by: str
    ) -> list[Problem]:
        """Adds the collective or replaces its settings, and its members when they are given.

        Raises Conflict for a name of the site file, UnknownName for a member that is no peer.
        """
        return await self._change(partial(self._put_collective, name, settings, members, by))

    async def remove_collective(self, name: str, *, by: str) -> None:
        """Forgets the collective and who was in it; raises UnknownName, Conflict."""
        await self._change(partial(self._remove_collective, name, by))

    async def join(self, collective: str, peers: Sequence[str], *, by: str) -> int:
        """Makes peers members, of a collective of the site file too; gives how many were not.

        All or none; raises UnknownName.
        """
        return await self._change(partial(self._join, collective, peers, by))

    async def leave(self, collective: str, peers: Sequence[str], *, by: str) -> int:
        """Ends memberships; gives how many there were. Raises Conflict for members that the site
        file names.
        """
        return await self._change(partial(self._leave, collective, peers, by))

    async def take_file(
        self, declared: SiteDirectory, *, by: str, is_told: bool = False
    ) -> list[PeopleChange]:
        """Those of the site file are these from now on; gives what that changes, told in `log`
        unless another process has told it. What the store has is as it was: who is in both is as
        the file says.
        """
        take = partial(self._take_file, declared, by, is_told)
        async with self._turn:
            return await surely(self._done(take, _touched_by))

    async def _change(self, work: Callable[[], T], touched: Sequence[str] = ()) -> T:
        """Whoever is cancelled meanwhile has changed nothing, or all: who depends on a peer is told
        of it in any case.
        """
        async with self._turn:
            return await surely(self._done(work, lambda _done: touched))

    async def _done(self, work: Callable[[], T], touched: Callable[[T], Sequence[str]]) -> T:
        done = await run_aside(work)
        for name in touched(done):
            await self._touch(name)
        await self._outbox.tell()
        return done

    async def _touch(self, name: str) -> None:
        for tell in self.changed:
            told = tell(name)
            if told is not None:
                await told

    # --- in a worker thread ---

    def _take_file(self, declared: SiteDirectory, by: str, is_told: bool) -> list[PeopleChange]:
        said = changes_of_file(self._directory.declared, declared, by)
        if said and not is_told:
            self._records.apply(self._outbox.entries(said))
        self._directory.declared = declared
        return said

    def _put_peer(self, name: str, settings: Settings, by: str) -> list[Problem]:
        self._check_free("peer", name)
        given = _with_list(settings)
        self._check_adapters(given)
        _, warnings = read_peer(name, given, self._adapters(), self._directory.site)
        is_new = self._directory.kept.peer(name) is None
        entry = Put(PEERS, name, kept_bytes(Kept(given, by, self._clock.now_ms())))
        change = PeopleChange(
            kind="peer",
            name=name,
            change="added" if is_new else "changed",
            by=by,
            settings=shown_settings(given),
        )
        self._apply([entry], [change])
        return warnings

    def _change_peer(self, name: str, settings: Settings, by: str) -> list[Problem]:
        self._check_free("peer", name)
        kept = self._directory.kept.peer(name)
        if kept is None:
            raise self._directory.unknown("peer", name)
        both = {**kept.settings, **settings}
        return self._put_peer(name, {key: both[key] for key in both if both[key] is not None}, by)

    def _remove_peer(self, name: str, by: str) -> None:
        self._check_free("peer", name)
        if self._directory.kept.peer(name) is None:
            raise self._directory.unknown("peer", name)
        changes: list[Change] = [Delete(PEERS, name)]
        for collective in self._directory.kept.memberships(name):
            changes += left(collective, name)
        self._apply(changes, [PeopleChange(kind="peer", name=name, change="removed", by=by)])

    def _put_collective(
        self, name: str, settings: Settings, members: Sequence[str] | None, by: str
    ) -> list[Problem]:
        self._check_free("collective", name)
        _, warnings = read_collective(name, settings)
        is_new = self._directory.kept.collective(name) is None
        changes: list[Change] = [
            Put(COLLECTIVES, name, kept_bytes(Kept(dict(settings), by, self._clock.now_ms())))
        ]
        said = [
            PeopleChange(
                kind="collective",
                name=name,
                change="added" if is_new else "changed",
                by=by,
                settings=dict(settings),
            )
        ]
        if members is not None:
            before = set(self._directory.kept.all_members(name))
            coming = self._checked(members)
            new, gone = sorted(coming - before), sorted(before - coming)
            changes += _all(joined, name, new) + _all(left, name, gone)
            said += memberships(name, "joined", new, by) + memberships(name, "left", gone, by)
        self._apply(changes, said)
        return warnings

    def _remove_collective(self, name: str, by: str) -> None:
        self._check_free("collective", name)
        if self._directory.kept.collective(name) is None:
            raise self._directory.unknown("collective", name)
        gone = list(self._directory.kept.all_members(name))
        said = PeopleChange(kind="collective", name=name, change="removed", by=by)
        self._apply([*_all(left, name, gone), Delete(COLLECTIVES, name)], [said])

    def _join(self, collective: str, peers: Sequence[str], by: str) -> int:
        self._directory.show_collective(collective)
        named = self._declared_members(collective)
        new = sorted(
            peer
            for peer in self._checked(peers)
            if peer not in named and not self._directory.kept.is_member(collective, peer)
        )
        self._apply(_all(joined, collective, new), memberships(collective, "joined", new, by))
        return len(new)

    def _leave(self, collective: str, peers: Sequence[str], by: str) -> int:
        self._directory.show_collective(collective)
        if named := sorted(self._declared_members(collective) & set(peers)):
            raise self._of_the_file(f"{named[0]!r} is in {collective!r}")
        gone = sorted({p for p in peers if self._directory.kept.is_member(collective, p)})
        self._apply(_all(left, collective, gone), memberships(collective, "left", gone, by))
        return len(gone)

    def _declared_members(self, collective: str) -> set[str]:
        found = self._directory.declared.collective(collective)
        return set(found.members) if found else set()

    def _checked(self, members: Sequence[str]) -> set[str]:
        """The names without doubles; raises UnknownName for one that is no peer."""
        if len(members) > _MOST_AT_ONCE:
            raise InvalidInput(
                f"{len(members)} members at once; the limit is {_MOST_AT_ONCE}",
                code="people.too_many",
                hint="let the others join afterwards",
            )
        for name in set(members):
            if not (self._directory.declared.peer(name) or self._directory.kept.peer(name)):
                raise self._directory.unknown("peer", name)
        return set(members)

    def _check_free(self, kind: str, name: str) -> None:
        check_name(name)
        declared = self._directory.declared
        if (declared.peer(name) if kind == "peer" else declared.collective(name)) is not None:
            raise self._of_the_file(f"{kind} {name!r} is declared")

    def _check_adapters(self, settings: Settings) -> None:
        """Raises InvalidInput for an address that only another site's node could use."""
        addresses = settings.get("addresses")
        if not isinstance(addresses, list):
            return  # what they are instead is told with the other settings
        named = [adapter_of(each) for each in addresses if isinstance(each, str) and ":" in each]
        running = self._adapters()
        for name in named:
            if name in BUILT_IN and name not in running:
                raise InvalidInput(
                    f"the adapter {name!r} does not run in this node",
                    code="adapter.not_running",
                    hint=f"add [adapters.{name}] to {self._file}, then: rapport reload",
                )

    def _of_the_file(self, what: str) -> Conflict:
        return Conflict(
            f"{what} by {self._file}",
            code="people.in_site_file",
            hint=f"change {self._file}, then: rapport reload",
        )

    def _apply(self, changes: Sequence[Change], said: Sequence[PeopleChange]) -> None:
        if changes:
            self._records.apply([*changes, *self._outbox.entries(said)])


def _touched_by(said: Sequence[PeopleChange]) -> list[str]:
    return [change.name for change in said if change.kind == "peer"]


def _with_list(settings: Settings) -> dict[str, Any]:
    addresses = settings.get("addresses")
    one = {"addresses": [addresses]} if isinstance(addresses, str) else {}
    return {**settings, **one}


def _all(
    write: Callable[[str, str], list[Change]], collective: str, peers: Sequence[str]
) -> list[Change]:
    return [change for peer in peers for change in write(collective, peer)]
