"""docs/tutorial/context.md can be followed by a stranger, and prints what it says. [CX-3, CX-4,
CX-5, CX-8]
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.pages import follow_page

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "context.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_a_policy_asks_the_network_as_the_page_says(tmp_path: Path) -> None:
    follow_page(PAGE, tmp_path, ports=["7411", "7421", "7431", "7441"], seconds=150)
