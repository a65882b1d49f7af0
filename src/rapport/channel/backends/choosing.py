"""Opening the channels that a site declares: which stores, by the site's `[channels]`. [CH-13]

A site that keeps everything embedded gets just that. Otherwise each log lives in one of several
stores, by a placement kept in the records; the embedded one is always among them, because its lock
says that one process runs the site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from rapport.channel.backends.embedded import open_embedded
from rapport.channel.backends.nats import open_nats_store
from rapport.channel.backends.readonly import ReadOnlyChannels, open_readonly
from rapport.channel.declared import ChannelsDeclared
from rapport.channel.federation.identity import saved_identity
from rapport.channel.finding.planning import Finder
from rapport.channel.intercept.interceptor import Declared
from rapport.channel.intercept.keeping import load_declared
from rapport.channel.logged.channels import LoggedChannels
from rapport.channel.logged.shared import Parts
from rapport.channel.logged.writer import ThreadWriter
from rapport.channel.query.script_files import load_scripts
from rapport.core.errors import InvalidInput, StoreUnavailable, UnknownName, Unsupported
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.kernel.settings import read_secret
from rapport.store.base import LogReader, LogStore, RecordStore
from rapport.store.field_index import FieldIndex, SqliteFieldIndex
from rapport.store.history_index import HistoryIndex, SqliteHistory
from rapport.store.placement import (
    EMBEDDED,
    Placements,
    RoutedLogReader,
    RoutedLogStore,
    read_placements,
)
from rapport.store.segment_store import SegmentLogReader, SegmentLogStore
from rapport.store.sqlite import SqliteRecordStore, open_or_recreate

POSTGRES, NATS = "postgres", "nats"
_READERS = 4
_RECORDS = "records.sqlite"
_SCHEMA = "rapport"
"""Where the tables are in a database of PostgreSQL, unless its address says otherwise."""


def open_channels(
    directory: Path,
    clock: Clock,
    declared: ChannelsDeclared,
    *,
    site: Path,
    segment_bytes: int,
) -> LoggedChannels:
    """The site's channels; `site` is where secret files named in `declared` are looked for.

    Raises StoreUnavailable when a store cannot be reached or another process writes it,
    InvalidInput when the site does not say where a store is or a script cannot be loaded.
    """
    scripts = load_scripts(declared.scripts, site)
    channels = _open(directory, clock, declared, site=site, segment_bytes=segment_bytes)
    channels.source.scripts.use(scripts)
    return channels


def _open(
    directory: Path, clock: Clock, declared: ChannelsDeclared, *, site: Path, segment_bytes: int
) -> LoggedChannels:
    if is_embedded(directory, declared):
        return open_embedded(directory, clock, segment_bytes=segment_bytes)
    with ExitStack() as undo:
        stores = Stores(directory, declared, site, segment_bytes=segment_bytes)
        undo.callback(stores.close)
        log = stores.routed()
        writer = ThreadWriter(name="channel-writer")
        undo.callback(writer.stop)
        indexes = _indexes(directory, stores)
        undo.callback(indexes.history.close)
        if indexes.fields is not None:
            undo.callback(indexes.fields.close)
        parts = Parts(
            clock=clock,
            log=log,
            records=stores.records,
            history=indexes.history,
            fields=indexes.fields,
            finder=indexes.finder,
            finds_itself=lambda name: log.place_of(name) == POSTGRES,
            writer=writer,
            pool=ThreadPoolExecutor(_READERS, thread_name_prefix="channel-reader"),
        )
        channels = LoggedChannels(parts)
        undo.pop_all()
    return channels


def open_reading(
    directory: Path, clock: Clock, declared: ChannelsDeclared, *, site: Path
) -> ReadOnlyChannels:
    """The site's channels for reading only, beside a node that writes them or without one.

    Raises UnknownName when there are none yet.
    """
    if not directory.is_dir():
        raise UnknownName("log directory", str(directory), code="channel.no_log")

    def ttl_rule(channel: str) -> int:
        return declared.rules_for(channel).lives_ms

    if is_embedded(directory, declared):
        return open_readonly(directory, clock, ttl_rule)
    placed = _placed(directory, declared, site)
    embedded = SegmentLogReader(directory)
    own = set(embedded.logs())

    def place_of(log: str) -> str:
        return placed.get(log) or (EMBEDDED if log in own else _wanted(declared, log))

    readers: dict[str, LogReader] = {EMBEDDED: embedded}
    for name in _used(declared) | set(placed.values()):
        if name != EMBEDDED:
            readers[name] = open_store(name, declared, site)
    reader = RoutedLogReader(readers, place_of)
    return ReadOnlyChannels(directory, clock, reader, ttl_rule=ttl_rule)


def read_identity(directory: Path, declared: ChannelsDeclared, *, site: Path) -> str:
    """The id of the site's node, beside it or without it; empty before its first start."""
    if declared.records == EMBEDDED and not (directory / _RECORDS).is_file():
        return ""
    records = _open_records(directory, declared, site)
    try:
        return saved_identity(records)
    finally:
        records.close()


