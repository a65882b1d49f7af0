"""Tables too large for one process: Spark writes their parts, which become one file of `gold/`.
[PI-6, PI-3]

Parts lie beside the layers of the lake until the report is made, where every worker sees them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from rapport.channel.export.parquet_files import replaced_file
from rapport.core.errors import StoreUnavailable
from rapport.pipeline.lake.files import spark_path, spark_target
from rapport.pipeline.lake.locks import working
from rapport.pipeline.lake.places import GOLD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDER = ".report"


class Staging:
    """Tables of one report under way; each is computed once, however often it is asked."""

    def __init__(self, spark: SparkSession, lake: Path) -> None:
        self._spark, self._lake = spark, lake

    def keep(self, name: str, rows: DataFrame, *, order: str = "") -> DataFrame:
        """Computes the rows now, on the workers; what is returned reads them from disk. With an
        `order` they are sorted into one part, by one worker, on disk where they are many.
        """
        folder = self._folder(name)
        if order:
            rows = rows.repartition(1).sortWithinPartitions(*order.split(", "))
        rows.write.mode("overwrite").parquet(spark_target(folder))
        return self._spark.read.schema(rows.schema).parquet(spark_path(folder))

    def rows_of(self, name: str) -> int:
        """How many rows a kept table has, by the footers of its parts."""
        return sum(pq.read_metadata(path).num_rows for path in self._parts(name))

    def publish(self, name: str) -> None:
        """Makes a kept and sorted table a file of `gold/`, whole or not at all."""
        (part,) = self._parts(name)
        with replaced_file(self._lake / GOLD / f"{name}.parquet") as temporary:
            shutil.copyfile(part, temporary)

    def _folder(self, name: str) -> Path:
        return self._lake / _FOLDER / name

    def _parts(self, name: str) -> list[Path]:
        return sorted(self._folder(name).glob("part-*.parquet"))


@contextmanager
def staging(spark: SparkSession, lake: Path) -> Iterator[Staging]:
    """A place for one report at a time; raises Conflict while another job works on the lake, which
    also keeps files from being moved away. What a killed report left is removed first.
    """
    with working(lake):
        _remove(lake / _FOLDER)
        try:
            yield Staging(spark, lake)
        finally:
            _remove(lake / _FOLDER)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailable(
            f"cannot remove {folder}: {error.strerror or error}", code="lake.unavailable"
        ) from None
