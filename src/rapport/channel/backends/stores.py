"""Opening the channels of a site: which stores, by the site's `[channels]`. [CH-13, UX-3]

A site that keeps everything embedded gets just that. Otherwise each log is in one of several
stores, by a placement in the records; the embedded store is always among them, because its lock
ensures that one process runs the site. `reach_store` checks a store for `rapport doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlunsplit

import msgspec

from rapport.channel.backends.local import make_log_directory, open_embedded
from rapport.channel.backends.readonly import ReadOnlyChannels, open_readonly
from rapport.channel.config import ChannelsConfig
from rapport.channel.federation import saved_identity
from rapport.channel.interceptors.chain import InterceptorSpec, load_specs
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.writer import ThreadWriter
from rapport.channel.query.index_plan import Finder
from rapport.channel.query.query_kinds import load_scripts
from rapport.channel.validation import KEEP_AS_LONG_AS_POSSIBLE
from rapport.core.errors import InvalidInput, UnknownName, Unsupported
from rapport.core.urls import address_parts
from rapport.kernel.clock import Clock
from rapport.kernel.settings import read_secret
from rapport.store.base import LogReader, MovableLogStore, RecordStore
from rapport.store.field_index import SqliteFieldIndex
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

_SCHEMES = ("nats", "tls", "ws", "wss")
_PREFIX = "rapport"
POSTGRES, NATS = "postgres", "nats"
_READERS = 4
_RECORDS = "records.sqlite"
_SCHEMA = "rapport"
"""Default schema of the tables in PostgreSQL."""

MakeFinder = Callable[[Callable[[str], Sequence[str]]], Finder]


class NatsAddress(msgspec.Struct, frozen=True):
    """The servers of one cluster, and the prefix of the streams that nodes share."""

    servers: tuple[str, ...]
    prefix: str = _PREFIX


def read_address(text: str) -> NatsAddress:
    """Servers separated by commas; the path of the last one, if any, is the prefix.

    >>> read_address("nats://a:4222,nats://b:4222/building").prefix
    'building'
    """
    servers, prefix = [], _PREFIX
    for part in text.split(","):
        url = address_parts(part.strip())
        if url.scheme not in _SCHEMES or not url.hostname:
            raise InvalidInput(
                "this is no address of NATS",
                code="channel.bad_address",
                hint="as in nats://user:password@host:4222/prefix; several with commas between",
            )
        prefix = url.path.strip("/") or prefix
        servers.append(urlunsplit((url.scheme, url.netloc, "", "", "")))
    return NatsAddress(tuple(servers), prefix)


def open_nats_store(text: str) -> MovableLogStore:
    """The logs at an address; raises InvalidInput, Unsupported or StoreUnavailable."""
    address = read_address(text)
    with _needs_driver("NATS", NATS):
        from rapport.store.nats_store import NatsLogStore
    return NatsLogStore(address.servers, prefix=address.prefix)


def open_channels(
    directory: Path,
    clock: Clock,
    declared: ChannelsConfig,
    *,
    site: Path,
    segment_bytes: int,
) -> LoggedChannels:
    """The site's channels; `site` is the directory of secret files named in `declared`.

    Raises StoreUnavailable when a store cannot be reached or another process writes it,
    InvalidInput when a store's address is missing or a script cannot be loaded.
    """
    scripts = load_scripts(declared.scripts, site)
    channels = _open(directory, clock, declared, site=site, segment_bytes=segment_bytes)
    channels.source.scripts.use(scripts)
    return channels


def _open(
    directory: Path, clock: Clock, declared: ChannelsConfig, *, site: Path, segment_bytes: int
) -> LoggedChannels:
    if is_embedded(directory, declared):
        return open_embedded(directory, clock, segment_bytes=segment_bytes)
    with ExitStack() as undo:
        stores = Stores(directory, declared, site, segment_bytes=segment_bytes)
        undo.callback(stores.close)
        log = stores.routed()
        writer = ThreadWriter(name="channel-writer")
        undo.callback(writer.stop)
        history, fields, finder = _indexes(directory, stores)
        undo.callback(history.close)
        if fields is not None:
            undo.callback(fields.close)
        parts = LogParts(
            clock=clock,
            log=log,
            records=stores.records,
            history=history,
            fields=fields,
            finder=finder,
            finds_itself=lambda name: log.place_of(name) == POSTGRES,
            writer=writer,
            pool=ThreadPoolExecutor(_READERS, thread_name_prefix="channel-reader"),
        )
        channels = LoggedChannels(parts)
        undo.pop_all()
    return channels


def open_reading(
    directory: Path, clock: Clock, declared: ChannelsConfig, *, site: Path
) -> ReadOnlyChannels:
    """The site's channels for reading only, with or without a running node. Raises UnknownName when
    there are none yet.
    """
    if not directory.is_dir():
        raise UnknownName("log directory", str(directory), code="channel.no_log")

    def ttl_rule(channel: str) -> int:
        ttl_ms = declared.rules_for(channel).ttl_ms
        return KEEP_AS_LONG_AS_POSSIBLE if ttl_ms is None else ttl_ms

    if is_embedded(directory, declared):
        return open_readonly(directory, clock, ttl_rule)
    placed = _placements(directory, declared, site)
    embedded = SegmentLogReader(directory)
    own = set(embedded.logs())

    def place_of(log: str) -> str:
        return placed.get(log) or (EMBEDDED if log in own else _chosen_store(declared, log))

    readers: dict[str, LogReader] = {EMBEDDED: embedded}
    for name in _used(declared) | set(placed.values()):
        if name != EMBEDDED:
            readers[name] = open_store(name, declared, site)
    reader = RoutedLogReader(readers, place_of)
    return ReadOnlyChannels(directory, clock, reader, ttl_rule=ttl_rule)


@contextmanager
def _kept_records(
    directory: Path, declared: ChannelsConfig, site: Path
) -> Iterator[RecordStore | None]:
    """The records of the site's node, running or not; None before its first start."""
    if declared.records == EMBEDDED and not (directory / _RECORDS).is_file():
        yield None
        return
    records = _open_records(directory, declared, site)
    try:
        yield records
    finally:
        records.close()