def read_interceptors(directory: Path, declared: ChannelsDeclared, *, site: Path) -> list[Declared]:
    """The interceptors that the site's node keeps, beside it or without it."""
    if declared.records == EMBEDDED and not (directory / _RECORDS).is_file():
        return []
    records = _open_records(directory, declared, site)
    try:
        return load_declared(records)
    finally:
        records.close()


def is_embedded(directory: Path, declared: ChannelsDeclared) -> bool:
    """Whether all there is and all there will be is kept in the directory."""
    if declared.records != EMBEDDED or _used(declared) != {EMBEDDED}:
        return False
    return set(_embedded_placements(directory).values()) <= {EMBEDDED}


class Stores:
    """All stores of a site, open for writing by this process."""

    def __init__(
        self, directory: Path, declared: ChannelsDeclared, site: Path, *, segment_bytes: int
    ) -> None:
        _make_directory(directory)
        self._declared, self._site = declared, site
        with ExitStack() as undo:
            self.embedded = SegmentLogStore(directory, segment_bytes=segment_bytes)
            undo.callback(self.embedded.close)
            self.records = _open_records(directory, declared, site)
            undo.callback(self.records.close)
            self.logs: dict[str, LogStore] = {EMBEDDED: self.embedded}
            for name in _used(declared) | set(read_placements(self.records).values()):
                if name != EMBEDDED:
                    self.open(name)
                    undo.callback(self.logs[name].close)
            undo.pop_all()

    def open(self, name: str) -> LogStore:
        """The store of that name, opened when it is not yet."""
        if name not in self.logs:
            self.logs[name] = open_store(name, self._declared, self._site)
        return self.logs[name]

    def placements(self) -> Placements:
        """Where each log lives; what the directory holds already stays there."""
        placements = Placements(self.records, lambda log: _wanted(self._declared, log))
        held = [log for log in self.embedded.logs() if self.embedded.last_position(log)]
        placements.adopt(EMBEDDED, held)
        return placements

    def routed(self) -> RoutedLogStore:
        """All logs as one store; warns of those that are kept elsewhere than the site says."""
        placements = self.placements()
        placements.log_differences()
        return RoutedLogStore(self.logs, placements)

    def in_use(self) -> set[str]:
        """The stores that hold something or will."""
        held = {EMBEDDED} if self.embedded.logs() else set()
        return held | _used(self._declared) | set(read_placements(self.records).values())

    def close(self) -> None:
        """Ends; each, even when another one fails."""
        with ExitStack() as closing:
            closing.callback(self.records.close)
            for store in self.logs.values():
                closing.callback(store.close)


class Indexes(msgspec.Struct):
    """What finds events by id and by condition."""

    history: HistoryIndex
    fields: FieldIndex | None = None
    finder: Callable[[Callable[[str], Sequence[str]]], Finder] | None = None


