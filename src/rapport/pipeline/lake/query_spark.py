"""Questions to the lake in SQL, answered by Spark: the same views, also on a cluster. [PI-3]"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rapport.core.errors import InvalidInput, RapportError
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
from rapport.pipeline.session import as_question, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUESTION = frozenset(
    [
        "Aggregate",
        "Distinct",
        "Except",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LateralJoin",
        "LocalLimit",
        "LocalRelation",
        "Offset",
        "OneRowRelation",
        "Pivot",
        "Project",
        "ResolvedInlineTable",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Union",
        "Unpivot",
        "UnresolvedHaving",
        "UnresolvedHint",
        "UnresolvedInlineTable",
        "UnresolvedRelation",
        "UnresolvedSubqueryColumnAliases",
        "UnresolvedTVFAliases",
        "UnresolvedTableValuedFunction",
        "UnresolvedWith",
        "Window",
        "WithWindowDefinition",
    ]
)
"""What a question is parsed into. Whatever else Spark knows does something."""
_RUNS_PROGRAMS = ("ScriptTransformation", "reflect(", "java_method(")
_ON_FILES = "spark.sql.runSQLOnFiles"


def ask_spark(spark: SparkSession, lake: Lake | Path | str, sql: str) -> pa.Table:
    """Answers one SELECT; raises what `ask_duckdb` raises, and RapportErrors for whatever goes
    wrong on Spark.
    """
    lake = Lake.at(lake)
    with spark_errors("asking the lake"), _only_views(spark):
        _refuse_all_but_select(spark, sql)
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
        rows = spark.sql(as_question(sql) if is_connect(spark) else sql)
        # Nothing has run yet; what hides in a subquery stands in the whole plan.
        plan = _analyzed(rows)
        if any(name in plan for name in _RUNS_PROGRAMS):
            raise not_a_question("what runs a program")
        return rows.toArrow()
    except ParseException as error:
        raise _bad_sql(error) from None
    except AnalysisException as error:
        raise _translated(error, views, known) from None


def _analyzed(rows: DataFrame) -> str:
    if is_connect(rows.sparkSession):
        return str(rows._explain_string(extended=True))
    return str(rows._jdf.queryExecution().analyzed().toString())


def _refuse_all_but_select(spark: SparkSession, sql: str) -> None:
    """Spark carries commands out as soon as they are given, so they are found before."""
    from pyspark.errors import ParseException

    if is_connect(spark):
        return  # put into a SELECT there, which can hold nothing else
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
    except ParseException as error:
        raise _bad_sql(error) from None
    for name in _nodes(plan):
        if name not in _QUESTION:
            raise not_a_question(name)


def _nodes(plan: Any) -> Iterator[str]:
    yield str(plan.getClass().getSimpleName()).rstrip("$")
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))


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
    return bad_sql(text.split("\n\nJVM stacktrace")[0])