def read_identity(directory: Path, declared: ChannelsConfig, *, site: Path) -> str:
    """The id of the site's node, running or not; empty before its first start."""
    with _kept_records(directory, declared, site) as records:
        return "" if records is None else saved_identity(records)


def read_interceptors(
    directory: Path, declared: ChannelsConfig, *, site: Path
) -> list[InterceptorSpec]:
    """The stored interceptors of the site's node, running or not."""
    with _kept_records(directory, declared, site) as records:
        return [] if records is None else load_specs(records)


def is_embedded(directory: Path, declared: ChannelsConfig) -> bool:
    """Whether all there is and all there will be is kept in the directory."""
    if declared.records != EMBEDDED or _used(declared) != {EMBEDDED}:
        return False
    return set(_placements(directory, declared, directory).values()) <= {EMBEDDED}


class Stores:
    """All stores of a site, open for writing by this process."""

    def __init__(
        self, directory: Path, declared: ChannelsConfig, site: Path, *, segment_bytes: int
    ) -> None:
        make_log_directory(directory)
        self._declared, self._site = declared, site
        with ExitStack() as undo:
            self.embedded = SegmentLogStore(directory, segment_bytes=segment_bytes)
            undo.callback(self.embedded.close)
            self.records = _open_records(directory, declared, site)
            undo.callback(self.records.close)
            self.logs: dict[str, MovableLogStore] = {EMBEDDED: self.embedded}
            for name in _used(declared) | set(read_placements(self.records).values()):
                if name != EMBEDDED:
                    self.open(name)
                    undo.callback(self.logs[name].close)
            undo.pop_all()

    def open(self, name: str) -> MovableLogStore:
        if name not in self.logs:
            self.logs[name] = open_store(name, self._declared, self._site)
        return self.logs[name]

    def placements(self) -> Placements:
        """The store of each log; logs in the directory stay there."""
        placements = Placements(self.records, lambda log: _chosen_store(self._declared, log))
        held = [log for log in self.embedded.logs() if self.embedded.last_position(log)]
        placements.adopt(EMBEDDED, held)
        return placements

    def routed(self) -> RoutedLogStore:
        """All logs as one store; warns of those that are not where the site places them."""
        placements = self.placements()
        placements.log_differences()
        return RoutedLogStore(self.logs, placements)

    def in_use(self) -> set[str]:
        held = {EMBEDDED} if self.embedded.logs() else set()
        return held | _used(self._declared) | set(read_placements(self.records).values())

    def close(self) -> None:
        """Ends; each, even when another one fails."""
        with ExitStack() as closing:
            closing.callback(self.records.close)
            for store in self.logs.values():
                closing.callback(store.close)


