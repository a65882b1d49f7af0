"""Tables from queries: an SQLite file of the site, and PostgreSQL. [PO-2]"""

import sqlite3
from pathlib import Path

import pytest

from rapport.core.errors import SiteError, UnknownName
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.declaration import TableDeclaration
from rapport.tables.sources import read_query
from rapport.tables.tables import Tables
from support.servers.postgres import PostgresAddress

CONCEPTS = {"person": {"status": "text", "age": "number", "armed": "boolean"}}
PERSONS = TableDeclaration(
    name="persons",
    concept="person",
    sql="SELECT id, status, age, armed FROM persons ORDER BY id",
    database="people.sqlite",
    key="id",
    columns={"status": ("status",), "age": ("age",), "armed": ("armed",)},
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    database = sqlite3.connect(tmp_path / "people.sqlite")
    database.execute("CREATE TABLE persons (id INTEGER, status TEXT, age REAL, armed TEXT)")
    rows = [(1, "guest", 30.5, "yes"), (2, 'staff, "night"\nshift', None, "no")]
    database.executemany("INSERT INTO persons VALUES (?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    return tmp_path


def load(site: Path, **changes: object) -> Tables:
    given = {name: getattr(PERSONS, name) for name in PERSONS.__struct_fields__} | changes
    return Tables.load(site, [TableDeclaration(**given)], CONCEPTS)


def code_of(site: Path, **changes: object) -> str:
    with pytest.raises(SiteError) as caught:
        load(site, **changes)
    return caught.value.problems[0].code


def test_a_query_of_an_sqlite_file_gives_instances_and_look_ups(site: Path) -> None:
    tables = load(site)
    instances = tables.instances("person")
    assert instances.ids == ["1", "2"]
    assert instances.columns["age"][0] == 30.5
    assert instances.columns["armed"].tolist() == [True, False]
    assert tables.lookup("persons", "2", "status") == 'staff, "night"\nshift'
    assert tables.lookup("persons", "2", "age") is None
    assert tables.columns() == {"persons": ("id", "status", "age", "armed")}


def test_rows_of_some_columns_are_in_order(site: Path) -> None:
    tables = load(site)
    assert tables.rows("persons", ("armed", "id")) == [("yes", "1"), ("no", "2")]
    for call in (("people", ("id",)), ("persons", ("nr",))):
        with pytest.raises(UnknownName):
            tables.rows(*call)


def test_the_version_changes_with_the_rows(site: Path) -> None:
    before = load(site).version()
    assert load(site).version() == before
    with sqlite3.connect(site / "people.sqlite") as database:
        database.execute("UPDATE persons SET status = 'staff'")
    database.close()
    assert load(site).version() != before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sql": "SELECT nothing FROM persons"}, "tables.bad_query"),
        ({"sql": "DELETE FROM persons"}, "tables.bad_query"),
        ({"sql": "SELECT 1; SELECT 2"}, "tables.bad_query"),
        ({"sql": ""}, "tables.bad_query"),
        ({"database": "absent.sqlite"}, "tables.no_database"),
        ({"database": "env:NO_SUCH_VARIABLE"}, "settings.no_secret"),
        ({"key": "nr"}, "tables.missing_column"),
        (
            {"sql": "SELECT status AS id, 'x' AS status, 'old' AS age, 1 AS armed FROM persons"},
            "tables.bad_number",
        ),
        ({"sql": "SELECT 1 AS id, * FROM persons"}, "tables.repeated_column"),
        (
            {"sql": "SELECT 1 AS id, status, age, armed FROM persons"},
            "tables.duplicate_key",
        ),
    ],
)
def test_faults_of_a_query_are_reported(site: Path, changes: dict[str, object], code: str) -> None:
    assert code_of(site, **changes) == code


def test_a_query_cannot_change_the_database(site: Path) -> None:
    assert (
        code_of(site, sql="DELETE FROM persons RETURNING id, status, age, armed")
        == "tables.bad_query"
    )
    assert len(load(site).instances("person")) == 2


def test_a_file_that_is_no_database_is_refused(site: Path) -> None:
    (site / "other.sqlite").write_bytes(b"not a database at all, but long enough to look" * 100)
    assert code_of(site, database="other.sqlite") == "tables.bad_query"


