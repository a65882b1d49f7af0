"""Questions to the lake in SQL, answered by Spark: the same views, also on a cluster. [PI-3]"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rapport.core.errors import InvalidInput, RapportError, nearest_names
from rapport.lake.catalogue import lake_tables
from rapport.lake.places import Lake
from rapport.lake.query import (
    View,
    bad_sql,
    not_a_question,
    unknown_column,
    unknown_table,
    views_for,
)
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.spark_tables import read_files
from rapport.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUESTIONS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")
"""The first words of questions."""
_BEFORE = "SELECT * FROM (\n"
"""Spark carries a command out as soon as it is given; a subquery cannot be one."""
_RUNS_PROGRAMS = ("ScriptTransformation", "reflect(", "java_method(")
_ON_FILES = "spark.sql.runSQLOnFiles"


def ask_spark(spark: SparkSession, lake: Lake | Path | str, sql: str) -> pa.Table:
    """Answers one SELECT; raises what `ask_duckdb` raises, and RapportErrors for whatever goes
    wrong on Spark.
    """
    lake = Lake.at(lake)
    with spark_errors("asking the lake"), _only_views(spark):
        tables = lake_tables(lake)
        views = views_for(lake, tables, sql)
        for view in views:
            files = [file.uri for file in view.table.files()]
            read_files(spark, view.table, files).createOrReplaceTempView(view.name)
        try:
            return _ask(spark, sql, views, [one.view for one in tables])
        finally:
            for view in views:
                spark.catalog.dropTempView(view.name)


def _ask(spark: SparkSession, sql: str, views: Sequence[View], known: Sequence[str]) -> pa.Table:
    from pyspark.errors import AnalysisException, ParseException

    try:
        rows = spark.sql(f"{_BEFORE}{sql.rstrip().removesuffix(';')}\n)")
        # Nothing has run yet; what hides in a subquery stands in the whole plan.
        plan = _analyzed(rows)
        if any(name in plan for name in _RUNS_PROGRAMS):
            raise not_a_question("what runs a program")
        return rows.toArrow()
    except ParseException as error:
        first = sql.split(maxsplit=1)[0].upper() if sql.strip() else ""
        if first.isalpha() and not nearest_names(first, _QUESTIONS, 1):
            raise not_a_question(first) from None
        raise _bad_sql(error) from None
    except AnalysisException as error:
        raise _translated(error, views, known) from None


def _analyzed(rows: DataFrame) -> str:
    if is_connect(rows.sparkSession):
        return str(rows._explain_string(extended=True))
    return str(rows._jdf.queryExecution().analyzed().toString())


@contextmanager
def _only_views(spark: SparkSession) -> Iterator[None]:
    """Files cannot be named in a question for the time of the block."""
    before = spark.conf.get(_ON_FILES, "true")
    spark.conf.set(_ON_FILES, "false")
    # A wrong question is told in one line; a page of Java on stderr beside it helps nobody.
    logger = logging.getLogger("SQLQueryContextLogger")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        spark.conf.set(_ON_FILES, before or "true")


def _translated(error: Any, views: Sequence[View], known: Sequence[str]) -> RapportError:
    condition = str(error.getCondition() or "")
    told = error.getMessageParameters() or {}
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return unknown_table(str(told.get("relationName", "")).strip("`"), known)
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = str(told.get("objectName", "")).strip("`")
        return unknown_column(name, views)
    return _bad_sql(error)


def _bad_sql(error: Any) -> InvalidInput:
    text = str(error.getMessage() if hasattr(error, "getMessage") else error)
    text = text.split("\n\nJVM stacktrace")[0].replace(_BEFORE, "")
    return bad_sql(re.sub(r"(?<=line )\d+", lambda line: str(max(int(line[0]) - 1, 1)), text))
