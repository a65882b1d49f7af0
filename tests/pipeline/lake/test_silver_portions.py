"""What the node held back is written in portions: bounded memory, and each event once all the same.
[PI-3]
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.event import Event, make_event
from rapport.pipeline.lake import silver_portions
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology


def rejected(id: str, *, filling: int = 1) -> Event:
    """What mediation says of a raw event that it could not understand."""
    raw = {"source": "reader", "id": id, "type": "rfid", "data": {"tag": "x" * filling}}
    data = {"reason": "value.unknown", "message": f"no tag {id}", "hint": "add it", "raw": raw}
    return make_event(
        source="rapport.mediation", id=id, type="rapport.mediation.rejected", data=data, time=1
    )


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silver_portions, "PIECE_ROWS", 2)
    monkeypatch.setattr(silver_portions, "PORTION_BYTES", 600)


def held(filled: Any) -> list[tuple[int, str, str]]:
    rows = filled.rows("quarantined")
    return [(row["position"], row["id"], row["message"]) for row in rows]


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("rows_per_file", [3, 100])
def test_portions_of_any_size_give_the_same_and_each_event_once(
    filled: Any, ontology: Ontology, rows_per_file: int
) -> None:
    ids = [str(number) for number in range(20)]
    filled.append("quarantine", *map(rejected, ids))
    filled.export(rows_per_file=rows_per_file)
    files = sorted((filled.path / "bronze/channel=quarantine").rglob("*.parquet"))
    repeat_a_row(files[-1], "3")
    done = update_silver(None, filled.path, ontology)
    assert (done.quarantined, done.duplicates) == (19, 1)
    assert 1 < done.files <= 20
    assert held(filled) == [(n + 1, str(n), f"no tag {n}") for n in range(19)]
    assert update_silver(None, filled.path, ontology).quarantined == 0


def repeat_a_row(file: Path, id: str) -> None:
    """The last event of a file becomes one that came before, at its own place."""
    schema, rows = pq.read_schema(file), pq.read_table(file, partitioning=None).to_pylist()
    rows[-1] |= {"data": rejected(id).data, "id": id}
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)


@pytest.mark.usefixtures("small_portions")
def test_of_a_file_that_is_damaged_behind_its_first_rows_nothing_is_taken_until_it_is_mended(
    filled: Any, ontology: Ontology
) -> None:
    filled.append("quarantine", *(rejected(str(number)) for number in range(20)))
    filled.export()
    (file,) = (filled.path / "bronze/channel=quarantine").rglob("*.parquet")
    pq.write_table(pq.read_table(file, partitioning=None), file, row_group_size=10)
    whole = file.read_bytes()
    place = pq.read_metadata(file).row_group(1).column(0)
    start = place.dictionary_page_offset or place.data_page_offset
    file.write_bytes(whole[:start] + b"\xff" * 12 + whole[start + 12 :])
    done = update_silver(None, filled.path, ontology)
    assert (done.quarantined, done.problems[0].code) == (0, "lake.bad_file")
    assert not (filled.path / "silver/quarantined").exists()
    file.write_bytes(whole)
    done = update_silver(None, filled.path, ontology)
    assert (done.quarantined, done.problems, done.missing) == (20, (), 0)
    assert [id for _, id, _ in held(filled)] == [str(number) for number in range(20)]


def test_memory_does_not_grow_with_what_was_held_back(filled: Any, ontology: Ontology) -> None:
    for start in range(0, 12_000, 4_000):
        many = [rejected(str(start + number), filling=200) for number in range(4_000)]
        filled.append("quarantine", *many)
        del many
    filled.export()
    gc.collect()
    tracemalloc.start()
    try:
        done = update_silver(None, filled.path, ontology)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.quarantined == 12_000
    assert most < 10 * 1024 * 1024  # all at once they are more than 20 MB
