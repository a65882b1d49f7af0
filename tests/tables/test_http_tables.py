"""Tables from JSON by HTTP, from a real server. [PO-2]"""

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from rapport.core.errors import SiteError, SourceUnavailable
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.tables.config import tables_from_site
from rapport.tables.declaration import TableDeclaration
from rapport.tables.sources import fetch
from rapport.tables.tables import Tables
from support.servers.rows import RowsServer

CONCEPTS = {"person": {"status": "text", "age": "number", "armed": "boolean", "home": "point"}}
PEOPLE = [
    {"id": "p 1", "status": "guest", "age": 30.5, "armed": True, "home": {"x": 1, "y": -2e-3}},
    {"id": 2, "status": None, "home": [3, 4], "näme": "Ö'\"\n"},
]


def declared(server: RowsServer, **changes: object) -> TableDeclaration:
    given: dict[str, object] = {
        "name": "people",
        "concept": "person",
        "url": server.url,
        "rows": "data.items",
        "key": "id",
        "columns": {"status": ("status",), "age": ("age",), "armed": ("armed",)},
        "timeout_ms": 5_000,
    }
    return TableDeclaration(**(given | changes))


def load(site: Path, table: TableDeclaration) -> Tables:
    return Tables.load(site, [table], CONCEPTS)


def problem_of(site: Path, table: TableDeclaration) -> tuple[str, str]:
    with pytest.raises(SiteError) as caught:
        load(site, table)
    problem = caught.value.problems[0]
    assert problem.file == "[tables.people]"
    assert problem.hint
    return problem.code, problem.message


def give(server: RowsServer, items: object) -> None:
    server.body = msgspec.json.encode({"data": {"items": items}})


def test_objects_of_a_list_are_rows_and_nested_values_have_dotted_names(
    tmp_path: Path, rows_server: RowsServer
) -> None:
    give(rows_server, PEOPLE)
    columns = {"status": ("status",), "home": ("home.x", "home.y"), "armed": ("armed",)}
    tables = load(tmp_path, declared(rows_server, columns=columns))
    people = tables.instances("person")
    assert people.ids == ["p 1", "2"]
    assert people.columns["status"].tolist() == ["guest", None]
    assert people.columns["armed"].tolist() == [True, None]
    assert people.columns["home"][0].tolist() == [1.0, -0.002]
    assert tables.lookup("people", "2", "home.1") == "4"
    assert tables.lookup("people", "2", "näme") == "Ö'\"\n"


def test_an_empty_list_gives_no_rows(tmp_path: Path, rows_server: RowsServer) -> None:
    give(rows_server, [])
    assert len(load(tmp_path, declared(rows_server)).instances("person")) == 0


def test_secrets_of_headers_stand_elsewhere(
    tmp_path: Path, rows_server: RowsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(rows_server, PEOPLE)
    monkeypatch.setenv("ROSTER_TOKEN", "s3cret")
    (tmp_path / "key.txt").write_text("k-1\n")
    headers = {"Authorization": "Bearer env:ROSTER_TOKEN", "X-Key": "file:key.txt", "X-A": "b c"}
    load(tmp_path, declared(rows_server, headers=headers))
    requests = rows_server.asked[0]
    assert (requests["authorization"], requests["x-key"], requests["x-a"]) == (
        "Bearer s3cret",
        "k-1",
        "b c",
    )
    code, message = problem_of(tmp_path, declared(rows_server, headers={"X": "env:NOT_THERE"}))
    assert code == "settings.no_secret"
    monkeypatch.setenv("ROSTER_TOKEN", "s3cret\nHost: x")
    code, message = problem_of(tmp_path, declared(rows_server, headers=headers))
    assert code == "source.bad_address"
    assert "s3cret" not in message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 5_000, "not JSON"),
        (b"[]", "there is no 'data'"),
        (b'{"data": []}', "there is no 'items'"),
        (b'{"data": {"items": {}}}', "is an object, not a list"),
        (b'{"data": {"items": [1]}}', "row 1 is a number"),
        (b'{"data": {"items": [{"status": "x"}]}}', "there is no column 'id'"),
    ],
)
def test_documents_without_rows_are_reported(
    tmp_path: Path, rows_server: RowsServer, body: bytes, words: str
) -> None:
    rows_server.body = body
    _code, message = problem_of(tmp_path, declared(rows_server))
    assert words in message


def test_faults_of_rows_name_the_row(tmp_path: Path, rows_server: RowsServer) -> None:
    rows = [{"id": "1", "status": "a", "age": "old", "armed": 0}, {"id": "1", "age": 3}]
    give(rows_server, rows)
    with pytest.raises(SiteError) as caught:
        load(tmp_path, declared(rows_server))
    messages = [(problem.code, problem.message) for problem in caught.value.problems]
    assert messages == [
        ("tables.duplicate_key", "row 2, id: the key '1' stands already in row 1"),
        ("tables.bad_number", "row 1, age: 'old' is not a number"),
    ]


@pytest.mark.parametrize("status", [302, 401, 404, 500])
def test_other_answers_are_failures(tmp_path: Path, rows_server: RowsServer, status: int) -> None:
    rows_server.status = status
    rows_server.headers = {"Location": "http://127.0.0.1:1/elsewhere"}
    code, message = problem_of(tmp_path, declared(rows_server))
    assert code == "source.bad_status"
    assert str(status) in message
    assert len(rows_server.asked) == 1


def test_an_answer_that_breaks_off_is_a_failure(tmp_path: Path, rows_server: RowsServer) -> None:
    give(rows_server, PEOPLE)
    rows_server.cut_after = 20
    assert problem_of(tmp_path, declared(rows_server))[0] == "source.unreachable"


