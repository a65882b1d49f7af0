"""Corrected readings in recorded files: only the newest correction is replayed, as a second look
does. [ME-16, PO-8]
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.cli.main import run
from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.core.release import Corrections
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.recordings.files import read_recorded, superseded_in
from support.servers.spark import QUICK_START

SOURCE = PushSource(
    name="weather",
    concept="station",
    attribute="temperature",
    key="data.key",
    value=("data.value.0",),
)
ONTOLOGY = Ontology(
    concepts={"station": {"temperature": "number"}},
    relationships={},
    sources={"weather": SOURCE},
)
PLAIN = PushSource(
    name="weather", concept="station", attribute="temperature", key="key", value=("value",)
)
ROWS = [
    ("1", "", 77.0),
    ("2", "", 20.0),
    ("1~a", "1", 24.0),
    ("3", "", 21.0),
    ("1~b", "1", 25.0),
]
STANDING = {"2": 20.0, "3": 21.0, "1~b": 25.0}


def line(id: str, corrects: str, value: float) -> str:
    more = {"corrects": corrects} if corrects else {}
    said = {"id": id, "time": 1_000, "data": {"key": "s1", "value": [value]}}
    return json.dumps(said | more)


def write(folder: Path, kind: str) -> Path:
    path = folder / f"events.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join([*(line(*row) for row in ROWS), '{"corrects": broken']) + "\n")
    elif kind == "csv":
        rows = [f"{id},1000,s1,{value},{of}" for id, of, value in ROWS]
        path.write_text("\n".join(["id,time,key,value,corrects", *rows]) + "\n")
    else:
        table = pa.table(
            {
                "id": [id for id, _, _ in ROWS],
                "time": [1_000] * len(ROWS),
                "key": ["s1"] * len(ROWS),
                "value": [value for _, _, value in ROWS],
                "corrects": [of or None for _, of, _ in ROWS],
            }
        )
        pyarrow.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_only_the_newest_correction_is_replayed(tmp_path: Path, kind: str, batch: int) -> None:
    problems: list[Problem] = []
    source = SOURCE if kind == "jsonl" else PLAIN
    batches = [
        *read_recorded(write(tmp_path, kind), source, ONTOLOGY, batch=batch, report=problems.append)
    ]
    assert all(len(rows) for rows in batches)
    found = {
        row["id"]: row["station.temperature.value"] for rows in batches for row in rows.to_pylist()
    }
    assert found == STANDING
    assert len(problems) == (kind == "jsonl")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_without_corrections_has_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"events.{kind}"
    path.write_text("id,time\n1,2\n")
    assert superseded_in(path, "id") == frozenset()


CHECK = Path(__file__).parents[2] / "data" / "checks" / "secure-building"


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_a_corrected_history_gives_what_the_right_one_gives(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUICK_START.items():
        monkeypatch.setenv(name, value)
    site = Path(shutil.copytree(CHECK, tmp_path / "site"))
    heading, *rows = (site / "events.csv").read_text().splitlines()
    place = heading.split(",").index("id")
    told = [f"{heading},corrects"]
    for number, row in enumerate(rows):
        cells = row.split(",")
        if number % 50:
            told.append(f"{row},")
            continue
        # Said of somebody else first, then corrected.
        wrong = [*rows[(number * 7 + 13) % len(rows)].split(",")]
        wrong[place], wrong[1] = f"wrong-{number}", cells[1]
        told += [f"{','.join(wrong)},", f"{row},wrong-{number}"]
    (site / "events.csv").write_text("\n".join(told) + "\n")
    out = tmp_path / "out.jsonl"
    asked = ["replay", "--site", str(site), "--out", str(out), "--engine", engine]
    assert run(asked) == 0
    assert out.read_bytes() == (CHECK / "expected.jsonl").read_bytes()


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("123"), st.integers(0, 3)), max_size=30
    )
)
def test_corrections_stand_alike_one_by_one_and_in_bulk(
    noted: list[tuple[str, str, int]],
) -> None:
    corrections = Corrections()
    events: dict[str, Event] = {}
    for source, id, version in noted:
        own = f"{source}{id}~{version}" if version else f"{source}{id}"
        if own in events:
            continue
        events[own] = Event(source=source, id=own, type="t", subject="", time=0, data=b"{}")
        if version:
            corrections.note(source, own, f"{source}{id}")
    gone = corrections.superseded()
    for own, event in events.items():
        original = own.partition("~")[0] if "~" in own else ""
        assert corrections.stands(event.source, own, original) == (own not in gone)
    standing = [own for own in events if own not in gone]
    assert len(standing) == len({own.partition("~")[0] for own in standing})
