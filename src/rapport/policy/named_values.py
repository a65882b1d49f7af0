"""The values that texts of actions may name: `{temperature of F}`, aggregates of a situation, and
`{why}`. Pure. [SI-5]

A text is checked against the vocabulary of its policy. The values that the texts of a policy really
name are taken when a detection is made (`engine/value_record.py`), not when somebody is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.detection import phrase_key
from rapport.core.times import format_duration
from rapport.policy.compiler.compile import CompiledPolicy, CompiledSituation
from rapport.policy.language.printer import print_expression
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.situation_tree import OrOf
from rapport.policy.ontology import Ontology
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    ComparedValues,
    Condition,
    FixedValue,
    PresentValue,
    Sustained,
    Value,
    inner_nodes,
    plan_nodes,
)

WHY, BEGAN, DURATION = "why", "began", "duration"
_SHOWN = ("number", "text", "boolean")
"""Types of attributes that a text can show."""


class NamedQuantity(msgspec.Struct, frozen=True):
    """A value that a text may name, with the unit in which it is shown."""

    value: PresentValue | AggregateValue
    unit: str = ""


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
        """Every value that has to be known when a detection is made."""
        found = [each.value for each in self.values.values()]
        for part in self.why:
            found += [each.value for _, each in part.values]
            found += [side for each in part.comparisons for side in _sides(each)]
        return found


NOTHING_NEEDED = NeededValues()


def vocabulary(compiled: CompiledPolicy, ontology: Ontology) -> dict[str, NamedQuantity]:
    """The values that texts of a policy may name, by phrase: attributes of its aliases, and the
    aggregates of a situation over them, with or without their window where that is clear.
    """
    concepts = _concepts(compiled, ontology)
    found: dict[str, NamedQuantity] = {}
    streams = ontology.streams()
    for alias, concept in concepts.items():
        for attribute, kind in ontology.concepts.get(concept, {}).items():
            if kind in _SHOWN:
                name = f"{concept}.{attribute}"
                value = PresentValue(alias, concept, attribute, name if name in streams else None)
                unit = ontology.units.get(concept, {}).get(attribute, "")
                found[f"{attribute} of {alias}"] = NamedQuantity(value, unit)
    if isinstance(compiled, CompiledSituation):
        found |= _aggregates(compiled, concepts, ontology)
    return {phrase_key(phrase): value for phrase, value in found.items()}


def needed_values(
    fields: Iterable[str], compiled: CompiledPolicy, ontology: Ontology
) -> NeededValues:
    """What the fields of its texts need of a policy; fields that it does not have are left out."""
    known, wanted = vocabulary(compiled, ontology), set(map(phrase_key, fields))
    named = {phrase: known[phrase] for phrase in sorted(wanted) if phrase in known}
    why = _why_parts(compiled, ontology) if WHY in wanted else ()
    return NeededValues(named, why)


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


def _aggregates(
    compiled: CompiledSituation, concepts: Mapping[str, str], ontology: Ontology
) -> dict[str, NamedQuantity]:
    found: dict[str, NamedQuantity] = {}
    short: dict[str, set[AggregateValue]] = {}
    for node in plan_nodes(compiled.plan):
        if not isinstance(node, AggregateValue) or node.of.alias not in concepts:
            continue
        rank = "" if node.percentile is None else f" {node.percentile:g}"
        head = f"{node.function}{rank} of {node.of.attribute} of {node.of.alias}"
        phrase = f"{head} in the last {format_duration(node.window_ms)}"
        named = NamedQuantity(node, _unit_of(node, ontology))
        found[phrase] = named
        found[f"{phrase} (at least {node.at_least} readings)"] = named
        short.setdefault(head, set()).add(node)
    for head, nodes in short.items():
        if len(nodes) == 1:
            node = next(iter(nodes))
            found[head] = NamedQuantity(node, _unit_of(node, ontology))
    return found


def _unit_of(value: PresentValue | AggregateValue, ontology: Ontology) -> str:
    of = value.of if isinstance(value, AggregateValue) else value
    unit = ontology.units.get(of.concept, {}).get(of.attribute, "")
    if not isinstance(value, AggregateValue):
        return unit
    match value.function:
        case "count":
            return ""
        case "rate":
            return f"{unit}/h"
        case "change" if unit in ("degC", "degF"):
            return "K" if unit == "degC" else unit
        case _:
            return unit


# --- why ---


def _why_parts(compiled: CompiledPolicy, ontology: Ontology) -> tuple[WhyPart, ...]:
    """The alternatives of a situation; a policy with conditions is one."""
    if not isinstance(compiled, CompiledSituation):
        return (WhyPart(print_expression(compiled.tree.condition)),)
    plan, tree = compiled.plan, compiled.tree.situation
    parts: list[tuple[str, Condition]] = [(print_situation_condition(tree), plan.situation)]
    if isinstance(tree, OrOf) and isinstance(plan.situation, AnyPart):
        texts = [print_situation_condition(each) for each in tree.parts]
        if len(texts) == len(plan.situation.parts):
            parts = list(zip(texts, plan.situation.parts, strict=True))
    aliases = {bound.alias for bound in plan.aliases}
    return tuple(_why_part(text, part, aliases, ontology) for text, part in parts)


def _why_part(text: str, part: Condition, aliases: set[str], ontology: Ontology) -> WhyPart:
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
                values[name] = NamedQuantity(node, _unit_of(node, ontology))
        else:
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
