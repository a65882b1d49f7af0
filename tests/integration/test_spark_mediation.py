"""Mediation on Spark gives what the node gives: readings to the last bit, and reasons. [ME-14,
PI-4]

Many random interpretations go through one job. `RAPPORT_MEDIATION_SEEDS=3,4,5` tries others.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.pipeline.datasource.rows import CHANNEL_ROWS, CHANNEL_SCHEMA
from rapport.pipeline.mediation.expressions import MediationOutcomes, mediated
from rapport.pipeline.mediation.meanings import Meanings, meaning_of, meanings_of_site
from rapport.pipeline.mediation.mediated_files import mediated_files
from rapport.site.site import load_site
from support.examples import examples
from support.varied.mediated_rows import RawRow, by_spark, by_the_node, varied_sources

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

SEEDS = [int(seed) for seed in os.environ.get("RAPPORT_MEDIATION_SEEDS", "2026").split(",")]


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_give_what_the_generated_python_gives(spark: Any, seed: int) -> None:
    varied = varied_sources(seed, forms=examples(6), events=60)
    found = mediated(spark, _frame(spark, varied.rows), varied.meanings)
    outcomes = found.outcomes.persist()
    try:
        kept = MediationOutcomes(outcomes, found.streams)
        given = by_spark(kept.readings.collect(), kept.rejected.collect())
        accepted = outcomes.where("reason IS NULL").select("native").collect()
    finally:
        outcomes.unpersist()
    expected = by_the_node(varied.meanings, varied.rows)
    assert given == expected, _difference(given, expected)
    assert sum(row.native for row in accepted) > len(accepted) / 3, "columns must do their share"


SITE = """
[concepts.person.attributes]
place = "point"
[sources.truck]
concept = "person"
attributes = ["place"]
interpretation = "truck"
[sources.badges]
concept = "person"
attribute = "place"
interpretation = "badges"
time = "t"

[sources.called]
concept = "person"
attribute = "place"
interpretation = "called"

[interpretations.called]
identity = { field = "who" }
value.x  = { field = "x", unit = "m" }
value.y  = { field = "y", unit = "m" }
convert  = [{ call = "shifting:shifted", take = ["x"], give = ["x"] }]
[interpretations.badges]
time     = { field = "t", format = "iso8601" }
identity = { field = "who" }
value.x  = { field = "x", unit = "ft" }
value.y  = { field = "y", unit = "m" }
[interpretations.truck]
[interpretations.truck.types.Seen]
key   = "text"
place = "Far"
[interpretations.truck.types.Far]
x = "m"
y = "m"
[interpretations.truck.types.Truck]
x = "m"
y = "m"
[interpretations.truck.conversions.moved]
from = "Far"
to   = "Point"
relative-to-absolute = { origin = { kind = "moving", feed = "Truck" } }
[[interpretations.truck.mappings]]
from      = "Seen"
to        = "person"
direction = "in"
"""

SHIFTED = """
def shifted(x):
    if x < 0:
        raise ValueError("left of the door")
    return x + 1
