"""A partly loaded site as checkers receive it, and what its ontology requires of its tables. [UX-2,
PO-2]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from rapport.core.errors import Problem
from rapport.core.schema import AttributeType
from rapport.kernel.settings import effective_data_directory
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.ontology import Ontology
from rapport.tables.declaration import PairDeclaration
from rapport.tables.tables import Tables


class SiteParts(msgspec.Struct, frozen=True, kw_only=True):
    """A site being read. `tables` is None when they could not be loaded; `policies` are those that
    compiled."""

    file: TomlFile
    directory: Path
    ontology: Ontology
    tables: Tables | None
    policies: dict[str, CompiledPolicy]
    texts: dict[str, str]
    """The text of each policy that was read, by name."""


Checker = Callable[[SiteParts], list[Problem]]


def has_errors(problems: list[Problem]) -> bool:
    """True when one of them keeps the site from being used."""
    return any(problem.severity == "error" for problem in problems)


def needed_of_tables(ontology: Ontology) -> dict[str, dict[str, AttributeType]]:
    """Of each concept the attributes that do not come as events: for these tables are chosen."""
    streams = ontology.streams()
    return {
        concept: {
            name: kind for name, kind in attributes.items() if f"{concept}.{name}" not in streams
        }
        for concept, attributes in ontology.concepts.items()
    }


def looked_up(ontology: Ontology, tables: Collection[str]) -> list[PairDeclaration]:
    """The functions that are looked up in one of these tables; a table that was refused has its
    problem already.
    """
    return [
        PairDeclaration(
            function=function.name,
            table=function.lookup.table,
            keys=function.lookup.keys,
            value=function.lookup.value,
            symmetric=function.lookup.symmetric,
        )
        for function in ontology.functions.values()
        if function.lookup is not None and function.lookup.table in tables
    ]


def data_directory_of(file: TomlFile, directory: Path) -> Path:
    """The directory of log, records and replay state: $RAPPORT_DATA, else the site's."""
    return directory / effective_data_directory(file.section("node"))


def kept_rows_directory(data: Path) -> Path:
    """Where the last rows of sources elsewhere are kept, in the data directory of a node."""
    return data / "tables"


def stale_tables(tables: Tables) -> list[Problem]:
    """A warning for each table that has the rows of before, as its source does not answer."""
    return [
        msgspec.structs.replace(
            stale.problem,
            severity="warning",
            message=f"{stale.problem.message}; the rows of before are used",
        )
        for stale in tables.stale.values()
    ]
