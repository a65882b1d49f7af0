"""Reading the rows of a source: CSV files, SQL queries, JSON over HTTP, and a dispatch to XML and
context. [PO-2, ME-4, UX-4]

Values are converted to the text that a person would write into a CSV file, so faults, keys and
versions are the same for every kind. Connections to databases are read-only. HTTP documents are
bounded in time and size, and fetched only if they changed. Redirects are not followed: the site
names this address, not another. Secrets stand elsewhere: `env:NAME`, `file:PATH`. All calls block;
background work runs them in a thread.
"""

from __future__ import annotations

import csv
import http.client
import io
import re
import socket
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from rapport.core.errors import InvalidInput, Problem, SiteError, SourceUnavailable
from rapport.kernel.files import is_file
from rapport.kernel.settings import read_secret
from rapport.tables.context_source import ContextSource, context_query, rows_of_context
from rapport.tables.declaration import TableDeclaration
from rapport.tables.rows import (
    MAX_FAULTS,
    MOST_ROWS,
    LooseRows,
    RowFile,
    check_size,
    content_digest,
    field_text,
    repeated_headings,
    rows_digest,
    unusable_table,
)
from rapport.tables.xml_source import read_xml_file

_SECRET_WORDS = ("authorization", "cookie", "token", "secret", "password", "key")


def is_reference(text: str) -> bool:
    """Whether a text refers to a secret."""
    return text.startswith(("env:", "file:"))


def secret_or_plain(text: str, directory: Path) -> str:
    """The content of `env:NAME` or `file:PATH`, any other text unchanged; raises InvalidInput."""
    return read_secret(text, directory) if is_reference(text) else text


def looks_secret(name: str) -> bool:
    """Whether a header of this name carries a credential."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def resolve_secrets(headers: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The headers with their secrets; raises InvalidInput when a secret is missing.

    A reference may follow a word: `Bearer env:TOKEN`.
    """
    found = {}
    for name, value in headers.items():
        head, space, last = value.rpartition(" ")
        found[name] = head + space + secret_or_plain(last, directory)
    return found


_MAX_FIELD = 1 << 20


class CsvFile(RowFile):
    """The rows of a CSV file by column, with the text they came from."""

    def __init__(self, name: str, text: str, header: list[str], rows: list[list[str]]) -> None:
        super().__init__(name, header, rows, content_digest(text.encode("utf-8", "surrogatepass")))
        self._text = text

    def line_of(self, row: int) -> int:
        """The line in which a row ends; parses the text again."""
        reader = csv.reader(io.StringIO(self._text, newline=""), strict=True)
        next(reader)
        found = -1
        for fields in reader:
            found += bool(fields)
            if found == row:
                break
        return reader.line_num


def read_csv(path: Path, *, name: str) -> CsvFile:
    """Reads the file; raises SiteError with its faults. Skips empty lines and a BOM."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        message, hint = f"cannot read {name}: {error.strerror}", "look at the file's rights"
        raise unusable_table(name, "tables.unreadable", message, hint) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message, hint = f"{name} is not UTF-8 text", "save it as CSV UTF-8"
        raise unusable_table(name, "tables.not_utf8", message, hint, line=line) from None
    return parse_csv(name, text)


def parse_csv(name: str, text: str) -> CsvFile:
    """The rows of a CSV text; raises SiteError with its faults."""
    limit = csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        message = f"the line is not CSV: {error}"
        hint = 'put fields with " or line breaks in quotes'
        raise unusable_table(name, "tables.bad_csv", message, hint, line=reader.line_num) from None
    finally:
        csv.field_size_limit(limit)
    if not rows:
        hint = "the first line names the columns"
        raise unusable_table(name, "tables.no_header", "the file is empty", hint, line=1)
    check_size(name, len(rows) - 1)
    header = [heading.strip() for heading in rows[0]]
    file = CsvFile(name, text, header, rows[1:])
    faults = [*repeated_headings(name, header), *_ragged_rows(file, rows[1:])]
    if faults:
        raise SiteError(faults)
    return file


def _ragged_rows(file: CsvFile, rows: list[list[str]]) -> list[Problem]:
    width = len(file.header)
    ragged = [index for index, row in enumerate(rows) if len(row) != width]
    return [
        Problem(
            file=file.name,
            line=file.line_of(index),
            column=min(len(rows[index]), width) + 1,
            code="tables.ragged_row",
            message=f"the row has {len(rows[index])} fields, the header {width}",
            hint="put a field that holds a comma in double quotes",
        )
        for index in ragged[:MAX_FAULTS]
    ]


_STEPS_PER_LOOK = 1_000_000
_MOST_LOOKS = 3_000
"""A query that needs more steps of SQLite's machine than the product, a minute or so, is ended."""
_SECONDS = 60
_ROWS_READ = MOST_ROWS + 1
"""One more than are held, so that too many are noticed and not read."""
_POSTGRES = re.compile(
    r"\s*(postgres(ql)?://"
    r"|(host|hostaddr|port|dbname|user|password|passfile|service|sslmode|options)\s*=)",
    re.IGNORECASE,
)

