"""Changes of typed interpretations: declare, augment, replace, remove. [ME-6]

A change is checked and applied as a whole or not at all. `apply_change` returns the new registry
and every problem; with an error among them it returns the old registry. Warnings and hints do not
stop a change.

Section 4.2.2, augmentation: a parent gets `r2 = T.T1 -> g` while a child has `r1 = T1 -> f`. The
child would inherit r2, which wins over r1 at some paths, so the child gets `T.T1 -> f`, which
overrides r2. A path is the child's own if a rule declared below the augmented interpretation
applied there, or below where the new rule would now stop the descent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem, did_you_mean
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.interpretation_checks import CheckedInterpretation
from rapport.mediation.interpretations.model import (
    CANONICAL,
    DIRECTIONS,
    EXPLORE,
    Direction,
    Interpretation,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.registry import (
    InterpretationRegistry,
    RegisteredInterpretation,
    Replacement,
    check_replacement,
    replaced_canonical_model,
    rewrite,
    unchainable,
)
from rapport.mediation.patterns import BoundItem, BoundPattern, TypePath
from rapport.mediation.rule_resolution import BoundRule, RuleResolver, Scope, decision_of
from rapport.mediation.types import ComplexType, Type, Types, innermost

Decisions = Mapping[tuple[Direction, TypePath], str]
"""The decision at each visited path: a conversion, or EXPLORE."""


class Expectation:
    """The expected behaviour of a descendant after its ancestor `above` got the rules `added`.
    `before`: the former descendant; `natural`: the descendant with nothing injected.
    """

    def __init__(
        self,
        before: CheckedInterpretation,
        natural: CheckedInterpretation,
        added: Collection[Rule],
        above: str,
    ) -> None:
        self._before, self._natural, self._added, self._above = before, natural, added, above
        self._known = frozenset(before.scope.types.names)
        lineage = before.lineage
        self._inherited = frozenset(lineage[: lineage.index(above) + 1])

    def rules_to_inject(self, now: CheckedInterpretation, *, exactly: bool) -> tuple[Rule, ...]:
        """The rules that `now` lacks to behave as expected. First one rule per pattern, as
        in the paper; if that is too coarse, `exactly` gives one per path. The paths are
        those that `now` visits: an injected rule may match paths that no declared rule
        reaches.
        """
        decisions = dict(self._decide_all(now))
        wrong = {
            (direction, path): decision
            for (direction, path), decision in decisions.items()
            if decision_of(now.resolver(direction).winner(path)) != decision
        }
        by_path = [
            Rule(str(exact_pattern(path)), decision, direction, injected=True)
            for (direction, path), decision in wrong.items()
        ]
        return tuple(by_path if exactly else self._by_pattern(decisions, wrong) or by_path)

    def _by_pattern(self, decisions: Decisions, wrong: Decisions) -> list[Rule]:
        """One rule for each new pattern whose paths all have the same decision."""
        wanted: dict[tuple[Direction, BoundRule], set[str]] = {}
        for (direction, path), decision in decisions.items():
            rule = self._natural.resolver(direction).winner(path)
            if rule is not None and self._is_added(rule):
                wanted.setdefault((direction, rule), set()).add(decision)
        concerned = {
            (direction, self._natural.resolver(direction).winner(path)) for direction, path in wrong
        }
        return [
            Rule(str(rule.pattern), next(iter(alike)), direction, injected=True)
            for (direction, rule), alike in wanted.items()
            if len(alike) == 1 and (direction, rule) in concerned
        ]

    def _decide_all(
        self, now: CheckedInterpretation
    ) -> Iterator[tuple[tuple[Direction, TypePath], str]]:
        for direction in DIRECTIONS:
            old, natural = self._before.resolver(direction), self._natural.resolver(direction)

            def decide(
                path: TypePath, old: RuleResolver = old, natural: RuleResolver = natural
            ) -> str:
                return self._decide(path, old, natural)

            for name in self._natural.scope.types.complex_names:
                for path, decision in now.resolver(direction).walk(name, decide):
                    yield (direction, path), decision

    def _decide(self, path: TypePath, old: RuleResolver, natural: RuleResolver) -> str:
        rule = natural.winner(path)
        if rule is not None and self._is_added(rule) and self._was_possible(path):
            own = self._own_decision(path, old)
            if own is not None:
                return own
        return decision_of(rule)

    def _own_decision(self, path: TypePath, old: RuleResolver) -> str | None:
        """The decision of rules declared below `above`; None if there was none."""
        winner = old.winner(path)
        if winner is not None and winner.owner not in self._inherited:
            return winner.rule.conversion
        if decision_of(winner) != EXPLORE:
            return None
        below = old.transforming_paths_below(path)
        return EXPLORE if any(rule.owner not in self._inherited for _path, rule in below) else None

    def _is_added(self, rule: BoundRule) -> bool:
        return rule.owner == self._above and rule.rule in self._added

    def _was_possible(self, path: TypePath) -> bool:
        return all(innermost(face) in self._known for each in path for face in each.faces)


def exact_pattern(path: TypePath) -> BoundPattern:
    """The pattern that matches exactly this path."""
    head, *rest = path
    items = [BoundItem(position.attribute, position.type) for position in rest]
    return BoundPattern((BoundItem("", head.type), *items))


_replace = msgspec.structs.replace
_MOST_ROUNDS = 100
"""Limit of injection rounds; each round settles at least one path, so it is never reached."""


class Declare(msgspec.Struct, frozen=True, tag="declare"):
    """Declares or redeclares an interpretation, for the present canonical version or that of
    its parent.
    """

    interpretation: Interpretation


class Augment(msgspec.Struct, frozen=True, tag="augment"):
    """Extends an interpretation (often the canonical model); descendants inherit where they
    have no rule of their own.
    """

    name: str
    types: tuple[Type, ...] = ()
    mappings: tuple[TypeMapping, ...] = ()
    rules: tuple[Rule, ...] = ()
    conversions: tuple[Conversion, ...] = ()


class ReplaceType(msgspec.Struct, frozen=True, tag="replace"):
    """Replaces the canonical type `old` by `new`; interpretations written for `old` are
    unaffected.
    """

    old: str
    new: ComplexType
    forth: Conversion
    back: Conversion


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Removes an interpretation; refused while it has descendants."""

    name: str


