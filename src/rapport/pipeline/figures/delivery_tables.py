"""What the ledger says, in Spark SQL: deliveries, people, messages, and how far they went.
[PI-6, CO-18]

The ledger is parsed once; lines that stand there twice change nothing, and no order of the lines is
taken for granted but that the newest line about an address is its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.communication.ledger_events import UNMAPPED
from rapport.pipeline.figures.percentiles import percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The event of a message with one delivery names whom that was queued for, and stands for the line
# that would say so; that of an answer to a message of which nothing is kept says when it was given.
_LEDGER = f"""
SELECT CASE WHEN line.answered > 0 THEN line.`refers-to` WHEN type = 'rapport.message' THEN id
            ELSE coalesce(nullif(line.message, ''), subject) END AS message,
       CASE WHEN line.answered > 0 THEN regexp_replace(line.sender, '^peer:', '')
            ELSE coalesce(line.peer, '') END AS peer,
       coalesce(line.address, '') AS address, coalesce(line.adapter, '') AS adapter,
       coalesce(line.policy, '') AS policy, coalesce(line.detection, '') AS detection,
       CASE WHEN line.peer <> '' AND type = 'rapport.message' THEN 1
            ELSE coalesce(line.attempt, 0) END AS attempt,
       coalesce(line.until, 0) AS until,
       coalesce(line.result, '') AS result,
       startswith(coalesce(line.reason, ''), '{UNMAPPED}') AS unmapped,
       CASE WHEN type = 'rapport.delivery.escalated' THEN coalesce(line.receiver, '') ELSE '' END
         AS asked, coalesce(line.queued, 0) AS queued,
       CASE WHEN line.answered > 0 THEN 'answered' WHEN type = 'rapport.message' THEN 'queued'
            ELSE replace(type, 'rapport.delivery.', '') END AS state,
       CASE WHEN line.answered > 0 THEN line.answered ELSE time END AS time, position
