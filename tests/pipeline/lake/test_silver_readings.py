"""Policies over silver find what they found live: late readings left out, corrections applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rapport.core.detection import Detection, detection_lines
from rapport.core.errors import UnknownName
from rapport.core.event import Event, make_event
from rapport.pipeline.history.runner import PartCounts, evaluate_history
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.lake.silver_readings import silver_history
from rapport.policy.engine.stream_steps import late_event
from rapport.policy.ontology import Ontology
from rapport.site.site import Site
from support.history_here import Here

Readings = Callable[..., list[pa.RecordBatch]]
Reading = Callable[..., Event]
DAY = 86_400_000


def events_of(batches: list[pa.RecordBatch]) -> list[Event]:
    return [
        make_event(
            source="positions",
            id=row["id"],
            type="person.position",
            time=row["time"],
            data={
                "key": row["key"],
                "value": [row["person.position.x"], row["person.position.y"]],
            },
        )
        for batch in batches
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("compacted", [False, True])
def test_policies_find_the_same_in_silver(
    filled: Any, small_policies: Site, readings: Readings, compacted: bool
) -> None:
    site, directory = small_policies, small_policies.directory
    events = events_of(readings(directory / "events_shuffled.csv"))
    wrong = make_event(
        source="positions",
        id="wrong",
        type="person.position",
        time=events[50].time,
        data={"key": "1", "value": [1, 1]},
    )
    # One reading that live left out as late: it must not count.
    for start in range(0, len(events), 40):
        filled.append("events", *events[start : start + 40])
        filled.fill(*([wrong] if start == 40 else []))
        update_silver(None, filled.path, site.ontology)
    filled.append("detections", late_event("p", (wrong.time, "wrong")))
    filled.export()
    update_silver(None, filled.path, site.ontology)
    if compacted:
        compact(filled.path, fewest=2)
    history = silver_history(filled.path, site.ontology, ["person.position"])
    assert history.rows == 201
    plans = [compiled.plan for compiled in site.policies.values()]
    found = evaluate_history(
        plans,
        site.tables,
        history,
        Here(site.tables),
        lateness_ms=0,
        parts=PartCounts(slices=3, buckets=2),
        sources=site.ontology.sources,
    )
    for name in site.policies:
        expected = (directory / f"{name}.expected.jsonl").read_bytes()
        own: list[Detection] = [one for one in found.detections() if one.policy == name]
        assert detection_lines(own) == expected, name


def test_only_the_days_asked_for_are_given(
    filled: Any, given_reading: Reading, ontology: Ontology, begin: int
) -> None:
    filled.fill(*(given_reading(str(n), begin + n * DAY) for n in range(4)))
    update_silver(None, filled.path, ontology)

    def rows(*span: int) -> int:
        return silver_history(filled.path, ontology, ["person.position"], *span).rows

    assert (rows(), rows(begin + DAY, begin + 2 * DAY), rows(begin + 3 * DAY)) == (4, 1, 1)
    assert rows(begin + DAY, begin + 2 * DAY + 1) == 2


def test_a_stream_that_nobody_declares_is_refused_and_an_empty_one_is_empty(
    filled: Any, ontology: Ontology
) -> None:
    assert silver_history(filled.path, ontology, ["room.warmth"]).rows == 0
    with pytest.raises(UnknownName):
        silver_history(filled.path, ontology, ["room.warmht"])


def test_files_from_when_an_attribute_was_of_another_type_have_no_such_values(
    filled: Any, given_reading: Reading, ontology_with: Any
) -> None:
    for id, kind, value in (("a", "number", [1]), ("b", "point", [1, 2])):
        filled.fill(given_reading(id, stream="room.warmth", value=value))
        update_silver(None, filled.path, ontology_with(room_warmth=kind))
    history = silver_history(filled.path, ontology_with(room_warmth="point"), ["room.warmth"])
    assert history.rows == 1
