"""On Spark: the same answers as DuckDB's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.query import ask_duckdb

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event
from rapport.pipeline.lake.query_spark import ask_spark
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

Reading = Callable[..., Event]
DAY = 86_400_000


@pytest.fixture
def events(given_reading: Reading, begin: int) -> list[Event]:
    """Readings of two streams over three days, some of them bad, some corrected."""
    found = [given_reading(str(n), begin + n * DAY // 20, [n, 2]) for n in range(60)]
    found += [
        given_reading(f"w{n}", begin + n, [n], stream="room.warmth", source="room_warmth")
        for n in range(30)
    ]
    found += [given_reading("bad", begin, ["x"]), given_reading("5~a", begin, [9, 9], corrects="5")]
    return found


def test_spark_and_duckdb_give_the_same_answers(
    spark: SparkSession, filled: Any, ontology: Ontology, events: list[Event]
) -> None:
    filled.fill(*events)
    update_silver(None, filled.path, ontology)
    for sql in (
        "SELECT status, count(*) AS n, sum(x) AS s FROM person_position GROUP BY 1 ORDER BY 1",
        "SELECT e.position, e.data, w.value FROM events e JOIN room_warmth w USING (position) "
        "ORDER BY 1",
        "SELECT reason, hint, data FROM quarantined",
        "WITH p AS (SELECT max(time) AS t FROM person_position) SELECT t FROM p",
    ):
        assert (
            ask_spark(spark, filled.path, sql).table.to_pylist()
            == ask_duckdb(filled.path, sql).table.to_pylist()
        )
    compact(filled.path, fewest=2)
    assert ask_spark(spark, filled.path, "SELECT count(*) AS n FROM events").table.to_pylist() == [
        {"n": len(events)}
    ]


def test_spark_answers_questions_only(
    spark: SparkSession, filled: Any, ontology: Ontology, events: list[Event]
) -> None:
    filled.fill(*events)
    for sql in (
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW events",
        "INSERT OVERWRITE DIRECTORY 'never' USING csv SELECT 1",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "SET spark.sql.shuffle.partitions = 7",
        "SELECT reflect('java.lang.System', 'nanoTime')",
        f"SELECT * FROM parquet.`{filled.path}/bronze`",
        "SELEC 1",
        "SHOW TABLES",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "SELECT (SELECT TRANSFORM (1) USING /* */ 'cat' AS (x))",
        "WITH x AS (SELECT TRANSFORM (1) USING 'cat' AS (x)) SELECT * FROM x",
        "SELECT (SELECT `reflect`('java.lang.System', 'nanoTime'))",
    ):
        with pytest.raises(InvalidInput) as caught:
            ask_spark(spark, filled.path, sql)
        assert caught.value.code in ("lake.not_a_question", "lake.bad_sql", "lake.unknown_table")
    with pytest.raises(UnknownName) as missing:
        ask_spark(spark, filled.path, "SELECT * FROM evnts")
    assert missing.value.hint == "did you mean 'events'?"
    with pytest.raises(UnknownName) as missing:
        ask_spark(spark, filled.path, "SELECT recieved FROM events")
    assert missing.value.hint == "did you mean 'received'?"
