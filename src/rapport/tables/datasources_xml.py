"""Tables declared in XML, in the form of the paper's listing 5.3: `[tables] declared_in =
"datasources.xml"`. [PO-2]

Each becomes the keys of a table in the site file, which is then read as such. A password in that
file is a warning: `password="env:NAME"` names where it stands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import Problem, Severity
from rapport.core.xml import XmlError, XmlNode, parse_xml
from rapport.kernel.config_fields import suggest
from rapport.tables.sources import is_reference

LISTING_KEY = "declared_in"
_LOGIN = {"server": "host", "database": "dbname", "username": "user", "password": "password"}


class ListedTable(msgspec.Struct, frozen=True):
    """A table as the site file would declare it, and what describes a server of PostgreSQL."""

    name: str
    values: dict[str, Any]
    login: dict[str, str]


def tables_in_listing(
    path: Path, name: str, concepts: Collection[str]
) -> tuple[list[ListedTable], list[Problem]]:
    """The declarations of the file in its order, and every fault of the XML."""
    reader = _ListingReader(name, concepts)
    try:
        root = parse_xml(path.read_bytes())
    except OSError as error:
        hint = "the path is relative to the site directory"
        reader.fault("site.no_file", f"cannot read {name}: {error.strerror}", hint)
    except XmlError as error:
        reader.problems += [msgspec.structs.replace(p, file=name) for p in error.problems_found()]
    else:
        reader.read(root)
    return reader.found, reader.problems


class _ListingReader:
    """One pass over `<datasources>`."""

    def __init__(self, name: str, concepts: Collection[str]) -> None:
        self._name, self._concepts = name, concepts
        self.found: list[ListedTable] = []
        self.problems: list[Problem] = []

    def fault(
        self, code: str, message: str, hint: str = "", *, severity: Severity = "error"
    ) -> None:
        """Notes a problem of this file."""
        self.problems.append(
            Problem(file=self._name, code=code, message=message, hint=hint, severity=severity)
        )

    def read(self, root: XmlNode) -> None:
        """Takes in every source."""
        if root.name != "datasources":
            self.fault("tables.bad_listing", f"the file is a <{root.name}>, not a <datasources>")
            return
        for source in root.children:
            if source.name == "sqlsource":
                self._sql_source(source)
            elif source.name == "xmlsource":
                self._xml_source(source)
            else:
                self._unknown(source, ("sqlsource", "xmlsource"))

    def _sql_source(self, source: XmlNode) -> None:
        login = self._login(source)
        for table in source.children:
            if table.name != "table":
                self._unknown(table, ("table",))
                continue
            written = table.attributes.get("name", "")
            key = table.attributes.get("keyColumn", "")
            columns = self._mapping(table, "column", "columnName")
            needed = ("name", "concept", "keyColumn")
            if self._lacks(f"the table {written!r}", table, needed) or columns is None:
                continue
            names = dict.fromkeys([key, *columns.values()])
            query = f"SELECT {', '.join(map(_quoted, names))} FROM {_table(written)}"
            database = source.attributes.get("url", "")
            self._add(table, written, key, columns, {"sql": query, "database": database}, login)

    def _login(self, source: XmlNode) -> dict[str, str]:
        """What describes a server of PostgreSQL; empty where `url` says where the database is."""
        given = source.attributes
        if given.get("url"):
            return {}
        login = {own: given[theirs] for theirs, own in _LOGIN.items() if given.get(theirs)}
        if "host" not in login:
            hint = 'add server="..." and database="...", or url="people.sqlite"'
            self.fault("tables.bad_listing", "an sqlsource does not say where it is", hint)
        password = login.get("password", "")
        if password and not is_reference(password):
            message = "a password stands in the file"
            hint = 'name where it is: password="env:NAME" or password="file:PATH"'
            self.fault("settings.bare_secret", message, hint, severity="warning")
        return login

    def _xml_source(self, source: XmlNode) -> None:
        location = source.attributes.get("location", "")
        for tag in source.children:
            if tag.name != "tag":
                self._unknown(tag, ("tag",))
                continue
            xpath, key = tag.attributes.get("xpath", ""), tag.attributes.get("key", "")
            columns = self._mapping(tag, "element", "name")
            lacks = self._lacks(f"the tag {xpath!r}", tag, ("xpath", "concept", "key"))
            if lacks or self._lacks("an xmlsource", source, ("location",)) or columns is None:
                continue
            name = xpath.rstrip("/").rpartition("/")[2].partition("[")[0] or "rows"
            self._add(tag, name, key, columns, {"xml": location, "xpath": xpath}, {})

    def _mapping(self, table: XmlNode, child: str, column: str) -> dict[str, str] | None:
        """Columns by attribute; None after a fault."""
        found: dict[str, str] = {}
        sound = True
        for node in table.children:
            if node.name != child:
                self._unknown(node, (child,))
                continue
            if self._lacks(f"a {child}", node, (column, "attributename")):
                sound = False
                continue
            found[node.attributes["attributename"]] = node.attributes[column]
        return found if sound else None

    def _add(
        self,
        node: XmlNode,
        name: str,
        key: str,
        columns: Mapping[str, str],
        source: dict[str, str],
        login: dict[str, str],
    ) -> None:
        identity = columns.get("id", key)
        if identity != key:
            message = f"the attribute 'id' of {name!r} is {identity!r}, but its key is {key!r}"
            self.fault("tables.bad_listing", message, "the key is the identity")
            return
        taken = {table.name for table in self.found}
        values: dict[str, Any] = {
            "concept": self._concept(node.attributes["concept"]),
            "key": key,
            "columns": {each: column for each, column in columns.items() if each != "id"},
            **source,
        }
        if lifetime := node.attributes.get("lifetime", ""):  # which the paper has not
            values["lifetime"] = lifetime
        free = name if name not in taken else f"{name}-{len(taken) + 1}"
        self.found.append(ListedTable(free, values, login))

    def _concept(self, written: str) -> str:
        """Concepts are found whatever their case: the paper writes `Person` for `person`."""
        alike = [name for name in self._concepts if name.lower() == written.lower()]
        return alike[0] if len(alike) == 1 and written not in self._concepts else written

    def _lacks(self, shown: str, node: XmlNode, names: tuple[str, ...]) -> bool:
        missing = [name for name in names if not node.attributes.get(name)]
        for name in missing:
            message, hint = f"{shown} needs the attribute {name!r}", f'add {name}="..."'
            self.fault("tables.bad_listing", message, hint)
        return bool(missing)

    def _unknown(self, node: XmlNode, known: tuple[str, ...]) -> None:
        hint = suggest(node.name, known)
        message = f"<{node.name}> has no meaning here"
        self.fault("tables.bad_listing", message, hint, severity="warning")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _table(name: str) -> str:
    """A name that may stand in a schema: `staff.persons`."""
    return ".".join(map(_quoted, name.split(".")))
