"""The interpretations, sources and tables of a site as data for tasks. [ME-14, PI-4]

The driver makes it from a site; each Python worker builds the transformers once and keeps them.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, UnknownName, nearest_names
from rapport.kernel.clock import SystemClock
from rapport.mediation.conversion.conversions import Chain, Conversion
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.memory import SourceMemory, feed_types, remembers
from rapport.mediation.reader import (
    EventTransformer,
    RejectingTransformer,
    build_transformer,
    rejecting_transformer,
)
from rapport.mediation.site_functions import WorkerConversions
from rapport.mediation.source_bindings import SourceBinding
from rapport.policy.ontology import Ontology
from rapport.site.interpretations import source_bindings
from rapport.site.recordings import meanings_in_files
from rapport.site.site import Site
from rapport.tables.loaded_table import KeyedRows

_WITH_MEMORY = ("homeassistant",)
"""Formats that read an event by what earlier ones said."""


class SentTables:
    """Tables of the site as mediation asks them: by key, and row by row. They do not change."""

    revision = 0

    def __init__(self, lookups: Mapping[str, KeyedRows], keys: Mapping[str, Sequence[str]]) -> None:
        self._lookups, self._keys = dict(lookups), dict(keys)

    def lookup(self, table: str, key: str, column: str) -> str | None:
        """The field of the row with this key; raises UnknownName."""
        return self._named(table).get(key, column)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The fields of some columns in every row; raises UnknownName."""
        found = self._named(table)
        return list(zip(*(found.column(name) for name in columns), strict=True))

    def keys(self, table: str) -> Sequence[str]:
        """All keys that can be looked up; empty for a table that there is not."""
        return self._keys.get(table, ())

    def _named(self, table: str) -> KeyedRows:
        found = self._lookups.get(table)
        if found is None:
            raise UnknownName("table", table, list(self._lookups))
        return found


class Meanings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Interpretations in force, how sources speak, and what conversions look up; can be pickled.

    `paths`: where functions of the site are imported from, on every machine of the cluster.
    """

    in_force: ActiveInterpretations
    bindings: Mapping[str, SourceBinding]
    ontology: Ontology
    tables: SentTables
    paths: tuple[str, ...] = ()

    @cached_property
    def sent(self) -> tuple[str, bytes]:
        """As it goes to the workers, with a digest by which they know what they have."""
        packed = pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)
        return hashlib.blake2b(packed, digest_size=16).hexdigest(), packed

    def named(self) -> frozenset[str]:
        """Sources whose events say of themselves which source they are from."""
        return frozenset(self.ontology.sources)


def unpacked(sent: bytes) -> Meanings:
    """The meanings as they were sent."""
    found: Meanings = pickle.loads(sent)
    return found


def meaning_of(
    meanings: Meanings, source: str, memory: SourceMemory | None = None
) -> EventTransformer:
    """The transformer of a source, or what rejects everything with the reason; as the node has it.

    Functions of the site run in a process of their own, which ends with this one.
    """
    binding = meanings.bindings.get(source)
    if binding is None:
        return _unbound(source, meanings.bindings)
    try:
        return build_transformer(
            binding,
            meanings.in_force,
            memory=memory,
            lookups=meanings.tables,
            conversions=WorkerConversions(SystemClock(), meanings.paths),
        )
    except (InterpretationError, InvalidInput) as error:
        return rejecting_transformer(error)


def why_in_order(meanings: Meanings, source: str) -> str:
    """What makes the meaning of the source's events depend on earlier ones of it; or nothing."""
    binding = meanings.bindings.get(source)
    if binding is None:
        return ""
    name, in_force = binding.interpretation, meanings.in_force
    if name in in_force.refused or not (name in in_force.typed or name in in_force.fields):
        return ""
    format_name = in_force.format_of(name).name
    if format_name in _WITH_MEMORY:
        return f"the format {format_name} remembers what devices said of themselves"
    for conversion in _conversions(in_force, name):
        if remembers(conversion):
            return f"the conversion {conversion.name} depends on earlier events"
    return ""


def why_with_others(meanings: Meanings, source: str) -> str:
    """What makes it depend on events of other sources at the same time; or nothing."""
    binding = meanings.bindings.get(source)
    if binding is None or binding.interpretation in meanings.in_force.refused:
        return ""
    for conversion in _conversions(meanings.in_force, binding.interpretation):
        fed = [name for name, _ in feed_types(conversion) if name in meanings.in_force.concepts]
        if fed:
            return f"the conversion {conversion.name} learns from readings of {fed[0]}"
        if _asks_context(conversion):
            return f"the conversion {conversion.name} asks for the present value of something"
    return ""


def _conversions(in_force: ActiveInterpretations, name: str) -> list[Conversion]:
    if name not in in_force.typed:
        return []
    return list(in_force.typed.checked(name).scope.conversions.values())


def _asks_context(conversion: Conversion) -> bool:
    how = conversion.how
    if isinstance(how, Chain):
        return any(map(_asks_context, how.steps))
    return isinstance(how, ContextLookup)


def _unbound(source: str, bindings: Mapping[str, SourceBinding]) -> RejectingTransformer:
    nearest = nearest_names(source, bindings, 1)
    return RejectingTransformer(
        "source.unbound",
        f"the site binds no source named {source!r}",
        f"did you mean {nearest[0]!r}?" if nearest else "declare it: [sources.NAME]",
    )


def meanings_of_site(site: Site, *, in_force: ActiveInterpretations | None = None) -> Meanings:
    """What the site's files say, or other interpretations that are `in_force`."""
    loaded = site.tables.loaded()
    keys = {}
    for name, table in loaded.items():
        declared = table.declared
        parts = [table.lookup.column(each) for each in (declared.key, *declared.further_keys)]
        joined = ("/".join(row) for row in zip(*parts, strict=True))
        keys[name] = tuple(dict.fromkeys(joined))
    return Meanings(
        in_force=in_force or meanings_in_files(site),
        bindings=source_bindings(site.ontology, site.file),
        ontology=site.ontology,
        tables=SentTables({name: table.lookup for name, table in loaded.items()}, keys),
        paths=(str(site.directory.resolve()),),
    )
