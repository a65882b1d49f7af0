"""The ontology and the push sources from a site file, checked for consistency. [PO-1, PO-2]

The structure that people want (specialised concepts, groups, relationships of several concepts,
containers) becomes plain concepts, attributes and relationships here.
"""

from __future__ import annotations

from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.policy.declaring.concepts import read_concepts
from rapport.policy.declaring.containers import read_containers
from rapport.policy.declaring.functions import read_functions
from rapport.policy.declaring.groups import read_groups
from rapport.policy.declaring.reading import OntologyDraft
from rapport.policy.declaring.relationships import add_variants, read_relationships
from rapport.policy.declaring.sources import read_sources
from rapport.policy.declaring.streams import check_streams
from rapport.policy.ontology import Ontology


def ontology_from_site(file: TomlFile, *, trusted: bool = True) -> tuple[Ontology, list[Problem]]:
    """What a site speaks of, and everything wrong with its declaration; faulty entries are left
    out. Costs in proportion to the file and to the pairs of concepts that relationships join.

    Args:
        trusted: whether functions of the form `package.module:function` may be imported.
    """
    reading = OntologyDraft(file, trusted)
    read_concepts(reading)
    derived = read_groups(reading)
    relationships = read_relationships(reading, derived)
    for variants in read_containers(reading, relationships, derived).values():
        add_variants(relationships, variants)
    ontology = Ontology(
        concepts=reading.concepts,
        relationships=relationships,
        sources=read_sources(reading),
        units=reading.units,
        functions=read_functions(reading),
        kinds=reading.kinds,
        groups=reading.groups,
        parents=reading.parents,
        containers=reading.containers,
        derived=derived,
    )
    check_streams(reading, ontology)
    return ontology, reading.problems
