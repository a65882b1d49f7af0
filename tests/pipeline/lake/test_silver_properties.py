"""Whatever comes in whatever order over however many runs, silver ends the same: a model of a few
lines says what it must hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.event import Event
from rapport.core.release import Corrections
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.engine.stream_steps import late_event
from rapport.policy.ontology import Ontology

DAY = 86_400_000

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("reading"), st.integers(0, 7), st.sampled_from(["s", "t"])),
        st.tuples(st.just("bad"), st.integers(20, 25), st.just("s")),
        st.tuples(st.just("correction"), st.integers(0, 7), st.sampled_from(["s", "t"])),
        st.tuples(st.just("late"), st.integers(0, 7), st.just("")),
        st.tuples(st.just("run"), st.integers(1, 9), st.just("")),
        st.tuples(st.just("compact"), st.just(0), st.just("")),
    ),
    min_size=3,
    max_size=25,
)


class Model:
    """What silver must hold."""

    def __init__(self) -> None:
        self.readings: dict[tuple[str, str], str | None] = {}
        self.corrections = Corrections()
        self.late: set[str] = set()
        self.bad: set[str] = set()

    def states(self) -> dict[tuple[str, str], str]:
        return {identity: self._state(*identity) for identity in self.readings}

    def _state(self, source: str, id: str) -> str:
        if not self.corrections.stands(source, id, self.readings[source, id] or ""):
            return "corrected"
        return "late" if id in self.late else "counted"


@pytest.mark.slow
@settings(max_examples=25)
@given(steps=_steps)
def test_silver_holds_what_the_model_says(
    steps: list[tuple[str, int, str]],
    new_lake: Any,
    ontology_with: Any,
    given_reading: Callable[..., Event],
    begin: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(steps, new_lake(Path(folder) / "lake"), ontology_with(), given_reading, begin)


def play(
    steps: list[tuple[str, int, str]],
    filled: Any,
    ontology: Ontology,
    reading: Callable[..., Event],
    begin: int,
) -> None:
    model, corrected = Model(), 0
    for what, number, source in steps:
        id, time = str(number), begin + number * DAY // 3
        if what == "reading":
            filled.append("events", reading(id, time, source=source))
            model.readings.setdefault((source, id), None)
        elif what == "bad":
            filled.append("events", reading(id, time, ["?"], source=source))
            model.bad.add(id)
        elif what == "correction" and (source, id) in model.readings:
            corrected += 1
            new = f"{id}~{corrected}"
            filled.append("events", reading(new, time, source=source, corrects=id))
            model.readings[source, new] = id
            model.corrections.note(source, new, id)
        elif what == "late" and any(known == id for _source, known in model.readings):
            filled.append("detections", late_event("p", (time, id)))
            model.late.add(id)
        elif what == "run":
            filled.export()
            update_silver(None, filled.path, ontology, rows_per_step=number)
        elif what == "compact":
            compact(filled.path, fewest=2)
    filled.export()
    update_silver(None, filled.path, ontology)
    rows = filled.rows()
    found = {(row["event_source"], row["id"]): row["status"] for row in rows}
    assert len(rows) == len(found)
    # A late verdict tells time and id only: it is about whoever was there when it was given.
    expected = model.states()
    assert found.keys() == expected.keys()
    for identity, state in found.items():
        allowed = {expected[identity]}
        if expected[identity] == "late":
            allowed.add("counted")
        assert state in allowed, (identity, state, expected)
    assert {row["id"] for row in filled.rows("quarantined")} == model.bad
