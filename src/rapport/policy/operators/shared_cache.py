"""Work and memory that the operators of one runner share: identity codes, event ordinals, filters,
look-ups, results of steps per batch, and tables of occurrences. [PO-6, PO-13]

A result is identified by everything it depends on: identity codes (and with them the version of the
tables), constraints, relationship and constants. Plans share the table of a term if their terms are
equal up to names and both have the same past: neither found a row yet, or both restored the same
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

import pyarrow as pa
from msgspec.structs import replace

from rapport.policy.operators.base import BEGIN_OF_TIME
from rapport.policy.operators.columns import Array, Table, pack_state
from rapport.policy.operators.identities import Identities, IdentityFilter, StreamRows
from rapport.policy.operators.plan_shape import is_of_tables_alone
from rapport.policy.plan import (
    Constraint,
    LastingTerm,
    ReadingTerm,
    Side,
    SilentTerm,
    StateAtom,
    StateExpression,
    TermStep,
    state_atoms,
    state_terms,
)
from rapport.tables.instances import Instances

Made = TypeVar("Made")
_NOT_YET: Any = object()


class StepCounts(NamedTuple):
    """How often a result of a batch was requested, and how often computed."""

    wanted: int = 0
    computed: float = 0
    """In a family, the member's share."""


class SharedCache:
    """Caches results for the operators of a runner. Costs a dictionary access per step and batch;
    keeps only results that an operator references, and per-batch results of the latest batch."""

    def __init__(self) -> None:
        self._numberings: dict[str, list[ReferenceType[Identities]]] = {}
        self._kept: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._batch: pa.RecordBatch | None = None
        self._made: dict[Hashable, Any] = {}
        self.batch = 0
        """The number of the current batch."""
        self.next_ordinal = self._first = 0
        self.wanted = 0
        self.computed = 0
        """Steps of all batches so far."""

    def identities(
        self, concept: str, instances: Instances, saved: Sequence[str] | None = None
    ) -> Identities:
        """The codes of a concept for these tables; `saved`: identities that must have the codes 0,
        1, 2, ... of a restored state."""
        living = [one for one in self._numberings.get(concept, ()) if one() is not None]
        for one in living:
            known = one()
            if known is not None and known.instances is instances and known.begins_with(saved):
                return known
        made = Identities(instances)
        if saved is not None:
            made.restore(list(saved))
        self._numberings[concept] = [*living, ref(made)]
        return made

    def get_or_make(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """The object under a key, created if necessary; lives while an operator references it."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make(*arguments)
        made: Made = found
        return made

    def join(self, key: Hashable, make: Callable[[], Made], state: Any = None) -> Made:
        """The unused object under a key, or a new one for later requests; one that is in use stays
        with its readers. `state` is restored and must be equal too. A key of None: not shared."""
        if key is not None and state is not None:
            key = (key, blake2b(pack_state(state)).digest())
        found: Any = None if key is None else self._kept.get(key)
        if found is None or not found.is_unused:
            found = make()
            if state is not None:
                found.restore(state)
            if key is not None:
                self._kept[key] = found
        joined: Made = found
        return joined

    def clear(self) -> None:
        """Drops all objects for later requests, because codes or time changed."""
        self._kept.clear()

    def begin_batch(self, readings: pa.RecordBatch) -> int:
        """Moves to a batch, which another operator may have begun; returns the ordinal of its first
        event, equal for all operators."""
        if readings is not self._batch:
            self._batch, self._made = readings, {}
            self.batch += 1
            self._first = self.next_ordinal
            self.next_ordinal += len(readings)
        return self._first

    def reserve_ordinals(self, ordinal: int) -> int:
        """Makes future ordinals larger than those before `ordinal` of a restored state; returns the
        offset for that state's ordinals."""
        self.next_ordinal = max(self.next_ordinal, ordinal)
        return self.next_ordinal - ordinal

    def end_batch(self) -> None:
        """All operators have processed the batch."""
        self._batch, self._made = None, {}

    def compute(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """The result of a step for the batch; nothing is cached if it raises."""
        return self._compute(self._made, key, make, *arguments)

    def batch_result(self, key: Hashable) -> Any:
        """The result under a key for the batch; None if there is none."""
        return self._made.get(key)

    def store_batch_result(self, key: Hashable, made: Any) -> None:
        """Caches a result for the batch."""
        self._made[key] = made

    def compute_for_rows(
        self, rows: StreamRows, key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        """The result of a step for rows, cached with them."""
        return self._compute(rows.made, key, make, *arguments)

    def _compute(
        self, known: dict[Hashable, Any], key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        self.wanted += 1
        made: Made = known.get(key, _NOT_YET)
        if made is _NOT_YET:
            made = known[key] = make(*arguments)
            self.computed += 1
        return made


class Horizon:
    """How far back one reader looks; exists while the reader does."""

    __slots__ = ("__weakref__", "before")

    def __init__(self) -> None:
        self.before = BEGIN_OF_TIME


class Horizons:
    """The horizons of all readers. The minimum is computed once per as many moves as there are
    readers, so a move has constant cost."""

    def __init__(self) -> None:
        self._readers: WeakSet[Horizon] = WeakSet()
        self._moves = 0
        self._is_exact = False

    def __len__(self) -> int:
        return len(self._readers)

    def add(self) -> Horizon:
        made = Horizon()
        self._readers.add(made)
        return made

    def move(self, own: Horizon, before: int) -> None:
        """A reader no longer needs what ended before a time."""
        if own.before != before:
            own.before = before
            self._moves += 1

    def passed(self, *, at_once: bool) -> int | None:
        """The time before which no reader looks; None if unchanged or, unless `at_once`, if
        computing it is not yet worthwhile."""
        if not at_once and self._moves < len(self._readers):
            return None
        if not self._moves and self._is_exact >= at_once:
            return None
        self._moves, self._is_exact = 0, at_once
        return min(each.before for each in self._readers)


class IdentityFilters:
    """One filter per concept and constraints, shared by all sides with these."""

    def __init__(self, identities: Mapping[str, Identities], shared: SharedCache) -> None:
        self._identities, self._shared = identities, shared
        self._id_filters: dict[tuple[str, tuple[Constraint, ...]], IdentityFilter] = {}

    def of(self, side: Side) -> IdentityFilter:
        key = (side.concept, side.constraints)
        if key not in self._id_filters:
            known = self._identities[side.concept]
            self._id_filters[key] = self._shared.get_or_make(
                (known, side.constraints), IdentityFilter, side, known
            )
        return self._id_filters[key]

    def forget(self) -> None:
        """Evaluates all filters again, because the codes changed."""
        for id_filter in self._id_filters.values():
            id_filter.forget()


Change = Callable[[Side], Side]


def sides_of(term: TermStep) -> Iterator[Side]:
    """All sides of a term, including those of its state."""
    yield term.first
    yield term.second
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from sides_of(atom.term)


def with_changed_sides(term: TermStep, change: Change) -> TermStep:
    """The term with every side changed, including those of its state."""
    if isinstance(term, ReadingTerm | SilentTerm):
        return replace(term, first=change(term.first))
    if isinstance(term, LastingTerm):
        state = _changed_state(term.state, change)
        return replace(term, first=change(term.first), second=change(term.second), state=state)
    return replace(term, first=change(term.first), second=change(term.second))


def renamed(terms: Iterable[TermStep]) -> tuple[tuple[TermStep, ...], dict[str, str]]:
    """The terms with aliases renamed to 0, 1, 2, ... in order, and the new names: equal for terms
    that differ only in names."""
    names: dict[str, str] = {}

    def rename(side: Side) -> Side:
        return replace(side, alias=names.setdefault(side.alias, str(len(names))))

    return tuple(with_changed_sides(term, rename) for term in terms), names


def is_shareable(term: TermStep) -> bool:
    """Whether only tables and readings decide it, so that plans can share it."""
    return all(is_of_tables_alone(one) for one in state_terms(term))


def _changed_state(state: StateExpression, change: Change) -> StateExpression:
    if isinstance(state, StateAtom):
        return replace(state, term=with_changed_sides(state.term, change))
    return replace(state, parts=tuple(_changed_state(part, change) for part in state.parts))


class SharedTable:
    """A table and its readers; rows that no reader needs are dropped."""

    def __init__(self, table: Table) -> None:
        self.table, self.readers = table, Horizons()
        self.is_unused = True
        """True until a row is added after creation or restore."""
        self._batch = -1

    def has_taken(self, batch: int) -> bool:
        """Whether it contains the rows of a batch."""
        return batch == self._batch

    def settle(self, batch: int) -> None:
        """Marks rows of earlier batches as old."""
        if batch != self._batch:
            self.table.settle()

    def append(self, rows: Mapping[str, Array], batch: int) -> None:
        """Adds the rows of a batch unless another reader has."""
        if batch != self._batch:
            self._batch, self.is_unused = batch, False
            self.table.append(rows)

    def trim(self, *, at_once: bool) -> None:
        """Drops rows that no reader needs."""
        before = self.readers.passed(at_once=at_once)
        if before is not None:
            self.table.trim(before, at_once=at_once)


class SharedTableReader(NamedTuple):
    common: SharedTable
    horizon: Horizon


class SharedTables:
    """The shared tables of one operator, by term."""

    def __init__(self, tables: dict[int, Table], shared: SharedCache) -> None:
        """`tables`: where they are stored."""
        self._tables, self._shared = tables, shared
        self._readers: dict[int, SharedTableReader] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._readers

    def put(self, number: int, key: Hashable, table: Table, *, is_saved: bool = False) -> None:
        """Stores a table or the equal shared one. `key`: everything it depends on besides readings;
        `is_saved`: it may have restored rows, which must be equal too."""
        if is_saved:
            key = (key, blake2b(pack_state(table.columns)).digest())
        common = self._shared.join((SharedTable, key), lambda: SharedTable(table))
        self._readers[number] = SharedTableReader(common, common.readers.add())
        self._tables[number] = common.table

    def has_taken(self, number: int) -> bool:
        """Whether another reader added the rows of the batch."""
        reader = self._readers.get(number)
        return reader is not None and reader.common.has_taken(self._shared.batch)

    def append(self, number: int, rows: Mapping[str, Array]) -> None:
        self._readers[number].common.append(rows, self._shared.batch)

    def settle(self) -> None:
        for reader in self._readers.values():
            reader.common.settle(self._shared.batch)

    def release_before(self, time: int) -> None:
        """This operator no longer needs rows that ended before a time."""
        for reader in self._readers.values():
            reader.common.readers.move(reader.horizon, time)

    def trim(self, *, at_once: bool) -> None:
        for reader in self._readers.values():
            reader.common.trim(at_once=at_once)

    def is_read_by_several(self, number: int) -> bool:
        reader = self._readers.get(number)
        return reader is not None and len(reader.common.readers) > 1