"""


@pytest.fixture(scope="module")
def meanings(tmp_path_factory: pytest.TempPathFactory) -> Meanings:
    directory = tmp_path_factory.mktemp("site")
    (directory / "site.toml").write_text(dedent(SITE), encoding="utf-8")
    (directory / "shifting.py").write_text(SHIFTED, encoding="utf-8")
    return meanings_of_site(load_site(directory))


def test_what_depends_on_earlier_events_is_taken_in_their_order(
    spark: Any, meanings: Meanings
) -> None:
    said = [("Truck", b'{"x": %d, "y": 0}' % n) for n in range(3)]
    seen = ("Seen", b'{"key": "anna", "place": {"x": 0.5, "y": 2}}')
    rows = [
        RawRow("raw.truck", number, Event("truck", f"e{number}", kind, "", number, data))
        for number, (kind, data) in enumerate([seen, said[1], seen, said[2], seen, said[0], seen])
    ]
    shuffled = Random(3).sample(rows, len(rows))
    frame = _frame(spark, shuffled, partitions=3)
    found = mediated(spark, frame, meanings, sources=["truck"]).outcomes.collect()
    stored = [StoredEvent(row.position, 0, row.event) for row in rows]
    readings, rejections = meaning_of(meanings, "truck").apply_many(stored)
    assert sorted((row.id, row.n1) for row in found if row.reason is None) == [
        (reading.id, reading.payload()["value"][0]) for reading in readings
    ]
    assert [row.reason for row in found if row.reason] == [each.code for each in rejections]
    assert len(readings) == 3


def test_functions_of_the_site_are_called_where_the_rows_are(
    spark: Any, meanings: Meanings
) -> None:
    rows = [
        RawRow("raw.called", n, Event("called", f"e{n}", "x", "", n, data))
        for n, data in enumerate(
            (b'{"who": "a", "x": 2, "y": 0}', b'{"who": "a", "x": -2, "y": 0}')
        )
    ]
    found = mediated(spark, _frame(spark, rows), meanings, sources=["called"]).outcomes.collect()
    assert sorted((row.id, row.n1, row.reason, row.message) for row in found) == [
        ("e0", 3.0, None, None),
        (
            "e1",
            None,
            "conversion.raised",
            "the conversion 'shifting:shifted': ValueError: left of the door",
        ),
    ]


def test_a_stream_gives_what_a_batch_gives_and_refuses_what_needs_an_order(
    spark: Any, meanings: Meanings, tmp_path: Path
) -> None:
    rows = [
        RawRow("raw.badges", n, Event("badges", f"e{n}", "x", "", n, _badge(n))) for n in range(20)
    ]
    listed = [dict(zip(CHANNEL_SCHEMA.names, row.as_row(), strict=True)) for row in rows]
    channel = tmp_path / "channel"
    channel.mkdir()
    pa.parquet.write_table(pa.Table.from_pylist(listed, CHANNEL_SCHEMA), channel / "1.parquet")
    stream = spark.readStream.schema(CHANNEL_ROWS).parquet(str(channel))
    with pytest.raises(Unsupported, match="depends on earlier events"):
        mediated(spark, stream, meanings)
    found = mediated(spark, stream, meanings, sources=["badges"]).outcomes
    query = (
        found.writeStream.format("memory")
        .queryName("mediated_badges")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.awaitTermination(120)
    kept = MediationOutcomes(spark.table("mediated_badges"), dict(meanings.ontology.streams()))
    given = by_spark(kept.readings.collect(), kept.rejected.collect())
    badges = Meanings(
        in_force=meanings.in_force,
        bindings={"badges": meanings.bindings["badges"]},
        ontology=meanings.ontology,
        tables=meanings.tables,
    )
    assert given == by_the_node(badges, rows)


def test_recorded_files_are_mediated_as_they_were_recorded(
    spark: Any, meanings: Meanings, tmp_path: Path
) -> None:
    lines = tmp_path / "badges.jsonl"
    lines.write_bytes(b"\n".join(_badge(n) for n in range(6)) + b"\nno JSON\n")
    table = tmp_path / "badges.parquet"
    columns = {
        "t": ["2026-03-02T09:14:05Z", "soon", None],
        "who": ["anna", "bob", "carl"],
        "x": [1.5, float("nan"), 2.0],
        "y": [1, 2, 3],
    }
    pa.parquet.write_table(pa.table(columns), table)
    found = mediated_files(spark, meanings, "badges", [lines, table]).outcomes.collect()
    told = sorted((row.id, row.position, row.n1, row.reason) for row in found)
    assert told == [
        ("badges.jsonl:1", 1, 0.0, None),
        ("badges.jsonl:2", 2, 0.3048, None),
        ("badges.jsonl:3", 3, None, "value.not_a_number"),
        ("badges.jsonl:4", 4, 0.9144000000000001, None),
        ("badges.jsonl:5", 5, 1.2192, None),
        ("badges.jsonl:6", 6, 1.524, None),
        ("badges.jsonl:7", 7, None, "payload.not_json"),
        ("badges.parquet:1", 1, 0.45720000000000005, None),
        ("badges.parquet:2", 2, None, "time.bad_time"),
        ("badges.parquet:3", 3, None, "value.not_text"),
    ]
    assert {row.id for row in found if row.native} == {"badges.parquet:1"}


def test_rows_that_are_no_channel_are_refused(spark: Any, meanings: Meanings) -> None:
    with pytest.raises(InvalidInput, match="'channel'"):
        mediated(spark, spark.range(1), meanings)


def _badge(number: int) -> bytes:
    x = '"left"' if number == 2 else str(number)
    return b'{"t": "2026-03-02T09:14:%02dZ", "who": "anna", "x": %s, "y": -0.0}' % (
        number,
        x.encode(),
    )


def _frame(spark: Any, rows: Any, partitions: int = 1) -> Any:
    made = spark.createDataFrame([row.as_row() for row in rows], CHANNEL_ROWS)
    return made.repartition(partitions) if partitions > 1 else made.coalesce(1)


def _difference(given: Counter[Any], expected: Counter[Any]) -> str:
    lines = [f"- {each}" for each in list(expected - given)[:5]]
    return "\n".join([*lines, *(f"+ {each}" for each in list(given - expected)[:5])])
