"""Areas: circles and polygons in metres or in longitude and latitude. Reads WKT, GeoJSON and lists
of points; decides whether points lie inside. [SI-10]

Whether a point lies in a polygon is decided exactly for the coordinates as 64-bit numbers: where
rounding could matter, fractions decide. A point on an outline, that of a hole too, is inside. Edges
in longitude and latitude are straight in degrees.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput
from rapport.units import sphere

Point = tuple[float, float]
Ring = tuple[Point, ...]
Polygon = tuple[Ring, ...]
"""The outline, then the holes; the last point of a ring is not its first again."""
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_POINTS = 100_000
"""Of one area."""
_FURTHEST = 1e12
_FEW_EDGES = 16
_LISTED_PER_EDGE = 8
_MOST_PAIRS = 1 << 20
_CACHED = 1 << 17
# Shewchuk's bound for the error of the difference of two products of differences.
_TURN_ERROR = (3.0 + 16.0 * 2.0**-53) * 2.0**-53
_SMALLEST = 1e-280

CODE = "area.invalid"
FORMS = "POLYGON ((x y, x y, x y)), GeoJSON, a list of points, or CIRCLE (x y radius)"


class Area(msgspec.Struct, frozen=True, eq=False):
    """A circle, or polygons with holes; `text` is its canonical form, which `area_of` reads."""

    text: str
    bounds: tuple[float, float, float, float]
    """(x1, y1, x2, y2) around it; in longitude and latitude perhaps all longitudes."""
    circle: tuple[float, float, float] | None
    polygons: tuple[Polygon, ...]
    edges: Floats
    """(n, 4): from (x, y) to (x, y), polygon after polygon."""
    bands: tuple[EdgeBands, ...]
    """Of each polygon."""


class EdgeBands(NamedTuple):
    """The edges of a polygon by horizontal bands of equal height, each with those that touch it."""

    low: float
    height: float
    bands: int
    first: Rows
    """Where the list of each band begins, and the end."""
    listed: Rows
    """Edges of the area."""


def _bands_of(edges: Floats, first_edge: int) -> EdgeBands:
    """As many bands as edges, fewer if edges are long, so that lists stay short."""
    bottom, top = np.minimum(edges[:, 1], edges[:, 3]), np.maximum(edges[:, 1], edges[:, 3])
    low, high = float(bottom.min()), float(top.max())
    count = max(len(edges), 1) if len(edges) > _FEW_EDGES else 1
    while True:
        height = (high - low) / count
        from_band, to_band = _bands(bottom, low, height, count), _bands(top, low, height, count)
        if count == 1 or int((to_band - from_band + 1).sum()) <= _LISTED_PER_EDGE * len(edges):
            break
        count //= 2
    own, places = _spread(from_band, to_band + 1)
    order = np.argsort(places, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(places, minlength=count))))
    return EdgeBands(low, height, count, first.astype(np.int64), own[order] + first_edge)


def _bands(y: Any, low: Any, height: Any, count: Any) -> Rows:
    """The bands of coordinates; they never decrease, so rounding loses no edge."""
    with np.errstate(all="ignore"):
        found = np.where(height > 0, (y - low) / height, 0.0)
    return np.asarray(np.clip(found, 0, count - 1), np.int64)


def _invalid(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code=CODE, hint=hint)


# --- making and reading areas ---


def circle(x: float, y: float, radius: float, *, geographic: bool = False) -> Area:
    """Raises InvalidInput for a negative radius or coordinates that are none."""
    _check_point((x, y), geographic=geographic)
    if not 0 <= radius <= _FURTHEST:
        raise _invalid(f"{_shown(radius)} is no radius", "write metres, not negative")
    return _circle(x, y, radius, geographic=geographic)


def polygons(parts: Sequence[Polygon], *, geographic: bool = False) -> Area:
    """Raises InvalidInput for outlines of fewer than three points, that cross or touch themselves,
    for holes that are not within their outline, and for coordinates that are none.

    Costs O(n log n) for n points of ordinary outlines.
    """
    if sum(len(ring) for part in parts for ring in part) > MOST_POINTS:
        raise _invalid(f"the area has more than {MOST_POINTS:,} points", "simplify its outline")
    found = tuple(tuple(_clean(ring) for ring in part) for part in parts)
    if not found or not all(found):
        raise _invalid("the area is empty", "leave the field empty if it is unknown")
    for part in found:
        for ring in part:
            _check_ring(ring, geographic=geographic)
        _check_simple(part)
    return _polygons(found)


def rectangle(x1: float, y1: float, x2: float, y2: float, *, geographic: bool = False) -> Area:
    """Raises InvalidInput unless the first corner is below and left of the second."""
    if not (x1 < x2 and y1 < y2):
        message = "the rectangle's first corner is not below and left of its second"
        hint = "x1 < x2 and y1 < y2"
        if geographic and x1 > x2:
            hint = "cut it at the 180th meridian into the two parts of a MULTIPOLYGON"
        raise _invalid(message, hint)
    corners = ((x1, y1), (x2, y1), (x2, y2), (x1, y2))
    for corner in corners:
        _check_point(corner, geographic=geographic)
    return _polygons(((corners,),))


def parse_area(text: str, *, geographic: bool = False, decimal: str = ".") -> Area:
    """Reads WKT (POLYGON, MULTIPOLYGON, and CIRCLE with a radius in metres), GeoJSON (Polygon,
    MultiPolygon, a Feature of one), or a list of points; raises InvalidInput.

    `decimal`: the decimal mark of lists of points.

    >>> parse_area("0 0, 4 0, 4 3").text
    'POLYGON ((0 0, 4 0, 4 3, 0 0))'
    >>> parse_area('{"type": "Polygon", "coordinates": [[[0, 0], [4, 0], [4, 3], [0, 0]]]}').bounds
    (0.0, 0.0, 4.0, 3.0)
    """
    written = text.strip()
    if written.startswith("{"):
        return polygons(_of_geojson(written), geographic=geographic)
    if written.startswith("["):
        return polygons(_of_lists(_json(written)), geographic=geographic)
    if written[:1].isalpha():
        return _of_wkt(written, geographic=geographic)
    return polygons(((_of_numbers(written, decimal),),), geographic=geographic)


@lru_cache(maxsize=_CACHED)
def area_of(text: str, geographic: bool) -> Area:
    """The area of a canonical text; it is not checked again."""
    found = _NAME.match(text)
    assert found is not None
    name, body = found[2], text[found.end() :]
    if name == "CIRCLE":
        x, y, radius = map(float, body.strip("() ").split())
        return _circle(x, y, radius, geographic=geographic)
    groups = _groups(body)
    parts = [groups] if name == "POLYGON" else groups
    return _polygons(
        tuple(tuple(tuple((p[0], p[1]) for p in ring[:-1]) for ring in part) for part in parts)
    )


def _circle(x: float, y: float, radius: float, *, geographic: bool) -> Area:
    if geographic:
        around = sphere.bounds(x, y, radius)
    else:
        # Wider than the radius: squares and sums are rounded, and the smallest squares vanish.
        wide = radius * (1.0 + 1e-14) + 1e-150
        low, high = (
            [math.nextafter(centre + step, step * math.inf) for centre in (x, y)]
            for step in (-wide, wide)
        )
        around = (low[0], low[1], high[0], high[1])
    text = f"CIRCLE ({_shown(x)} {_shown(y)} {_shown(radius)})"
    return Area(text, around, (x, y, radius), (), np.zeros((0, 4)), ())


def _polygons(parts: tuple[Polygon, ...]) -> Area:
    edges = [
        (*start, *end)
        for part in parts
        for ring in part
        for start, end in pairwise((*ring, ring[0]))
    ]
    lengths = [sum(len(ring) for ring in part) for part in parts]
    drawn = np.array(edges, np.float64)
    low, high = drawn[:, :2].min(axis=0).tolist(), drawn[:, :2].max(axis=0).tolist()
    shown = [f"({', '.join(_ring_text(ring) for ring in part)})" for part in parts]
    text = f"POLYGON {shown[0]}" if len(parts) == 1 else f"MULTIPOLYGON ({', '.join(shown)})"
    ends = np.cumsum(lengths).tolist()
    bands = tuple(
        _bands_of(drawn[end - length : end], end - length)
        for length, end in zip(lengths, ends, strict=True)
    )
    return Area(text, (low[0], low[1], high[0], high[1]), None, parts, drawn, bands)


def _ring_text(ring: Ring) -> str:
    return f"({', '.join(f'{_shown(x)} {_shown(y)}' for x, y in (*ring, ring[0]))})"


def _shown(number: float) -> str:
    """The shortest text that reads back as the number."""
    return repr(float(number)).removesuffix(".0")


_NAME = re.compile(r"\s*(?:SRID\s*=\s*(\d+)\s*;)?\s*([A-Z]+)\s*(ZM|Z|M)?\s*", re.IGNORECASE)
_WGS84 = "4326"


def _of_wkt(text: str, *, geographic: bool) -> Area:
    found = _NAME.match(text)
    if found is None:
        raise _unreadable(text)
    name, body = found[2].upper(), text[found.end() :]
    if found[1] and geographic and found[1] != _WGS84:
        hint = f"give it in longitude and latitude, SRID {_WGS84}"
        raise _invalid(f"the area is in the reference system {found[1]}", hint)
    if body.strip().upper() == "EMPTY":
        raise _invalid("the area is empty", "leave the field empty if it is unknown")
    if name == "CIRCLE":
        numbers = _floats(re.split(r"[\s,]+", body.strip().strip("()").strip()))
        if len(numbers) != 3:
            raise _invalid(f"{_short(text)} is no circle", "write CIRCLE (x y radius)")
        return circle(numbers[0], numbers[1], numbers[2], geographic=geographic)
    if name not in ("POLYGON", "MULTIPOLYGON"):
        raise _invalid(f"{name} is no area", f"write {FORMS}")
    groups = _groups(body)
    parts = [groups] if name == "POLYGON" else groups
    return polygons(_parts(parts, text), geographic=geographic)


_WKT_TOKEN = re.compile(r"[(),]|[^\s(),]+")


def _groups(body: str) -> Any:
    """The nested lists of a WKT body; positions are lists of numbers."""
    tokens = _WKT_TOKEN.findall(body)
    open_groups: list[list[Any]] = [[]]
    position: list[str] = []

    def end_position() -> None:
        if position:
            open_groups[-1].append(_floats(position))
            position.clear()

    for token in tokens:
        if token == "(":
            open_groups.append([])
        elif token == ",":
            end_position()
        elif token == ")":
            end_position()
            if len(open_groups) < 2:
                raise _unreadable(body)
            closed = open_groups.pop()
            open_groups[-1].append(closed)
        else:
            position.append(token)
    if position or len(open_groups) != 1 or len(open_groups[0]) != 1:
        raise _unreadable(body)
    return open_groups[0][0]


def _floats(texts: Sequence[str]) -> list[float]:
    try:
        return [float(text) for text in texts if text]
    except ValueError:
        wrong = next(text for text in texts if not _is_number(text))
        raise _invalid(f"{wrong[:40]!r} is not a number", f"write {FORMS}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_geojson(text: str) -> tuple[Polygon, ...]:
    found = _json(text)
    if isinstance(found, dict) and found.get("type") == "Feature":
        found = found.get("geometry")
    kind = found.get("type") if isinstance(found, dict) else None
    if kind not in ("Polygon", "MultiPolygon"):
        raise _invalid(f"GeoJSON of type {kind!r} is no area", "write a Polygon or MultiPolygon")
    given = found.get("coordinates")
    return _parts([given] if kind == "Polygon" else given, text)


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _invalid(f"{_short(text)} is no JSON: {error}", f"write {FORMS}") from None


def _of_lists(given: Any) -> tuple[Polygon, ...]:
    """Coordinates without a type: a list of points, of rings, or of polygons."""
    depth, inner = 0, given
    while isinstance(inner, list) and inner:
        depth, inner = depth + 1, inner[0]
    if depth == 1 and len(given) % 2 == 0:
        given, depth = [given[at : at + 2] for at in range(0, len(given), 2)], 2
    for _ in range(depth, 4):
        given = [given]
    return _parts(given, str(given))


def _of_numbers(text: str, decimal: str) -> Ring:
    between = r"[\s,;()]+" if decimal == "." else r"[\s;()]+"
    fields = [field.replace(decimal, ".") for field in re.split(between, text) if field]
    numbers = _floats(fields)
    if len(numbers) % 2 or not numbers:
        message = f"{_short(text)} has {len(numbers)} numbers, which are no points"
        raise _invalid(message, "write two numbers for each point: 0 0, 4 0, 4 3")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _parts(given: Any, text: str) -> tuple[Polygon, ...]:
    """Polygons of nested lists; of each position the first two numbers."""
    try:
        return tuple(
            tuple(tuple(_position(each) for each in ring) for ring in part) for part in given
        )
    except (TypeError, ValueError, IndexError):
        raise _unreadable(text) from None


def _position(given: Any) -> Point:
    if not isinstance(given, list) or not 2 <= len(given) <= 4:
        raise ValueError
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in given):
        raise ValueError
    return float(given[0]), float(given[1])


def _unreadable(text: str) -> InvalidInput:
    return _invalid(f"{_short(text)} is no area", f"write {FORMS}")


def _short(text: str) -> str:
    return repr(text.strip()[:40] + ("..." if len(text.strip()) > 40 else ""))


# --- what an area must be ---


def _clean(ring: Ring) -> Ring:
    """Without points that follow themselves; the first does not stand at the end again."""
    kept = [*ring[:1], *(point for before, point in pairwise(ring) if point != before)]
    while len(kept) > 1 and kept[-1] == kept[0]:
        kept.pop()
    return tuple(kept)


def check_position(lon: float, lat: float) -> str:
    """Why two numbers are no longitude and latitude; empty if they are."""
    if abs(lat) > 90:
        return "a latitude is between -90 and 90; the longitude comes first"
    if abs(lon) > 180:
        return "a longitude is between -180 and 180"
    return ""


def _check_point(point: Point, *, geographic: bool) -> None:
    x, y = point
    if not (abs(x) <= _FURTHEST and abs(y) <= _FURTHEST):
        raise _invalid(f"{_shown(x)} {_shown(y)} is no point", "write numbers up to 1e12")
    if geographic and (hint := check_position(x, y)):
        raise _invalid(f"{_shown(x)} {_shown(y)} is no longitude and latitude", hint)


def _check_ring(ring: Ring, *, geographic: bool) -> None:
    for point in ring:
        _check_point(point, geographic=geographic)
    if len(ring) < 3:
        raise _invalid(
            f"an outline of {len(ring)} different points encloses nothing",
            "an area has at least three points that are not on a line",
        )
    if geographic:
        for start, end in pairwise((*ring, ring[0])):
            if abs(end[0] - start[0]) > 180:
                at = f"from {_shown(start[0])} {_shown(start[1])} to {_shown(end[0])} "
                raise _invalid(
                    f"the edge {at}{_shown(end[1])} spans more than 180 degrees of longitude",
                    "cut the area at the 180th meridian into the parts of a MULTIPOLYGON",
                )


def _check_simple(part: Polygon) -> None:
    """Refuses rings that meet themselves, rings that cross, and holes outside their outline."""
    ends = np.array([(*a, *b) for ring in part for a, b in pairwise((*ring, ring[0]))], np.float64)
    sizes = [len(ring) for ring in part]
    owner = np.repeat(np.arange(len(part)), sizes)
    follower = np.concatenate(
        [
            first + np.roll(np.arange(size), -1)
            for first, size in zip(_starts(sizes), sizes, strict=True)
        ]
    )
    for one, other in _near_pairs(ends):
        a, b = ends[one], ends[other]
        edges = np.concatenate((a, a, b, b))
        points = np.concatenate((b[:, :2], b[:, 2:], a[:, :2], a[:, 2:]))
        sides = turn_many(edges, points)
        turns = sides.reshape(4, -1)
        crossing = (turns[0] * turns[1] < 0) & (turns[2] * turns[3] < 0)
        on = ((sides == 0) & _in_box(edges, points)).reshape(4, -1)
        same = owner[one] == owner[other]
        before, after = follower[one] == other, follower[other] == one
        apart = ~(before | after)
        touching = same & apart & (on[0] | on[1] | on[2] | on[3])
        # Neighbours share one point; with a further common one the outline folds back.
        touching |= same & before & (on[1] | on[2])
        touching |= same & after & (on[0] | on[3])
        wrong = np.flatnonzero(crossing | touching)
        if len(wrong):
            x, y = (float(number) for number in b[wrong[0], :2])
            how = "crosses" if crossing[wrong[0]] else "touches"
            what = "itself" if same[wrong[0]] else "that of a hole"
            raise _invalid(
                f"the outline {how} {what} near {_shown(x)} {_shown(y)}",
                "list the points in order around the area, each once",
            )
    _check_holes(part)


def _check_holes(part: Polygon) -> None:
    if len(part) == 1:
        return
    outline, *holes = (_polygons(((ring,),)) for ring in part)
    for number, hole in enumerate(holes):
        if not _is_within(hole, outline):
            raise _invalid("a hole is not within its outline", "the first ring is the outline")
        for other in holes[:number]:
            if _is_within(hole, other) or _is_within(other, hole):
                raise _invalid("a hole lies in another hole", "leave the inner one out")


def _is_within(inner: Area, outer: Area) -> bool:
    """Whether all points of the one outline lie inside the other."""
    low, high = outer.bounds[:2], outer.bounds[2:]
    points = inner.edges[:, :2]
    if (points < low).any() or (points > high).any():
        return False
    return bool(_in_polygons([outer], np.zeros(len(points), np.int64), points).all())


def _near_pairs(edges: Floats) -> list[tuple[Rows, Rows]]:
    """Pairs of edges whose extents from left to right overlap, each once, in portions."""
    left = np.minimum(edges[:, 0], edges[:, 2])
    right = np.maximum(edges[:, 0], edges[:, 2])
    order = np.argsort(left, kind="stable")
    stops = np.searchsorted(left[order], right[order], side="right")
    counts = stops - np.arange(1, len(edges) + 1)
    ends = np.cumsum(counts)
    cuts = np.searchsorted(ends, np.arange(_MOST_PAIRS, int(ends[-1]) + 1, _MOST_PAIRS))
    found = []
    for first, last in pairwise([0, *np.unique(cuts[cuts > 0]).tolist(), len(edges)]):
        rows = np.arange(first, last)
        owners, others = _spread(rows + 1, stops[first:last])
        one, other = order[rows[owners]], order[others]
        low, high = np.minimum(edges[:, 1], edges[:, 3]), np.maximum(edges[:, 1], edges[:, 3])
        meet = (low[one] <= high[other]) & (low[other] <= high[one])
        found.append((one[meet], other[meet]))
    return found


def _spread(starts: Rows, stops: Rows) -> tuple[Rows, Rows]:
    """(row, place) for each place in the ranges of the rows."""
    counts = np.maximum(stops - starts, 0)
    rows = np.repeat(np.arange(len(starts)), counts)
    before = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - before[rows] + starts[rows]


def _in_box(edges: Floats, points: Floats) -> Mask:
    x, y = points[:, 0], points[:, 1]
    across = (np.minimum(edges[:, 0], edges[:, 2]) <= x) & (
        x <= np.maximum(edges[:, 0], edges[:, 2])
    )
    upward = (np.minimum(edges[:, 1], edges[:, 3]) <= y) & (
        y <= np.maximum(edges[:, 1], edges[:, 3])
    )
    return np.asarray(across & upward, np.bool_)


# --- on which side of an edge a point lies ---


def turn(edge: Sequence[float], point: Sequence[float]) -> int:
    """1 left of the edge, -1 right of it, 0 on its line; exact."""
    ax, ay, bx, by = edge
    left = (bx - ax), (point[1] - ay)
    right = (by - ay), (point[0] - ax)
    sign_left, sign_right = _sign(left[0]) * _sign(left[1]), _sign(right[0]) * _sign(right[1])
    if sign_left != sign_right or sign_left == 0:
        # Differences keep their sign when they are rounded.
        return _sign(sign_left - sign_right)
    one, other = left[0] * left[1], right[0] * right[1]
    size = abs(one) + abs(other)
    if _SMALLEST < size < math.inf and abs(one - other) > _TURN_ERROR * size:
        return _sign(one - other)
    return _exact_turn(edge, point)


def turn_many(edges: npt.NDArray[Any], points: npt.NDArray[Any]) -> Rows:
    """The same for arrays (n, 4) and (n, 2)."""
    with np.errstate(all="ignore"):
        bx, by = edges[:, 2] - edges[:, 0], edges[:, 3] - edges[:, 1]
        px, py = points[:, 0] - edges[:, 0], points[:, 1] - edges[:, 1]
        sign_one, sign_other = np.sign(bx) * np.sign(py), np.sign(by) * np.sign(px)
        one, other = bx * py, by * px
        size = np.abs(one) + np.abs(other)
        apart = one - other
        clear = sign_one != sign_other
        sure = clear | (sign_one == 0)
        is_end = (points[:, 0] == edges[:, 2]) & (points[:, 1] == edges[:, 3])
        apart[is_end], sure = 0.0, sure | is_end
        sure |= (size > _SMALLEST) & (size < np.inf) & (np.abs(apart) > _TURN_ERROR * size)
        found: Rows = np.sign(np.where(clear, sign_one - sign_other, apart)).astype(np.int64)
    for row in np.flatnonzero(~sure).tolist():
        found[row] = _exact_turn(edges[row].tolist(), points[row].tolist())
    return found


def _exact_turn(edge: Sequence[float], point: Sequence[float]) -> int:
    ax, ay, bx, by = map(Fraction, edge)
    x, y = Fraction(point[0]), Fraction(point[1])
    found = (bx - ax) * (y - ay) - (by - ay) * (x - ax)
    return (found > 0) - (found < 0)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


# --- whether points lie inside ---


def contains(area: Area, point: Sequence[float], *, geographic: bool = False) -> bool:
    """Whether a point lies in the area or on its outline; a missing coordinate never does."""
    x, y = point[0], point[1]
    if area.circle is not None:
        if geographic:
            return sphere.distance((x, y), area.circle) <= area.circle[2]
        dx, dy, reach = x - area.circle[0], y - area.circle[1], area.circle[2]
        return bool(dx * dx + dy * dy <= reach * reach)
    x1, y1, x2, y2 = area.bounds
    if not (x1 <= x <= x2 and y1 <= y <= y2):
        return False
    for one in area.bands:
        band = int(_bands(y, one.low, one.height, one.bands))
        edges = area.edges[one.listed[one.first[band] : one.first[band + 1]]]
        if _is_in(edges, (x, y)):
            return True
    return False


def _is_in(edges: Floats, point: Point) -> bool:
    """Whether a point is inside or on the outline of one polygon."""
    x, y = point
    is_inside = False
    for edge in edges.tolist():
        ax, ay, bx, by = edge
        if not min(ay, by) <= y <= max(ay, by):
            continue
        side = turn(edge, point)
        if side == 0 and min(ax, bx) <= x <= max(ax, bx):
            return True
        if (ay > y) != (by > y) and (side > 0) == (by > ay):
            is_inside = not is_inside
    return is_inside


def contains_many(
    texts: Sequence[str | None], points: npt.NDArray[Any], *, geographic: bool = False
) -> Mask:
    """`contains` row by row, of canonical texts of areas (None: missing) and points (n, 2).

    Costs the edges of the areas that a point's row names, where the point is within the bounds.
    """
    numbers: dict[str | None, int] = {}
    owner = np.fromiter(
        (numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts)
    )
    known = [None if text is None else area_of(text, geographic) for text in numbers]
    found = np.zeros(len(owner), np.bool_)
    if not len(owner):
        return found
    around = np.array([_NOWHERE if one is None else one.bounds for one in known], np.float64)
    x, y = points[:, 0], points[:, 1]
    box = around[owner]
    near = (box[:, 0] <= x) & (x <= box[:, 2]) & (box[:, 1] <= y) & (y <= box[:, 3])
    round_ones = np.array([one is not None and one.circle is not None for one in known])
    for rows, decide in (
        (np.flatnonzero(near & round_ones[owner]), partial(_in_circles, geographic=geographic)),
        (np.flatnonzero(near & ~round_ones[owner]), _in_polygons),
    ):
        if len(rows):
            own, chosen = np.unique(owner[rows], return_inverse=True)
            areas = [one for at in own.tolist() if (one := known[at]) is not None]
            found[rows] = decide(areas, chosen.reshape(-1), points[rows])
    return found


_NOWHERE = (math.inf, math.inf, -math.inf, -math.inf)


def _in_circles(areas: Sequence[Area], owner: Rows, points: Floats, *, geographic: bool) -> Mask:
    circles = np.array([area.circle for area in areas], np.float64)[owner]
    if geographic:
        return np.asarray(sphere.distance_many(points, circles) <= circles[:, 2], np.bool_)
    with np.errstate(all="ignore"):
        dx, dy = points[:, 0] - circles[:, 0], points[:, 1] - circles[:, 1]
        return np.asarray(dx * dx + dy * dy <= circles[:, 2] * circles[:, 2], np.bool_)


def _in_polygons(areas: Sequence[Area], owner: Rows, points: Floats) -> Mask:
    edges = np.concatenate([area.edges for area in areas])
    first_edge = _starts([len(area.edges) for area in areas])
    part_counts = [len(area.bands) for area in areas]
    parts = [part for area in areas for part in area.bands]
    list_sizes, band_sizes = [len(one.listed) for one in parts], [len(one.first) for one in parts]
    # Numbers of one polygon become those of all: of edges, then of places in the lists.
    listed = np.concatenate([one.listed for one in parts])
    listed += np.repeat(np.repeat(first_edge, part_counts), list_sizes)
    begins = np.concatenate([one.first for one in parts])
    begins += np.repeat(_starts(list_sizes), band_sizes)
    first_band = _starts(band_sizes)
    shape = np.array([one[:3] for one in parts], np.float64)
    first_part = _starts(part_counts)
    part_ends = first_part + part_counts
    rows, own = _spread(first_part[owner], part_ends[owner])
    bands = first_band[own] + _bands(points[rows, 1], *shape[own].T)
    starts, stops = begins[bands], begins[bands + 1]
    found = np.zeros(len(owner), np.bool_)
    lengths = np.cumsum(stops - starts)
    cuts = np.searchsorted(lengths, np.arange(_MOST_PAIRS, int(lengths[-1]) + 1, _MOST_PAIRS))
    for first, last in pairwise([0, *np.unique(cuts[cuts > 0]).tolist(), len(rows)]):
        some = slice(first, last)
        inside = _in_parts(edges, listed, (starts[some], stops[some]), points[rows[some]])
        found[rows[some][inside]] = True
    return found


def _starts(sizes: Sequence[int]) -> Rows:
    """Where each of consecutive ranges begins."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.concatenate((np.zeros(1, np.int64), ends[:-1]))


