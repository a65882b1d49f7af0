"""A made-up week for back-tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.scenarios.year import Year, write_year
from rapport.site.site import Site, load_site
from support.servers.spark import spark  # noqa: F401

LASTING = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  (A is inside R AND
    no person B (status='employee') with (B is within 5 m of A AND B is inside R)) for 5 s
cleared by
  A is not inside R
actions
  raise alarm
"""


@pytest.fixture(scope="session")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a site with a history of a week; nobody changes it."""
    directory = tmp_path_factory.mktemp("week") / "site"
    write_year(directory, Year(readings=120_000, days=7, seed=8))
    slower = (directory / "alone.dpl").read_text().replace("actions", "  within 8 s\nactions")
    (directory / "slower.dpl").write_text(slower)
    once = slower.replace("within 8 s", "at most once per 1 h")
    (directory / "once.dpl").write_text(once)
    (directory / "lasting.dpl").write_text(LASTING)
    return directory


@pytest.fixture(scope="session")
def site(week: Path) -> Site:
    return load_site(week, policies=[])