def _indexes(directory: Path, stores: Stores) -> Indexes:
    """PostgreSQL is its own index of what it holds; of other logs indexes are kept in the directory
    and fed from them, wherever they are.
    """
    in_use = stores.in_use()
    finder: Callable[[Callable[[str], Sequence[str]]], Finder] | None = None
    if POSTGRES in in_use:
        from rapport.channel.backends.postgres_finder import PostgresFinder
        from rapport.store.postgres_log import PostgresHistory, PostgresLogStore

        log = cast(PostgresLogStore, stores.logs[POSTGRES])
        finder = partial(PostgresFinder, log)
        if in_use == {POSTGRES}:
            return Indexes(PostgresHistory(log), finder=finder)
    return Indexes(
        open_or_recreate(SqliteHistory, directory / "history.sqlite"),
        fields=open_or_recreate(SqliteFieldIndex, directory / "fields.sqlite"),
        finder=finder,
    )


def open_store(name: str, declared: ChannelsDeclared, site: Path) -> LogStore:
    """A store that is not embedded; raises InvalidInput when the site does not say where it is."""
    address = store_address(name, declared, site)
    if name == NATS:
        return open_nats_store(address)
    try:
        from rapport.store.postgres_log import PostgresLogStore
    except ModuleNotFoundError as error:
        raise _no_driver() from error
    dsn, schema = split_schema(address)
    return cast(LogStore, PostgresLogStore(dsn, schema=schema))


def _open_records(directory: Path, declared: ChannelsDeclared, site: Path) -> RecordStore:
    if declared.records == EMBEDDED:
        return SqliteRecordStore(directory / _RECORDS)
    try:
        from rapport.store.postgres_records import PostgresRecordStore
    except ModuleNotFoundError as error:
        raise _no_driver() from error
    dsn, schema = split_schema(store_address(POSTGRES, declared, site))
    return PostgresRecordStore(dsn, schema=schema)


def store_address(name: str, declared: ChannelsDeclared, site: Path) -> str:
    """Where a store is, the secret in it read; raises InvalidInput when the site does not say."""
    named = str(getattr(declared, name, ""))
    if not named:
        raise InvalidInput(
            f"channels are kept in {name}, but the site does not say where that is",
            code="channel.no_address",
            hint=f'add {name} = "env:RAPPORT_{name.upper()}" to [channels]',
        )
    return read_secret(named, site)


def split_schema(address: str) -> tuple[str, str]:
    """Connection string and schema: `postgresql://host/database#schema`."""
    if not address.startswith(("postgresql://", "postgres://")) or "#" not in address:
        return address, _SCHEMA
    dsn, _, schema = address.rpartition("#")
    return dsn, schema


def _placed(directory: Path, declared: ChannelsDeclared, site: Path) -> Mapping[str, str]:
    if declared.records == EMBEDDED:
        return _embedded_placements(directory)
    records = _open_records(directory, declared, site)
    try:
        return read_placements(records)
    finally:
        records.close()


def _embedded_placements(directory: Path) -> Mapping[str, str]:
    if not (directory / _RECORDS).is_file():
        return {}
    records = SqliteRecordStore(directory / _RECORDS)
    try:
        return read_placements(records)
    finally:
        records.close()


def _used(declared: ChannelsDeclared) -> set[str]:
    rules = [rule.log for rule in declared.rules if rule.log is not None]
    return {declared.common.log or EMBEDDED, *rules}


def _wanted(declared: ChannelsDeclared, log: str) -> str:
    return declared.rules_for(log).log or EMBEDDED


def _make_directory(directory: Path) -> None:
    try:
        make_private_directory(directory)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make {directory}: {error.strerror}",
            code="store.disk_failed",
            hint="name another directory, or look at the rights of the one above it",
        ) from error


def _no_driver() -> Unsupported:
    return Unsupported(
        "keeping channels in PostgreSQL",
        "this installation",
        hint="pip install 'rapport[postgres]'",
    )
