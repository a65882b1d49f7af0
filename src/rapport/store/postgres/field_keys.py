"""Fields as indexes of PostgreSQL keep them, in SQL: what is indexed, and how it is looked up.
Pure. [CH-4]

The keys are those of `field_index_keys`: a text is cut, a number is a double, a truth value the
smallest doubles. They over-approximate, so the condition itself is always asked too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence

import msgspec
from psycopg import sql

from rapport.store.fields.keys import TEXT_LENGTH, Key, Lookup, Range, Within
from rapport.store.fields.keys import Both as _Both

STRETCH_BITS = 17
"""Indexes are cut into stretches of 131,072 positions: so the first matches of a range of values
come out in order without looking at all of them.
"""
_TEXTS = ("id", "source", "type", "subject")
_TRUE = "'5e-324'::float8"  # the key of a truth value, as a double
_TURN = 0x7FFF_FFFF_FFFF_FFFF
_DOUBLE, _INTEGER = struct.Struct("<d"), struct.Struct("<q")

Steps = tuple[str | int, ...]


class FieldKey(msgspec.Struct, frozen=True):
    """One expression that is indexed: the texts or the numbers of a field."""

    name: str
    is_text: bool
    expression: sql.Composed | sql.SQL


def field_keys(log: int, steps: Steps) -> tuple[FieldKey, ...]:
    """What is indexed for a field of a log; `steps` begin with `data`, `headers` or a column."""
    root = str(steps[0])
    if root in _TEXTS:
        return (_key(log, steps, True, sql.SQL("{}").format(sql.Identifier(root))),)
    if root == "headers":
        value = sql.SQL("(headers::jsonb ->> {})").format(sql.Literal(str(steps[1])))
        return (_key(log, steps, True, value),)
    if root != "data":
        return (_key(log, steps, False, sql.SQL("{}::float8").format(sql.Identifier(root))),)
    path = sql.Literal([str(step) for step in steps[1:]])
    value, text = (
        sql.SQL(f"(data::jsonb {sign} {{}}::text[])").format(path) for sign in ("#>", "#>>")
    )
    texts = sql.SQL("CASE jsonb_typeof({}) WHEN 'string' THEN {} END").format(value, text)
    numbers = sql.SQL(
        "CASE jsonb_typeof({0}) WHEN 'number' THEN {1}::float8 "
        f"WHEN 'boolean' THEN CASE {{1}} WHEN 'true' THEN {_TRUE} ELSE '0'::float8 END END"
    ).format(value, text)
    return (_key(log, steps, True, texts), _key(log, steps, False, numbers))


def _key(log: int, steps: Steps, is_text: bool, value: sql.Composed) -> FieldKey:
    if is_text:
        value = sql.SQL('(left({}, {}) COLLATE "C")').format(value, sql.Literal(TEXT_LENGTH))
    else:
        value = sql.SQL("({})").format(value)
    digest = hashlib.blake2b(repr(steps).encode(), digest_size=8).hexdigest()
    return FieldKey(f"field_{log}_{digest}_{'text' if is_text else 'number'}", is_text, value)


def create_index(log: int, key: FieldKey) -> sql.Composed:
    """Makes an index while others go on appending; not inside a transaction."""
    return sql.SQL(
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON events "
        "((position >> {bits}), {key}, position) WHERE log = {log} AND {key} IS NOT NULL"
    ).format(
        name=sql.Identifier(key.name),
        bits=sql.Literal(STRETCH_BITS),
        key=key.expression,
        log=sql.Literal(log),
    )


def lookup_sql(log: int, lookup: Lookup, steps_of: Mapping[str, Steps]) -> sql.Composed:
    """A condition that is true wherever the lookup finds something, written for the indexes."""
    if isinstance(lookup, Within):
        keys = {key.is_text: key for key in field_keys(log, steps_of[lookup.path])}
        parts = [_range_sql(keys, wanted, lookup.text) for wanted in lookup.ranges]
        return sql.SQL("({})").format(sql.SQL(" OR ").join(parts))
    word = " AND " if isinstance(lookup, _Both) else " OR "
    parts = [lookup_sql(log, part, steps_of) for part in lookup.parts]
    return sql.SQL("({})").format(sql.SQL(word).join(parts))


def _range_sql(keys: Mapping[bool, FieldKey], wanted: Range, text: bool) -> sql.Composed:
    ends = [end for end in (wanted.low, wanted.high) if end is not None]
    is_text = isinstance(ends[0], str) if ends else text
    if is_text not in keys:
        return sql.SQL("{}").format(sql.SQL("FALSE"))  # a text column is never a number
    key = keys[is_text].expression
    return sql.SQL("({})").format(sql.SQL(" AND ").join(_tests(key, wanted)))


def _tests(key: sql.Composed | sql.SQL, wanted: Range) -> Sequence[sql.Composed]:
    if wanted.is_point and wanted.low is not None:
        return [sql.SQL("{} = {}").format(key, _value(wanted.low))]
    tests = [sql.SQL("{} IS NOT NULL").format(key)]
    if wanted.low is not None:
        tests.append(sql.SQL("{} >= {}").format(key, _value(wanted.low)))
    if wanted.high is not None:
        tests.append(sql.SQL("{} <= {}").format(key, _value(wanted.high)))
    return tests


def _value(key: Key) -> sql.Composable:
    if isinstance(key, str):
        return sql.SQL("{}::text").format(sql.Literal(key))
    return sql.SQL("{}::float8").format(sql.Literal(repr(number_of_key(key))))


def number_of_key(key: int) -> float:
    """The double that `number_key` made a whole number of.

    >>> number_of_key(0), number_of_key(1)
    (0.0, 5e-324)
    """
    bits = key if key >= 0 else key ^ _TURN
    (double,) = _DOUBLE.unpack(_INTEGER.pack(bits))
    return float(double)
