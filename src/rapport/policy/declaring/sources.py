"""`[sources.X]`: where events come from, which attributes they give, and how far they can be
trusted in time. [PO-2]
"""

from __future__ import annotations

from rapport.core.schema import PARTS, AttributeType
from rapport.kernel.fields import Fields
from rapport.kernel.zones import read_zone
from rapport.policy.declaring.reading import OntologyDraft
from rapport.policy.ontology import PushSource

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


def read_sources(reading: OntologyDraft) -> dict[str, PushSource]:
    """The sound sources; one that names a specialised concept gives events of its general one."""
    found: dict[str, PushSource] = {}
    for name, section in reading.tables("sources"):
        if "into" in section.values:
            continue  # speaks of no concept; mediation reads it
        fields = Fields(section, reading.problems, known=_KEYS)
        before = len(reading.problems)
        source = _source(reading, name, fields)
        known = _is_known(reading, fields, source)
        if known and not source.further:
            _value_fits(fields, source, reading.type_of((source.concept, source.attribute)))
        faults = reading.problems[before:]
        if known and all(problem.severity != "error" for problem in faults):
            found[name] = source
    return found


def _is_known(reading: OntologyDraft, fields: Fields, source: PushSource) -> bool:
    key = "attributes" if source.further else "attribute"
    for attribute in source.attributes:
        if not reading.is_known(fields, "concept", source.concept, attribute, key):
            return False
        if attribute == "id":
            message = "an identity does not come as events; 'key' says which field names it"
            hint = "name an attribute of the concept"
            fields.fault(key, "ontology.key_as_event", message, hint=hint)
            return False
    if source.concept not in reading.concepts:
        message = f"{source.concept!r} is a group of several concepts; a source is of one"
        fields.fault("concept", "ontology.bad_concept", message, hint="declare a source for each")
        return False
    return True


def _source(reading: OntologyDraft, name: str, fields: Fields) -> PushSource:
    # With an interpretation it is there that the fields are named; here they serve recorded
    # files only.
    interpretation = fields.text("interpretation", "")
    speaks_root = not interpretation
    attribute, *further = _given_attributes(fields, interpretation)
    concept = fields.text("concept")
    general = reading.concepts_of(concept)
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
        zone=read_zone(fields) or reading.site_zone,
    )


def _given_attributes(fields: Fields, interpretation: str) -> tuple[str, ...]:
    """`attribute`, or several as `attributes`, which takes an interpretation with types."""
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
