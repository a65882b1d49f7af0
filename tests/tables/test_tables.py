"""Loading pull data: joins, look-ups, versions, speed, and any bytes at all."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.core.errors import SiteError, UnknownName
from rapport.core.schema import AttributeType
from rapport.tables.declaration import TableDeclaration
from rapport.tables.instances import Instances
from rapport.tables.tables import Tables
from support.work import calls

CONCEPTS: dict[str, dict[str, AttributeType]] = {
    "person": {"status": "text", "age": "number", "armed": "boolean", "position": "point"},
    "room": {"security": "text", "area": "rectangle"},
}
PERSONS = TableDeclaration(
    name="persons",
    concept="person",
    csv="persons.csv",
    key="id",
    columns={"status": ("status",), "age": ("age",), "armed": ("armed",)},
)
ROOMS = TableDeclaration(
    name="rooms",
    concept="room",
    csv="rooms.csv",
    key="id",
    columns={"security": ("security",), "area": ("x1", "y1", "x2", "y2")},
)


def load(directory: Path, *declared: TableDeclaration) -> Tables:
    return Tables.load(directory, declared, CONCEPTS)


def write(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text, encoding="utf-8")


def test_columns_have_the_promised_form(tmp_path: Path) -> None:
    write(tmp_path, "persons.csv", "id,status,age,armed\n1,guest,30.5,yes\n2,,,\n")
    write(tmp_path, "rooms.csv", "id,x1,y1,x2,y2,security\nr1,0,0,10,10.5,restricted\n")
    tables = load(tmp_path, PERSONS, ROOMS)
    persons = tables.instances("person")
    assert persons.ids == ["1", "2"]
    assert persons.columns["status"].tolist() == ["guest", None]
    assert persons.columns["status"].dtype == object
    assert persons.columns["age"].dtype == np.float64
    assert persons.columns["age"][0] == 30.5
    assert np.isnan(persons.columns["age"][1])
    assert persons.columns["armed"].tolist() == [True, None]
    area = tables.instances("room").columns["area"]
    assert area.shape == (1, 4)
    assert area.tolist() == [[0.0, 0.0, 10.0, 10.5]]


def test_a_byte_order_mark_quotes_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    raw = '\ufeffid,status,age,armed\r\n1,"a, ""b""\nc",3,no\r\n\r\n2,x,4,1\r\n'
    (tmp_path / "persons.csv").write_bytes(raw.encode("utf-8"))
    persons = load(tmp_path, PERSONS).instances("person")
    assert persons.columns["status"].tolist() == ['a, "b"\nc', "x"]


def test_a_concept_without_a_table_has_no_instances(tmp_path: Path) -> None:
    rooms = load(tmp_path).instances("room")
    assert len(rooms) == 0
    assert rooms.columns["area"].shape == (0, 4)
    with pytest.raises(UnknownName):
        load(tmp_path).instances("rooom")


def test_tables_of_one_concept_are_joined_on_the_key(tmp_path: Path) -> None:
    write(tmp_path, "status.csv", "id,status\n1,guest\n2,employee\n")
    write(tmp_path, "ages.csv", "nr,age\n3,33\n2,22\n")
    one = TableDeclaration(
        name="status", concept="person", csv="status.csv", key="id", columns={"status": ("status",)}
    )
    other = TableDeclaration(
        name="ages", concept="person", csv="ages.csv", key="nr", columns={"age": ("age",)}
    )
    persons = load(tmp_path, one, other).instances("person")
    assert persons.ids == ["1", "2", "3"]
    assert persons.columns["status"].tolist() == ["guest", "employee", None]
    assert persons.columns["age"].tolist()[1:] == [22.0, 33.0]
    assert np.isnan(persons.columns["age"][0])


def test_the_fewest_tables_are_joined(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path, f"{name}.csv", f"id,status,age\n{name},{name},1\n")

    def declared(name: str, *attributes: str) -> TableDeclaration:
        columns = {attribute: (attribute,) for attribute in attributes}
        return TableDeclaration(
            name=name, concept="person", csv=f"{name}.csv", key="id", columns=columns
        )

    tables = load(
        tmp_path, declared("a", "status"), declared("b", "age"), declared("c", "status", "age")
    )
    assert tables.instances("person").ids == ["c"]


def test_a_table_without_a_concept_serves_look_ups(tmp_path: Path) -> None:
    write(tmp_path, "badges.csv", "tag,person,note\nE1,5,\nE2,5,lost\n")
    tables = load(tmp_path, TableDeclaration(name="badges", csv="badges.csv", key="tag"))
    assert tables.lookup("badges", "E2", "person") == "5"
    assert tables.lookup("badges", "E1", "note") is None
    assert tables.lookup("badges", "E9", "person") is None
    assert tables.columns() == {"badges": ("tag", "person", "note")}
    with pytest.raises(UnknownName) as caught:
        tables.lookup("badge", "E1", "person")
    assert "badges" in caught.value.hint
    with pytest.raises(UnknownName):
        tables.lookup("badges", "E1", "persn")


def test_the_version_changes_with_content_and_declaration_only(tmp_path: Path) -> None:
    write(tmp_path, "persons.csv", "id,status,age,armed\n1,guest,3,no\n")
    first = load(tmp_path, PERSONS).version()
    assert load(tmp_path, PERSONS).version() == first
    write(tmp_path, "persons.csv", "id,status,age,armed\n1,guest,4,no\n")
    assert load(tmp_path, PERSONS).version() != first


def test_instances_are_those_valid_at_the_time(tmp_path: Path) -> None:
    write(tmp_path, "persons.csv", "id,status,age,armed\n1,guest,3,no\n")
    tables = load(tmp_path, PERSONS)
    old = tables.instances("person")
    new = Instances("person", [], {})
    tables.add_version(1_000, new)
    assert tables.instances("person", at_ms=999) is old
    assert tables.instances("person", at_ms=1_000) is new
    assert tables.instances("person") is new


def test_faults_of_all_files_come_together(tmp_path: Path) -> None:
    write(tmp_path, "persons.csv", "id,status,age,armed\n1,guest,old,perhaps\n1,x,3,no\n")
    (tmp_path / "rooms.csv").write_bytes(b"id,x1,y1,x2,y2,security\nr1,0,0,1,1,gesch\xfctzt\n")
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PERSONS, ROOMS)
    found = [(p.file, p.line, p.column, p.code) for p in caught.value.problems]
    assert found == [
        ("persons.csv", 3, 1, "tables.duplicate_key"),
        ("persons.csv", 2, 3, "tables.bad_number"),
        ("persons.csv", 2, 4, "tables.bad_boolean"),
        ("rooms.csv", 2, 0, "tables.not_utf8"),
    ]


def test_a_fault_after_a_field_of_several_lines_has_the_right_line(tmp_path: Path) -> None:
    write(tmp_path, "persons.csv", 'id,status,age,armed\n1,"a\nb",1,no\n\n2,x,old,no\n')
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PERSONS)
    assert [problem.line for problem in caught.value.problems] == [5]


def test_ten_times_the_rows_cost_ten_times_as_much(tmp_path: Path) -> None:
    costs = []
    for count in (1_000, 10_000):
        rows = (f"r{i},{i},{i},{i + 1}.5,{i + 1},public" for i in range(count))
        write(tmp_path, "rooms.csv", "id,x1,y1,x2,y2,security\n" + "\n".join(rows))
        costs.append(calls(lambda: load(tmp_path, ROOMS)))
        assert len(load(tmp_path, ROOMS).instances("room")) == count
    assert costs[1] < 11 * costs[0], costs


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=200) | st.text("id,statuge\n\r\"'1\x00é;", max_size=60).map(str.encode)
)
def test_any_bytes_load_or_are_refused(raw: bytes, tmp_path: Path) -> None:
    for content in (raw, b"id,status,age,armed\n" + raw):
        (tmp_path / "persons.csv").write_bytes(content)
        try:
            load(tmp_path, PERSONS)
        except SiteError as error:
            assert all(problem.code.startswith("tables.") for problem in error.problems)


def test_a_table_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "persons.csv").mkdir()
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PERSONS)
    assert caught.value.problems[0].code == "tables.unreadable"


def test_faults_of_one_column_are_cut_off(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},x,old,no" for i in range(500))
    write(tmp_path, "persons.csv", f"id,status,age,armed\n{rows}\n")
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PERSONS)
    assert len(caught.value.problems) == 20
    write(tmp_path, "persons.csv", "id,status,age,armed\n" + "1,x,3,no\n" * 500)
    with pytest.raises(SiteError) as caught:
        load(tmp_path, PERSONS)
    assert len(caught.value.problems) == 20
