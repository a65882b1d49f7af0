"""On Spark: the same answers as DuckDB's, and nothing but answers. [PI-3, LK-7]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event
from rapport.lake.maintenance import compact
from rapport.lake.query import ask_duckdb
from rapport.pipeline.lake.query_spark import ask_spark
from rapport.pipeline.lake.silver import update_silver
from support.silver_lake import BEGIN, DAY, SilverLake, make_ontology, reading, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def events() -> list[Event]:
    """Readings of two streams over three days, some of them bad, some corrected."""
    found = [reading(str(n), BEGIN + n * DAY // 20, [n, 2]) for n in range(60)]
    found += [warm(f"w{n}", BEGIN + n, n) for n in range(30)]
    return [*found, reading("bad", BEGIN, ["x"]), reading("5~a", BEGIN, [9, 9], corrects="5")]


@pytest.fixture
def lake(tmp_path: Path, events: list[Event]) -> SilverLake:
    filled = SilverLake(tmp_path / "lake")
    filled.fill(*events)
    return filled


def test_spark_and_duckdb_give_the_same_answers(
    spark: SparkSession, lake: SilverLake, events: list[Event]
) -> None:
    update_silver(spark, lake.lake, make_ontology())
    for sql in (
        "SELECT status, count(*) AS n, sum(x) AS s FROM person_position GROUP BY 1 ORDER BY 1",
        "SELECT e.position, e.data, w.value FROM events e JOIN room_warmth w USING (position) "
        "ORDER BY 1",
        "SELECT reason, hint, data FROM quarantined",
        "WITH p AS (SELECT max(time) AS t FROM person_position) SELECT t FROM p",
    ):
        by_spark = ask_spark(spark, lake.lake, sql).to_pylist()
        assert by_spark == ask_duckdb(lake.lake, sql).to_pylist()
    compact(lake.lake, fewest=2)
    (row,) = ask_spark(spark, lake.lake, "SELECT count(*) AS n FROM events").to_pylist()
    assert row == {"n": len(events)}


def test_spark_answers_questions_only(spark: SparkSession, lake: SilverLake) -> None:
    for sql in (
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW events",
        "INSERT OVERWRITE DIRECTORY 'never' USING csv SELECT 1",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "SET spark.sql.shuffle.partitions = 7",
        "SELECT reflect('java.lang.System', 'nanoTime')",
        f"SELECT * FROM parquet.`{lake.lake.uri}/bronze`",
        "SELEC 1",
        "SHOW TABLES",
        "EXECUTE IMMEDIATE 'SELECT 1'",
        "SELECT (SELECT TRANSFORM (1) USING /* */ 'cat' AS (x))",
        "WITH x AS (SELECT TRANSFORM (1) USING 'cat' AS (x)) SELECT * FROM x",
        "SELECT (SELECT `reflect`('java.lang.System', 'nanoTime'))",
    ):
        with pytest.raises(InvalidInput) as caught:
            ask_spark(spark, lake.lake, sql)
        assert caught.value.code in ("lake.not_a_question", "lake.bad_sql", "lake.unknown_table")
    with pytest.raises(InvalidInput) as caught:
        ask_spark(spark, lake.lake, "DROP VIEW events")
    assert caught.value.code == "lake.not_a_question"
    with pytest.raises(InvalidInput, match="near 'y'") as caught:
        ask_spark(spark, lake.lake, "SELECT 1 FRM WHERE x y")
    assert caught.value.code == "lake.bad_sql"
    assert ask_spark(spark, lake.lake, "SELECT 1 AS a;\n").to_pylist() == [{"a": 1}]
    with pytest.raises(UnknownName) as missing:
        ask_spark(spark, lake.lake, "SELECT * FROM evnts")
    assert missing.value.hint == "did you mean 'events'?"
    with pytest.raises(UnknownName) as missing:
        ask_spark(spark, lake.lake, "SELECT recieved FROM events")
    assert missing.value.hint == "did you mean 'received'?"
