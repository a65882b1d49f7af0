"""The directory: peers and collectives of the site file and those added at run time.
[CO-3, CO-12]

A name of the site file belongs to the site file; the store adds other names, and members to any
collective. Stored entries have the keys of `[peers.NAME]` and `[collectives.NAME]` and are checked
by the same rules. Every look-up reads the store as it is now, so that a change holds for the next
sending. A change and its event become durable together; the event is appended to `log` right after,
and again on opening if a crash came in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial, wraps
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from rapport.channel.channel import Channels
from rapport.communication import people_config as declare_people
from rapport.communication.adapters.dispatch import CircuitStatus
from rapport.communication.duty import Roster, roster_settings
from rapport.communication.peers import (
    Collective,
    Peer,
    SiteDirectory,
    adapter_of,
    names_after,
    shown_address,
)
from rapport.communication.people_config import (
    COLLECTIVE_KEYS,
    PEER_KEYS,
    gap_warning,
    roster_faults,
)
from rapport.communication.people_import import (
    ImportedPerson,
    ImportOutcome,
    PeopleImport,
    PersonRow,
)
from rapport.communication.privacy import quiet_hours
from rapport.core.errors import (
    Conflict,
    InvalidInput,
    Problem,
    SiteError,
    UnknownName,
    nearest_names,
)
from rapport.core.event import Event, make_event
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import Fields
from rapport.kernel.tasks import run_blocking, run_to_end
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import Section, TomlFile
from rapport.store.base import Change, Delete, Put, RecordStore, all_records

PEERS, COLLECTIVES = "people.peers", "people.collectives"
MEMBERS, MEMBERSHIPS = "people.members", "people.memberships"
"""The same pairs in both orders: (collective, peer) and (peer, collective)."""
LONGEST_NAME = 100
_PAGE = 1_000
_PLAIN = frozenset(("addresses",))
"""Settings that need no parsing: they were checked when they were stored."""
_STAND_IN = "member"
_OF_MEMBERS = ("collective.least_too_many", "collective.not_a_member")
"""Faults that need the members, which are stored apart from the settings."""

Settings = Mapping[str, Any]

_log = get_logger(__name__)

Origin = Literal["site", "store"]
EntryKind = Literal["peer", "collective"]
_TABLES: dict[EntryKind, str] = {"peer": PEERS, "collective": COLLECTIVES}
_MOST_COMPARED = 20_000
"""Names that an unknown one is compared with."""
PEOPLE_CHANGED = "rapport.people.changed"
SOURCE = "communication"
_OUTBOX = "people.outbox"
_NAMES_PER_EVENT = 1_000
_OUTBOX_PAGE = 200
ChangeKind = Literal["added", "changed", "removed", "joined", "left"]
_MOST_AT_ONCE = 200_000
T = TypeVar("T")
P = ParamSpec("P")


class StoredEntry(msgspec.Struct, frozen=True):
    """One entry of the store: settings, author and time."""

    settings: dict[str, Any]
    by: str = ""
    time: int = 0


def check_name(name: str) -> None:
    """Raises InvalidInput for an invalid name."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidInput(
            f"{name[:LONGEST_NAME]!r} cannot be a name",
            code="people.bad_name",
            hint=f"a name has 1 to {LONGEST_NAME} printable characters, no blank at its ends",
        )


def read_peer(
    name: str, settings: Settings, adapters: Collection[str], site: Path
) -> tuple[Peer, list[Problem]]:
    """The peer that the settings describe, and warnings; `site`: the directory of privacy
    functions. Raises SiteError with every fault.
    """
    table = _table("peers", name, settings, PEER_KEYS)
    peer = declare_people.read_peer(name, table, adapters, site)
    return peer, _warnings(table)


