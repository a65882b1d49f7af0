"""The ontology as table rows and as a drawing. Pure. [PO-1]"""

from __future__ import annotations

from collections.abc import Collection

from rapport.policy.compiler.plan_drawing import (
    Box,
    Join,
    box,
    place_columns,
    stack_columns,
    svg,
)
from rapport.policy.ontology import Ontology, Relationship, SiteFunction
from rapport.policy.plan import Constraint

Row = tuple[str, ...]
Given = Collection[tuple[str, str]]
"""The (concept, attribute) that tables give."""

_MOST_SHOWN = 12
"""Members of a group shown in its box."""


def concept_rows(ontology: Ontology, given: Given) -> list[Row]:
    """Concept, attribute, type, unit, and origin of its values."""
    rows: list[Row] = []
    for concept, attributes in ontology.concepts.items():
        rows += [(concept, "-", "-", "", "")] if not attributes else []
        for attribute, kind in attributes.items():
            unit = ontology.units.get(concept, {}).get(attribute, "")
            rows.append(
                (concept, attribute, kind, unit, _origin(ontology, concept, attribute, given))
            )
    return rows


def kind_rows(ontology: Ontology) -> list[Row]:
    """Specialised concepts and groups: name, definition, and instances."""
    rows: list[Row] = []
    for name, above in ontology.parents.items():
        rows.append((name, f"is {above}", _constraints(ontology.kinds[name].constraints)))
    for name, members in ontology.groups.items():
        remark = "" if name in ontology.kinds else "of several concepts: for relationships only"
        rows.append((name, f"group of {', '.join(members)}", remark))
    return rows


def relationship_rows(ontology: Ontology) -> list[Row]:
    """Name, both ends and the function; of containers the levels."""
    rows: list[Row] = [
        (each.name, ".".join(each.first), ".".join(each.second), each.function)
        for each in ontology.relationships.values()
        if each.name not in ontology.containers
    ]
    for name, links in ontology.containers.items():
        rows += [
            (name, f"{link.inner}.{link.attribute}", f"{link.outer}.id", "container")
            for link in links
        ]
    return rows


def function_rows(ontology: Ontology) -> list[Row]:
    """Name, arguments, how it is computed, unit."""
    return [
        (name, ", ".join(".".join(end) for end in one.of), _found_by(one), one.unit)
        for name, one in ontology.functions.items()
    ]


def _origin(ontology: Ontology, concept: str, attribute: str, given: Given) -> str:
    sources = [
        name
        for name, source in ontology.sources.items()
        if f"{concept}.{attribute}" in source.streams
    ]
    if sources:
        return f"events: {', '.join(sources)}"
    return "tables" if (concept, attribute) in given else "nothing gives it"


def _constraints(constraints: tuple[Constraint, ...]) -> str:
    return " and ".join(f"{one.attribute} {one.operator} {one.value!r}" for one in constraints)


def _found_by(function: SiteFunction) -> str:
    if function.lookup is None:
        return f"measured: {function.measure}"
    both = ", either way round" if function.lookup.symmetric else ""
    return f"looked up: {function.lookup.table}.{function.lookup.value}{both}"


# --- the drawing ---


def draw_ontology(ontology: Ontology, given: Given, *, title: str) -> str:
    """Kinds and groups on the left, concepts in the middle, their relationships on the right, as
    SVG.

    Attributes that come as events have an arrow.
    """
    boxes: list[Box] = []
    joins: list[Join] = []
    concepts: dict[str, int] = {}
    for name in ontology.concepts:
        concepts[name] = len(boxes)
        boxes.append(_concept_box(ontology, name, given))
    for name in [*ontology.parents, *ontology.groups]:
        _add_kind(ontology, name, boxes, joins, concepts)
    for text, function, ends in _joined(ontology):
        joins += [Join(concepts[concept], len(boxes)) for concept in dict.fromkeys(ends)]
        boxes.append(box(text, "term", 2, function))
    if not boxes:
        boxes.append(box("no concepts", "join", 1))
    place_columns(boxes)
    stack_columns(boxes)
    return svg(title, boxes, joins)


def _concept_box(ontology: Ontology, name: str, given: Given) -> Box:
    streams = ontology.streams()
    lines: list[str] = []
    for attribute, kind in ontology.concepts[name].items():
        unit = ontology.units.get(name, {}).get(attribute, "")
        arrow = "\N{RIGHTWARDS ARROW}" if f"{name}.{attribute}" in streams else "\N{MIDDLE DOT}"
        missing = _origin(ontology, name, attribute, given).startswith("nothing")
        lines.append(f"{arrow} {attribute}: {kind} {unit}".rstrip() + " ?" * missing)
    has_events = any(f"{name}.{attribute}" in streams for attribute in ontology.concepts[name])
    return box(name.upper(), "events" if has_events else "tables", 1, *lines)


def _add_kind(
    ontology: Ontology,
    name: str,
    boxes: list[Box],
    joins: list[Join],
    concepts: dict[str, int],
) -> None:
    members = ontology.groups.get(name)
    if members is None:
        lines = [_constraints(ontology.kinds[name].constraints)]
    else:
        lines = [f"or {member}" for member in members[:_MOST_SHOWN]]
        left = len(members) - _MOST_SHOWN
        lines += [f"and {left} more"] if left > 0 else []
    for concept in _concepts_of(ontology, name):
        joins.append(Join(len(boxes), concepts[concept], dashed=members is not None))
    boxes.append(box(name, "join", 0, *lines))


def _concepts_of(ontology: Ontology, name: str) -> list[str]:
    """The concepts of a kind or group; each group is resolved once."""
    found: dict[str, None] = {}
    waiting, seen = [name], {name}
    while waiting:
        each = waiting.pop(0)
        if each in ontology.concepts:
            found[each] = None
        elif each in ontology.kinds:
            found[ontology.kinds[each].concept] = None
        else:
            members = [one for one in ontology.groups.get(each, ()) if one not in seen]
            seen.update(members)
            waiting += members
    return list(found)


def _joined(ontology: Ontology) -> list[tuple[str, str, list[str]]]:
    """The boxes on the right: text, how it is decided, and the joined concepts."""
    found: list[tuple[str, str, list[str]]] = []
    declared: dict[str, list[Relationship]] = {}
    for each in ontology.relationships.values():
        declared.setdefault(each.name, []).append(each)
    for name, variants in declared.items():
        if name in ontology.containers:
            continue
        for one in variants:
            ends = f"{'.'.join(one.first)}, {'.'.join(one.second)}"
            found.append((name, f"{one.function}({ends})", [one.first[0], one.second[0]]))
    for name, links in ontology.containers.items():
        levels = "; ".join(f"{link.inner} in {link.outer}" for link in links)
        concepts = [concept for link in links for concept in (link.inner, link.outer)]
        found.append((name, f"container: {levels}", concepts))
    for name, function in ontology.functions.items():
        unit = f" [{function.unit}]" if function.unit else ""
        shown = f"{name}({', '.join('.'.join(end) for end in function.of)}){unit}"
        found.append((shown, _found_by(function), [end[0] for end in function.of]))
    return found
