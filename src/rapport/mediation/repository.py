"""The interpretations in force, by name and version; changed in one step. [ME-6, ME-12]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.core.errors import UnknownName
from rapport.mediation.interpretation import Interpretation


class Repository:
    """Interpretations by name; a reader sees a change whole or not at all.

    `generation` grows with every change, so readers know when to look again. Former versions stay
    known by their stamp, to explain what they gave a meaning to.
    """

    def __init__(self, interpretations: Mapping[str, Interpretation] | None = None) -> None:
        self.generation = 0
        self._in_force: dict[str, Interpretation] = dict(interpretations or {})
        self._by_stamp = {one.stamp(): one for one in self._in_force.values()}

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._in_force)

    def get(self, name: str) -> Interpretation:
        """The one in force; raises UnknownName with the nearest."""
        found = self._in_force.get(name)
        if found is None:
            raise UnknownName("interpretation", name, self.names(), code="interpretation.unknown")
        return found

    def stamped(self, stamp: str) -> Interpretation:
        """The version that a header names, in force or not; raises UnknownName."""
        found = self._by_stamp.get(stamp)
        if found is None:
            raise UnknownName(
                "interpretation", stamp, list(self._by_stamp), code="interpretation.unknown"
            )
        return found

    def put(self, interpretation: Interpretation) -> str:
        """Puts a new or changed interpretation in force and returns its stamp."""
        self.replace({**self._in_force, interpretation.name: interpretation})
        return interpretation.stamp()

    def replace(self, interpretations: Mapping[str, Interpretation]) -> None:
        """Puts exactly these in force."""
        self._by_stamp |= {one.stamp(): one for one in interpretations.values()}
        self._in_force = dict(interpretations)
        self.generation += 1
