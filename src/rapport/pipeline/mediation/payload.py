"""The payload of raw events as a Spark struct, and when to doubt it. [ME-14, PI-4]

Spark's JSON reader accepts some things that the node refuses: text after the value, bytes that are
no UTF-8, halves of characters, numbers that no float can hold. Rows with any of these go through
the generated Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.event import ADDED_FIELDS
from rapport.pipeline.mediation.operations import (
    NativePlan,
    Path,
    Tree,
)

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

PAYLOAD, CORRUPT, END = "v", "corrupt", "end"
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}

_HALVES = ("\\ud", "\\uD")
"""Of characters beyond the first plane."""
_TAGGED = ("@type", "\\u00")
_LARGE = r"[eE](?<=[0-9][eE])[+-]?[0-9]{3}"
_LARGE_OR_DEEP = r"(?<![0-9])[0-9]{300}|(?:[\[{][^\[{]*+){101}"
"""Numbers that may be too large for a float; objects and lists within each other."""
_LONG, _TOO_LONG = 200, 1_000_000
_AS_TEXT = (DATA_TYPE, DATA_ENCODING)


def struct_of(tree: Tree) -> StructType:
    """The fields as Spark has them; all may be missing."""
    from pyspark.sql import types

    kinds: dict[str, DataType] = {
        "string": types.StringType(),
        "number": types.DoubleType(),
        "integer": types.LongType(),
        "boolean": types.BooleanType(),
    }
    fields = [
        types.StructField(name, struct_of(below) if isinstance(below, dict) else kinds[below])
        for name, below in tree.items()
    ]
    # A struct without fields cannot be read; nobody looks at this one.
    return types.StructType(fields or [types.StructField("\u0000", types.StringType())])


def parsed(tree: Tree) -> Column:
    """A struct of the payload (`v`), what stands behind it (`end`), and whether it could be read.

    The payload is put into an object with a second attribute, its digest: text after the payload
    ends the object too early or makes it no JSON, and then the digest is not there.
    """
    from pyspark.sql import functions, types

    schema = types.StructType(
        [
            types.StructField(PAYLOAD, struct_of(tree)),
            types.StructField(END, types.LongType()),
            types.StructField(CORRUPT, types.StringType()),
        ]
    )
    text = functions.col("data").cast("string")
    whole = functions.concat(
        functions.lit('{"v":'),
        text,
        functions.lit(',"end":'),
        functions.xxhash64("data").cast("string"),
        functions.lit("}"),
    )
    return functions.from_json(whole, schema, OPTIONS)


def doubts_of_payload(plan: NativePlan, payload: Column) -> list[Column]:
    """When the struct may not be what Python would have read; each true or null means doubt."""
    from pyspark.sql import functions

    data = functions.col("data")
    text, length = data.cast("string"), functions.octet_length(data)
    found = [
        payload[PAYLOAD].isNull(),
        payload[CORRUPT].isNotNull(),
        ~payload[END].eqNullSafe(functions.xxhash64("data")),
        ~functions.is_valid_utf8(text),
        *(text.contains(each) for each in (*_HALVES, *(_TAGGED if plan.untagged else ()))),
        text.rlike(_LARGE),
        functions.when(length >= _LONG, text.rlike(_LARGE_OR_DEEP)).otherwise(False),
        length > _TOO_LONG,
    ]
    kind = functions.col("type")
    if plan.event_types:
        found.append(~kind.isin(*plan.event_types))
    if plan.other_types:
        found.append(kind.isin(*plan.other_types))
    headers = functions.col("headers")
    added = functions.map_contains_key(headers, ADDED_FIELDS)
    found.append(functions.coalesce(added, functions.lit(False)))
    if plan.plain:
        found += [
            functions.coalesce(functions.map_contains_key(headers, name), functions.lit(False))
            for name in _AS_TEXT
        ]
        found.append(~text.startswith("{"))
    for path in plan.absent:
        there = functions.contains(text, functions.lit(f'"{path[-1]}"'))
        escaped = functions.contains(text, functions.lit("\\u"))
        found.append(at(payload[PAYLOAD], path).isNull() & (there | escaped))
    return found


def at(payload: Column, path: Path) -> Column:
    """A field, null when anything on the way is."""
    for name in path:
        payload = payload.getField(name)
    return payload
