"""How each push source of a site speaks, in mediation's words. [ME-5]"""

from __future__ import annotations

from rapport.mediation.binding import SourceBinding
from rapport.policy.ontology import Ontology


def source_bindings(ontology: Ontology) -> dict[str, SourceBinding]:
    """Policy and mediation are siblings and do not know each other; the site translates."""
    return {
        name: SourceBinding(
            source=name,
            concept=source.concept,
            attribute=source.attribute,
            type=ontology.concepts[source.concept][source.attribute],
            interpretation=source.interpretation,
            id=source.id,
            time=source.time,
            key=source.key,
            value=source.value,
        )
        for name, source in ontology.sources.items()
    }
