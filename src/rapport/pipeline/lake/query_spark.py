"""Questions to the lake in SQL, answered by Spark: the same views, also on a cluster. [PI-3]"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rapport.core.errors import InvalidInput, RapportError
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.catalogue import TableFile, lake_tables
from rapport.pipeline.lake.files import spark_path
from rapport.pipeline.lake.locks import reading
from rapport.pipeline.lake.query import (
    Answer,
    View,
    not_a_question,
    unknown_column,
    unknown_table,
    views_for,
)
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


def ask_spark(spark: SparkSession, lake: Path, sql: str) -> Answer:
    """Answers one SELECT; raises what `ask_duckdb` raises, and RapportErrors for whatever goes
    wrong on Spark.
    """
    with reading(lake), spark_errors("asking the lake"), _only_views(spark):
        _refuse_all_but_select(spark, sql)
        views, problems = views_for(lake, sql)
        for view in views:
            _frame(spark, view).createOrReplaceTempView(view.name)
        try:
            table = _ask(spark, sql, views, [one.view for one in lake_tables(lake)])
        finally:
            for view in views:
                spark.catalog.dropTempView(view.name)
    return Answer(table=table, problems=tuple(problems))


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


def _frame(spark: SparkSession, view: View) -> DataFrame:
    """The rows of all files by the names of columns; files of one form are read together."""
    forms: dict[str, list[TableFile]] = {}
    for file in view.files:
        forms.setdefault(str(file.schema), []).append(file)
    if not forms:
        return spark.createDataFrame([], "nothing INT")
    frames = [_read(spark, files, view.schema) for files in forms.values()]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    columns = [f"`{name}`" for name in view.schema.names]
    if view.has_time:
        columns.append(
            "CASE WHEN time BETWEEN -62135596800000 AND 253402300799999 "
            "THEN timestamp_millis(time) END AS moment"
        )
    return whole.selectExpr(*columns)


def _read(spark: SparkSession, files: Sequence[TableFile], wanted: pa.Schema) -> DataFrame:
    schema = files[0].schema
    ddl = ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in schema)
    reader = spark.read.schema(ddl).option("recursiveFileLookup", "true")
    rows = reader.parquet(*(spark_path(file.path) for file in files))
    columns = []
    for field in schema:
        kind = _shown_type(wanted.field(field.name).type)
        columns.append(f"CAST(`{field.name}` AS {kind}) AS `{field.name}`")
    return rows.selectExpr(*columns)


def spark_type(kind: pa.DataType) -> str:
    """The type by which Spark reads a column of a file."""
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"`{field.name}`: {spark_type(field.type)}" for field in kind)
        return f"STRUCT<{fields}>"
    return _PLAIN.get(str(kind), "STRING")


# Spark has no unsigned 64-bit number.
_PLAIN = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "float": "FLOAT",
    "double": "DOUBLE",
    "binary": "BINARY",
    "date32[day]": "DATE",
    "timestamp[us]": "TIMESTAMP_NTZ",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
}


def _shown_type(kind: pa.DataType) -> str:
    shown = spark_type(kind)
    return {"DECIMAL(20,0)": "BIGINT", "BINARY": "STRING"}.get(shown, shown)


def _translated(error: Any, views: Sequence[View], known: Sequence[str]) -> RapportError:
    condition = str(error.getCondition() or "")
    told = error.getMessageParameters() or {}
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return unknown_table(str(told.get("relationName", "")).strip("`"), known)
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = str(told.get("objectName", "")).strip("`")
        return unknown_column(name, [one for view in views for one in view.columns])
    return _bad_sql(error)


def _bad_sql(error: Any) -> InvalidInput:
    said = str(error.getMessage() if hasattr(error, "getMessage") else error)
    return InvalidInput(said.strip().split("\n\nJVM stacktrace")[0], code="lake.bad_sql")
