"""Tables that travel to workers with a job, as plain data. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rapport.core.errors import UnknownName
from rapport.tables.instances import Instances

Pairs = Mapping[str, Mapping[tuple[str, ...], float]]


class WorkerTables:
    """In the form operators ask for."""

    def __init__(self, instances: Mapping[str, Instances], pairs: Pairs) -> None:
        self._instances, self._pairs = instances, pairs

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty when no table gives any."""
        known = self._instances.get(concept)
        return Instances(concept, [], {}) if known is None else known

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """What a looked-up function gives; raises UnknownName."""
        if function not in self._pairs:
            raise UnknownName("looked-up function", function, list(self._pairs))
        return self._pairs[function]

    def held(self) -> Iterable[Instances]:
        """Everything that travels."""
        return self._instances.values()
