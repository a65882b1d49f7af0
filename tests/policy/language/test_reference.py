"""The reference of the language says what the code does."""

import re
from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import compile_policy, parse_text
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.language.situations import is_situation

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs" / "reference" / "dpl.md").read_text(encoding="utf-8")
ROOMS = (
    "policy/language",
    "policy/compiler",
    "policy/lint",
    "policy/compiler/interpretation.py",
    "policy/delivery.py",
    "site",
)


@pytest.mark.parametrize("text", re.findall(r"```dpl\n(.*?)```", REFERENCE, re.DOTALL))
def test_the_examples_parse(text: str) -> None:
    assert parse_text(text, name="example").actions


def test_every_problem_code_is_listed_and_no_other() -> None:
    found: set[str] = set()
    for room in ROOMS:
        path = ROOT / "src" / "rapport" / room
        for source in [path] if path.suffix else sorted(path.glob("*.py")):
            found |= set(
                re.findall(r"\"(policy\.[a-z_0-9]+)\"", source.read_text(encoding="utf-8"))
            )
    listed = re.findall(r"^\| `(policy\.[a-z_0-9]+)` \|", REFERENCE, re.MULTILINE)
    assert sorted(listed) == listed
    assert set(listed) == found


SITE = """
[site]
zone = "Europe/Berlin"
[concepts.freezer.attributes]
site = "text"
temperature = "number"
[concepts.freezer.units]
temperature = "degC"
[concepts.station.attributes]
temperature = "number"
humidity = "number"
pm10 = "number"
[concepts.station.units]
temperature = "degC"
humidity = "%"
pm10 = "ug/m3"
[concepts.person.attributes]
status = "text"
position = "point"
[concepts.room.attributes]
security = "text"
area = "rectangle"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[relationships.within]
between = ["person.position", "person.position"]
function = "within"
[tables.holidays]
csv = "holidays.csv"
key = "date"
"""
SOURCE = """
[sources.{name}]
concept = "{concept}"
attribute = "{attribute}"
key = "key"
value = {value}
"""
SOURCES = (
    ("cold", "freezer", "temperature", '"v"'),
    ("heat", "station", "temperature", '"v"'),
    ("damp", "station", "humidity", '"v"'),
    ("dust", "station", "pm10", '"v"'),
    ("places", "person", "position", '["x", "y"]'),
)


def test_the_examples_of_situations_compile(tmp_path: Path) -> None:
    parts = ("name", "concept", "attribute", "value")
    sources = (SOURCE.format(**dict(zip(parts, each, strict=True))) for each in SOURCES)
    (tmp_path / "site.toml").write_text(SITE + "".join(sources))
    ontology, problems = ontology_from_site(TomlFile.load(tmp_path / "site.toml"))
    assert problems == []
    examples = re.findall(r"```dpl\n(.*?)```", REFERENCE, re.DOTALL)
    told = [text for text in examples if is_situation(text) or "\nwhile\n" in text]
    assert len(told) == 6
    for text in told:
        assert compile_policy(text, name="x", ontology=ontology, window_ms=5_000).problems == ()
