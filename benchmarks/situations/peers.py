"""Rules of situations in DuckDB and Polars over files. They look at readings only: a value that
leaves a window between two readings shows at the next one. [SI-11]"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.situations.stations import MINUTE_MS, STREAM
from rapport.kernel.clock import SystemClock

_CLOCK = SystemClock()
_LASTING = """
WITH looks AS (SELECT key, time, value > 27 AS hot,
    lag(value > 27) OVER w AS was FROM '{file}' WINDOW w AS (PARTITION BY key ORDER BY time)),
turns AS (SELECT key, time, hot, lead(time) OVER (PARTITION BY key ORDER BY time) AS until
    FROM looks WHERE was IS NULL OR hot != was)
SELECT count(*) FROM turns
WHERE hot AND coalesce(until, (SELECT max(time) + 1 FROM '{file}')) - time > {ms}
"""
_AVERAGE = """
WITH means AS (SELECT key, time, avg(value) OVER w AS mean, count(*) OVER w AS n FROM '{file}'
    WINDOW w AS (PARTITION BY key ORDER BY time RANGE BETWEEN {ms} - 1 PRECEDING AND CURRENT ROW)),
looks AS (SELECT key, n >= 18 AND mean > 24 AS high,
    lag(n >= 18 AND mean > 24) OVER (PARTITION BY key ORDER BY time) AS was FROM means)
SELECT count(*) FROM looks WHERE high AND (was IS NULL OR NOT was)
"""


def write_readings(readings: pa.RecordBatch, path: Path) -> None:
    """The times, keys and values as a Parquet file."""
    columns = [readings.column(name) for name in ("time", "key", f"{STREAM}.value")]
    pq.write_table(pa.table(columns, names=["time", "key", "value"]), path)


def timed(name: str, rule: str, path: Path) -> tuple[float, int] | None:
    """Seconds, and how many situations began; None where the library is not installed."""
    if find_spec(name) is None:
        return None
    run = _RUNS[name]
    began = _CLOCK.steady_ns()
    found = run(rule, path)
    return (_CLOCK.steady_ns() - began) / 1e9, found


def _duckdb(rule: str, path: Path) -> int:
    duckdb = import_module("duckdb")
    sql, ms = (_LASTING, 10 * MINUTE_MS) if rule == "lasting" else (_AVERAGE, 1_440 * MINUTE_MS)
    with duckdb.connect() as connection:
        (found,) = connection.execute(sql.format(file=path, ms=ms)).fetchone()
    return int(found)


def _polars(rule: str, path: Path) -> int:
    pl = import_module("polars")
    rows = pl.scan_parquet(path).sort("key", "time")
    if rule == "lasting":
        hot = pl.col("value") > 27
        turns = rows.with_columns(hot=hot, was=hot.shift().over("key"))
        turns = turns.filter(pl.col("was").is_null() | (pl.col("hot") != pl.col("was")))
        end = rows.select(pl.col("time").max() + 1).collect().item()
        until = pl.col("time").shift(-1).over("key").fill_null(end)
        lasts = until - pl.col("time") > 10 * MINUTE_MS
        turns = turns.with_columns(lasts=lasts)
        return int(turns.filter(pl.col("hot") & pl.col("lasts")).select(pl.len()).collect().item())
    windows = rows.rolling(index_column="time", period="86400000i", group_by="key").agg(
        mean=pl.col("value").mean(), n=pl.len()
    )
    high = (pl.col("n") >= 18) & (pl.col("mean") > 24)
    looks = windows.with_columns(high=high).with_columns(was=pl.col("high").shift().over("key"))
    begun = pl.col("high") & pl.col("was").fill_null(value=False).not_()
    return int(looks.filter(begun).select(pl.len()).collect().item())


_RUNS: dict[str, Callable[[str, Path], int]] = {"duckdb": _duckdb, "polars": _polars}
