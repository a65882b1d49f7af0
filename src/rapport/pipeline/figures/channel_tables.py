"""How the channels were used, in Spark SQL: events per minute, gaps, and delays. [PI-6]

Minutes are counted in one look at four columns; everything but the delays follows from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.pipeline.figures.percentiles import percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_GAPS = 10
"""Gaps of a channel that are named; the others are counted."""

_MINUTES = """
SELECT channel, received - pmod(received, 60000) AS minute, count(*) AS events,
       min(received) AS first, max(received) AS last, min(position) AS first_position,
       max(position) AS last_position
FROM {rows} GROUP BY 1, 2
"""

# Two events a minute or more apart lie in different minutes: the last of one, the first of the
# next that has any.
_GAPS = """
SELECT channel, begin, end, end - begin AS duration,
       row_number() OVER (PARTITION BY channel ORDER BY end - begin DESC, begin) AS rank
FROM (SELECT channel, lag(last) OVER (PARTITION BY channel ORDER BY minute) AS begin,
             first AS end
      FROM {minutes})
WHERE end - begin >= 60000
"""

_CHANNELS = """
SELECT minutes.*, coalesce(gaps.gaps, 0) AS gaps, coalesce(gaps.longest_gap, 0) AS longest_gap
FROM (SELECT channel, sum(events) AS events, min(first) AS first, max(last) AS last,
             count(*) AS minutes, max(events) AS busiest,
             max(last_position) - min(first_position) + 1 - sum(events) AS missing
      FROM {minutes} GROUP BY channel) minutes
LEFT JOIN (SELECT channel, count(*) AS gaps, max(duration) AS longest_gap
           FROM {gaps} GROUP BY channel) gaps ON gaps.channel = minutes.channel
ORDER BY minutes.channel
"""

_LONGEST_GAPS = """
SELECT channel, begin, end, duration FROM {gaps} WHERE rank <= {most}
ORDER BY channel, rank
"""

_SERIES = """
SELECT channel, minute - pmod(minute, {step}) AS begin, sum(events) AS events
FROM {minutes} GROUP BY 1, 2 ORDER BY channel, begin
"""

_DELAYS = "SELECT channel, source, received - time AS delay FROM {rows}"

_AHEAD = """
SELECT channel, source, count(*) AS events, count_if(delay < 0) AS ahead
FROM {delays} GROUP BY channel, source
"""

_DELAY_ROWS = """
SELECT counts.*, spread.* EXCEPT (channel, source)
FROM {counts} counts JOIN {spread} spread
  ON spread.channel = counts.channel AND spread.source = counts.source
ORDER BY counts.channel, counts.source
"""


def channel_minutes(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Per channel and minute of arrival."""
    return spark.sql(_MINUTES, rows=rows)


def channel_gaps(spark: SparkSession, minutes: DataFrame) -> DataFrame:
    """Stretches of a minute or more without an event, ranked by their length."""
    return spark.sql(_GAPS, minutes=minutes)


def channel_rows(spark: SparkSession, minutes: DataFrame, gaps: DataFrame) -> DataFrame:
    """Per channel."""
    return spark.sql(_CHANNELS, minutes=minutes, gaps=gaps)


def longest_gaps(spark: SparkSession, gaps: DataFrame) -> DataFrame:
    """Of each channel the longest."""
    return spark.sql(_LONGEST_GAPS, gaps=gaps, most=MOST_GAPS)


def channel_series(spark: SparkSession, minutes: DataFrame, step_ms: int) -> DataFrame:
    """Events per channel and stretch of time, for a plot."""
    return spark.sql(_SERIES, minutes=minutes, step=step_ms)


def delay_rows(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Per channel and source how long after its time an event was received."""
    delays = spark.sql(_DELAYS, rows=rows)
    return spark.sql(
        _DELAY_ROWS,
        counts=spark.sql(_AHEAD, delays=delays),
        spread=percentiles(spark, delays, ["channel", "source"], "delay"),
    )
