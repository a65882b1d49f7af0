"""The questions the report asks of the lake, in Spark SQL: one result table each. [PI-6]

Delivery <- message <- detection <- reading are joined by their `cause` headers. Any channel may be
missing; its part of the answer is then empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rapport.pipeline.lake.files import read_bronze

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEDGER = """
SELECT coalesce(get_json_object(data, '$.message'), subject) AS message,
       coalesce(get_json_object(data, '$.peer'), '') AS peer,
       coalesce(get_json_object(data, '$.address'), '') AS address,
       coalesce(get_json_object(data, '$.adapter'), '') AS adapter,
       coalesce(CAST(get_json_object(data, '$.attempt') AS INT), 0) AS attempt,
       CASE WHEN get_json_object(data, '$.reason') LIKE 'action.unmapped%' THEN 'unmapped'
            ELSE coalesce(get_json_object(data, '$.result'), '') END AS result,
       replace(type, 'rapport.delivery.', '') AS state, time, position
FROM {log} WHERE type LIKE 'rapport.delivery.%'
"""

# The newest line of the ledger about an address is that delivery's state. Lines without an address
# speak of a person, lines without a person of the whole message.
_DELIVERIES = """
SELECT message, peer, address, max(adapter) AS adapter, max_by(state, position) AS state,
       max(attempt) AS attempts, max(result) AS result,
       min(CASE WHEN state IN ('handed', 'confirmed') THEN time END) AS handed_at,
       min(CASE WHEN state = 'answered' THEN time END) AS answered_at
FROM {ledger} GROUP BY message, peer, address ORDER BY message, peer, address
"""

_DETECTIONS = """
SELECT id, get_json_object(data, '$.policy') AS policy, time AS due_at, received AS detected_at,
       explode_outer(split(headers['cause'], ' ')) AS cause
FROM {detections} WHERE type = 'rapport.policy.detected'
"""

_DETECTION_COUNTS = """
SELECT policy, count(DISTINCT id) AS count, min(due_at) AS first, max(due_at) AS last
FROM {detections} GROUP BY policy ORDER BY policy
"""

# A reading keeps the source and id of the raw event it was made from; where raw events were not
# exported the reading itself stands in.
_READINGS = """
SELECT reading.id, reading.time, least(reading.received, raw.received) AS received
FROM {events} reading LEFT JOIN {raw} raw ON raw.source = reading.source AND raw.id = reading.id
"""

# The last reading is the one that completed the situation. Ids are unique per source only: a
# reading that came after the detection is another one's.
_CAUSED = """
SELECT found.id, found.policy, found.due_at, found.detected_at,
       max(reading.time) AS sensor_at, max(reading.received) AS received_at
FROM {detections} found
LEFT JOIN {readings} reading
       ON reading.id = replace(replace(found.cause, '%20', ' '), '%25', '%')
      AND reading.received <= found.detected_at
GROUP BY found.id, found.policy, found.due_at, found.detected_at
"""

_SENSOR_TO_PHONE = """
SELECT delivery.message, delivery.peer, delivery.address, delivery.adapter, caused.policy,
       caused.id AS detection, caused.sensor_at, caused.received_at, caused.due_at,
       caused.detected_at, delivery.handed_at
FROM {deliveries} delivery
JOIN (SELECT id, explode(split(headers['cause'], ' ')) AS cause
      FROM {log} WHERE type = 'rapport.message') message ON message.id = delivery.message
JOIN {caused} caused ON caused.id = message.cause
WHERE delivery.address <> '' AND delivery.handed_at IS NOT NULL
ORDER BY handed_at, message, peer, address
"""

_QUARANTINE = """
SELECT coalesce(get_json_object(data, '$.reason'), type) AS reason, count(*) AS count
FROM {quarantine} GROUP BY 1 ORDER BY count DESC, reason
"""

_TOTALS = """
SELECT (SELECT count(*) FROM {events}) AS readings,
       (SELECT count(*) FROM {log} WHERE type = 'rapport.message') AS messages,
       (SELECT count(*) FROM {detections} WHERE type = 'rapport.policy.late') AS late
"""


def result_tables(spark: SparkSession, lake: Path) -> dict[str, DataFrame]:
    """The result tables by name, not yet computed."""
    log, detected = read_bronze(spark, lake, "log"), read_bronze(spark, lake, "detections")
    events, raw = read_bronze(spark, lake, "events"), read_bronze(spark, lake, "raw.*")
    deliveries = spark.sql(_DELIVERIES, ledger=spark.sql(_LEDGER, log=log))
    detections = spark.sql(_DETECTIONS, detections=detected)
    readings = spark.sql(_READINGS, events=events, raw=raw)
    caused = spark.sql(_CAUSED, detections=detections, readings=readings)
    quarantine = read_bronze(spark, lake, "quarantine")
    return {
        "detections": spark.sql(_DETECTION_COUNTS, detections=detections),
        "deliveries": deliveries,
        "sensor_to_phone": spark.sql(
            _SENSOR_TO_PHONE, deliveries=deliveries, log=log, caused=caused
        ),
        "quarantine": spark.sql(_QUARANTINE, quarantine=quarantine),
        "totals": spark.sql(_TOTALS, events=events, log=log, detections=detected),
    }