Rows = tuple[list[str], Sequence[Sequence[Any]]]


def read_query(
    database: str,
    query: str,
    directory: Path,
    *,
    name: str,
    login: Mapping[str, str] | None = None,
) -> RowFile:
    """The rows of a query; raises SiteError. `database` is an SQLite file, or a secret
    (`env:NAME`, `file:PATH`) with the address of a PostgreSQL database; with `login` it is the
    PostgreSQL server that this describes.
    """
    try:
        address = secret_or_plain(database, directory)
        known = {key: secret_or_plain(value, directory) for key, value in (login or {}).items()}
    except InvalidInput as error:
        raise unusable_table(name, error.code, error.message, error.hint) from None
    if known or _POSTGRES.match(address):
        header, rows = _from_postgres(address, known, query, name)
    else:
        header, rows = _from_sqlite(directory / address, query, name, shown=database)
    check_size(name, len(rows))
    if faults := repeated_headings(name, header):
        raise SiteError(faults)
    fields = [[_sql_field(value) for value in row] for row in rows]
    return RowFile(name, header, fields, rows_digest(header, fields))


def _from_sqlite(path: Path, query: str, name: str, *, shown: str) -> Rows:
    """`shown`: the name of the database in the site file; secrets are never shown."""
    if not is_file(path):
        hint = "the path is relative to the site directory; PostgreSQL is named by env: or file:"
        raise unusable_table(
            name, "tables.no_database", f"there is no database {shown[:60]!r}", hint
        )
    looks = iter(range(_MOST_LOOKS))
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise _query_failed(name, error) from None
    try:
        connection.set_progress_handler(lambda: int(next(looks, None) is None), _STEPS_PER_LOOK)
        cursor = connection.execute(query)
        return _heading(cursor.description, name), cursor.fetchmany(_ROWS_READ)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise _query_failed(name, error) from None
    finally:
        connection.close()


def _from_postgres(address: str, login: Mapping[str, str], query: str, name: str) -> Rows:
    try:
        import psycopg
    except ModuleNotFoundError:
        hint = "pip install 'rapport[postgres]'"
        raise unusable_table(
            name, "tables.no_driver", "the driver of PostgreSQL is missing", hint
        ) from None
    described = _described(address, login, name)
    options = f"-c default_transaction_read_only=on -c statement_timeout={_SECONDS * 1_000}"
    try:
        with (
            psycopg.connect(described, connect_timeout=5, options=options) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query.encode())
            return _heading(cursor.description, name), cursor.fetchmany(_ROWS_READ)
    except psycopg.Error as error:
        raise _query_failed(name, error) from None


