"""Lint of policies with a situation: never or always true, never cleared, windows that sources do
not fill, and `X AND Y for D`. [SI-13]

A condition is impossible if no values make it true: it is split into ways, each a set of atoms that
are true or false together, and of each value the comparisons with constants must fit, and of the
times of day some time of a clock. What is not understood counts as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from rapport.core.times import format_duration
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.situation_tree import (
    Aggregate,
    AndOf,
    Lasting,
    Not,
    OrOf,
    Quantified,
    Silence,
    SituationTree,
    nodes_of,
    tree_nodes,
)
from rapport.policy.language.situation_tree import Condition as WrittenCondition
from rapport.policy.language.situation_tree import Value as WrittenValue
from rapport.policy.language.tree import (
    MIRRORED_OPERATORS,
    NEGATED_OPERATORS,
    AttributeOf,
    ConceptDef,
    PolicyTree,
    SourceSpan,
)
from rapport.policy.lint.clock_times import WindowLiteral, can_be_shown
from rapport.policy.lint.satisfiability import (
    MOST_WAYS,
    Requirement,
    can_coincide,
    compatible,
    joined_ways,
    lint_repeated_actions,
    negation_of,
)
from rapport.policy.lint.times import warn_short_silence
from rapport.policy.ontology import Ontology, PushSource, resolve_kind
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    BoundAlias,
    ComparedValues,
    Condition,
    CountedInstances,
    CountedTerm,
    FixedValue,
    Negation,
    SituationPlan,
    Sustained,
    TimeWindow,
    Value,
    counted_aliases,
)


class _Literal(NamedTuple):
    """An atom of the plan that is true, or false."""

    atom: Condition
    holds: bool


_Way = tuple[_Literal, ...]
_Nodes = list[WrittenCondition | WrittenValue]


def lint_situation(
    tree: SituationTree, plan: SituationPlan, ontology: Ontology, faults: Diagnostics
) -> None:
    """Every warning and hint about a policy with a situation."""
    nodes = list(tree_nodes(tree))
    _lint_properties(tree.concepts, nodes, plan.bound_aliases(), faults)
    _lint_truth(tree, plan, faults)
    _lint_periods(tree.concepts, nodes, ontology, faults)
    _lint_last_for(nodes, faults)
    for actions in (tree.actions, tree.cleared_actions):
        lint_repeated_actions(actions, faults)


def lint_guard(tree: PolicyTree, guard: Condition, ontology: Ontology, faults: Diagnostics) -> None:
    """Every warning and hint about the `while` of a policy with conditions."""
    assert tree.guard is not None, "the plan has a guard"
    nodes = list(nodes_of(tree.guard))
    _lint_properties(tree.concepts, nodes, counted_aliases([guard]), faults)
    _lint_periods(tree.concepts, nodes, ontology, faults)
    _lint_last_for(nodes, faults)
    if is_impossible(guard):
        faults.warn(
            "policy.never_fires",
            "the policy never fires: what 'while' says is never true",
            first_place(tree.guard),
            hint="two lines are joined by AND; write OR between them if either is enough",
        )


def is_impossible(condition: Condition) -> bool:
    """Whether no readings, tables and times make the condition true."""
    return not any(_is_possible(way) for way in _ways(condition, True))


def is_implied(condition: Condition, by: Condition) -> bool:
    """Whether a condition is true whenever another is; unknown is not true. False where that is not
    found out."""
    ways = [way for way in _ways(by, True) if _is_possible(way)]
    return all(_follows(condition, True, way) for way in ways)


def _follows(condition: Condition, holds: bool, way: _Way) -> bool:
    """Whether a condition is true, or false, where all literals of the way hold."""
    match condition:
        case Negation(part):
            return _follows(part, not holds, way)
        case AllOf(parts) | AnyPart(parts):
            needed = all if isinstance(condition, AllOf) == holds else any
            if condition.is_atom and not all(_required(_Literal(part, True)) for part in parts):
                needed = all  # one unknown value makes the atom unknown
            return needed(_follows(part, holds, way) for part in parts)
        case Sustained(part):
            # What is false now does not last; of what is true now it is not known.
            return not holds and _follows(part, False, way)
        case _:
            return _literal_follows(_Literal(condition, holds), way)


def _literal_follows(literal: _Literal, way: _Way) -> bool:
    if isinstance(literal.atom, TimeWindow):
        return not can_be_shown(_windows([*way, literal._replace(holds=not literal.holds)]))
    compared = _required(literal)
    if compared is None:
        return literal in way
    value = msgspec.json.encode(compared[0])
    known = [_required(other) for other in way]
    own = [each[1] for each in known if each is not None and msgspec.json.encode(each[0]) == value]
    return bool(own) and not compatible([*own, negation_of(compared[1])])


def _lint_truth(tree: SituationTree, plan: SituationPlan, faults: Diagnostics) -> None:
    place = first_place(tree.situation)
    if is_impossible(plan.situation):
        faults.warn(
            "policy.never_fires",
            "the situation is never true: its conditions exclude each other",
            place,
            hint="two lines are joined by AND; write OR between them if either is enough",
        )
    elif is_impossible(Negation(plan.situation)):
        faults.warn(
            "policy.always_true",
            "the situation is true of everything that is known",
            place,
            hint="write AND between its parts if all of them must hold",
        )
    if plan.cleared_by is None or tree.cleared_by is None:
        return
    cleared = first_place(tree.cleared_by)
    if is_impossible(plan.cleared_by):
        faults.warn(
            "policy.never_cleared",
            "what clears the situation is never true: its conditions exclude each other",
            cleared,
            hint="two lines are joined by AND; write OR between them if either is enough",
        )
    elif is_implied(plan.situation, plan.cleared_by):
        faults.warn(
            "policy.never_cleared",
            "where this is true the situation is true as well, so it never ends",
            cleared,
            hint="say what is true when it is over, such as a value on the other side of the limit",
        )


def _ways(condition: Condition, holds: bool) -> list[_Way]:
    """The sets of atoms that make the condition true, or false; one empty set for too many."""
    match condition:
        case Negation(part):
            return _ways(part, not holds)
        case AllOf(parts) | AnyPart(parts):
            inner = [_ways(part, holds) for part in parts]
            if isinstance(condition, AllOf) == holds:
                return joined_ways(inner)
            found = [way for ways in inner for way in ways]
            return found if len(found) <= MOST_WAYS else [()]
        case Sustained(part):
            # What lasts is true now; of what does not last nothing is known now.
            return _ways(part, True) if holds else [()]
        case CountedInstances() if is_impossible(condition.condition):
            counted = condition.number <= 0
            is_true = counted if condition.quantifier == "at least" else True
            return [()] if is_true == holds else []
        case _:
            return [(_Literal(condition, holds),)]


def _is_possible(way: _Way) -> bool:
    required: dict[bytes, list[Requirement]] = {}
    truths: dict[bytes, bool] = {}
    if not can_be_shown(_windows(way)):
        return False
    for literal in way:
        compared = _required(literal)
        if compared is not None:
            value, requirement = compared
            required.setdefault(msgspec.json.encode(value), _bounds(value)).append(requirement)
            continue
        key = msgspec.json.encode(literal.atom)
        if truths.setdefault(key, literal.holds) != literal.holds:
            return False
    return all(compatible(requirements) for requirements in required.values())


def _windows(way: Iterable[_Literal]) -> list[WindowLiteral]:
    """The windows of time that are open, or not."""
    return [WindowLiteral(one.atom, one.holds) for one in way if isinstance(one.atom, TimeWindow)]


def _required(literal: _Literal) -> tuple[Value, Requirement] | None:
    """The value and what it must be, of a comparison with a constant."""
    atom = literal.atom
    if not isinstance(atom, ComparedValues):
        return None
    operator = atom.operator if literal.holds else NEGATED_OPERATORS[atom.operator]
    if isinstance(atom.right, FixedValue):
        return atom.left, Requirement(operator, atom.right.value)
    if isinstance(atom.left, FixedValue):
        return atom.right, Requirement(MIRRORED_OPERATORS[operator], atom.left.value)
    return None


def _bounds(value: Value) -> list[Requirement]:
    """What every number of the value satisfies: a count is not negative."""
    is_count = isinstance(value, CountedTerm)
    is_count |= isinstance(value, AggregateValue) and value.function == "count"
    return [Requirement(">=", 0.0)] if is_count else []


def _lint_properties(
    concepts: Iterable[ConceptDef],
    nodes: _Nodes,
    aliases: Iterable[BoundAlias],
    faults: Diagnostics,
) -> None:
    """Warns about aliases whose properties exclude each other."""
    places = {concept.alias: concept.place for concept in concepts}
    for node in nodes:
        if isinstance(node, Quantified):
            places.setdefault(node.alias, node.place)
    for bound in aliases:
        if not can_coincide(bound.constraints, ()):
            faults.warn(
                "policy.never_satisfied",
                f"no {bound.concept} can have all properties of {bound.alias!r}",
                places.get(bound.alias),
                hint="properties of one alias must all hold; use 'is one of' in the situation",
            )


def _lint_periods(
    definitions: Iterable[ConceptDef], nodes: _Nodes, ontology: Ontology, faults: Diagnostics
) -> None:
    """Warns about aggregates and silences that the periods of their sources do not allow."""
    concepts = {concept.alias: concept.concept for concept in definitions}
    concepts |= {node.alias: node.concept for node in nodes if isinstance(node, Quantified)}
    for node in nodes:
        match node:
            case Aggregate(of=AttributeOf(attribute, alias)) if node.function != "count":
                for source in _sources(ontology, concepts[alias], attribute):
                    _lint_window(node, source, faults)
            case Silence(attribute, alias):
                for source in _sources(ontology, concepts[alias], attribute):
                    warn_short_silence(node.duration_ms, source, node.place, faults)
            case _:
                pass


def _sources(ontology: Ontology, concept: str, attribute: str) -> Iterator[PushSource]:
    """The sources of an attribute that declare a period, of all attributes if it is empty."""
    kind = resolve_kind(ontology, concept)
    general = concept if kind is None else kind.concept
    for source in ontology.sources.values():
        named = attribute in source.attributes if attribute else True
        if source.concept == general and named and source.period_ms:
            yield source


def _lint_window(value: Aggregate, source: PushSource, faults: Diagnostics) -> None:
    least = value.at_least or (2 if value.function in ("change", "rate") else 1)
    needed = least * source.period_ms
    if value.window_ms >= needed:
        return
    window, period = format_duration(value.window_ms), format_duration(source.period_ms)
    readings = "a reading" if least == 1 else f"{least} readings"
    faults.warn(
        "policy.window_shorter_than_period",
        f"{window} need not hold {readings} of {source.name!r}, whose period is {period}",
        value.place,
        hint=f"take at least the last {format_duration(needed)}",
    )


def _lint_last_for(nodes: _Nodes, faults: Diagnostics) -> None:
    """Points at `X AND Y for D`, where only Y has to last."""
    lines = faults.text.splitlines()
    for node in nodes:
        if not isinstance(node, AndOf) or not isinstance(node.parts[-1], Lasting):
            continue
        last, before = node.parts[-1], node.parts[-2]
        place = last.place
        enclosed = lines[place.line - 1][: place.column - 1].rstrip().endswith("(")
        if enclosed or isinstance(before, Lasting) or not _share_a_line(before, last):
            continue
        duration = format_duration(last.duration_ms)
        whole = print_situation_condition(AndOf((*node.parts[:-1], last.part)))
        faults.add(
            "policy.only_last_for",
            f"only {print_situation_condition(last.part)} has to last {duration}",
            place,
            hint=f"if all of it has to: ({whole}) for {duration}; if not, put parentheses "
            "around the last part with its 'for'",
            severity="hint",
        )


def _share_a_line(first: WrittenCondition, second: Lasting) -> bool:
    """Whether two parts of an AND stand in one line of the text."""
    last = max(place.line for place in _places(first))
    return last == second.place.line


def first_place(condition: WrittenCondition) -> SourceSpan:
    """The place of the first atom of a condition."""
    return next(_places(condition))


def _places(condition: WrittenCondition) -> Iterator[SourceSpan]:
    match condition:
        case AndOf(parts) | OrOf(parts):
            for part in parts:
                yield from _places(part)
        case Not(part):
            yield from _places(part)
        case _:
            yield condition.place


def longest_look_back(tree: SituationTree) -> tuple[int, SourceSpan] | None:
    """The longest time that a condition looks back over, with its place; None without any."""
    found = [
        (node.window_ms if isinstance(node, Aggregate) else node.duration_ms, node.place)
        for node in tree_nodes(tree)
        if isinstance(node, Aggregate | Silence | Lasting)
    ]
    return max(found, key=lambda each: each[0], default=None)
