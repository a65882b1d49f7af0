"""The interpretations in force, by name and version; changed in one step. [ME-6, ME-12]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.core.errors import Problem, UnknownName
from rapport.mediation.in_force import InForce
from rapport.mediation.interpretation import Interpretation
from rapport.mediation.model.changes import Change, apply_change


class Repository:
    """Interpretations by name; a reader sees a change whole or not at all.

    `generation` grows with every change, so readers know when to look again. Former versions of the
    fields form stay known by their stamp; those of both forms are on record (`kept_versions.py`).
    """

    def __init__(self, interpretations: Mapping[str, Interpretation] | InForce | None = None):
        given = interpretations
        self.in_force = given if isinstance(given, InForce) else InForce(given)
        self.generation = 0
        self._by_stamp = {one.stamp(): one for one in self.in_force.fields.values()}

    def names(self) -> list[str]:
        """All names of the fields form, sorted."""
        return sorted(self.in_force.fields)

    def get(self, name: str) -> Interpretation:
        """The one in force in the fields form; raises UnknownName with the nearest."""
        found = self.in_force.fields.get(name)
        if found is None:
            known = [*self.names(), *self.in_force.typed.names]
            raise UnknownName("interpretation", name, known, code="interpretation.unknown")
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
        self.replace({**self.in_force.fields, interpretation.name: interpretation})
        return interpretation.stamp()

    def replace(self, interpretations: Mapping[str, Interpretation]) -> None:
        """Puts exactly these in force, of the fields form."""
        now = self.in_force
        self.swap(
            InForce(
                interpretations,
                now.typed,
                formats=now.formats,
                concepts=now.concepts,
                refused=now.refused,
            )
        )

    def change(self, change: Change) -> tuple[Problem, ...]:
        """Changes the typed interpretations, or leaves everything as it is when an error is among
        the problems.
        """
        typed, problems = apply_change(self.in_force.typed, change)
        if typed is not self.in_force.typed:
            self.swap(self.in_force.with_typed(typed))
        return problems

    def swap(self, in_force: InForce) -> None:
        """Puts exactly this in force."""
        if in_force.fields != self.in_force.fields:  # the same ones, nearly always
            self._by_stamp |= {one.stamp(): one for one in in_force.fields.values()}
        self.in_force = in_force
        self.generation += 1
