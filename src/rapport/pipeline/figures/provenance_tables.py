"""Where messages come from and what became of them, as edges of a graph, in Spark SQL.
[PI-6, CO-18]

Texts of messages and answers stay out: figures are passed on to more people than messages are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.communication.actions import ACTION_HOPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
FROM {messages} message JOIN {ledger} line ON line.message = message.message
WHERE line.state = 'escalated'
GROUP BY message.conversation, message.message, line.asked
UNION ALL
SELECT conversation, 'refers to', 'message', message, 'message', refers_to, '', '', time
FROM {messages} WHERE refers_to <> ''
UNION ALL
SELECT DISTINCT message.conversation, 'appended', 'message', message.message, 'event', event.id,
       event.channel, '', event.time
FROM {messages} message JOIN {appended} event ON event.cause = message.message
"""

_APPENDED = f"""
SELECT channel, id, time, replace(replace(headers['cause'], '%20', ' '), '%25', '%') AS cause
FROM {{rows}} WHERE headers['{ACTION_HOPS}'] IS NOT NULL
"""

# The newest conversations, as many as a page can show.
_NEWEST = """
SELECT edge.* FROM {edges} edge JOIN (
  SELECT conversation FROM {edges} WHERE relation = 'led to' OR from_kind = 'message'
  GROUP BY conversation ORDER BY max(time) DESC, conversation LIMIT {most}
) newest ON newest.conversation = edge.conversation
ORDER BY edge.conversation, edge.relation, edge.from_id, edge.to_id, edge.via LIMIT {edges_most}
"""

_SIZES = """
SELECT relation, edges, conversations FROM (
  SELECT relation, count(*) AS edges, count(DISTINCT conversation) AS conversations, 0 AS last
  FROM {edges} GROUP BY relation
  UNION ALL
  SELECT 'all', count(*), count(DISTINCT conversation), 1 FROM {edges} HAVING count(*) > 0
) ORDER BY last, relation
"""

EDGE_ORDER = "conversation, relation, from_id, to_id, via, time"


def appended_events(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Events that an action appended, and the readings made of them."""
    return spark.sql(_APPENDED, rows=rows)


def provenance(
    spark: SparkSession,
    *,
    messages: DataFrame,
    causes: DataFrame,
    deliveries: DataFrame,
    people: DataFrame,
    ledger: DataFrame,
    appended: DataFrame,
) -> DataFrame:
    """All edges."""
    return spark.sql(
        _EDGES,
        messages=messages,
        causes=causes,
        deliveries=deliveries,
        people=people,
        ledger=ledger,
        appended=appended,
    )


def newest_edges(
    spark: SparkSession, edges: DataFrame, *, conversations: int, most: int
) -> DataFrame:
    """The edges of the newest conversations, at most so many."""
    return spark.sql(_NEWEST, edges=edges, most=conversations, edges_most=most)


def edge_counts(spark: SparkSession, edges: DataFrame) -> DataFrame:
    """How many edges and conversations of each kind there are, and in all."""
    return spark.sql(_SIZES, edges=edges)
