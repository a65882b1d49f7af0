"""What is right by the rules yet probably not meant: hints and warnings on a checked policy.
[PO-12]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from rapport.core.times import format_duration
from rapport.policy.language.faults import Faults
from rapport.policy.language.tree import Place, PolicyTree
from rapport.policy.ontology import Ontology
from rapport.policy.plan import (
    Absent,
    Child,
    Constraint,
    LastingTerm,
    Plan,
    Sequence,
    Side,
    SilentTerm,
    TermStep,
)

Constraints = Mapping[str, tuple[Constraint, ...]]


def lint_policy(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Faults
) -> None:
    """Notes unused aliases, aliases that can coincide, properties that exclude each other, and
    actions said twice.

    `used` are the aliases that some condition names.
    """
    _unused(tree, used, faults)
    _contradictions(tree, constraints, faults)
    _coincidences(tree, constraints, used, faults)
    _pointless_distinct(tree, faults)
    _repeated_actions(tree, faults)


def lint_periods(plan: Plan, ontology: Ontology, place: Place | None, faults: Faults) -> None:
    """Warns, at the absence, when it is decided sooner than a source it depends on promises to be
    heard.
    """
    for name, source in ontology.sources.items():
        windows = [window for stream, window in _waits(plan) if stream in source.streams]
        if not windows or source.period_ms <= min(windows):
            continue
        window, period = format_duration(min(windows)), format_duration(source.period_ms)
        faults.add(
            "policy.window_shorter_than_period",
            f"the window of {window} is shorter than the period of {name!r}, {period}",
            place,
            hint=f"{name} need not report within it; widen the window to at least {period}",
            severity="warning",
        )


def lint_silence(plan: Plan, ontology: Ontology, place: Place | None, faults: Faults) -> None:
    """Warns when a silence is shorter than the period in which a source promises to be heard."""
    for term in (term for term in plan.terms if isinstance(term, SilentTerm)):
        for name, source in ontology.sources.items():
            if not source.streams & set(term.streams) or source.period_ms < term.duration_ms:
                continue
            silence, period = format_duration(term.duration_ms), format_duration(source.period_ms)
            faults.add(
                "policy.window_shorter_than_period",
                f"a silence of {silence} is usual for {name!r}, whose period is {period}",
                place,
                hint=f"wait longer than {period}",
                severity="warning",
            )


def lint_following_silence(plan: Plan, place: Place | None, faults: Faults) -> None:
    """Warns of `X FOLLOWED-BY no event of S for D` that never holds: X is an event of S itself, so
    its silence takes at least D, and the window is over by then.
    """
    for clause in plan.clauses:
        for child in clause.children:
            if not isinstance(child, Sequence) or child.first_negated or child.second_negated:
                continue
            first, second = plan.terms[child.first], plan.terms[child.second]
            window = next(w for w in (child.window_ms, clause.window_ms, plan.window_ms) if w)
            own = {side.stream for side in _given(first) if side.alias == second.first.alias}
            if not isinstance(second, SilentTerm) or not own & set(second.streams):
                continue
            if second.duration_ms >= window:
                silence, shown = format_duration(second.duration_ms), format_duration(window)
                faults.add(
                    "policy.never_follows",
                    f"a silence of {silence} never follows within {shown}",
                    place,
                    hint=f"give it more time: ... for {silence} within TIME, longer than {silence}",
                    severity="warning",
                )


def _given(term: TermStep) -> tuple[Side, ...]:
    """The sides whose events a term ends with; a duration and a silence end later than theirs."""
    is_later = isinstance(term, LastingTerm | SilentTerm)
    return () if is_later else (term.first, term.second)


def _waits(plan: Plan) -> Iterator[tuple[str, int]]:
    """Each stream whose absence is asked for, with the time that is waited for it."""
    for clause in plan.clauses:
        around = plan.window_ms if clause.window_ms is None else clause.window_ms
        for child in clause.children:
            own = child.window_ms if isinstance(child, Sequence) else None
            wait = around if own is None else own
            yield from ((stream, wait) for stream in plan.streams_of(_absent(child)))


def _absent(child: Child) -> list[int]:
    match child:
        case Absent(term):
            return [term]
        case Sequence():
            sides = ((child.first, child.first_negated), (child.second, child.second_negated))
            return [number for number, negated in sides if negated]
        case _:
            return []


def can_coincide(first: tuple[Constraint, ...], second: tuple[Constraint, ...]) -> bool:
    """False when no instance can satisfy both; True when one might."""
    return not any(
        _exclude(one, other) or _exclude(other, one) for one in first for other in second
    )


def _exclude(one: Constraint, other: Constraint) -> bool:
    """True when `one` names a constant that `other` rules out, or both bound a number from opposite
    sides."""
    if one.attribute != other.attribute:
        return False
    if one.operator == "=":
        return not _satisfies(one.value, other)
    if isinstance(one.value, str) or isinstance(other.value, str):
        return False
    if one.operator in ("<", "<=") and other.operator in (">", ">="):
        touching = one.operator == "<=" and other.operator == ">="
        return one.value < other.value or (one.value == other.value and not touching)
    return False


def _satisfies(value: str | float, constraint: Constraint) -> bool:
    if constraint.operator == "=":
        return value == constraint.value
    if constraint.operator == "!=":
        return value != constraint.value
    if isinstance(value, str) or isinstance(constraint.value, str):
        return True
    return {
        "<": value < constraint.value,
        ">": value > constraint.value,
        "<=": value <= constraint.value,
        ">=": value >= constraint.value,
    }[constraint.operator]


def _unused(tree: PolicyTree, used: frozenset[str], faults: Faults) -> None:
    for concept in tree.concepts:
        if concept.alias not in used:
            faults.add(
                "policy.unused_alias",
                f"no condition speaks of {concept.alias!r}",
                concept.alias_place,
                hint="leave it out",
                severity="warning",
            )


def _contradictions(tree: PolicyTree, constraints: Constraints, faults: Faults) -> None:
    for concept in tree.concepts:
        own = constraints.get(concept.alias, ())
        if any(not can_coincide((one,), (other,)) for one, other in combinations(own, 2)):
            faults.add(
                "policy.never_satisfied",
                f"no {concept.concept} can have all properties of {concept.alias!r}",
                concept.place,
                hint="properties of one alias must all hold; use OR of two aliases instead",
                severity="warning",
            )


def _coincidences(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Faults
) -> None:
    named = [concept for concept in tree.concepts if concept.alias in used]
    apart = {frozenset(pair) for pair in tree.distinct}
    for one, other in combinations(named, 2):
        if one.concept != other.concept or frozenset((one.alias, other.alias)) in apart:
            continue
        if can_coincide(constraints.get(one.alias, ()), constraints.get(other.alias, ())):
            faults.add(
                "policy.can_coincide",
                f"{one.alias!r} and {other.alias!r} can be the same {one.concept}",
                other.alias_place,
                hint=f"add the line 'distinct {one.alias}, {other.alias}' if that is not meant",
                severity="hint",
            )


def _pointless_distinct(tree: PolicyTree, faults: Faults) -> None:
    concepts = {concept.alias: concept for concept in tree.concepts}
    for first, second in tree.distinct:
        if concepts[first].concept != concepts[second].concept:
            faults.add(
                "policy.pointless_distinct",
                f"{first!r} and {second!r} are of different concepts and never the same",
                concepts[second].alias_place,
                hint=f"leave 'distinct {first}, {second}' out",
                severity="hint",
            )


def _repeated_actions(tree: PolicyTree, faults: Faults) -> None:
    seen: set[str] = set()
    for action in tree.actions:
        if action.phrase in seen:
            faults.add(
                "policy.repeated_action",
                f"the action {action.phrase!r} stands twice",
                action.place,
                hint="leave one out",
                severity="warning",
            )
        seen.add(action.phrase)