Change = Declare | Augment | ReplaceType | Remove
ApplyResult = tuple[InterpretationRegistry, tuple[Problem, ...]]


def apply_change(old: InterpretationRegistry, change: Change) -> ApplyResult:
    """Returns the registry after the change, or the old one with the errors. Cost: all checks
    of the interpretation and of its descendants.
    """
    try:
        if isinstance(change, Declare):
            return _declare(old, change.interpretation)
        if isinstance(change, Augment):
            return _augment(old, change)
        if isinstance(change, ReplaceType):
            return _replace_type(old, change)
        return _remove(old, change.name)
    except InterpretationError as error:
        return old, error.problems


def load_all(
    interpretations: Iterable[Interpretation],
) -> tuple[InterpretationRegistry, dict[str, ApplyResult]]:
    """Loads interpretations, parents first; a faulty one refuses only itself and its
    descendants. The second part has the result by name.
    """
    now = InterpretationRegistry()
    found: dict[str, ApplyResult] = {}
    for each, is_cyclic in parents_first(interpretations):
        parts = (each.types, each.mappings, each.rules, each.conversions)
        change = Augment(CANONICAL, *parts) if each.name == CANONICAL else Declare(each)
        now, problems = (now, (_cyclic(each),)) if is_cyclic else apply_change(now, change)
        found[each.name] = now, problems
    return now, found


def parents_first(
    interpretations: Iterable[Interpretation],
) -> Iterator[tuple[Interpretation, bool]]:
    """Parents before their children, the canonical model first; last those whose parents are
    cyclic, marked with True.
    """
    waiting = {each.name: each for each in interpretations}
    while waiting:
        ready = [
            each
            for each in waiting.values()
            if each.name == CANONICAL or each.parent not in waiting
        ]
        for each in ready or list(waiting.values()):
            yield waiting.pop(each.name), not ready