def test_nobody_listening_is_a_failure(tmp_path: Path, rows_server: RowsServer) -> None:
    table = declared(rows_server, url="http://127.0.0.1:1/people")
    assert problem_of(tmp_path, table)[0] == "source.unreachable"


@pytest.mark.parametrize("after", [0, 10])
def test_a_slow_answer_is_given_up_after_the_timeout(
    tmp_path: Path, rows_server: RowsServer, after: int
) -> None:
    give(rows_server, PEOPLE)
    rows_server.pause_after = after
    clock = SystemClock()
    started = clock.steady_ns()
    code, _message = problem_of(tmp_path, declared(rows_server, timeout_ms=200))
    assert code == "source.timeout"
    assert clock.steady_ns() - started < 5_000_000_000


def test_an_answer_that_is_too_large_is_not_read_to_its_end(rows_server: RowsServer) -> None:
    rows_server.body = b" " * 100_000
    with pytest.raises(SourceUnavailable) as caught:
        fetch(rows_server.url, {}, timeout_ms=5_000, most_bytes=1_000)
    assert caught.value.code == "source.too_large"


def test_an_unchanged_document_is_not_sent_again(rows_server: RowsServer) -> None:
    rows_server.body, rows_server.tag = b"[]", '"v1"'
    first = fetch(rows_server.url, {}, timeout_ms=5_000)
    assert (first.body, first.tag) == (b"[]", '"v1"')
    assert fetch(rows_server.url, {}, timeout_ms=5_000, tag=first.tag).body is None
    rows_server.tag = '"v2"'
    assert fetch(rows_server.url, {}, timeout_ms=5_000, tag=first.tag).body == b"[]"


@pytest.mark.parametrize("url", ["ftp://h/x", "http://", "http://h:99999999/", "nonsense"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(SourceUnavailable):
        fetch(url, {}, timeout_ms=200)


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ('url = "https://h/p"\nrows = "a.b"\nlifetime = "10min"\ntimeout = "2s"', []),
        ('url = "env:PEOPLE_URL"', []),
        ('url = "https://h/p"\nheaders = { Authorization = "Bearer env:T", Accept = "x" }', []),
        (
            'url = "https://h/p"\nheaders = { Authorization = "Bearer abc" }',
            ["settings.bare_secret"],
        ),
        ('url = "https://h/p"\nheaders = { X-Api-Key = "abc" }', ["settings.bare_secret"]),
        ('url = "https://h/p"\nheaders = { Accept = 3 }', ["site.wrong_type"]),
        ('url = "https://u:p@h/p"', ["settings.bare_secret"]),
        ('url = "ftp://h/p"', ["tables.bad_address"]),
        ('url = "http://h:x/p"', ["tables.bad_address"]),
        ('url = "http://h/a b"', ["tables.bad_address"]),
        ('url = ""', ["site.wrong_type"]),
        ('url = "https://h/p"\ntimeout = "1h"', ["site.out_of_range"]),
        ('url = "https://h/p"\nlifetime = "soon"', ["site.bad_duration"]),
        ('url = "https://h/p"\ndecimal = ";"', ["site.unknown_choice"]),
    ],
)
def test_declarations_are_checked(tmp_path: Path, lines: str, codes: list[str]) -> None:
    file = TomlFile.parse(f'[tables.t]\nkey = "id"\n{lines}\n'.encode(), name="site.toml")
    found, problems = tables_from_site(file, tmp_path, CONCEPTS)
    assert [problem.code for problem in problems] == codes
    assert len(found) == (not codes)


@pytest.mark.slow
@pytest.mark.long
def test_a_million_rows_load_and_one_more_is_refused(
    tmp_path: Path, rows_server: RowsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ",".join(f'{{"id":"p{i}","status":"s","age":{i % 90}}}' for i in range(1_000_000))
    rows_server.body = f'{{"data":{{"items":[{rows}]}}}}'.encode()
    table = declared(rows_server, columns={"status": ("status",), "age": ("age",)})
    table = msgspec.structs.replace(table, timeout_ms=60_000)
    tables = load(tmp_path, table)
    assert len(tables.instances("person")) == 1_000_000
    assert tables.lookup("people", "p999999", "status") == "s"
    monkeypatch.setattr("rapport.tables.rows.MOST_ROWS", 999_999)
    assert problem_of(tmp_path, table)[0] == "tables.too_many_rows"


def test_a_secret_address_is_not_shown() -> None:
    """An address may be a secret: `url = "env:ROSTER_URL"`."""
    with pytest.raises(SourceUnavailable) as caught:
        fetch("http://127.0.0.1:1/people?token=S3 CRET", {}, timeout_ms=1_000)
    assert caught.value.code == "source.bad_address"
    assert "CRET" not in caught.value.message + caught.value.hint


class _Elsewhere(BaseHTTPRequestHandler):
    """Sends everybody to another place with all that was asked, as servers do."""

    def do_GET(self) -> None:
        self.send_response(301)
        self.send_header("Location", f"https://roster.example{self.path}")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_redirect_is_reported_without_the_query() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = Thread(target=server.handle_request, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/people?token=S3CRET"
    try:
        with pytest.raises(SourceUnavailable) as caught:
            fetch(url, {}, timeout_ms=5_000)
    finally:
        thread.join(5)
        server.server_close()
    assert caught.value.code == "source.bad_status"
    assert "https://roster.example/people" in caught.value.hint
    assert "S3CRET" not in caught.value.message + caught.value.hint
