"""Values that texts name: taken as of the detection, whatever is read later."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection, NamedValue
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.value_record import ValueRecord
from rapport.policy.named_values import needed_values, vocabulary
from rapport.policy.readings import readings_schema
from rapport.site.site import load_site
from tests.policy.engine.situation_site import FREEZER, SITUATIONS

SITE = load_site(SITUATIONS)
STREAM = "station.temperature"


def compiled(text=FREEZER):
    return compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5_000)


def readings(rows, stream=STREAM):
    """Rows of time, id, key and value."""
    schema = readings_schema(SITE.ontology)
    columns = {name: pa.nulls(len(rows), schema.field(name).type) for name in schema.names}
    for name, place in (("time", 0), ("id", 1), ("key", 2), (f"{stream}.value", 3)):
        columns[name] = pa.array([row[place] for row in rows], schema.field(name).type)
    columns["stream"] = pa.array([stream] * len(rows), pa.string())
    columns["source"] = pa.array(["temperature"] * len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def record(*fields, text=FREEZER):
    needs = needed_values(fields, compiled(text), SITE.ontology)
    made = ValueRecord(lambda _policy, _version: needs)
    made.use_policies({"freezer": "v"}, 5_000)
    return made


def found(time=20_000, station="s1", **changes):
    return Detection(policy="freezer", time=time, bindings={"F": station}, causes=(), **changes)


def values(made, detection):
    [valued] = made.with_values([detection], SITE.tables, SITE.ontology.sources)
    return valued


def test_a_value_is_the_newest_at_the_time_of_the_detection_and_carries_its_unit():
    made = record("temperature of F")
    rows = [(10_000, "a", "s1", -14.0), (20_000, "b", "s1", -13.5), (21_000, "c", "s1", 7.0)]
    made.take(readings([*rows, (20_000, "d", "s2", 1.0)]), (), 0)
    assert values(made, found()).values == {"temperature of F": NamedValue(-13.5, "degC")}


def test_of_two_readings_of_one_time_the_greater_id_counts():
    made = record("temperature of F")
    made.take(readings([(20_000, "b", "s1", 2.0), (20_000, "a", "s1", 1.0)]), (), 0)
    assert values(made, found()).values["temperature of F"].value == 2.0


def test_what_was_never_read_is_stale_or_came_too_late_is_unknown():
    made = record("temperature of F")
    assert values(made, found()).values["temperature of F"].value is None
    late = (20_000, "late", "s1", 5.0)
    made.take(readings([(1_000, "old", "s1", 3.0), late]), {(20_000, "late")}, 0)
    assert values(made, found()).values["temperature of F"].value == 3.0
    assert values(made, found(time=26_000)).values["temperature of F"].value is None


def test_a_column_of_a_table_is_a_value_too():
    made = record("name of F")
    [first, *_] = SITE.tables.instances("station").ids
    row = SITE.tables.instances("station").row(first)
    name = SITE.tables.instances("station").columns["name"][row]
    assert values(made, found(station=first)).values == {"name of F": NamedValue(name)}


MEAN = FREEZER.replace("temperature of F above", "mean of temperature of F in the last 10 s above")


@pytest.mark.parametrize(
    "field",
    [
        "mean of temperature of F in the last 10 s",
        "mean  of temperature of F in the last 10000 ms",
        "mean of temperature of F",
        "mean of temperature of F in the last 10 s (at least 1 readings)",
    ],
)
def test_an_aggregate_of_the_expression_is_named_with_or_without_its_window(field):
    made = record(field, text=MEAN)
    rows = [(10_000, "a", "s1", 9.0), (11_000, "b", "s1", 1.0), (20_000, "c", "s1", 2.0)]
    made.take(readings(rows), (), 0)
    [value] = values(made, found()).values.values()
    assert value == NamedValue(1.5, "degC")


def test_why_names_the_alternative_that_holds_with_its_value():
    made = record("why")
    made.take(readings([(20_000, "a", "s1", -12.5)]), (), 0)
    assert values(made, found()).holds == (
        "temperature of F above -15 °C (temperature of F is -12.5 °C)"
    )
    made.take(readings([(30_000, "b", "s1", -20.0)]), (), 0)
    assert values(made, found(time=30_000)).holds == "no temperature of F for 30min"


def test_an_end_with_a_reason_needs_no_other_line():
    made = record("why")
    ended = found(began=10_000, reason="the policy was deleted")
    assert values(made, ended).holds == ""


def test_names_of_what_has_no_value_are_not_in_the_vocabulary():
    known = vocabulary(compiled(), SITE.ontology)
    assert {"temperature of F", "name of F", "humidity of F"} <= known.keys()
    assert "position of F" not in known


ROWS = st.lists(
    st.tuples(st.integers(0, 60_000), st.sampled_from("abc"), st.integers(-50, 50)), max_size=60
)


@given(ROWS, st.lists(st.integers(0, 60), max_size=4), st.integers(0, 60_000))
def test_compacted_and_restored_records_give_the_same_values(rows, cuts, watermark):
    """Nothing that a detection after the watermark can ask for is dropped."""
    whole, kept = record("temperature of F"), record("temperature of F")
    ordered = [(t, f"{n:03}", f"s{s}", float(v)) for n, (t, s, v) in enumerate(sorted(rows))]
    places = [0, *sorted(min(cut, len(ordered)) for cut in cuts), len(ordered)]
    for start, end in pairwise(places):
        batch = readings(ordered[start:end])
        whole.take(batch, (), 0)
        kept.take(batch, (), 0)
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(kept.state(watermark)))
        kept = record("temperature of F")
        kept.restore(state)
        kept.use_policies({"freezer": "v"}, 5_000)
    for time in np.linspace(watermark - 5_000, 70_000, 7).astype(int).tolist():
        for station in ("sa", "sb", "sc"):
            one = found(time=time, station=station)
            assert values(kept, one).values == values(whole, one).values


INSIDE = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  A is inside R AND count of position of A in the last 1 min above 1
actions
  tell the guards
"""


def test_points_and_areas_are_counted_and_not_shown():
    needs = needed_values(("why",), compiled(INSIDE), SITE.ontology)
    made = ValueRecord(lambda _policy, _version: needs)
    made.use_policies({"freezer": "v"}, 5_000)
    schema = readings_schema(SITE.ontology)
    columns = {name: pa.nulls(2, schema.field(name).type) for name in schema.names}
    columns |= {
        "time": pa.array([10_000, 20_000]),
        "id": pa.array(["a", "b"]),
        "stream": pa.array(["person.position"] * 2),
        "key": pa.array(["1", "1"]),
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    made.take(rows, (), 0)
    one = Detection(policy="freezer", time=20_000, bindings={"A": "1", "R": "r1"}, causes=())
    [valued] = made.with_values([one], SITE.tables, SITE.ontology.sources)
    assert valued.holds.endswith("(count of position of A is 2)")


GUARDED = """concepts
  station F
conditions
  temperature of F above -15 degC
while
  mean of temperature of F in the last 10 s above -30 degC
actions
  tell the guards
"""


def test_an_aggregate_of_a_while_is_named_too():
    made = record("mean of temperature of F", "max of temperature of F", text=GUARDED)
    rows = [(10_000, "a", "s1", 9.0), (11_000, "b", "s1", 1.0), (20_000, "c", "s1", 2.0)]
    made.take(readings(rows), (), 0)
    assert values(made, found()).values == {"mean of temperature of F": NamedValue(1.5, "degC")}
