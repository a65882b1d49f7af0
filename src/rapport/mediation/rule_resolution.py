"""The rules that apply in an interpretation, and the rule that wins at each path. [ME-3, ME-5]

Inheritance follows section 4.2.1: types add up; a mapping of the same source and direction, a rule
with the identical pattern and a conversion of the same name override those of the parent.

Resolution walks down the attributes of a type and stops at the first path that a rule matches,
since its conversion handles everything below. It runs once, before events arrive; the dynamic types
of a value are separate paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as Dict

import msgspec

from rapport.core.errors import InterpretationError, Problem, did_you_mean
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.interpretations.model import (
    EXPLORE,
    Direction,
    Interpretation,
    Rule,
    TypeMapping,
)
from rapport.mediation.patterns import (
    BoundPattern,
    MatchedPattern,
    PathPosition,
    Pattern,
    TypePath,
    bind,
    match_path,
    parse_pattern,
    select_most_specific,
    shown_path,
)
from rapport.mediation.plans import (
    KEEP,
    ConvertStep,
    EachStep,
    ObjectPart,
    ObjectStep,
    Step,
    VariantCase,
    VariantsStep,
)
from rapport.mediation.types import Type, TypeRef, Types, check_types, element_of, innermost


class BoundRule(msgspec.Struct, frozen=True):
    """A rule with its resolved pattern and the interpretation that declared it."""

    rule: Rule
    pattern: BoundPattern
    owner: str


def decision_of(rule: BoundRule | None) -> str:
    """The conversion at a path with this rule, or EXPLORE."""
    return EXPLORE if rule is None else rule.rule.conversion


class Scope:
    """Everything visible in one interpretation; immutable. Takes a chain of interpretations
    from the canonical model down. Raises InterpretationError only for faulty types; other
    faults are in `problems` and their rules are left out.
    """

    def __init__(self, chain: Sequence[Interpretation]) -> None:
        self.name = chain[-1].name
        self.problems: list[Problem] = []
        self.types = self._visible_types(chain)
        self.conversions: Dict[str, Conversion] = {
            each.name: each for one in chain for each in one.conversions
        }
        self.mappings: Dict[tuple[str, Direction], TypeMapping] = {
            (each.source, each.direction): each for one in chain for each in one.mappings
        }
        self.bound: tuple[BoundRule, ...] = tuple(
            found for one in chain for rule in one.rules if (found := self._bind(rule, one.name))
        )

    def rules(self, direction: Direction) -> tuple[BoundRule, ...]:
        """Rules of a direction in order, without those overridden by an identical pattern."""
        found: dict[BoundPattern, BoundRule] = {}
        for each in self.bound:
            if each.rule.holds_for(direction):
                found.pop(each.pattern, None)
                found[each.pattern] = each
        return tuple(found.values())

    def mapping_of(self, name: str, direction: Direction) -> TypeMapping | None:
        """The mapping of a type: its own, else that of its nearest super-type."""
        levels = self.types.levels(name)
        for super_type in sorted(levels, key=lambda each: self.types.nearness(name, each)):
            found = self.mappings.get((super_type, direction))
            if found is not None:
                return found
        return None

    def _visible_types(self, chain: Sequence[Interpretation]) -> Types:
        visible: dict[str, Type] = {}
        for one in chain:
            for each in one.types:
                if visible.get(each.name) == each and one is not chain[0]:
                    continue  # repeating a parent's type is allowed
                if each.name in visible:
                    self.problems.append(_declared_twice(one, each))
                visible[each.name] = each
        faults = check_types(tuple(visible.values()))
        if faults:
            raise InterpretationError([*self.problems, *faults])
        return Types(visible.values())

    def _bind(self, rule: Rule, owner: str) -> BoundRule | None:
        parsed = parse_pattern(rule.pattern)
        found = bind(parsed, self.types) if isinstance(parsed, Pattern) else parsed
        if isinstance(found, Problem):
            self.problems.append(found)
            return None
        fault = self._fault_of(rule, found)
        if fault is not None:
            self.problems.append(fault)
            return None
        return BoundRule(rule, found, owner)

    def _fault_of(self, rule: Rule, pattern: BoundPattern) -> Problem | None:
        """Checks a rule's pattern against its conversion."""
        if rule.conversion == EXPLORE:
            return None
        conversion = self.conversions.get(rule.conversion)
        if conversion is None:
            return Problem(
                code="rule.unknown_conversion",
                message=f"rule {rule}: there is no conversion {rule.conversion!r}",
                hint=did_you_mean(rule.conversion, self.conversions, "declare it"),
            )
        if not conversion.is_single:
            return Problem(
                code="rule.argument",
                message=f"rule {rule}: {conversion.signature()} is not from one value to one",
                hint="conversions of several values are for merging and splitting in a mapping",
            )
        takes_all = conversion.argument == "json"
        if not takes_all and not self.types.is_subtype(pattern.last.type, conversion.argument):
            return Problem(
                code="rule.argument",
                message=f"rule {rule}: expected {conversion.argument}, found {pattern.last.type}",
                hint=f"{conversion.name} takes {conversion.argument}",
            )
        return None


