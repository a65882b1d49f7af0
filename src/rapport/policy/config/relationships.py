"""`[relationships.X]`, `[containers.X]` and `[functions.X]`. [PO-1, PO-3]

A relationship names attributes of concepts and the function that decides; one name may join several
pairs of concepts. A container lists what lies in what, level by level; it becomes a relationship
between any two levels, decided from the tables. A function gives a number for comparisons: measured
(`distance`) or looked up in a table (`minimumDistance`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

from rapport.core.errors import RapportError
from rapport.kernel.config_fields import Fields
from rapport.policy import measures, relations
from rapport.policy.config.concepts import IDENTITY, AttributeEnd, OntologyDraft
from rapport.policy.language.diagnostics import did_you_mean
from rapport.policy.ontology import (
    Derivation,
    EnclosedInstance,
    EnclosingColumn,
    Identity,
    Link,
    PairTable,
    Relationship,
    SiteFunction,
)
from rapport.units.quantities import unit_named

_RELATIONSHIP_KEYS = ("between", "function")
_BETWEEN_EXAMPLE = 'between = ["person.position", "room.area"]'
Ends = tuple[AttributeEnd, AttributeEnd]

Known = TypeVar("Known", relations.Relation, measures.MeasuringFunction)

MOST_PAIRS = 1_000
"""Pairs of concepts per relationship."""
_LEVELS_EXAMPLE = 'of = ["room in floor", "floor in building"]'
MOST_LEVELS = 100
_ITSELF = "the thing itself"
_FUNCTION_KEYS = ("of", "measure", "table", "keys", "value", "unit", "symmetric")
_OF = '["substance.position", "substance.position"]'


def read_relationships(
    draft: OntologyDraft, derived: dict[str, dict[str, Derivation]]
) -> dict[str, Relationship]:
    """The valid relationships; adds the identities they compare to `derived`."""
    found: dict[str, Relationship] = {}
    for name, section in draft.tables("relationships"):
        fields = Fields(section, draft.problems, known=_RELATIONSHIP_KEYS)
        pairs = _pairs(draft, fields)
        function = fields.text("function")
        known: tuple[relations.Relation, ...] = ()
        if function:
            code = "relations.untrusted"
            known = _variants(draft, fields, "function", relations.variants, code)
        if not draft.is_phrase(name, fields, "relationship") or not known:
            continue
        sound = [
            # The name of the site stays, if no other function is meant by it.
            Relationship(name, *ends, fitting.name if len(known) > 1 else function)
            for ends in pairs
            if (fitting := _fitting(draft, fields, "function", ends, known)) is not None
        ]
        if sound and len(sound) == len(pairs) and _is_clear(fields, name, pairs):
            add_variants(found, sound)
            _note_identities(pairs, derived)
    return found


def add_variants(found: dict[str, Relationship], variants: list[Relationship]) -> None:
    """Adds the first under its name, others under the name with their concepts."""
    for relationship in variants:
        key = relationship.name
        if key in found:
            key = f"{key} ({relationship.first[0]}, {relationship.second[0]})"
        found[key] = relationship


def _note_identities(pairs: list[Ends], derived: dict[str, dict[str, Derivation]]) -> None:
    for concept, attribute in (end for ends in pairs for end in ends):
        if attribute == IDENTITY:
            derived.setdefault(concept, {})[IDENTITY] = Identity()


def _pairs(draft: OntologyDraft, fields: Fields) -> list[Ends]:
    """The pairs of ends in 'between'; none with a fault."""
    given: Any = fields.section.values.get("between")
    if isinstance(given, str):
        given = [given]
    if not _is_between(given):
        fields.texts("between")  # reports a missing or wrong type
        return []
    sides = [[side] if isinstance(side, str) else side for side in given]
    if len(sides) != 2:
        message = f"'between' names two attributes, not {len(sides)}"
        fields.fault("between", "ontology.bad_between", message, hint=f"write {_BETWEEN_EXAMPLE}")
        return []
    ends: list[list[AttributeEnd]] = []
    for side in sides:
        each = [draft.ends(fields, "between", text, example="room.area") for text in side]
        ends.append([end for found in each for end in found] if all(each) else [])
    if len(ends[0]) * len(ends[1]) > MOST_PAIRS:
        message = f"'between' joins {len(ends[0]) * len(ends[1]):,} pairs of concepts"
        hint = f"at most {MOST_PAIRS:,}; give the concepts a general one with `is`"
        fields.fault("between", "ontology.too_many_pairs", message, hint=hint)
        return []
    return list(dict.fromkeys(product(ends[0], ends[1])))


def _is_between(given: Any) -> bool:
    return isinstance(given, list) and all(
        isinstance(side, str)
        or (isinstance(side, list) and side and all(isinstance(each, str) for each in side))
        for side in given
    )


def _is_clear(fields: Fields, name: str, pairs: list[Ends]) -> bool:
    """False when two attributes of the same concepts are in one relationship."""
    seen: dict[tuple[str, str], Ends] = {}
    for ends in pairs:
        concepts = (ends[0][0], ends[1][0])
        if concepts in seen:
            shown = " and ".join(".".join(end) for end in ends)
            before = " and ".join(".".join(end) for end in seen[concepts])
            message = f"{name!r} is between {before}, and also between {shown}"
            hint = "a policy names the concepts only; give the second a name of its own"
            fields.fault("between", "ontology.ambiguous", message, hint=hint)
            return False
        seen[concepts] = ends
    return True


def _variants(
    draft: OntologyDraft,
    fields: Fields,
    key: str,
    find: Callable[[str], tuple[Known, ...]],
    untrusted: str,
) -> tuple[Known, ...]:
    """The functions of the name in `key`, for different types of values; none with a fault."""
    name = fields.text(key)
    if not may_import(
        draft, fields, key, name, f"{key}s.untrusted".replace("function", "relation")
    ):
        return ()
    try:
        return find(name)
    except RapportError as error:
        fields.report(key, error)
        return ()


def may_import(draft: OntologyDraft, fields: Fields, key: str, function: str, code: str) -> bool:
    """False, with a fault, for a site's own function in an untrusted site."""
    if ":" not in function or draft.trusted:
        return True
    message = f"the function {function!r} is not imported from a site that is not trusted"
    hint = "load the site as trusted, or use a built-in function"
    fields.fault(key, code, message, hint=hint)
    return False


