"""The shared Spark session, and the worked cases as readings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from rapport.site.site import Site, load_site
from support.servers.spark import spark

__all__ = ["spark"]

CHECKS = Path(__file__).parent.parent / "data" / "checks"

Readings = Callable[..., list[pa.RecordBatch]]


@pytest.fixture(scope="session")
def small_policies() -> Site:
    """Twenty policies over 200 events."""
    return load_site(CHECKS / "small-policies")


@pytest.fixture(scope="session")
def secure_building() -> Site:
    """One policy over 20,000 events."""
    return load_site(CHECKS / "secure-building")


@pytest.fixture(scope="session")
def readings() -> Readings:
    """Positions of a recorded file, in the order of the file, cut into batches."""
    return read_positions


def read_positions(path: Path, batch: int = 10_000) -> list[pa.RecordBatch]:
    kinds = {"ts": pa.int64(), "id": pa.string(), "person": pa.string()}
    kinds |= {"x": pa.float64(), "y": pa.float64()}
    rows = pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(column_types=kinds))
    table = pa.table(
        {
            "time": rows["ts"],
            "id": rows["id"],
            "stream": pa.array(["person.position"] * len(rows)),
            "source": pa.array(["positions"] * len(rows)),
            "key": rows["person"],
            "person.position.x": rows["x"],
            "person.position.y": rows["y"],
        }
    )
    return table.to_batches(max_chunksize=batch)