def _declare(old: InterpretationRegistry, declared: Interpretation) -> ApplyResult:
    problem = _bad_place(old, declared)
    if problem is not None:
        return old, (problem,)
    version = len(old.canonical_versions) - 1
    if declared.parent != CANONICAL:
        version = old.canonical_version(declared.parent)
    held = {**old.registered, declared.name: RegisteredInterpretation(declared, version)}
    for below in old.descendants(declared.name):
        held[below] = RegisteredInterpretation(old.registered[below].interpretation, version)
    new = InterpretationRegistry(old.canonical_versions, old.replacements, held)
    return _verdict(old, new, declared.name, new.descendants(declared.name))


def _bad_place(old: InterpretationRegistry, declared: Interpretation) -> Problem | None:
    """Why it cannot have this name or parent."""
    if declared.name == CANONICAL or not declared.name:
        return Problem(
            code="interpretation.bad_name",
            message=f"{declared.name!r} cannot be declared",
            hint="augment the canonical model, or replace one of its types",
        )
    if declared.parent not in old:
        return Problem(
            code="interpretation.unknown_parent",
            message=f"{declared.name}: there is no interpretation {declared.parent!r} in force",
            hint=did_you_mean(declared.parent, old.names, "declare it, or mend its faults"),
        )
    if declared.parent == declared.name or declared.parent in old.descendants(declared.name):
        return _cyclic(declared)
    return None


def _augment(old: InterpretationRegistry, change: Augment) -> ApplyResult:
    target = old.named(change.name)
    held = dict(old.registered)
    roots = list(old.canonical_versions)
    if change.name == CANONICAL:
        for version, addition in enumerate(_additions(old, change)):
            roots[version] = _added(roots[version], addition)
    else:
        version = old.canonical_version(change.name)
        held[change.name] = RegisteredInterpretation(_added(target, change), version)
    new = InterpretationRegistry(tuple(roots), old.replacements, held)
    for name in old.descendants(change.name):
        new = _keep_mappings(old, new, name, change.name)
        new = _keep_descendant(old, new, name, change.name)
    return _verdict(old, new, change.name, new.descendants(change.name))


def _keep_descendant(
    old: InterpretationRegistry, new: InterpretationRegistry, name: str, above: str
) -> InterpretationRegistry:
    """Injects rules into a descendant until it behaves as before. The expectation follows from
    declarations alone. Rules injected into interpretations in between are meant for their own
    paths; where they affect a descendant, they are overridden.
    """
    before = old.checked(name)
    at = before.lineage.index(above)
    chain, augmented = list(old.chain(name)), new.chain(name)[at]
    added = augmented.rules[len(chain[at].rules) :]
    if not added:
        return new
    chain[at] = augmented
    expectation = Expectation(before, CheckedInterpretation(chain), added, above)
    for each_round in range(_MOST_ROUNDS):
        missing = expectation.rules_to_inject(
            CheckedInterpretation(new.chain(name)), exactly=each_round > 0
        )
        if not missing:
            break
        held = new.registered[name]
        kept = _replace(held.interpretation, rules=(*held.interpretation.rules, *missing))
        changed = {**new.registered, name: RegisteredInterpretation(kept, held.root_version)}
        new = InterpretationRegistry(new.canonical_versions, new.replacements, changed)
    return new


