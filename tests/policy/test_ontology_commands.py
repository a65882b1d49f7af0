"""`rapport ontology`: show, check, export and import from the terminal."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from rapport.cli.main import run

SITE = """
[concepts.person.attributes]
status = "text"
position = "point"
[concepts.guest]
is = "person"
where = { status = "guest" }
[concepts.room.attributes]
area = "rectangle"
[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[functions.distance]
of = ["person.position", "person.position"]
measure = "distance"
[sources.badges]
concept = "person"
attribute = "position"
key = "k"
value = ["x", "y"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def test_showing_names_where_every_attribute_comes_from(
    site: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["ontology", "show", "--site", str(site)]) == 0
    shown = capfd.readouterr().out
    assert "person\tposition\tpoint\t\tevents: badges" in shown
    assert "person\tstatus\ttext\t\tnothing gives it" in shown
    assert "guest\tis person\tstatus = 'guest'" in shown
    assert "distance\tperson.position, person.position\tmeasured: distance\tm" in shown


def test_the_drawing_is_well_formed(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.svg"
    assert run(["ontology", "show", "--site", str(site), "--svg", "--out", str(out)]) == 0
    texts = ["".join(node.itertext()) for node in ElementTree.parse(out).iter()]
    assert "PERSON" in texts
    assert "inside(person.position, room.area)" in texts


@pytest.mark.parametrize("kind", ["turtle", "rdfxml"])
def test_what_is_exported_can_be_imported(
    site: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    out = tmp_path / "exported"
    command = ["ontology", "export", "--site", str(site), "--format", kind, "--out", str(out)]
    assert run(command) == 0
    assert "the function 'distance'" in capfd.readouterr().err
    assert run(["ontology", "import", str(out)]) == 0
    assert 'where = { status = "guest" }' in capfd.readouterr().out


def test_a_faulty_ontology_is_reported_and_exits_with_1(
    site: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (site / "site.toml").write_text(SITE + '[concepts.a]\nis = "a"\n')
    assert run(["ontology", "check", "--site", str(site)]) == 1
    assert "ontology.cycle" in capfd.readouterr().err
    assert run(["ontology", "check", "--site", str(site), "--json"]) == 1
    assert '"ontology.cycle"' in capfd.readouterr().out


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"<a> <b>", b"<?xml version='1.0'?><x"])
def test_a_file_that_cannot_be_read_is_wrong_use(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(raw)
    assert run(["ontology", "import", str(file)]) == 2
    assert run(["ontology", "import", str(tmp_path / "absent")]) == 2


def test_a_base_that_cannot_begin_a_name_is_refused(site: Path) -> None:
    assert run(["ontology", "export", "--site", str(site), "--base", "no good"]) == 2
