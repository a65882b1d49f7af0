"""How each push source of a site speaks, in mediation's words. [ME-5]

Policy and mediation are siblings and do not know each other; the site translates.
"""

from __future__ import annotations

import msgspec

from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import ConceptAttribute, Concepts
from rapport.mediation.source_bindings import SourceBinding, sources_into_channels
from rapport.policy.ontology import Ontology, PushSource


def source_bindings(ontology: Ontology, file: TomlFile | None = None) -> dict[str, SourceBinding]:
    """All sources by name; with the site's file also those that speak of no concept, and what it
    declares of ids and zones.
    """
    found = {name: _binding(source, ontology) for name, source in ontology.sources.items()}
    if file is None:
        return found
    whole = found | sources_into_channels(file)[0]
    return {name: _as_declared(binding, file) for name, binding in whole.items()}


def concepts_of(ontology: Ontology) -> Concepts:
    """The concepts with what root knows of their attributes."""
    return {
        concept: {
            name: ConceptAttribute(kind, ontology.units.get(concept, {}).get(name, ""))
            for name, kind in attributes.items()
        }
        for concept, attributes in ontology.concepts.items()
    }


def _as_declared(binding: SourceBinding, file: TomlFile) -> SourceBinding:
    source, site = file.section("sources").section(binding.source), file.section("site")
    own_id, zone = source.values.get("id"), site.values.get("zone")
    return msgspec.structs.replace(
        binding,
        own_id=own_id if isinstance(own_id, str) else "",
        zone=binding.zone or (zone if isinstance(zone, str) else ""),
    )


def _binding(source: PushSource, ontology: Ontology) -> SourceBinding:
    unit = ontology.units.get(source.concept, {}).get(source.attribute, "")
    return SourceBinding(
        source=source.name,
        concept=source.concept,
        attribute=source.attribute,
        type=ontology.concepts[source.concept][source.attribute],
        further=source.further,
        interpretation=source.interpretation,
        speaks=source.speaks,
        id=source.id,
        time=source.time,
        key=source.key,
        value=source.value,
        units=(unit,) if unit else (),
        zone=source.zone,
    )
