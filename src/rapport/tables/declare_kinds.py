"""The keys of a table that say where its rows come from, per kind of source. [PO-2]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from rapport.core.errors import nearest_names
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.tables.context import words_of
from rapport.tables.declaration import DEFAULT_TIMEOUT_MS
from rapport.tables.headers import is_reference, looks_secret
from rapport.tables.xml_file import check_xpath

KEYS_OF_KINDS = (
    "csv",
    "sql",
    "database",
    "xml",
    "xpath",
    "namespaces",
    "url",
    "rows",
    "headers",
    "timeout",
    "context",
    "ids",
    "ids_from",
    "values",
)
CONTEXT_KEY = "id"
"""The heading of the key of a table of context, unless it says another."""
CONTEXT_LIFETIME_MS = 5_000
CONTEXT_TIMEOUT_MS = 2_000
_LONGEST_TIMEOUT_MS = 300_000
_LONGEST_CONTEXT_MS = 60_000

Given = Mapping[str, object]


def read_kind(fields: Fields, directory: Path) -> Given | None:
    """The part of a declaration that its kind of source has; None, and a fault, for none or two."""
    kinds = [
        ("csv", fields.has("csv"), _csv),
        ("sql", fields.has("sql") or fields.has("database"), _sql),
        ("xml", fields.has("xml") or fields.has("xpath"), _xml),
        ("url", fields.has("url"), _url),
        ("context", fields.has("context"), _context),
    ]
    named = [(name, read) for name, given, read in kinds if given]
    if len(named) > 1:
        first, second = named[0][0], named[1][0]
        message = f"a table has one source, not both {first!r} and {second!r}"
        fields.fault(first, "tables.two_sources", message, hint=f"leave out {first!r}")
        return None
    read: Callable[[Fields, Path], Given | None] = named[0][1] if named else _csv
    return read(fields, directory)


def _csv(fields: Fields, directory: Path) -> Given:
    path = fields.text("csv", example='"rooms.csv"')
    if path:
        check_path(fields, "csv", path, directory)
    return {"csv": path}


def _sql(fields: Fields, directory: Path) -> Given:
    database = fields.text("database", example='"people.sqlite"')
    if database and not is_reference(database):
        _check_database(fields, database, directory)
    query = fields.text("sql", example='"SELECT id, status FROM persons"')
    return {"sql": query, "database": database}


def _xml(fields: Fields, directory: Path) -> Given:
    path = fields.text("xml", example='"plan.xml"')
    if path:
        check_path(fields, "xml", path, directory)
    namespaces = _texts_by_name(fields, "namespaces", '{ p = "http://..." }')
    xpath = fields.filled_text("xpath", example='"/floorplan/room"')
    paths = {"xpath": [xpath] if xpath else [], "key": list(_given_texts(fields, "key"))}
    columns = fields.section.section("columns")
    paths["columns"] = [
        text
        for value in columns.values.values()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
    ]
    for key, texts in paths.items():
        for text in texts:
            if fault := check_xpath(text, namespaces):
                message = f"{text[:60]!r}: {fault.message}"
                fields.fault(key, fault.code, message, hint=fault.hint)
    return {"xml": path, "xpath": xpath, "namespaces": namespaces}


def _url(fields: Fields, _directory: Path) -> Given:
    url = fields.filled_text("url", example='"https://roster.example/people"')
    if url and not is_reference(url):
        _check_url(fields, url)
    headers = _texts_by_name(fields, "headers", '{ Authorization = "Bearer env:ROSTER_TOKEN" }')
    for name, value in headers.items():
        if looks_secret(name) and not is_reference(value.split(" ")[-1]):
            message = f"the header {name!r} is a secret"
            hint = f'name where it is: headers = {{ {name} = "env:NAME" }}, also "Bearer env:NAME"'
            fields.fault("headers", "settings.bare_secret", message, hint=hint)
    timeout_ms = fields.duration_ms("timeout", DEFAULT_TIMEOUT_MS, least=1)
    if timeout_ms > _LONGEST_TIMEOUT_MS:
        message = "a source is waited for at most 5 minutes"
        fields.fault("timeout", "site.out_of_range", message, hint='such as timeout = "10s"')
    return {
        "url": url,
        "rows": fields.text("rows", "", example='"data.items"'),
        "headers": headers,
        "timeout_ms": timeout_ms,
    }


def _context(fields: Fields, _directory: Path) -> Given:
    query = fields.filled_text("context", example='"room status"')
    if query and words_of(query) is None:
        fields.wrong("context", "a type of entity and a scope", 'context = "room status"')
    named, listed = fields.has("ids_from"), fields.has("ids")
    if named == listed:
        message = "a table of context says in one way whom it asks for"
        hint = 'write ids = ["r1", "r2"], or ids_from = "rooms" for the keys of that table'
        fields.fault("ids" if listed else "context", "tables.no_ids", message, hint=hint)
    timeout_ms = fields.duration_ms("timeout", CONTEXT_TIMEOUT_MS, least=1)
    if timeout_ms > _LONGEST_CONTEXT_MS:
        message = "a broker is asked for at most a minute"
        fields.fault("timeout", "site.out_of_range", message, hint='such as timeout = "2s"')
    return {
        "context": query,
        "ids": fields.texts("ids", (), example='["r1", "r2"]'),
        "ids_from": fields.text("ids_from", "", example='"rooms"'),
        "values": fields.texts("values", (), example='["locked"]'),
        "timeout_ms": timeout_ms,
    }


def check_path(fields: Fields, key: str, path: str, directory: Path) -> None:
    """Notes a fault unless the file is there, in the site or named absolutely."""
    target = directory / path
    if not is_inside(target, directory) and not Path(path).is_absolute():
        message = f"{path!r} leads out of the site directory"
        fields.fault(key, "site.outside", message, hint="write an absolute path if that is meant")
    elif not is_file(target):
        near = nearest_names(path, [found.name for found in directory.glob(f"*.{key}")], limit=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else "the path is relative to the site directory"
        )
        fields.fault(key, "site.no_file", f"there is no file {path!r}", hint=hint)


def _check_database(fields: Fields, database: str, directory: Path) -> None:
    if database.startswith(("postgres://", "postgresql://")):
        message = "the address of a database is a secret"
        hint = 'write it into a file and name that: database = "file:people.dsn"'
        fields.fault("database", "settings.bare_secret", message, hint=hint)
    elif not is_file(directory / database):
        hint = "an SQLite file, relative to the site directory"
        fields.fault("database", "site.no_file", f"there is no file {database!r}", hint=hint)


def _check_url(fields: Fields, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable or any(c.isspace() for c in url):
        message = f"{url[:60]!r} is no address of the web"
        fields.fault("url", "tables.bad_address", message, hint='such as "https://host/people"')
    elif parts.username or parts.password:
        message = "the address holds a password"
        hint = 'write the address into a file and name that: url = "file:people.url"'
        fields.fault("url", "settings.bare_secret", message, hint=hint)


def _texts_by_name(fields: Fields, key: str, example: str) -> dict[str, str]:
    inner = fields.table(key, None, example)
    if inner is None:
        return {}
    return {name: inner.text(name, "") for name in inner.section.values}


def _given_texts(fields: Fields, key: str) -> tuple[str, ...]:
    """Without a fault for what is of another type: that is told where the key is read."""
    value = fields.section.values.get(key)
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in texts if isinstance(text, str))
