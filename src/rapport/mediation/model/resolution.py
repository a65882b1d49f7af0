"""From rules to the steps of one type: each path gets the rule that counts there. [ME-3]

Exploration goes down the attributes of a type and stops at the first path that a rule matches; its
conversion deals with what is below. It is done once, before events come: a value's dynamic types
are explored as paths of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.model.interpretation import EXPLORE, Direction
from rapport.mediation.model.plan import KEEP, Case, Convert, Each, Object, Part, Step, Variants
from rapport.mediation.model.precedence import Laid, Path, Position, lay, select, shown_path
from rapport.mediation.model.scope import BoundRule, Scope
from rapport.mediation.model.types import TypeRef, element_of, innermost

MOST_PATHS = 50_000
"""More paths than this in one type are refused: each would become a line of code."""


class Transforming(msgspec.Struct, frozen=True):
    """A transforming path: the rule that counts at a path (section 4.3.3)."""

    path: Path
    rule: BoundRule

    def __str__(self) -> str:
        return f"{shown_path(self.path)} by {self.rule.rule}"


_Entry = tuple[int, BoundRule]
"""A rule and its place in the order of declaration."""


class _ByEnd:
    """Rules by what their pattern ends in: an attribute, with a dot before it, or a type."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self.rules: dict[str, list[_Entry]] = {}
        for order, rule in entries:
            last = rule.pattern.last
            key = f".{last.attribute}" if last.attribute else last.type
            self.rules.setdefault(key, []).append((order, rule))
        self.keys = frozenset(self.rules)


class _Index:
    """The rules that may count in events of one type."""

    def __init__(self, anywhere: _ByEnd, here: _ByEnd) -> None:
        """`anywhere`: for events of any type, so all indexes share them; `here`: for this one."""
        self._parts = (anywhere, here)

    def may_match(self, key: str, reach: frozenset[str]) -> bool:
        """Whether some rule ends in the key, or in something within reach."""
        return any(key in part.keys or not part.keys.isdisjoint(reach) for part in self._parts)

    def ending_in(self, keys: Sequence[str]) -> list[BoundRule]:
        """In the order of declaration."""
        found = [each for key in keys for part in self._parts for each in part.rules.get(key, ())]
        found.sort(key=lambda each: each[0])
        return [rule for _, rule in found]


