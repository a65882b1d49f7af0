"""What becomes of a raw event, as a row: a reading, or why there is none. [ME-14, PI-4]

One set of columns holds readings of every stream: numbers in `n1` to `n4` (a point has two, a
rectangle four), else `words` or `truth`. `reason` tells rejected rows from readings.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rapport.core.event import Event
from rapport.core.schema import PARTS, AttributeType
from rapport.mediation.rejections import Rejection
from rapport.pipeline.mediating.outcome_rows import NUMBERS, PART_COLUMNS
from rapport.policy.ontology import Ontology
from rapport.policy.readings import FARTHEST_MS, split_events

Outcome = tuple[Any, ...]
"""In the order of `OUTCOME`."""
_PARTS = len(PART_COLUMNS)
_PLACES = {name: place for place, name in enumerate(PART_COLUMNS)}


class _Data(msgspec.Struct):
    key: str
    value: list[Any]


_READ = msgspec.json.Decoder(_Data)


@cache
def part_columns(kind: AttributeType) -> dict[str, str]:
    """Where the parts of an attribute's value are: from their names to columns.

    >>> part_columns("point"), part_columns("text")
    ({'x': 'n1', 'y': 'n2'}, {'value': 'words'})
    """
    if kind in ("text", "boolean"):
        return {PARTS[kind][0]: "words" if kind == "text" else "truth"}
    return dict(zip(PARTS[kind], NUMBERS, strict=False))


def of_reading(reading: Event, kind: AttributeType, ontology: Ontology, source: str) -> Outcome:
    """A reading as mediation appends it to `events`; one that policies cannot use, since no float
    can hold its numbers or its time is too far away, is rejected with what they say of it.
    """
    data = _READ.decode(reading.data)
    source = reading.source if reading.source in ontology.sources else source
    stamp = reading.headers.get("interpretation", "")
    first = (reading.time, reading.id, reading.type, source, data.key)
    parts: list[Any] = [None] * _PARTS
    try:
        for column, part in zip(part_columns(kind).values(), data.value, strict=True):
            parts[_PLACES[column]] = float(part) if column in NUMBERS else part
        if -FARTHEST_MS < reading.time < FARTHEST_MS:
            return (*first, *parts, stamp, None, None, None)
    except OverflowError:
        parts = [None] * _PARTS
    (_event, fault), *_ = split_events([reading], ontology)[1]
    time = reading.time if -(2**63) <= reading.time < 2**63 else None
    return (time, *first[1:], *parts, stamp, fault.code, fault.message, fault.hint)


def of_rejection(rejection: Rejection) -> Outcome:
    """Why a raw event has no meaning, in the words of the quarantine."""
    event = rejection.event
    first = (event.time, event.id, None, event.source, None)
    told = (rejection.interpretation, rejection.code, rejection.message, rejection.hint)
    return (*first, *([None] * _PARTS), *told)