def _described(address: str, login: Mapping[str, str], name: str) -> str:
    """The connection string; raises SiteError for one that the driver cannot read, without the
    driver's message, which would show the password.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        described = make_conninfo(address, **login)
        known = conninfo_to_dict(described)
    except psycopg.Error:
        known = {"host": "@"}
    host, port = str(known.get("host") or ""), str(known.get("port") or "0")
    if "@" in host or not port.replace(",", "").isdigit():
        message = "the address of the database cannot be read"
        hint = "write signs such as @ / % : of a password as %40 %2F %25 %3A"
        raise unusable_table(name, "tables.bad_address", message, hint)
    return described


def _heading(description: Sequence[Any] | None, name: str) -> list[str]:
    if description is None:
        raise unusable_table(name, "tables.bad_query", "the query gives no rows", "write a SELECT")
    return [str(column[0]) for column in description]


def _sql_field(value: Any) -> str:
    """As a person would write it in the file; nothing for NULL."""
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return str(value) if isinstance(value, list) else field_text(value)


def _query_failed(name: str, error: Exception) -> SiteError:
    message = str(error).strip().splitlines()
    hint = "try the query by hand; is the database there and of the right kind?"
    shown = message[0][:200] if message else type(error).__name__
    return unusable_table(name, "tables.bad_query", f"the query failed: {shown}", hint)


_MOST_NESTED = 8
_MOST_COLUMNS = 1_000


def rows_of_json(data: bytes, path: str, fields: Sequence[str], *, name: str) -> LooseRows:
    """The rows of the list at `path` (`data.items`; empty: the document is the list).

    `{"position": {"x": 1}, "tags": ["a"]}` has the columns `position.x` and `tags.0`, and
    `position` as JSON and `tags` as a list where `fields` name them. Raises SiteError. A list of a
    million objects takes some seconds.
    """
    items = _list_at(_decoded(data, name), path, name)
    check_size(name, len(items))
    header: dict[str, None] = dict.fromkeys(() if items else fields)
    flat: list[dict[str, str]] = []
    wanted = frozenset(fields)
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            message = f"row {number} is {_kind(item)}, not an object"
            raise unusable_table(
                name, "tables.bad_json", message, 'rows are written as {"id": ...}'
            )
        row: dict[str, str] = {}
        _flatten("", item, row, _MOST_NESTED, wanted)
        header |= dict.fromkeys(row)
        flat.append(row)
        if len(header) > _MOST_COLUMNS:
            message = f"the rows have more than {_MOST_COLUMNS} different fields"
            raise unusable_table(
                name, "tables.bad_json", message, "does 'rows' name the right list?"
            )
    names = list(header)
    rows = [[row.get(column, "") for column in names] for row in flat]
    return LooseRows(name, names, rows, rows_digest(names, rows))


def _decoded(data: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "is it the right address? it must answer with JSON"
        message = f"not JSON: {str(error)[:200]}"
        raise unusable_table(name, "tables.bad_json", message, hint) from None


def _list_at(document: Any, path: str, name: str) -> list[Any]:
    found = document
    walked: list[str] = []
    for part in filter(None, path.split(".")):
        if not isinstance(found, dict) or part not in found:
            raise _no_list(name, found, walked, part)
        found = found[part]
        walked.append(part)
    if not isinstance(found, list):
        shown = f"{'.'.join(walked)!r} is" if walked else "the document is"
        hint = f"name the list: rows = {_example(found, walked)!r}"
        raise unusable_table(name, "tables.bad_json", f"{shown} {_kind(found)}, not a list", hint)
    return found


def _no_list(name: str, found: Any, walked: list[str], part: str) -> SiteError:
    place = f" in {'.'.join(walked)!r}" if walked else ""
    known = ", ".join(list(found)[:8]) if isinstance(found, dict) else ""
    hint = f"there is: {known}" if known else f"there is {_kind(found)}"
    return unusable_table(name, "tables.bad_json", f"there is no {part!r}{place}", hint)


def _example(found: Any, walked: list[str]) -> str:
    lists = (
        [key for key, value in found.items() if isinstance(value, list)]
        if found and isinstance(found, dict)
        else []
    )
    return ".".join([*walked, lists[0] if lists else "items"])


def _flatten(
    prefix: str, value: Any, row: dict[str, str], levels: int, wanted: frozenset[str]
) -> None:
    """Fills `row`; values nested deeper than `levels` are left out."""
    if prefix in wanted:
        row[prefix] = field_text(value)
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = {str(place): item for place, item in enumerate(value)}.items()
    else:
        row[prefix] = field_text(value)
        return
    for key, item in inner if levels else ():
        _flatten(f"{prefix}.{key}" if prefix else key, item, row, levels - 1, wanted)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth", type(None): "null"}
    return names.get(type(value), "a number")


MOST_BYTES = 256 * 1024 * 1024
_CHUNK = 1 << 16


class HttpDocument(msgspec.Struct, frozen=True):
    """A body with its ETag; no body: it did not change."""

    body: bytes | None
    tag: str = ""


def fetch(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_ms: int,
    tag: str = "",
    most_bytes: int = MOST_BYTES,
) -> HttpDocument:
    """One request; raises SourceUnavailable without a complete answer within the time."""
    try:
        connection, parts = _connection(url, timeout_ms)
    except ValueError:
        raise _failed("the address cannot be used", "source.bad_address") from None
    too_late = threading.Event()
    deadline = threading.Timer(timeout_ms / 1_000, _hang_up, (connection, too_late))
    deadline.daemon = True
    deadline.start()
    failed: SourceUnavailable | None = None
    try:
        fetched = _request(connection, parts, headers, tag, most_bytes)
    except SourceUnavailable as error:
        failed = error
    except http.client.InvalidURL:
        failed = _unsendable()
    except (OSError, http.client.HTTPException) as error:
        failed = _failed(str(error)[:200] or type(error).__name__, "source.unreachable")
        if isinstance(error, TimeoutError):
            failed = _failed(f"no answer within {timeout_ms} ms", "source.timeout")
    except ValueError:
        failed = _unsendable()
    finally:
        deadline.cancel()
        connection.close()
    if too_late.is_set():  # the connection was closed, so the answer is not complete
        raise _failed(f"no answer within {timeout_ms} ms", "source.timeout")
    if failed is not None:
        raise failed
    return fetched


def _connection(url: str, timeout_ms: int) -> tuple[http.client.HTTPConnection, SplitResult]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_ms / 1_000), parts


def _request(
    connection: http.client.HTTPConnection,
    parts: SplitResult,
    headers: Mapping[str, str],
    tag: str,
    most_bytes: int,
) -> HttpDocument:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = {"Accept": "application/json", **headers}
    if tag:
        sent["If-None-Match"] = tag
    connection.request("GET", path, headers=sent)
    with connection.getresponse() as response:
        if response.status == http.client.NOT_MODIFIED and tag:
            return HttpDocument(None, tag)
        if response.status != http.client.OK:
            raise _wrong_status(response)
        return HttpDocument(_body(response, most_bytes), response.headers.get("ETag", ""))


def _body(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > most_bytes:
            message = f"the answer is larger than {most_bytes} bytes"
            raise _failed(message, "source.too_large", "let the source send fewer rows")
    if response.length:  # the connection ended early
        raise _failed(f"{response.length} bytes are missing", "source.unreachable")
    return bytes(body)


def _wrong_status(response: http.client.HTTPResponse) -> SourceUnavailable:
    message = f"it answered {response.status} {response.reason}"[:200]
    hint = "look at the address and the headers"
    if 300 <= response.status < 400:
        # Without the query, which may hold a token.
        there = response.headers.get("Location", "").partition("?")[0][:200]
        hint = f"redirects are not followed; name the address itself: {there}"
    return _failed(message, "source.bad_status", hint)


def _hang_up(connection: http.client.HTTPConnection, too_late: threading.Event) -> None:
    """Ends a read that waits for bytes."""
    too_late.set()
    sock = connection.sock
    if sock is None:
        return
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already, which is what we want


def _unsendable() -> SourceUnavailable:
    """Without the library's message, which shows the address or the header: a secret perhaps."""
    return _failed("the address or a header cannot be sent", "source.bad_address")


