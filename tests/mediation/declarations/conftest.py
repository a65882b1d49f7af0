"""One interpretation declared in every form, and the root it is mapped to."""

from typing import Any

import pytest

from rapport.mediation.concepts import ConceptAttribute, canonical_model
from rapport.mediation.interpretations.model import Interpretation

CONCEPTS: Any = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "humidity": ConceptAttribute("number", "%"),
        "wind": ConceptAttribute("number", "m/s"),
        "position": ConceptAttribute("point"),
        "count": ConceptAttribute("number"),
        "name": ConceptAttribute("text"),
    }
}


@pytest.fixture
def root() -> Interpretation:
    """One concept with units."""
    found, problems = canonical_model(CONCEPTS)
    assert not problems
    return found
