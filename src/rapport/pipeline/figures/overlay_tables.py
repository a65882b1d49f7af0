"""How knowledge spread and how fast brokers answered, in Spark SQL, from the summaries that nodes
append once a minute. [PI-6]

Their durations come as counts by steps (`core/times.py`): a percentile is the step that it
falls into, at most a thirty-second below what was; the longest is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.context.broker_status import BROKER_SUMMARY
from rapport.ensemble.runtime.gossip_summary import GOSSIP_SUMMARY
from rapport.pipeline.figures.percentiles import percentiles_of_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNTS = "STRUCT<count: BIGINT, longest: BIGINT, steps: ARRAY<ARRAY<BIGINT>>>"

# A line that stands there twice says the same and counts once.
_GOSSIP = f"""
SELECT position, said.* FROM (
  SELECT position, from_json(data, 'node STRING, since BIGINT, until BIGINT,
             sent MAP<STRING, BIGINT>, received MAP<STRING, BIGINT>, first BIGINT,
             ages {_COUNTS}, replicas BIGINT') AS said
  FROM (SELECT min(position) AS position, first(data) AS data
        FROM {{rows}} WHERE type = '{GOSSIP_SUMMARY}' GROUP BY source, id))
WHERE said.node IS NOT NULL AND said.ages IS NOT NULL
"""

_GOSSIP_STEPS = """
SELECT node, step[0] AS value, step[1] AS n
FROM (SELECT node, explode(ages.steps) AS step FROM {told})
"""

_GOSSIP_ROWS = """
SELECT rows.node, begin, end, covered, sent, received, first, replaced, replicas,
       age_timed, age_median, age_p90, age_p99, longest AS age_longest
FROM (SELECT node, min(since) AS begin, max(until) AS end, sum(until - since) AS covered,
             sum(aggregate(map_values(sent), 0L, (whole, n) -> whole + n)) AS sent,
             sum(aggregate(map_values(received), 0L, (whole, n) -> whole + n)) AS received,
             sum(first) AS first, sum(ages.count) AS replaced,
             max_by(replicas, struct(until, position)) AS replicas,
             max(if(ages.count > 0, ages.longest, NULL)) AS longest
      FROM {told} GROUP BY node) rows
LEFT JOIN {spread} spread ON spread.node = rows.node
ORDER BY rows.node
"""

_GOSSIP_MESSAGES = """
SELECT node, kind, sum(sent) AS sent, sum(received) AS received
FROM (
  SELECT node, kind, n AS sent, 0L AS received
  FROM {told} LATERAL VIEW explode(sent) counts AS kind, n
  UNION ALL
  SELECT node, kind, 0L, n FROM {told} LATERAL VIEW explode(received) counts AS kind, n
) GROUP BY node, kind ORDER BY node, kind
"""

_ANSWERS = f"""
SELECT broker, answer, counts.count AS count, counts.longest AS longest, counts.steps AS steps
FROM (
  SELECT said.broker AS broker, explode(said.answers) AS (answer, counts) FROM (
    SELECT from_json(data, 'broker STRING, answers MAP<STRING, {_COUNTS}>') AS said
    FROM (SELECT first(data) AS data
          FROM {{rows}} WHERE type = '{BROKER_SUMMARY}' GROUP BY source, id))
  WHERE said.broker IS NOT NULL)
"""

_ANSWER_STEPS = """
SELECT broker, answer, step[0] AS value, step[1] AS n
FROM (SELECT broker, answer, explode(steps) AS step FROM {told})
"""

_BROKER_ROWS = """
SELECT rows.broker, rows.answer, requests, response_us_timed, response_us_median,
       response_us_p90, response_us_p99, longest AS response_us_longest
FROM (SELECT broker, answer, sum(count) AS requests, max(longest) AS longest
      FROM {told} GROUP BY broker, answer) rows
LEFT JOIN {spread} spread ON spread.broker = rows.broker AND spread.answer = rows.answer
ORDER BY rows.broker, rows.answer
"""


def gossip_told(spark: SparkSession, summaries: DataFrame) -> DataFrame:
    """What nodes said of their gossip, a row for each stretch of time."""
    return spark.sql(_GOSSIP, rows=summaries)


def gossip_rows(spark: SparkSession, told: DataFrame) -> DataFrame:
    """Per node: messages, versions, and how old knowledge was when newer came."""
    steps = spark.sql(_GOSSIP_STEPS, told=told)
    spread = percentiles_of_counts(spark, steps, ["node"], "age")
    return spark.sql(_GOSSIP_ROWS, told=told, spread=spread)


def gossip_messages(spark: SparkSession, told: DataFrame) -> DataFrame:
    """Per node and kind of message."""
    return spark.sql(_GOSSIP_MESSAGES, told=told)


def broker_rows(spark: SparkSession, summaries: DataFrame) -> DataFrame:
    """Per broker and what its answers were: how long they took, in microseconds."""
    told = spark.sql(_ANSWERS, rows=summaries)
    steps = spark.sql(_ANSWER_STEPS, told=told)
    spread = percentiles_of_counts(spark, steps, ["broker", "answer"], "response_us")
    return spark.sql(_BROKER_ROWS, told=told, spread=spread)