def _fitting(
    draft: OntologyDraft,
    fields: Fields,
    key: str,
    ends: Sequence[AttributeEnd],
    known: tuple[Known, ...],
) -> Known | None:
    """The function of the name in `key` for the types of the ends; None with a fault."""
    given = tuple(draft.type_of(end) for end in ends)
    fitting = next((one for one in known if types_of(one) == given), None)
    if fitting is not None:
        return fitting
    name, own = fields.text(key) if len(known) > 1 else known[0].name, types_of(known[0])
    takes = f"{name} takes {' or '.join('a ' + ' and a '.join(types_of(one)) for one in known)}"
    where = "between" if key == "function" else "of"
    if len(ends) != len(own):
        message = f"{name!r} is of {len(own)} values, not {len(ends)}"
        fields.fault(where, "ontology.bad_of", message, hint=takes)
        return None
    nearest = max(
        map(types_of, known),
        key=lambda types: sum(a == b for a, b in zip(types, given, strict=False)),
    )
    for end, kind, wanted in zip(ends, given, nearest, strict=True):
        if kind != wanted:
            message = f"the {key} {name!r} needs a {wanted} here, but {'.'.join(end)} is a {kind}"
            hint = f"{takes}, in this order" if key == "function" else takes
            fields.fault(where, "ontology.wrong_type", message, hint=hint)
    return None


def types_of(known: relations.Relation | measures.MeasuringFunction) -> tuple[str, ...]:
    if isinstance(known, relations.Relation):
        return (known.first_type, known.second_type)
    return known.types


def read_containers(
    draft: OntologyDraft,
    declared: dict[str, Relationship],
    derived: dict[str, dict[str, Derivation]],
) -> dict[str, list[Relationship]]:
    """Adds the containers; returns their relationships, one per pair of levels, and adds the
    columns that decide them to `derived`.
    """
    found: dict[str, list[Relationship]] = {}
    for name, section in draft.tables("containers"):
        fields = Fields(section, draft.problems, known=("of",))
        links = _links(draft, fields)
        if not draft.is_phrase(name, fields, "container"):
            continue
        if name in declared:
            message = f"{name!r} is a relationship already"
            hint = "give the container another name"
            fields.fault("", "ontology.duplicate_name", message, hint=hint)
        elif links and not _has_cycle(fields, links):
            draft.containers[name] = links
            found[name] = _relationships(name, links)
            for relationship in found[name]:
                (inner, within), (outer, itself) = relationship.first, relationship.second
                derived.setdefault(inner, {})[within] = EnclosingColumn(name)
                derived.setdefault(outer, {})[itself] = EnclosedInstance()
    return found


