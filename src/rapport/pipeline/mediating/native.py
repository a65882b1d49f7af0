"""A plan of column operations put onto the rows of one source. [ME-14, PI-4]

One pass: each row gets its reading by columns and a verdict whether that is certain; rows that are
not are asked about in Python, all others pass it by as null.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from rapport.core.event import MAX_NAME
from rapport.pipeline.mediating.asking import Asking
from rapport.pipeline.mediating.columns import ColumnWriter
from rapport.pipeline.mediating.meanings import Meanings
from rapport.pipeline.mediating.nodes import Given, NativePlan
from rapport.pipeline.mediating.outcome_rows import OUTCOME_ROWS, RAW_COLUMNS
from rapport.pipeline.mediating.payload import doubts_of_payload, fields_of, parsed
from rapport.policy.readings import FARTHEST_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PAYLOAD, _CERTAIN, _PYTHON = "payload", "certain", "python"
_EXACTLY = {"mode": "FAILFAST"}
_PRINTABLE = r"^[ -~\u00A1-\u00AC\u00AE-\u02C1]+$"
"""Names that can be in an envelope, as far as that is quickly said."""
_COLUMNS = [each.split() for each in OUTCOME_ROWS.split(", ")]
_OUTCOMES = f"array<struct<{','.join(f'{name}:{kind}' for name, kind in _COLUMNS)}>>"


def native_outcomes(
    spark: SparkSession, rows: DataFrame, plan: NativePlan, meanings: Meanings
) -> DataFrame:
    """Readings as the operations give them; rows in doubt as Python does."""
    from pyspark.sql import functions

    frame = rows.select(*RAW_COLUMNS).withColumn(_PAYLOAD, parsed(fields_of(plan)))
    writer = ColumnWriter(spark, frame, _PAYLOAD)
    wanted = [plan.time, plan.key, *plan.looked_at, *(need.node for need in plan.needed)]
    writer.put([*wanted, *(part for given in plan.given for part in given.parts)])
    doubt = _any(
        [
            *doubts_of_payload(plan, functions.col(_PAYLOAD)),
            *writer.doubts,
            *_doubts_of_results(plan, writer),
        ]
    )
    certain = ~functions.coalesce(doubt, functions.lit(True))
    judged = writer.frame.withColumn(_CERTAIN, certain)
    asked = judged.withColumn(_PYTHON, _asked(meanings))
    lay_out = _single if plan.single else _spread
    return lay_out(plan, asked, writer, meanings)


def _asked(meanings: Meanings) -> Column:
    """What Python says of a row in doubt, as JSON; null for others."""
    from pyspark.sql import functions
    from pyspark.sql.functions import arrow_udf

    fields = [name for name in RAW_COLUMNS if name not in ("position", "received", "data")]
    data = functions.base64("data").alias("data")
    row = functions.to_json(functions.struct(*fields, data), {"ignoreNullFields": "true"})
    ask = arrow_udf(Asking(*meanings.sent).outcomes, "string")
    return ask(functions.when(~functions.col(_CERTAIN), row))


def _single(
    plan: NativePlan, frame: DataFrame, writer: ColumnWriter, meanings: Meanings
) -> DataFrame:
    """Where each row has exactly one outcome."""
    from pyspark.sql import functions

    python, certain = functions.col(_PYTHON), functions.col(_CERTAIN)
    read = functions.from_json(python, _OUTCOMES, _EXACTLY)
    told = frame.withColumn(_PYTHON, functions.when(python.isNotNull(), functions.get(read, 0)))
    values = _values(plan, plan.given[0], writer, meanings)
    columns = [
        functions.when(certain, values.get(name, functions.lit(None)).cast(kind))
        .otherwise(python[name])
        .alias(name)
        for name, kind in _COLUMNS
    ]
    return told.select(
        *columns,
        "channel",
        "position",
        "received",
        functions.when(python["reason"].isNotNull(), functions.struct(*RAW_COLUMNS)).alias("raw"),
        certain.alias("native"),
    )


def _spread(
    plan: NativePlan, frame: DataFrame, writer: ColumnWriter, meanings: Meanings
) -> DataFrame:
    """Where a row may have several, or none."""
    from pyspark.sql import functions

    readings = functions.array(*(_reading(plan, each, writer, meanings) for each in plan.given))
    there = functions.filter(readings, lambda each: each.isNotNull())
    told = functions.from_json(_PYTHON, _OUTCOMES, _EXACTLY)
    outcome = functions.when(functions.col(_CERTAIN), there).otherwise(told)
    spread = frame.select(
        functions.explode(outcome).alias("o"),
        functions.struct(*RAW_COLUMNS).alias("raw"),
        _CERTAIN,
    )
    rejected = functions.col("o.reason").isNotNull()
    return spread.select(
        *(f"o.{name}" for name, _ in _COLUMNS),
        *(functions.col(f"raw.{name}").alias(name) for name in ("channel", "position", "received")),
        functions.when(rejected, functions.col("raw")).alias("raw"),
        functions.col(_CERTAIN).alias("native"),
    )


def _doubts_of_results(plan: NativePlan, writer: ColumnWriter) -> list[Column]:
    from pyspark.sql import functions

    key, time = writer.column(plan.key), writer.column(plan.time)
    inside = (time > -FARTHEST_MS) & (time < FARTHEST_MS)
    longest = MAX_NAME - len(plan.concept) - 1
    fits = key.rlike(_PRINTABLE) & (functions.length(key) <= longest)
    found = [~functions.coalesce(each, functions.lit(False)) for each in (inside, fits)]
    for need in plan.needed:
        missing = writer.column(need.node).isNull()
        found.append(missing & writer.present(need.within) if need.within else missing)
    for given in plan.given:
        if given.needed:
            found.append(_lacks(given, writer))
        elif given.within:
            found.append(_lacks(given, writer) & writer.present(given.within))
    if not any(given.needed for given in plan.given):
        missing = [~_is_there(each, writer) for each in plan.given]
        found.append(reduce(lambda one, other: one & other, missing, functions.lit(True)))
    if plan.several:
        name = max((len(each.attribute) for each in plan.given), default=0) + 1
        found.append(functions.length("id") > MAX_NAME - name)
    return found


def _lacks(given: Given, writer: ColumnWriter) -> Column:
    return _any([writer.column(part).isNull() for part in given.parts])


def _is_there(given: Given, writer: ColumnWriter) -> Column:
    if given.within and not given.needed:
        return writer.present(given.within)
    return ~_lacks(given, writer)


def _reading(plan: NativePlan, given: Given, writer: ColumnWriter, meanings: Meanings) -> Column:
    """One reading as a struct; null where the attribute is not there."""
    from pyspark.sql import functions

    values = _values(plan, given, writer, meanings)
    fields = [
        values.get(name, functions.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS
    ]
    made = functions.struct(*fields)
    return made if given.needed else functions.when(_is_there(given, writer), made)


def _values(
    plan: NativePlan, given: Given, writer: ColumnWriter, meanings: Meanings
) -> dict[str, Any]:
    """The columns of a reading; those that it does not name are null."""
    from pyspark.sql import functions

    source = functions.col("source")
    identity: Any = functions.col("id")
    if plan.several:
        identity = functions.concat(identity, functions.lit(f"/{given.attribute}"))
    own = functions.when(source.isin(*sorted(meanings.named())), source)
    values = {
        "time": writer.column(plan.time),
        "id": identity,
        "stream": functions.lit(given.stream),
        "source": own.otherwise(functions.lit(plan.source)),
        "key": writer.column(plan.key),
        "interpretation": functions.lit(plan.stamp),
    }
    parts = zip(given.columns, given.parts, strict=True)
    return values | {column: writer.column(part) for column, part in parts}


def _any(conditions: list[Column]) -> Column:
    return reduce(lambda one, other: one | other, conditions)
