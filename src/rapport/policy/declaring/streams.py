"""What may not come as events: keys of tables, what tells kinds apart, and what says where
something lies. [PO-1, PO-2]
"""

from __future__ import annotations

from rapport.policy.declaring.reading import OntologyDraft
from rapport.policy.ontology import Ontology


def check_streams(reading: OntologyDraft, ontology: Ontology) -> None:
    """Faults for attributes that some source gives where tables must."""
    _table_keys(reading, ontology)
    _kinds(reading, ontology)
    _containers(reading, ontology)


def _table_keys(reading: OntologyDraft, ontology: Ontology) -> None:
    """An attribute that comes as events can neither be a table's key nor, usefully, one of its
    columns.
    """
    streams = ontology.streams()
    for name, section in reading.tables("tables", quiet=True):
        concept, columns = section.values.get("concept"), section.section("columns")
        for attribute, column in columns.values.items():
            if f"{concept}.{attribute}" not in streams:
                continue
            given = f"{concept}.{attribute} comes as events"
            if column in (section.values.get("key"), [section.values.get("key")]):
                message = f"{given} and cannot be the key of {name!r}"
                hint = "an identity does not change; choose another attribute"
                reading.problems.append(
                    section.problem("columns", "ontology.key_as_event", message, hint=hint)
                )
            else:
                message, hint = f"{given}; the column in {name!r} is not used", ""
                hint = "leave the column or the source out"
                problem = section.problem(
                    "columns", "ontology.given_twice", message, hint=hint, severity="warning"
                )
                reading.problems.append(problem)


def _kinds(reading: OntologyDraft, ontology: Ontology) -> None:
    streams = ontology.streams()
    for name in ontology.parents:
        kind = ontology.kinds[name]
        where = reading.file.section("concepts", name).section("where")
        for constraint in kind.constraints:
            attribute = constraint.attribute
            if f"{kind.concept}.{attribute}" in streams and attribute in where.values:
                message = f"{kind.concept}.{attribute} comes as events and tells no kind apart"
                hint = "a kind is known from the tables; compare the attribute in a condition"
                reading.problems.append(
                    where.problem(attribute, "ontology.kind_by_events", message, hint=hint)
                )


def _containers(reading: OntologyDraft, ontology: Ontology) -> None:
    streams = ontology.streams()
    for name, links in ontology.containers.items():
        for link in links:
            if f"{link.inner}.{link.attribute}" in streams:
                given = f"{link.inner}.{link.attribute}"
                message = f"{given} comes as events; a container is decided from the tables"
                between = f'between = ["{given}", "{link.outer}.id"]'
                hint = f'declare a relationship with {between} and function = "same" instead'
                section = reading.file.section("containers", name)
                reading.problems.append(
                    section.problem("of", "ontology.container_by_events", message, hint=hint)
                )
