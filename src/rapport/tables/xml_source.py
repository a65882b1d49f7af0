"""Rows from an XML file: one per element that an XPath selects, fields by XPath too. [PO-2]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from rapport.tables.rows import LooseRows, check_size, content_digest, unusable_table
from rapport.tables.xpath.expression import XPath
from rapport.tables.xpath.nodes import (
    MOST_BYTES,
    Document,
    line_of_element,
    local_name,
    read_document,
)
from rapport.tables.xpath.tokens import XPathFault


class XmlRows(LooseRows):
    """The elements of an XML file as rows; a row stands in the line where its element begins."""

    def __init__(
        self,
        name: str,
        header: list[str],
        rows: list[list[str]],
        data: bytes,
        places: list[int],
    ) -> None:
        super().__init__(name, header, rows, content_digest(data))
        self._data, self._places = data, places

    def line_of(self, row: int) -> int:
        """Reads the file again, so it is for faults only."""
        return line_of_element(self._data, self._places[row])


def read_xml(
    path: Path, xpath: str, fields: Sequence[str], *, name: str, namespaces: Mapping[str, str]
) -> XmlRows:
    """The rows of a file; raises SiteError with the line where there is one."""
    try:
        if path.stat().st_size > MOST_BYTES:
            message = f"the file is larger than {MOST_BYTES >> 20} MiB"
            raise unusable_table(name, "tables.too_large", message, "split it into several tables")
        data = path.read_bytes()
    except OSError as error:
        message, hint = f"cannot read {name}: {error.strerror}", "look at the file's rights"
        raise unusable_table(name, "tables.unreadable", message, hint) from None
    return rows_of_xml(data, xpath, fields, name=name, namespaces=namespaces)


def rows_of_xml(
    data: bytes, xpath: str, fields: Sequence[str], *, name: str, namespaces: Mapping[str, str]
) -> XmlRows:
    """The same for bytes. `fields` are expressions relative to a row; the names of children without
    children and of attributes (`@name`) are columns besides, for look-ups.

    A path that no row has is no column. Spaces around a field are left out.
    """
    document = read_document(data, name=name)
    try:
        chosen = _elements(document, XPath(xpath, namespaces), name)
        check_size(name, len(chosen))
        wanted = {field: XPath(field, namespaces) for field in fields}
        for field in _headings(chosen):
            wanted.setdefault(field, XPath(field))
        columns = _columns(document, chosen, wanted)
    except XPathFault as error:
        raise unusable_table(name, error.code, error.message, error.hint) from None
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    places = [document.order[element] for element in chosen]
    return XmlRows(name, list(columns), rows, data, places)


def _elements(document: Document, xpath: XPath, name: str) -> list[Element]:
    nodes = xpath.nodes(document)
    elements = [node for node in nodes if isinstance(node, Element)]
    if len(elements) != len(nodes):
        message = f"{xpath.text!r} selects more than elements"
        raise unusable_table(
            name, "tables.bad_xpath", message, "rows are elements, such as /plan/room"
        )
    return elements


def _headings(elements: list[Element]) -> list[str]:
    """Names that can be asked for as they stand."""
    found: dict[str, None] = {}
    for element in elements:
        for name in element.attrib:
            found[f"@{local_name(name)}"] = None
        for child in element:
            if not len(child):
                found[local_name(child.tag)] = None
    return [name for name in found if _is_plain(name)]


def _is_plain(name: str) -> bool:
    try:
        XPath(name)
    except XPathFault:
        return False
    return True


def _columns(
    document: Document, elements: list[Element], wanted: Mapping[str, XPath]
) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    for field, xpath in wanted.items():
        values = [xpath.text_at(document, element) for element in elements]
        if not elements or any(value is not None for value in values):
            columns[field] = [(value or "").strip() for value in values]
    return columns


def check_xpath(text: str, namespaces: Mapping[str, str]) -> XPathFault | None:
    """What is wrong with an expression, without a document."""
    try:
        XPath(text, namespaces)
    except XPathFault as error:
        return error
    return None
