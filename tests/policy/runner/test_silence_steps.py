"""`no X of S for D` as a step: borders, the policy's start, once per silence, saving."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rapport.policy import plan
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.silences import SilenceStep
from rapport.tables.instances import Instances

STATIONS = Instances("station", ["a", "b"], {"zone": np.array(["north", "south"], object)})
SIDE = plan.Side("S", "station", "temperature", (), "station.temperature")
TERM = plan.SilentTerm(SIDE, ("station.temperature",), 100)
NOBODY = Instances("station", [], {})


def readings(*rows: tuple[int, str], stream: str = "station.temperature") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "time": pa.array([time for time, _ in rows], pa.int64()),
            "id": pa.array([f"e{time}" for time, _ in rows], pa.string()),
            "stream": pa.array([stream] * len(rows), pa.string()),
            "source": pa.array(["thermometers"] * len(rows), pa.string()),
            "key": pa.array([key for _, key in rows], pa.string()),
            f"{stream}.value": pa.array([1.0] * len(rows), pa.float64()),
        }
    )


class Run:
    def __init__(
        self,
        instances: Instances = NOBODY,
        *,
        term: plan.SilentTerm = TERM,
        began: int | None = None,
    ) -> None:
        self.identities = Identities(instances)
        self.step = SilenceStep(term, self.identities, {}, began)

    def take(self, batch: pa.RecordBatch, watermark: int = END_OF_TIME) -> list[tuple[Any, ...]]:
        got = self.step.take(batch, watermark)
        causes = [" ".join(id for _, id in one) for one in got["causes"]]
        names = self.identities.texts(got["first"]).tolist()
        return list(zip(names, got["end"].tolist(), got["start"].tolist(), causes, strict=True))


@pytest.mark.parametrize(("second", "ends"), [(99, [199]), (100, [100, 200]), (101, [100, 201])])
def test_a_reading_at_the_very_end_of_a_silence_comes_too_late(
    second: int, ends: list[int]
) -> None:
    assert [row[1] for row in Run().take(readings((0, "x"), (second, "x")))] == ends


def test_a_silence_is_reported_once_and_names_the_last_reading() -> None:
    run = Run()
    assert run.take(readings((0, "x"), (30, "x")), 131) == [("x", 130, 30, "e30")]
    assert run.take(readings(), 10_000) == []
    assert run.take(readings((10_000, "x")), 10_001) == []
    assert run.take(readings()) == [("x", 10_100, 10_000, "e10000")]


def test_instances_of_the_tables_are_silent_from_the_first_reading_of_any_stream() -> None:
    run = Run(STATIONS)
    assert run.take(readings((7, "p"), stream="person.position"), 8) == []
    assert run.step.pending_until() == 107
    assert run.take(readings((50, "b"))) == [("a", 107, 107, ""), ("b", 150, 50, "e50")]


def test_where_the_start_is_given_time_alone_makes_silence() -> None:
    assert Run(STATIONS, began=1_000).take(readings()) == [
        ("a", 1_100, 1_100, ""),
        ("b", 1_100, 1_100, ""),
    ]
    assert Run(STATIONS).take(readings()) == []


def test_only_identities_that_satisfy_the_constraints_can_be_silent() -> None:
    north = msgspec.structs.replace(SIDE, constraints=(plan.Constraint("zone", "=", "north"),))
    term = plan.SilentTerm(north, ("station.temperature",), 100)
    run = Run(STATIONS, term=term)
    assert run.take(readings((0, "b"), (5, "unknown"))) == [("a", 100, 100, "")]


def test_any_of_several_streams_breaks_the_silence() -> None:
    term = plan.SilentTerm(SIDE, ("station.humidity", "station.temperature"), 100)
    run = Run(term=term)
    run.take(readings((0, "x")), 1)
    assert run.take(readings((90, "x"), stream="station.humidity"), 150) == []
    assert run.take(readings()) == [("x", 190, 90, "e90")]


def test_a_restored_step_counts_on_from_the_last_readings() -> None:
    run, other = Run(), Run()
    run.take(readings((0, "x"), (10, "y")), 105)
    other.identities.restore(list(run.identities.ids))
    other.step.restore(unpack_state(pack_state(run.step.state())))
    assert other.step.pending_until() == 110
    assert other.take(readings()) == [("y", 110, 10, "e10")]


def test_instances_that_are_new_in_the_tables_count_from_where_time_stood() -> None:
    run, other = Run(), Run(STATIONS)
    run.take(readings((0, "a")), 500)
    other.identities.restore(list(run.identities.ids))
    other.step.restore(unpack_state(pack_state(run.step.state())))
    assert other.take(readings()) == [("b", 600, 600, "")]


def restored(run: Run, instances: Instances, term: plan.SilentTerm = TERM) -> Run:
    """Goes on with other tables."""
    other = Run(instances, term=term)
    other.identities.restore(list(run.identities.ids))
    other.step.restore(unpack_state(pack_state(run.step.state())))
    return other


def test_an_identity_gone_from_the_tables_is_not_expected_unless_it_has_a_reading() -> None:
    run = Run(STATIONS)
    run.take(readings((0, "x"), (10, "y")), 20)
    other = restored(run, NOBODY)
    back = restored(other, STATIONS)
    assert other.take(readings()) == [("x", 100, 0, "e0"), ("y", 110, 10, "e10")]
    assert [row for row in back.take(readings()) if row[0] in "ab"] == [
        ("a", 120, 120, ""),
        ("b", 120, 120, ""),
    ]


def test_who_no_longer_satisfies_the_constraints_is_not_waited_for() -> None:
    side = msgspec.structs.replace(SIDE, constraints=(plan.Constraint("zone", "=", "north"),))
    term = msgspec.structs.replace(TERM, first=side)
    run = Run(STATIONS, term=term)
    run.take(readings((0, "a"), (1, "b")), 20)
    moved = Instances("station", ["a", "b"], {"zone": np.array(["south", "north"], object)})
    other = restored(run, moved, term)
    assert other.take(readings((30, "a")), END_OF_TIME) == [("b", 120, 120, "")]


def test_waiting_costs_no_more_than_there_are_stations() -> None:
    run = Run()
    for first in range(0, 60_000, 3_000):
        rows = [(first + place, f"s{place % 7}") for place in range(3_000)]
        assert run.take(readings(*rows), first + 3_000) == []
    assert sum(queue._size for queue in run.step._last._expiries.values()) < 10_100
