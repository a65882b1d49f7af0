"""docs/concepts/conversions.md shows every kind of conversion, as data that can be read. [ME-4]"""

import re
from pathlib import Path
from typing import get_args

import msgspec

from rapport.mediation.conversion.conversions import How
from rapport.units.catalogue import UNITS

PAGE = (Path(__file__).parents[3] / "docs/concepts/conversions.md").read_text()


def test_every_line_of_data_on_the_page_is_a_kind_of_conversion() -> None:
    shown = [
        line
        for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    found = [msgspec.json.decode(line, type=How) for line in shown]  # type: ignore[var-annotated]
    for line, how in zip(shown, found, strict=True):
        written = msgspec.json.decode(msgspec.json.encode(how))
        unknown = set(msgspec.json.decode(line)) - set(written)
        assert not unknown, (line, unknown)
    assert {type(how) for how in found} == set(get_args(How))


def test_the_page_counts_the_units_rightly() -> None:
    dimensions = {unit.dimension for unit in UNITS}
    assert f"{len(UNITS)} units of {len(dimensions)} dimensions" in PAGE


def test_every_code_on_the_page_stands_in_the_sources() -> None:
    source = Path(__file__).parents[3] / "src/rapport"
    texts = "".join(
        path.read_text()
        for package in ("mediation", "units", "core")
        for path in (source / package).rglob("*.py")
    )
    for code in re.findall(r"`((?:time|place|currency|conversion)\.[a-z_]+)`", PAGE):
        assert f'"{code}"' in texts, code
