"""Asking a source for its rows, whatever kind it is. Blocking. [PO-2]"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, SourceUnavailable
from rapport.tables.context import ContextSource, question_of, rows_of_context
from rapport.tables.csv_file import read_csv
from rapport.tables.declaration import TableDeclaration
from rapport.tables.headers import with_secrets
from rapport.tables.http_fetch import fetch
from rapport.tables.json_rows import rows_of_json
from rapport.tables.row_file import RowFile, refused
from rapport.tables.sql_query import read_query, secret_or_plain
from rapport.tables.xml_file import read_xml


class Answer(msgspec.Struct, frozen=True):
    """The rows a source gave, and the tag by which to ask whether they changed; no rows: they did
    not.
    """

    file: RowFile | None
    tag: str = ""


def ask(
    declared: TableDeclaration,
    directory: Path,
    *,
    tag: str = "",
    context: ContextSource | None = None,
    ids: Sequence[str] = (),
) -> Answer:
    """What the source holds now; raises SiteError with the reason, and places where there are
    some. Waits as long as the source's time-out, a minute for a query.

    Args:
        ids: whom a context broker is asked for.
    """
    name = declared.shown
    if declared.kind == "csv":
        return Answer(read_csv(directory / declared.csv, name=name))
    if declared.kind == "xml":
        path, namespaces = directory / declared.xml, declared.namespaces
        return Answer(
            read_xml(path, declared.xpath, declared.fields, name=name, namespaces=namespaces)
        )
    if declared.kind == "url":
        return _fetched(declared, directory, tag)
    if declared.kind == "context":
        return Answer(_from_context(declared, context, ids))
    database, login = declared.database, declared.login
    return Answer(read_query(database, declared.sql, directory, name=name, login=login))


def _fetched(declared: TableDeclaration, directory: Path, tag: str) -> Answer:
    name = declared.shown
    try:
        url = secret_or_plain(declared.url, directory)
        headers = with_secrets(declared.headers, directory)
        fetched = fetch(url, headers, timeout_ms=declared.timeout_ms, tag=tag)
    except (InvalidInput, SourceUnavailable) as error:
        hint = error.hint or "secrets are named in 'url' and 'headers'"
        raise refused(name, error.code, error.message, hint) from None
    if fetched.body is None:
        return Answer(None, fetched.tag)
    return Answer(
        rows_of_json(fetched.body, declared.rows, declared.fields, name=name), fetched.tag
    )


def _from_context(
    declared: TableDeclaration, context: ContextSource | None, ids: Sequence[str]
) -> RowFile:
    """Nobody is known where no broker can be asked."""
    question = question_of(declared, ids)
    if context is None or not question.ids:
        return rows_of_context(question, declared.shown, [])
    try:
        found = context.ask(question)
    except SourceUnavailable as error:
        raise refused(declared.shown, error.code, error.message, error.hint) from None
    return rows_of_context(question, declared.shown, found)