def _in_parts(edges: Floats, listed: Rows, lists: tuple[Rows, Rows], points: Floats) -> Mask:
    """Of each point whether it lies in the polygon that has these edges at its height."""
    rows, found = _spread(*lists)
    places = listed[found]
    y = points[rows, 1]
    from_y, to_y = edges[places, 1], edges[places, 3]
    level = (np.minimum(from_y, to_y) <= y) & (y <= np.maximum(from_y, to_y))
    rows, places, y = rows[level], places[level], y[level]
    own = edges[places]
    x = points[rows, 0]
    sides = turn_many(own, np.column_stack((x, y)))
    on = (sides == 0) & (np.minimum(own[:, 0], own[:, 2]) <= x)
    on &= x <= np.maximum(own[:, 0], own[:, 2])
    crossed = ((own[:, 1] > y) != (own[:, 3] > y)) & ((sides > 0) == (own[:, 3] > own[:, 1]))
    odd = np.bincount(rows[crossed], minlength=len(points)) % 2 == 1
    odd[rows[on]] = True
    return np.asarray(odd, np.bool_)


def bounds_of(texts: Sequence[str | None], *, geographic: bool = False) -> Floats:
    """The bounds (n, 4) of canonical texts of areas; NaN where one is missing."""
    missing = (math.nan,) * 4
    rows = [missing if text is None else area_of(text, geographic).bounds for text in texts]
    return np.array(rows, np.float64).reshape(-1, 4)


