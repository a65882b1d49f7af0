"""The tables of a site: instances of concepts for policies, look-ups for mediation. [PO-2]

Each change of a concept's instances is a version with the time from which it holds, so that a
back-test can join the roster of that time. Loaded rows are never changed, only replaced as a whole:
`prepared` does the work, in any thread; `switch` puts it in force, in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rapport.core.errors import Problem, SiteError, UnknownName
from rapport.core.event import content_id
from rapport.tables.context_source import ContextSource, drop_unusable_values
from rapport.tables.declaration import Concepts, PairDeclaration, TableDeclaration
from rapport.tables.instances import Instances, join_fewest
from rapport.tables.loaded_table import (
    KeyedRows,
    LoadedTable,
    Pairs,
    load_table,
    read_pairs,
    reload_table,
)
from rapport.tables.row_cache import RowCache, StaleRows, is_cached, is_unreachable
from rapport.tables.rows import RowFile, empty_column
from rapport.tables.sources import read_source


class TablesChange(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a switch changed, and the time from which the change holds."""

    tables: tuple[str, ...]
    concepts: tuple[str, ...]
    functions: tuple[str, ...]
    time: int


class PreparedTables(msgspec.Struct, frozen=True, kw_only=True):
    """The next state of all tables; `revision` is that of the state it was prepared from."""

    revision: int
    loaded: dict[str, LoadedTable]
    instances: dict[str, Instances]
    """Of the concepts whose rows changed."""
    pairs: dict[str, Pairs]
    """Of the functions whose rows changed."""


class DerivedColumns(Protocol):
    """Columns that the site's ontology derives from those of the tables."""

    def gives(self, concept: str, attribute: str) -> bool: ...

    def version(self) -> str:
        """Identifies the derived columns; empty when there are none."""

    def complete(self, instances: Instances, instances_of: Callable[[str], Instances]) -> Instances:
        """The instances with their derived columns."""


