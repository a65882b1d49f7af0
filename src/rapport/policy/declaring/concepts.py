"""`[concepts.X]`: attributes with types and units, and specialised concepts (`is`, `where`), which
become their general one with constraints. [PO-1]
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rapport.core.errors import RapportError
from rapport.core.schema import TYPE_NAMES
from rapport.kernel.fields import Fields
from rapport.kernel.toml import Section
from rapport.policy.declaring.reading import IDENTITY, Attributes, OntologyDraft
from rapport.policy.language.faults import did_you_mean
from rapport.policy.ontology import Kind
from rapport.policy.plan import Constraint
from rapport.units.quantities import unit_named

_KEYS = ("attributes", "units", "is", "where")
_OF_CONCEPTS = {"relationships", "containers", "groups", "functions"}


class _ConceptDeclaration(msgspec.Struct, frozen=True):
    """One `[concepts.X]` as it stands."""

    section: Section
    fields: Fields
    attributes: Attributes
    units: dict[str, str]


def read_concepts(reading: OntologyDraft) -> None:
    """Fills in concepts, units, kinds and parents of the reading."""
    if "concepts" not in reading.file.values and _needs_concepts(reading):
        message = "the site declares no concepts"
        hint = 'add [concepts.room.attributes] with lines such as area = "rectangle"'
        reading.problems.append(
            reading.file.problem(("concepts",), "ontology.no_concepts", message, hint=hint)
        )
    special: dict[str, _ConceptDeclaration] = {}
    for name, section in reading.tables("concepts"):
        fields = Fields(section, reading.problems, known=_KEYS)
        attributes = _attributes(reading, name, section, fields)
        declared = _ConceptDeclaration(section, fields, attributes, {})
        if not reading.named(name, section, "attributes", "concept"):
            reading.refused.add(name)
        elif fields.has("is"):
            special[name] = declared
        else:
            reading.concepts[name] = attributes
            reading.units[name] = _units(reading, name, section, fields, attributes)
            if fields.has("where"):
                message, hint = "'where' says what makes it one of a more general concept", ""
                fields.fault("where", "ontology.where_alone", message, hint=_is_hint(reading, name))
    _specialise(reading, special)


def _needs_concepts(reading: OntologyDraft) -> bool:
    """Whether something of the site is about concepts, or the file says nothing at all. People,
    channels, links, brokers and sources of the types of interpretations do without.
    """
    values = reading.file.values
    if not values or values.keys() & _OF_CONCEPTS:
        return True
    tables = (section for _name, section in reading.tables("tables"))
    sources = (section for _name, section in reading.tables("sources"))
    return any("concept" in each.values for each in tables) or any(
        "into" not in each.values for each in sources
    )


def _is_hint(reading: OntologyDraft, name: str) -> str:
    other = next((each for each in reading.concepts if each != name), "person")
    return f'add is = "{other}", or leave it out'


# --- attributes and units ---


def _attributes(
    reading: OntologyDraft, concept: str, section: Section, fields: Fields
) -> Attributes:
    found: Attributes = {}
    attributes = section.section("attributes")
    if not isinstance(section.values.get("attributes", {}), dict):
        fields.wrong("attributes", "a table", f"[concepts.{concept}.attributes]")
    for name, kind in attributes.values.items():
        if not reading.named(name, attributes, name, "attribute"):
            continue
        if name == IDENTITY:
            message = f"{concept}.id is the identity itself and is not declared"
            hint = "leave it out; `id` may be used in relationships and functions as it is"
            code = "ontology.identity_declared"
            reading.problems.append(attributes.problem(name, code, message, hint=hint))
        elif kind in TYPE_NAMES:
            found[name] = kind
        else:
            reading.faulted.add((concept, name))
            hint = did_you_mean(kind, TYPE_NAMES) if isinstance(kind, str) else ""
            message = f"{concept}.{name} has the unknown type {kind!r}"
            hint = hint or f"types are {', '.join(TYPE_NAMES)}"
            code = "ontology.unknown_type"
            reading.problems.append(attributes.problem(name, code, message, hint=hint))
    return found


def _units(
    reading: OntologyDraft, concept: str, section: Section, fields: Fields, attributes: Attributes
) -> dict[str, str]:
    """`[concepts.station.units]`: in what unit a number is in root."""
    if not isinstance(section.values.get("units", {}), dict):
        fields.wrong("units", "a table", f"[concepts.{concept}.units]")
    written = section.section("units")
    found: dict[str, str] = {}
    for name, unit in written.values.items():
        if attributes.get(name) != "number":
            message = f"{concept}.{name} is no number, so it has no unit of its own"
            hint = "points and rectangles are in metres" if name in attributes else ""
            hint = hint or did_you_mean(name, attributes)
            reading.problems.append(written.problem(name, "ontology.bad_unit", message, hint=hint))
            continue
        try:
            found[name] = unit_named(str(unit)).symbol
        except RapportError as error:
            message = f"{concept}.{name}: {error.message}"
            reading.problems.append(
                written.problem(name, "ontology.bad_unit", message, hint=error.hint)
            )
    return found


# --- specialised concepts ---


def _specialise(reading: OntologyDraft, special: dict[str, _ConceptDeclaration]) -> None:
    """Each specialised concept after its general one, whatever the order in the file."""
    waiting = dict(special)
    while waiting:
        ready = {name: one for name, one in waiting.items() if one.fields.text("is") not in waiting}
        for name, declared in (ready or waiting).items():
            if ready:
                _kind(reading, name, declared)
            else:
                _report_kind_cycle(reading, special, name, declared)
        waiting = {name: one for name, one in waiting.items() if ready and name not in ready}


def _report_kind_cycle(
    reading: OntologyDraft,
    special: dict[str, _ConceptDeclaration],
    name: str,
    declared: _ConceptDeclaration,
) -> None:
    chain = [name]
    while (above := special[chain[-1]].fields.text("is")) not in chain:
        chain.append(above)
    reading.refused.add(name)
    message = f"{name!r} is in the end {above!r} again: {' is '.join([*chain, above])}"
    hint = "one of them must stand without 'is'"
    declared.fields.fault("is", "ontology.cycle", message, hint=hint)


def _kind(reading: OntologyDraft, name: str, declared: _ConceptDeclaration) -> None:
    fields = declared.fields
    above = fields.text("is")
    general = Kind(above, above) if above in reading.concepts else reading.kinds.get(above)
    if general is None:
        reading.refused.add(name)
        if above and above not in reading.refused:
            message = f"there is no concept {above!r}"
            hint = did_you_mean(above, [*reading.concepts, *reading.kinds])
            fields.fault("is", "ontology.unknown_concept", message, hint=hint)
        return
    _inherit(reading, name, general.concept, declared)
    own = _where(reading, general, declared)
    if own is None:
        reading.refused.add(name)
        return
    reading.kinds[name] = Kind(name, general.concept, (*general.constraints, *own))
    reading.parents[name] = above


def _inherit(
    reading: OntologyDraft, name: str, concept: str, declared: _ConceptDeclaration
) -> None:
    """Its own attributes become attributes of the general concept, which others simply lack."""
    attributes = reading.concepts[concept]
    written = declared.section.section("attributes")
    for attribute, kind in declared.attributes.items():
        known = attributes.setdefault(attribute, kind)
        if known != kind:
            message = f"{name}.{attribute} is a {kind} here, but a {known} in {concept!r}"
            hint = f"give it another name, or make it a {known}"
            reading.problems.append(
                written.problem(attribute, "ontology.type_clash", message, hint=hint)
            )
    units = _units(reading, name, declared.section, declared.fields, attributes)
    for attribute, unit in units.items():
        known_unit = reading.units[concept].setdefault(attribute, unit)
        if known_unit != unit:
            message = f"{name}.{attribute} is in {unit} here, but in {known_unit} in {concept!r}"
            reading.problems.append(
                declared.section.section("units").problem(
                    attribute, "ontology.unit_clash", message, hint="root has one unit per number"
                )
            )


def _where(
    reading: OntologyDraft, general: Kind, declared: _ConceptDeclaration
) -> list[Constraint] | None:
    """What makes an instance of the general concept one of these; None with a fault."""
    fields = declared.fields
    example = '{ status = "employee" }'
    table = fields.table("where", None, example, needed=True)
    if table is None:
        return None
    if not table.section.values:
        fields.wrong("where", "a table with at least one attribute", f"where = {example}")
    found = [_constraint(reading, general, table, attribute) for attribute in table.section.values]
    sound = [constraint for constraint in found if constraint is not None]
    return sound if found and len(sound) == len(found) else None


def _constraint(
    reading: OntologyDraft, general: Kind, table: Fields, attribute: str
) -> Constraint | None:
    kind = reading.concepts[general.concept].get(attribute)
    if kind is None:
        if (general.concept, attribute) not in reading.faulted:
            message = f"the concept {general.concept!r} has no attribute {attribute!r}"
            hint = did_you_mean(attribute, reading.concepts[general.concept])
            table.fault(attribute, "ontology.unknown_attribute", message, hint=hint)
        return None
    value = _typed(table.section.values[attribute], kind)
    if value is None:
        message = f"{attribute!r} is a {kind}, which cannot be {table.section.values[attribute]!r}"
        hint = f"such as where = {{ {attribute} = {_EXAMPLES.get(kind, '...')} }}"
        if kind not in _EXAMPLES:
            hint = "a kind is told by a text, a number, or true or false"
        table.fault(attribute, "ontology.bad_where", message[:200], hint=hint)
        return None
    for known in general.constraints:
        if known.attribute == attribute and known.value != value:
            message = f"a {general.name} has {attribute} = {known.value!r}, so none is {value!r}"
            hint = "tell the narrower kind by another attribute"
            table.fault(attribute, "ontology.contradiction", message, hint=hint)
            return None
    return Constraint(attribute, "=", value)


_EXAMPLES = {"text": '"employee"', "number": "3", "boolean": "true"}


def _typed(value: Any, kind: str) -> str | float | None:
    """The value of a constraint as the compiler would make it; None when it does not fit."""
    if kind == "text" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return float(value)
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return None