def read_collective(
    name: str, settings: Settings, members: Sequence[str] = (), zone: str = "UTC"
) -> tuple[Collective, list[Problem]]:
    """The collective that the settings describe, with these members; raises SiteError. The members
    of its roster are checked by `roster_faults`, since members are stored apart.
    """
    if "members" in settings:
        raise InvalidInput(
            "members are no setting", code="people.bad_members", hint="let them join instead"
        )
    # Members are stored apart: the rules about them do not apply here.
    table = _table("collectives", name, {**settings, "members": [_STAND_IN]}, COLLECTIVE_KEYS)
    known = {_STAND_IN: Peer(name=_STAND_IN, addresses=())}
    read = declare_people.read_collective(name, table, known, zone)
    table.problems[:] = [each for each in table.problems if each.code not in _OF_MEMBERS]
    warnings = _warnings(table)
    return msgspec.structs.replace(read, members=tuple(members)), warnings


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The settings with addresses in their shown form."""
    addresses = settings.get("addresses", ())
    given = [addresses] if isinstance(addresses, str) else addresses
    shown = {"addresses": [shown_address(entry) for entry in given]} if given else {}
    return {**settings, **shown}


class DirectoryRecords:
    """The entries of the store; every call is short and blocks."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    def get(self, kind: EntryKind, name: str) -> StoredEntry | None:
        raw = self._records.get(_TABLES[kind], name)
        return None if raw is None else msgspec.json.decode(raw, type=StoredEntry)

    def page(self, kind: EntryKind, after: str, limit: int) -> list[tuple[str, StoredEntry]]:
        """Entries whose names come after a name, sorted."""
        found = self._records.find(_TABLES[kind], after=after, limit=limit)
        return [(name, msgspec.json.decode(raw, type=StoredEntry)) for name, raw in found]

    def members(self, collective: str, after: str, limit: int) -> list[str]:
        """Names of stored members, sorted; costs `limit`."""
        prefix = _pair(collective, "")
        start = _pair(collective, after) if after else ""
        found = self._records.find(MEMBERS, prefix=prefix, after=start, limit=limit)
        return [key.removeprefix(prefix) for key, _ in found]

    def all_members(self, collective: str) -> Iterator[str]:
        """All stored members, read in pages."""
        return self._second_names(MEMBERS, collective)

    def is_member(self, collective: str, peer: str) -> bool:
        return self._records.get(MEMBERS, _pair(collective, peer)) is not None

    def memberships(self, peer: str) -> Iterator[str]:
        """The collectives that a peer joined, read in pages."""
        return self._second_names(MEMBERSHIPS, peer)

    def _second_names(self, table: str, first: str) -> Iterator[str]:
        prefix = _pair(first, "")
        for key, _ in all_records(self._records, table, prefix=prefix):
            yield key.removeprefix(prefix)


def _join_changes(collective: str, peers: Iterable[str]) -> list[Change]:
    return [Put(*place, b"") for place in _membership_keys(collective, peers)]


def _leave_changes(collective: str, peers: Iterable[str]) -> list[Change]:
    return [Delete(*place) for place in _membership_keys(collective, peers)]


