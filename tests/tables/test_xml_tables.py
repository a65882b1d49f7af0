"""Tables from XML files. [PO-2]"""

from pathlib import Path

import pytest

from rapport.core.errors import SiteError
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.tables import Tables

CONCEPTS = {"room": {"security": "text", "area": "rectangle", "seats": "number"}}
PLAN = """<?xml version="1.0" encoding="UTF-8"?>
<floorplan xmlns="urn:plans">
  <room no="R 1"><name>Büro "ä" &lt;1&gt;</name>
    <corner x="0" y="0"/><corner x="10" y="10.5"/><seats> 4 </seats></room>
  <hall no="H"><name>Hall</name><corner x="0" y="0"/><corner x="1" y="1"/></hall>
  <room no="R'2"><name/><corner x="5" y="5"/><corner x="6" y="6"/></room>
</floorplan>
"""
DECLARED = """
[tables.rooms]
xml = "plan.xml"
xpath = "/floorplan/room | /floorplan/hall"
key = "@no"
concept = "room"
columns = { security = "name", seats = "seats", area = ["corner[1]/@x", "corner[1]/@y",
  "corner[2]/@x", "corner[2]/@y"] }
"""


def declared_in(site: Path, text: str = DECLARED) -> tuple[list[object], list[str]]:
    file = TomlFile.parse(text.encode(), name="site.toml")
    found, problems = tables_from_site(file, site, CONCEPTS)
    return found, [problem.code for problem in problems]


def load(site: Path, plan: str = PLAN, text: str = DECLARED) -> Tables:
    (site / "plan.xml").write_text(plan, encoding="utf-8")
    found, codes = declared_in(site, text)
    assert codes == []
    return Tables.load(site, found, CONCEPTS)


def test_elements_are_rows_and_fields_are_found_by_paths(tmp_path: Path) -> None:
    tables = load(tmp_path)
    rooms = tables.instances("room")
    assert rooms.ids == ["R 1", "H", "R'2"]
    assert rooms.columns["security"].tolist() == ['Büro "ä" <1>', "Hall", None]
    assert rooms.columns["area"][0].tolist() == [0.0, 0.0, 10.0, 10.5]
    assert rooms.columns["seats"][0] == 4.0
    assert tables.lookup("rooms", "H", "name") == "Hall"
    assert {"@no", "name", "seats"} <= set(tables.columns()["rooms"])


def test_one_element_may_hold_all_parts_of_a_rectangle(tmp_path: Path) -> None:
    text = DECLARED[: DECLARED.index("columns")] + 'columns = { area = "c" }\n'
    plan = "<floorplan><room no='1'><c>0, 0; 2 3.5</c></room><room no='2'><c/></room></floorplan>"
    area = load(tmp_path, plan, text).instances("room").columns["area"]
    assert area[0].tolist() == [0.0, 0.0, 2.0, 3.5]
    with pytest.raises(SiteError) as caught:
        load(tmp_path, plan.replace("2 3.5", "2"), text)
    problem = caught.value.problems[0]
    assert (problem.code, problem.file, problem.line) == ("tables.bad_number", "plan.xml", 1)


def test_faults_name_the_line_where_the_element_begins(tmp_path: Path) -> None:
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PLAN.replace("R'2", "H").replace("> 4 <", "> four <"))
    found = [(p.file, p.line, p.code) for p in caught.value.problems]
    assert found == [
        ("plan.xml", 6, "tables.duplicate_key"),
        ("plan.xml", 3, "tables.bad_number"),
    ]
    assert "line 5" in caught.value.problems[0].message


def test_a_file_without_matching_elements_gives_no_rows_and_an_unknown_field_is_reported(
    tmp_path: Path,
) -> None:
    assert len(load(tmp_path, "<floorplan/>").instances("room")) == 0
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PLAN.replace("seats", "chairs"))
    problem = caught.value.problems[0]
    assert (problem.code, problem.message) == (
        "tables.missing_column",
        "there is no column 'seats'",
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (('"/floorplan/room | /floorplan/hall"', '"/floorplan/room["'), "tables.bad_xpath"),
        (('"@no"', '"following::x"'), "tables.bad_xpath"),
        (('security = "name"', 'security = "p:name"'), "tables.bad_xpath"),
        (('"plan.xml"', '"absent.xml"'), "site.no_file"),
        (('"plan.xml"', '"../plan.xml"'), "site.outside"),
        (('xml = "plan.xml"', ""), "site.missing_key"),
        (('key = "@no"', 'key = "@no"\ncsv = "a.csv"'), "tables.two_sources"),
        (('key = "@no"', 'key = "@no"\nnamespaces = 3'), "site.wrong_type"),
    ],
)
def test_faults_of_a_declaration_are_reported(
    tmp_path: Path, change: tuple[str, str], code: str
) -> None:
    (tmp_path / "plan.xml").write_text(PLAN, encoding="utf-8")
    found, codes = declared_in(tmp_path, DECLARED.replace(*change))
    assert code in codes
    assert found == []


def test_a_document_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError) as caught:
        load(tmp_path, '<!DOCTYPE a [<!ENTITY x SYSTEM "plan.xml">]><floorplan>&x;</floorplan>')
    assert caught.value.problems[0].code == "tables.doctype_refused"


@pytest.mark.slow
@pytest.mark.long
def test_a_hundred_thousand_elements_load_in_seconds(tmp_path: Path) -> None:
    corners = "<corner x='0' y='0'/><corner x='1' y='1'/>"
    rooms = "".join(
        f"<room no='{i}'><name>n{i}</name>{corners}<seats>1</seats></room>" for i in range(100_000)
    )
    clock = SystemClock()
    started = clock.steady_ns()
    tables = load(tmp_path, f"<floorplan>{rooms}</floorplan>")
    assert len(tables.instances("room")) == 100_000
    assert clock.steady_ns() - started < 60_000_000_000
