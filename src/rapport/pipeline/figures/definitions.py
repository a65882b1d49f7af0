"""Every figure of the report as SQL: facts taken from bronze, and tables made of facts.
[PI-6, CO-18, LK-4]

A *fact* is a narrow table that only grows: `facts.py` takes it from the events that bronze has
beyond the last run. Everything else is SQL over facts and other tables; `{name}` stands for one of
them. A line may stand in bronze twice and in any order: the tables deal with it. Percentiles are
exact: values are counted, then added up in order, which spills to disk where there are many.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.channel.validation import SUMMARIES
from rapport.communication.actions import ACTION_HOPS
from rapport.communication.ledger_events import UNMAPPED
from rapport.context.broker_status import BROKER_SUMMARY
from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.event import INTERPRETATION
from rapport.core.release import CORRECTS, REEVALUATION, RELEASED
from rapport.ensemble.runtime.gossip_summary import GOSSIP_SUMMARY
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE

MOST_GAPS = 10
"""Gaps of a channel that are named; the others are counted."""
SHOWN_CONVERSATIONS, SHOWN_EDGES = 8, 400
"""How much of the provenance comes to the driver, for the page; the rest stays in the lake."""
_STEPS_MS = tuple(
    minutes * 60_000 for minutes in (1, 5, 15, 60, 180, 720, 1_440, 10_080, 43_200, 525_600)
)
_MOST_STEPS = 160
"""Of the series of events per channel."""
_RANKS = {"median": 50, "p90": 90, "p99": 99}


class Fact(msgspec.Struct, frozen=True):
    """A table of gold, `facts.<name>`, that grows by what bronze has beyond it."""

    name: str
    channels: tuple[str, ...]
    """Names of channels, or patterns as `read_bronze` knows them; `given`: those of devices."""
    sql: str
    """Over `{rows}`, new events of these channels."""


class FigureTable(msgspec.Struct, frozen=True):
    """A table made of facts and of tables before it.

    `kind`: a `step` is a name for SQL; `kept` is computed once by the executors; `large` also goes
    to gold from there; `small` comes to the driver and goes to gold.
    """

    name: str
    sql: str
    kind: Literal["step", "kept", "large", "small"] = "step"
    order: str = ""


def spread_sql(rows: str, keys: str, *measures: str) -> str:
    """Of each group and each measure, a column of whole numbers: `<measure>_timed`, `_median`,
    `_p90`, `_p99` and `_longest`, nulls left out. A percentile is the smallest value that at least
    so many percent do not exceed.
    """
    stacked = ", ".join(f"'{measure}', {measure}" for measure in measures)
    counted = (
        f"SELECT {keys}, measure, value, count(*) AS n "
        f"FROM (SELECT {keys}, stack({len(measures)}, {stacked}) AS (measure, value) FROM {rows}) "
        f"WHERE value IS NOT NULL GROUP BY {keys}, measure, value"
    )
    return _ranked(counted, keys, measures)


def spread_of_counts_sql(rows: str, keys: str, measure: str) -> str:
    """The same for values that were counted before: `rows` has `value`, and `n` times of it."""
    counted = f"SELECT {keys}, '{measure}' AS measure, value, sum(n) AS n FROM {rows} GROUP BY ALL"
    return _ranked(counted, keys, [measure])


def _ranked(counted: str, keys: str, measures: tuple[str, ...] | list[str]) -> str:
    parts = []
    for measure in measures:
        of_it = f"FILTER (WHERE measure = '{measure}')"
        parts.append(f"max(whole) {of_it} AS {measure}_timed")
        parts += [
            f"min(CASE WHEN upto * 100 >= whole * {percent} THEN value END) {of_it} "
            f"AS {measure}_{name}"
            for name, percent in _RANKS.items()
        ]
        parts.append(f"max(value) {of_it} AS {measure}_longest")
    return (
        f"SELECT {keys}, {', '.join(parts)} FROM ("
        f"SELECT *, sum(n) OVER (PARTITION BY {keys}, measure ORDER BY value) AS upto, "
        f"sum(n) OVER (PARTITION BY {keys}, measure) AS whole FROM ({counted})) GROUP BY {keys}"
    )


# --- facts ---

_MINUTES = """
SELECT channel, received - pmod(received, 60000) AS minute, count(*) AS events,
       min(received) AS first, max(received) AS last, min(position) AS first_position,
       max(position) AS last_position