def _membership_keys(collective: str, peers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each membership in both orders."""
    for peer in peers:
        yield MEMBERS, _pair(collective, peer)
        yield MEMBERSHIPS, _pair(peer, collective)


def peer_of_entry(name: str, kept: StoredEntry, site: Path) -> Peer:
    """The stored peer. One whose settings cannot be read has no address: quiet hours may be among
    them, and no message is better than one at night.
    """
    addresses = tuple(kept.settings.get("addresses", ()))
    if kept.settings.keys() <= _PLAIN:
        return Peer(name=name, addresses=addresses)
    try:
        # A missing adapter makes an address unusable, not the peer unreadable.
        adapters = {adapter_of(entry) for entry in addresses}
        return read_peer(name, kept.settings, adapters, site)[0]
    except SiteError as error:
        _log.error("a stored peer cannot be read", peer=name, error=error.message)
        return Peer(name=name, addresses=())


def _pair(first: str, second: str) -> str:
    """A key of two names: the first is escaped, so that no name is the prefix of another one's
    keys; the second is not, so that keys sort as names do.
    """
    return f"{quote(first, safe='')}/{second}"


def _table(kind: str, name: str, settings: Settings, known: Collection[str]) -> Fields:
    """The settings as a table of an otherwise empty site file."""
    values = dict(settings)
    file = TomlFile(f"{kind}.{name}", "", {kind: {name: values}})
    return Fields(Section(file, (kind, name), values), [], known=known, strict=True)


def _warnings(table: Fields) -> list[Problem]:
    """The warnings; raises SiteError when there are errors."""
    if errors := [each for each in table.problems if each.severity == "error"]:
        raise SiteError(errors)
    return table.problems


class DirectoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A peer or collective as people see it; addresses in their shown form."""

    name: str
    origin: Origin
    settings: dict[str, Any]
    by: str = ""
    time: int = 0
    """Author and time; unknown for the site file."""
    collectives: list[str] = []
    """Collectives of a peer."""
    circuits: list[CircuitStatus] = []
    """Addresses of a peer that are not called now, since calls to them failed."""


class StoredDirectory:
    """A `PeerDirectory` for any thread; each look-up is a few short reads."""

    def __init__(
        self, declared: SiteDirectory, records: RecordStore, *, site: Path = Path()
    ) -> None:
        """`site`: the directory of the site, with its privacy functions."""
        self.declared, self.site = declared, site
        self.kept = DirectoryRecords(records)

    # --- look-ups of deliveries ---

    def peer(self, name: str) -> Peer | None:
        if found := self.declared.peer(name):
            return found
        kept = self.kept.get("peer", name)
        return None if kept is None else peer_of_entry(name, kept, self.site)

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory; stored members are left out."""
        if declared := self.declared.collective(name):
            return declared
        kept = self.kept.get("collective", name)
        if kept is None:
            return None
        return read_collective(name, kept.settings, zone=self.declared.zone)[0]

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; costs `limit`, not the size of the collective."""
        if not self.has(Identifier("collective", name)):
            return []  # removed from the site file; its stored members stay for its return
        stored = self.kept.members(name, after, limit)
        declared = self.declared.member_names(name, after=after, limit=limit)
        return list(islice(_once(merge(declared, stored)), limit))

    # --- queries of people ---

    def peers(self, *, after: str = "", limit: int = 1000) -> list[DirectoryEntry]:
        """Peers whose names come after a name, sorted."""
        return self._page("peer", self.declared.peer_names(), after, limit)

    def find_peers(
        self, search: str, *, after: str = "", limit: int = 1000
    ) -> list[DirectoryEntry]:
        """Peers with their groups whose name, address or group has all words of a search, sorted by
        name. Costs what the directory holds up to the last one found.
        """
        words, found = search.casefold().split(), list[DirectoryEntry]()
        while page := self.peers(after=after, limit=min(limit, _PAGE)):
            for entry in page:
                entry = self._with_groups(entry)
                addresses = entry.settings.get("addresses", ())
                text = "\n".join((entry.name, *addresses, *entry.collectives)).casefold()
                if all(word in text for word in words):
                    found.append(entry)
                if len(found) == limit:
                    return found
            after = page[-1].name
        return found

    def peer_names(self) -> Iterator[str]:
        """The names of all peers, sorted, read in pages."""
        after = ""
        while page := self.peers(after=after):
            yield from (entry.name for entry in page)
            after = page[-1].name

    def collectives(self, *, after: str = "", limit: int = 1000) -> list[DirectoryEntry]:
        """Collectives whose names come after a name, sorted, without members."""
        return self._page("collective", self.declared.collective_names(), after, limit)

    def _page(
        self, kind: EntryKind, declared: Sequence[str], after: str, limit: int
    ) -> list[DirectoryEntry]:
        """Both together, sorted by name; entries of the site file hide stored ones."""
        entries = {name: _entry(name, kept) for name, kept in self.kept.page(kind, after, limit)}
        for name in names_after(declared, after, limit):
            entries[name] = self._show(kind, name)
        return [entries[name] for name in sorted(entries)[:limit]]

    def show_peer(self, name: str) -> DirectoryEntry:
        """One peer with its collectives; raises UnknownName with the nearest names."""
        return self._with_groups(self._show("peer", name))

    def _with_groups(self, entry: DirectoryEntry) -> DirectoryEntry:
        named = {*self.declared.collectives_of(entry.name), *self.kept.memberships(entry.name)}
        return msgspec.structs.replace(entry, collectives=sorted(named))

    def show_collective(self, name: str) -> DirectoryEntry:
        """One collective; raises UnknownName with the nearest names."""
        return self._show("collective", name)

    def roster_of(self, name: str) -> Roster:
        """The roster of a collective; raises UnknownName where there is none."""
        self.show_collective(name)
        found = self.policy_of(name)
        if found is None or found.roster is None:
            raise UnknownName(
                "roster",
                name,
                code="collective.no_roster",
                hint="all its members are on duty; add shifts as roster = [...]",
            )
        return found.roster

    def _show(self, kind: EntryKind, name: str) -> DirectoryEntry:
        peer, collective = self.declared.peer(name), self.declared.collective(name)
        if kind == "peer" and peer is not None:
            return DirectoryEntry(name=name, origin="site", settings=_settings_of(peer))
        if kind == "collective" and collective is not None:
            settings = {"delivery": collective.delivery, **_of_roster(collective.roster)}
            return DirectoryEntry(name=name, origin="site", settings=settings)
        kept = self.kept.get(kind, name)
        if kept is None:
            raise self.unknown(kind, name)
        return _entry(name, kept)

    def has(self, receiver: Identifier) -> bool:
        """Whether the receiver is known; components are not in the directory."""
        name = receiver.name
        match receiver.kind:
            case "collective":
                return bool(self.declared.collective(name) or self.kept.get("collective", name))
            case "peer":
                return bool(self.declared.peer(name) or self.kept.get("peer", name))
            case _:
                return True

    def check(self, receiver: Identifier) -> None:
        """Raises UnknownName with the nearest names for an unknown receiver."""
        if not self.has(receiver):
            raise self.unknown(receiver.kind, receiver.name)

    def unknown(self, kind: str, name: str) -> UnknownName:
        """The error for an unknown name, with the nearest name of its kind, else of the other."""
        names = {
            "peer": [entry.name for entry in self.peers(limit=_MOST_COMPARED)],
            "collective": [entry.name for entry in self.collectives(limit=_MOST_COMPARED)],
        }
        shown = {"peer": "person", "collective": "group"}[kind]
        error = UnknownName(shown, name, names.pop(kind), code=f"{kind}.unknown")
        for other, known in names.items():
            near = nearest_names(name, known)
            if near and (not error.nearest or near[0] == name):
                error.hint = f"did you mean {other}:{near[0]}?"
        return error


def _entry(name: str, kept: StoredEntry) -> DirectoryEntry:
    settings = shown_settings(kept.settings)
    return DirectoryEntry(name=name, origin="store", settings=settings, by=kept.by, time=kept.time)


def _once(names: Iterable[str]) -> Iterator[str]:
    """Sorted names without duplicates."""
    last = None
    for name in names:
        if name != last:
            yield name
        last = name


class PeopleChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a change event; addresses in their shown form."""

    kind: EntryKind
    name: str
    change: ChangeKind
    by: str = ""
    settings: dict[str, Any] = {}
    members: list[str] = []


class PeopleOutbox:
    """Events of changes, stored until they are appended."""

    def __init__(
        self, records: RecordStore, channels: Channels, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._records, self._channels = records, channels
        self._clock, self._new_id = clock, new_id

    def entries(self, people_changes: Sequence[PeopleChange]) -> list[Put]:
        """The records to write together with the changes."""
        return [
            # Ids of one millisecond do not sort; the number keeps the order.
            Put(_OUTBOX, f"{event.time:015}.{number:06}.{event.id}", msgspec.msgpack.encode(event))
            for number, event in enumerate(map(self._event, people_changes))
        ]

    async def flush(self) -> None:
        """Appends the stored events, then deletes them."""
        while waiting := await run_blocking(
            partial(self._records.find, _OUTBOX, limit=_OUTBOX_PAGE)
        ):
            events = [msgspec.msgpack.decode(raw, type=Event) for _, raw in waiting]
            await self._channels.channel("log").append(events)
            gone = [Delete(_OUTBOX, key) for key, _ in waiting]
            await run_blocking(partial(self._records.apply, gone))

    def _event(self, change: PeopleChange) -> Event:
        return make_event(
            source=SOURCE,
            id=self._new_id(),
            type=PEOPLE_CHANGED,
            subject=f"{change.kind}:{change.name}",
            time=self._clock.now_ms(),
            data=change,
        )


def memberships(
    collective: str, change: ChangeKind, peers: Sequence[str], by: str
) -> list[PeopleChange]:
    """Members that joined or left, a bounded number of names per event."""
    return [
        PeopleChange(
            kind="collective",
            name=collective,
            change=change,
            by=by,
            members=list(peers[start : start + _NAMES_PER_EVENT]),
        )
        for start in range(0, len(peers), _NAMES_PER_EVENT)
    ]


def changes_of_file(before: SiteDirectory, after: SiteDirectory, by: str) -> list[PeopleChange]:
    """The changes between two versions of a site file: peers, then collectives and their members,
    by name. Pure; costs what both hold.
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
    if old is None or new is None or replace(old, members=()) != replace(new, members=()):
        change = _what(old, new)
        settings: dict[str, Any] = {} if new is None else {"delivery": new.delivery}
        if new is not None and new.least:
            settings["least"] = new.least
        settings |= _of_roster(new.roster if new is not None else None)
        changes.append(
            PeopleChange(kind="collective", name=name, change=change, by=by, settings=settings)
        )
    if new is None:
        return changes  # its members are not listed
    members, were = set(new.members), set(old.members if old is not None else ())
    changes += memberships(name, "joined", sorted(members - were), by)
    return changes + memberships(name, "left", sorted(were - members), by)


def _what(old: object, new: object) -> ChangeKind:
    return "added" if old is None else "removed" if new is None else "changed"


def _settings_of(peer: Peer) -> dict[str, Any]:
    settings: dict[str, Any] = {"addresses": list(peer.addresses), "delivery": peer.delivery}
    settings |= {key: value for key in ("zone", "language") if (value := getattr(peer, key))}
    if quiet := quiet_hours(peer.privacy):
        settings["quiet"] = quiet
    return shown_settings(settings)


def _of_roster(roster: Roster | None) -> dict[str, Any]:
    """The settings of a roster, as a site file writes them."""
    return {} if roster is None else {"roster": roster_settings(roster), "zone": roster.zone}


def _change(
    method: Callable[Concatenate[DirectoryChanges, P], T],
) -> Callable[Concatenate[DirectoryChanges, P], Coroutine[Any, Any, T]]:
    """Makes a method a change: it runs in a thread, one change at a time. A cancelled change
    happens fully or not at all, including the calls of `changed`.
    """

    @wraps(method)
    async def call(changes: DirectoryChanges, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with changes._turn:
            return await run_to_end(changes._run(partial(method, changes, *args, **kwargs)))

    return call


class DirectoryChanges:
    """Adds, changes and removes entries of the store, one change at a time.

    The functions in `changed` are called with the name of every changed peer, after the change.
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
        built_in: Collection[str] = (),
    ) -> None:
        """`adapters`: those that can deliver now; `built_in`: those that a site can declare."""
        self._directory, self._records, self._clock = directory, records, clock
        self._adapters, self._built_in = adapters, built_in
        self._outbox = PeopleOutbox(records, channels, clock, new_id)
        self._turn = asyncio.Lock()
        self._touched: list[str] = []
        """Peers that the running change has changed."""
        self.changed: list[Callable[[str], Awaitable[None] | None]] = []

    async def open(self) -> None:
        """Appends the events that a crash may have left."""
        await self._outbox.flush()

    async def _run(self, work: Callable[[], T]) -> T:
        """Does work in a thread, then reports the changed peers and appends the events."""
        done = await run_blocking(work)
        touched, self._touched = self._touched, []
        for name in touched:
            await self._touch(name)
        await self._outbox.flush()
        return done

    async def _touch(self, name: str) -> None:
        for notify in self.changed:
            waited_for = notify(name)
            if waited_for is not None:
                await waited_for

    # --- in a worker thread ---

    @_change
    def use_file(
        self, declared: SiteDirectory, *, by: str, is_logged: bool = False
    ) -> list[PeopleChange]:
        """Takes over the people of a new site file and returns the changes, which are logged unless
        another process has logged them. Stored entries stay; the file overrides them.
        """
        people_changes = changes_of_file(self._directory.declared, declared, by)
        if people_changes and not is_logged:
            self._records.apply(self._outbox.entries(people_changes))
        self._directory.declared = declared
        self._note_touched(people_changes)
        return people_changes

    def _note_touched(self, people_changes: Sequence[PeopleChange]) -> None:
        self._touched = [change.name for change in people_changes if change.kind == "peer"]

    @_change
    def put_peer(self, name: str, settings: Settings, *, by: str) -> list[Problem]:
        """Adds the peer or replaces all its settings; returns warnings.

        Raises Conflict for a name of the site file, SiteError with every fault.
        """
        return self._put_peer(name, settings, by)

    def _put_peer(self, name: str, settings: Settings, by: str) -> list[Problem]:
        self._check_free("peer", name)
        given = _with_list(settings)
        self._check_adapters(given)
        _, warnings = read_peer(name, given, self._adapters(), self._directory.site)
        is_new = self._directory.kept.get("peer", name) is None
        entry = self._put("peer", name, given, by)
        change = PeopleChange(
            kind="peer",
            name=name,
            change="added" if is_new else "changed",
            by=by,
            settings=shown_settings(given),
        )
        self._apply([entry], [change])
        return warnings

    @_change
    def change_peer(self, name: str, settings: Settings, *, by: str) -> list[Problem]:
        """Changes only the given settings; None removes one. An address given as it is shown keeps
        its secret. Raises UnknownName.
        """
        self._check_free("peer", name)
        kept = self._directory.kept.get("peer", name)
        if kept is None:
            raise self._directory.unknown("peer", name)
        both = {**kept.settings, **_with_list(settings)}
        if isinstance(both.get("addresses"), list):
            own = _with_list(kept.settings).get("addresses", ())
            secret = {shown_address(address): address for address in own}
            both["addresses"] = [
                secret.get(each, each) if isinstance(each, str) else each
                for each in both["addresses"]
            ]
        return self._put_peer(name, {key: both[key] for key in both if both[key] is not None}, by)

    def preview_import(self, rows: Sequence[PersonRow]) -> PeopleImport:
        """What an import of these rows would do, with the faults of each; changes nothing."""
        people, new_groups = list[ImportedPerson](), dict[str, None]()
        for row in rows:
            person = self._preview_row(row)
            people.append(person)
            if person.outcome != "refused":
                groups = (Identifier("collective", group) for group in row.groups)
                new_groups |= {one.name: None for one in groups if not self._directory.has(one)}
        return PeopleImport(people=people, new_groups=list(new_groups))

    def _preview_row(self, row: PersonRow) -> ImportedPerson:
        problems = list(row.problems)
        kept = self._directory.kept.get("peer", row.name)
        outcome: ImportOutcome = "added" if kept is None else "changed"
        settings = {**(kept.settings if kept is not None else {}), **row.settings}
        try:
            self._check_free("peer", row.name)
            for group in row.groups:
                check_name(group)
            given = _with_list(settings)
            self._check_adapters(given)
            _, warnings = read_peer(row.name, given, self._adapters(), self._directory.site)
            problems += warnings
        except SiteError as error:
            problems += error.problems
        except (InvalidInput, Conflict) as error:
            problems.append(Problem(code=error.code, message=error.message, hint=error.hint))
        if any(problem.severity == "error" for problem in problems):
            outcome = "refused"
        elif kept is not None and settings == kept.settings:
            joined = all(self._directory.kept.is_member(group, row.name) for group in row.groups)
            outcome = "unchanged" if joined else "changed"
        return ImportedPerson(
            line=row.line,
            name=row.name,
            outcome=outcome,
            settings=row.settings,
            groups=list(row.groups),
            problems=problems,
        )

    async def import_people(self, preview: PeopleImport, *, by: str) -> PeopleImport:
        """Adds and changes the people of a preview, those without fault; returns it as applied.
        Each person is one change: after a crash the same import goes on.
        """
        for group in preview.new_groups:
            if not await run_blocking(
                partial(self._directory.has, Identifier("collective", group))
            ):
                await self.put_collective(group, {}, by=by)
        members: dict[str, list[str]] = {}
        for person in preview.people:
            if person.outcome in ("refused", "unchanged"):
                continue
            put = self.put_peer if person.outcome == "added" else self.change_peer
            await put(person.name, person.settings, by=by)
            for group in person.groups:
                members.setdefault(group, []).append(person.name)
        for group, names in members.items():
            await self.join(group, names, by=by)
        return msgspec.structs.replace(preview, applied=True)

    @_change
    def remove_peer(self, name: str, *, by: str) -> None:
        """Removes the peer from the directory and all collectives; raises UnknownName, Conflict."""
        self._check_free("peer", name)
        if self._directory.kept.get("peer", name) is None:
            raise self._directory.unknown("peer", name)
        changes: list[Change] = [Delete(PEERS, name)]
        for collective in self._directory.kept.memberships(name):
            self._check_off_roster(collective, {name})
            changes += _leave_changes(collective, [name])
        self._apply(changes, [PeopleChange(kind="peer", name=name, change="removed", by=by)])

    @_change
    def put_collective(
        self, name: str, settings: Settings, members: Sequence[str] | None = None, *, by: str
    ) -> list[Problem]:
        """Adds the collective or replaces its settings, and its members where they are given.

        Raises Conflict for a name of the site file, UnknownName for a member that is no peer,
        SiteError for a roster with people who are not members.
        """
        self._check_free("collective", name)
        read, warnings = read_collective(name, settings)
        if read.roster is not None:
            named = self._directory.kept.all_members(name) if members is None else members
            self._check_roster(read.roster, set(named))
            warnings += [gap] if (gap := gap_warning(read)) else []
        is_new = self._directory.kept.get("collective", name) is None
        changes: list[Change] = [self._put("collective", name, settings, by)]
        people_changes = [
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
            changes += _join_changes(name, new) + _leave_changes(name, gone)
            people_changes += memberships(name, "joined", new, by) + memberships(
                name, "left", gone, by
            )
        self._apply(changes, people_changes)
        return warnings

    @_change
    def remove_collective(self, name: str, *, by: str) -> None:
        """Removes the collective and its members; raises UnknownName, Conflict."""
        self._check_free("collective", name)
        if self._directory.kept.get("collective", name) is None:
            raise self._directory.unknown("collective", name)
        gone = list(self._directory.kept.all_members(name))
        people_changes = PeopleChange(kind="collective", name=name, change="removed", by=by)
        self._apply([*_leave_changes(name, gone), Delete(COLLECTIVES, name)], [people_changes])

    @_change
    def join(self, collective: str, peers: Sequence[str], *, by: str) -> int:
        """Adds members, also to a collective of the site file; returns how many are new. All or
        none; raises UnknownName.
        """
        self._directory.show_collective(collective)
        named = self._declared_members(collective)
        new = sorted(
            peer
            for peer in self._checked(peers)
            if peer not in named and not self._directory.kept.is_member(collective, peer)
        )
        self._apply(_join_changes(collective, new), memberships(collective, "joined", new, by))
        return len(new)

    @_change
    def leave(self, collective: str, peers: Sequence[str], *, by: str) -> int:
        """Removes members; returns how many there were. Raises Conflict for members that the site
        file names.
        """
        self._directory.show_collective(collective)
        if named := sorted(self._declared_members(collective) & set(peers)):
            raise self._of_the_file(f"{named[0]!r} is in {collective!r}")
        gone = sorted({p for p in peers if self._directory.kept.is_member(collective, p)})
        self._check_off_roster(collective, set(gone))
        self._apply(_leave_changes(collective, gone), memberships(collective, "left", gone, by))
        return len(gone)

    def _check_roster(self, roster: Roster, members: set[str]) -> None:
        """Raises SiteError for a roster that does not fit the members."""
        if faults := roster_faults(roster, members):
            raise SiteError(
                [Problem(code=one.code, message=one.message, hint=one.hint) for one in faults]
            )

    def _check_off_roster(self, collective: str, leaving: set[str]) -> None:
        """Raises Conflict for people with shifts: without them, nobody may be on duty."""
        found = self._directory.policy_of(collective)
        if found is not None and found.roster and (busy := found.roster.people() & leaving):
            raise Conflict(
                f"{min(busy)!r} has shifts in {collective!r}",
                code="collective.on_roster",
                hint="give the shifts to somebody else first",
            )

    def _put(self, kind: EntryKind, name: str, settings: Settings, by: str) -> Put:
        kept = StoredEntry(dict(settings), by, self._clock.now_ms())
        return Put(_TABLES[kind], name, msgspec.json.encode(kept))

    def _declared_members(self, collective: str) -> set[str]:
        found = self._directory.declared.collective(collective)
        return set(found.members) if found else set()

    def _checked(self, members: Sequence[str]) -> set[str]:
        """The distinct names; raises UnknownName for one that is no peer."""
        if len(members) > _MOST_AT_ONCE:
            raise InvalidInput(
                f"{len(members)} members at once; the limit is {_MOST_AT_ONCE}",
                code="people.too_many",
                hint="let the others join afterwards",
            )
        for name in set(members):
            self._directory.check(Identifier("peer", name))
        return set(members)

    def _check_free(self, kind: str, name: str) -> None:
        check_name(name)
        declared = self._directory.declared
        if (declared.peer(name) if kind == "peer" else declared.collective(name)) is not None:
            raise self._of_the_file(f"{kind} {name!r} is declared")

    def _check_adapters(self, settings: Settings) -> None:
        """Raises InvalidInput for an address whose adapter does not run here."""
        addresses = settings.get("addresses")
        if not isinstance(addresses, list):
            return  # reported with the other settings
        named = [adapter_of(each) for each in addresses if isinstance(each, str) and ":" in each]
        running = self._adapters()
        for name in named:
            if name in self._built_in and name not in running:
                raise InvalidInput(
                    f"the adapter {name!r} does not run in this node",
                    code="adapter.not_running",
                    hint=f"add [adapters.{name}] to site.toml, then: rapport reload",
                )

    def _of_the_file(self, what: str) -> Conflict:
        return Conflict(
            f"{what} by site.toml",
            code="people.in_site_file",
            hint="change site.toml, then: rapport reload",
        )

    def _apply(self, changes: Sequence[Change], people_changes: Sequence[PeopleChange]) -> None:
        if changes:
            self._records.apply([*changes, *self._outbox.entries(people_changes)])
            self._note_touched(people_changes)


def _with_list(settings: Settings) -> dict[str, Any]:
    addresses = settings.get("addresses")
    one = {"addresses": [addresses]} if isinstance(addresses, str) else {}
    return {**settings, **one}
