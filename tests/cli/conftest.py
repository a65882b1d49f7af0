from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def checks() -> Path:
    """The worked cases with their expected results."""
    return Path(__file__).parents[1] / "data" / "checks"
