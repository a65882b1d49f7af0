"""The readings and tables that an explanation is made from, and the range of time it needs. [PO-11]

An explanation looks at few readings closely, so this is plain Python over lists; the operators
decide the same in bulk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.core.errors import nearest_names
from rapport.core.schema import PARTS
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import satisfies
from rapport.policy.operators.plan_shape import longest_window_ms, uncertainty_ms
from rapport.policy.plan import Constraint, Plan, Side, longest_duration_ms

Value = tuple[Any, ...]
_MOST_NAMES = 3
_IN_ORDER = attrgetter("time", "id", "stream", "key")
_UNKNOWN = PushSource(name="", concept="", attribute="", key="", value=())
_WINDOWS = 8
"""Consumed pairs, chains and absence each reach one or two windows."""


class Reading(msgspec.Struct, frozen=True):
    """One event of a stream: the instance `key` had `value` at `time`."""

    time: int
    id: str
    stream: str
    key: str
    value: Value
    source: str

    @property
    def cause(self) -> Cause:
        """The cause as detections name it."""
        return (self.time, self.id)


class LateReading(msgspec.Struct, frozen=True):
    """A reading that arrived after its time was decided; the policy did not use it."""

    time: int
    stream: str
    key: str
    received: int | None = None
    """None: it stands too far behind others in a recorded file."""


def readings_of(batch: pa.RecordBatch, ontology: Ontology) -> list[Reading]:
    streams = ontology.streams()
    return [
        Reading(
            row["time"],
            row["id"],
            row["stream"],
            row["key"],
            tuple(row[f"{row['stream']}.{part}"] for part in PARTS[streams[row["stream"]]]),
            row["source"],
        )
        for row in batch.to_pylist()
    ]


class Evidence:
    """The readings (in the order of rule 1), tables and sources behind one plan."""

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[str, PushSource],
        pull: PullData,
        readings: Iterable[Reading],
        *,
        began: int | None = None,
        late: Iterable[LateReading] = (),
    ) -> None:
        """`began`: the policy's start; None: the time of the first reading."""
        self._late = sorted(late, key=attrgetter("time"))
        self._nearest: dict[tuple[str, str], tuple[str, ...]] = {}
        self.plan, self.sources, self.pull = plan, sources, pull
        self.readings = sorted(readings, key=_IN_ORDER)
        first = self.readings[0].time if self.readings else None
        self.began = first if began is None else began
        self._given_start = began
        self.has_missing_parts = any(complete(one.value) is None for one in self.readings)
        """Whether some reading lacks a part of its value."""
        self._by_key: dict[tuple[str, str], list[Reading]] = {}
        for reading in self.readings:
            self._by_key.setdefault((reading.stream, reading.key), []).append(reading)
        self._allowed: dict[tuple[str, tuple[Constraint, ...]], frozenset[str]] = {}

    def with_readings(self, readings: Iterable[Reading]) -> Evidence:
        """The same policy over other readings. Readings before a given start are dropped; without
        one the first reading is the start.
        """
        start = self._given_start
        seen = [one for one in readings if start is None or one.time >= start]
        return Evidence(self.plan, self.sources, self.pull, seen, began=start, late=self._late)

    def of(self, stream: str, key: str) -> list[Reading]:
        """The readings of one identity in a stream, in order."""
        return self._by_key.get((stream, key), [])

    def keys(self, stream: str) -> list[str]:
        """The identities with readings in the stream."""
        return [key for name, key in self._by_key if name == stream]

    def between(self, stream: str, key: str, start: int, end: int) -> Sequence[Reading]:
        """The readings with a time in [start, end]."""
        own = self.of(stream, key)
        times = [reading.time for reading in own]
        return own[bisect_left(times, start) : bisect_left(times, end + 1)]

    def late(self, stream: str, keys: Callable[[str], bool]) -> list[LateReading]:
        """The late readings of a stream whose key is accepted by `keys`, in order of time."""
        return [one for one in self._late if one.stream == stream and keys(one.key)]

    def uncertainty(self, events: Iterable[Reading]) -> int:
        """The largest clock uncertainty of the readings' sources."""
        return max((self._source(one).uncertainty_ms for one in events), default=0)

    def stale_after(self, reading: Reading) -> int:
        """How long the reading is valid by its source; 0: until the next."""
        return self._source(reading).stale_after_ms

    def _source(self, reading: Reading) -> PushSource:
        return self.sources.get(reading.source) or _UNKNOWN

    # Instances.

    def allows(self, side: Side, identity: str) -> bool:
        return not side.constraints or identity in self._satisfying(side)

    def instances(self, side: Side) -> list[str]:
        ids = self.pull.instances(side.concept).ids
        return [one for one in ids if self.allows(side, one)]

    def knows(self, side: Side, identity: str) -> bool:
        """Whether the tables have the identity and it satisfies the constraints."""
        known = self.pull.instances(side.concept).row(identity) >= 0
        return known and self.allows(side, identity)

    def is_unknown(self, concept: str, identity: str) -> bool:
        """Whether neither the tables nor any reading names the identity."""
        return self.pull.instances(concept).row(
            identity
        ) < 0 and identity not in self._keys_in_readings(concept)

    def nearest_known(self, concept: str, identity: str) -> tuple[str, ...]:
        """The known identities nearest to an unknown one; the first few where none is near."""
        if (concept, identity) not in self._nearest:
            known = sorted({*self.pull.instances(concept).ids, *self._keys_in_readings(concept)})
            nearest = nearest_names(identity, known) or tuple(known[:_MOST_NAMES])
            self._nearest[concept, identity] = nearest
        return self._nearest[concept, identity]

    def _keys_in_readings(self, concept: str) -> set[str]:
        streams_and_keys = [*self._by_key, *((one.stream, one.key) for one in self._late)]
        return {key for stream, key in streams_and_keys if stream.partition(".")[0] == concept}

    def in_tables(self, concept: str, attribute: str, identity: str) -> Value | None:
        """The value in the tables; None when it is missing."""
        if attribute == "id":
            return (identity,)
        instances = self.pull.instances(concept)
        row, column = instances.row(identity), instances.columns.get(attribute)
        if row < 0 or column is None:
            return None
        value = column[row]
        return complete(tuple(value.tolist()) if getattr(value, "ndim", 0) else (value,))

    def _satisfying(self, side: Side) -> frozenset[str]:
        key = (side.concept, side.constraints)
        if key not in self._allowed:
            instances = self.pull.instances(side.concept)
            mask = satisfies(instances, side.constraints)
            chosen = zip(instances.ids, mask.tolist(), strict=True)
            self._allowed[key] = frozenset(identity for identity, holds in chosen if holds)
        return self._allowed[key]


def complete(value: Value) -> Value | None:
    return None if any(part is None or part != part for part in value) else value


class NeededRange(NamedTuple):
    """The time range from which readings are needed."""

    start: int
    end: int


def needed_range(plan: Plan, sources: Mapping[str, PushSource], span: TimeSpan) -> NeededRange:
    """The readings that decide the span. Chains of consumed pairs longer than eight windows are not
    followed.
    """
    window = _WINDOWS * (longest_window_ms(plan) + uncertainty_ms(plan, sources))
    lasting = longest_duration_ms(plan)
    period = max((one.period_ms for one in sources.values()), default=0)
    return NeededRange(span.start - window - 2 * lasting - 2 * period, span.end + window + lasting)


def needs_last_values(plan: Plan) -> bool:
    """Whether the last reading before the span counts, however old it is."""
    return longest_duration_ms(plan) > 0


class TimeSpan(NamedTuple):
    """A time span, both ends included."""

    start: int
    end: int

    @property
    def middle(self) -> int:
        return (self.start + self.end) // 2

    def distance(self, time: int) -> int:
        """Distance of a time from the middle."""
        return abs(time - self.middle)
