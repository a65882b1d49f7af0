"""Cache of the last rows of remote sources on disk: a node starts with them when a source does not
answer. [PO-2]

For tables with a lifetime whose rows come from a server; files of the site need no cache.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.tables.declaration import TableDeclaration
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.rows import LooseRows, RowFile, content_digest
from rapport.tables.sources import is_reference

_MOST_NAME = 200


class StaleRows(msgspec.Struct, frozen=True):
    """Cached rows in use because of `problem`; `read_ms` is when they were read."""

    problem: Problem
    read_ms: int


class _CachedRows(msgspec.Struct, frozen=True):
    declared: str
    read_ms: int
    digest: str
    fixed_headings: bool
    header: list[str]
    rows: list[list[str]]


def is_cached(declared: TableDeclaration) -> bool:
    remote = declared.kind == "url" or bool(declared.login) or is_reference(declared.database)
    return remote and declared.lifetime_ms > 0


class RowCache:
    """One file per table in a directory of the node. Calls block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, table: LoadedTable, read_ms: int) -> None:
        """Durable and atomic; raises OSError. A million rows take about a second."""
        file = table.file
        kept = _CachedRows(
            _named(table.declared),
            read_ms,
            file.digest,
            file.fixed_headings,
            file.header,
            file.all_rows(),
        )
        path = self._path(table.declared.name)
        make_private_directory(self._directory)
        write_atomically(path, msgspec.msgpack.encode(kept))

    def find(self, declared: TableDeclaration) -> tuple[RowFile, int] | None:
        """The rows and when they were read; None when there are none of this declaration, or the
        file is damaged.
        """
        try:
            kept = msgspec.msgpack.decode(self._path(declared.name).read_bytes(), type=_CachedRows)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None
        if kept.declared != _named(declared):
            return None
        kind = RowFile if kept.fixed_headings else LooseRows
        return kind(declared.shown, kept.header, kept.rows, kept.digest), kept.read_ms

    def _path(self, name: str) -> Path:
        safe = quote(name, safe="")
        if len(safe) > _MOST_NAME:
            safe = content_digest(name.encode("utf-8", "surrogatepass"))
        return self._directory / f"{safe}.rows"


def is_unreachable(problems: tuple[Problem, ...]) -> bool:
    """Whether the source did not answer; a wrong answer is not hidden by cached rows."""
    return all(
        problem.code.startswith("source.") or problem.code == "tables.bad_query"
        for problem in problems
    )


def _named(declared: TableDeclaration) -> str:
    return content_digest(declared.content())