def _links(draft: OntologyDraft, fields: Fields) -> tuple[Link, ...]:
    written = fields.texts("of", example='["room in floor", "floor in building"]')
    if len(written) > MOST_LEVELS:
        message = f"a container has at most {MOST_LEVELS} levels, not {len(written):,}"
        fields.fault("of", "ontology.bad_container", message, hint="nest a concept in itself")
        return ()
    if not written and fields.has("of") and fields.is_empty("of"):
        fields.wrong("of", "a list of levels", _LEVELS_EXAMPLE)
    found = [_link(draft, fields, text) for text in written]
    sound = tuple(dict.fromkeys(link for link in found if link is not None))
    return sound if all(found) else ()


def _link(draft: OntologyDraft, fields: Fields, text: str) -> Link | None:
    words = text.split()
    if len(words) != 3 or words[1].casefold() != "in":
        message = f"{text[:40]!r} must be written as one concept in another"
        fields.fault("of", "ontology.bad_container", message, hint=f"write {_LEVELS_EXAMPLE}")
        return None
    inner, dot, attribute = words[0].partition(".")
    outer = words[2]
    attribute = attribute if dot else outer
    for concept in (inner, outer):
        if concept not in draft.concepts:
            _faulted_concept(draft, fields, concept)
            return None
    if not draft.is_known(fields, "of", inner, attribute):
        return None
    if draft.type_of((inner, attribute)) != "text":
        message = f"{inner}.{attribute} must be a text that names the {outer}, to say in which"
        hint = f"declare it as text, or name another: {inner}.NAME in {outer}"
        fields.fault("of", "ontology.wrong_type", message, hint=hint)
        return None
    return Link(inner, attribute, outer)


def _faulted_concept(draft: OntologyDraft, fields: Fields, concept: str) -> None:
    if concept in draft.refused:
        return
    general = draft.concepts_of(concept)
    hint = did_you_mean(concept, draft.concepts)
    message = f"there is no concept {concept!r}"
    if general:
        message = f"{concept!r} is no concept of its own, so nothing lies in it"
        hint = f"write {' or '.join(general)}"
    fields.fault("of", "ontology.unknown_concept", message, hint=hint)


def _outer_of(links: tuple[Link, ...]) -> dict[str, list[str]]:
    """By concept, the concepts that directly contain it."""
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(link.inner, []).append(link.outer)
    return found


def _reachable(start: str, outer_of: dict[str, list[str]]) -> list[str]:
    """All concepts around one, nearest first."""
    found: dict[str, None] = {}
    waiting = list(outer_of.get(start, ()))
    while waiting:
        concept = waiting.pop(0)
        if concept not in found:
            found[concept] = None
            waiting.extend(outer_of.get(concept, ()))
    return list(found)


def _has_cycle(fields: Fields, links: tuple[Link, ...]) -> bool:
    """A concept may contain itself (`area in area`), but two concepts not each other."""
    further = tuple(link for link in links if link.inner != link.outer)
    outer_of = _outer_of(further)
    for concept in outer_of:
        if concept in _reachable(concept, outer_of):
            message = f"{concept!r} lies in the end in itself"
            hint = f"leave one of the levels out; `{concept} in {concept}` nests to any depth"
            fields.fault("of", "ontology.cycle", message, hint=hint)
            return True
    return False


def _relationships(name: str, links: tuple[Link, ...]) -> list[Relationship]:
    outer_of = _outer_of(links)
    return [
        Relationship(name, (inner, f"all around by {name!r}"), (outer, _ITSELF), "contained")
        for inner in outer_of
        for outer in _reachable(inner, outer_of)
    ]


def read_functions(draft: OntologyDraft) -> dict[str, SiteFunction]:
    found: dict[str, SiteFunction] = {}
    for name, section in draft.tables("functions"):
        fields = Fields(section, draft.problems, known=_FUNCTION_KEYS)
        before = len(draft.problems)
        function = _function(draft, name, fields)
        faults = draft.problems[before:]
        if not draft.named(name, section, "of", "function"):
            continue
        if function is not None and all(fault.severity != "error" for fault in faults):
            found[name] = function
    return found