FROM {rows} GROUP BY 1, 2
"""

_DELAYS = """
SELECT channel, source, received - time AS value, count(*) AS n FROM {rows} GROUP BY ALL
"""

# The same finding always has the same id; found again after a crash it is the same one.
_FOUND = f"""
SELECT id, if(type = '{DETECTED}', 'detected', 'undecided') AS kind,
       coalesce(said.policy, '') AS policy, time, received,
       headers['{REEVALUATION}'] IS NOT NULL AS second_look, headers['cause'] AS causes,
       said.silent AS silent,
       array_min(transform(said.causes, cause -> CAST(cause[0] AS BIGINT))) AS earliest
FROM (SELECT *, from_json(data, 'policy STRING, silent ARRAY<STRING>,
                causes ARRAY<ARRAY<STRING>>') AS said
      FROM {{rows}} WHERE type IN ('{DETECTED}', '{UNDECIDED}'))
"""

_LATE = f"""
SELECT id AS verdict, said.id AS id, coalesce(said.time, time) AS time, received
FROM (SELECT id, time, received, from_json(data, 'id STRING, time BIGINT') AS said
      FROM {{rows}} WHERE type = '{LATE_TYPE}')
"""

# A message with one delivery has no event of its own for queueing: the event of the message names
# the receiver. An answer to a message without a record carries its own time.
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
      FROM {{rows}} WHERE type LIKE 'rapport.delivery.%' OR type = 'rapport.message')
WHERE type <> 'rapport.message' OR line.peer <> '' OR line.answered > 0
"""

_WRITTEN = """
SELECT id AS message, coalesce(said.policy, '') AS policy,
       coalesce(said.detection, '') AS detection, coalesce(said.`conversation-id`, '') AS conversation,
       coalesce(said.`refers-to`, '') AS refers_to, time
FROM (SELECT *, from_json(data, 'policy STRING, detection STRING, `conversation-id` STRING,
                `refers-to` STRING') AS said
      FROM {rows} WHERE type = 'rapport.message')
"""  # noqa: E501

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

_MEDIATED = f"""
SELECT coalesce(substr(headers['rawchannel'], 5), source) AS source,
       coalesce(headers['{INTERPRETATION}'], '') AS interpretation, count(*) AS readings,
       count(headers['{RELEASED}']) AS released, count(headers['{CORRECTS}']) AS corrections
FROM {{rows}} GROUP BY ALL
"""

_SUMMARIES = f"""
SELECT source, id, type, position, data FROM {{rows}}
WHERE type IN ('{GOSSIP_SUMMARY}', '{BROKER_SUMMARY}')
"""

_APPENDED = f"""
SELECT channel, id, time, replace(replace(headers['cause'], '%20', ' '), '%25', '%') AS cause
FROM {{rows}} WHERE headers['{ACTION_HOPS}'] IS NOT NULL
"""

FACTS = (
    Fact("channel_minutes", ("*",), _MINUTES),
    Fact("delays", ("given",), _DELAYS),
    Fact("found", ("detections",), _FOUND),
    Fact("late", ("detections",), _LATE),
    Fact("ledger", ("log",), _LEDGER),
    Fact("written", ("log",), _WRITTEN),
    Fact("held", ("quarantine",), _HELD),
    Fact("mediated", ("events",), _MEDIATED),
    Fact("summaries", (SUMMARIES,), _SUMMARIES),
    Fact("appended", ("*",), _APPENDED),
)


# --- facts that join: findings and verdicts with the readings they speak of ---

FOUND = """
SELECT id, min(kind) AS kind, min(policy) AS policy, min(time) AS time, min(received) AS received,
       max(second_look) AS second_look, min(causes) AS causes, min(silent) AS silent,
       min(coalesce(earliest, 0)) AS earliest
FROM {facts_found} GROUP BY id
"""

CAUSES = """
SELECT found.id, found.policy, found.time AS due_at, found.received AS detected_at, found.earliest,
       replace(replace(cause, '%20', ' '), '%25', '%') AS cause
FROM {found} found LATERAL VIEW explode(split(causes, ' ')) AS cause
WHERE kind = 'detected' AND causes <> ''
"""

# A reading keeps the source and id of the raw event it was made from; where raw events were not
# exported the reading itself stands in. Ids are unique per source only: a reading that came after
# the detection is another one's. The last reading is the one that completed the situation.
COMPLETED = """
SELECT reading.detection AS id, min(reading.detected_at) AS at, max(reading.time) AS sensor_at,
       max(least(reading.received, raw.received)) AS received_at
FROM (SELECT cause.id AS detection, cause.detected_at, reading.source, reading.id, reading.time,
             reading.received
      FROM {events} reading JOIN {open} cause
        ON reading.id = cause.cause AND reading.received <= cause.detected_at) reading
LEFT JOIN {raw} raw ON raw.source = reading.source AND raw.id = reading.id
GROUP BY reading.detection
"""

LATE_VERDICTS = """
SELECT verdict, min(id) AS id, min(time) AS time, min(received) AS received
FROM {facts_late} GROUP BY verdict
"""

# The verdict tells time and id only; of several sources with such a reading it means the one that
# had come last when it was told.
LATE_SOURCES = """
SELECT late.verdict AS id, min(late.received) AS at,
       max(struct(reading.received, reading.of)).of AS source
FROM (SELECT id, time, received, coalesce(substr(headers['rawchannel'], 5), source) AS of
      FROM {events}) reading
JOIN {open} late
  ON reading.id = late.id AND reading.time = late.time AND reading.received <= late.received
GROUP BY late.verdict
"""


# --- channels ---

_ALL_MINUTES = """
SELECT channel, minute, sum(events) AS events, min(first) AS first, max(last) AS last,
       min(first_position) AS first_position, max(last_position) AS last_position
FROM {facts_channel_minutes} GROUP BY channel, minute
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
           FROM {all_gaps} GROUP BY channel) gaps ON gaps.channel = minutes.channel
ORDER BY minutes.channel
"""

_LONGEST_GAPS = f"""
SELECT channel, begin, end, duration FROM {{all_gaps}} WHERE rank <= {MOST_GAPS}
ORDER BY channel, rank
"""

# The finest step that shows the whole time in not too many.
_SERIES = f"""
SELECT channel, minute - pmod(minute, step) AS begin, sum(events) AS events, min(step) AS step
FROM {{minutes}} CROSS JOIN (
  SELECT coalesce(min(step), {_STEPS_MS[-1]}) AS step FROM (
    SELECT explode(array({", ".join(map(str, _STEPS_MS))})) AS step, max(last) - min(first) AS span
    FROM {{channels}})
  WHERE span <= step * {_MOST_STEPS})
GROUP BY channel, minute - pmod(minute, step) ORDER BY channel, begin
"""

_DELAY_ROWS = f"""
SELECT counts.*, spread.* EXCEPT (channel, source)
FROM (SELECT channel, source, sum(n) AS events,
             coalesce(sum(n) FILTER (WHERE value < 0), 0) AS ahead
      FROM {{facts_delays}} GROUP BY channel, source) counts
JOIN ({spread_of_counts_sql("{facts_delays}", "channel, source", "delay")}) spread
  ON spread.channel = counts.channel AND spread.source = counts.source
ORDER BY counts.channel, counts.source
"""


# --- findings ---

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

_LATE_COUNTS = """
SELECT source, count(*) AS count, min(time) AS first, max(time) AS last
FROM (SELECT late.time, coalesce(resolved.source, '') AS source
      FROM {late_verdicts} late LEFT JOIN {late_sources} resolved ON resolved.id = late.verdict)
GROUP BY source ORDER BY source
"""


# --- the ledger ---

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
FROM {facts_ledger} WHERE address <> '' GROUP BY message, peer, address
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
  FROM {facts_ledger} WHERE peer <> '' GROUP BY message, peer
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

_PEERS = f"""
SELECT counts.*, spread.* EXCEPT (peer)
FROM ({_PEER_COUNTS}) counts
LEFT JOIN ({spread_sql("{people}", "peer", "response")}) spread ON spread.peer = counts.peer
ORDER BY counts.peer
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
FROM {timed_deliveries} GROUP BY adapter
"""

_ADAPTERS = f"""
SELECT counts.*, spread.* EXCEPT (adapter)
FROM ({_ADAPTER_COUNTS}) counts
LEFT JOIN ({spread_sql("{timed_deliveries}", "adapter", "handing", "response")}) spread
  ON spread.adapter = counts.adapter
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
      FROM {facts_written} GROUP BY message) written
FULL OUTER JOIN (
  SELECT message, max(policy) AS policy, max(detection) AS detection, min(time) AS time,
         max(unmapped) AS unmapped, max(state IN ('handed', 'confirmed')) AS handed,
         max(state = 'confirmed') AS confirmed, max(state = 'answered') AS answered,
         max(state = 'escalated') AS escalated,
         max_by(result, position) FILTER (WHERE result <> '') AS result
  FROM {facts_ledger} GROUP BY message
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


# --- mediation ---

_QUARANTINE = """
SELECT reason, source, interpretation, found_by, count(DISTINCT place) AS count,
       count(DISTINCT id) AS times, min(received) AS first, max(received) AS last
FROM {facts_held} GROUP BY reason, source, interpretation, found_by
ORDER BY count DESC, reason, source, interpretation, found_by
"""

_MEDIATION = """
SELECT source, interpretation, sum(readings) AS readings, sum(released) AS released,
       sum(corrections) AS corrections, sum(rejected) AS rejected, sum(set_aside) AS set_aside
FROM (
  SELECT source, interpretation, readings, released, corrections, 0 AS rejected, 0 AS set_aside
  FROM {facts_mediated}
  UNION ALL
  SELECT source, interpretation, 0, 0, 0,
         count(DISTINCT CASE WHEN found_by = 'mediation' THEN place END),
         count(DISTINCT CASE WHEN found_by = 'policy' THEN place END)
  FROM {facts_held} GROUP BY source, interpretation
) GROUP BY source, interpretation ORDER BY source, interpretation
"""


# --- from the sensor to the phone ---

_SENSOR_TO_PHONE = """
SELECT delivery.message, delivery.peer, delivery.address, delivery.adapter, found.policy,
       found.id AS detection, completed.sensor_at, completed.received_at, found.time AS due_at,
       found.received AS detected_at, delivery.taken_at
FROM {deliveries} delivery
JOIN {messages} message ON message.message = delivery.message
JOIN {found} found ON found.id = message.detection AND found.kind = 'detected'
LEFT JOIN {completed} completed ON completed.id = found.id
WHERE delivery.taken_at IS NOT NULL
"""

_TIMINGS = f"""
{
    spread_sql(
        "(SELECT policy, taken_at - received_at AS from_door, taken_at - due_at AS after_due "
        "FROM {sensor_to_phone} WHERE received_at IS NOT NULL)",
        "policy",
        "from_door",
        "after_due",
    )
} ORDER BY policy
"""


# --- gossip and brokers: a percentile is the step that it falls into ---

_HISTOGRAM = "STRUCT<count: BIGINT, longest: BIGINT, steps: ARRAY<ARRAY<BIGINT>>>"

# A line that stands there twice says the same and counts once.
_GOSSIP = f"""
SELECT position, said.* FROM (
  SELECT position, from_json(data, 'node STRING, since BIGINT, until BIGINT,
             sent MAP<STRING, BIGINT>, received MAP<STRING, BIGINT>, first BIGINT,
             ages {_HISTOGRAM}, replicas BIGINT') AS said
  FROM (SELECT min(position) AS position, first(data) AS data
        FROM {{facts_summaries}} WHERE type = '{GOSSIP_SUMMARY}' GROUP BY source, id))
WHERE said.node IS NOT NULL AND said.ages IS NOT NULL
"""

_GOSSIP_STEPS = """
SELECT node, step[0] AS value, step[1] AS n
FROM (SELECT node, explode(ages.steps) AS step FROM {gossip_lines})
"""

_GOSSIP_ROWS = f"""
SELECT rows.node, begin, end, covered, sent, received, first, replaced, replicas,
       age_timed, age_median, age_p90, age_p99, longest AS age_longest
FROM (SELECT node, min(since) AS begin, max(until) AS end, sum(until - since) AS covered,
             sum(aggregate(map_values(sent), 0L, (whole, n) -> whole + n)) AS sent,
             sum(aggregate(map_values(received), 0L, (whole, n) -> whole + n)) AS received,
             sum(first) AS first, sum(ages.count) AS replaced,
             max_by(replicas, struct(until, position)) AS replicas,
             max(if(ages.count > 0, ages.longest, NULL)) AS longest
      FROM {{gossip_lines}} GROUP BY node) rows
LEFT JOIN ({spread_of_counts_sql(f"({_GOSSIP_STEPS})", "node", "age")}) spread
  ON spread.node = rows.node
ORDER BY rows.node
"""

_GOSSIP_MESSAGES = """
SELECT node, kind, sum(sent) AS sent, sum(received) AS received
FROM (
  SELECT node, kind, n AS sent, 0L AS received
  FROM {gossip_lines} LATERAL VIEW explode(sent) counts AS kind, n
  UNION ALL
  SELECT node, kind, 0L, n FROM {gossip_lines} LATERAL VIEW explode(received) counts AS kind, n
) GROUP BY node, kind ORDER BY node, kind
"""

_ANSWERS = f"""
SELECT broker, answer, counts.count AS count, counts.longest AS longest, counts.steps AS steps
FROM (
  SELECT said.broker AS broker, explode(said.answers) AS (answer, counts) FROM (
    SELECT from_json(data, 'broker STRING, answers MAP<STRING, {_HISTOGRAM}>') AS said
    FROM (SELECT first(data) AS data
          FROM {{facts_summaries}} WHERE type = '{BROKER_SUMMARY}' GROUP BY source, id))
  WHERE said.broker IS NOT NULL)
"""

_ANSWER_STEPS = """
SELECT broker, answer, step[0] AS value, step[1] AS n
FROM (SELECT broker, answer, explode(steps) AS step FROM {answers})
"""

_BROKER_ROWS = f"""
SELECT rows.broker, rows.answer, requests, response_us_timed, response_us_median,
       response_us_p90, response_us_p99, longest AS response_us_longest
FROM (SELECT broker, answer, sum(count) AS requests, max(longest) AS longest
      FROM {{answers}} GROUP BY broker, answer) rows
LEFT JOIN (
  {spread_of_counts_sql(f"({_ANSWER_STEPS})", "broker, answer", "response_us")}
) spread
  ON spread.broker = rows.broker AND spread.answer = rows.answer
ORDER BY rows.broker, rows.answer
"""


# --- provenance: texts of messages stay out, figures are passed on to more people ---

_EDGES = """
SELECT DISTINCT message.conversation, 'shows' AS relation, 'reading' AS from_kind,
       cause.cause AS from_id, 'detection' AS to_kind, cause.id AS to_id, '' AS via, '' AS state,
       cause.due_at AS time
FROM {messages} message JOIN {causes} cause ON cause.id = message.detection
UNION ALL
SELECT conversation, 'led to', 'detection', detection, 'message', message, policy, result, time
FROM {messages} WHERE detection <> ''
UNION ALL
SELECT message.conversation, 'told', 'message', message.message, 'peer', delivery.peer,
       delivery.adapter, delivery.state, coalesce(delivery.taken_at, delivery.queued_at)
FROM {messages} message JOIN {deliveries} delivery ON delivery.message = message.message
UNION ALL
SELECT message.conversation, 'answered', 'peer', person.peer, 'message', message.message, '', '',
       person.answered_at
FROM {messages} message JOIN {people} person ON person.message = message.message
WHERE person.answered_at IS NOT NULL
UNION ALL
SELECT message.conversation, 'escalated', 'message', message.message, 'receiver', line.asked, '',
       '', min(line.time)
FROM {messages} message JOIN {facts_ledger} line ON line.message = message.message
WHERE line.state = 'escalated'
GROUP BY message.conversation, message.message, line.asked
UNION ALL
SELECT conversation, 'refers to', 'message', message, 'message', refers_to, '', '', time
FROM {messages} WHERE refers_to <> ''
UNION ALL
SELECT DISTINCT message.conversation, 'appended', 'message', message.message, 'event', event.id,
       event.channel, '', event.time
FROM {messages} message JOIN {facts_appended} event ON event.cause = message.message
"""

# The newest conversations, as many as a page can show.
_NEWEST = f"""
SELECT edge.* FROM {{provenance}} edge JOIN (
  SELECT conversation FROM {{provenance}} WHERE relation = 'led to' OR from_kind = 'message'
  GROUP BY conversation ORDER BY max(time) DESC, conversation LIMIT {SHOWN_CONVERSATIONS}
) newest ON newest.conversation = edge.conversation
ORDER BY edge.conversation, edge.relation, edge.from_id, edge.to_id, edge.via LIMIT {SHOWN_EDGES}
"""

_SIZES = """
SELECT relation, edges, conversations FROM (
  SELECT relation, count(*) AS edges, count(DISTINCT conversation) AS conversations, 0 AS last
  FROM {provenance} GROUP BY relation
  UNION ALL
  SELECT 'all', count(*), count(DISTINCT conversation), 1 FROM {provenance} HAVING count(*) > 0
) ORDER BY last, relation
"""

TABLES = (
    FigureTable("minutes", _ALL_MINUTES, "kept"),
    FigureTable("all_gaps", _GAPS),
    FigureTable("channels", _CHANNELS, "small"),
    FigureTable("series", _SERIES, "small"),
    FigureTable("channel_gaps", _LONGEST_GAPS, "small"),
    FigureTable("delays", _DELAY_ROWS, "small"),
    FigureTable("detections", _COUNTS, "small"),
    FigureTable("detections_by_hour", _HOURS, "small"),
    FigureTable("undecided", _SILENT, "small"),
    FigureTable("late", _LATE_COUNTS, "small"),
    FigureTable("deliveries", _DELIVERIES, "large", "message, peer, address"),
    FigureTable("people", _PEOPLE, "large", "message, peer"),
    FigureTable("messages", _MESSAGES, "large", "message"),
    FigureTable("peers", _PEERS, "small"),
    FigureTable("timed_deliveries", _TIMED_DELIVERIES),
    FigureTable("adapters", _ADAPTERS, "small"),
    FigureTable("states", _STATES, "small"),
    FigureTable("funnel", _FUNNEL, "small"),
    FigureTable("quarantine", _QUARANTINE, "small"),
    FigureTable("mediation", _MEDIATION, "small"),
    FigureTable("sensor_to_phone", _SENSOR_TO_PHONE, "large", "taken_at, message, peer, address"),
    FigureTable("timings", _TIMINGS, "small"),
    FigureTable("gossip_lines", _GOSSIP),
    FigureTable("gossip", _GOSSIP_ROWS, "small"),
    FigureTable("gossip_messages", _GOSSIP_MESSAGES, "small"),
    FigureTable("answers", _ANSWERS),
    FigureTable("brokers", _BROKER_ROWS, "small"),
    FigureTable("provenance", _EDGES, "large", "conversation, relation, from_id, to_id, via, time"),
    FigureTable("edges", _NEWEST, "small"),
    FigureTable("edge_counts", _SIZES, "small"),
)
"""In an order in which each table comes after those it is made of. `found`, `causes`, `completed`,
`late_verdicts` and `late_sources` are there before them (`facts.py`)."""
