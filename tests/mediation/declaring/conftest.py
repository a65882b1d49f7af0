"""One interpretation declared in every form, and the root it is mapped to."""

from typing import Any

import pytest

from rapport.mediation.concepts import ConceptAttribute, root_of
from rapport.mediation.model.interpretation import Interpretation

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
    found, problems = root_of(CONCEPTS)
    assert not problems
    return found
