"""The reference of the language says what the code does."""

import re
from pathlib import Path

import pytest

from rapport.policy.compiler.compile import parse_text

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