def _function(draft: OntologyDraft, name: str, fields: Fields) -> SiteFunction | None:
    ends = _of(draft, fields)
    unit = _unit(fields)
    if fields.has("measure") == fields.has("table"):
        message = f"{name!r} is measured or looked up: it names 'measure' or 'table'"
        hint = 'add measure = "distance", or table, keys and value'
        fields.fault("measure", "ontology.bad_function", message, hint=hint)
        return None
    if fields.has("table"):
        lookup = _lookup(draft, fields, ends)
        return SiteFunction(name=name, of=tuple(ends), lookup=lookup, unit=unit) if lookup else None
    _needless(fields, ("keys", "value", "symmetric"))
    named = fields.filled_text("measure", example='"distance"')
    known: tuple[measures.MeasuringFunction, ...] = ()
    if named:
        known = _variants(draft, fields, "measure", measures.variants, "measures.untrusted")
    measuring = _fitting(draft, fields, "measure", ends, known) if ends and known else None
    if measuring is None:
        return None
    if unit and measuring.unit and unit != measuring.unit:
        message = f"the measure {measuring.name!r} gives {measuring.unit}, not {unit}"
        fields.fault("unit", "ontology.bad_unit", message, hint="leave the unit out")
    return SiteFunction(
        name=name,
        of=tuple(ends),
        measure=measuring.name if len(known) > 1 else fields.text("measure"),
        unit=unit or measuring.unit,
    )


def _of(draft: OntologyDraft, fields: Fields) -> list[AttributeEnd]:
    """One or two attributes; none with a fault."""
    given = fields.texts("of", example=_OF)
    if not given:
        if fields.has("of") and fields.is_empty("of"):
            fields.wrong("of", "one or two attributes", f"of = {_OF}")
        return []
    if len(given) > 2:
        message = f"'of' names one or two attributes, not {len(given)}"
        fields.fault("of", "ontology.bad_of", message, hint=f"write of = {_OF}")
        return []
    found = [draft.ends(fields, "of", text, example="room.area") for text in given]
    for text, ends in zip(given, found, strict=True):
        if len(ends) > 1:
            message = f"{text!r} is of several concepts"
            hint = "a function is of one concept at each place; declare one per concept"
            fields.fault("of", "ontology.bad_of", message, hint=hint)
            return []
    return [ends[0] for ends in found] if all(found) else []


def _unit(fields: Fields) -> str:
    given = fields.text("unit", "")
    if not given:
        return ""
    try:
        return unit_named(given).symbol
    except RapportError as error:
        fields.fault("unit", "ontology.bad_unit", error.message, hint=error.hint)
        return ""


def _needless(fields: Fields, keys: tuple[str, ...]) -> None:
    for key in keys:
        if fields.has(key):
            message = f"{key!r} belongs to a function that is looked up in a table"
            fields.fault(key, "ontology.bad_function", message, hint="leave it out")


def _lookup(draft: OntologyDraft, fields: Fields, ends: list[AttributeEnd]) -> PairTable | None:
    table = fields.filled_text("table", example='"minimum_distances"')
    keys = fields.texts("keys", example='["a", "b"]')
    value = fields.filled_text("value", example='"metres"')
    symmetric = fields.flag("symmetric")
    tables: Any = draft.file.values.get("tables")
    known = list(tables) if isinstance(tables, dict) else []
    if table and table not in known:
        message = f"there is no table {table!r}"
        hint = did_you_mean(table, known) or f"add [tables.{table}]"
        fields.fault("table", "ontology.unknown_table", message, hint=hint)
    if ends and keys and not _keys_fit(draft, fields, ends, keys, symmetric):
        return None
    if not (table and keys and value and ends):
        return None
    return PairTable(table=table, keys=keys, value=value, symmetric=symmetric)


def _keys_fit(
    draft: OntologyDraft,
    fields: Fields,
    ends: list[AttributeEnd],
    keys: tuple[str, ...],
    symmetric: bool,
) -> bool:
    if len(keys) != len(ends) or len(set(keys)) != len(keys) or not all(keys):
        message = f"'keys' names one column for each of the {len(ends)} in 'of'"
        fields.fault("keys", "ontology.bad_keys", message, hint='such as keys = ["a", "b"]')
        return False
    for end in ends:
        if draft.type_of(end) != "text":
            message = f"{'.'.join(end)} is a {draft.type_of(end)}; a table is looked up by texts"
            fields.fault("of", "ontology.wrong_type", message, hint=f"such as {end[0]}.id")
            return False
    if symmetric and len(keys) == 1:
        message = "only a function of two can be symmetric"
        fields.fault("symmetric", "ontology.bad_function", message, hint="leave it out")
        return False
    return True
