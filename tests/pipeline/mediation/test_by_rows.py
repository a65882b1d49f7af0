"""Raw events through the generated Python in Arrow batches, without Spark. [ME-14, PI-4]"""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import Any

import pyarrow as pa

from rapport.core.event import Event
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.mediation.meanings import unpacked
from rapport.pipeline.mediation.python_rows import ByRows, part_columns
from rapport.pipeline.mediation.worker_rows import (
    NAMES,
    OUTCOME_ROWS,
    PART_COLUMNS,
    WorkerMediation,
)
from support.varied.mediated_rows import RawRow, VariedSources, by_the_node, varied_sources


def test_rows_come_out_as_the_node_has_them() -> None:
    varied = varied_sources(11, forms=12, events=25)
    expected = by_the_node(varied.meanings, varied.rows)
    assert _outcomes(varied, varied.rows) == expected
    kinds = {told[2] for told in expected}
    assert kinds == {"reading", "rejected"}


def test_the_order_of_rows_and_how_they_are_cut_makes_no_difference() -> None:
    varied = varied_sources(12, forms=3, events=20)
    mixed = sorted(varied.rows, key=lambda row: (row.position, row.channel))
    assert _outcomes(varied, mixed, size=7) == _outcomes(varied, varied.rows)


def test_meanings_keep_their_stamps_on_the_way() -> None:
    meanings = varied_sources(13, forms=5, events=0).meanings
    assert unpacked(meanings.sent[1]).in_force.stamps == meanings.in_force.stamps


def test_a_channel_that_nobody_bound_is_rejected_like_in_the_node() -> None:
    varied = varied_sources(14, forms=1, events=0)
    row = RawRow("raw.fields", 1, Event("x", "e1", "x.raw", "", 0, b"{}"))
    ((_, _, kind, _, code, _, hint),) = _outcomes(varied, [row])
    assert (kind, code, hint) == ("rejected", "source.unbound", "did you mean 'fields0'?")


def test_single_rows_are_answered_as_text_and_null_for_null() -> None:
    varied = varied_sources(15, forms=4, events=10)
    asking = WorkerMediation(*varied.meanings.sent)
    asked: list[str | None] = []
    for row in varied.rows:
        asked += [None, _asked(row)]
    answers = asking.outcomes(pa.array(asked, pa.string())).to_pylist()
    assert answers[::2] == [None] * len(varied.rows)
    found: Counter[Any] = Counter()
    for row, answer in zip(varied.rows, answers[1::2], strict=True):
        for outcome in json.loads(answer):
            found[_told(varied, {**outcome, "raw": _place(row)})] += 1
    assert found == by_the_node(varied.meanings, varied.rows)


def test_nothing_in_doubt_asks_nobody() -> None:
    asking = WorkerMediation("unknown", b"no meanings at all")
    assert asking.outcomes(pa.nulls(3, pa.string())).null_count == 3


def test_columns_have_the_same_names_in_arrow_and_spark() -> None:
    assert [each.split()[0] for each in OUTCOME_ROWS.split(", ")] == list(NAMES)
    used = {
        column
        for kind in ("number", "point", "rectangle")
        for column in part_columns(kind).values()
    }
    assert used | {"words", "truth"} == set(PART_COLUMNS)


def _outcomes(varied: VariedSources, rows: Any, size: int = 50) -> Counter[tuple[Any, ...]]:
    names = CHANNEL_SCHEMA.names
    listed = [dict(zip(names, row.as_row(), strict=True)) for row in rows]
    table = pa.Table.from_pylist(listed, CHANNEL_SCHEMA)
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in ByRows(varied.meanings).stream(table.to_batches(max_chunksize=size)):
        for outcome in batch.to_pylist():
            found[_told(varied, outcome)] += 1
    return found


def _told(varied: VariedSources, outcome: dict[str, Any]) -> tuple[Any, ...]:
    place = (outcome["raw"]["channel"], outcome["raw"]["position"])
    if outcome["reason"] is not None:
        told = (outcome[name] for name in ("interpretation", "reason", "message", "hint"))
        return (*place, "rejected", *told)
    said = {name: outcome[name] for name in ("time", "id", "stream", "source", "key")}
    kind = varied.meanings.ontology.streams()[outcome["stream"]]
    for part, column in part_columns(kind).items():
        said[f"{outcome['stream']}.{part}"] = outcome[column]
    parts = (f"{name}={value!r}" for name, value in sorted(said.items()))
    return (*place, "reading", outcome["interpretation"], *parts)


def _place(row: RawRow) -> dict[str, Any]:
    return {"channel": row.channel, "position": row.position}


def _asked(row: RawRow) -> str:
    event = row.event
    said = {name: getattr(event, name) for name in ("source", "id", "type", "time")}
    data = base64.b64encode(event.data).decode()
    return json.dumps({"channel": row.channel, **said, "headers": {}, "data": data})