def _indexes(
    directory: Path, stores: Stores
) -> tuple[HistoryIndex, SqliteFieldIndex | None, MakeFinder | None]:
    """Indexes by id and by condition. PostgreSQL indexes its own logs; for other logs indexes are
    kept in the directory.
    """
    in_use, finder = stores.in_use(), None
    if POSTGRES in in_use:
        from rapport.channel.backends.postgres import PostgresFinder
        from rapport.store.postgres_log import PostgresHistory, PostgresLogStore

        log = cast(PostgresLogStore, stores.logs[POSTGRES])
        finder = partial(PostgresFinder, log)
        if in_use == {POSTGRES}:
            return PostgresHistory(log), None, finder
    history = open_or_recreate(SqliteHistory, directory / "history.sqlite")
    return history, open_or_recreate(SqliteFieldIndex, directory / "fields.sqlite"), finder


def open_store(name: str, declared: ChannelsConfig, site: Path) -> MovableLogStore:
    """A store that is not embedded; raises InvalidInput when its address is missing."""
    address = store_address(name, declared, site)
    if name == NATS:
        return open_nats_store(address)
    with _needs_driver("PostgreSQL", POSTGRES):
        from rapport.store.postgres_log import PostgresLogStore
    dsn, schema = split_schema(address)
    return PostgresLogStore(dsn, schema=schema)


def _open_records(directory: Path, declared: ChannelsConfig, site: Path) -> RecordStore:
    if declared.records == EMBEDDED:
        return SqliteRecordStore(directory / _RECORDS)
    with _needs_driver("PostgreSQL", POSTGRES):
        from rapport.store.postgres_records import PostgresRecordStore
    dsn, schema = split_schema(store_address(POSTGRES, declared, site))
    return PostgresRecordStore(dsn, schema=schema)


def store_address(name: str, declared: ChannelsConfig, site: Path) -> str:
    """The address of a store with its secret; raises InvalidInput when it is missing."""
    named = str(getattr(declared, name, ""))
    if not named:
        raise InvalidInput(
            f"channels are kept in {name}, but the site names no address for it",
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


def _placements(directory: Path, declared: ChannelsConfig, site: Path) -> Mapping[str, str]:
    with _kept_records(directory, declared, site) as records:
        return {} if records is None else read_placements(records)


def _used(declared: ChannelsConfig) -> set[str]:
    rules = [rule.log for rule in declared.rules if rule.log is not None]
    return {declared.common.log or EMBEDDED, *rules}


def _chosen_store(declared: ChannelsConfig, log: str) -> str:
    return declared.rules_for(log).log or EMBEDDED


@contextmanager
def _needs_driver(store: str, extra: str) -> Iterator[None]:
    """Raises Unsupported when an import within fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"keeping channels in {store}",
            "this installation",
            hint=f"pip install 'rapport[{extra}]'",
        ) from error


def declared_stores(declared: ChannelsConfig) -> list[str]:
    """The stores besides the embedded one that a site uses or names."""
    rules = (declared.common, *declared.rules)
    used = {declared.records, *(rule.log for rule in rules)}
    return [name for name in (POSTGRES, NATS) if name in used or getattr(declared, name)]


def reach_store(name: str, declared: ChannelsConfig, site: Path, *, seconds: int) -> str:
    """A short description of the store at an address; nothing is made or changed.

    Raises StoreUnavailable, InvalidInput for an invalid or missing address, ModuleNotFoundError
    when the driver is not installed.
    """
    address = store_address(name, declared, site)
    if name == POSTGRES:
        from rapport.store.postgres_connections import server_version

        dsn, _schema = split_schema(address)
        return f"PostgreSQL {server_version(dsn, seconds=seconds)} answers"
    from rapport.store.nats_store import NatsLogStore

    place = read_address(address)
    NatsLogStore(place.servers, prefix=place.prefix, patience_seconds=seconds).close()
    return "NATS with JetStream answers"
