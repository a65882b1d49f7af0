"""What the operators of one runner compute once for all of them: numbers of identities and of
events, whose events matter, look-ups, and what each step without memory makes of a batch. [PO-6,
PO-13]

A step is named by what it depends on: the numbering (and with it the version of the tables), the
constraints, the relationship with its constants. What two plans name alike is computed for the
first that asks.

How far back several readers of one memory look: what none of them needs may be forgotten.
[PO-13]

The leaves of a plan: whose events each side asks for, judged once for all plans that ask the
same. [PO-6, PO-13]

The sides of terms, and terms with other sides: how equal terms with other names are told.
[PO-13]

Occurrences that several plans have in common: found and kept once, read by each. [PO-6, PO-13]

Two plans have the table of a term in common when the term says the same under other names and both
know the same past: either nothing was found yet for either, or both took over the same rows. From
then on every reading of its streams concerns both, so they never part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

import msgspec
import pyarrow as pa

from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import Array, Table, pack_state
from rapport.policy.operators.events import StreamRows
from rapport.policy.operators.identities import Identities, IdentityFilter
from rapport.policy.operators.predicates import is_of_tables_alone
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
)
from rapport.tables.instances import Instances

Made = TypeVar("Made")
_NOT_YET: Any = object()


class StepCounts(NamedTuple):
    """How often a step of a batch was wanted, and how often it had to be computed."""

    wanted: int = 0
    computed: float = 0
    """Of one of several that are executed as one, its share."""


class SharedCache:
    """Costs one look into a dictionary per step and batch; keeps nothing that no operator uses,
    and of batches only what the latest one gave.
    """

    def __init__(self) -> None:
        self._numberings: dict[str, list[ReferenceType[Identities]]] = {}
        self._kept: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._batch: pa.RecordBatch | None = None
        self._made: dict[Hashable, Any] = {}
        self.batch = 0
        """The number of the batch that operators are at."""
        self.next_ordinal = self._first = 0
        self.wanted = 0
        self.computed = 0
        """Steps of all batches so far."""

    def identities(
        self, concept: str, instances: Instances, saved: Sequence[str] | None = None
    ) -> Identities:
        """The numbering of a concept for these tables; `saved`: identities that must have the codes
        0, 1, 2, ..., because a state speaks of them.
        """
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

    def keep(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """What is made of tables alone, for as long as some operator holds it."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make(*arguments)
        made: Made = found
        return made

    def kept(self, key: Hashable) -> Any:
        """What is kept under a key; None when nobody holds it."""
        return self._kept.get(key)

    def keep_instead(self, key: Hashable, made: Any) -> None:
        """Keeps something for who asks next; who holds what was kept before goes on with that."""
        self._kept[key] = made

    def forget_kept(self) -> None:
        """Makes everything anew for who asks next: codes changed."""
        self._kept.clear()

    def turn_to(self, readings: pa.RecordBatch) -> int:
        """Goes on with a batch, perhaps the one others had before; returns the ordinal of its first
        event: the same for all, however many batches each of them has seen.
        """
        if readings is not self._batch:
            self._batch, self._made = readings, {}
            self.batch += 1
            self._first = self.next_ordinal
            self.next_ordinal += len(readings)
        return self._first

    def count_past(self, ordinal: int) -> int:
        """Makes events to come larger than all before `ordinal`, which a state speaks of; returns
        by how much that state's ordinals must grow to end where events to come begin.
        """
        self.next_ordinal = max(self.next_ordinal, ordinal)
        return self.next_ordinal - ordinal

    def forget_batch(self) -> None:
        """All operators have had it."""
        self._batch, self._made = None, {}

    def once(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """What a step makes of the batch. Nothing is kept of a step that raises."""
        return self._once(self._made, key, make, *arguments)

    def made(self, key: Hashable) -> Any:
        """What was made of the batch under a key; None when nothing was."""
        return self._made.get(key)

    def note(self, key: Hashable, made: Any) -> None:
        """Keeps something made of the batch for who asks next."""
        self._made[key] = made

    def once_of(
        self, rows: StreamRows, key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        """What a step makes of rows, now or as long as somebody keeps them."""
        return self._once(rows.made, key, make, *arguments)

    def _once(
        self, known: dict[Hashable, Any], key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        self.wanted += 1
        made: Made = known.get(key, _NOT_YET)
        if made is _NOT_YET:
            made = known[key] = make(*arguments)
            self.computed += 1
        return made


class Horizon:
    """How far back one reader looks; it reads as long as somebody holds this."""

    __slots__ = ("__weakref__", "before")

    def __init__(self) -> None:
        self.before = -END_OF_TIME


class Horizons:
    """Those of all readers. All of them are looked at once for as many moves as there are readers,
    so a move costs the same however many read.
    """

    def __init__(self) -> None:
        self._readers: WeakSet[Horizon] = WeakSet()
        self._moves = 0
        self._is_exact = False

    def __len__(self) -> int:
        return len(self._readers)

    def add(self) -> Horizon:
        """One more reader."""
        made = Horizon()
        self._readers.add(made)
        return made

    def move(self, own: Horizon, before: int) -> None:
        """A reader has done with what ended before a time."""
        if own.before != before:
            own.before = before
            self._moves += 1

    def passed(self, *, at_once: bool) -> int | None:
        """The time before which nobody looks; None when it is the same as at the last question, or,
        unless `at_once`, when asking is not worth it yet.
        """
        if not at_once and self._moves < len(self._readers):
            return None
        if not self._moves and self._is_exact >= at_once:
            return None
        self._moves, self._is_exact = 0, at_once
        return min(each.before for each in self._readers)


class IdentityFilters:
    """One leaf per concept and list of constraints, shared by all sides that have them."""

    def __init__(self, identities: Mapping[str, Identities], shared: SharedCache) -> None:
        self._identities, self._shared = identities, shared
        self._leaves: dict[tuple[str, tuple[Constraint, ...]], IdentityFilter] = {}

    def of(self, side: Side) -> IdentityFilter:
        """The leaf of a side."""
        key = (side.concept, side.constraints)
        if key not in self._leaves:
            known = self._identities[side.concept]
            self._leaves[key] = self._shared.keep(
                (known, side.constraints), IdentityFilter, side, known
            )
        return self._leaves[key]

    def forget(self) -> None:
        """Judges again at the next question: the codes changed."""
        for leaf in self._leaves.values():
            leaf.forget()


Change = Callable[[Side], Side]
_replace = msgspec.structs.replace


def sides_of(term: TermStep) -> Iterator[Side]:
    """All sides of a term, those of a state inside it too."""
    yield term.first
    yield term.second
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from sides_of(atom.term)


def with_changed_sides(term: TermStep, change: Change) -> TermStep:
    """The term with every side changed, those of a state inside it too."""
    if isinstance(term, ReadingTerm | SilentTerm):
        return _replace(term, first=change(term.first))
    if isinstance(term, LastingTerm):
        state = _changed_state(term.state, change)
        return _replace(term, first=change(term.first), second=change(term.second), state=state)
    return _replace(term, first=change(term.first), second=change(term.second))


def renamed(terms: Iterable[TermStep]) -> tuple[tuple[TermStep, ...], dict[str, str]]:
    """The terms with their aliases called 0, 1, 2, ... in the order in which they come, and by
    alias its new name: equal for terms that say the same under other names.
    """
    names: dict[str, str] = {}

    def rename(side: Side) -> Side:
        return _replace(side, alias=names.setdefault(side.alias, str(len(names))))

    return tuple(with_changed_sides(term, rename) for term in terms), names


def is_shareable(term: TermStep) -> bool:
    """Whether tables and readings alone decide of it, so that plans may have it in common."""
    if isinstance(term, LastingTerm):
        return all(is_of_tables_alone(atom.term) for atom in state_atoms(term.state))
    return isinstance(term, SilentTerm) or is_of_tables_alone(term)


def _changed_state(state: StateExpression, change: Change) -> StateExpression:
    if isinstance(state, StateAtom):
        return _replace(state, term=with_changed_sides(state.term, change))
    return _replace(state, parts=tuple(_changed_state(part, change) for part in state.parts))


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
