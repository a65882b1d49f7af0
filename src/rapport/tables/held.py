"""What tables hold at one time, and what is prepared to take its place. [PO-2]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from rapport.core.errors import Problem, SiteError
from rapport.tables.declaration import Concepts, PairDeclaration, TableDeclaration
from rapport.tables.freshness import Freshness
from rapport.tables.instances import Instances
from rapport.tables.joined import join_fewest
from rapport.tables.kept_rows import Stale
from rapport.tables.loaded import LoadedTable
from rapport.tables.pairs import Pairs, read_pairs


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What a switch changed, by name, and the time from which it holds."""

    tables: tuple[str, ...]
    concepts: tuple[str, ...]
    functions: tuple[str, ...]
    time: int


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """All tables as they will be; `revision` is that of the tables it was prepared from."""

    revision: int
    loaded: dict[str, LoadedTable]
    instances: dict[str, Instances]
    """Of the concepts whose rows changed."""
    pairs: dict[str, Pairs]
    """Of the functions whose rows changed."""


class Deriving(Protocol):
    """Adds columns that follow from those of the tables; the site's ontology knows which."""

    def gives(self, concept: str, attribute: str) -> bool:
        """Whether it adds this column."""

    def version(self) -> str:
        """Changes when other columns would be added; empty when there are none."""

    def complete(self, instances: Instances, instances_of: Callable[[str], Instances]) -> Instances:
        """The instances with the columns that are added to them."""


class Held:
    """What tables hold; two objects share it after one took the other over."""

    def __init__(
        self, concepts: Concepts, needed: Concepts, pairs: Sequence[PairDeclaration]
    ) -> None:
        self.concepts, self.needed = concepts, needed
        self.functions = {declared.function: declared for declared in pairs}
        self.loaded: dict[str, LoadedTable] = {}
        self.pairs: dict[str, Pairs] = {}
        self.versions: dict[str, list[tuple[int, Instances]]] = {}
        self.stale: dict[str, Stale] = {}
        """Tables that began with rows that were kept, until their source answers."""
        self.asked: dict[str, tuple[TableDeclaration, Freshness]] = {}
        """What came of asking each source; who asks keeps it here, beside the rows it is about."""
        self.revision = 0

    def repeats(self, table: str) -> bool:
        """Whether rows of a table may have the same key, as pairs do."""
        return any(declared.table == table for declared in self.functions.values())


def prepare(held: Held, read: Sequence[LoadedTable]) -> Prepared:
    """Tables with these in the place of, or besides, those of now: the fewest are chosen anew,
    joined, and pairs collected. Raises SiteError. In any thread: what is held is only looked at.
    """
    revision, loaded = held.revision, {**held.loaded}
    loaded |= {table.declared.name: table for table in read}
    concepts = {table.declared.concept for table in read} & held.concepts.keys()
    return Prepared(
        revision=revision,
        loaded=loaded,
        instances={concept: _joined(concept, loaded, held) for concept in sorted(concepts)},
        pairs=_pairs(held, loaded, {table.declared.name for table in read}),
    )


def _pairs(held: Held, loaded: Mapping[str, LoadedTable], names: set[str]) -> dict[str, Pairs]:
    """Of the functions that look something up in tables of these names."""
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


def _joined(concept: str, loaded: Mapping[str, LoadedTable], held: Held) -> Instances:
    typed = [one.typed for one in loaded.values() if one.typed is not None]
    own = [table for table in typed if table.concept == concept]
    return join_fewest(concept, own, held.concepts[concept], frozenset(held.needed[concept]))


def digest_of(held: Held, name: str) -> str:
    return held.loaded[name].digest if name in held.loaded else ""


def digests_by_concept(held: Held) -> dict[str, list[str]]:
    """What the instances of each concept are made of."""
    found: dict[str, list[str]] = {}
    for one in held.loaded.values():
        if one.declared.concept:
            found.setdefault(one.declared.concept, []).append(one.digest)
    return found
