"""The ontology the compiler's tests speak of."""

from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import Ontology

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def ontology() -> Ontology:
    found, problems = ontology_from_site(TomlFile.load(TESTS / "golden" / "policy" / "site.toml"))
    assert problems == []
    return found


@pytest.fixture(scope="session")
def every_form() -> Ontology:
    """An ontology that all forms of the language can speak of."""
    path = TESTS / "golden" / "policy" / "stages" / "site.toml"
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


@pytest.fixture(scope="session")
def checks() -> Path:
    """The recorded cases."""
    return TESTS / "data" / "checks"