def _declared_twice(owner: Interpretation, declared: Type) -> Problem:
    return Problem(
        code="type.duplicate",
        message=f"{owner.name} declares type {declared.name!r}, which exists already",
        hint="give it another name; a type in use is changed by a replacement",
    )


MAX_PATHS = 50_000
"""A type with more paths is refused: each path may become a line of code."""


_Entry = tuple[int, BoundRule]
"""A rule and its position in the order of declaration."""


class _RulesByEnd:
    """Rules by the end of their pattern: an attribute, with a leading dot, or a type."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self.rules: dict[str, list[_Entry]] = {}
        for order, rule in entries:
            last = rule.pattern.last
            key = f".{last.attribute}" if last.attribute else last.type
            self.rules.setdefault(key, []).append((order, rule))
        self.keys = frozenset(self.rules)


class _RuleIndex:
    """The rules that may apply in events of one type."""

    def __init__(self, anywhere: _RulesByEnd, here: _RulesByEnd) -> None:
        """`anywhere`: rules for events of any type, shared by all indexes; `here`: rules
        for this type.
        """
        self._parts = (anywhere, here)

    def may_match(self, key: str, reach: frozenset[str]) -> bool:
        """Whether some rule ends in the key or in one of the names in `reach`."""
        return any(key in part.keys or not part.keys.isdisjoint(reach) for part in self._parts)

    def ending_in(self, keys: Sequence[str]) -> list[BoundRule]:
        """The matching rules in the order of declaration."""
        found = [each for key in keys for part in self._parts for each in part.rules.get(key, ())]
        found.sort(key=lambda each: each[0])
        return [rule for _, rule in found]


class RuleResolver:
    """Resolves the types of one scope in one direction. Each rule is indexed once. Cost per
    type: its own rules, plus its paths below which a rule may match times the rules that end in
    a path's attribute or type.
    """

    def __init__(self, scope: Scope, direction: Direction) -> None:
        self._scope, self._types = scope, scope.types
        anywhere: list[_Entry] = []
        self._by_first: dict[str, list[_Entry]] = {}
        for order, rule in enumerate(scope.rules(direction)):
            if rule.pattern.floating == 0:
                anywhere.append((order, rule))
            else:  # its first type is the event's or a super-type
                self._by_first.setdefault(rule.pattern.items[0].type, []).append((order, rule))
        self._anywhere = _RulesByEnd(anywhere)
        self._indexes: dict[str, _RuleIndex] = {}
        self._paths_left = MAX_PATHS

    def resolve(self, name: str) -> Step:
        """Returns the steps for events of exactly this type; raises InterpretationError if
        there are too many.
        """
        self._paths_left = MAX_PATHS
        if not self._may_match(name, name):
            return KEEP
        return self._exact((PathPosition("", (name,)),))

    def winner(self, path: TypePath) -> BoundRule | None:
        """The rule that wins at exactly this path, ignoring rules above it."""
        found: list[tuple[MatchedPattern, BoundRule]] = []
        for rule in self._candidates(path):
            laid = match_path(rule.pattern, path, self._types)
            if laid is not None:
                found.append((laid, rule))
        return select_most_specific(found, path, self._types)[-1][1] if found else None

    def transforming_paths_below(self, path: TypePath) -> Iterator[tuple[TypePath, BoundRule]]:
        """The transforming paths (section 4.3.3) at and below a path with the rules that win
        there, ignoring rules above it.
        """
        self._paths_left = MAX_PATHS
        for each, _decision in self._walk(path, lambda path: decision_of(self.winner(path))):
            rule = self.winner(each)
            if rule is not None:
                yield each, rule

    def walk(self, name: str, decide: Callable[[TypePath], str]) -> Iterator[tuple[TypePath, str]]:
        """Yields every visited path with its decision: a conversion, which ends the
        descent, or EXPLORE.
        """
        self._paths_left = MAX_PATHS
        yield from self._walk((PathPosition("", (name,)),), decide)

    def _walk(
        self, path: TypePath, decide: Callable[[TypePath], str]
    ) -> Iterator[tuple[TypePath, str]]:
        self._count()
        decision = decide(path)
        yield path, decision
        if decision != EXPLORE:
            return
        here = path[-1].type
        inner = element_of(here)
        below: list[tuple[TypePath, TypeRef]] = []
        if inner is not None:
            below.append((path, inner))
        for attribute in () if inner else self._types.attributes(here).values():
            if self._may_match(path[0].type, attribute.type, attribute.name):
                below.append(((*path, PathPosition(attribute.name, ())), attribute.type))
        for further, declared in below:
            for dynamic in self._dynamic(declared):
                yield from self._walk(_with_face(further, dynamic), decide)

    def _exact(self, path: TypePath) -> Step:
        """The step for a value of exactly the type of the last position."""
        self._count()
        rule = self.winner(path)
        if rule is not None and rule.rule.conversion != EXPLORE:
            conversion = self._scope.conversions[rule.rule.conversion]
            return ConvertStep(shown_path(path), path[-1].type, str(rule.rule), conversion)
        here = path[-1].type
        inner = element_of(here)
        if inner is not None:
            step = self._declared(path, inner)
            return EachStep(shown_path(path), step) if step != KEEP else KEEP
        parts = []
        for attribute in self._types.attributes(here).values():
            if self._may_match(path[0].type, attribute.type, attribute.name):
                below = (*path, PathPosition(attribute.name, ()))
                step = self._declared(below, attribute.type)
                if step != KEEP:
                    parts.append(ObjectPart(attribute.name, attribute.optional, step))
        return ObjectStep(shown_path(path), here, tuple(parts)) if parts else KEEP

    def _declared(self, path: TypePath, declared: TypeRef) -> Step:
        """The step for a value of any subtype of `declared`."""
        cases = [
            VariantCase(dynamic, self._exact(_with_face(path, dynamic)))
            for dynamic in self._dynamic(declared)
        ]
        if len(cases) == 1 or all(case.step == KEEP for case in cases):
            return cases[0].step
        return VariantsStep(shown_path(_with_face(path, declared)), declared, tuple(cases))

    def _dynamic(self, declared: TypeRef) -> tuple[TypeRef, ...]:
        return self._types.dynamic(declared) if element_of(declared) is None else (declared,)

    def _may_match(self, event_type: str, reference: TypeRef, attribute: str = "") -> bool:
        return self._index(event_type).may_match(f".{attribute}", self._types.reach(reference))

    def _candidates(self, path: TypePath) -> list[BoundRule]:
        position = path[-1]
        face = position.type
        inner = innermost(face)
        keys = [f".{position.attribute}"] if position.attribute else []
        keys += [face.replace(inner, above) for above in self._types.levels(inner)]
        return self._index(path[0].type).ending_in(keys)

    def _index(self, event_type: str) -> _RuleIndex:
        if event_type not in self._indexes:
            above = self._types.levels(event_type)
            own = [each for name in above for each in self._by_first.get(name, ())]
            self._indexes[event_type] = _RuleIndex(self._anywhere, _RulesByEnd(own))
        return self._indexes[event_type]

    def _count(self) -> None:
        self._paths_left -= 1
        if self._paths_left < 0:
            raise InterpretationError(
                [
                    Problem(
                        code="type.too_wide",
                        message=f"a type has more than {MAX_PATHS} paths to look at",
                        hint="use fewer subtypes at nested places, or convert them as a whole",
                    )
                ]
            )


def _with_face(path: TypePath, face: TypeRef) -> TypePath:
    *before, last = path
    return (*before, PathPosition(last.attribute, (*last.faces, face)))
