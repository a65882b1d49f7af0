"""Street maps from files: GeoJSON lines, and OpenStreetMap's XML. [EN-11]

XML is read in one pass: no document types, no entities, nothing fetched. Objects that are not
streets are left out; broken ones are refused with their place in the file. Degrees become metres
around the middle of the map, which is right to a millionth within a town.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import cos, isfinite, radians
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.core.xml import XmlError, XmlLimits, XmlReader, XmlVisitor, read_xml
from rapport_lab.ensemble.simulation.streets import MOST_PLACES, Place, Street, StreetMap

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


MOST_BYTES: Final = 256 * 1024 * 1024
METRES_PER_DEGREE: Final = 111_319.49
_USUAL_KMH: Final = 50.0
_MPH: Final = 1.609344
_USUAL_SPEEDS: Final[Mapping[str, float]] = {
    "motorway": 120.0,
    "trunk": 80.0,
    "primary": 50.0,
    "secondary": 50.0,
    "tertiary": 50.0,
    "residential": 30.0,
    "unclassified": 50.0,
    "living_street": 10.0,
    "service": 20.0,
}
"""In km/h, where the file does not say."""


class StreetFileError(InvalidInput):
    """A map that cannot be used; `place` says where in the file."""

    def __init__(self, file: str, place: str, message: str, *, code: str, hint: str) -> None:
        where = ": ".join(part for part in (file, place) if part)
        super().__init__(f"{where}: {message}", code=code, hint=hint)
        self.file, self.place = file, place

    def problems_found(self) -> tuple[Problem, ...]:
        """See RapportError."""
        return (Problem(file=self.file, code=self.code, message=self.message, hint=self.hint),)


class Line(NamedTuple):
    """A street as a file draws it."""

    points: Sequence[Place]
    """Degrees east and north, or metres where `in_metres`."""
    tags: Mapping[str, Any]
    place: str
    """Where in the file."""


def read_streets(path: Path) -> StreetMap:
    """The largest connected part of the map in a file; `.osm` and `.xml` are read as XML, all else
    as GeoJSON. Raises StreetFileError; a million points take some ten seconds.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else None
    except OSError as error:
        hint = "name a GeoJSON or OpenStreetMap file"
        message = f"cannot be read: {error.strerror or error}"
        raise StreetFileError(path.name, "", message, code="streets.no_file", hint=hint) from None
    if data is None:
        _too_large(path.name)
    if path.suffix.lower() in {".osm", ".xml"}:
        return streets_from_osm(data, name=path.name)
    return streets_from_geojson(data, name=path.name)