def _keep_mappings(
    old: InterpretationRegistry, new: InterpretationRegistry, name: str, above: str
) -> InterpretationRegistry:
    """The same for mappings: a new mapping of a subtype wins over a descendant's mapping of its
    super-type, so the descendant's mapping is repeated for the subtype.
    """
    before = old.checked(name)
    at = before.lineage.index(above)
    chain, augmented = list(old.chain(name)), new.chain(name)[at]
    added = augmented.mappings[len(chain[at].mappings) :]
    if not added:
        return new
    own = {mapping for one in chain[at + 1 :] for mapping in one.mappings}
    chain[at] = augmented
    natural, now = Scope(chain), Scope(new.chain(name))
    kept: list[TypeMapping] = []
    for each in before.scope.types.complex_names:
        for direction in DIRECTIONS:
            expected = natural.mapping_of(each, direction)
            mine = before.scope.mapping_of(each, direction)
            if expected in added and mine in own:
                expected = mine
            if expected is not None and now.mapping_of(each, direction) != expected:
                kept.append(_replace(expected, source=each))
    held = new.registered[name]
    kept_here = _replace(held.interpretation, mappings=(*held.interpretation.mappings, *kept))
    changed = (
        {**new.registered, name: RegisteredInterpretation(kept_here, held.root_version)}
        if kept
        else new.registered
    )
    return InterpretationRegistry(new.canonical_versions, new.replacements, changed)


def _additions(old: InterpretationRegistry, change: Augment) -> Sequence[Augment]:
    """The additions to each canonical version, newest last, in terms of its own types."""
    additions = [change]
    for number in range(len(old.replacements) - 1, -1, -1):
        newer = _added(old.canonical_versions[number + 1], additions[0])
        addition = Interpretation(
            name=CANONICAL,
            parent="",
            types=additions[0].types,
            mappings=additions[0].mappings,
            rules=additions[0].rules,
            conversions=additions[0].conversions,
        )
        rewritten = rewrite(addition, Scope((newer,)), old.replacements[number], back=True)
        parts = (*(rewritten.types, rewritten.mappings, rewritten.rules, rewritten.conversions),)
        additions.insert(0, Augment(CANONICAL, *parts))
    return additions


def _added(given: Interpretation, change: Augment) -> Interpretation:
    return _replace(
        given,
        types=(*given.types, *change.types),
        mappings=(*given.mappings, *change.mappings),
        rules=(*given.rules, *change.rules),
        conversions=(*given.conversions, *change.conversions),
    )


def _replace_type(old: InterpretationRegistry, change: ReplaceType) -> ApplyResult:
    replacement = Replacement(change.old, change.new.name, change.forth, change.back)
    problems = check_replacement(replacement, change.new, Types(old.canonical.types))
    for name in unchainable(old.canonical, change.old):
        message = (
            f"conversion {name} of the canonical model takes or gives {change.old} with others"
        )
        problems.append(Problem(code="replacement.invalid", message=message))
    if problems:
        return old, tuple(problems)
    model = replaced_canonical_model(old.canonical, replacement, change.new)
    new = InterpretationRegistry(
        (*old.canonical_versions, model), (*old.replacements, replacement), old.registered
    )
    return _verdict(old, new, CANONICAL, ())


def _remove(old: InterpretationRegistry, name: str) -> ApplyResult:
    old.named(name)
    below = old.children(name)
    if name == CANONICAL or below:
        what = f"{', '.join(below)} descend from it" if below else "it is the canonical model"
        message = f"{name} cannot be removed: {what}"
        return old, (Problem(code="interpretation.in_use", message=message),)
    held = {each: one for each, one in old.registered.items() if each != name}
    return InterpretationRegistry(old.canonical_versions, old.replacements, held), ()


def _verdict(
    old: InterpretationRegistry, new: InterpretationRegistry, name: str, below: Sequence[str]
) -> ApplyResult:
    """The new registry with warnings, or the old one with all errors of it and its descendants."""
    problems = list(new.checked(name).problems)
    for each in below:
        known = {problem.message for problem in old.checked(each).problems}
        for problem in new.checked(each).problems:
            if problem.severity == "error" and problem.code == "conversion.signature":
                continue  # it overrode nothing when it was declared; its behaviour does not change
            if problem.message not in known:
                problems.append(_replace(problem, message=f"{each}: {problem.message}"))
    problems.sort(key=lambda problem: problem.severity != "error")
    refused = any(problem.severity == "error" for problem in problems)
    return (old if refused else new), tuple(problems)


def _cyclic(declared: Interpretation) -> Problem:
    return Problem(
        code="interpretation.parent_cycle",
        message=f"{declared.name} descends from itself through {declared.parent}",
        hint="parents lead to root",
    )
