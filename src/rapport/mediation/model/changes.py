"""Changes of interpretations at run time: all checked, in force as a whole or not at all. [ME-6]

`apply_change` gives the new value and every problem. With an error among them the value given back
is the old one; warnings and hints do not stop a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem, nearest_names
from rapport.mediation.model.augmenting import Expectation
from rapport.mediation.model.checking import Checked
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import (
    DIRECTIONS,
    ROOT,
    Interpretation,
    Mapping,
    Rule,
)
from rapport.mediation.model.interpretations import Held, Interpretations
from rapport.mediation.model.replacement import (
    Replacement,
    check_replacement,
    replaced_root,
    rewrite,
    unchainable,
)
from rapport.mediation.model.scope import Scope
from rapport.mediation.model.types import ComplexType, Type, Types

_replace = msgspec.structs.replace
_MOST_ROUNDS = 100
"""Of injecting; each round settles at least one path, so this is never reached in practice."""


class Declare(msgspec.Struct, frozen=True, tag="declare"):
    """A new interpretation, or a known one said anew; written for root as it is now, or for the
    root its parent was written for.
    """

    interpretation: Interpretation


class Augment(msgspec.Struct, frozen=True, tag="augment"):
    """Adds to an interpretation (often root); descendants inherit where nothing of their own
    conflicts.
    """

    name: str
    types: tuple[Type, ...] = ()
    mappings: tuple[Mapping, ...] = ()
    rules: tuple[Rule, ...] = ()
    conversions: tuple[Conversion, ...] = ()


class ReplaceType(msgspec.Struct, frozen=True, tag="replace"):
    """Root's type `old` gives way to `new`; who was written for `old` does not notice."""

    old: str
    new: ComplexType
    forth: Conversion
    back: Conversion


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Takes an interpretation away; refused while others descend from it."""

    name: str


Change = Declare | Augment | ReplaceType | Remove
Outcome = tuple[Interpretations, tuple[Problem, ...]]


def apply_change(old: Interpretations, change: Change) -> Outcome:
    """The interpretations after the change, or the old ones with the errors that forbid it.

    Cost: all checks of the interpretation and of its descendants.
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


def load(interpretations: Iterable[Interpretation]) -> tuple[Interpretations, dict[str, Outcome]]:
    """Takes in many, parents first; a faulty one refuses itself and those below it only.

    The second part says, by name, what was found; root may be among them, else it is empty.
    """
    waiting = {each.name: each for each in interpretations}
    root = waiting.pop(ROOT, None)
    now = Interpretations()
    found: dict[str, Outcome] = {}
    if root is not None:
        parts = (root.types, root.mappings, root.rules, root.conversions)
        now, problems = apply_change(now, Augment(ROOT, *parts))
        found[ROOT] = now, problems
    while waiting:
        ready = [each for each in waiting.values() if each.parent not in waiting]
        for each in ready or list(waiting.values()):
            del waiting[each.name]
            if not ready:
                found[each.name] = now, (_cyclic(each),)
                continue
            now, problems = apply_change(now, Declare(each))
            found[each.name] = now, problems
    return now, found


def _declare(old: Interpretations, declared: Interpretation) -> Outcome:
    problem = _bad_place(old, declared)
    if problem is not None:
        return old, (problem,)
    version = len(old.roots) - 1
    if declared.parent != ROOT:
        version = old.root_version(declared.parent)
    held = {**old.held, declared.name: Held(declared, version)}
    for below in old.descendants(declared.name):
        held[below] = Held(old.held[below].interpretation, version)
    new = Interpretations(old.roots, old.replacements, held)
    return _verdict(old, new, declared.name, new.descendants(declared.name))


def _bad_place(old: Interpretations, declared: Interpretation) -> Problem | None:
    """Why it cannot stand where it wants to."""
    if declared.name == ROOT or not declared.name:
        return Problem(
            code="interpretation.bad_name",
            message=f"{declared.name!r} cannot be declared",
            hint="root grows by augmentation; types of it are replaced",
        )
    if declared.parent not in old:
        nearest = nearest_names(declared.parent, old.names, 1)
        return Problem(
            code="interpretation.unknown_parent",
            message=f"{declared.name}: there is no interpretation {declared.parent!r} in force",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "declare it, or mend its faults",
        )
    if declared.parent == declared.name or declared.parent in old.descendants(declared.name):
        return _cyclic(declared)
    return None


def _augment(old: Interpretations, change: Augment) -> Outcome:
    target = old.named(change.name)
    held = dict(old.held)
    roots = list(old.roots)
    if change.name == ROOT:
        for version, addition in enumerate(_additions(old, change)):
            roots[version] = _added(roots[version], addition)
    else:
        version = old.root_version(change.name)
        held[change.name] = Held(_added(target, change), version)
    new = Interpretations(tuple(roots), old.replacements, held)
    for name in old.descendants(change.name):
        new = _keep_mappings(old, new, name, change.name)
        new = _keep_descendant(old, new, name, change.name)
    return _verdict(old, new, change.name, new.descendants(change.name))