class Resolver:
    """Resolves the types of one scope in one direction.

    Every rule is looked at once. Cost per type: its own rules, then its paths below which a rule
    may match, times the rules that end in a path's attribute or type.
    """

    def __init__(self, scope: Scope, direction: Direction) -> None:
        self._scope, self._types = scope, scope.types
        anywhere: list[_Entry] = []
        self._by_first: dict[str, list[_Entry]] = {}
        for order, rule in enumerate(scope.rules(direction)):
            if rule.pattern.floating == 0:
                anywhere.append((order, rule))
            else:  # its first type must be the event's, or above it
                self._by_first.setdefault(rule.pattern.items[0].type, []).append((order, rule))
        self._anywhere = _ByEnd(anywhere)
        self._indexes: dict[str, _Index] = {}
        self._paths_left = MOST_PATHS

    def resolve(self, name: str) -> Step:
        """The steps for events of exactly this type; raises InterpretationError when too many."""
        self._paths_left = MOST_PATHS
        if not self._may_match(name, name):
            return KEEP
        return self._exact((Position("", (name,)),))

    def winner(self, path: Path) -> BoundRule | None:
        """The rule that counts at exactly this path, whatever counts above it."""
        found: list[tuple[Laid, BoundRule]] = []
        for rule in self._candidates(path):
            laid = lay(rule.pattern, path, self._types)
            if laid is not None:
                found.append((laid, rule))
        return select(found, path, self._types)[-1][1] if found else None

    def transforming_paths(self, name: str) -> Iterator[Transforming]:
        """The expanded rule set of a type, with the paths that an injected rule leaves alone."""
        yield from self.transforming_paths_below((Position("", (name,)),))

    def transforming_paths_below(self, path: Path) -> Iterator[Transforming]:
        """Those at and below a path, as if nothing counted above it."""
        self._paths_left = MOST_PATHS
        for each, _decision in self._walk(path, self._decision):
            rule = self.winner(each)
            if rule is not None:
                yield Transforming(each, rule)

    def walk(self, name: str, decide: Callable[[Path], str]) -> Iterator[tuple[Path, str]]:
        """Every path that is looked at when `decide` says what is done: a conversion, which stops
        there, or EXPLORE.
        """
        self._paths_left = MOST_PATHS
        yield from self._walk((Position("", (name,)),), decide)

    def _decision(self, path: Path) -> str:
        rule = self.winner(path)
        return EXPLORE if rule is None else rule.rule.conversion

    def _walk(self, path: Path, decide: Callable[[Path], str]) -> Iterator[tuple[Path, str]]:
        self._count()
        decision = decide(path)
        yield path, decision
        if decision != EXPLORE:
            return
        here = path[-1].type
        inner = element_of(here)
        below: list[tuple[Path, TypeRef]] = []
        if inner is not None:
            below.append((path, inner))
        for attribute in () if inner else self._types.attributes(here).values():
            if self._may_match(path[0].type, attribute.type, attribute.name):
                below.append(((*path, Position(attribute.name, ())), attribute.type))
        for further, declared in below:
            for dynamic in self._dynamic(declared):
                yield from self._walk(_with_face(further, dynamic), decide)

    def _exact(self, path: Path) -> Step:
        """The step where the value is known to be of exactly the type of the last position."""
        self._count()
        rule = self.winner(path)
        if rule is not None and rule.rule.conversion != EXPLORE:
            conversion = self._scope.conversions[rule.rule.conversion]
            return Convert(shown_path(path), path[-1].type, str(rule.rule), conversion)
        here = path[-1].type
        inner = element_of(here)
        if inner is not None:
            step = self._declared(path, inner)
            return Each(shown_path(path), step) if step != KEEP else KEEP
        parts = []
        for attribute in self._types.attributes(here).values():
            if self._may_match(path[0].type, attribute.type, attribute.name):
                below = (*path, Position(attribute.name, ()))
                step = self._declared(below, attribute.type)
                if step != KEEP:
                    parts.append(Part(attribute.name, attribute.optional, step))
        return Object(shown_path(path), here, tuple(parts)) if parts else KEEP

    def _declared(self, path: Path, declared: TypeRef) -> Step:
        """The step where the value may be of any subtype of `declared`."""
        cases = [
            Case(dynamic, self._exact(_with_face(path, dynamic)))
            for dynamic in self._dynamic(declared)
        ]
        if len(cases) == 1 or all(case.step == KEEP for case in cases):
            return cases[0].step
        return Variants(shown_path(_with_face(path, declared)), declared, tuple(cases))

    def _dynamic(self, declared: TypeRef) -> tuple[TypeRef, ...]:
        return self._types.dynamic(declared) if element_of(declared) is None else (declared,)

    def _may_match(self, root: str, reference: TypeRef, attribute: str = "") -> bool:
        return self._index(root).may_match(f".{attribute}", self._types.reach(reference))

    def _candidates(self, path: Path) -> list[BoundRule]:
        position = path[-1]
        face = position.type
        inner = innermost(face)
        keys = [f".{position.attribute}"] if position.attribute else []
        keys += [face.replace(inner, above) for above in self._types.levels(inner)]
        return self._index(path[0].type).ending_in(keys)

    def _index(self, root: str) -> _Index:
        if root not in self._indexes:
            above = self._types.levels(root)
            own = [each for name in above for each in self._by_first.get(name, ())]
            self._indexes[root] = _Index(self._anywhere, _ByEnd(own))
        return self._indexes[root]

    def _count(self) -> None:
        self._paths_left -= 1
        if self._paths_left < 0:
            raise InterpretationError(
                [
                    Problem(
                        code="type.too_wide",
                        message=f"a type has more than {MOST_PATHS} paths to look at",
                        hint="use fewer subtypes at nested places, or convert them as a whole",
                    )
                ]
            )


def _with_face(path: Path, face: TypeRef) -> Path:
    *before, last = path
    return (*before, Position(last.attribute, (*last.faces, face)))