def test_a_query_without_end_is_ended(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rapport.tables.sources._MOST_LOOKS", 3)
    endless = (
        "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
        "SELECT max(id) AS id, 'x' AS status, 1 AS age, 'no' AS armed FROM n"
    )
    assert code_of(site, sql=endless) == "tables.bad_query"


def test_more_rows_than_can_be_held_are_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rapport.tables.rows.MOST_ROWS", 1)
    assert code_of(site) == "tables.too_many_rows"


def test_rows_may_have_several_key_columns(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(
        "currency,rate,valid_from\nUSD,1.1,2026-01-01\nUSD,1.2,2026-02-01\n"
    )
    declared = TableDeclaration(
        name="rates", csv="rates.csv", key="currency", further_keys=("valid_from",)
    )
    tables = Tables.load(tmp_path, [declared], {})
    assert tables.lookup("rates", "USD/2026-02-01", "rate") == "1.2"
    assert tables.rows("rates", ("currency", "rate")) == [("USD", "1.1"), ("USD", "1.2")]


def declared_in(site: Path, text: str) -> tuple[list[TableDeclaration], list[str]]:
    file = TomlFile.parse(text.encode(), name="site.toml")
    found, problems = tables_from_site(file, site, CONCEPTS)
    return found, [problem.code for problem in problems]


def test_queries_and_keys_of_several_columns_are_declared(site: Path) -> None:
    found, codes = declared_in(
        site,
        """
        [tables.persons]
        sql = "SELECT id, status FROM persons"
        database = "people.sqlite"
        key = "id"
        concept = "person"
        columns = { status = "status" }
        [tables.rates]
        sql = "SELECT currency, rate, day FROM rates"
        database = "env:RATES_DSN"
        key = ["currency", "day"]
        """,
    )
    assert codes == []
    assert [(each.name, each.key, each.further_keys) for each in found] == [
        ("persons", "id", ()),
        ("rates", "currency", ("day",)),
    ]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ('csv = "a.csv"\nsql = "SELECT 1"\ndatabase = "people.sqlite"', "tables.two_sources"),
        ('sql = "SELECT 1"', "site.missing_key"),
        ('database = "people.sqlite"', "site.missing_key"),
        ('sql = "SELECT 1"\ndatabase = "absent.sqlite"', "site.no_file"),
        ('sql = "SELECT 1"\ndatabase = "postgresql://u:p@h/d"', "settings.bare_secret"),
        ('http = "x"', "site.missing_key"),
        ('context = "people near"', "tables.no_ids"),
        ('context = "people near the gate"\nids = ["7"]', "site.wrong_type"),
        ('context = "person badge"\nids = ["7"]\nids_from = "t"', "tables.no_ids"),
        ('context = "person badge"\nids_from = "absent"', "tables.unknown_table"),
        ('context = "person badge"\nids = ["7"]\ntimeout = "2min"', "site.out_of_range"),
        ("", "site.missing_key"),
    ],
)
def test_faults_of_a_declaration_are_reported(site: Path, lines: str, code: str) -> None:
    found, codes = declared_in(site, f'[tables.t]\nkey = "id"\n{lines}\n')
    assert code in codes
    assert found == []


@pytest.mark.slow
def test_a_query_of_postgresql_gives_the_same(
    site: Path,
    postgres: PostgresAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PEOPLE_DSN", postgres.dsn)
    query = """
        SELECT * FROM (VALUES (1, 'guest', 30.5, true), (2, 'staff', NULL, false))
        AS persons(id, status, age, armed)
    """
    tables = load(site, database="env:PEOPLE_DSN", sql=query)
    assert tables.instances("person").columns["armed"].tolist() == [True, False]
    assert tables.lookup("persons", "1", "age") == "30.5"
    assert (
        code_of(site, database="env:PEOPLE_DSN", sql="CREATE TABLE t (a int)") == "tables.bad_query"
    )
    assert code_of(site, database="env:PEOPLE_DSN", sql="SELECT nothing") == "tables.bad_query"
    monkeypatch.setenv("PEOPLE_DSN", "postgresql://127.0.0.1:1/nowhere")
    assert code_of(site, database="env:PEOPLE_DSN", sql="SELECT 1") == "tables.bad_query"


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("host=127.0.0.1 password=my S3CRET user=u", id="space"),
        pytest.param("postgresql://u:S3CRET%zz@127.0.0.1/db", id="percent"),
        pytest.param("postgresql://u:x@S3CRET@127.0.0.1/db", id="at"),
        pytest.param("postgresql://u:S3CRET/x@127.0.0.1/db", id="slash"),
    ],
)
def test_a_wrongly_escaped_password_is_not_shown(tmp_path, address):
    pytest.importorskip("psycopg")
    (tmp_path / "people.dsn").write_text(address)
    with pytest.raises(SiteError) as caught:
        read_query("file:people.dsn", "SELECT 1", tmp_path, name="[tables.people]")
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("tables.bad_address", "[tables.people]")
    assert problem.hint
    assert "S3CRET" not in str(caught.value) + repr(problem)


@pytest.mark.parametrize(
    ("address", "code"),
    [
        pytest.param("user=u password=S3CRET host=127.0.0.1 port=1", "tables.bad_query", id="user"),
        pytest.param("PostgreSQL://u:S3CRET@127.0.0.1:1/db", "tables.bad_address", id="capitals"),
        pytest.param("mysql://u:S3CRET@127.0.0.1/db", "tables.no_database", id="other"),
        pytest.param("S3CRET" * 1_000, "tables.no_database", id="long"),
    ],
)
def test_the_content_of_a_secret_is_never_shown(tmp_path, address, code):
    """Also where it is no address of PostgreSQL, and so taken for the name of a file."""
    pytest.importorskip("psycopg")
    (tmp_path / "people.dsn").write_text(address)
    with pytest.raises(SiteError) as caught:
        read_query("file:people.dsn", "SELECT 1", tmp_path, name="[tables.people]")
    assert [problem.code for problem in caught.value.problems] == [code]
    assert "S3CRET" not in str(caught.value) + repr(caught.value.problems)
