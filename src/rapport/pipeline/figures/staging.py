"""Tables of a report under way: each is computed once, on the executors, and kept until the report
is made; those for others to read become tables of gold. [PI-6, LK-4]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rapport.lake.places import GOLD, Lake
from rapport.pipeline.lake.spark_tables import replace_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Staging:
    """The kept tables by name."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._kept: dict[str, DataFrame] = {}
        self._orders: dict[str, str] = {}
        self._rows: dict[str, int] = {}

    def keep(self, name: str, rows: DataFrame, *, order: str = "") -> DataFrame:
        """Computes the rows now; what is returned reads them from memory or disk of the executors.
        `order` is the one in which gold has them.
        """
        kept = rows.persist()
        self._kept[name], self._orders[name] = kept, order
        self._rows[name] = kept.count()
        return kept

    def rows_of(self, name: str) -> int:
        return self._rows[name]

    def publish(self, name: str) -> None:
        """Makes a kept table the content of a table of gold, at once."""
        rows, order = self._kept[name], self._orders[name]
        if order:
            rows = rows.repartition(1).sortWithinPartitions(*order.split(", "))
        replace_table(rows, self._lake, GOLD, name)

    def release(self) -> None:
        for rows in self._kept.values():
            rows.unpersist()


@contextmanager
def staging(lake: Lake) -> Iterator[Staging]:
    """A place for the tables of one report."""
    stage = Staging(lake)
    try:
        yield stage
    finally:
        stage.release()
