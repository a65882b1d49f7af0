"""All interpretations of a node as one value: lineage, checks, plans. [ME-5, ME-6]

A value is never changed: `changes.py` makes a new one, and who holds the old one keeps working with
it. So a change swaps in by exchanging one reference.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping as Dict

import msgspec

from rapport.core.errors import InterpretationError, Problem, UnknownName
from rapport.mediation.model.checking import Checked
from rapport.mediation.model.interpretation import ROOT, Direction, Interpretation, empty_root
from rapport.mediation.model.plan import Each, Plan, Step
from rapport.mediation.model.replacement import Replacement, replacing_step
from rapport.mediation.model.types import Types


class Held(msgspec.Struct, frozen=True):
    """An interpretation and the version of root it was written for."""

    interpretation: Interpretation
    root_version: int


class Interpretations:
    """Root in all its versions, and everything that descends from it.

    `replacements[n]` leads from `roots[n]` to `roots[n + 1]`. Checks and plans are made when first
    asked for and kept: ask from one thread at a time. Transformers made of them may go anywhere.
    """

    def __init__(
        self,
        roots: tuple[Interpretation, ...] = (),
        replacements: tuple[Replacement, ...] = (),
        held: Dict[str, Held] | None = None,
    ) -> None:
        self.roots = roots or (empty_root(),)
        self.replacements = replacements
        self.held: Dict[str, Held] = held or {}
        self._checked: dict[str, Checked] = {}
        self._root_types: dict[int, Types] = {}

    def __contains__(self, name: str) -> bool:
        return name == ROOT or name in self.held

    @property
    def root(self) -> Interpretation:
        """Root as it is now."""
        return self.roots[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """Root first."""
        return (ROOT, *self.held)

    def named(self, name: str) -> Interpretation:
        """Raises UnknownName `interpretation.unknown`."""
        if name == ROOT:
            return self.root
        found = self.held.get(name)
        if found is None:
            raise UnknownName("interpretation", name, self.names, code="interpretation.unknown")
        return found.interpretation

    def chain(self, name: str) -> tuple[Interpretation, ...]:
        """From root, in the version it was written for, down to the interpretation."""
        below: list[Interpretation] = []
        while name != ROOT:
            below.append(self.named(name))
            name = below[-1].parent
        return (self.roots[self.root_version(below[0].name if below else ROOT)], *reversed(below))

    def root_version(self, name: str) -> int:
        """The version of root that an interpretation sees."""
        return len(self.roots) - 1 if name == ROOT else self.held[name].root_version

    def children(self, name: str) -> tuple[str, ...]:
        """Those that name it as parent."""
        return tuple(each for each, held in self.held.items() if held.interpretation.parent == name)

    def descendants(self, name: str) -> tuple[str, ...]:
        """Parents before their children."""
        found = list(self.children(name))
        for each in found:
            found += self.children(each)
        return tuple(found)

    def apart(self, known: Interpretations | None = None) -> Interpretations:
        """The same to be asked by another thread. What `known` found out about interpretations that
        are the same here is taken over; what it found out about others is found out anew, now.
        """
        found = Interpretations(self.roots, self.replacements, self.held)
        if known is None:
            return found
        for name, checked in known._checked.copy().items():
            if name in self and self.is_same(name, known):
                found._checked[name] = checked
            elif name in self:
                found.checked(name)
        return found

    def is_same(self, name: str, other: Interpretations) -> bool:
        """Both hold the very same interpretation, with all above it."""
        if name not in other or self.root_version(name) != other.root_version(name):
            return False
        ours, theirs = self.chain(name), other.chain(name)
        return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))

    def checked(self, name: str) -> Checked:
        """The interpretation with its problems; raises InterpretationError for faulty types."""
        if name not in self._checked:
            self._checked[name] = Checked(self.chain(name))
        return self._checked[name]

    def plan(self, name: str, type_name: str, direction: Direction) -> Plan:
        """How events of a type go from the interpretation directly to root (`in`) or back (`out`).

        `type_name` is the type the event has before. Raises InterpretationError
        `mapping.missing` when it cannot be passed, UnknownName when nobody knows the type.
        """
        if name == ROOT:
            self.checked(ROOT).scope.types.named(type_name)
            return Plan(ROOT, type_name, direction, type_name, ())
        version = self.root_version(name)
        before: tuple[Step, ...] = ()
        mapped = type_name
        if direction == "out":
            mapped, before = self._back(type_name, version)
        checked = self.checked(name)
        checked.scope.types.named(mapped)
        plan = checked.plan(mapped, direction)
        if plan is None:
            raise InterpretationError([_unmapped(name, mapped, direction)])
        result = plan.result_type
        after: tuple[Step, ...] = ()
        if direction == "in":
            result, after = self._forth(result, version, plan.several)
        stages = (*before, *plan.stages, *after)
        return msgspec.structs.replace(plan, type=type_name, result_type=result, stages=stages)

    def types_met(self, name: str) -> Types:
        """All types that values have on their way between an interpretation and root."""
        version = self.root_version(name)
        found = {each.name: each for root in self.roots[version:] for each in root.types}
        return Types([*found.values(), *self.checked(name).scope.types.all()])

    def _back(self, name: str, version: int) -> tuple[str, tuple[Step, ...]]:
        stages: list[Step] = []
        for number in range(len(self.replacements) - 1, version - 1, -1):
            replacement = self.replacements[number]
            stages += replacing_step(replacement, name, self._types(number + 1), back=True)
            name = replacement.old if name == replacement.new else name
        return name, tuple(stages)

    def _forth(self, name: str, version: int, several: bool) -> tuple[str, tuple[Step, ...]]:
        stages: list[Step] = []
        for number in range(version, len(self.replacements)):
            replacement = self.replacements[number]
            found = replacing_step(replacement, name, self._types(number), back=False)
            stages += [Each(name, step) for step in found] if several else found
            name = replacement.new if name == replacement.old else name
        return name, tuple(stages)

    def _types(self, version: int) -> Types:
        if version not in self._root_types:
            self._root_types[version] = Types(self.roots[version].types)
        return self._root_types[version]


def _unmapped(name: str, type_name: str, direction: Direction) -> Problem:
    return Problem(
        code="mapping.missing",
        message=f"{name}: {type_name} has no mapping ({direction}), and rules change its type",
        hint=f"map it: {type_name} => ...",
    )