def _keep_descendant(
    old: Interpretations, new: Interpretations, name: str, above: str
) -> Interpretations:
    """Injects into one descendant until it does what it did.

    What it is to do follows from the declarations alone. What was injected into interpretations
    between is meant for their own paths; where that changes a descendant, it is injected against.
    """
    before = old.checked(name)
    at = before.lineage.index(above)
    chain, augmented = list(old.chain(name)), new.chain(name)[at]
    added = augmented.rules[len(chain[at].rules) :]
    if not added:
        return new
    chain[at] = augmented
    expectation = Expectation(before, Checked(chain), added, above)
    for each_round in range(_MOST_ROUNDS):
        missing = expectation.rules_to_inject(Checked(new.chain(name)), exactly=each_round > 0)
        if not missing:
            break
        held = new.held[name]
        kept = _replace(held.interpretation, rules=(*held.interpretation.rules, *missing))
        changed = {**new.held, name: Held(kept, held.root_version)}
        new = Interpretations(new.roots, new.replacements, changed)
    return new


def _keep_mappings(
    old: Interpretations, new: Interpretations, name: str, above: str
) -> Interpretations:
    """The same for mappings: a new one of a subtype counts more than a descendant's own of its
    super-type, so the subtype gets the descendant's own.
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
    kept: list[Mapping] = []
    for each in before.scope.types.complex_names:
        for direction in DIRECTIONS:
            expected = natural.mapping_of(each, direction)
            mine = before.scope.mapping_of(each, direction)
            if expected in added and mine in own:
                expected = mine
            if expected is not None and now.mapping_of(each, direction) != expected:
                kept.append(_replace(expected, source=each))
    held = new.held[name]
    kept_here = _replace(held.interpretation, mappings=(*held.interpretation.mappings, *kept))
    changed = {**new.held, name: Held(kept_here, held.root_version)} if kept else new.held
    return Interpretations(new.roots, new.replacements, changed)


def _additions(old: Interpretations, change: Augment) -> Sequence[Augment]:
    """What is added to each version of root, newest last; older ones hear of the older types."""
    additions = [change]
    for number in range(len(old.replacements) - 1, -1, -1):
        newer = _added(old.roots[number + 1], additions[0])
        asked = Interpretation(
            name=ROOT,
            parent="",
            types=additions[0].types,
            mappings=additions[0].mappings,
            rules=additions[0].rules,
            conversions=additions[0].conversions,
        )
        said = rewrite(asked, Scope((newer,)), old.replacements[number], back=True)
        parts = (said.types, said.mappings, said.rules, said.conversions)
        additions.insert(0, Augment(ROOT, *parts))
    return additions


def _added(given: Interpretation, change: Augment) -> Interpretation:
    return _replace(
        given,
        types=(*given.types, *change.types),
        mappings=(*given.mappings, *change.mappings),
        rules=(*given.rules, *change.rules),
        conversions=(*given.conversions, *change.conversions),
    )


def _replace_type(old: Interpretations, change: ReplaceType) -> Outcome:
    replacement = Replacement(change.old, change.new.name, change.forth, change.back)
    problems = check_replacement(replacement, change.new, Types(old.root.types))
    for name in unchainable(old.root, change.old):
        message = f"conversion {name} of root takes or gives {change.old} with others"
        problems.append(Problem(code="replacement.invalid", message=message))
    if problems:
        return old, tuple(problems)
    root = replaced_root(old.root, replacement, change.new)
    new = Interpretations((*old.roots, root), (*old.replacements, replacement), old.held)
    return _verdict(old, new, ROOT, ())


def _remove(old: Interpretations, name: str) -> Outcome:
    old.named(name)
    below = old.children(name)
    if name == ROOT or below:
        what = f"{', '.join(below)} descend from it" if below else "it is root"
        message = f"{name} cannot be removed: {what}"
        return old, (Problem(code="interpretation.in_use", message=message),)
    held = {each: one for each, one in old.held.items() if each != name}
    return Interpretations(old.roots, old.replacements, held), ()


def _verdict(
    old: Interpretations, new: Interpretations, name: str, below: Sequence[str]
) -> Outcome:
    """New with its warnings, or old with all errors of it and of those below."""
    problems = list(new.checked(name).problems)
    for each in below:
        known = {problem.message for problem in old.checked(each).problems}
        for problem in new.checked(each).problems:
            if problem.severity == "error" and problem.code == "conversion.signature":
                continue  # overridden before the parent had one of this name: nothing changes
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
