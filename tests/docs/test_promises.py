"""docs/concepts/promises.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "concepts" / "promises.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and " | " in line[2:]]
    promises = [row for row in rows if not row.startswith("| promise |")]
    assert len(promises) > 30
    for row in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert all((ROOT / name).is_file() for name in named), row
