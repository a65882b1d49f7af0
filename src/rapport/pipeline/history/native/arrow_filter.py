"""An interest as an expression of Arrow: for files that tasks read themselves. [PI-5]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from rapport.pipeline.history.native.cover import Cover, cover_of
from rapport.pipeline.history.native.interest import Interest, Wanted
from rapport.pipeline.history.native.values import (
    BOOLEANS,
    Boxes,
    Interval,
    Numbers,
    Texts,
    Values,
)

Naming = Callable[[str], str]
"""The column that holds what readings have under a name; part columns are
`<concept>.<attribute>.<part>`.
"""


def arrow_filter(interest: Interest, column: Naming = str) -> pc.Expression:
    """True for the readings that matter; null or false for all others. Costs some 10 to 50 ns a
    row in memory; in a Parquet scan it passes over row groups too.
    """
    parts = [
        (pc.field(column("stream")) == stream) & stream_filter(interest, stream, column)
        for stream in sorted(interest.streams())
    ]
    if interest.sources:
        parts.append(_among(pc.field(column("source")), interest.sources))
    if interest.began is not None:
        parts.append(pc.field(column("time")) == interest.began)
    return _any(parts)


def stream_filter(interest: Interest, stream: str, column: Naming = str) -> pc.Expression:
    """The same for rows known to be of one stream, as in files that hold one each; but watched
    sources and the moment of the begin are another matter.
    """
    return _any(_wanted(part, column) for part in interest.of_stream(stream))


def _wanted(part: Wanted, column: Naming) -> pc.Expression:
    found = pc.scalar(True)
    if part.values is not None:
        found = found & _values(part.stream, part.values, column)
    if part.keys is not None:
        found = found & _among(pc.field(column("key")), part.keys)
    return found


def _values(stream: str, values: Values, column: Naming) -> pc.Expression:
    match values:
        case Numbers():
            # Booleans are compared as 0 and 1; of a number the cast is none.
            number = pc.field(column(f"{stream}.value")).cast(pa.float64())
            return _any(_within(number, one) for one in values.intervals)
        case Texts():
            text = pc.field(column(f"{stream}.value"))
            if values.texts & BOOLEANS:
                text = text.cast(pa.string())
            return _among(text, values.texts)
        case Boxes():
            x, y = pc.field(column(f"{stream}.x")), pc.field(column(f"{stream}.y"))
            return _covered(x, y, cover_of(values.array()))


def _covered(x: pc.Expression, y: pc.Expression, cover: Cover) -> pc.Expression:
    parts = [_in_box(x, y, box) for box in cover.boxes]
    if cover.cells:
        across = pc.floor(pc.divide(pc.subtract(x, cover.low[0]), cover.width[0]))
        upward = pc.floor(pc.divide(pc.subtract(y, cover.low[1]), cover.width[1]))
        numbered = pc.add(pc.multiply(across, cover.stride), upward)
        parts.append(pc.is_in(numbered, value_set=pa.array(cover.cells, pa.float64())))
    return _in_box(x, y, cover.hull) & _any(parts)


def _in_box(
    x: pc.Expression, y: pc.Expression, box: tuple[float, float, float, float]
) -> pc.Expression:
    return _within(x, Interval(box[0], box[2])) & _within(y, Interval(box[1], box[3]))


def _within(number: pc.Expression, interval: Interval) -> pc.Expression:
    low, high = interval.low, interval.high
    above = number > low if interval.open_low else number >= low
    below = number < high if interval.open_high else number <= high
    if math.isinf(high) and high > 0:
        return above
    return below if math.isinf(low) and low < 0 else above & below


def _among(text: pc.Expression, texts: Iterable[str]) -> pc.Expression:
    return pc.is_in(text, value_set=pa.array(sorted(texts), pa.string()))


def _any(parts: Iterable[pc.Expression]) -> pc.Expression:
    every = list(parts)
    return reduce(or_, every) if every else pc.scalar(False)
