"""Loads and checks the ontology of a site file; reads `[sources.X]`. [PO-1, PO-2]

Specialised concepts, groups, relationships of several concepts and containers become plain
concepts, attributes and relationships.
"""

from __future__ import annotations

from rapport.core.errors import Problem
from rapport.core.schema import AREAS, PARTS, AttributeType
from rapport.kernel.config_fields import Fields, read_zone
from rapport.kernel.toml import TomlFile
from rapport.policy.config.concepts import OntologyDraft, read_concepts, read_groups
from rapport.policy.config.relationships import (
    add_variants,
    read_containers,
    read_functions,
    read_relationships,
)
from rapport.policy.ontology import Ontology, PushSource

_KEYS = (
    "concept",
    "attribute",
    "attributes",
    "type",
    "events",
    "id",
    "time",
    "key",
    "value",
    "interpretation",
    "period",
    "stale_after",
    "clock_uncertainty",
    "zone",
)


def read_sources(draft: OntologyDraft) -> dict[str, PushSource]:
    """The valid sources; a source of a specialised concept gives events of its general one."""
    found: dict[str, PushSource] = {}
    for name, section in draft.tables("sources"):
        if "into" in section.values:
            continue  # has no concept; mediation reads it
        fields = Fields(section, draft.problems, known=_KEYS)
        before = len(draft.problems)
        source = _source(draft, name, fields)
        known = _is_known(draft, fields, source)
        if known and not source.further:
            _value_fits(fields, source, draft.type_of((source.concept, source.attribute)))
        faults = draft.problems[before:]
        if known and all(problem.severity != "error" for problem in faults):
            found[name] = source
    return found


def _is_known(draft: OntologyDraft, fields: Fields, source: PushSource) -> bool:
    key = "attributes" if source.further else "attribute"
    for attribute in source.attributes:
        if not draft.is_known(fields, "concept", source.concept, attribute, key):
            return False
        if attribute == "id":
            message = "an identity does not come as events; 'key' names its field"
            hint = "name an attribute of the concept"
            fields.fault(key, "ontology.key_as_event", message, hint=hint)
            return False
        concepts = [each for each in draft.concepts_of(source.concept) if each in draft.concepts]
        if any(draft.type_of((each, attribute)) in AREAS for each in concepts):
            message = f"{source.concept}.{attribute} is an area, which does not come as events"
            hint = "name it in the columns of a table; what moves is a point"
            fields.fault(key, "ontology.area_as_event", message, hint=hint)
            return False
    if source.concept not in draft.concepts:
        message = f"{source.concept!r} is a group of several concepts; a source is of one"
        fields.fault("concept", "ontology.bad_concept", message, hint="declare a source for each")
        return False
    return True


def _source(draft: OntologyDraft, name: str, fields: Fields) -> PushSource:
    # With an interpretation the fields are named there; here they serve recorded files only.
    interpretation = fields.text("interpretation", "")
    speaks_root = not interpretation
    attribute, *further = _given_attributes(fields, interpretation)
    concept = fields.text("concept")
    general = draft.concepts_of(concept)
    return PushSource(
        name=name,
        concept=general[0] if len(general) == 1 else concept,
        attribute=attribute,
        further=tuple(further),
        speaks=fields.text("type", ""),
        id=fields.text("id", "id"),
        time=fields.text("time", "time"),
        key=fields.text("key", None if speaks_root else ""),
        value=fields.texts("value", None if speaks_root else ()),
        events=fields.text("events", ""),
        interpretation=interpretation,
        period_ms=fields.duration_ms("period", 0, least=1),
        stale_after_ms=fields.duration_ms("stale_after", 0, least=1),
        uncertainty_ms=fields.duration_ms("clock_uncertainty", 0),
        zone=read_zone(fields) or draft.site_zone,
    )


def _given_attributes(fields: Fields, interpretation: str) -> tuple[str, ...]:
    """`attribute`, or several as `attributes`, which need a typed interpretation."""
    if not fields.has("attributes"):
        return (fields.text("attribute"),)
    several = fields.texts("attributes", example='["temperature", "humidity"]')
    message = ""
    if fields.has("attribute"):
        message = "a source names 'attribute' or 'attributes', not both"
    elif len(several) > 1 and not interpretation:
        message = "a source that gives several attributes needs an interpretation"
    if message:
        hint = "declare one source per attribute, or an interpretation with types"
        fields.fault("attributes", "ontology.bad_attributes", message, hint=hint)
    return several or ("",)


