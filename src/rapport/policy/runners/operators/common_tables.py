"""Occurrences that several plans have in common: found and kept once, read by each. [PO-6, PO-13]

Two plans have the table of a term in common when the term says the same under other names and both
know the same past: either nothing was found yet for either, or both took over the same rows. From
then on every reading of its streams concerns both, so they never part.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from hashlib import blake2b

from rapport.policy.runners.operators.horizons import Horizons
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.state import pack_state
from rapport.policy.runners.operators.table import Array, Table


class SharedTable:
    """A table and those who read it. Rows are forgotten when nobody needs them."""

    def __init__(self, table: Table) -> None:
        self.table, self.readers = table, Horizons()
        self.is_as_made = True
        """Whether no row came since it was made, or took over some."""
        self._batch = -1

    def has_taken(self, batch: int) -> bool:
        """Whether it has what a batch brings."""
        return batch == self._batch

    def settle(self, batch: int) -> None:
        """What came with earlier batches is old."""
        if batch != self._batch:
            self.table.settle()

    def append(self, rows: Mapping[str, Array], batch: int) -> None:
        """Adds what a batch brings, unless another reader has done so."""
        if batch != self._batch:
            self._batch, self.is_as_made = batch, False
            self.table.append(rows)

    def trim(self, *, at_once: bool) -> None:
        """Forgets what every reader has done with."""
        before = self.readers.passed(at_once=at_once)
        if before is not None:
            self.table.trim(before, at_once=at_once)


class SharedTableReader:
    """A common table as one operator sees it."""

    def __init__(self, common: SharedTable) -> None:
        self.common, self.horizon = common, common.readers.add()


class SharedTables:
    """The tables of one operator that others may have too, by number of their term."""

    def __init__(self, tables: dict[int, Table], shared: SharedCache) -> None:
        """`tables`: where they are to be put."""
        self._tables, self._shared = tables, shared
        self._readers: dict[int, SharedTableReader] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._readers

    def put(self, number: int, key: Hashable, table: Table, *, is_saved: bool = False) -> None:
        """Puts a table there, or the equal one that others have. `key`: what it depends on besides
        readings; `is_saved`: whether it may have rows, which must then be the same too.
        """
        if is_saved:
            key = (key, blake2b(pack_state(table.columns)).digest())
        key = (SharedTable, key)
        common: SharedTable | None = self._shared.kept(key)
        if common is None or not common.is_as_made:
            common = SharedTable(table)
            self._shared.keep_instead(key, common)
        self._readers[number] = SharedTableReader(common)
        self._tables[number] = common.table

    def has_taken(self, number: int) -> bool:
        """Whether another reader has added what the batch brings."""
        reader = self._readers.get(number)
        return reader is not None and reader.common.has_taken(self._shared.batch)

    def append(self, number: int, rows: Mapping[str, Array]) -> None:
        """Adds what the batch brings."""
        self._readers[number].common.append(rows, self._shared.batch)

    def settle(self) -> None:
        """What came before the batch is old."""
        for reader in self._readers.values():
            reader.common.settle(self._shared.batch)

    def done_before(self, time: int) -> None:
        """This operator has done with what ended before a time."""
        for reader in self._readers.values():
            reader.common.readers.move(reader.horizon, time)

    def trim(self, *, at_once: bool) -> None:
        """Forgets what everybody has done with."""
        for reader in self._readers.values():
            reader.common.trim(at_once=at_once)

    def is_read_by_several(self, number: int) -> bool:
        """Whether somebody else has this table."""
        reader = self._readers.get(number)
        return reader is not None and len(reader.common.readers) > 1
