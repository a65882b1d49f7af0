"""The nodes and ways of OpenStreetMap's XML, read in one pass: no document types, no entities,
nothing fetched. [EN-11]
"""

from __future__ import annotations

from typing import Final, NoReturn

from rapport.core.xml import XmlError, XmlLimits, XmlReader, XmlVisitor, read_xml
from rapport_lab.ensemble.simulation.streets import MOST_PLACES, Place

_MOST_REFERENCES: Final = 4 * MOST_PLACES
_LIMITS: Final = XmlLimits(bytes=256 * 1024 * 1024, depth=20, parts=50 * MOST_PLACES)


class OsmWay:
    """A way: the ids of its nodes in order, its tags, and the line it begins in."""

    __slots__ = ("line", "references", "tags")

    def __init__(self, line: int) -> None:
        self.line = line
        self.references: list[str] = []
        self.tags: dict[str, str] = {}


def read_osm(data: bytes, name: str = "") -> tuple[dict[str, Place], list[OsmWay]]:
    """Points in degrees (east, north) by node id, and the ways; raises XmlError."""
    visitor = _OsmVisitor()
    try:
        read_xml(data, visitor, _LIMITS)
    except XmlError as error:
        raise _refused(name, error) from None
    return visitor.points, visitor.ways


def _refused(name: str, error: XmlError) -> XmlError:
    (problem,) = error.problems_found()
    code, message = problem.code, problem.message
    if code == "xml.not_well_formed":
        message = f"not XML: {message}"
    if code.startswith("xml."):
        code = "streets.too_large" if code == "xml.too_large" else "streets.bad_file"
    return XmlError(
        f"{name}: {message}" if name else message,
        code=code,
        hint=problem.hint,
        line=problem.line,
        column=problem.column,
    )


class _OsmVisitor(XmlVisitor):
    """Collects nodes and ways in one pass over one document."""

    _reader: XmlReader

    def __init__(self) -> None:
        self.points: dict[str, Place] = {}
        self.ways: list[OsmWay] = []
        self._open: list[str] = []
        self._way: OsmWay | None = None
        self._references = 0

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """See XmlVisitor."""
        self._reader = reader
        if not self._open and name != "osm":
            self._fail("streets.bad_file", f"the root is {name[:40]!r}", "it must be <osm>")
        self._open.append(name)
        if name == "node":
            self._take_node(attributes)
        elif name == "way":
            self._way = OsmWay(reader.place[0])
            self.ways.append(self._way)
        elif self._way is not None and name == "nd":
            self._take_reference(attributes)
        elif self._way is not None and name == "tag":
            self._way.tags[attributes.get("k", "")] = attributes.get("v", "")

    def end(self) -> None:
        """See XmlVisitor."""
        if self._open.pop() == "way":
            self._way = None

    def _take_node(self, attributes: dict[str, str]) -> None:
        try:
            place = float(attributes["lon"]), float(attributes["lat"])
            self.points[attributes["id"]] = place
        except (KeyError, ValueError):
            message = "a node without id, lat or lon"
            self._fail("streets.bad_file", message, "lat and lon are degrees, such as 52.5")
        if len(self.points) > MOST_PLACES * 4:
            self._fail("streets.too_large", "too many nodes", "cut out a smaller area")

    def _take_reference(self, attributes: dict[str, str]) -> None:
        if self._way is None or "ref" not in attributes:
            self._fail("streets.bad_file", "an <nd> without ref", "it names a node")
        self._references += 1
        if self._references > _MOST_REFERENCES:
            self._fail("streets.too_large", "too many nodes in ways", "cut out a smaller area")
        self._way.references.append(attributes["ref"])

    def _fail(self, code: str, message: str, hint: str) -> NoReturn:
        self._reader.fail(code, message, hint)
