"""The nodes and ways of OpenStreetMap's XML, read in one pass: no document types, no entities,
nothing fetched. [EN-11]
"""

from __future__ import annotations

from typing import Final, NoReturn
from xml.parsers import expat

from rapport.core.xml import XmlError
from rapport.ensemble.simulation.streets import MOST_PLACES, Place

_MOST_DEPTH: Final = 20
_MOST_REFERENCES: Final = 4 * MOST_PLACES


class OsmWay:
    """A way: the ids of its nodes in order, its tags, and the line it begins in."""

    __slots__ = ("line", "references", "tags")

    def __init__(self, line: int) -> None:
        self.line = line
        self.references: list[str] = []
        self.tags: dict[str, str] = {}


def read_osm(data: bytes, name: str = "") -> tuple[dict[str, Place], list[OsmWay]]:
    """Points in degrees (east, north) by node id, and the ways; raises XmlError."""
    reader = _OsmReader(data, name)
    return reader.points, reader.ways


class _OsmReader:
    """One pass over one document."""

    def __init__(self, data: bytes, name: str) -> None:
        self.points: dict[str, Place] = {}
        self.ways: list[OsmWay] = []
        self._way: OsmWay | None = None
        self._name = name
        self._depth = self._references = 0
        parser = self._parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.EntityDeclHandler = self._refuse_doctype
        self._read(data)

    def _read(self, data: bytes) -> None:
        parser = self._parser
        try:
            parser.Parse(data, True)
        except expat.ExpatError as error:
            message = f"not XML: {expat.ErrorString(error.code) or error}"
            self._fail("streets.bad_file", message, "one root element, closed tags, escaped & <")
        except (ValueError, LookupError) as error:  # an encoding that Python does not read
            self._fail("streets.bad_file", f"the encoding is not read: {error}", "use UTF-8")
        finally:
            # Parser and handlers hold each other: cut, so that memory goes at once.
            parser.StartElementHandler = parser.EndElementHandler = None
            parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and name != "osm":
            self._fail("streets.bad_file", f"the root is {name[:40]!r}", "it must be <osm>")
        if self._depth > _MOST_DEPTH:
            self._fail("streets.bad_file", "elements stand too deep", "OpenStreetMap XML is flat")
        if name == "node":
            self._take_node(attributes)
        elif name == "way":
            self._way = OsmWay(self._parser.CurrentLineNumber)
            self.ways.append(self._way)
        elif self._way is not None and name == "nd":
            self._take_reference(attributes)
        elif self._way is not None and name == "tag":
            self._way.tags[attributes.get("k", "")] = attributes.get("v", "")

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "way":
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

    def _refuse_doctype(self, *_declared: object) -> NoReturn:
        hint = "leave out <!DOCTYPE ...>: entities are never expanded or fetched"
        self._fail("streets.bad_file", "a document type or an entity is declared", hint)

    def _fail(self, code: str, message: str, hint: str) -> NoReturn:
        line, column = self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1
        where = f"{self._name}: " if self._name else ""
        raise XmlError(where + message, code=code, hint=hint, line=line, column=column)
