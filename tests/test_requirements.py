"""docs/requirements.md is true: every requirement once, existing modules and tests, tags that
agree.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COUNTS = {
    "CH": 18,
    "CN": 15,
    "CO": 18,
    "CX": 13,
    "EN": 14,
    "LK": 11,
    "ME": 17,
    "PI": 12,
    "PO": 17,
    "SI": 14,
    "UX": 9,
}
TAG = re.compile(r"\b((?:CH|CN|CO|CX|EN|LK|ME|PI|PO|SI|UX)-\d+)\b")


def rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs/requirements.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells and TAG.fullmatch(cells[0]):
            assert cells[0] not in found, f"{cells[0]} stands twice"
            found[cells[0]] = cells[1:]
    return found


def tags_of(path: Path) -> set[str]:
    """Tags in square brackets of the module's docstring."""
    text = path.read_text()
    docstring = text.split('"""')[1] if text.startswith('"""') else ""
    return {
        tag for brackets in re.findall(r"\[([^\]]+)\]", docstring) for tag in TAG.findall(brackets)
    }


def test_every_requirement_stands_in_the_list_once() -> None:
    expected = {f"{prefix}-{n}" for prefix, count in COUNTS.items() for n in range(1, count + 1)}
    assert set(rows()) == expected


OUTSIDE = ("tests/", "benchmarks/", "lab/")
"""Paths of the checkout; all others are those of the product."""


@pytest.mark.parametrize("requirement", sorted(rows()))
def test_what_is_claimed_has_a_module_and_a_test(requirement: str) -> None:
    _title, state, modules, tests, missing = rows()[requirement]
    assert state in ("done", "part", "missing")
    named = [name for cell in (modules, tests) for name in re.findall(r"`([^`]+)`", cell)]
    if state == "missing":
        assert not named
        return
    assert re.search("`", modules), "no module named"
    assert re.search("`", tests), "no test named"
    for name in named:
        base = ROOT if name.startswith(OUTSIDE) else ROOT / "src/rapport"
        path = base / name
        assert path.is_file() or any(path.glob("**/*.py")), f"{name} does not exist"
    assert state == "done" or missing, "what is missing must be said"


def test_tags_in_modules_agree_with_the_list() -> None:
    listed = rows()
    for path in sorted([*(ROOT / "src/rapport").rglob("*.py"), *(ROOT / "lab").rglob("*.py")]):
        name = path.relative_to(ROOT).as_posix()
        for tag in tags_of(path):
            assert tag in listed, f"{name} names {tag}, which does not exist"
            assert listed[tag][1] != "missing", f"{name} claims {tag}, the list says missing"
