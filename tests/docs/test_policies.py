"""docs/tutorial/policies.md can be followed by a stranger, and prints what it says. [PO-3, PO-9,
PO-11, PO-17]
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.pages import follow_page

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "policies.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
@pytest.mark.skipif(shutil.which("awk") is None, reason="the page uses awk")
def test_a_policy_is_written_tried_run_asked_and_changed_as_the_page_says(tmp_path: Path) -> None:
    follow_page(PAGE, tmp_path)
