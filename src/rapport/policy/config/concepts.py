"""`[concepts.X]` with attributes, units and specialised concepts (`is`, `where`), `[groups.X]`, and
the draft that all readers of an ontology's tables share. [PO-1]

A specialised concept becomes its general one with constraints. A group of one general concept is a
kind that policies can use; a group of several can stand in relationships.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rapport.core.errors import Problem, RapportError
from rapport.core.schema import TYPE_NAMES, AttributeType
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import Section, TomlFile
from rapport.policy.language.diagnostics import did_you_mean
from rapport.policy.language.lexer import is_name
from rapport.policy.ontology import AnyOf, Derivation, Kind, Link
from rapport.policy.plan import Constraint
from rapport.units.quantities import unit_named

_UNIT_HINTS: dict[AttributeType, str] = {
    **dict.fromkeys(("point", "rectangle", "area"), "points, rectangles and areas are in metres"),
    **dict.fromkeys(("geo_point", "geo_area"), "longitudes and latitudes are in degrees"),
}
Attributes = dict[str, AttributeType]
AttributeEnd = tuple[str, str]
"""A concept and one of its attributes."""

IDENTITY = "id"
"""Names the identity where an attribute is expected."""
_KEYS = ("attributes", "units", "is", "where")
_OF_CONCEPTS = {"relationships", "containers", "groups", "functions"}
_EXAMPLES = {"text": '"employee"', "number": "3", "boolean": "true"}
Alternatives = tuple[tuple[Constraint, ...], ...]
MOST_ALTERNATIVES = 1_000


class OntologyDraft:
    """One pass over the ontology of a file; each reader adds its part."""

    def __init__(self, file: TomlFile, trusted: bool) -> None:
        self.file, self.trusted = file, trusted
        zone = file.section("site").values.get("zone")
        self.site_zone = zone if isinstance(zone, str) else ""
        self.problems: list[Problem] = []
        self.faulted: set[AttributeEnd] = set()
        """Attributes with a refused declaration; references to them cause no further fault."""
        self.refused: set[str] = set()
        """Concepts and groups with a refused declaration."""
        self.concepts: dict[str, Attributes] = {}
        self.units: dict[str, dict[str, str]] = {}
        self.kinds: dict[str, Kind] = {}
        self.parents: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self._concepts_of_groups: dict[str, tuple[str, ...]] = {}
        self.containers: dict[str, tuple[Link, ...]] = {}

    def concepts_of(self, name: str) -> tuple[str, ...]:
        """The concepts that a concept, a specialised one or a group stands for; empty for an
        unknown name.
        """
        if name in self.concepts:
            return (name,)
        if name in self.kinds:
            return (self.kinds[name].concept,)
        return self._concepts_of_groups.get(name, ())

    def add_group(self, name: str, members: tuple[str, ...]) -> None:
        """Adds a group with known members. Resolves its concepts once, so that nested groups cost
        no more than their number.
        """
        found = (concept for member in members for concept in self.concepts_of(member))
        self.groups[name], self._concepts_of_groups[name] = members, tuple(dict.fromkeys(found))

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.concepts, *self.kinds, *self.groups]))

    def ends(self, fields: Fields, key: str, text: str, *, example: str) -> list[AttributeEnd]:
        """Parses `room.area`; several ends for a group of several concepts, none with a fault."""
        concept, dot, attribute = text.partition(".")
        if not dot:
            message = f"{text!r} must be written as concept.attribute"
            fields.fault(key, f"ontology.bad_{key}", message, hint=f'such as "{example}"')
            return []
        if not self.is_known(fields, key, concept, attribute):
            return []
        return [(each, attribute) for each in self.concepts_of(concept)]

    def is_known(
        self, fields: Fields, key: str, concept: str, attribute: str, attribute_key: str = ""
    ) -> bool:
        """Whether every concept of the name has the attribute; faults if not."""
        if concept in self.refused:
            return False
        concepts = self.concepts_of(concept)
        if not concepts:
            message = f"there is no concept {concept!r}"
            hint = did_you_mean(concept, self.names())
            fields.fault(key, "ontology.unknown_concept", message, hint=hint)
            return False
        for each in concepts:
            if (each, attribute) in self.faulted:
                return False
            if attribute not in self.concepts[each] and attribute != IDENTITY:
                message = f"the concept {each!r} has no attribute {attribute!r}"
                hint = did_you_mean(attribute, self.concepts[each])
                fields.fault(attribute_key or key, "ontology.unknown_attribute", message, hint=hint)
                return False
        return True

    def type_of(self, end: AttributeEnd) -> AttributeType:
        """The type of a known attribute; an identity is a text."""
        return "text" if end[1] == IDENTITY else self.concepts[end[0]][end[1]]

    def named(self, name: str, section: Section, key: str, what: str) -> bool:
        """Whether the name is valid in policies; faults if not."""
        if is_name(name):
            return True
        message = f"{name!r} cannot name a {what}".replace("a attribute", "an attribute")
        hint = "use letters, digits, _ and -, beginning with a letter, and no word of the language"
        self.problems.append(section.problem(key, "ontology.bad_name", message, hint=hint))
        return False

    def is_phrase(self, name: str, fields: Fields, what: str) -> bool:
        """Whether the name of several words is valid in policies; faults if not."""
        if name.strip() and all(is_name(word) for word in _ended(name.split())):
            return True
        message = f"{name!r} cannot name a {what}"
        hint = "use words of letters and digits that are no words of the language"
        fields.fault("", "ontology.bad_name", message, hint=hint)
        return False

    def tables(self, name: str, *, quiet: bool = False) -> list[tuple[str, Section]]:
        """The tables `[name.*]`; other values are faults unless `quiet`."""
        section = self.file.section(name)
        whole = self.file.values.get(name, {})
        if not isinstance(whole, dict) and not quiet:
            message, hint = f"{name!r} must be a table", f"write [{name}.NAME]"
            self.problems.append(self.file.problem((name,), "site.wrong_type", message, hint=hint))
        for key, value in section.values.items():
            if not isinstance(value, dict) and not quiet:
                message, hint = f"{key!r} must be a table", f"write [{name}.{key}]"
                self.problems.append(section.problem(key, "site.wrong_type", message, hint=hint))
        return list(section.sections())


def _ended(words: list[str]) -> list[str]:
    """Drops a last `of`, which policies add themselves (`part of`)."""
    return words[:-1] if len(words) > 1 and words[-1].casefold() == "of" else words


class _ConceptDeclaration(msgspec.Struct, frozen=True):
    """One `[concepts.X]` table."""

    section: Section
    fields: Fields
    attributes: Attributes
    units: dict[str, str]


def read_concepts(draft: OntologyDraft) -> None:
    """Adds concepts, units, kinds and parents to the draft."""
    if "concepts" not in draft.file.values and _needs_concepts(draft):
        message = "the site declares no concepts"
        hint = 'add [concepts.room.attributes] with lines such as area = "rectangle"'
        draft.problems.append(
            draft.file.problem(("concepts",), "ontology.no_concepts", message, hint=hint)
        )
    special: dict[str, _ConceptDeclaration] = {}
    for name, section in draft.tables("concepts"):
        fields = Fields(section, draft.problems, known=_KEYS)
        attributes = _attributes(draft, name, section, fields)
        declared = _ConceptDeclaration(section, fields, attributes, {})
        if not draft.named(name, section, "attributes", "concept"):
            draft.refused.add(name)
        elif fields.has("is"):
            special[name] = declared
        else:
            draft.concepts[name] = attributes
            draft.units[name] = _units(draft, name, section, fields, attributes)
            if fields.has("where"):
                message, hint = "'where' needs a more general concept", ""
                fields.fault("where", "ontology.where_alone", message, hint=_is_hint(draft, name))
    _specialise(draft, special)


def _needs_concepts(draft: OntologyDraft) -> bool:
    """Whether some part of the site needs concepts, or the file is empty. People, channels, links,
    brokers and sources with typed interpretations need none.
    """
    values = draft.file.values
    if not values or values.keys() & _OF_CONCEPTS:
        return True
    tables = (section for _name, section in draft.tables("tables"))
    sources = (section for _name, section in draft.tables("sources"))
    return any("concept" in each.values for each in tables) or any(
        "into" not in each.values for each in sources
    )


def _is_hint(draft: OntologyDraft, name: str) -> str:
    other = next((each for each in draft.concepts if each != name), "person")
    return f'add is = "{other}", or leave it out'


# --- attributes and units ---


def _attributes(draft: OntologyDraft, concept: str, section: Section, fields: Fields) -> Attributes:
    found: Attributes = {}
    attributes = section.section("attributes")
    if not isinstance(section.values.get("attributes", {}), dict):
        fields.wrong("attributes", "a table", f"[concepts.{concept}.attributes]")
    for name, kind in attributes.values.items():
        if not draft.named(name, attributes, name, "attribute"):
            continue
        if name == IDENTITY:
            message = f"{concept}.id is the identity itself and is not declared"
            hint = "leave it out; `id` may be used in relationships and functions as it is"
            code = "ontology.identity_declared"
            draft.problems.append(attributes.problem(name, code, message, hint=hint))
        elif kind in TYPE_NAMES:
            found[name] = kind
        else:
            draft.faulted.add((concept, name))
            hint = did_you_mean(kind, TYPE_NAMES) if isinstance(kind, str) else ""
            message = f"{concept}.{name} has the unknown type {kind!r}"
            hint = hint or f"types are {', '.join(TYPE_NAMES)}"
            code = "ontology.unknown_type"
            draft.problems.append(attributes.problem(name, code, message, hint=hint))
    return found


def _units(
    draft: OntologyDraft, concept: str, section: Section, fields: Fields, attributes: Attributes
) -> dict[str, str]:
    """`[concepts.station.units]`: the canonical unit of a number."""
    if not isinstance(section.values.get("units", {}), dict):
        fields.wrong("units", "a table", f"[concepts.{concept}.units]")
    written = section.section("units")
    found: dict[str, str] = {}
    for name, unit in written.values.items():
        if attributes.get(name) != "number":
            message = f"{concept}.{name} is no number, so it has no unit of its own"
            hint = _UNIT_HINTS.get(attributes[name], "") if name in attributes else ""
            hint = hint or did_you_mean(name, attributes)
            draft.problems.append(written.problem(name, "ontology.bad_unit", message, hint=hint))
            continue
        try:
            found[name] = unit_named(str(unit)).symbol
        except RapportError as error:
            message = f"{concept}.{name}: {error.message}"
            draft.problems.append(
                written.problem(name, "ontology.bad_unit", message, hint=error.hint)
            )
    return found


# --- specialised concepts ---


def _specialise(draft: OntologyDraft, special: dict[str, _ConceptDeclaration]) -> None:
    """Resolves each specialised concept after its general one, in any order of the file."""
    waiting = dict(special)
    while waiting:
        ready = {name: one for name, one in waiting.items() if one.fields.text("is") not in waiting}
        for name, declared in (ready or waiting).items():
            if ready:
                _kind(draft, name, declared)
            else:
                _report_kind_cycle(draft, special, name, declared)
        waiting = {name: one for name, one in waiting.items() if ready and name not in ready}


def _report_kind_cycle(
    draft: OntologyDraft,
    special: dict[str, _ConceptDeclaration],
    name: str,
    declared: _ConceptDeclaration,
) -> None:
    chain = [name]
    while (above := special[chain[-1]].fields.text("is")) not in chain:
        chain.append(above)
    draft.refused.add(name)
    message = f"{name!r} is in the end {above!r} again: {' is '.join([*chain, above])}"
    hint = "one of them must stand without 'is'"
    declared.fields.fault("is", "ontology.cycle", message, hint=hint)


def _kind(draft: OntologyDraft, name: str, declared: _ConceptDeclaration) -> None:
    fields = declared.fields
    above = fields.text("is")
    general = Kind(above, above) if above in draft.concepts else draft.kinds.get(above)
    if general is None:
        draft.refused.add(name)
        if above and above not in draft.refused:
            message = f"there is no concept {above!r}"
            hint = did_you_mean(above, [*draft.concepts, *draft.kinds])
            fields.fault("is", "ontology.unknown_concept", message, hint=hint)
        return
    _inherit(draft, name, general.concept, declared)
    own = _where(draft, general, declared)
    if own is None:
        draft.refused.add(name)
        return
    draft.kinds[name] = Kind(name, general.concept, (*general.constraints, *own))
    draft.parents[name] = above


def _inherit(draft: OntologyDraft, name: str, concept: str, declared: _ConceptDeclaration) -> None:
    """Adds its own attributes to the general concept; other instances lack them."""
    attributes = draft.concepts[concept]
    written = declared.section.section("attributes")
    for attribute, kind in declared.attributes.items():
        known = attributes.setdefault(attribute, kind)
        if known != kind:
            message = f"{name}.{attribute} is a {kind} here, but a {known} in {concept!r}"
            hint = f"give it another name, or make it a {known}"
            draft.problems.append(
                written.problem(attribute, "ontology.type_clash", message, hint=hint)
            )
    units = _units(draft, name, declared.section, declared.fields, attributes)
    for attribute, unit in units.items():
        known_unit = draft.units[concept].setdefault(attribute, unit)
        if known_unit != unit:
            message = f"{name}.{attribute} is in {unit} here, but in {known_unit} in {concept!r}"
            draft.problems.append(
                declared.section.section("units").problem(
                    attribute,
                    "ontology.unit_clash",
                    message,
                    hint="a number has one canonical unit",
                )
            )


def _where(
    draft: OntologyDraft, general: Kind, declared: _ConceptDeclaration
) -> list[Constraint] | None:
    """The constraints of a specialised concept; None with a fault."""
    fields = declared.fields
    example = '{ status = "employee" }'
    table = fields.table("where", None, example, needed=True)
    if table is None:
        return None
    if not table.section.values:
        fields.wrong("where", "a table with at least one attribute", f"where = {example}")
    found = [_constraint(draft, general, table, attribute) for attribute in table.section.values]
    sound = [constraint for constraint in found if constraint is not None]
    return sound if found and len(sound) == len(found) else None


def _constraint(
    draft: OntologyDraft, general: Kind, table: Fields, attribute: str
) -> Constraint | None:
    kind = draft.concepts[general.concept].get(attribute)
    if kind is None:
        if (general.concept, attribute) not in draft.faulted:
            message = f"the concept {general.concept!r} has no attribute {attribute!r}"
            hint = did_you_mean(attribute, draft.concepts[general.concept])
            table.fault(attribute, "ontology.unknown_attribute", message, hint=hint)
        return None
    value = _typed(table.section.values[attribute], kind)
    if value is None:
        message = f"{attribute!r} is a {kind}, which cannot be {table.section.values[attribute]!r}"
        hint = f"such as where = {{ {attribute} = {_EXAMPLES.get(kind, '...')} }}"
        if kind not in _EXAMPLES:
            hint = "a kind is defined by a text, a number, or true or false"
        table.fault(attribute, "ontology.bad_where", message[:200], hint=hint)
        return None
    for known in general.constraints:
        if known.attribute == attribute and known.value != value:
            message = f"a {general.name} has {attribute} = {known.value!r}, so none is {value!r}"
            hint = "define the narrower kind by another attribute"
            table.fault(attribute, "ontology.contradiction", message, hint=hint)
            return None
    return Constraint(attribute, "=", value)


def _typed(value: Any, kind: str) -> str | float | None:
    """The value of a constraint as the compiler types it; None when it does not fit."""
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


def read_groups(draft: OntologyDraft) -> dict[str, dict[str, Derivation]]:
    """Adds groups and their kinds; returns the derived columns that identify members."""
    waiting: dict[str, tuple[Fields, tuple[str, ...]]] = {}
    for name, section in draft.tables("groups"):
        fields = Fields(section, draft.problems, known=("of",))
        members = fields.texts("of", example='["employee", "contractor"]')
        if _is_new(draft, name, fields) and draft.named(name, section, "of", "group"):
            waiting[name] = (fields, tuple(dict.fromkeys(members)))
        else:
            draft.refused.add(name)
    derived: dict[str, dict[str, Derivation]] = {}
    members_of: dict[str, Alternatives] = {}
    while waiting:
        ready = [name for name, (_, of) in waiting.items() if not waiting.keys() & set(of)]
        for name in ready or list(waiting):
            fields, members = waiting.pop(name)
            if not ready:
                _report_group_cycle(draft, name, fields)
            elif _members_known(draft, name, fields, members):
                draft.add_group(name, members)
                members_of[name] = _alternatives(draft, members, members_of)
                _add_kind(draft, name, fields, members_of[name], derived)
    return derived


def _is_new(draft: OntologyDraft, name: str, fields: Fields) -> bool:
    if name not in draft.concepts and name not in draft.kinds:
        return True
    message = f"{name!r} is a concept already"
    fields.fault("", "ontology.duplicate_name", message, hint="give the group another name")
    return False


def _report_group_cycle(draft: OntologyDraft, name: str, fields: Fields) -> None:
    draft.refused.add(name)
    message = f"the group {name!r} is in the end a member of itself"
    fields.fault("of", "ontology.cycle", message, hint="leave one of the groups out")


def _members_known(
    draft: OntologyDraft, name: str, fields: Fields, members: tuple[str, ...]
) -> bool:
    if not members and fields.is_empty("of") and fields.has("of"):
        fields.wrong("of", "a list of concepts", 'of = ["employee", "contractor"]')
    unknown = [member for member in members if not draft.concepts_of(member)]
    for member in unknown:
        if member not in draft.refused:
            message, hint = f"there is no concept {member!r}", did_you_mean(member, draft.names())
            fields.fault("of", "ontology.unknown_concept", message, hint=hint)
    if not members or unknown:
        draft.refused.add(name)
        return False
    return True


def _add_kind(
    draft: OntologyDraft,
    name: str,
    fields: Fields,
    alternatives: Alternatives,
    derived: dict[str, dict[str, Derivation]],
) -> None:
    concepts = draft.concepts_of(name)
    if len(concepts) > 1:
        return
    if len(alternatives) > MOST_ALTERNATIVES:
        message = f"the group {name!r} has {len(alternatives):,} members"
        hint = f"at most {MOST_ALTERNATIVES:,}; distinguish them by an attribute of their own"
        fields.fault("of", "ontology.too_many_members", message, hint=hint)
    elif () in alternatives:
        draft.kinds[name] = Kind(name, concepts[0])
    elif len(alternatives) == 1:
        draft.kinds[name] = Kind(name, concepts[0], alternatives[0])
    else:
        attribute = f"is {name}"
        derived.setdefault(concepts[0], {})[attribute] = AnyOf(alternatives)
        draft.kinds[name] = Kind(name, concepts[0], (Constraint(attribute, "=", "yes"),))


def _alternatives(
    draft: OntologyDraft, members: tuple[str, ...], members_of: dict[str, Alternatives]
) -> Alternatives:
    """The distinct constraints of the members, including those of nested groups."""
    found: dict[tuple[Constraint, ...], None] = {}
    for member in members:
        if member in members_of:
            found.update(dict.fromkeys(members_of[member]))
        else:
            kind = draft.kinds.get(member)
            found[kind.constraints if kind else ()] = None
    return tuple(found)
