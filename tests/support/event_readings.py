"""Readings made of events, for tests that expect no faulty one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events


def readings_from_events(events: Sequence[Event], ontology: Ontology) -> pa.RecordBatch:
    """Events of the `events` channel as readings, in their order; other types are left out.

    Raises InvalidInput for the first whose data is not a reading of its stream.
    """
    readings, rejected = split_events(events, ontology)
    if rejected:
        event, problem = rejected[0]
        raise InvalidInput(
            f"event {event.id!r}: {problem.message}", code=problem.code, hint=problem.hint
        )
    return readings