def _failed(message: str, code: str, hint: str = "") -> SourceUnavailable:
    return SourceUnavailable(message, code=code, hint=hint or "it is read again later")


class SourceRows(msgspec.Struct, frozen=True):
    """The rows of a source and their ETag; no rows: they did not change."""

    file: RowFile | None
    tag: str = ""


def read_source(
    declared: TableDeclaration,
    directory: Path,
    *,
    tag: str = "",
    context: ContextSource | None = None,
    ids: Sequence[str] = (),
) -> SourceRows:
    """Reads the rows of a source; raises SiteError with the reasons and their places. Waits for the
    source's time-out, a minute for an SQL query.

    Args:
        ids: the entities for a context broker.
    """
    name = declared.shown
    if declared.kind == "csv":
        return SourceRows(read_csv(directory / declared.csv, name=name))
    if declared.kind == "xml":
        path, namespaces = directory / declared.xml, declared.namespaces
        return SourceRows(
            read_xml_file(path, declared.xpath, declared.fields, name=name, namespaces=namespaces)
        )
    if declared.kind == "url":
        return _fetched(declared, directory, tag)
    if declared.kind == "context":
        return SourceRows(_from_context(declared, context, ids))
    database, login = declared.database, declared.login
    return SourceRows(read_query(database, declared.sql, directory, name=name, login=login))


def _fetched(declared: TableDeclaration, directory: Path, tag: str) -> SourceRows:
    name = declared.shown
    try:
        url = secret_or_plain(declared.url, directory)
        headers = resolve_secrets(declared.headers, directory)
        fetched = fetch(url, headers, timeout_ms=declared.timeout_ms, tag=tag)
    except (InvalidInput, SourceUnavailable) as error:
        hint = error.hint or "secrets are named in 'url' and 'headers'"
        raise unusable_table(name, error.code, error.message, hint) from None
    if fetched.body is None:
        return SourceRows(None, fetched.tag)
    return SourceRows(
        rows_of_json(fetched.body, declared.rows, declared.fields, name=name), fetched.tag
    )


def _from_context(
    declared: TableDeclaration, context: ContextSource | None, ids: Sequence[str]
) -> RowFile:
    """Without a broker there are no rows."""
    question = context_query(declared, ids)
    if context is None or not question.ids:
        return rows_of_context(question, declared.shown, [])
    try:
        found = context.ask(question)
    except SourceUnavailable as error:
        raise unusable_table(declared.shown, error.code, error.message, error.hint) from None
    return rows_of_context(question, declared.shown, found)
