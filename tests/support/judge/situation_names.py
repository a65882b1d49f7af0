"""What texts may name of a situation beside its values: counts of terms, and the first instance of
a quantifier. [SI-5]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rapport.core.detection import Detection, NamedValue
from rapport.policy.language.situation_tree import (
    Aggregate,
    AndOf,
    Condition,
    Lasting,
    OrOf,
    Quantified,
    SituationTree,
)
from rapport.policy.ontology import Ontology
from support.judge.holding import Reading
from support.judge.situation_reads import concept_named
from support.judge.situation_truth import Truths
from support.judge.situation_values import BoundInstance
from support.judge.situation_world import KnownRecord, TableVersion


class JudgedNames:
    """The names of one policy over a record that is known whole."""

    def __init__(
        self,
        tree: SituationTree,
        ontology: Ontology,
        tables: list[TableVersion],
        readings: Iterable[Reading],
        *,
        start: int | None,
        until: int | None,
    ) -> None:
        world = KnownRecord(ontology, tables, readings, start=start, until=until)
        self._tree, self._world, self._truths = tree, world, Truths(world)

    def count(self, value: Aggregate, found: Detection) -> NamedValue:
        """The number of readings counted."""
        binding = self._binding(found)
        values = self._truths.values
        places = values._counted_places(value.of, binding)  # type: ignore[arg-type]
        if not all(
            self._world.is_known(concept, identity, found.time) for concept, _, identity in places
        ):
            return NamedValue()
        return NamedValue(float(len(values.readings_of(value, binding, found.time))))

    def instances(self, found: Detection) -> dict[str, NamedValue]:
        """By alias the first instance that counts, of the section that made the detection true."""
        section = self._tree.situation if found.began is None else self._tree.cleared_by
        binding, named = self._binding(found), dict[str, NamedValue]()
        for one in [] if section is None else _quantifiers(section):
            ids = self._truths._counting(one, binding, found.time, None)
            if ids:
                named.setdefault(one.alias, NamedValue(ids[0]))
        return named

    def _binding(self, found: Detection) -> dict[str, BoundInstance]:
        concepts = {
            one.alias: concept_named(one.concept, self._world.ontology)
            for one in self._tree.concepts
        }
        return {
            alias: BoundInstance(concepts[alias], identity)
            for alias, identity in found.bindings.items()
        }


def _quantifiers(condition: Condition) -> Iterator[Quantified]:
    match condition:
        case AndOf(parts) | OrOf(parts):
            for part in parts:
                yield from _quantifiers(part)
        case Lasting(part):
            yield from _quantifiers(part)
        case Quantified(quantifier="some" | "at least"):
            yield condition
