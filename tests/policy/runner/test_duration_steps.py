"""`C for D` as a step: borders, equal times, stale values, causes, saving, what it keeps."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rapport.policy import plan
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.steps import OccurrenceStep, make_step
from rapport.tables.instances import Instances

TEMPERATURE, WIND, POSITION = "station.temperature", "station.wind", "person.position"
TABLES = {
    "station": Instances("station", ["a", "b"], {"zone": np.array(["north", None], object)}),
    "person": Instances("person", [], {}),
    "room": Instances(
        "room", ["hall", "lab"], {"area": np.array([[0.0, 0, 2, 2], [2.0, 0, 4, 2]])}
    ),
}
SOURCES = {
    name: PushSource(
        name=name,
        concept="station",
        attribute="temperature",
        further=("wind",),
        key="key",
        value=("value",),
        stale_after_ms=stale,
        uncertainty_ms=uncertain,
    )
    for name, stale, uncertain in (("steady", 0, 0), ("fading", 10, 0), ("unsure", 0, 50))
}


class Tables:
    def instances(self, concept: str) -> Instances:
        return TABLES[concept]

    def pairs(self, function: str) -> dict[tuple[str, ...], float]:
        return {}


def readings(*rows: tuple[Any, ...], source: str = "steady") -> pa.RecordBatch:
    """Rows of (time, stream, key, value...); ids e0, e1, ... in the order given."""
    names = {
        TEMPERATURE: [f"{TEMPERATURE}.value"],
        WIND: [f"{WIND}.value"],
        POSITION: [f"{POSITION}.x", f"{POSITION}.y"],
    }
    columns: dict[str, Any] = {
        "time": pa.array([row[0] for row in rows], pa.int64()),
        "id": pa.array([f"e{place}" for place in range(len(rows))], pa.string()),
        "stream": pa.array([row[1] for row in rows], pa.string()),
        "source": pa.array([source] * len(rows), pa.string()),
        "key": pa.array([row[2] for row in rows], pa.string()),
    }
    for stream, parts in names.items():
        for place, part in enumerate(parts):
            values = [row[3 + place] if row[1] == stream else None for row in rows]
            columns[part] = pa.array(values, pa.float64())
    return pa.record_batch(columns)


def above(limit: float, attribute: str = "temperature", *, negated: bool = False) -> plan.StateAtom:
    side = plan.Side("S", "station", attribute, (), f"station.{attribute}")
    asked = plan.Compared(plan.SideValue(0, attribute), ">", plan.Constant(limit))
    return plan.StateAtom(plan.ReadingTerm(side, asked), negated)


STATION = plan.Side("S", "station", "temperature", (), TEMPERATURE)
PERSON = plan.Side("A", "person", "position", (), POSITION)
OTHER = plan.Side("B", "person", "position", (), POSITION)
ROOM = plan.Side("R", "room", "area", (), None)


def lasting(state: plan.StateExpression, duration: int = 100) -> plan.LastingTerm:
    return plan.LastingTerm(STATION, STATION, state, duration)


class Run:
    """A step with its identities; gathers (first, second, end, causes) as texts."""

    def __init__(self, term: plan.LastingTerm) -> None:
        self.term = term
        self.identities = {name: Identities(one) for name, one in TABLES.items()}
        self.step: OccurrenceStep = make_step(term, self.identities, Tables(), SOURCES)

    def take(self, batch: pa.RecordBatch, watermark: int = END_OF_TIME) -> list[tuple[Any, ...]]:
        self.raw = self.step.take(batch, watermark)
        sides = ((self.term.first, "first"), (self.term.second, "second"))
        names = [self.identities[side.concept].texts(self.raw[name]) for side, name in sides]
        causes = [" ".join(id for _, id in one) for one in self.raw["causes"]]
        return list(zip(*names, self.raw["end"].tolist(), causes, strict=True))


def found(term: plan.LastingTerm, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return Run(term).take(batch)


HOT = lasting(above(30.0))


def test_a_state_that_stays_true_occurs_once_that_long_after_it_became_true() -> None:
    batch = readings((0, TEMPERATURE, "a", 31), (50, TEMPERATURE, "a", 40))
    assert found(HOT, batch) == [("a", "a", 100, "e0")]


@pytest.mark.parametrize(("end", "occurs"), [(99, False), (100, True), (101, True)])
def test_a_reading_at_the_very_end_comes_too_late(end: int, occurs: bool) -> None:
    batch = readings((0, TEMPERATURE, "a", 31), (end, TEMPERATURE, "a", 20))
    assert bool(found(HOT, batch)) is occurs


def test_a_new_stretch_occurs_again_and_one_that_goes_on_does_not() -> None:
    batch = readings(
        (0, TEMPERATURE, "a", 31),
        (150, TEMPERATURE, "a", 35),
        (400, TEMPERATURE, "a", 20),
        (500, TEMPERATURE, "a", 32),
    )
    assert found(HOT, batch) == [("a", "a", 100, "e0"), ("a", "a", 600, "e3")]


def test_two_readings_of_one_time_are_two_steps() -> None:
    batch = readings(
        (0, TEMPERATURE, "a", 31), (50, TEMPERATURE, "a", 10), (50, TEMPERATURE, "a", 33)
    )
    assert found(HOT, batch) == [("a", "a", 150, "e2")]


def test_the_causes_are_the_last_readings_of_what_was_true_when_it_began() -> None:
    either = plan.StateAny((above(30.0), above(5.0, "wind")))
    batch = readings(
        (0, WIND, "a", 9), (1, TEMPERATURE, "a", 20), (2, WIND, "a", 1), (3, TEMPERATURE, "a", 31)
    )
    assert found(lasting(either), batch) == [("a", "a", 103, "e3")]
    both = plan.StateAll((above(30.0), above(5.0, "wind", negated=True)))
    run = Run(lasting(both))
    assert run.take(batch) == [("a", "a", 103, "e2 e3")]
    assert run.raw["start"].tolist() == [2]


def test_what_was_never_read_is_unknown_and_so_is_its_negation() -> None:
    calm = lasting(plan.StateAll((above(30.0), above(5.0, "wind", negated=True))))
    assert found(calm, readings((0, TEMPERATURE, "a", 31))) == []
    either = lasting(plan.StateAny((above(30.0), above(5.0, "wind", negated=True))))
    assert found(either, readings((0, TEMPERATURE, "a", 31))) == [("a", "a", 100, "e0")]


@pytest.mark.parametrize(("duration", "ends"), [(10, [10]), (11, [])])
def test_a_stale_value_ends_it_when_it_grows_stale(duration: int, ends: list[int]) -> None:
    batch = readings((0, TEMPERATURE, "a", 31), source="fading")
    assert [row[2] for row in found(lasting(above(30.0), duration), batch)] == ends


def test_a_reading_at_the_time_its_forerunner_grows_stale_begins_anew() -> None:
    batch = readings(
        (0, TEMPERATURE, "a", 31),
        (10, TEMPERATURE, "a", 31),
        (19, TEMPERATURE, "a", 31),
        source="fading",
    )
    assert found(lasting(above(30.0), 15), batch) == [("a", "a", 25, "e1")]


def test_a_fact_alone_makes_it_true_from_the_first_reading_on() -> None:
    zone = plan.Side("S", "station", "zone", (), None)
    north = plan.Compared(plan.SideValue(0, "zone"), "=", plan.Constant("north"))
    fact = plan.StateAtom(plan.ConstraintTerm(zone, zone, "", compared=north))
    batch = readings((5, TEMPERATURE, "a", 1), (6, TEMPERATURE, "b", 1), (7, TEMPERATURE, "c", 1))
    run = Run(lasting(plan.StateAny((above(30.0), fact))))
    assert run.take(batch) == [("a", "a", 105, "")]
    assert run.raw["start"].tolist() == [105]


def test_a_room_is_left_when_the_next_reading_lies_elsewhere() -> None:
    inside = plan.StateAtom(plan.QueryTerm(PERSON, ROOM, "inside"))
    term = plan.LastingTerm(PERSON, ROOM, inside, 100)
    batch = readings(
        (0, POSITION, "p", 1, 1), (60, POSITION, "p", 2, 1), (120, POSITION, "p", 3, 1)
    )
    # The border at x = 2 belongs to both rooms.
    assert found(term, batch) == [("p", "hall", 100, "e0"), ("p", "lab", 160, "e1")]


def test_two_that_stay_near_each_other_are_found_in_both_orders_and_none_with_itself() -> None:
    near = plan.StateAtom(plan.CorrelationTerm(PERSON, OTHER, "within", 5.0))
    term = plan.LastingTerm(PERSON, OTHER, near, 100)
    batch = readings(
        (0, POSITION, "p", 0, 0), (10, POSITION, "q", 3, 4), (20, POSITION, "r", 99, 99)
    )
    assert sorted(found(term, batch)) == [("p", "q", 110, "e0 e1"), ("q", "p", 110, "e0 e1")]


def test_the_largest_uncertainty_of_its_causes_is_reported_if_a_source_declares_one() -> None:
    run = Run(HOT)
    run.take(readings((0, TEMPERATURE, "a", 31), source="unsure"))
    assert run.raw["uncertainty"].tolist() == [50]


def test_time_alone_brings_it_out_and_it_says_until_when_it_waits() -> None:
    run = Run(HOT)
    assert run.take(readings((0, TEMPERATURE, "a", 31)), 1) == []
    assert run.step.pending_until() == 100
    assert run.take(pa.record_batch({"time": pa.array([], pa.int64())}), 100) == []
    assert run.take(pa.record_batch({"time": pa.array([], pa.int64())}), 101) == [
        ("a", "a", 100, "e0")
    ]
    assert run.step.pending_until() is None


def test_nothing_is_pending_once_a_state_ended() -> None:
    run = Run(HOT)
    run.take(readings((0, TEMPERATURE, "a", 31)), 1)
    run.take(readings((20, TEMPERATURE, "a", 3)), 21)
    assert run.step.pending_until() is None


def test_a_restored_step_goes_on_with_what_was_true() -> None:
    run, other = Run(HOT), Run(HOT)
    run.take(readings((0, TEMPERATURE, "z", 31), (5, TEMPERATURE, "a", 31)), 6)
    other.identities["station"].restore(list(run.identities["station"].ids))
    other.step.restore(unpack_state(pack_state(run.step.state())))
    assert other.step.pending_until() == 100
    assert other.take(readings((50, TEMPERATURE, "z", 32)), 102) == [("z", "z", 100, "e0")]
    assert other.take(readings((103, TEMPERATURE, "a", 1)), 106) == []


def restored(run: Run, monkeypatch: pytest.MonkeyPatch, **tables: Instances) -> Run:
    """Goes on with other tables."""
    for name, one in tables.items():
        monkeypatch.setitem(TABLES, name, one)
    other = Run(run.term)
    for name, identities in run.identities.items():
        other.identities[name].restore(list(identities.ids))
    other.step.restore(unpack_state(pack_state(run.step.state())))
    return other


def test_intervals_of_identities_that_no_longer_satisfy_the_constraints_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    north = msgspec.structs.replace(STATION, constraints=(plan.Constraint("zone", "=", "north"),))
    run = Run(msgspec.structs.replace(HOT, first=north, second=north))
    run.take(readings((0, TEMPERATURE, "a", 31.0)), 50)
    moved = Instances("station", ["a", "b"], {"zone": np.array(["south", "north"], object)})
    other = restored(run, monkeypatch, station=moved)
    assert other.step.pending_until() is None
    rows = [(60, TEMPERATURE, "a", 10.0), (70, TEMPERATURE, "b", 31.0)]
    assert other.take(readings(*rows)) == [("b", "b", 170, "e1")]


def test_what_goes_on_in_a_room_that_is_gone_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = plan.StateAtom(plan.QueryTerm(PERSON, ROOM, "inside"))
    run = Run(plan.LastingTerm(PERSON, ROOM, inside, 100))
    run.take(readings((0, POSITION, "p", 1.0, 1.0), (10, POSITION, "q", 3.0, 1.0)), 50)
    hall = Instances("room", ["hall"], {"area": np.array([[0.0, 0, 2, 2]])})
    other = restored(run, monkeypatch, room=hall)
    assert other.take(readings()) == [("p", "hall", 100, "e0")]


def test_flickering_states_leave_nothing_behind() -> None:
    run = Run(lasting(above(30.0), 10**6))
    for first in range(0, 60_000, 3_000):
        rows = [
            (first + place, TEMPERATURE, f"s{place % 7}", 31 if place // 7 % 2 else 29)
            for place in range(3_000)
        ]
        run.take(readings(*rows), first + 3_000)
    assert len(pack_state(run.step.state())) < 3_000
    assert run.step._common.step._stretches._due._size < 20_100  # type: ignore[attr-defined]
