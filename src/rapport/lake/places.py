"""Where the tables of a lake lie, and what they are called. [LK-1, PI-3]

`bronze/<channel>`: what a channel received, as received. `silver/<concept.attribute>`: readings.
`silver/quarantined`: what cannot be read. `gold/<name>`: results of jobs. `gaps`: positions that
a channel's log could not give. A lake is a folder on a disk, or the URI of one in an object store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow.fs as pa_fs

from rapport.core.errors import Conflict, InvalidInput, UnknownName
from rapport.lake.table import Table, local_path

BRONZE, SILVER, GOLD, GAPS = "bronze", "silver", "gold", "gaps"
QUARANTINED, DETECTED = "quarantined", "detected"
LAYERS = (BRONZE, SILVER, GOLD)


class Lake(msgspec.Struct, frozen=True):
    """A lake's place; `options` are those of its object store, as delta-rs names them."""

    uri: str
    options: dict[str, str] = {}

    @classmethod
    def at(cls, place: Lake | Path | str, options: Mapping[str, str] | None = None) -> Lake:
        """The lake at a path or URI."""
        if isinstance(place, Lake):
            return place
        text = str(place.resolve()) if isinstance(place, Path) else place.rstrip("/")
        if not text:
            raise InvalidInput("the lake has no place", code="lake.no_place")
        # Spark says s3a, delta-rs s3.
        return cls(text.replace("s3a://", "s3://", 1), dict(options or {}))

    @property
    def path(self) -> Path | None:
        """The folder on a local disk; None in an object store."""
        return local_path(self.uri)

    def table_uri(self, layer: str, name: str = "") -> str:
        return f"{self.uri}/{layer}/{folder_name(name)}" if name else f"{self.uri}/{layer}"

    def has(self, layer: str, name: str = "") -> bool:
        return Table.exists(self.table_uri(layer, name), self.options)

    def open(self, layer: str, name: str = "") -> Table:
        """The table; raises UnknownName that tells the nearest."""
        if not self.has(layer, name):
            known = [one for one in self.names(layer)] if name else []
            raise UnknownName(
                "table",
                f"{layer}/{name}",
                [f"{layer}/{one}" for one in known],
                code="lake.unknown_table",
            )
        return Table(self.table_uri(layer, name), self.options)

    def names(self, layer: str) -> list[str]:
        """The names of a layer's tables, sorted."""
        return sorted(
            table_name(folder)
            for folder in self._folders(layer)
            if Table.exists(f"{self.uri}/{layer}/{folder}", self.options)
        )

    def refuse_former_format(self) -> None:
        """Raises Conflict for a lake that was written before its tables were Delta tables."""
        if self.path is not None and (self.path / "manifest.json").exists():
            raise Conflict(
                f"{self.path} has the format of an earlier version",
                code="lake.former_format",
                hint=f"convert it: rapport pipeline convert --lake {self.path}",
            )

    def _folders(self, layer: str) -> list[str]:
        if self.path is not None:
            folder = self.path / layer
            return [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
        from deltalake.fs import DeltaStorageHandler

        system = pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options or None))
        found = system.get_file_info(
            pa_fs.FileSelector(layer, allow_not_found=True, recursive=True)
        )
        paths = (info.path.removeprefix(f"{layer}/") for info in found)
        return sorted({path.split("/")[0] for path in paths if "/_delta_log/" in path})


def folder_name(name: str) -> str:
    """A table's folder. Special characters are encoded with `~`, because `%` means something else
    to each of the stores.

    >>> folder_name("person.position"), folder_name("a/b=c")
    ('person.position', 'a~2Fb~3Dc')
    """
    return re.sub(r"[^\w.-]", _encoded, name)


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"~{octet:02X}" for octet in found[0].encode())


def table_name(folder: str) -> str:
    """The name of the table in a folder.

    >>> table_name("a~2Fb~3Dc")
    'a/b=c'
    """
    return unquote(folder.replace("%", "%25").replace("~", "%"))


def view_name(text: str) -> str:
    """A name as SQL takes it without quotes.

    >>> view_name("person.position"), view_name("raw.tür-1")
    ('person_position', 'raw_tür_1')
    """
    return re.sub(r"\W", "_", text)
