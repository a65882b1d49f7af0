"""The readings behind the values that texts name, and the values as of a detection. [SI-5]

Only streams that some text names are kept: of each instance the newest reading, and all readings of
the longest window. Detections are rare, so that readings are kept as columns and searched when one
is made.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause, Detection, NamedValue
from rapport.policy.named_values import NOTHING_NEEDED, NamedQuantity, NeededValues, WhyPart
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.runner.local import pack_buffer, unpack_buffer
from rapport.policy.situation_plan import (
    AggregateValue,
    ComparedValues,
    CountedTerm,
    FixedValue,
    NamedAtTurns,
    PresentValue,
)
from rapport.units.quantities import shown_unit

NeededBy = Callable[[str, str], NeededValues]
"""Policy and version to the values that its texts name."""
Known = float | str | bool | None
_COMPACT_FROM = 50_000
_PER_HOUR = 3_600_000


class _Reading(NamedTuple):
    time: int
    id: str
    value: Known
    source: str


def nothing_needed(_policy: str, _version: str) -> NeededValues:
    """No text names a value."""
    return NOTHING_NEEDED


class ValueRecord:
    """The readings of named streams; all times are event times."""

    def __init__(self, needed: NeededBy = nothing_needed) -> None:
        self.needed = needed
        self._streams: dict[str, int] = {}
        """Named streams, each with the longest window of an aggregate over it."""
        self._readings: dict[str, list[pa.RecordBatch]] = {}
        self._rows: dict[str, int] = {}
        self._compact_at: dict[str, int] = {}
        self._reach_ms = 0

    def use_policies(self, versions: Mapping[str, str], reach_ms: int) -> None:
        """Keeps the streams that the texts of these versions name. `reach_ms`: how long after its
        time a detection may be found.
        """
        self._streams, self._reach_ms = {}, reach_ms
        for policy, version in versions.items():
            for value in self.needed(policy, version).all_values():
                self._keep_for(value)
        self._readings = {name: self._readings.get(name, []) for name in self._streams}
        self._rows = {name: self._rows.get(name, 0) for name in self._streams}

    def at_turns(self, versions: Mapping[str, str]) -> dict[str, NamedAtTurns]:
        """By policy, what texts need of the operators of these versions."""
        return {one: self.needed(one, version).at_turns() for one, version in versions.items()}

    def _keep_for(self, value: PresentValue | AggregateValue) -> None:
        of = value.of if isinstance(value, AggregateValue) else value
        if of.stream is not None:
            window = value.window_ms if isinstance(value, AggregateValue) else 0
            self._streams[of.stream] = max(self._streams.get(of.stream, 0), window)

    def take(self, readings: pa.RecordBatch, late: Collection[Cause], watermark: int) -> None:
        """Keeps the readings of named streams, those too late aside."""
        if not self._streams or not len(readings):
            return
        for stream in self._streams:
            own = readings.filter(pc.equal(readings.column("stream"), stream))
            if late and len(own):
                ids = pa.array([id for _, id in late], pa.string())
                own = own.filter(pc.invert(pc.is_in(own.column("id"), value_set=ids)))
            if len(own):
                self._readings[stream].append(_columns_of(own, stream))
                self._rows[stream] += len(own)
                if self._rows[stream] > self._compact_at.get(stream, _COMPACT_FROM):
                    self._compact(stream, watermark)

    def _compact(self, stream: str, watermark: int) -> None:
        """Drops what no later detection can ask for."""
        table = _sorted(self._readings[stream])
        horizon = watermark - self._reach_ms - self._streams[stream]
        times = table.column("time").to_numpy()
        old = np.flatnonzero(times < horizon)
        keys = table.column("key").take(pa.array(old)).dictionary_encode().indices.to_numpy()
        _, last = np.unique(keys[::-1], return_index=True)
        newest = old[len(old) - 1 - last]
        kept = np.sort(np.concatenate((newest, np.flatnonzero(times >= horizon))))
        self._readings[stream] = [table.take(pa.array(kept))]
        self._rows[stream] = len(kept)
        self._compact_at[stream] = max(2 * len(kept), _COMPACT_FROM)

    def state(self, watermark: int) -> dict[str, bytes]:
        """The kept readings by stream."""
        for stream, rows in self._rows.items():
            if rows and stream in self._streams:  # else nothing was read since the restore
                self._compact(stream, watermark)
        return {name: pack_buffer(batches) for name, batches in self._readings.items()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Raises Corrupt."""
        self._readings = {name: unpack_buffer(raw) for name, raw in state.items()}
        self._rows = {name: sum(map(len, own)) for name, own in self._readings.items()}

    # --- values of detections ---

    def with_values(
        self, found: Sequence[Detection], pull: PullData, sources: Mapping[str, PushSource]
    ) -> list[Detection]:
        """The detections with the values that texts of their policies name. Those of a running
        situation have what only its operator knows already: counts, and instances of quantifiers.
        """
        needs = [self.needed(one.policy, one.version) for one in found]
        if not any(need.values or need.why for need in needs):
            return list(found)
        asked: dict[str, set[str]] = {}
        for one, need in zip(found, needs, strict=True):
            bindings = _named_bindings(one)
            for value in need.all_values():
                of = value.of if isinstance(value, AggregateValue) else value
                if of.stream is not None and of.alias in bindings:
                    asked.setdefault(of.stream, set()).add(bindings[of.alias])
        stale = {
            f"{source.concept}.{attribute}": source.stale_after_ms
            for source in sources.values()
            for attribute in source.attributes
        }
        series = {stream: self._series(stream, keys) for stream, keys in asked.items()}
        values = _ValuesThen(series, pull, stale)
        return [_valued(one, need, values) for one, need in zip(found, needs, strict=True)]

    def _series(self, stream: str, keys: Iterable[str]) -> dict[str, list[_Reading]]:
        """The readings of some instances in order."""
        found: dict[str, list[_Reading]] = {key: [] for key in keys}
        wanted = pa.array(list(found), pa.string())
        for batch in self._readings.get(stream, []):
            own = batch.filter(pc.is_in(batch.column("key"), value_set=wanted))
            columns = [own.column(name).to_pylist() for name in ("key", *_KEPT)]
            for key, *reading in zip(*columns, strict=True):
                found[key].append(_Reading(*reading))
        for readings in found.values():
            readings.sort(key=lambda each: (each.time, each.id))
        return found


