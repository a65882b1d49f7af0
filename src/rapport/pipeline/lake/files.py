"""The lake: where its files lie and how Spark reads them. [PI-3]

`bronze/` holds what every channel received (written by `channel/export/parquet_files.py`), `gold/`
the results of jobs. Everything is Parquet, so DuckDB, pandas and Spark read it alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rapport.channel.export.parquet_files import BRONZE, replaced_file
from rapport.core.errors import Corrupt
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.places import GOLD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark has no unsigned numbers: positions come as decimals and leave as longs.
_BRONZE_COLUMNS = (
    "channel STRING, position DECIMAL(20,0), received BIGINT, time BIGINT, source STRING, "
    "id STRING, type STRING, subject STRING, headers MAP<STRING, STRING>, data BINARY"
)


def spark_path(path: Path) -> str:
    """A local path as Spark wants it to read from: not percent-encoded, and with nothing that looks
    like a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", spark_target(path))


def spark_target(path: Path) -> str:
    """A local path as Spark wants it to write to: there it looks for no patterns."""
    return f"file:{path.resolve()}"


def channel_folders(lake: Path, names: Sequence[str]) -> list[Path]:
    """Folders of the named channels that the lake has; a name ending in `.*` stands for all below.

    Empty when the lake is new or has none of them.
    """
    found: list[Path] = []
    for folder in sorted((lake / BRONZE).glob("channel=*")):
        channel = folder.name.removeprefix("channel=")
        if any(_is_named(channel, name) for name in names):
            found.append(folder)
    return found


def read_bronze(spark: SparkSession, lake: Path, *names: str) -> DataFrame:
    """The events of the named channels as one table: the envelope and `data` as text.

    The columns come from the files, not from the directories' names, so odd event types are exact.
    A channel that is not there has no rows. Lazy: a damaged file shows when the rows are asked for.
    """
    folders = channel_folders(lake, names)
    _refuse_empty_files(folders)
    with spark_errors(f"reading the lake {lake}"):
        if not folders:
            rows = spark.createDataFrame([], _BRONZE_COLUMNS)
        else:
            reader = spark.read.schema(_BRONZE_COLUMNS).option("recursiveFileLookup", "true")
            rows = reader.parquet(*map(spark_path, folders))
        return rows.selectExpr(
            *("channel", "CAST(position AS BIGINT) AS position", "received", "time", "source"),
            *("id", "type", "subject", "headers", "CAST(data AS STRING) AS data"),
        )


def write_gold(lake: Path, name: str, table: pa.Table) -> Path:
    """Replaces a result table at once: a reader sees the old one or the new one."""
    path = lake / GOLD / f"{name}.parquet"
    with replaced_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return path


def read_gold(lake: Path, name: str) -> pa.Table | None:
    """A result table, None when no job has written it; raises Corrupt for a damaged file."""
    path = lake / GOLD / f"{name}.parquet"
    if not path.exists():
        return None
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error) from None


def _refuse_empty_files(folders: Sequence[Path]) -> None:
    """Spark passes over files without a byte in silence; a lake has none unless it is damaged."""
    for folder in folders:
        for path in folder.rglob("*.parquet"):
            if path.stat().st_size == 0:
                raise _damaged(path, "it is empty")


def _is_named(channel: str, name: str) -> bool:
    if name == "*":
        return True
    return channel.startswith(name[:-1]) if name.endswith(".*") else channel == name


def _damaged(path: Path, error: object) -> Corrupt:
    return Corrupt(
        f"{path} cannot be read: {error}",
        code="lake.bad_file",
        hint="move the file aside; rows that still stand in the log can be exported again",
    )
