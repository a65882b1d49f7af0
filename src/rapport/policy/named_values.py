"""The values that texts of actions may name: `{temperature of F}`, aggregates and counts of a
situation, instances that its quantifiers count, and `{why}`. Pure. [SI-5]

A text is checked against the vocabulary of its policy. The values that the texts of a policy really
name are taken when a detection is made (`engine/value_record.py`), not when somebody is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.detection import phrase_key
from rapport.core.times import format_duration
from rapport.policy.compiler.compile import CompiledPolicy, CompiledSituation
from rapport.policy.compiler.situation_planner import counted_terms
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import SyntaxFault, TokenCursor, tokenize_situation
from rapport.policy.language.printer import print_expression
from rapport.policy.language.situation_conditions import ConditionReader
from rapport.policy.language.situation_printer import (
    print_situation_condition,
    print_situation_value,
)
from rapport.policy.language.situation_tree import OrOf, ParsedPolicy, named_instances
from rapport.policy.ontology import Ontology
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    ComparedValues,
    Condition,
    CountedInstances,
    CountedTerm,
    FixedValue,
    NamedAtTurns,
    PresentValue,
    Sustained,
    Value,
    condition_nodes,
    counted_aliases,
    inner_nodes,
)
from rapport.units.quantities import converter, shown_unit, unit_named

WHY, BEGAN, DURATION = "why", "began", "duration"
_SHOWN = ("number", "text", "boolean")
"""Types of attributes that a text can show."""
_FIXED_TEMPERATURE = re.compile(r"('[^']*')|(?<=\d )deg[CF]\b(?!/)")
"""Quoted texts, and the units of temperatures after their number."""


class NamedQuantity(msgspec.Struct, frozen=True):
    """A value that a text may name, with the unit in which it is shown."""

    value: PresentValue | AggregateValue | CountedTerm
    unit: str = ""
    scale: float = 1.0
    """From the canonical unit to this one."""


class WhyPart(msgspec.Struct, frozen=True):
    """One alternative of what a policy asks for: its text, the comparisons that refute it, and the
    values to show beside it.
    """

    text: str
    comparisons: tuple[ComparedValues, ...] = ()
    values: tuple[tuple[str, NamedQuantity], ...] = ()


class NeededValues(msgspec.Struct, frozen=True):
    """The values that the texts of a policy name, by their phrase."""

    values: Mapping[str, NamedQuantity] = {}
    why: tuple[WhyPart, ...] = ()
    """Empty: no text asks why."""

    def all_values(self) -> list[PresentValue | AggregateValue]:
        """Every value of readings and tables that has to be known when a detection is made."""
        found = [value for _, value in self._named() if not isinstance(value, CountedTerm)]
        for part in self.why:
            found += [side for each in part.comparisons for side in _sides(each)]
        return found

    def at_turns(self) -> NamedAtTurns:
        """What only the operator knows when a situation begins or ends."""
        named = self._named()
        terms = {name: value for name, value in named if isinstance(value, CountedTerm)}
        of = (value for _, value in named if not isinstance(value, CountedTerm))
        aliases = {one.of.alias if isinstance(one, AggregateValue) else one.alias for one in of}
        return NamedAtTurns(terms, frozenset(aliases))

    def _named(self) -> list[tuple[str, PresentValue | AggregateValue | CountedTerm]]:
        found = [(name, each.value) for name, each in self.values.items()]
        return found + [(name, each.value) for part in self.why for name, each in part.values]


NOTHING_NEEDED = NeededValues()


def vocabulary(compiled: CompiledPolicy, ontology: Ontology) -> dict[str, NamedQuantity]:
    """The values that texts of a policy may name, by phrase: attributes of its aliases, and the
    aggregates of its expression over them, with or without their window where that is clear. Of a
    situation also its counts of terms, and the instances of quantifiers with their attributes.
    """
    concepts = _concepts(compiled, ontology)
    quantified = quantified_concepts(compiled)
    concepts |= quantified
    found: dict[str, NamedQuantity] = {}
    streams = ontology.streams()
    for alias, concept in concepts.items():
        for attribute, kind in ontology.concepts.get(concept, {}).items():
            if kind in _SHOWN:
                name = f"{concept}.{attribute}"
                value = PresentValue(alias, concept, attribute, name if name in streams else None)
                unit = ontology.units.get(concept, {}).get(attribute, "")
                found[f"{attribute} of {alias}"] = NamedQuantity(value, unit)
    found |= _aggregates(compiled, concepts, ontology)
    if isinstance(compiled, CompiledSituation):
        found |= _counts(compiled, ontology)
        found |= {
            alias: NamedQuantity(PresentValue(alias, concept, "id"))
            for alias, concept in quantified.items()
        }
    return {phrase_key(phrase): value for phrase, value in found.items()}


def needed_values(
    fields: Iterable[str], compiled: CompiledPolicy, ontology: Ontology
) -> NeededValues:
    """What the fields of its texts need of a policy; fields that it does not have are left out."""
    known = vocabulary(compiled, ontology)
    wanted = {phrase_key(field): canonical_phrase(field, compiled.tree) for field in fields}
    for field in [*wanted]:
        alias, dot, _column = field.partition(".")
        if dot and " " not in field:
            wanted[alias] = alias
    named = {phrase: known[own] for phrase, own in sorted(wanted.items()) if own in known}
    why = _why_parts(compiled, ontology) if WHY in wanted else ()
    return NeededValues(named, why)


def canonical_phrase(field: str, tree: ParsedPolicy) -> str:
    """The key of a field in the vocabulary of a policy, however the text writes a count of a
    term.
    """
    if not field.lstrip().lower().startswith("count of ("):
        return phrase_key(field)
    is_whole = " in the last " in " ".join(field.split())
    whole = field if is_whole else f"{field} in the last 1 h"
    faults = Diagnostics(tree.name, whole)
    tokens = tokenize_situation(whole, 1, faults)
    reader = ConditionReader(
        TokenCursor(tokens), frozenset(concept.alias for concept in tree.concepts)
    )
    try:
        found = print_situation_value(reader.value(0))
        reader.expect_end()
    except SyntaxFault:
        return phrase_key(field)
    return phrase_key(found if whole == field else found.rpartition(" in the last ")[0])


def moments_of(compiled: CompiledPolicy) -> tuple[str, ...]:
    """The other names that texts of a policy may use, apart from those of every detection."""
    if isinstance(compiled, CompiledSituation):
        return (WHY, BEGAN, DURATION)
    return (WHY,)


def _concepts(compiled: CompiledPolicy, ontology: Ontology) -> dict[str, str]:
    """Concepts by alias."""
    if isinstance(compiled, CompiledSituation):
        return {bound.alias: bound.concept for bound in compiled.plan.aliases}
    kinds = ontology.kinds
    return {
        each.alias: kinds[each.concept].concept if each.concept in kinds else each.concept
        for each in compiled.tree.concepts
    }


def quantified_concepts(compiled: CompiledPolicy) -> dict[str, str]:
    """By alias the concepts of the quantifiers of which texts can name an instance; none for an
    alias that stands for several concepts.
    """
    if not isinstance(compiled, CompiledSituation):
        return {}
    tree = compiled.tree
    named = named_instances(tree.situation) | named_instances(tree.cleared_by)
    found: dict[str, set[str]] = {}
    for bound in counted_aliases(compiled.plan.conditions()):
        if bound.alias in named:
            found.setdefault(bound.alias, set()).add(bound.concept)
    return {alias: concepts.pop() for alias, concepts in found.items() if len(concepts) == 1}


def _counts(compiled: CompiledSituation, ontology: Ontology) -> dict[str, NamedQuantity]:
    """Counts of terms as the expression writes them, with or without the window."""
    found: dict[str, NamedQuantity] = {}
    short: dict[str, set[CountedTerm]] = {}
    for written, term in counted_terms(compiled.tree, ontology):
        phrase = print_situation_value(written)
        found[phrase] = NamedQuantity(term)
        short.setdefault(phrase.rpartition(" in the last ")[0], set()).add(term)
    for head, terms in short.items():
        if len(terms) == 1:
            found[head] = NamedQuantity(terms.pop())
    return found


def _aggregates(
    compiled: CompiledPolicy, concepts: Mapping[str, str], ontology: Ontology
) -> dict[str, NamedQuantity]:
    """Aggregates over its aliases of a situation, or of the guard of a policy with conditions."""
    found: dict[str, NamedQuantity] = {}
    short: dict[str, set[AggregateValue]] = {}
    for node in condition_nodes(compiled.plan.conditions()):
        if not isinstance(node, AggregateValue) or node.of.alias not in concepts:
            continue
        rank = "" if node.percentile is None else f" {node.percentile:g}"
        head = f"{node.function}{rank} of {node.of.attribute} of {node.of.alias}"
        phrase = f"{head} in the last {format_duration(node.window_ms)}"
        named = _quantity(node, ontology)
        found[phrase] = named
        found[f"{phrase} (at least {node.at_least} readings)"] = named
        short.setdefault(head, set()).add(node)
    for head, nodes in short.items():
        if len(nodes) == 1:
            found[head] = _quantity(nodes.pop(), ontology)
    return found


def _quantity(value: PresentValue | AggregateValue, ontology: Ontology) -> NamedQuantity:
    """The value in its own unit; differences of temperatures in K, rates per hour."""
    of = value.of if isinstance(value, AggregateValue) else value
    unit = ontology.units.get(of.concept, {}).get(of.attribute, "")
    if not isinstance(value, AggregateValue) or value.function not in ("count", "change", "rate"):
        return NamedQuantity(value, unit)
    if value.function == "count":
        return NamedQuantity(value)
    scale = 1.0
    if unit and unit_named(unit).offset:
        unit, scale = "K", converter(unit, "K").scale
    return NamedQuantity(value, f"{unit}/h" if value.function == "rate" else unit, scale)


# --- why ---


def _why_parts(compiled: CompiledPolicy, ontology: Ontology) -> tuple[WhyPart, ...]:
    """The alternatives of a situation; a policy with conditions is one."""
    if not isinstance(compiled, CompiledSituation):
        return (WhyPart(_shown(print_expression(compiled.tree.condition))),)
    plan, tree = compiled.plan, compiled.tree.situation
    parts: list[tuple[str, Condition]] = [(_shown(print_situation_condition(tree)), plan.situation)]
    if isinstance(tree, OrOf) and isinstance(plan.situation, AnyPart):
        texts = [_shown(print_situation_condition(each)) for each in tree.parts]
        if len(texts) == len(plan.situation.parts):
            parts = list(zip(texts, plan.situation.parts, strict=True))
    aliases = {bound.alias for bound in plan.aliases}
    named = set(named_instances(tree))
    counts = {
        term: print_situation_value(written)
        for written, term in counted_terms(compiled.tree, ontology)
    }
    return tuple(_why_part(text, part, aliases, ontology, named, counts) for text, part in parts)


def _shown(text: str) -> str:
    """A condition as people read it."""
    return _FIXED_TEMPERATURE.sub(lambda one: one[1] or shown_unit(one[0]), text)


def _why_part(
    text: str,
    part: Condition,
    aliases: set[str],
    ontology: Ontology,
    named: set[str],
    counts: Mapping[CountedTerm, str],
) -> WhyPart:
    """`named`: the aliases of quantifiers that can be named; `counts`: the phrases of counts."""
    values: dict[str, NamedQuantity] = {}
    waiting: list[Condition | Value] = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, PresentValue | AggregateValue):
            of = node.of if isinstance(node, AggregateValue) else node
            kind = ontology.concepts.get(of.concept, {}).get(of.attribute, "text")
            is_shown = isinstance(node, AggregateValue) or kind in _SHOWN
            if of.alias in aliases and is_shown:
                name = f"{of.attribute} of {of.alias}"
                if isinstance(node, AggregateValue):
                    name = f"{node.function} of {name}"
                values[name] = _quantity(node, ontology)
        elif isinstance(node, CountedTerm):
            if node in counts:
                values[counts[node].rpartition(" in the last ")[0]] = NamedQuantity(node)
        else:
            if isinstance(node, CountedInstances) and node.bound.alias in named:
                bound = node.bound
                values[bound.alias] = NamedQuantity(PresentValue(bound.alias, bound.concept, "id"))
            waiting += reversed(inner_nodes(node))
    return WhyPart(text, tuple(_refuting(part)), tuple(values.items()))


def _refuting(part: Condition) -> Iterable[ComparedValues]:
    """Comparisons with constants that must be true for the whole to be true."""
    match part:
        case ComparedValues() if all(
            isinstance(side, PresentValue | AggregateValue | FixedValue)
            for side in (part.left, part.right)
        ):
            yield part
        case AllOf():
            for inner in part.parts:
                yield from _refuting(inner)
        case Sustained():
            yield from _refuting(part.part)
        case _:
            return


def _sides(compared: ComparedValues) -> list[PresentValue | AggregateValue]:
    sides = (compared.left, compared.right)
    return [side for side in sides if isinstance(side, PresentValue | AggregateValue)]
