"""What docs/concepts/interpretations.md shows under "Declaring" is so. [ME-10]"""

import re
from pathlib import Path
from typing import Any

import pytest

from rapport.mediation.codegen.transformer import make_transformer
from rapport.mediation.declarations.conversion_tables import KINDS
from rapport.mediation.declarations.files import Declarations, read_declarations
from rapport.mediation.declarations.inference import complete_declarations, infer
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.type_changes import load_all

ROOT_DIRECTORY = Path(__file__).parents[3]
PAGE = (ROOT_DIRECTORY / "docs/concepts/interpretations.md").read_text()
DECLARING = PAGE.partition("## Declaring")[2].partition("## Problems")[0]


def snippet(kind: str, number: int = 0) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", DECLARING, re.DOTALL)[number]


def read(kind: Any, root: Interpretation, number: int = 0) -> Declarations:
    known = [each.name for each in root.types]
    found = read_declarations("page", snippet(kind, number).encode(), kind, known=known)
    assert not found.problems, found.problems
    return complete_declarations(found, root)


@pytest.mark.parametrize("kind", ["toml", "yaml", "xml"])
def test_the_example_in_each_form_is_in_force_and_the_same(kind: str, root: Interpretation) -> None:
    found = read(kind, root)
    assert found.interpretations == read("toml", root).interpretations
    abouts = {name: one.about for name, one in found.declared.items() if one.about}
    assert abouts == {"us/weather": "a weather service that counts in Fahrenheit"}
    held, outcomes = load_all([root, *found.interpretations.values()])
    assert "us/weather" in held, outcomes
    to_root = make_transformer(held, "us/weather", "UsWeather", "in")
    meant = {"key": "KJFK", "temperature": 25.0, "humidity": 80.0}
    assert to_root({"station": "KJFK", "temperature": 77, "humidity": 0.8}) == meant


def test_the_example_in_python_is_the_same(root: Interpretation) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(snippet("py"), "page", "exec"), names)
    expected = read("toml", root).interpretations["us/weather"]
    assert infer(names["us_weather"], root).interpretation == expected


def test_units_alone_are_in_force(root: Interpretation) -> None:
    held, outcomes = load_all([root, *read("toml", root, 1).interpretations.values()])
    assert "us" in held, outcomes
    assert "us station" in held.checked("us").scope.types


def test_every_kind_with_a_form_of_its_own_stands_in_the_table() -> None:
    table = DECLARING.partition("one kind:")[2].partition("**YAML**")[0]
    named = set(re.findall(r"`([a-z-]+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert named <= set(KINDS)
    assert len(named) == 13


def test_every_code_of_the_section_stands_in_the_sources() -> None:
    sources = "".join(
        path.read_text() for path in (ROOT_DIRECTORY / "src/rapport/mediation").rglob("*.py")
    )
    group = ""
    codes = DECLARING.partition("Codes besides")[2]
    for code in re.findall(r"`([a-z]*\.[a-z_]+)`", codes):
        group = code.partition(".")[0] or group
        assert f'"{group}.{code.partition(".")[2]}"' in sources, code