FROM (SELECT *, from_json(data, 'message STRING, peer STRING, address STRING, adapter STRING,
                policy STRING, detection STRING, attempt BIGINT, until BIGINT, result STRING,
                reason STRING, receiver STRING, queued BIGINT, sender STRING,
                `refers-to` STRING, answered BIGINT') AS line
      FROM {{log}} WHERE type LIKE 'rapport.delivery.%' OR type = 'rapport.message')
WHERE type <> 'rapport.message' OR line.peer <> '' OR line.answered > 0
"""

_WRITTEN = """
SELECT id AS message, coalesce(said.policy, '') AS policy,
       coalesce(said.detection, '') AS detection, coalesce(said.`conversation-id`, '') AS conversation,
       coalesce(said.`refers-to`, '') AS refers_to, time
FROM (SELECT *, from_json(data, 'policy STRING, detection STRING, `conversation-id` STRING,
                `refers-to` STRING') AS said
      FROM {log} WHERE type = 'rapport.message')
"""  # noqa: E501

# One line may stand for two: that of a message of which nothing else is remembered says when it was
# queued, and closes it.
_DELIVERIES = """
SELECT message, peer, address, max(adapter) AS adapter, max(policy) AS policy,
       max(detection) AS detection, max_by(state, position) AS state,
       max_by(until, position) AS again_at, max(attempt) AS attempts,
       count(DISTINCT CASE WHEN state = 'failed' THEN attempt END) AS failed_attempts,
       min(CASE WHEN state = 'queued' THEN time WHEN queued > 0 THEN queued END) AS queued_at,
       min(CASE WHEN state = 'handed' THEN time END) AS handed_at,
       min(CASE WHEN state = 'confirmed' THEN time END) AS confirmed_at,
       min(CASE WHEN state IN ('handed', 'confirmed') THEN time END) AS taken_at
FROM {ledger} WHERE address <> '' GROUP BY message, peer, address
"""

# Lines without an address speak of the person.
_PEOPLE = """
SELECT *, CASE WHEN answered_at >= taken_at THEN answered_at - taken_at END AS response
FROM (
  SELECT message, peer, max(policy) AS policy,
         min(CASE WHEN state IN ('handed', 'confirmed') THEN time END) AS taken_at,
         min(CASE WHEN state = 'answered' THEN time END) AS answered_at,
         max(state = 'failed' AND address = '') AS failed,
         max(state = 'timed_out' AND address = '') AS timed_out,
         max(state = 'refused' AND address = '') AS refused,
         max(state = 'held' AND address = '') AS held
  FROM {ledger} WHERE peer <> '' GROUP BY message, peer
)
"""

_PEER_COUNTS = """
SELECT peer, count(*) AS asked, count(taken_at) AS reached, count(answered_at) AS answered,
       count_if(taken_at IS NOT NULL AND answered_at IS NULL) AS unanswered,
       count_if(taken_at IS NULL AND answered_at IS NULL) AS unreached,
       count_if(failed) AS failed, count_if(timed_out) AS timed_out, count_if(refused) AS refused,
       count_if(held) AS held
FROM {people} GROUP BY peer
"""

_PEERS = """
SELECT counts.*, spread.* EXCEPT (peer)
FROM {counts} counts LEFT JOIN {spread} spread ON spread.peer = counts.peer ORDER BY counts.peer
"""

_TIMED_DELIVERIES = """
SELECT delivery.*, coalesce(person.timed_out, false) AS timed_out, person.answered_at,
       CASE WHEN delivery.taken_at >= delivery.queued_at
            THEN delivery.taken_at - delivery.queued_at END AS handing,
       CASE WHEN person.answered_at >= delivery.taken_at
            THEN person.answered_at - delivery.taken_at END AS response
FROM {deliveries} delivery
LEFT JOIN {people} person ON person.message = delivery.message AND person.peer = delivery.peer
"""

_ADAPTER_COUNTS = """
SELECT adapter, count(*) AS deliveries, sum(attempts) AS attempts,
       sum(failed_attempts) AS failed_attempts, count(taken_at) AS reached,
       count(confirmed_at) AS confirmed, count_if(state = 'failed' AND again_at = 0) AS failed,
       count_if(state IN ('queued', 'unknown') OR (state = 'failed' AND again_at <> 0)) AS waiting,
       count_if(state = 'closed') AS stopped,
       count_if(timed_out AND taken_at IS NOT NULL) AS timed_out,
       count_if(answered_at IS NOT NULL AND taken_at IS NOT NULL) AS answered
FROM {deliveries} GROUP BY adapter
"""

_ADAPTERS = """
SELECT counts.*, spread.* EXCEPT (adapter)
FROM {counts} counts LEFT JOIN {spread} spread ON spread.adapter = counts.adapter
ORDER BY counts.adapter
"""

_STATES = """
SELECT adapter, state, count(*) AS count FROM {deliveries} GROUP BY adapter, state
ORDER BY adapter, state
"""

# A message may be known by its own event, by lines of the ledger, or by both. Closed is the last
# word about it.
_MESSAGES = """
SELECT coalesce(written.message, told.message) AS message,
       coalesce(nullif(told.policy, ''), written.policy, '') AS policy,
       coalesce(nullif(told.detection, ''), written.detection, '') AS detection,
       coalesce(nullif(written.conversation, ''), nullif(told.detection, ''),
                nullif(written.detection, ''), written.message, told.message) AS conversation,
       coalesce(written.refers_to, '') AS refers_to, coalesce(written.time, told.time) AS time,
       written.message IS NOT NULL AS written, coalesce(told.unmapped, false) AS unmapped,
       coalesce(told.handed, false) AS handed, coalesce(told.confirmed, false) AS confirmed,
       coalesce(told.answered, false) AS answered, coalesce(told.escalated, false) AS escalated,
       CASE WHEN told.unmapped THEN 'unmapped' ELSE coalesce(told.result, 'open') END AS result
FROM (SELECT message, max(policy) AS policy, max(detection) AS detection,
             max(conversation) AS conversation, max(refers_to) AS refers_to, min(time) AS time
      FROM {written} GROUP BY message) written
FULL OUTER JOIN (
  SELECT message, max(policy) AS policy, max(detection) AS detection, min(time) AS time,
         max(unmapped) AS unmapped, max(state IN ('handed', 'confirmed')) AS handed,
         max(state = 'confirmed') AS confirmed, max(state = 'answered') AS answered,
         max(state = 'escalated') AS escalated,
         max_by(result, position) FILTER (WHERE result <> '') AS result
  FROM {ledger} GROUP BY message
) told ON told.message = written.message
"""

_FUNNEL = """
SELECT coalesce(found.policy, said.policy) AS policy, coalesce(found.count, 0) AS detected,
       coalesce(said.with_message, 0) AS with_message, coalesce(said.messages, 0) AS messages,
       coalesce(said.missing, 0) AS missing, coalesce(said.handed, 0) AS handed,
       coalesce(said.confirmed, 0) AS confirmed, coalesce(said.answered, 0) AS answered,
       coalesce(said.escalated, 0) AS escalated, coalesce(said.done, 0) AS done,
       coalesce(said.failed, 0) AS failed, coalesce(said.timed_out, 0) AS timed_out,
       coalesce(said.open, 0) AS open, coalesce(said.unmapped, 0) AS unmapped
FROM {detections} found FULL OUTER JOIN (
  SELECT policy, count(DISTINCT CASE WHEN NOT unmapped THEN nullif(detection, '') END)
             AS with_message,
         count_if(NOT unmapped) AS messages, count_if(NOT unmapped AND NOT written) AS missing,
         count_if(handed) AS handed, count_if(confirmed) AS confirmed,
         count_if(answered) AS answered, count_if(escalated) AS escalated,
         count_if(result = 'done') AS done, count_if(result = 'failed') AS failed,
         count_if(result = 'timed_out') AS timed_out, count_if(result = 'open') AS open,
         count_if(unmapped) AS unmapped
  FROM {messages} GROUP BY policy
) said ON said.policy = found.policy
ORDER BY policy
"""


def ledger_lines(spark: SparkSession, log: DataFrame) -> DataFrame:
    """The lines of the ledger with their fields as columns."""
    return spark.sql(_LEDGER, log=log)


def written_messages(spark: SparkSession, log: DataFrame) -> DataFrame:
    """The messages by their own events."""
    return spark.sql(_WRITTEN, log=log)


def deliveries(spark: SparkSession, ledger: DataFrame) -> DataFrame:
    """One row per message, peer and address."""
    return spark.sql(_DELIVERIES, ledger=ledger)


def people(spark: SparkSession, ledger: DataFrame) -> DataFrame:
    """One row per message and peer who was asked."""
    return spark.sql(_PEOPLE, ledger=ledger)


def messages(spark: SparkSession, written: DataFrame, ledger: DataFrame) -> DataFrame:
    """One row per message, and per action that is mapped to nothing."""
    return spark.sql(_MESSAGES, written=written, ledger=ledger)


def peer_rows(spark: SparkSession, people: DataFrame) -> DataFrame:
    """Reliability and response time of each peer."""
    spread = percentiles(spark, people, ["peer"], "response")
    return spark.sql(_PEERS, counts=spark.sql(_PEER_COUNTS, people=people), spread=spread)


def adapter_rows(spark: SparkSession, deliveries: DataFrame, people: DataFrame) -> DataFrame:
    """Reliability and times of each adapter."""
    timed = spark.sql(_TIMED_DELIVERIES, deliveries=deliveries, people=people)
    return spark.sql(
        _ADAPTERS,
        counts=spark.sql(_ADAPTER_COUNTS, deliveries=timed),
        spread=percentiles(spark, timed, ["adapter"], "handing", "response"),
    )


def delivery_states(spark: SparkSession, deliveries: DataFrame) -> DataFrame:
    """How many deliveries of each adapter are in each state now."""
    return spark.sql(_STATES, deliveries=deliveries)


def funnel_rows(spark: SparkSession, detections: DataFrame, messages: DataFrame) -> DataFrame:
    """How far the findings of each policy went."""
    return spark.sql(_FUNNEL, detections=detections, messages=messages)