def _value_fits(fields: Fields, source: PushSource, kind: AttributeType) -> None:
    parts = PARTS[kind]
    if source.value and len(source.value) != len(parts):
        example = ", ".join(f'"{part}"' for part in parts)
        message = f"a {kind} has {len(parts)} parts, but 'value' names {len(source.value)} fields"
        hint = f"such as value = [{example}]"
        fields.fault("value", "ontology.wrong_parts", message, hint=hint)
    elif kind == "geo_point" and source.value and source.value[0].lower().startswith("lat"):
        lat, lon = source.value
        message = "a geo_point is a longitude and then a latitude"
        hint = f'write value = ["{lon}", "{lat}"]'
        fields.fault("value", "ontology.latitude_first", message, hint=hint)


def check_streams(draft: OntologyDraft, ontology: Ontology) -> None:
    """Reports attributes that come as events where tables must give them: table keys, kinds and
    containers.
    """
    _table_keys(draft, ontology)
    _kinds(draft, ontology)
    _containers(draft, ontology)


def _table_keys(draft: OntologyDraft, ontology: Ontology) -> None:
    """An attribute that comes as events can be no key of a table; as a column it is unused."""
    streams = ontology.streams()
    for name, section in draft.tables("tables", quiet=True):
        concept, columns = section.values.get("concept"), section.section("columns")
        for attribute, column in columns.values.items():
            if f"{concept}.{attribute}" not in streams:
                continue
            given = f"{concept}.{attribute} comes as events"
            if column in (section.values.get("key"), [section.values.get("key")]):
                message = f"{given} and cannot be the key of {name!r}"
                hint = "an identity does not change; choose another attribute"
                draft.problems.append(
                    section.problem("columns", "ontology.key_as_event", message, hint=hint)
                )
            else:
                message, hint = f"{given}; the column in {name!r} is not used", ""
                hint = "leave the column or the source out"
                problem = section.problem(
                    "columns", "ontology.given_twice", message, hint=hint, severity="warning"
                )
                draft.problems.append(problem)


def _kinds(draft: OntologyDraft, ontology: Ontology) -> None:
    streams = ontology.streams()
    for name in ontology.parents:
        kind = ontology.kinds[name]
        where = draft.file.section("concepts", name).section("where")
        for constraint in kind.constraints:
            attribute = constraint.attribute
            if f"{kind.concept}.{attribute}" in streams and attribute in where.values:
                message = f"{kind.concept}.{attribute} comes as events and cannot define a kind"
                hint = "a kind is known from the tables; compare the attribute in a condition"
                draft.problems.append(
                    where.problem(attribute, "ontology.kind_by_events", message, hint=hint)
                )


def _containers(draft: OntologyDraft, ontology: Ontology) -> None:
    streams = ontology.streams()
    for name, links in ontology.containers.items():
        for link in links:
            if f"{link.inner}.{link.attribute}" in streams:
                given = f"{link.inner}.{link.attribute}"
                message = f"{given} comes as events; a container is decided from the tables"
                between = f'between = ["{given}", "{link.outer}.id"]'
                hint = f'declare a relationship with {between} and function = "same" instead'
                section = draft.file.section("containers", name)
                draft.problems.append(
                    section.problem("of", "ontology.container_by_events", message, hint=hint)
                )


def ontology_from_site(file: TomlFile, *, trusted: bool = True) -> tuple[Ontology, list[Problem]]:
    """The ontology of a site and every fault of its declaration; faulty entries are left out. Costs
    in proportion to the file and to the pairs of concepts in relationships.

    `trusted`: whether functions of the form `package.module:function` may be imported.
    """
    draft = OntologyDraft(file, trusted)
    read_concepts(draft)
    derived = read_groups(draft)
    relationships = read_relationships(draft, derived)
    for variants in read_containers(draft, relationships, derived).values():
        add_variants(relationships, variants)
    ontology = Ontology(
        concepts=draft.concepts,
        relationships=relationships,
        sources=read_sources(draft),
        units=draft.units,
        functions=read_functions(draft),
        kinds=draft.kinds,
        groups=draft.groups,
        parents=draft.parents,
        containers=draft.containers,
        derived=derived,
        zone=draft.site_zone,
        day_tables=_day_tables(draft),
    )
    check_streams(draft, ontology)
    return ontology, draft.problems


def _day_tables(draft: OntologyDraft) -> tuple[str, ...]:
    """The tables that can list days: without a concept, with one key."""
    return tuple(
        name
        for name, section in draft.tables("tables", quiet=True)
        if not section.values.get("concept") and isinstance(section.values.get("key"), str)
    )
