"""Golden files: parts of a text file between lines `--- name`; the last part is what must come out.

`pytest tests/golden --rewrite-golden` writes what comes out now; look at the difference before
keeping it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import Ontology

_MARK = re.compile(r"^--- (.+)\n", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="Write golden files anew.")


@pytest.fixture(scope="session")
def ontology() -> Ontology:
    """The ontology all golden policies speak of."""
    path = Path(__file__).parent / "policy" / "site.toml"
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


@pytest.fixture(scope="session")
def every_form() -> Ontology:
    """An ontology that all forms of the language can speak of."""
    path = Path(__file__).parent / "policy" / "stages" / "site.toml"
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


@pytest.fixture(scope="session")
def situations() -> Ontology:
    """The ontology of the worked situations."""
    path = Path(__file__).parents[1] / "data" / "situations" / "site.toml"
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


@pytest.fixture
def compare(
    request: pytest.FixtureRequest,
) -> Callable[[Path, Callable[[dict[str, str]], str]], None]:
    """Runs a function on the parts of a golden file and compares, or rewrites."""

    def check(path: Path, produce: Callable[[dict[str, str]], str]) -> None:
        text = path.read_text(encoding="utf-8")
        pieces = _MARK.split(text)
        parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
        expected = parts.pop("expected", "")
        produced = produce(parts).rstrip("\n") + "\n"
        if request.config.getoption("--rewrite-golden", default=False):
            before = text.split("--- expected\n")[0]
            path.write_text(f"{before}--- expected\n{produced}", encoding="utf-8")
        else:
            assert produced == expected

    return check