_KEPT = ("time", "id", "value", "source")


def _columns_of(readings: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    names, value = ["key", *_KEPT], f"{stream}.value"
    columns = {name: readings.column(name) for name in names if name != "value"}
    # Points have no single value; they are only counted.
    has_value = value in readings.schema.names
    columns["value"] = readings.column(value) if has_value else pa.nulls(len(readings))
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


def _sorted(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.concat_batches(batches)
    return whole.take(
        pc.sort_indices(whole, sort_keys=[("time", "ascending"), ("id", "ascending")])
    )


class _ValuesThen:
    """Values of instances as of a time."""

    def __init__(
        self,
        series: Mapping[str, Mapping[str, list[_Reading]]],
        pull: PullData,
        stale_after_ms: Mapping[str, int],
    ) -> None:
        self._series, self._pull, self._stale = series, pull, stale_after_ms

    def value(
        self, value: PresentValue | AggregateValue, bindings: Mapping[str, str], time: int
    ) -> Known:
        of = value.of if isinstance(value, AggregateValue) else value
        identity = bindings.get(of.alias)
        if identity is None:
            return None
        if of.stream is None:
            return self._table_value(of, identity)
        readings = self._series.get(of.stream, {}).get(identity, [])
        end = bisect_right(readings, time, key=lambda each: each.time)
        if isinstance(value, AggregateValue):
            start = bisect_right(readings, time - value.window_ms, key=lambda each: each.time)
            return _aggregate(value, readings[start:end])
        if not end:
            return None
        newest, stale = readings[end - 1], self._stale.get(of.stream, 0)
        return None if stale and time >= newest.time + stale else newest.value

    def _table_value(self, of: PresentValue, identity: str) -> Known:
        if of.attribute == "id":
            return identity
        instances = self._pull.instances(of.concept)
        row, column = instances.row(identity), instances.columns.get(of.attribute)
        if row < 0 or column is None:
            return None
        return _plain(column[row])

    def compare(self, one: ComparedValues, bindings: Mapping[str, str], time: int) -> bool | None:
        """Whether a comparison is true; None = unknown."""
        sides = [
            side.value if isinstance(side, FixedValue) else self.value(side, bindings, time)  # type: ignore[arg-type]
            for side in (one.left, one.right)
        ]
        left, right = sides
        if left is None or right is None or isinstance(left, str) != isinstance(right, str):
            return None
        return _COMPARE[one.operator](left, right)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _plain(value: Any) -> Known:
    if value is None or isinstance(value, str | bool):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _aggregate(value: AggregateValue, readings: Sequence[_Reading]) -> Known:
    if value.function == "count":
        return len(readings)
    least = max(value.at_least, 2 if value.function in ("change", "rate") else 1)
    if len(readings) < least:
        return None
    numbers = [float(each.value) for each in readings if isinstance(each.value, int | float)]
    if not numbers:
        return None
    match value.function:
        case "mean":
            return math.fsum(numbers) / len(numbers)
        case "sum":
            return math.fsum(numbers)
        case "min":
            return min(numbers)
        case "max":
            return max(numbers)
        case "median":
            return median(numbers)
        case "percentile":
            rank = math.ceil((value.percentile or 100) * len(numbers) / 100)
            return sorted(numbers)[max(rank, 1) - 1]
        case _:
            change = numbers[-1] - numbers[0]
            if value.function == "change":
                return change
            elapsed = readings[-1].time - readings[0].time
            return change / elapsed * _PER_HOUR if elapsed else None


def _valued(detection: Detection, need: NeededValues, values: _ValuesThen) -> Detection:
    if not need.values and not need.why:
        return detection
    named = {
        phrase: _named(phrase, quantity, detection, values)
        for phrase, quantity in need.values.items()
    }
    holds = _why(need.why, detection, values) if need.why and not detection.reason else ""
    return msgspec.structs.replace(detection, values=named, holds=holds)


def _named_bindings(detection: Detection) -> dict[str, str]:
    """Its identities by alias, with those that quantifiers count."""
    more = {
        name: value.value
        for name, value in (detection.values or {}).items()
        if isinstance(value.value, str)
    }
    return {**more, **detection.bindings}


def _named(
    name: str, quantity: NamedQuantity, detection: Detection, values: _ValuesThen
) -> NamedValue:
    if isinstance(quantity.value, CountedTerm):
        return (detection.values or {}).get(name, NamedValue())
    value = values.value(quantity.value, _named_bindings(detection), detection.time)
    if isinstance(value, float):
        value *= quantity.scale
    return NamedValue(value, quantity.unit)


def _why(parts: Sequence[WhyPart], detection: Detection, values: _ValuesThen) -> str:
    """One line of what holds: the alternatives that no value refutes, with their values. The end of
    a situation shows the values as they are then.
    """

    def truths(part: WhyPart) -> list[bool | None]:
        bindings, time = detection.bindings, detection.time
        return [values.compare(each, bindings, time) for each in part.comparisons]

    found = [(part, truths(part)) for part in parts]
    proven = [part for part, own in found if own and all(own)]
    possible = [part for part, own in found if False not in own]
    holding = proven or possible or list(parts)
    if detection.began is not None:
        holding = list(parts)
    shown = " OR ".join(part.text for part in holding)
    named = {name: quantity for part in holding for name, quantity in part.values}
    facts = [_fact(name, _named(name, each, detection, values)) for name, each in named.items()]
    return f"{shown} ({', '.join(facts)})" if facts else shown


def _fact(name: str, value: NamedValue) -> str:
    known = value.value
    if known is None:
        return f"{name} is unknown"
    text = f"{known:.6g}" if isinstance(known, float) else str(known)
    return f"{name} is {text} {shown_unit(value.unit)}".rstrip()
