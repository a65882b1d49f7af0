"""The readings that detections name as their causes, found in a second pass. [PO-11, UX-3]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Cause
from rapport.core.errors import Problem
from rapport.policy.explaining.world import Reading, readings_of
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.replaying.replay import DEFAULT_BATCH, Recording


class CauseCollector:
    """Collects the readings of some causes; a cause may be several, of different streams."""

    def __init__(self, causes: Collection[Cause], ontology: Ontology) -> None:
        self.ids = {id for _time, id in causes}
        self.found: dict[Cause, list[Reading]] = {cause: [] for cause in causes}
        self._ontology = ontology
        self._wanted = pa.array(sorted(self.ids), pa.string())

    def take(self, rows: pa.RecordBatch) -> None:
        """Looks at some readings; costs little where none is wanted."""
        chosen = rows.filter(pc.is_in(rows.column("id"), self._wanted))
        for reading in readings_of(chosen, self._ontology):
            if reading.cause in self.found:
                self.found[reading.cause].append(reading)


def cause_readings(
    recordings: Sequence[Recording], ontology: Ontology, causes: Collection[Cause]
) -> dict[Cause, list[Reading]]:
    """The readings of these causes; reads all files once more."""
    behind = CauseCollector(causes, ontology)
    if causes:
        for item in recordings:
            for rows in item.batches(ontology, DEFAULT_BATCH, _said_before):
                behind.take(rows)
    return behind.found


def cause_values(
    causes: Iterable[Cause], readings: Mapping[Cause, list[Reading]], streams: Collection[str]
) -> list[Reading]:
    """What a detection rests on: of each attribute of everybody the last reading among its causes,
    oldest first.
    """
    last: dict[tuple[str, str], Reading] = {}
    for cause in causes:
        for reading in readings.get(cause, ()):
            if reading.stream in streams:
                last[reading.stream, reading.key] = reading
    return sorted(last.values(), key=lambda one: (one.time, one.id, one.stream))


def cause_streams(plan: Plan) -> frozenset[str]:
    """The streams whose readings can be causes: not those of what must not be."""
    return plan.streams_of(plan.positive_terms())


def _said_before(problem: Problem) -> None:
    """The first pass told of it."""
