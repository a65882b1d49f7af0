"""Small files become large ones; no reader sees a row twice, none loses one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.core.detection import Detection
from rapport.core.errors import Conflict
from rapport.core.event import Event
from rapport.pipeline.lake import journal
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.files import write_gold
from rapport.pipeline.lake.locks import reading
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology

Reading = Callable[..., Event]
EVENTS = "bronze/channel=events"


@pytest.fixture
def many(filled: Any, given_reading: Reading, ontology: Ontology) -> Any:
    """Six files of bronze and of silver."""
    for number in range(6):
        filled.fill(given_reading(f"{number}a"), given_reading(f"{number}b"))
        update_silver(None, filled.path, ontology)
    return filled


def files(filled: Any, folder: str) -> list[str]:
    return sorted(path.name for path in (filled.path / folder).rglob("*.parquet"))


def test_small_files_become_one_with_the_same_rows(many: Any) -> None:
    before = many.all_rows(EVENTS), many.rows()
    done = compact(many.path)
    assert (done.folders, done.files_before, done.files_after) == (2, 12, 2)
    assert (many.all_rows(EVENTS), many.rows()) == before
    assert files(many, EVENTS) == [f"{1:020d}-{12:020d}.parquet"]
    assert compact(many.path).folders == 0
    assert not (many.path / ".work").exists() or not any((many.path / ".work").iterdir())


def test_the_next_run_of_silver_goes_on_from_compacted_files(
    many: Any, given_reading: Reading, ontology: Ontology
) -> None:
    many.fill(given_reading("new"))
    compact(many.path)
    assert files(many, EVENTS) == [f"{1:020d}-{13:020d}.parquet"]
    assert update_silver(None, many.path, ontology).readings == 1
    assert len(many.rows()) == 13
    many.fill(given_reading("newer"))
    assert update_silver(None, many.path, ontology).readings == 1


def test_a_dry_run_changes_nothing(many: Any) -> None:
    before = files(many, "bronze"), files(many, "silver")
    assert compact(many.path, dry_run=True).files_before == 12
    assert (files(many, "bronze"), files(many, "silver")) == before


def test_large_files_and_few_files_stay(many: Any) -> None:
    assert compact(many.path, large_bytes=10).folders == 0
    assert compact(many.path, fewest=7).folders == 0


def test_merged_files_end_when_they_are_large_enough(many: Any) -> None:
    (first, *_rest) = (many.path / EVENTS).rglob("*.parquet")
    compact(many.path, large_bytes=int(first.stat().st_size * 2.5))
    assert files(many, EVENTS) == [
        f"{1:020d}-{6:020d}.parquet",
        f"{7:020d}-{12:020d}.parquet",
    ]


def test_a_damaged_file_stays_and_is_named(many: Any) -> None:
    paths = sorted((many.path / EVENTS).rglob("*.parquet"))
    paths[2].write_bytes(b"PAR1nonsense")
    inside = bytearray(paths[4].read_bytes())
    inside[4:300] = bytes(296)
    foreign = paths[0].with_name("notes.parquet")
    foreign.write_bytes(b"hello")
    done = compact(many.path)
    assert done.problems[0].file == str(paths[2].relative_to(many.path))
    assert files(many, EVENTS) == sorted(
        [f"{1:020d}-{12:020d}.parquet", paths[2].name, "notes.parquet"]
    )
    assert paths[2].read_bytes() == b"PAR1nonsense"


def test_damage_that_only_reading_shows_leaves_the_folder_alone(many: Any) -> None:
    paths = sorted((many.path / EVENTS).rglob("*.parquet"))
    inside = bytearray(paths[4].read_bytes())
    inside[4:300] = bytes(296)
    paths[4].write_bytes(inside)
    done = compact(many.path)
    assert [problem.code for problem in done.problems] == ["lake.bad_file"]
    assert len(files(many, EVENTS)) == 6


def test_rows_that_stand_twice_at_a_position_stand_once_afterwards(many: Any) -> None:
    paths = sorted((many.path / EVENTS).rglob("*.parquet"))
    paths[0].with_name(f"{1:020d}-{3:020d}.parquet").write_bytes(paths[0].read_bytes())
    assert compact(many.path).repeated == 2
    assert [row["position"] for row in many.all_rows(EVENTS)] == list(range(1, 13))


def test_files_of_an_export_that_is_not_confirmed_are_left_alone(
    many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rapport.channel.export.lake_export import read_manifest, write_manifest

    manifest = read_manifest(many.path)
    progress = manifest.progress("events")
    progress.exported, progress.pending = 10, 12
    write_manifest(many.path, manifest)
    compact(many.path)
    assert files(many, EVENTS) == [f"{1:020d}-{10:020d}.parquet", f"{11:020d}-{12:020d}.parquet"]


def test_detections_of_many_days_stay_in_their_days_beside_the_tables_of_reports(
    filled: Any, ontology: Ontology, begin: int
) -> None:
    for day in range(5):
        found = Detection(policy="p", time=begin + day * 86_400_000, bindings={}, causes=())
        filled.append("detections", found.to_event(source="policies"))
        filled.export()
        update_silver(None, filled.path, ontology)
    write_gold(filled.path, "deliveries", pa.table({"message": ["m1"]}))
    before = sorted((filled.path / "gold").rglob("*"))
    assert compact(filled.path).folders == 1  # of bronze
    assert sorted((filled.path / "gold").rglob("*")) == before


def test_files_that_were_copied_beside_folders_are_left_alone(many: Any) -> None:
    day = next((many.path / EVENTS).iterdir())
    for path in sorted((many.path / EVENTS).rglob("*.parquet")):
        (day / path.name).write_bytes(path.read_bytes())
    assert compact(many.path).folders == 2
    assert len(list(day.glob("*.parquet"))) == 6
    assert len(list(day.glob("type=*/*.parquet"))) == 1


def test_older_columns_are_null_in_the_merged_file(
    filled: Any, given_reading: Reading, ontology: Ontology, ontology_with: Any
) -> None:
    for number, (kind, value) in enumerate([("number", [1]), ("point", [2, 3])] * 2):
        filled.fill(given_reading(str(number), stream="room.warmth", value=value))
        update_silver(None, filled.path, ontology_with(room_warmth=kind))
    compact(filled.path)
    rows = filled.rows("stream=room.warmth")
    assert [(row["value"], row["x"]) for row in rows] == [(1, None), (None, 2)] * 2


def test_nothing_is_moved_while_somebody_reads(many: Any) -> None:
    with reading(many.path), pytest.raises(Conflict) as caught:
        compact(many.path)
    assert caught.value.code == "lake.in_use"
    assert len(files(many, EVENTS)) == 6
    assert compact(many.path).folders == 2


def test_without_an_exchange_of_folders_the_result_is_the_same(
    many: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        pass

    monkeypatch.setattr(journal.ctypes, "CDLL", lambda *_a, **_k: Nothing())
    before = many.all_rows(EVENTS)
    compact(many.path)
    assert many.all_rows(EVENTS) == before
    assert len(files(many, EVENTS)) == 1


def test_a_file_that_comes_between_a_kill_and_the_next_start_stays(many: Any) -> None:
    class Killed(Exception):
        pass

    def kill(step: str) -> None:
        if step == "announced":
            raise Killed

    with pytest.raises(Killed):
        compact(many.path, at_step=kill)
    many.fill()
    (folder,) = {path.parent for path in (many.path / EVENTS).rglob("*.parquet")}
    late = folder / f"{13:020d}-{13:020d}.parquet"
    table = pq.read_table(sorted(folder.iterdir())[0], partitioning=None).slice(0, 1)
    place = table.schema.names.index("position")
    table = table.set_column(place, table.schema.field(place), pa.array([13], pa.uint64()))
    pq.write_table(table, late)
    compact(many.path)
    assert [row["position"] for row in many.all_rows(EVENTS)] == list(range(1, 14))
    assert isinstance(late, Path)


def test_a_mended_file_stays_until_silver_has_taken_it(
    filled: Any, given_reading: Reading, begin: int, ontology: Ontology
) -> None:
    for number in range(6):
        filled.fill(given_reading(str(number), begin + number))
    files = sorted((filled.path / "bronze/channel=events").rglob("*.parquet"))
    whole = files[2].read_bytes()
    files[2].write_bytes(whole[:100])
    update_silver(None, filled.path, ontology)
    files[2].write_bytes(whole)
    assert compact(filled.path).folders
    assert update_silver(None, filled.path, ontology).problems == ()
    assert sorted(filled.states()) == ["0", "1", "2", "3", "4", "5"]
