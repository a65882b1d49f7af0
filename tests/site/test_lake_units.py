"""`rapport check` says when the lake's readings are in another unit than the site's. [LK-2]"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rapport.lake.places import Lake
from rapport.lake.table import Table, field
from rapport.site.site import check_site

SITE = """
[site]
name = "greenhouse"

[concepts.room]
attributes = {{ warmth = "number" }}

[concepts.room.units]
warmth = "{unit}"

[sources.thermometers]
concept = "room"
attribute = "warmth"
key = "room"
value = ["value"]
"""


@pytest.mark.parametrize(
    ("unit", "found"),
    [
        ("degC", []),
        ("degF", [("lake.unit_changed", "warning", 9)]),
        ("m/s", [("lake.unit_conflict", "error", 9)]),
    ],
)
def test_a_unit_that_changed_is_found_at_its_line(
    unit: str, found: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    (tmp_path / "site.toml").write_text(SITE.format(unit=unit))
    before = check_site(tmp_path)
    schema = pa.schema([field("time", pa.int64()), field("value", pa.float64(), unit="degC")])
    lake = Lake.at(tmp_path / ".rapport" / "lake")
    Table.ensure(lake.table_uri("silver", "room.warmth"), schema)
    assert not [one for one in before if one.severity == "error"]
    new = [problem for problem in check_site(tmp_path) if problem not in before]
    assert [(one.code, one.severity, one.line) for one in new] == found
    assert all("has room.warmth in degC" in one.message for one in new)
