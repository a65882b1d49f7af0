"""What mediation made of raw events, and what was held back, in Spark SQL. [PI-6, ME-11]"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.core.event import INTERPRETATION
from rapport.core.release import CORRECTS, RELEASED
from rapport.policy.engine.stream_steps import QUARANTINED_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What policies set aside is a reading, which names its raw event itself. A raw event that was
# rejected again when it was released counts once.
_HELD = f"""
SELECT id, received, coalesce(nullif(said.reason, ''), type) AS reason,
       coalesce(nullif(said.source, ''), substr(said.event.rawchannel, 5), said.event.source, '')
           AS source,
       coalesce(nullif(said.interpretation, ''), headers['{INTERPRETATION}'],
                said.event.interpretation, '') AS interpretation,
       if(type = '{QUARANTINED_TYPE}', 'policy', 'mediation') AS found_by,
       coalesce(concat(headers['rawchannel'], '/', headers['rawposition']),
                concat(said.event.rawchannel, '/', said.event.rawposition), id) AS place
FROM (SELECT *, from_json(data, 'reason STRING, source STRING, interpretation STRING,
                event STRUCT<source: STRING, interpretation: STRING, rawchannel: STRING,
                             rawposition: STRING>') AS said
      FROM {{rows}})
"""

_QUARANTINE = """
SELECT reason, source, interpretation, found_by, count(DISTINCT place) AS count,
       count(DISTINCT id) AS times, min(received) AS first, max(received) AS last
FROM {held} GROUP BY reason, source, interpretation, found_by
ORDER BY count DESC, reason, source, interpretation, found_by
"""

_MEDIATION = f"""
SELECT source, interpretation, sum(readings) AS readings, sum(released) AS released,
       sum(corrections) AS corrections, sum(rejected) AS rejected, sum(set_aside) AS set_aside
FROM (
  SELECT coalesce(substr(headers['rawchannel'], 5), source) AS source,
         coalesce(headers['{INTERPRETATION}'], '') AS interpretation, count(*) AS readings,
         count(headers['{RELEASED}']) AS released, count(headers['{CORRECTS}']) AS corrections,
         0 AS rejected, 0 AS set_aside
  FROM {{events}} GROUP BY 1, 2
  UNION ALL
  SELECT source, interpretation, 0, 0, 0,
         count(DISTINCT CASE WHEN found_by = 'mediation' THEN place END),
         count(DISTINCT CASE WHEN found_by = 'policy' THEN place END)
  FROM {{held}} GROUP BY source, interpretation
) GROUP BY source, interpretation ORDER BY source, interpretation
"""


def held_back(spark: SparkSession, quarantine: DataFrame) -> DataFrame:
    """The events of `quarantine` with what they say as columns."""
    return spark.sql(_HELD, rows=quarantine)


def quarantine_rows(spark: SparkSession, held: DataFrame) -> DataFrame:
    """Per reason, source and interpretation, the most first."""
    return spark.sql(_QUARANTINE, held=held)


def mediation_rows(spark: SparkSession, events: DataFrame, held: DataFrame) -> DataFrame:
    """Per source and interpretation."""
    return spark.sql(_MEDIATION, events=events, held=held)
