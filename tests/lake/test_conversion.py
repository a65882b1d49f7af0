"""A lake of an earlier version becomes Delta tables with every event as it was. [LK-1]"""

from __future__ import annotations

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import Conflict, InvalidInput
from rapport.lake import conversion
from rapport.lake.bronze import exported_position, stored_events
from rapport.lake.catalogue import lake_tables
from rapport.lake.conversion import convert_lake
from rapport.lake.places import Lake
from rapport.lake.table import Table

FORMER = Path(__file__).parents[1] / "data" / "former_lake"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Written by the version before: two channels, three exports, silver."""
    with lzma.open(FORMER / "lake.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        if hasattr(tarfile, "data_filter"):  # not in the first releases of Python 3.11
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path


def rows_of(lake: Path) -> dict[str, list[list[Any]]]:
    found = {}
    for name in Lake.at(lake).names("bronze"):
        stored = stored_events(Lake.at(lake).open("bronze", name).read())
        found[name] = [
            [
                *(one.position, one.received, one.event.source, one.event.id, one.event.type),
                *(one.event.subject, one.event.time, one.event.data.decode(), one.event.headers),
            ]
            for one in sorted(stored, key=lambda one: one.position)
        ]
    return found


def test_every_event_is_there_and_exports_go_on_behind_it(lake: Path) -> None:
    with pytest.raises(Conflict, match="earlier version"):
        lake_tables(lake)
    done = convert_lake(lake)
    assert rows_of(lake) == json.loads((FORMER / "rows.json").read_text())
    assert done.rows == sum(map(len, rows_of(lake).values()))
    assert exported_position(Lake.at(lake), "events") == done.positions["events"] == 60
    assert [one.name for one in lake_tables(lake)] == ["bronze/events", "bronze/raw.readers"]
    assert (lake / "former" / "silver").is_dir()
    with pytest.raises(InvalidInput):
        convert_lake(lake)


class Crash(Exception):
    """Stands for the end of the process at this point."""


@pytest.mark.parametrize("step", range(4))
def test_a_conversion_that_was_killed_goes_on(
    lake: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_ROWS_AT_ONCE", 10)
    commits = iter(range(1_000))
    original = Table.commit

    def commit(self, *arguments, **named):
        if next(commits) == step:
            raise Crash
        return original(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", commit)
        with pytest.raises(Crash):
            convert_lake(lake)
    convert_lake(lake)
    assert rows_of(lake) == json.loads((FORMER / "rows.json").read_text())
