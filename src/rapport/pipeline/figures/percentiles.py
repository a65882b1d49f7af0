"""Percentiles on Spark that are exact and need no memory for it: values are counted first, then
added up in order. [PI-6]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANKS = {"median": 50, "p90": 90, "p99": 99}

_COUNTED = """
SELECT {keys}, measure, value, count(*) AS n
FROM (SELECT {keys}, stack({count}, {stacked}) AS (measure, value) FROM {{rows}})
WHERE value IS NOT NULL GROUP BY {keys}, measure, value
"""

_SUMMED = "SELECT {keys}, '{measure}' AS measure, value, sum(n) AS n FROM {{rows}} GROUP BY ALL"

# Sorting and adding up spill to disk where there are many different values.
_RANKED = """
SELECT {keys}, {spreads} FROM (
  SELECT *, sum(n) OVER (PARTITION BY {keys}, measure ORDER BY value) AS upto,
         sum(n) OVER (PARTITION BY {keys}, measure) AS whole
  FROM {{counted}}
) GROUP BY {keys}
"""


def percentiles(
    spark: SparkSession, rows: DataFrame, keys: Sequence[str], *measures: str
) -> DataFrame:
    """Of each group and each measure, a column of whole numbers, `<measure>_timed`, `_median`,
    `_p90`, `_p99` and `_longest`, nulls left out. A percentile is the smallest value that at least
    so many percent do not exceed.
    """
    text = _COUNTED.format(
        keys=", ".join(keys),
        count=len(measures),
        stacked=", ".join(f"'{measure}', {measure}" for measure in measures),
    )
    return _ranked(spark, spark.sql(text, rows=rows), keys, measures)


def percentiles_of_counts(
    spark: SparkSession, rows: DataFrame, keys: Sequence[str], measure: str
) -> DataFrame:
    """The same for values that were counted before: `rows` has `value` and `n`, how many of it
    there were.
    """
    text = _SUMMED.format(keys=", ".join(keys), measure=measure)
    return _ranked(spark, spark.sql(text, rows=rows), keys, [measure])


def _ranked(
    spark: SparkSession, counted: DataFrame, keys: Sequence[str], measures: Sequence[str]
) -> DataFrame:
    text = _RANKED.format(keys=", ".join(keys), spreads=", ".join(map(_spread, measures)))
    return spark.sql(text, counted=counted)


def _spread(measure: str) -> str:
    of_it = f"FILTER (WHERE measure = '{measure}')"
    ranks = "".join(
        f"min(CASE WHEN upto * 100 >= whole * {percent} THEN value END) {of_it} "
        f"AS {measure}_{name}, "
        for name, percent in _RANKS.items()
    )
    timed = f"max(whole) {of_it} AS {measure}_timed"
    return f"{timed}, {ranks}max(value) {of_it} AS {measure}_longest"
