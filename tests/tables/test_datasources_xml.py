"""Tables declared in XML as listing 5.3 does. [PO-2]"""

import sqlite3
from pathlib import Path

import psycopg
import pytest

from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.declaration import TableDeclaration
from rapport.tables.tables import Tables
from support.servers.postgres import PostgresAddress

CONCEPTS = {
    "person": {"firstname": "text", "lastname": "text", "status": "text"},
    "room": {"coordinates": "rectangle"},
}
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<datasources xmlns="http://dvs.tu-darmstadt.de">
  <sqlsource server="london.dvs.informatik.tu-darmstadt.de" username="..." password="..."
    database="contextualization">
    <table name="persons" concept="Person" keyColumn="id">
      <column columnName="id" attributename="id" />
      <column columnName="firstname" attributename="firstname" />
      <column columnName="lastname" attributename="lastname" />
      <column columnName="type" attributename="status" />
    </table>
  </sqlsource>
  <xmlsource location="building_information.xml">
    <tag xpath="/floorplan/room" concept="Room" key="name">
      <element name="name" attributename="id" />
      <element name="coordinates" attributename="coordinates" />
    </tag>
  </xmlsource>
</datasources>
"""
SERVER = """server="london.dvs.informatik.tu-darmstadt.de" username="..." password="..."
    database="contextualization\""""
PLAN = """<floorplan>
  <room><name>lab</name><coordinates>0 0 10 10</coordinates></room>
  <room><name>hall</name><coordinates>10 0 20 5.5</coordinates></room>
</floorplan>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "building_information.xml").write_text(PLAN)
    with sqlite3.connect(tmp_path / "people.sqlite") as database:
        database.execute("CREATE TABLE persons (id, firstname, lastname, type)")
        database.execute("INSERT INTO persons VALUES (7, 'Ada', 'O''Hara', 'guest')")
    database.close()
    return tmp_path


def declared(site: Path, listing: str) -> tuple[list[TableDeclaration], list[Problem]]:
    (site / "datasources.xml").write_text(listing, encoding="utf-8")
    file = TomlFile.parse(b'[tables]\ndeclared_in = "datasources.xml"\n', name="site.toml")
    return tables_from_site(file, site, CONCEPTS)


def check(tables: Tables) -> None:
    people = tables.instances("person")
    assert people.ids == ["7"]
    assert people.columns["status"].tolist() == ["guest"]
    assert people.columns["lastname"].tolist() == ["O'Hara"]
    rooms = tables.instances("room")
    assert rooms.ids == ["lab", "hall"]
    assert rooms.columns["coordinates"][1].tolist() == [10.0, 0.0, 20.0, 5.5]


def test_the_listing_of_the_paper_is_read_word_for_word(site: Path) -> None:
    found, problems = declared(site, LISTING)
    assert [(problem.code, problem.severity) for problem in problems] == [
        ("settings.bare_secret", "warning")
    ]
    persons, rooms = found
    assert persons.login == {
        "host": "london.dvs.informatik.tu-darmstadt.de",
        "dbname": "contextualization",
        "user": "...",
        "password": "...",
    }
    assert persons.sql == 'SELECT "id", "firstname", "lastname", "type" FROM "persons"'
    assert (persons.concept, persons.key) == ("person", "id")
    assert (rooms.name, rooms.concept, rooms.xpath) == ("room", "room", "/floorplan/room")


def test_its_tables_load_from_an_sqlite_file(site: Path) -> None:
    found, problems = declared(site, LISTING.replace(SERVER, 'url="people.sqlite"'))
    assert problems == []
    check(Tables.load(site, found, CONCEPTS))


def test_a_lifetime_may_be_declared(site: Path) -> None:
    listing = LISTING.replace('key="name"', 'key="name" lifetime="10min"')
    assert [table.lifetime_ms for table in declared(site, listing)[0]] == [0, 600_000]


@pytest.mark.slow
def test_its_tables_load_from_postgresql(
    site: Path,
    postgres: PostgresAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {postgres.schema}")
        name = f"{postgres.schema}.persons"
        connection.execute(
            f"CREATE TABLE {name} (id int, firstname text, lastname text, type text)"
        )
        connection.execute(f"INSERT INTO {name} VALUES (7, 'Ada', 'O''Hara', 'guest')")
        host, user = connection.info.host, connection.info.user
        database = connection.info.dbname
    monkeypatch.setenv("PEOPLE_PASSWORD", "unused")
    server = f'server="{host}" username="{user}" password="env:PEOPLE_PASSWORD" '
    listing = LISTING.replace(SERVER, f'{server} database="{database}"')
    found, problems = declared(site, listing.replace('name="persons"', f'name="{name}"'))
    assert problems == []
    check(Tables.load(site, found, CONCEPTS))


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("</datasources>", "", "xml.not_well_formed"),
        ("<datasources xm", "<!DOCTYPE x><datasources xm", "xml.doctype_refused"),
        ("datasources", "sources", "tables.bad_listing"),
        ('concept="Person"', 'concept="Persons"', "tables.unknown_concept"),
        ('attributename="status"', 'attributename="state"', "tables.unknown_attribute"),
        ('keyColumn="id"', "", "tables.bad_listing"),
        ('keyColumn="id"', 'keyColumn="nr"', "tables.bad_listing"),
        ('columnName="type"', "", "tables.bad_listing"),
        ('location="building_information.xml"', 'location="other.xml"', "site.no_file"),
        ('xpath="/floorplan/room"', 'xpath="/floorplan/["', "tables.bad_xpath"),
        (SERVER, "", "tables.bad_listing"),
        (SERVER, 'url="postgresql://u:p@h/d"', "settings.bare_secret"),
        (SERVER, 'url="absent.sqlite"', "site.no_file"),
        ("<xmlsource", "<jsonsource/><xmlsource", "tables.bad_listing"),
        ('keyColumn="id"', 'keyColumn="id" lifetime="soon"', "site.bad_duration"),
    ],
)
def test_faults_are_reported_with_the_file(site: Path, old: str, new: str, code: str) -> None:
    listing = LISTING.replace(old, new)
    _found, problems = declared(site, listing)
    results = [problem for problem in problems if problem.code == code]
    assert results
    assert results[0].file == "datasources.xml"


def test_a_missing_listing_and_a_duplicate_table_are_reported(site: Path) -> None:
    text = b'[tables]\ndeclared_in = "absent.xml"\n'
    found, problems = tables_from_site(TomlFile.parse(text, name="site.toml"), site, CONCEPTS)
    assert (found, [problem.code for problem in problems]) == ([], ["site.no_file"])
    (site / "datasources.xml").write_text(LISTING)
    (site / "r.csv").write_text("id\n")
    text = b'[tables]\ndeclared_in = "datasources.xml"\n[tables.room]\ncsv = "r.csv"\nkey = "id"\n'
    found, problems = tables_from_site(TomlFile.parse(text, name="site.toml"), site, CONCEPTS)
    assert [table.name for table in found] == ["room", "persons"]
    assert "tables.declared_twice" in [problem.code for problem in problems]
