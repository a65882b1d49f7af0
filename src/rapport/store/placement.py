"""Logs spread over several stores: a record names the store of each log. [CH-13]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import (
    Block,
    DamagedLogs,
    LimitedPieces,
    LogPiece,
    LogReader,
    LogStore,
    RecordStore,
    all_records,
    owning_channel,
)
from rapport.store.event_locations import EventLocation
from rapport.store.gaps import MISSING
from rapport.store.segment_files import LocatedBlock

_log = get_logger(__name__)

PLACEMENTS = "placements"
"""Table of the record store: log -> name of its store."""
EMBEDDED = "embedded"

ChooseStore = Callable[[str], str]
"""From a log to the name of the store for a new log."""


def read_placements(records: RecordStore) -> dict[str, str]:
    """Every log that has been placed, with the name of its store."""
    return {log: store.decode() for log, store in all_records(records, PLACEMENTS)}


class Placements:
    """The store of each log. A placement stays when the site file changes; only a move changes
    it.
    """

    def __init__(self, records: RecordStore, choose: ChooseStore) -> None:
        self._records, self._choose = records, choose
        self._placed = read_placements(records)

    def adopt(self, store: str, logs: Sequence[str]) -> None:
        """Places logs that are older than the table of placements where they are."""
        for log in logs:
            if log not in self._placed and self._choose(log) != store:
                self._place(log, store)

    def log_differences(self) -> None:
        """Warns of every log whose store is not the one that the site file names."""
        for log, store in sorted(self._placed.items()):
            wanted = self._choose(log)
            if wanted != store:
                _log.warning(
                    "channel stays where it is",
                    channel=log,
                    kept_in=store,
                    site_says=wanted,
                    command=f"rapport channel move {log} --to {wanted}",
                )

    def of(self, log: str) -> str:
        """The store of a log; for a new one the store it will be placed in."""
        return self._placed.get(log) or self._choose(log)

    def assign(self, log: str) -> str:
        """The store of a log that is about to be written; recorded from now on."""
        return self._placed.get(log) or self._place(log, self._choose(log))

    def _place(self, log: str, store: str) -> str:
        self._records.put(PLACEMENTS, log, store.encode())
        self._placed[log] = store
        return store


class RoutedLogReader:
    def __init__(self, stores: Mapping[str, LogReader], place_of: ChooseStore) -> None:
        self._stores, self._place_of = dict(stores), place_of

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        return self._store(log).read_after(log, position, max_records=max_records)

    def last_position(self, log: str) -> int:
        return self._store(log).last_position(log)

    def first_position(self, log: str) -> int:
        return self._store(log).first_position(log)

    def gap_reason(self, log: str, position: int) -> str:
        explain = getattr(self._store(log), "gap_reason", None)
        return MISSING if explain is None else str(explain(log, position))

    def logs(self) -> list[str]:
        """See LogStore; without copies left behind by a move."""
        return sorted(
            log
            for name, store in self._stores.items()
            for log in store.logs()
            if self._place_of(log) == name
        )

    def close(self) -> None:
        with ExitStack() as closing:  # each, even when another one fails
            for store in self._stores.values():
                closing.callback(store.close)

    def _store(self, log: str) -> LogReader:
        return self._named(self._place_of(owning_channel(log)), log)

    def _named(self, name: str, log: str) -> LogReader:
        store = self._stores.get(name)
        if store is None:
            raise StoreUnavailable(
                f"channel {log!r} is kept in {name}, which this site does not use",
                code="store.not_configured",
                hint=f'say where it is: [channels] {name} = "env:RAPPORT_{name.upper()}"',
            )
        return store


class RoutedLogStore(RoutedLogReader):
    """A SharedLogStore over several LogStores. Stores that only this process writes have no append
    conflicts and nothing to watch.
    """

    def __init__(self, stores: Mapping[str, LogStore], placements: Placements) -> None:
        super().__init__(stores, placements.of)
        self._placements = placements

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        return self._to_write(log).append(log, blocks, received)

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        store: Any = self._to_write(log)
        if hasattr(store, "append_after"):
            return cast(list[Block], store.append_after(log, after, blocks, received))
        return cast(list[Block], store.append(log, blocks, received))

    def watch(self, grown: Callable[[str, int], None]) -> None:
        for name, store in self._stores.items():
            if hasattr(store, "watch"):
                store.watch(self._only_of(name, grown))

    def trim(self, log: str, before: int) -> None:
        self.store_of(log).trim(log, before)

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        return self.store_of(log).pieces(log, limit)

    def trims_blocks(self, log: str) -> bool:
        return self.store_of(log).trims_blocks(log)

    def kept_bytes(self, log: str) -> int:
        return self.store_of(log).kept_bytes(log)

    def close_piece(self, log: str) -> None:
        self.store_of(log).close_piece(log)

    def limit_pieces(self, limit_of: Callable[[str], int]) -> None:
        for store in self._stores.values():
            if isinstance(store, LimitedPieces):
                store.limit_pieces(limit_of)

    def find_damage(self) -> list[Corrupt]:
        stores = [store for store in self._stores.values() if isinstance(store, DamagedLogs)]
        return [fault for store in stores for fault in store.find_damage()]

    def closed_end(self, log: str) -> int:
        return self.store_of(log).closed_end(log)

    def read_placed(
        self, log: str, position: int, *, max_records: int = 10_000
    ) -> list[LocatedBlock]:
        """Blocks with their locations; those of a store without segment files have no segment."""
        store: Any = self._store(log)
        if hasattr(store, "read_placed"):
            placed: list[LocatedBlock] = store.read_placed(log, position, max_records=max_records)
            return placed
        blocks = store.read_after(log, position, max_records=max_records)
        return [LocatedBlock(block, 0, 0) for block in blocks]

    def read_spots(self, log: str, spots: Sequence[EventLocation]) -> list[bytes | None]:
        store: Any = self._store(log)
        if not hasattr(store, "read_spots"):
            return [None] * len(spots)
        return cast(list[bytes | None], store.read_spots(log, spots))

    def place_of(self, log: str) -> str:
        return self._place_of(owning_channel(log))

    def store_of(self, log: str) -> LogStore:
        return cast(LogStore, self._store(log))

    def _to_write(self, log: str) -> LogStore:
        return cast(LogStore, self._named(self._placements.assign(owning_channel(log)), log))

    def _only_of(self, name: str, grown: Callable[[str, int], None]) -> Callable[[str, int], None]:
        def notify(log: str, last: int) -> None:
            if self._place_of(owning_channel(log)) == name:
                grown(log, last)

        return notify
