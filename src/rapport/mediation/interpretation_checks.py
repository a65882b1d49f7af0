"""All checks of an interpretation before its first event. [ME-7]

Errors refuse the interpretation; warnings and hints do not. Of duplicate rules or mappings the last
one applies (warning); an event type without a mapping keeps its type or cannot be passed (hint).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.conversion.conversion_checks import check_conversion
from rapport.mediation.interpretations.model import (
    CANONICAL,
    DIRECTIONS,
    EXPLORE,
    Direction,
    Interpretation,
    Rule,
)
from rapport.mediation.mapping_results import ResultFitter
from rapport.mediation.plans import ConvertStep, EachStep, ObjectStep, Plan, Step, VariantsStep
from rapport.mediation.rule_resolution import RuleResolver, Scope
from rapport.mediation.types import element_of, innermost


class CheckedInterpretation:
    """An interpretation with its scope, its problems, and its plans, built on first use."""

    def __init__(self, chain: Sequence[Interpretation]) -> None:
        """Raises InterpretationError if the types are faulty, since all other checks depend
        on them.
        """
        self.interpretation = chain[-1]
        self.lineage = tuple(each.name for each in chain)
        self.scope = Scope(chain)
        self._root_types = {each.name for each in chain[0].types}
        self._resolvers = {each: RuleResolver(self.scope, each) for each in DIRECTIONS}
        self._plans: dict[tuple[str, Direction], tuple[Plan | None, list[Problem]]] = {}
        self._used: set[str] = set()
        self.problems: tuple[Problem, ...] = tuple(self._check(chain))

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(each for each in self.problems if each.severity == "error")

    def resolver(self, direction: Direction) -> RuleResolver:
        return self._resolvers[direction]

    def plan(self, name: str, direction: Direction) -> Plan | None:
        """The plan for events of a type; None if it has no mapping and its rules change the
        type.
        """
        return self._planned(name, direction)[0]

    def event_types(self) -> tuple[str, ...]:
        """Complex types that are not part of another type, and mapped types with their
        subtypes.
        """
        types = self.scope.types
        inner = {
            innermost(attribute.type)
            for name in types.names
            for attribute in types.attributes(name).values()
        }
        mapped = {below for source, _ in self.scope.mappings for below in types.subtypes(source)}
        return tuple(
            name
            for name in types.names
            if types.is_complex(name) and (name in mapped or name not in inner)
        )

    def _planned(self, name: str, direction: Direction) -> tuple[Plan | None, list[Problem]]:
        if (name, direction) not in self._plans:
            self._plans[name, direction] = self._make_plan(name, direction)
        return self._plans[name, direction]

    def _make_plan(self, name: str, direction: Direction) -> tuple[Plan | None, list[Problem]]:
        mapping = self.scope.mapping_of(name, direction)
        resolved = self._resolvers[direction].resolve(name)
        self._used |= set(_rules_in(resolved))
        fitting = ResultFitter(self.scope, direction)
        if mapping is None and not fitting.preserves(resolved, name):
            return None, []
        step = fitting.fit_event(resolved, name, mapping)
        several = isinstance(step, ObjectStep) and bool(step.each)
        if isinstance(step, ConvertStep):
            several = element_of(step.result) is not None
        if fitting.problems:
            return None, fitting.problems
        target = mapping.target if mapping else name
        return Plan(
            self.interpretation.name, name, direction, target, (step,), several, mapping
        ), []

    def _check(self, chain: Sequence[Interpretation]) -> Iterator[Problem]:
        yield from _unique([*self.scope.problems, *self._conversions(chain), *self._duplicates()])
        problems = [*self._mapped_types()]
        if not problems and not any(each.severity == "error" for each in self.scope.problems):
            for name in self.event_types():
                for direction in DIRECTIONS:
                    problems += self._check_type(name, direction)
            problems += self._unused()
        yield from _unique(problems)

    def _check_type(self, name: str, direction: Direction) -> Iterator[Problem]:
        try:
            plan, problems = self._planned(name, direction)
        except InterpretationError as error:
            yield from error.problems
            return
        yield from problems
        is_root_type = name in self._root_types
        expected = is_root_type == (direction == "out") and self.interpretation.name != CANONICAL
        if expected and not problems and (plan is None or plan.mapping is None):
            what = "keeps its type" if plan else "cannot be passed: its rules change its type"
            yield Problem(
                severity="hint",
                code="mapping.missing",
                message=f"{name} has no mapping ({direction}) and {what}",
                hint=f"map it: {name} => ...",
            )

    def _mapped_types(self) -> Iterator[Problem]:
        types = self.scope.types
        for mapping in self.interpretation.mappings:
            for name in (mapping.source, mapping.target):
                if not types.is_complex(name):
                    yield Problem(
                        code="mapping.unknown_type",
                        message=f"mapping {mapping}: there is no complex type {name!r}",
                        hint="events are of complex types",
                    )

    def _conversions(self, chain: Sequence[Interpretation]) -> Iterator[Problem]:
        inherited = {each.name: each for one in chain[:-1] for each in one.conversions}
        for conversion in self.interpretation.conversions:
            yield from check_conversion(conversion, self.scope.types)
            above = inherited.get(conversion.name)
            if above is not None and above.signature() != conversion.signature():
                yield Problem(
                    code="conversion.signature",
                    message=f"{conversion.name} {conversion.signature()} overrides one that is "
                    f"{above.signature()}",
                    hint="give it another name, or the same signature",
                )

    def _duplicates(self) -> Iterator[Problem]:
        own = self.interpretation
        mine = [each for each in self.scope.bound if each.owner == own.name]
        for direction in DIRECTIONS:
            seen: dict[object, Rule] = {}
            for each in mine:
                if each.rule.holds_for(direction):
                    if each.pattern in seen:
                        yield _twice("rule", f"{seen[each.pattern]} and {each.rule}")
                    seen[each.pattern] = each.rule
        counted = Counter((each.source, each.direction) for each in own.mappings)
        for (source, direction), times in counted.items():
            if times > 1:
                yield _twice("mapping", f"{source} ({direction})")
        for name, times in Counter(each.name for each in own.conversions).items():
            if times > 1:
                yield _twice("conversion", name)

    def _unused(self) -> Iterator[Problem]:
        for rule in self.interpretation.rules:
            if str(rule) not in self._used and not rule.injected and rule.conversion != EXPLORE:
                yield Problem(
                    severity="warning",
                    code="rule.unused",
                    message=f"rule {rule} applies to no attribute of any event type",
                    hint="its pattern matches none, or more specific rules win everywhere",
                )


def _rules_in(step: Step) -> Iterator[str]:
    if isinstance(step, ConvertStep):
        yield step.rule
    elif isinstance(step, EachStep):
        yield from _rules_in(step.step)
    elif isinstance(step, ObjectStep):
        for part in step.parts:
            yield from _rules_in(part.step)
    elif isinstance(step, VariantsStep):
        for case in step.cases:
            yield from _rules_in(case.step)


def _twice(kind: str, what: str) -> Problem:
    return Problem(
        severity="warning",
        code=f"{kind}.duplicate",
        message=f"{kind} declared twice: {what}; the last one wins",
        hint="remove one of them",
    )


def _unique(problems: Sequence[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
