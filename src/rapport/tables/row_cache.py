"""The last rows of sources elsewhere, kept on disk: a node starts with them when a source does not
answer. [PO-2]

For tables with a lifetime that come from a server; files of the site are there anyway.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.paths import make_private_directory, sync_path
from rapport.tables.declaration import TableDeclaration
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.rows import LooseRows, RowFile, content_digest
from rapport.tables.sources import is_reference

_MOST_NAME = 200


class StaleRows(msgspec.Struct, frozen=True):
    """Rows that were kept, in use because of `problem`; `read_ms` is when the source gave them."""

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
    """Whether rows of this table are kept."""
    remote = declared.kind == "url" or bool(declared.login) or is_reference(declared.database)
    return remote and declared.lifetime_ms > 0


class RowCache:
    """One file per table in a directory of the node. Calls block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, table: LoadedTable, read_ms: int) -> None:
        """Durable, all or nothing; raises OSError. A million rows take about a second."""
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
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(kept))
        sync_path(new)
        os.replace(new, path)
        sync_path(self._directory)

    def find(self, declared: TableDeclaration) -> tuple[RowFile, int] | None:
        """The rows and when they were read; None when there are none of just this declaration, or
        the file is damaged.
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
    """Whether a source did not answer; a wrong answer is to be mended, not passed over."""
    return all(
        problem.code.startswith("source.") or problem.code == "tables.bad_query"
        for problem in problems
    )


def _named(declared: TableDeclaration) -> str:
    return content_digest(msgspec.json.encode(declared))