# --- how far a point is from an area ---


def distance_outside(area: Area, point: Sequence[float], *, geographic: bool = False) -> float:
    """Metres from a point to the area; 0 inside. In longitude and latitude that to the nearest
    point of the outline on a map around the point, good for neighbourhoods; for explanations."""
    if contains(area, point, geographic=geographic):
        return 0.0
    if area.circle is not None:
        apart: Callable[..., float] = sphere.distance if geographic else _straight
        return max(apart(point, area.circle) - area.circle[2], 0.0)
    nearest = nearest_on_outline(area, point, geographic=geographic)
    return sphere.distance(point, nearest) if geographic else _straight(point, nearest)


def nearest_on_outline(area: Area, point: Sequence[float], *, geographic: bool = False) -> Point:
    """About the nearest point on the outline of polygons."""
    widen = max(math.cos(math.radians(point[1])), 1e-9) if geographic else 1.0
    start = (area.edges[:, :2] - np.asarray(point[:2])) * (widen, 1.0)
    along = (area.edges[:, 2:] - area.edges[:, :2]) * (widen, 1.0)
    length = (along * along).sum(axis=1)
    share = np.clip(-(start * along).sum(axis=1) / np.where(length > 0, length, 1.0), 0.0, 1.0)
    gap = start + along * share[:, None]
    row = int((gap * gap).sum(axis=1).argmin())
    edge = area.edges[row]
    found = edge[:2] + (edge[2:] - edge[:2]) * share[row]
    return float(found[0]), float(found[1])


def _straight(first: Sequence[float], second: Sequence[float]) -> float:
    return math.hypot(first[0] - second[0], first[1] - second[1])
