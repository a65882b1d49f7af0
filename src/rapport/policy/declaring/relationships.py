"""`[relationships.X]`: which attributes of which concepts, and the function that decides. One name
may join several pairs of concepts. [PO-1]
"""

from __future__ import annotations

from itertools import product
from typing import Any

from rapport.core.errors import RapportError
from rapport.kernel.fields import Fields
from rapport.policy import relations
from rapport.policy.declaring.reading import IDENTITY, AttributeEnd, OntologyDraft
from rapport.policy.ontology import Derivation, Identity, Relationship

_RELATIONSHIP_KEYS = ("between", "function")
_BETWEEN_EXAMPLE = 'between = ["person.position", "room.area"]'
Ends = tuple[AttributeEnd, AttributeEnd]

MOST_PAIRS = 1_000
"""Of concepts that one relationship joins."""


def read_relationships(
    reading: OntologyDraft, derived: dict[str, dict[str, Derivation]]
) -> dict[str, Relationship]:
    """The sound relationships; adds the identities that they compare to `derived`."""
    found: dict[str, Relationship] = {}
    for name, section in reading.tables("relationships"):
        fields = Fields(section, reading.problems, known=_RELATIONSHIP_KEYS)
        pairs = _pairs(reading, fields)
        function = fields.text("function")
        relation = _relation(reading, fields, function) if function else None
        if not reading.is_phrase(name, fields, "relationship") or relation is None:
            continue
        sound = [ends for ends in pairs if _relation_fits(reading, fields, ends, relation)]
        if sound and len(sound) == len(pairs) and _is_clear(fields, name, pairs):
            add_variants(found, [Relationship(name, *ends, function) for ends in pairs])
            _note_identities(pairs, derived)
    return found


def add_variants(found: dict[str, Relationship], variants: list[Relationship]) -> None:
    """The first under its name, further ones under the name with their concepts."""
    for relationship in variants:
        key = relationship.name
        if key in found:
            key = f"{key} ({relationship.first[0]}, {relationship.second[0]})"
        found[key] = relationship


def _note_identities(pairs: list[Ends], derived: dict[str, dict[str, Derivation]]) -> None:
    for concept, attribute in (end for ends in pairs for end in ends):
        if attribute == IDENTITY:
            derived.setdefault(concept, {})[IDENTITY] = Identity()


def _pairs(reading: OntologyDraft, fields: Fields) -> list[Ends]:
    """Every pair of ends that 'between' names; none with a fault."""
    given: Any = fields.section.values.get("between")
    if isinstance(given, str):
        given = [given]
    if not _is_between(given):
        fields.texts("between")  # absent or of another type: told as everywhere
        return []
    sides = [[side] if isinstance(side, str) else side for side in given]
    if len(sides) != 2:
        message = f"'between' names two attributes, not {len(sides)}"
        fields.fault("between", "ontology.bad_between", message, hint=f"write {_BETWEEN_EXAMPLE}")
        return []
    ends: list[list[AttributeEnd]] = []
    for side in sides:
        each = [reading.ends(fields, "between", text, example="room.area") for text in side]
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
    """False when two attributes of the same concepts stand in one relationship."""
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


def _relation(reading: OntologyDraft, fields: Fields, function: str) -> relations.Relation | None:
    if not may_import(reading, fields, "function", function, "relations.untrusted"):
        return None
    try:
        return relations.get(function)
    except RapportError as error:
        fields.report("function", error)
        return None


def may_import(reading: OntologyDraft, fields: Fields, key: str, function: str, code: str) -> bool:
    """False, with a fault, for a function of the site's own when the site is not trusted."""
    if ":" not in function or reading.trusted:
        return True
    message = f"the function {function!r} is not imported from a site that is not trusted"
    hint = "load the site as trusted, or use a built-in function"
    fields.fault(key, code, message, hint=hint)
    return False


def _relation_fits(
    reading: OntologyDraft, fields: Fields, ends: Ends, relation: relations.Relation
) -> bool:
    fit = True
    for end, wanted in zip(ends, (relation.first_type, relation.second_type), strict=True):
        given = reading.type_of(end)
        if given != wanted:
            fit = False
            shown = f"{'.'.join(end)} is a {given}"
            message = f"the function {relation.name!r} needs a {wanted} here, but {shown}"
            types = f"a {relation.first_type} and a {relation.second_type}"
            hint = f"{relation.name} takes {types}, in this order"
            fields.fault("between", "ontology.wrong_type", message, hint=hint)
    return fit
