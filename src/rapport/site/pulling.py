"""What an ontology asks of the tables of its site. [PO-2]"""

from __future__ import annotations

from collections.abc import Collection

from rapport.core.schema import AttributeType
from rapport.policy.ontology import Ontology
from rapport.tables.declaration import PairDeclaration


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
