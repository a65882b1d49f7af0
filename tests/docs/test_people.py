"""docs/tutorial/people.md can be followed by a stranger, and prints what it says. [CO-8, CO-10,
CO-16]
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.pages import follow_page

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "people.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_a_drill_is_held_answered_escalated_and_looked_up_as_the_page_says(tmp_path: Path) -> None:
    follow_page(PAGE, tmp_path, ports=["2525"], seconds=120)
