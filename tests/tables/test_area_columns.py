"""Areas and positions in the columns of tables: each form, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import SiteError
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.sources import rows_of_json
from rapport.tables.tables import Tables

CONCEPTS = {
    "zone": {"area": "area", "spot": "geo_point", "district": "geo_area"},
}
HEAD = '[tables.zones]\nconcept = "zone"\ncsv = "zones.csv"\nkey = "id"\n'


def load(directory: Path, columns: str, rows: str, *more: str) -> Tables:
    (directory / "zones.csv").write_text(rows)
    text = "\n".join([HEAD + f"columns = {columns}", *more]) + "\n"
    site = TomlFile.parse(text.encode(), name="site.toml")
    declared, problems = tables_from_site(site, directory, CONCEPTS)
    if problems:
        raise SiteError(problems)
    return Tables.load(directory, declared, CONCEPTS)


def areas_of(directory: Path, columns: str, rows: str, *more: str) -> list[str | None]:
    found = load(directory, columns, rows, *more).instances("zone").columns["area"]
    assert found.dtype == object
    return found.tolist()


def test_each_row_gives_its_area_in_one_of_the_declared_forms(tmp_path: Path) -> None:
    columns = (
        '{ area = { polygon = "outline", circle = ["x", "y", "r"], '
        'rectangle = ["x1", "y1", "x2", "y2"] } }'
    )
    rows = (
        "id,outline,x,y,r,x1,y1,x2,y2\n"
        'a,"0 0, 4 0, 4 3",,,,,,,\n'
        "b,,1,2,2.5,,,,\n"
        "c,,,,,0,0,2,1\n"
        "d,,,,,,,,\n"
    )
    assert areas_of(tmp_path, columns, rows) == [
        "POLYGON ((0 0, 4 0, 4 3, 0 0))",
        "CIRCLE (1 2 2.5)",
        "POLYGON ((0 0, 2 0, 2 1, 0 1, 0 0))",
        None,
    ]


def test_one_column_holds_the_text_of_any_area(tmp_path: Path) -> None:
    rows = 'id,outline\na,"POLYGON ((0 0, 4 0, 4 3))"\nb,CIRCLE (1 2 3)\nc,\n'
    expected = ["POLYGON ((0 0, 4 0, 4 3, 0 0))", "CIRCLE (1 2 3)", None]
    assert areas_of(tmp_path, '{ area = "outline" }', rows) == expected


def test_a_decimal_comma_counts_for_numbers_and_plain_lists(tmp_path: Path) -> None:
    columns = '{ area = { polygon = "outline", circle = ["x", "y", "r"] } }'
    rows = 'id,outline,x,y,r\na,0 0; 1 0; 1 0\\,5,,,\nb,,"0,5","1,5",2\n'.replace("\\,5", "")
    rows = rows.replace("0 0; 1 0; 1 0", '"0 0; 1 0; 1 0,5"')
    assert areas_of(tmp_path, columns, rows, 'decimal = ","') == [
        "POLYGON ((0 0, 1 0, 1 0.5, 0 0))",
        "CIRCLE (0.5 1.5 2)",
    ]


@pytest.mark.parametrize(
    ("columns", "row", "shown"),
    [
        (
            '{ area = "outline" }',
            'a,"POLYGON ((0 0, 4 4, 4 0, 0 4))",,,',
            "zones.csv:2:2: the outline crosses itself near 4 0",
        ),
        (
            '{ area = { circle = ["x", "y", "r"] } }',
            "a,,1,2,",
            "zones.csv:2:5: '' is not a number of the circle",
        ),
        (
            '{ area = { circle = ["x", "y", "r"] } }',
            "a,,1,2,-4",
            "zones.csv:2:3: -4 is no radius",
        ),
        (
            '{ area = { polygon = "outline", circle = ["x", "y", "r"] } }',
            'a,"0 0, 4 0, 4 3",1,2,3',
            "zones.csv:2:3: the row gives a polygon and a circle",
        ),
        (
            '{ district = "outline" }',
            'a,"POLYGON ((0 0, 4 91, 4 0))",,,',
            "zones.csv:2:2: 4 91 is no longitude and latitude",
        ),
        (
            '{ spot = ["x", "y"] }',
            "a,,52.5,213.4,",
            "zones.csv:2:3: 52.5 213.4 is no longitude and latitude",
        ),
    ],
)
def test_what_is_no_area_is_refused_at_its_row_with_a_hint(
    tmp_path: Path, columns: str, row: str, shown: str
) -> None:
    with pytest.raises(SiteError) as refused:
        load(tmp_path, columns, f"id,outline,x,y,r\n{row}\n")
    [problem] = refused.value.problems
    assert f"{problem.file}:{problem.line}:{problem.column}: {problem.message}" == shown
    assert problem.code in ("tables.bad_area", "tables.bad_position")
    assert problem.hint


@pytest.mark.parametrize(
    ("columns", "code", "hint"),
    [
        ('{ area = ["x", "y", "r"] }', "tables.wrong_parts", '{ circle = ["x", "y", "r"] }'),
        ('{ area = { circle = ["x", "y"] } }', "tables.wrong_parts", '["x", "y", "radius"]'),
        ('{ area = { cirkle = ["x", "y", "r"] } }', "site.unknown_key", "circle"),
        ("{ area = { circle = 3 } }", "site.wrong_type", ""),
        ('{ spot = ["x", "y", "r"] }', "tables.wrong_parts", '["lon", "lat"]'),
    ],
)
def test_columns_that_are_declared_wrongly_are_refused(
    tmp_path: Path, columns: str, code: str, hint: str
) -> None:
    with pytest.raises(SiteError) as refused:
        load(tmp_path, columns, "id,x,y,r\na,1,2,3\n")
    first = refused.value.problems[0]
    assert first.code == code
    assert hint in first.hint


def test_an_area_that_is_an_object_of_a_json_document_is_read_whole() -> None:
    document = (
        b'[{"id": "a", "outline": {"type": "Polygon", "coordinates":'
        b" [[[0, 0], [4, 0], [4, 3], [0, 0]]]}},"
        b' {"id": "b", "outline": [[0, 0], [4, 0], [4, 3]]}]'
    )
    rows = rows_of_json(document, "", ["id", "outline", "outline.coordinates"], name="zones")
    assert rows.column("outline") == [
        '{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,3],[0,0]]]}',
        "0 0 4 0 4 3",
    ]
    assert rows.column("outline.coordinates")[0] == "[[[0,0],[4,0],[4,3],[0,0]]]"