def streets_from_geojson(data: bytes, *, name: str = "") -> StreetMap:
    """The map drawn by the LineStrings and MultiLineStrings of a GeoJSON document.

    Properties that count: `maxspeed` (km/h, or with `mph`), `highway`, `oneway`. A top-level member
    `"units": "metres"` says that coordinates are metres, not degrees.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        hint = "it must be a GeoJSON document"
        message = f"not JSON: {error}"
        raise StreetFileError(name, "", message, code="streets.bad_file", hint=hint) from None
    if not isinstance(document, dict):
        _bad(name, "", "the document is no object", "begin with a FeatureCollection")
    lines = list(_geojson_lines(document, name))
    return streets_from_lines(lines, name=name, in_metres=document.get("units") == "metres")


def streets_from_osm(data: bytes, *, name: str = "") -> StreetMap:
    """The map of the ways that carry a `highway` tag."""
    if len(data) > MOST_BYTES:
        _too_large(name)
    points, ways = read_osm(data, name)
    lines: list[Line] = []
    for way in ways:
        if "highway" not in way.tags:
            continue
        for reference in way.references:
            if reference not in points:
                hint = "export the nodes of all ways, or cut the way at the border"
                _bad(
                    name,
                    f"line {way.line}",
                    f"the way uses node {reference}, which is not there",
                    hint,
                )
        drawn = [points[reference] for reference in way.references]
        lines.append(Line(drawn, way.tags, f"line {way.line}"))
    return streets_from_lines(lines, name=name)


def streets_from_lines(
    lines: Iterable[Line], *, name: str = "", in_metres: bool = False
) -> StreetMap:
    """The largest connected part of drawn lines; lines meet where they share a point."""
    numbers: dict[Place, int] = {}
    streets: list[Street] = []
    for line in lines:
        speed, one_way = _speed(line, name), _one_way(line.tags)
        drawn = line.points if one_way >= 0 else list(reversed(line.points))
        before: int | None = None
        for point in drawn:
            here = numbers.setdefault(_checked(point, line, name, in_metres), len(numbers))
            if before is not None and before != here:
                streets.append(Street(before, here, speed, bool(one_way)))
            before = here
        if len(numbers) > MOST_PLACES:
            _too_large(name)
    if not streets:
        _bad(name, "", "no street is in it", "lines, or ways with a highway tag, are needed")
    places = list(numbers) if in_metres else _to_metres(list(numbers))
    return StreetMap(places, streets).largest_part()


# --- GeoJSON ---


def _geojson_lines(document: dict[str, Any], name: str) -> Iterable[Line]:
    match document.get("type"):
        case "FeatureCollection":
            features = document.get("features")
            if not isinstance(features, list):
                _bad(name, "features", "no list", "a FeatureCollection has a list of features")
            for number, feature in enumerate(features):
                yield from _feature_lines(feature, name, f"features[{number}]")
        case "Feature":
            yield from _feature_lines(document, name, "feature")
        case "LineString" | "MultiLineString":
            yield from _geometry_lines(document, {}, name, "geometry")
        case other:
            hint = "FeatureCollection, Feature, LineString or MultiLineString"
            _bad(name, "type", f"{other!r:.40} is not read", hint)


def _feature_lines(feature: Any, name: str, place: str) -> Iterable[Line]:
    if not isinstance(feature, dict):
        _bad(name, place, "the feature is no object", "see RFC 7946")
    geometry, tags = feature.get("geometry"), feature.get("properties") or {}
    if not isinstance(tags, dict):
        _bad(name, f"{place}.properties", "no object", "see RFC 7946")
    if geometry is None:
        return
    if not isinstance(geometry, dict):
        _bad(name, f"{place}.geometry", "no object", "see RFC 7946")
    yield from _geometry_lines(geometry, tags, name, place)


def _geometry_lines(
    geometry: dict[str, Any], tags: Mapping[str, Any], name: str, place: str
) -> Iterable[Line]:
    kind, drawn = geometry.get("type"), geometry.get("coordinates")
    if kind not in ("LineString", "MultiLineString"):
        return  # points and areas are no streets
    many = drawn if kind == "MultiLineString" else [drawn]
    if not isinstance(many, list):
        _bad(name, f"{place}.geometry.coordinates", "no list", "a list of [east, north] pairs")
    for points in many:
        if not isinstance(points, list):
            _bad(name, f"{place}.geometry.coordinates", "no list", "a list of [east, north] pairs")
        yield Line(points, tags, place)


# --- points, speeds ---


def _checked(point: Any, line: Line, name: str, in_metres: bool) -> Place:
    is_pair = isinstance(point, list | tuple) and len(point) >= 2
    if not is_pair or not all(type(part) in (int, float) for part in point[:2]):
        _bad(name, line.place, f"{point!r:.60} is no point", "[east, north], two numbers")
    if not (abs(point[0]) < 1e9 and abs(point[1]) < 1e9):
        _bad(name, line.place, f"{point!r:.60} lies nowhere", "finite numbers")
    east, north = float(point[0]), float(point[1])
    if not in_metres and not (abs(east) <= 180 and abs(north) <= 85):
        hint = 'degrees, longitude first, up to 85 north; or say "units": "metres"'
        _bad(name, line.place, f"{point!r:.60} is no longitude and latitude", hint)
    return east, north


def _to_metres(points: list[Place]) -> list[Place]:
    west, east = min(point[0] for point in points), max(point[0] for point in points)
    south, north = min(point[1] for point in points), max(point[1] for point in points)
    middle_north = (south + north) / 2
    across = METRES_PER_DEGREE * cos(radians(middle_north))
    if (east - west) * across > 1e6 or (north - south) * METRES_PER_DEGREE > 1e6:
        message = "the map is more than 1,000 km wide"
        _bad("", "", message, "cut out a smaller area: the earth counts as flat here")
    return [((e - west) * across, (n - south) * METRES_PER_DEGREE) for e, n in points]


def _speed(line: Line, name: str) -> float:
    said = line.tags.get("maxspeed")
    usual = _USUAL_SPEEDS.get(str(line.tags.get("highway", "")), _USUAL_KMH)
    if said is None or said == "":
        return usual / 3.6
    text = str(said).split(";")[0].strip().lower()
    factor = _MPH if text.endswith("mph") else 1.0
    try:
        kmh = float(text.removesuffix("mph").removesuffix("km/h").strip()) * factor
    except ValueError:
        return usual / 3.6  # words such as `walk`, `signals` or `de:urban`
    if not isfinite(kmh) or not 1 <= kmh <= 400:
        _bad(name, line.place, f"a speed of {said!r:.20}", "km/h from 1 to 400, or with mph")
    return kmh / 3.6


def _one_way(tags: Mapping[str, Any]) -> int:
    said = tags.get("oneway")
    if said in (-1, "-1", "reverse"):
        return -1
    return 1 if said is True or str(said).lower() in {"yes", "true", "1"} else 0


def _too_large(name: str) -> NoReturn:
    message = f"larger than {MOST_BYTES >> 20} MiB or {MOST_PLACES} points"
    raise StreetFileError(
        name, "", message, code="streets.too_large", hint="cut out a smaller area"
    )


def _bad(name: str, place: str, message: str, hint: str) -> NoReturn:
    raise StreetFileError(name, place, message, code="streets.bad_file", hint=hint)