class TableState:
    """The state of tables; two `Tables` share it after one took the other over."""

    def __init__(
        self, concepts: Concepts, needed: Concepts, pairs: Sequence[PairDeclaration]
    ) -> None:
        self.concepts, self.needed = concepts, needed
        self.functions = {declared.function: declared for declared in pairs}
        self.loaded: dict[str, LoadedTable] = {}
        self.pairs: dict[str, Pairs] = {}
        self.versions: dict[str, list[tuple[int, Instances]]] = {}
        self.stale: dict[str, StaleRows] = {}
        """Tables with cached rows, until their source answers."""
        self.freshness: dict[str, tuple[TableDeclaration, Freshness]] = {}
        """Freshness of each table; the refresher keeps it here, beside the rows."""
        self.revision = 0

    def repeats(self, table: str) -> bool:
        """Whether rows of a table may have the same key, as pairs do."""
        return any(declared.table == table for declared in self.functions.values())

    def digests(self) -> dict[str, str]:
        return {name: one.digest for name, one in self.loaded.items()}

    def digests_by_concept(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.loaded.values():
            if one.declared.concept:
                found.setdefault(one.declared.concept, []).append(one.digest)
        return found


def _pairs(
    held: TableState, loaded: Mapping[str, LoadedTable], names: set[str]
) -> dict[str, Pairs]:
    """Pairs of the functions that use tables of these names."""
    found: dict[str, Pairs] = {}
    problems: list[Problem] = []
    for declared in held.functions.values():
        if declared.table in names or declared.function not in held.pairs:
            try:
                found[declared.function] = read_pairs(declared, loaded)
            except SiteError as error:
                problems += error.problems
    if problems:
        raise SiteError(problems)
    return found


def _joined(concept: str, loaded: Mapping[str, LoadedTable], held: TableState) -> Instances:
    typed = [one.typed for one in loaded.values() if one.typed is not None]
    own = [table for table in typed if table.concept == concept]
    return join_fewest(concept, own, held.concepts[concept], frozenset(held.needed[concept]))


BEGINNING_OF_TIME = -(2**62)
_MOST_VERSIONS = 32
"""Versions kept of one concept; the oldest one left holds from the beginning."""


class Tables:
    """All tables of a site. Reading does no I/O; a look-up and an instance cost O(1).

    Only the event loop's thread may change the tables.
    """

    def __init__(
        self,
        concepts: Concepts,
        *,
        directory: Path | None = None,
        needed: Concepts | None = None,
        pairs: Sequence[PairDeclaration] = (),
        context: ContextSource | None = None,
    ) -> None:
        """See `load`."""
        self._held = TableState(concepts, concepts if needed is None else needed, pairs)
        self._directory, self._context = directory or Path(), context
        self.deriving: DerivedColumns | None = None
        """Adds derived columns to instances."""
        self.changed: list[Callable[[TablesChange], None]] = []
        """Called after every switch, in the order in which they were added."""

    @staticmethod
    def load(
        directory: Path,
        declarations: Sequence[TableDeclaration],
        concepts: Concepts,
        *,
        needed: Concepts | None = None,
        pairs: Sequence[PairDeclaration] = (),
        context: ContextSource | None = None,
        kept: RowCache | None = None,
    ) -> Tables:
        """Reads every table; raises SiteError with the faults of all files. 100,000 rows take under
        a second.

        Args:
            needed: per concept the attributes for which tables are chosen, by default all; those
                that come as events need no table.
            pairs: functions that are looked up.
            kept: the last rows of sources that may not answer now; see `stale`.
        """
        tables = Tables(concepts, directory=directory, needed=needed, pairs=pairs, context=context)
        problems: list[Problem] = []
        read: list[LoadedTable] = []
        for declared in declarations:
            try:
                read.append(tables._read_or_kept(declared, kept))
            except SiteError as error:
                problems += error.problems
        if problems:
            raise SiteError(problems)
        tables.switch(tables.prepared(read), BEGINNING_OF_TIME)
        return tables

    # --- reading ---

    def add_version(self, valid_from_ms: int, instances: Instances) -> None:
        """Adds a version of a concept's instances; times must rise."""
        versions = self._held.versions.setdefault(instances.concept, [])
        versions.append((valid_from_ms, instances))
        if len(versions) > _MOST_VERSIONS:
            del versions[0]
            versions[0] = (BEGINNING_OF_TIME, versions[0][1])

    @property
    def versions(self) -> Mapping[str, Sequence[tuple[int, Instances]]]:
        """Of each concept (valid from, instances), oldest first."""
        return self._held.versions

    def instances(self, concept: str, at_ms: int | None = None) -> Instances:
        """The instances valid at a time, by default the newest; empty when no table gives any."""
        plain = self._plain(concept, at_ms)
        if self.deriving is None:
            return plain
        return self.deriving.complete(plain, lambda other: self._plain(other, at_ms))

    def _plain(self, concept: str, at_ms: int | None) -> Instances:
        """The instances without derived columns."""
        held = self._held
        if concept not in held.concepts:
            raise UnknownName("concept", concept, list(held.concepts))
        for valid_from_ms, instances in reversed(held.versions.get(concept, [])):
            if at_ms is None or valid_from_ms <= at_ms:
                return instances
        columns = {name: empty_column(kind, 0) for name, kind in held.concepts[concept].items()}
        return Instances(concept, [], columns)

    def pairs(self, function: str) -> Pairs:
        """The values of a looked-up function by one or two texts, both orders of a symmetric one;
        raises UnknownName.
        """
        found = self._held.pairs.get(function)
        if found is None:
            raise UnknownName("function of a table", function, list(self._held.pairs))
        return found

    def gives(self, concept: str, attribute: str) -> bool:
        """Whether some table has the attribute, or it is derived."""
        if self.deriving is not None and self.deriving.gives(concept, attribute):
            return True
        versions = self._held.versions.get(concept, [])
        return any(attribute in instances.columns for _from, instances in versions)

    def lookup(self, table: str, key: str, column: str) -> str | None:
        """The field of the row with this key; None when there is no such row or the field is empty.

        Raises UnknownName for a table or column that does not exist.
        """
        return self._lookup(table).get(key, column)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The fields of some columns in every row, top to bottom; raises UnknownName."""
        found = self._lookup(table)
        return list(zip(*(found.column(name) for name in columns), strict=True))

    def days(self, table: str) -> frozenset[str]:
        """The keys of a table, which are days as ISO dates; raises UnknownName."""
        declared = self.declarations().get(table)
        if declared is None or not isinstance(declared.key, str):
            raise UnknownName("table of days", table, list(self.declarations()))
        return frozenset(key for (key,) in self.rows(table, [declared.key]))

    def _lookup(self, table: str) -> KeyedRows:
        found = self._held.loaded.get(table)
        if found is None:
            raise UnknownName("table", table, list(self._held.loaded))
        return found.lookup

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Headings by table."""
        return {name: found.lookup.headings() for name, found in self._held.loaded.items()}

    def loaded(self) -> Mapping[str, LoadedTable]:
        return self._held.loaded

    def declarations(self) -> dict[str, TableDeclaration]:
        return {name: found.declared for name, found in self._held.loaded.items()}

    def functions(self) -> tuple[PairDeclaration, ...]:
        return tuple(self._held.functions.values())

    def context_attributes(self) -> set[tuple[str, str]]:
        """(concept, attribute) of the tables of context."""
        declared = self.declarations().values()
        return {(one.concept, name) for one in declared if one.context for name in one.columns}

    def version(self) -> str:
        """Identifies the content: changes with any file or declaration."""
        loaded = self._held.loaded
        parts = [f"{name}={loaded[name].digest}" for name in sorted(loaded)]
        derived = self.deriving.version() if self.deriving is not None else ""
        return content_id(*parts, *([derived] if derived else []))

    @property
    def stale(self) -> Mapping[str, StaleRows]:
        """Tables with cached rows, because their source did not answer when they were loaded."""
        return self._held.stale

    @property
    def freshness(self) -> dict[str, tuple[TableDeclaration, Freshness]]:
        """Freshness of the tables in force, kept by the refresher. `take_over` replaces the whole
        mapping.
        """
        return self._held.freshness

    @property
    def revision(self) -> int:
        """Rises with every switch; callers use it to invalidate caches."""
        return self._held.revision

    # --- changing ---

    def read(self, declared: TableDeclaration) -> LoadedTable:
        """Reads the source of a new table; raises SiteError. Blocking, thread-safe."""
        held = self._held
        answer = read_source(
            declared, self._directory, context=self._context, ids=self.context_ids(declared)
        )
        assert answer.file is not None, "without a tag there is always an answer"
        file = self._fitting(declared, answer.file)
        repeating = held.repeats(declared.name)
        return load_table(declared, file, held.concepts, repeating=repeating, tag=answer.tag)

    def use_context(self, context: ContextSource) -> None:
        """Sets the broker for tables of context."""
        self._context = context

    def context_ids(self, declared: TableDeclaration) -> list[str]:
        """Ids for a table of context: those it lists, or the keys of the table it names."""
        other = self._held.loaded.get(declared.ids_from)
        if other is None:
            return list(declared.ids)
        return other.file.column(other.declared.key)

    def _fitting(self, declared: TableDeclaration, file: RowFile) -> RowFile:
        if declared.kind != "context":
            return file
        return drop_unusable_values(declared, file, self._held.concepts)

    def _read_or_kept(self, declared: TableDeclaration, kept: RowCache | None) -> LoadedTable:
        try:
            return self.read(declared)
        except SiteError as error:
            found = kept.find(declared) if kept and is_cached(declared) else None
            if found is None or not is_unreachable(error.problems):
                raise
            file, read_ms = found
            self._held.stale[declared.name] = StaleRows(error.problems[0], read_ms)
            repeating = self._held.repeats(declared.name)
            return load_table(declared, file, self._held.concepts, repeating=repeating)

    def read_again(self, name: str) -> LoadedTable | None:
        """Reads a source again; None when its rows are the same. Raises UnknownName, or SiteError
        when it fails or its rows cannot be used, such as rows without a former column. Blocking,
        thread-safe.
        """
        held = self._held
        former = held.loaded.get(name)
        if former is None:
            raise UnknownName("table", name, list(held.loaded))
        declared = former.declared
        answer = read_source(
            declared,
            self._directory,
            tag=former.tag,
            context=self._context,
            ids=self.context_ids(declared),
        )
        if answer.file is None:
            return None
        return self._again(former, self._fitting(declared, answer.file), answer.tag)

    def load_rows(self, name: str, file: RowFile) -> LoadedTable | None:
        """Loads rows that are known without a request, such as valid rows of context; None when
        they are the same. Raises as `read_again` does. Thread-safe.
        """
        former = self._held.loaded.get(name)
        if former is None:
            raise UnknownName("table", name, list(self._held.loaded))
        return self._again(former, self._fitting(former.declared, file), former.tag)

    def with_rows(self, files: Mapping[str, RowFile]) -> Tables:
        """A copy of these tables with other rows of some, for a view of another time. Raises as
        `load_rows` and `prepared` do.
        """
        return self.snapshot(
            [one for name, file in files.items() if (one := self.load_rows(name, file))]
        )

    def snapshot(self, read: Sequence[LoadedTable] = ()) -> Tables:
        """A snapshot of these tables with newly read ones in place; later changes do not affect it.
        Raises as `prepared` does. Cheap without `read`.
        """
        held = self._held
        other = Tables(
            held.concepts,
            directory=self._directory,
            needed=held.needed,
            pairs=tuple(held.functions.values()),
        )
        other.deriving, theirs = self.deriving, other._held
        theirs.loaded, theirs.pairs = dict(held.loaded), dict(held.pairs)
        theirs.versions = {concept: list(kept) for concept, kept in held.versions.items()}
        if read:
            other.switch(other.prepared(read), BEGINNING_OF_TIME)
        return other

    def keep_context(self, former: Tables) -> None:
        """Copies the rows of context, and their freshness, from equal declarations of `former`:
        reloading a site's files does not query the broker. To be called before these tables are in
        use; raises as `load_rows` and `prepared` do. Thread-safe.
        """
        known, files = former._held.loaded, dict[str, RowFile]()
        for name, declared in self.declarations().items():
            if declared.context and name in known and known[name].declared == declared:
                files[name] = known[name].file
                if name in former.freshness:
                    self.freshness[name] = former.freshness[name]
        read = [one for name, file in files.items() if (one := self.load_rows(name, file))]
        if read:
            self.switch(self.prepared(read), BEGINNING_OF_TIME)

    def share(self) -> Tables:
        """Another object with the same state until one of them takes over another state: for a
        caller that may go back to it with `take_over`.
        """
        other = Tables({}, directory=self._directory, context=self._context)
        other._held, other.deriving = self._held, self.deriving
        return other

    def _again(self, former: LoadedTable, file: RowFile, tag: str) -> LoadedTable | None:
        if file.digest == former.file.digest:
            return None
        held = self._held
        repeating = held.repeats(former.declared.name)
        return reload_table(former, file, held.concepts, repeating=repeating, tag=tag)

    def prepared(self, read: Sequence[LoadedTable]) -> PreparedTables:
        """The next state, with tables added or replaced: chooses the fewest tables, joins them and
        collects pairs. Raises SiteError. Thread-safe: it only reads the present state.
        """
        held = self._held
        revision, loaded = held.revision, {**held.loaded}
        loaded |= {table.declared.name: table for table in read}
        concepts = {table.declared.concept for table in read} & held.concepts.keys()
        return PreparedTables(
            revision=revision,
            loaded=loaded,
            instances={concept: _joined(concept, loaded, held) for concept in sorted(concepts)},
            pairs=_pairs(held, loaded, {table.declared.name for table in read}),
        )

    def switch(self, prepared: PreparedTables, valid_from_ms: int) -> bool:
        """Puts a prepared state in force, in one step; False, and nothing done, when the tables
        have changed since then.
        """
        held = self._held
        if prepared.revision != held.revision:
            return False
        before = held.loaded
        held.loaded = prepared.loaded
        held.pairs = {**held.pairs, **prepared.pairs}
        for instances in prepared.instances.values():
            self.add_version(self._rising(instances.concept, valid_from_ms), instances)
        held.revision += 1
        tables = [name for name, one in held.loaded.items() if before.get(name) is not one]
        if before:
            held.stale = {name: one for name, one in held.stale.items() if name not in tables}
        self._notify(tables, prepared.instances, prepared.pairs, valid_from_ms)
        return True

    def take_over(self, other: Tables, valid_from_ms: int) -> None:
        """Takes over the state of tables that were loaded from the site's files again; keeps
        earlier versions. Both objects share the state from now on.
        """
        old, new = self._held, other._held
        tables = sorted({name for name, _ in old.digests().items() ^ new.digests().items()})
        former, now = old.digests_by_concept(), new.digests_by_concept()
        concepts = sorted(c for c in new.concepts if former.get(c) != now.get(c))
        pairs = [name for name in new.pairs if new.pairs[name] != old.pairs.get(name)]
        gained = {concept: other._plain(concept, None) for concept in concepts}
        new.versions = {name: list(kept) for name, kept in old.versions.items()}
        new.revision = old.revision + 1
        self._held, self.deriving = new, other.deriving
        for instances in gained.values():
            self.add_version(self._rising(instances.concept, valid_from_ms), instances)
        self._notify(tables, concepts, pairs, valid_from_ms)

    def _rising(self, concept: str, time: int) -> int:
        """A time for the next version that never falls, also when the clock was set back."""
        versions = self._held.versions.get(concept, [])
        return max(time, versions[-1][0]) if versions else time

    def _notify(
        self,
        tables: Sequence[str],
        concepts: Sequence[str] | Mapping[str, object],
        functions: Sequence[str] | Mapping[str, object],
        time: int,
    ) -> None:
        changed = TablesChange(
            tables=tuple(tables), concepts=tuple(concepts), functions=tuple(functions), time=time
        )
        for callback in self.changed:
            callback(changed)


FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 5 * 60_000


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """When a table was read and when it is due; pure, times are of a steady clock."""

    lifetime_ms: int
    read_ms: int
    due_ms: int
    changes: int = 0
    failures: int = 0
    error: Problem | None = None

    def succeeded(self, now_ms: int, *, changed: bool) -> Freshness:
        """The source answered, perhaps that its rows are the same."""
        return Freshness(
            lifetime_ms=self.lifetime_ms,
            read_ms=now_ms,
            due_ms=now_ms + self.lifetime_ms,
            changes=self.changes + changed,
        )

    def failed(self, now_ms: int, error: Problem, *, chance: float) -> Freshness:
        """The source failed; it is due after a pause that doubles, up to five minutes or the
        lifetime. `chance` in [0, 1) spreads the pause over the nodes.
        """
        longest = min(LONGEST_PAUSE_MS, max(self.lifetime_ms, FIRST_PAUSE_MS))
        pause = min(FIRST_PAUSE_MS << min(self.failures, 20), longest)
        return msgspec.structs.replace(
            self,
            failures=self.failures + 1,
            error=error,
            due_ms=now_ms + pause * 3 // 4 + int(chance * pause / 2),
        )


def fresh(lifetime_ms: int, now_ms: int) -> Freshness:
    """A table that was read just now."""
    return Freshness(lifetime_ms=lifetime_ms, read_ms=now_ms, due_ms=now_ms + lifetime_ms)
