"""Readings written as Parquet files of a history, cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.kernel.clock import Chance


@pytest.fixture(scope="session")
def cut_into_files() -> Callable[[pa.Table, Path, str, Chance], list[Path]]:
    """Writes rows in up to three files, each with row groups of any size."""
    return _cut_into_files


def _cut_into_files(table: pa.Table, folder: Path, name: str, chance: Chance) -> list[Path]:
    paths = []
    cuts = sorted(chance.randint(0, len(table)) for _ in range(chance.randint(0, 2)))
    for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, len(table)], strict=True)):
        path = folder / f"{name}-{number}.parquet"
        with pq.ParquetWriter(path, table.schema) as file:
            while first < end:
                rows = min(chance.randint(1, 30), end - first)
                file.write_table(table.slice(first, rows))
                first += rows
        paths.append(path)
    return paths
