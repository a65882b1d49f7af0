"""Tables declared in XML, in the form of the paper's listing 5.3: `[tables] declared_in =
"datasources.xml"`. [PO-2]

A password in that file is a warning: `password="env:NAME"` names where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rapport.core.errors import InvalidInput, Problem, Severity
from rapport.core.times import parse_duration
from rapport.core.xml import XmlError, XmlNode, parse_xml
from rapport.kernel.config_fields import suggest
from rapport.kernel.files import is_file
from rapport.tables.declaration import Concepts, TableDeclaration
from rapport.tables.sources import is_reference
from rapport.tables.xml_source import check_xpath

LISTING_KEY = "declared_in"
_LOGIN = {"server": "host", "database": "dbname", "username": "user", "password": "password"}


def tables_in_listing(
    path: Path, name: str, directory: Path, concepts: Concepts
) -> tuple[list[TableDeclaration], list[Problem]]:
    """The sound declarations of the file in its order, and everything wrong with the others."""
    reader = _ListingReader(name, directory, concepts)
    try:
        root = parse_xml(path.read_bytes())
    except OSError as error:
        hint = "the path is relative to the site directory"
        reader.fault("site.no_file", f"cannot read {name}: {error.strerror}", hint)
    except XmlError as error:
        reader.problems += [
            Problem(
                file=name, line=p.line, column=p.column, code=p.code, message=p.message, hint=p.hint
            )
            for p in error.problems_found()
        ]
    else:
        reader.read(root)
    return reader.found, reader.problems


class _ListingReader:
    """One pass over `<datasources>`."""

    def __init__(self, name: str, directory: Path, concepts: Concepts) -> None:
        self._name, self._directory, self._concepts = name, directory, concepts
        self.found: list[TableDeclaration] = []
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

    # --- databases ---

    def _sql_source(self, source: XmlNode) -> None:
        database, login = self._database(source)
        for table in source.children:
            if table.name != "table":
                self._unknown(table, ("table",))
                continue
            written = table.attributes.get("name", "")
            key = table.attributes.get("keyColumn", "")
            shown = f"the table {written!r}"
            columns = self._mapping(table, "column", "columnName")
            if self._lacks(shown, table, ("name", "concept", "keyColumn")) or columns is None:
                continue
            names = dict.fromkeys([key, *columns.values()])
            query = f"SELECT {', '.join(map(_quoted, names))} FROM {_table(written)}"
            self._add(table, written, key, columns, sql=query, database=database, login=login)

    def _database(self, source: XmlNode) -> tuple[str, dict[str, str]]:
        """The address, or what describes a server of PostgreSQL."""
        given = source.attributes
        if url := given.get("url", ""):
            self._check_url(url)
            return url, {}
        login = {own: given[theirs] for theirs, own in _LOGIN.items() if given.get(theirs)}
        if "host" not in login:
            hint = 'add server="..." and database="...", or url="people.sqlite"'
            self.fault("tables.bad_listing", "an sqlsource does not say where it is", hint)
        password = login.get("password", "")
        if password and not is_reference(password):
            message = "a password stands in the file"
            hint = 'name where it is: password="env:NAME" or password="file:PATH"'
            self.fault("settings.bare_secret", message, hint, severity="warning")
        return "", login

    def _check_url(self, url: str) -> None:
        if "://" in url:
            hint = 'name where it is: url="env:NAME" or url="file:PATH"'
            self.fault("settings.bare_secret", "the address of a database is a secret", hint)
        elif not is_reference(url) and not is_file(self._directory / url):
            hint = "an SQLite file, relative to the site directory"
            self.fault("site.no_file", f"there is no file {url!r}", hint)

    # --- files ---

    def _xml_source(self, source: XmlNode) -> None:
        location = source.attributes.get("location", "")
        if not location or not is_file(self._directory / location):
            hint = "location=... is relative to the site directory"
            self.fault("site.no_file", f"there is no file {location!r}", hint)
            return
        for tag in source.children:
            if tag.name != "tag":
                self._unknown(tag, ("tag",))
                continue
            xpath, key = tag.attributes.get("xpath", ""), tag.attributes.get("key", "")
            columns = self._mapping(tag, "element", "name")
            lacks = self._lacks(f"the tag {xpath!r}", tag, ("xpath", "concept", "key"))
            if lacks or columns is None or not self._are_paths(xpath, key, *columns.values()):
                continue
            name = xpath.rstrip("/").rpartition("/")[2].partition("[")[0] or "rows"
            self._add(tag, name, key, columns, xml=location, xpath=xpath)

    def _are_paths(self, *texts: str) -> bool:
        faults = [(text, fault) for text in texts if (fault := check_xpath(text, {}))]
        for text, fault in faults:
            self.fault(fault.code, f"{text[:60]!r}: {fault.message}", fault.hint)
        return not faults

    # --- both ---

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
        self, node: XmlNode, name: str, key: str, columns: Mapping[str, str], **source: object
    ) -> None:
        concept = self._concept(node.attributes["concept"])
        if concept is None:
            return
        identity = columns.get("id", key)
        if identity != key:
            message = f"the attribute 'id' of {name!r} is {identity!r}, but its key is {key!r}"
            self.fault("tables.bad_listing", message, "the key is the identity")
            return
        attributes = self._concepts[concept]
        wanted = {each: column for each, column in columns.items() if each != "id"}
        unknown = [attribute for attribute in wanted if attribute not in attributes]
        for attribute in unknown:
            message = f"the concept {concept!r} has no attribute {attribute!r}"
            self.fault("tables.unknown_attribute", message, suggest(attribute, attributes))
        if unknown:
            return
        taken = {table.name for table in self.found}
        free = name if name not in taken else f"{name}-{len(taken) + 1}"
        self.found.append(
            TableDeclaration(
                name=free,
                concept=concept,
                key=key,
                columns={each: (column,) for each, column in wanted.items()},
                lifetime_ms=self._lifetime_ms(node),
                **source,  # type: ignore[arg-type]
            )
        )

    def _lifetime_ms(self, node: XmlNode) -> int:
        """`lifetime="10min"`, which the paper has not."""
        written = node.attributes.get("lifetime", "")
        try:
            return parse_duration(written) if written else 0
        except (InvalidInput, OverflowError):
            hint = "write a number and a unit, such as 10min"
            self.fault("site.bad_duration", f"{written[:40]!r} is not a duration", hint)
            return 0

    def _concept(self, written: str) -> str | None:
        """Concepts are found whatever their case: the paper writes `Person` for `person`."""
        if written in self._concepts:
            return written
        alike = [name for name in self._concepts if name.lower() == written.lower()]
        if len(alike) == 1:
            return alike[0]
        message = f"there is no concept {written!r}"
        self.fault("tables.unknown_concept", message, suggest(written, self._concepts))
        return None

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
