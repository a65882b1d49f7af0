"""Columns derived from the tables: group membership, containers, identities as text. [PO-1]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.event import content_id
from rapport.policy.ontology import (
    AnyOf,
    Derivation,
    EnclosedInstance,
    EnclosingColumn,
    Identity,
    Link,
    Ontology,
)
from rapport.policy.operators.identities import satisfies
from rapport.tables.instances import Instances

InstancesOf = Callable[[str], Instances]
Column = npt.NDArray[Any]


class DerivedColumns:
    """Adds the columns that an ontology derives to the instances of tables.

    Caches the result for the same instances; a repeated call costs O(levels of containers).
    """

    def __init__(self, ontology: Ontology) -> None:
        self._ontology = ontology
        self._done: dict[str, tuple[tuple[Instances, ...], Instances]] = {}

    def gives(self, concept: str, attribute: str) -> bool:
        return attribute in self._ontology.derived.get(concept, {})

    def version(self) -> str:
        """Changes with the derived columns; empty when there are none."""
        ontology = self._ontology
        if not ontology.derived:
            return ""
        return content_id(msgspec.json.encode((ontology.derived, ontology.containers)).decode())

    def complete(self, instances: Instances, instances_of: InstancesOf) -> Instances:
        """The instances with the columns derived for their concept.

        Args:
            instances_of: the table instances of other concepts, valid at the same time.
        """
        wanted = self._ontology.derived.get(instances.concept)
        if not wanted:
            return instances
        around = {name: instances_of(name) for name in self._concepts_around(instances.concept)}
        basis = (instances, *around.values())
        known = self._done.get(instances.concept)
        if known is not None and all(a is b for a, b in zip(known[0], basis, strict=True)):
            return known[1]
        columns = {name: self._column(instances, around, one) for name, one in wanted.items()}
        completed = Instances(instances.concept, instances.ids, {**instances.columns, **columns})
        self._done[instances.concept] = (basis, completed)
        return completed

    def _column(
        self, instances: Instances, around: dict[str, Instances], derivation: Derivation
    ) -> Column:
        match derivation:
            case AnyOf(alternatives):
                found = np.zeros(len(instances), np.bool_)
                for constraints in alternatives:
                    found |= satisfies(instances, constraints)
                return np.where(found, "yes", "no").astype(object)
            case Identity():
                return _texts(instances.ids)
            case EnclosedInstance():
                return _texts([f"{instances.concept}/{identity}" for identity in instances.ids])
            case EnclosingColumn(container):
                links = self._ontology.containers[container]
                tree = {**around, instances.concept: instances}
                return _texts(
                    [
                        "\n".join(_enclosing(instances.concept, identity, links, tree)) or None
                        for identity in instances.ids
                    ]
                )

    def _concepts_around(self, concept: str) -> list[str]:
        """The other concepts that the derived columns of a concept depend on."""
        derived = self._ontology.derived[concept].values()
        containers = [each.container for each in derived if isinstance(each, EnclosingColumn)]
        links = [link for name in containers for link in self._ontology.containers[name]]
        found = {name for link in links for name in (link.inner, link.outer)}
        return sorted(found - {concept})


def _texts(values: list[str] | list[str | None]) -> Column:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _enclosing(
    concept: str, identity: str, links: tuple[Link, ...], tree: dict[str, Instances]
) -> Iterator[str]:
    """All containers of one instance, nearest first, each once; stops at cycles."""
    waiting, seen = [(concept, identity)], set()
    while waiting:
        inner, name = waiting.pop(0)
        for link in links:
            outer = _named(tree[inner], name, link.attribute) if link.inner == inner else None
            if outer is not None and (link.outer, outer) not in seen:
                seen.add((link.outer, outer))
                waiting.append((link.outer, outer))
                yield f"{link.outer}/{outer}"


def _named(instances: Instances, identity: str, attribute: str) -> str | None:
    row, column = instances.row(identity), instances.columns.get(attribute)
    if row < 0 or column is None:
        return None
    value: str | None = column[row]
    return value
