"""A made-up history of odd numbers: made, or refused with a reason. [PI-9, UX-7]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput
from rapport.scenarios.year import Year, write_year


@pytest.mark.parametrize(
    "year",
    [Year(first="9999-12-20", days=31), Year(days=0), Year(days=40_000)],
    ids=["beyond the last day", "none", "too many"],
)
def test_days_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, year: Year
) -> None:
    with pytest.raises(InvalidInput) as refused:
        write_year(tmp_path / "site", year)
    assert refused.value.code == "year.bad_days"
    assert refused.value.hint
    assert not (tmp_path / "site").exists()


def test_any_whole_number_is_a_seed(tmp_path: Path) -> None:
    few = Year(readings=2_000, days=2, seed=-1)
    assert write_year(tmp_path / "site", few).files == 2
