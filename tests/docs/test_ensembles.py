"""docs/tutorial/ensembles.md can be followed by a stranger, and prints what it says. [EN-1, EN-6,
EN-10, EN-13]
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import follow_page

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "ensembles.md"


def test_two_processes_find_each_other_as_the_page_says(tmp_path: Path) -> None:
    follow_page(PAGE, tmp_path, ports=["7511", "7512", "7513"], seconds=150)
