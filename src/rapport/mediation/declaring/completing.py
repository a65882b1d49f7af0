"""Declarations made whole once root and all parents are known. [ME-5, ME-10]"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.core.errors import Problem
from rapport.mediation.declaring.files import Declarations
from rapport.mediation.declaring.inference import Inferred, infer
from rapport.mediation.declaring.interpretation_form import Declared, UnitWish
from rapport.mediation.model.interpretation import ROOT, Interpretation

_replace = msgspec.structs.replace


def complete(
    declarations: Declarations,
    root: Interpretation,
    held: Mapping[str, Interpretation] | None = None,
) -> Declarations:
    """The declarations with all that `infer` finds, parents first; a faulty one is left out with
    its problems, and those below it are told by the checks that follow.

    Args:
        root: With everything that is declared for it, concepts and `root` of the files alike.
        held: Interpretations in force already, which may be parents.
    """
    completing = _Completing(declarations, root, held or {})
    for name in declarations.declared:
        completing.one(name)
    problems = (*declarations.problems, *completing.problems)
    found = {
        name: completing.done[name] for name in declarations.declared if name in completing.done
    }
    faulty = declarations.faulty | completing.faulty
    return Declarations(declared=found, problems=problems, faulty=faulty)


class _Completing:
    """Completes each interpretation once."""

    def __init__(
        self, given: Declarations, root: Interpretation, held: Mapping[str, Interpretation]
    ) -> None:
        self._given, self._root, self._held = given.declared, root, held
        self.done: dict[str, Declared] = {}
        self.problems: list[Problem] = []
        self.faulty: dict[str, tuple[Problem, ...]] = {}
        self._seen: set[str] = set()

    def one(self, name: str) -> None:
        """Completes an interpretation after those above it."""
        for above in reversed([name, *self._names_above(name)]):
            if above in self._given and above not in self._seen:
                self._seen.add(above)
                self._complete(self._given[above])

    def _complete(self, declared: Declared) -> None:
        if declared.name == ROOT:
            self.done[ROOT] = declared
            return
        above = self._names_above(declared.name)
        parents = [found for name in reversed(above) if (found := self._interpretation(name))]
        wishes = self._wishes([*reversed(above), declared.name]) if declared.units else ()
        inferred = infer(declared.interpretation, self._root, parents, wishes)
        problems = [*_placed(inferred, declared)]
        self.problems += problems
        errors = tuple(each for each in problems if each.severity == "error")
        if errors:
            self.faulty[declared.name] = errors
        else:
            self.done[declared.name] = _replace(declared, interpretation=inferred.interpretation)

    def _wishes(self, names: list[str]) -> tuple[UnitWish, ...]:
        """Those of the parents too: the type that they make is made anew."""
        found = {
            wish.attribute: wish
            for name in names
            if name in self._given
            for wish in self._given[name].units
        }
        own = {each.attribute.rpartition(".")[0] for each in self._given[names[-1]].units}
        return tuple(each for each in found.values() if each.attribute.rpartition(".")[0] in own)

    def _names_above(self, name: str) -> list[str]:
        """Nearest first, without root; parents that go in circles are cut."""
        found: list[str] = []
        above = self._parent(name)
        while above and above != ROOT and above not in (name, *found):
            found.append(above)
            above = self._parent(above)
        return found

    def _parent(self, name: str) -> str:
        if name in self._given:
            return self._given[name].interpretation.parent
        return self._held[name].parent if name in self._held else ""

    def _interpretation(self, name: str) -> Interpretation | None:
        if name in self.done:
            return self.done[name].interpretation
        return self._held.get(name)


def _placed(inferred: Inferred, declared: Declared) -> list[Problem]:
    """Each problem at the line it is about, or at that of the interpretation."""
    found = []
    for about, problem in inferred.problems:
        place = declared.places.get(about, declared.place)
        message = f"{declared.name}: {problem.message}"
        found.append(
            _replace(
                problem,
                file=place.file,
                line=place.line,
                column=place.column,
                message=message,
            )
        )
    return found
