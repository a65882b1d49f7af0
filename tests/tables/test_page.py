"""What the page on tables shows can be declared as it stands. [PO-2]"""

import re
from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site

PAGE = Path(__file__).parents[2] / "docs/how-to/tables.md"
CONCEPTS = {
    "person": {"status": "text", "home": "point"},
    "room": {"area": "rectangle", "security": "text", "coordinates": "rectangle"},
    "zone": {"area": "area"},
    "truck": {"place": "geo_point"},
}
BLOCKS = re.findall(r"```(toml|xml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "toml"])
def test_tables_on_the_page_are_sound(tmp_path: Path, block: str) -> None:
    for name in re.findall(r'"([\w.]+\.(?:csv|xml|sqlite))"', block):
        (tmp_path / name).touch()
    lines = []
    for part in re.split(r"(?m)^(?=\[)", block):
        # The page leaves out what was said before.
        missing = [line for line in ('key = "id"\n',) if "key = " not in part]
        if "columns" in part and "concept" not in part:
            missing.append(f'concept = "{"room" if "area" in part else "person"}"\n')
        lines.append(part + "".join(missing if part.startswith("[tables.") else []))
    file = TomlFile.parse("".join(lines).encode(), name="site.toml")
    found, problems = tables_from_site(file, tmp_path, CONCEPTS)
    assert problems == []
    assert found


def test_the_listing_on_the_page_is_sound(tmp_path: Path) -> None:
    (listing,) = [text for kind, text in BLOCKS if kind == "xml"]
    (tmp_path / "datasources.xml").write_text(listing)
    (tmp_path / "building_information.xml").write_text("<floorplan/>")
    text = b'[tables]\ndeclared_in = "datasources.xml"\n'
    found, problems = tables_from_site(TomlFile.parse(text, name="site.toml"), tmp_path, CONCEPTS)
    assert (len(found), problems) == (2, [])
