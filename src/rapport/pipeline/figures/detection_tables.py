"""What policies found, in Spark SQL: counts, hours, what was undecided, what came late, and the
time from the sensor to the phone. [PI-6]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.release import REEVALUATION
from rapport.pipeline.figures.percentiles import percentiles
from rapport.policy.engine.stream_steps import LATE_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The same finding always has the same id; found again after a crash it is the same one.
_FOUND = f"""
SELECT id, min(kind) AS kind, min(policy) AS policy, min(time) AS time, min(received) AS received,
       max(second_look) AS second_look, min(causes) AS causes, min(silent) AS silent
FROM (
  SELECT id, if(type = '{DETECTED}', 'detected', 'undecided') AS kind,
         coalesce(said.policy, '') AS policy, time, received,
         headers['{REEVALUATION}'] IS NOT NULL AS second_look, headers['cause'] AS causes,
         said.silent AS silent
  FROM (SELECT *, from_json(data, 'policy STRING, silent ARRAY<STRING>') AS said
        FROM {{rows}} WHERE type IN ('{DETECTED}', '{UNDECIDED}'))
) GROUP BY id
"""

_COUNTS = """
SELECT policy, count_if(kind = 'detected') AS count, count_if(kind = 'undecided') AS undecided,
       count_if(kind = 'detected' AND second_look) AS second_look,
       min(CASE WHEN kind = 'detected' THEN time END) AS first,
       max(CASE WHEN kind = 'detected' THEN time END) AS last
FROM {found} GROUP BY policy ORDER BY policy
"""

_HOURS = """
SELECT policy, time - pmod(time, 3600000) AS hour, count_if(kind = 'detected') AS detected,
       count_if(kind = 'undecided') AS undecided
FROM {found} GROUP BY 1, 2 ORDER BY policy, hour
"""

_SILENT = """
SELECT policy, silent, count(DISTINCT id) AS count
FROM (SELECT id, policy, explode(silent) AS silent FROM {found} WHERE kind = 'undecided')
GROUP BY policy, silent ORDER BY policy, silent
"""

_LATE = f"""
SELECT id AS verdict, min(said.id) AS id, min(coalesce(said.time, time)) AS time,
       min(received) AS received
FROM (SELECT id, time, received, from_json(data, 'id STRING, time BIGINT') AS said
      FROM {{rows}} WHERE type = '{LATE_TYPE}')
GROUP BY id
"""

# The verdict tells time and id only; of several sources with such a reading it means the one that
# had come last when it was told.
_LATE_COUNTS = """
SELECT source, count(*) AS count, min(time) AS first, max(time) AS last
FROM (
  SELECT {hint} late.verdict, min(late.time) AS time,
         coalesce(max(struct(reading.received, reading.of)).of, '') AS source
  FROM (SELECT id, time, received,
               coalesce(substr(headers['rawchannel'], 5), source) AS of
        FROM {{events}}) reading
  RIGHT JOIN {{late}} late
    ON reading.id = late.id AND reading.time = late.time AND reading.received <= late.received
  GROUP BY late.verdict
) GROUP BY source ORDER BY source
"""

_CAUSES = """
SELECT found.id, found.policy, found.time AS due_at, found.received AS detected_at,
       replace(replace(cause, '%20', ' '), '%25', '%') AS cause
FROM {found} found LATERAL VIEW explode(split(causes, ' ')) AS cause
WHERE kind = 'detected' AND causes <> ''
"""

# A reading keeps the source and id of the raw event it was made from; where raw events were not
# exported the reading itself stands in. Ids are unique per source only: a reading that came after
# the detection is another one's.
_READINGS = """
SELECT {hint} cause.id AS detection, reading.source, reading.id, reading.time, reading.received
FROM {{events}} reading JOIN {{causes}} cause
  ON reading.id = cause.cause AND reading.received <= cause.detected_at
"""

# The last reading is the one that completed the situation.
_COMPLETED = """
SELECT {hint} reading.detection, max(reading.time) AS sensor_at,
       max(least(reading.received, raw.received)) AS received_at
FROM {{raw}} raw RIGHT JOIN {{readings}} reading
  ON raw.source = reading.source AND raw.id = reading.id
GROUP BY reading.detection
"""

_SENSOR_TO_PHONE = """
SELECT delivery.message, delivery.peer, delivery.address, delivery.adapter, found.policy,
       found.id AS detection, completed.sensor_at, completed.received_at, found.time AS due_at,
       found.received AS detected_at, delivery.taken_at
FROM {deliveries} delivery
JOIN {messages} message ON message.message = delivery.message
JOIN {found} found ON found.id = message.detection AND found.kind = 'detected'
LEFT JOIN {completed} completed ON completed.detection = found.id
WHERE delivery.taken_at IS NOT NULL
"""

_TIMING = """
SELECT policy, taken_at - received_at AS from_door, taken_at - due_at AS after_due
FROM {rows} WHERE received_at IS NOT NULL
"""


def findings(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Detections and what is undecided, each once."""
    return spark.sql(_FOUND, rows=rows)


def detection_counts(spark: SparkSession, found: DataFrame) -> DataFrame:
    """Per policy."""
    return spark.sql(_COUNTS, found=found)


def detection_hours(spark: SparkSession, found: DataFrame) -> DataFrame:
    """Per policy and hour of event time."""
    return spark.sql(_HOURS, found=found)


def silent_sources(spark: SparkSession, found: DataFrame) -> DataFrame:
    """Per policy and source that should have been heard."""
    return spark.sql(_SILENT, found=found)


def late_readings(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """The verdicts *late*, each once."""
    return spark.sql(_LATE, rows=rows)


def late_counts(spark: SparkSession, late: DataFrame, events: DataFrame, *, few: bool) -> DataFrame:
    """Per source; `few` verdicts are taken to the readings instead of the other way round."""
    return spark.sql(_LATE_COUNTS.format(hint=_hint("late", few)), late=late, events=events)


def causes(spark: SparkSession, found: DataFrame) -> DataFrame:
    """Each detection with each of its causes."""
    return spark.sql(_CAUSES, found=found)


def caused_readings(
    spark: SparkSession, causes: DataFrame, events: DataFrame, *, few: bool
) -> DataFrame:
    """The readings that detections rest on; `few` causes are taken to the readings."""
    return spark.sql(_READINGS.format(hint=_hint("cause", few)), causes=causes, events=events)


def completed(spark: SparkSession, readings: DataFrame, raw: DataFrame, *, few: bool) -> DataFrame:
    """When each situation was completed, at the sensor and at the door."""
    return spark.sql(_COMPLETED.format(hint=_hint("reading", few)), readings=readings, raw=raw)


def sensor_to_phone(
    spark: SparkSession,
    *,
    deliveries: DataFrame,
    messages: DataFrame,
    found: DataFrame,
    completed: DataFrame,
) -> DataFrame:
    """One row per delivery that a medium took, with every time on its way."""
    return spark.sql(
        _SENSOR_TO_PHONE,
        deliveries=deliveries,
        messages=messages,
        found=found,
        completed=completed,
    )


def timings(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Per policy how long deliveries took whose readings the lake has."""
    timed = spark.sql(_TIMING, rows=rows)
    return percentiles(spark, timed, ["policy"], "from_door", "after_due").orderBy("policy")


def _hint(name: str, few: bool) -> str:
    """A small table goes to every worker, so that the large one stays where it is."""
    return f"/*+ BROADCAST({name}) */" if few else ""
