"""Column operations as Spark's columns. [ME-14, PI-4]

Only functions that give null for what they cannot do (ANSI mode would end the job); arithmetic in
the order of the generated Python. Times are read from texts of fixed shapes only, in which every
digit has its place, so that Spark and Python agree.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any

from rapport.core.times import EARLIEST_MS, LATEST_MS
from rapport.pipeline.mediation import operations
from rapport.pipeline.mediation.instants import FIRST_YEAR, ZoneDays, fixed_pattern, zone_days
from rapport.pipeline.mediation.operations import Instant, Node
from rapport.pipeline.mediation.payload import PAYLOAD, at
from rapport.pipeline.mediation.steps import StepRunner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DAY_MS = 86_400_000
_FIRST_DAY = (date(FIRST_YEAR, 1, 1) - date(1970, 1, 1)).days
_FRACTIONS = ("", ".000", ".000000")
_ISO = tuple(f"0000-00-00{mark}00:00:00{part}" for mark in "T " for part in _FRACTIONS)
_ZONED = tuple(f"{shape}{zone}" for shape in _ISO for zone in ("Z", "+00:00", "-00:00"))
_WHOLE = r"^-?[0-9]{1,15}$"


class TimeColumns:
    """Expressions of times; null for what needs a closer look."""

    def __init__(self) -> None:
        from pyspark.sql import functions

        self._f = functions

    def epoch(self, number: Column, unit_ms: float) -> Column:
        """A number of seconds or milliseconds since 1970; halves go to the even one."""
        time = number * self._f.lit(unit_ms)
        inside = (time >= float(EARLIEST_MS)) & (time <= float(LATEST_MS))
        return self._f.when(inside, self._f.rint(time).try_cast("bigint"))

    def instant(self, text: Column, node: Instant) -> Column:
        """Text as ISO 8601 or a fixed pattern has it."""
        if not node.pattern:
            return self._iso(text, node.zone)
        fixed = fixed_pattern(node.pattern)
        if fixed is None or not node.zone:
            return self._f.lit(None).cast("bigint")
        pieces: list[Column] = []
        for piece, after in zip(("%Y", "%m", "%d", "%H", "%M", "%S"), "--T::.", strict=True):
            place = fixed.places.get(piece)
            length = 4 if piece == "%Y" else 2
            digits = self._f.lit("00") if place is None else self._f.substring(text, place, length)
            pieces += [digits, self._f.lit(after)]
        fraction = fixed.places.get("%f")
        pieces.append(self._f.substring(text, fraction, 6) if fraction else self._f.lit("0"))
        local = self._read(self._f.concat(*pieces, self._f.lit("Z")))
        fits = self._shape(text).isin(*fixed.shapes) & (pieces[0] != "0000")
        return self._f.when(fits, self._from_local(local, node.zone))

    def moment(self, text: Column) -> Column:
        """Whole milliseconds, or ISO 8601 that says its offset."""
        whole = self._f.when(text.rlike(_WHOLE), text.try_cast("bigint"))
        return self._f.coalesce(whole, self._iso(text, ""))

    def _iso(self, text: Column, zone: str) -> Column:
        shape = self._shape(text)
        there = self._f.substring(text, 1, 4) != "0000"
        found = self._f.when(there & shape.isin(*_ZONED), self._read(text))
        if not zone:
            return found
        local = self._read(self._f.concat(text, self._f.lit("Z")))
        return found.when(there & shape.isin(*_ISO), self._from_local(local, zone))

    def _shape(self, text: Column) -> Column:
        return self._f.translate(text, "123456789", "000000000")

    def _read(self, text: Column) -> Column:
        return self._f.unix_millis(text.try_cast("timestamp"))

    def _from_local(self, local: Column, zone: str) -> Column:
        """By the offset of that day; a byte of a constant says which."""
        if zone == "UTC":
            return local
        days: ZoneDays = zone_days(zone)
        day = self._f.floor(local / self._f.lit(_DAY_MS)) - self._f.lit(_FIRST_DAY)
        codes = self._f.lit(bytearray(days.codes))
        code = self._f.ascii(self._f.substring(codes, day.cast("int") + 1, 1).cast("string"))
        offsets = self._f.array(*(self._f.lit(each) for each in days.offsets_ms))
        inside = (day >= 0) & (day < len(days.codes))
        return self._f.when(inside, local - self._f.get(offsets, code - 1).cast("bigint"))


_LARGEST = 1.7976931348623157e308
_SPARK = {"number": "double", "integer": "bigint", "text": "string", "boolean": "boolean"}
_WRITTEN = r"^(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|[\[{][\s\S]*)$"
"""Text that may be a JSON value of another kind, written out."""
_NO_NAME = r"^(?:-?[0-9]+[.eE][\s\S]*|-0[\s\S]*|-?[0-9]{19,}|true|false|[\[{][\s\S]*|)$"
_NUMBERS = {
    "point": r"^(?!-0+$)-?[0-9]{1,300}(?:\.[0-9]{1,90})?$",
    "comma": r"^(?!-0+$)-?[0-9]{1,300}(?:,[0-9]{1,90})?$",
}
"""A whole -0 is 0.0 as a number and -0.0 as text."""
_EXACT = float(2**53)


class ColumnWriter:
    """Puts operations onto a frame, as columns of their own; `doubts` are conditions under which a
    row is not certain.
    """

    def __init__(self, spark: SparkSession, frame: DataFrame, payload: str) -> None:
        """`payload`: the column that holds the parsed payload."""
        from pyspark.sql import functions

        self._f, self._spark = functions, spark
        self.frame, self._payload = frame, functions.col(payload)[PAYLOAD]
        self.doubts: list[Column] = []
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []
        self._shared: dict[Any, str] = {}
        self._times = TimeColumns()

    def column(self, node: Node) -> Column:
        """The operation's value; it has been put on before."""
        return self._f.col(self._names[id(node)])

    def present(self, path: operations.Path) -> Column:
        """There is an object."""
        return at(self._payload, path).isNotNull()

    def put(self, wanted: list[Node]) -> None:
        """All operations that these are made of, level by level."""
        levels: dict[int, dict[int, Node]] = {}
        for node in wanted:
            self._level(node, levels)
        for level in sorted(levels):
            made = {}
            for node in levels[level].values():
                name, column = self._made(node)
                self._names[id(node)] = name
                self._alive.append(node)
                if column is not None:
                    made[name] = column
            if made:
                self.frame = self.frame.withColumns(made)

    def _level(self, node: Node, levels: dict[int, dict[int, Node]]) -> int:
        below = [self._level(each, levels) for each in operations.inputs_of(node)]
        level = max(below, default=-1) + 1
        if id(node) not in self._names:
            levels.setdefault(level, {})[id(node)] = node
        return level

    def _made(self, node: Node) -> tuple[str, Column | None]:
        """Name and expression; None when the column is there already. What is made of something
        and gives nothing leaves the row in doubt.
        """
        inputs = tuple(self._names[id(each)] for each in operations.inputs_of(node))
        key = self._sharing(node, inputs)
        if key in self._shared:
            return self._shared[key], None
        name = self._shared[key] = f"m{len(self._shared)}"
        if isinstance(node, operations.InTable):
            return self._joined(node, name), None
        column = self._expression(node)
        if not isinstance(node, (operations.FirstOf, operations.Unless)) and inputs:
            given = [self._f.col(each).isNotNull() for each in inputs]
            self.doubts.append(_all(given) & self._f.col(name).isNull())
        return name, column

    def _sharing(self, node: Node, inputs: tuple[str, ...]) -> Any:
        """Equal for operations that give the same; without comparing tables."""
        if isinstance(
            node,
            (
                operations.PayloadField,
                operations.Present,
                operations.Constant,
                operations.EnvelopeTime,
            ),
        ):
            return node.__class__, node
        if isinstance(node, operations.InTable):
            return operations.InTable, id(node.rows), inputs, node.number
        if isinstance(node, operations.StepResult):
            return operations.StepResult, node.step, inputs, node.number
        return id(node)

    def _expression(self, node: Node) -> Column:
        writers: dict[type, Callable[[Any], Column]] = {
            operations.PayloadField: self._taken,
            operations.Present: lambda each: self._f.when(self.present(each.path), True),
            operations.Constant: lambda each: self._f.lit(each.value).cast(_SPARK[each.kind]),
            operations.EnvelopeTime: lambda each: self._f.col("time"),
            operations.Arithmetic: self._arithmetic,
            operations.KeyMatch: self._matched,
            operations.Epoch: lambda each: self._times.epoch(self.column(each.of), each.unit_ms),
            operations.Instant: lambda each: self._times.instant(self.column(each.of), each),
            operations.NumberOf: lambda each: self._number(self.column(each.of), each.decimal),
            operations.Concatenation: self._concatenated,
            operations.Cut: self._cut,
            operations.Sum: self._sum,
            operations.StepResult: self._stepped,
            operations.FirstOf: lambda each: self._f.coalesce(*map(self.column, each.of)),
            operations.Unless: self._unless,
        }
        return writers[type(node)](node)

    # --- fields

    def _taken(self, node: operations.PayloadField) -> Column:
        field = at(self._payload, node.path)
        if node.look == "number":
            found = self._finite(field)
        elif node.look in ("integer", "boolean", "bare"):
            return field
        elif node.look == "text":
            found = self._f.when(~field.rlike(_WRITTEN), field)
        elif node.look == "name":
            found = self._f.when(~field.rlike(_NO_NAME), field)
        elif node.look == "moment":
            found = self._times.moment(field)
        else:
            found = self._number(field, node.decimal)
        self.doubts.append(field.isNotNull() & found.isNull())
        return found

    def _number(self, text: Column, decimal: str) -> Column:
        pointed = self._f.replace(text, self._f.lit(","), self._f.lit("."))
        number = (pointed if decimal == "comma" else text).try_cast("double")
        return self._f.when(text.rlike(_NUMBERS[decimal]), self._finite(number))

    # --- numbers

    def _finite(self, number: Column) -> Column:
        """Not a number is greater than any number here, so it is left out too."""
        return self._f.when(self._f.abs(number) <= _LARGEST, number)

    def _arithmetic(self, node: operations.Arithmetic) -> Column:
        affine, value = node.affine, self.column(node.of)
        if affine.multiply != 1.0 or node.every:
            value = value * self._f.lit(affine.multiply)
        if affine.add != 0.0 or node.every:
            value = value + self._f.lit(affine.add)
        if affine.divide != 1.0:
            value = value / self._f.lit(affine.divide)
        return self._finite(value)

    def _sum(self, node: operations.Sum) -> Column:
        found = None if node.start is None else self.column(node.start)
        for (one, other), minus in zip(node.products, node.minus, strict=True):
            term = self.column(one) if other is None else self.column(one) * self.column(other)
            found = term if found is None else found - term if minus else found + term
        assert found is not None
        return self._finite(found)

    def _matched(self, node: operations.KeyMatch) -> Column:
        value, kind = self.column(node.of), _SPARK[node.kind]
        found: Any = self._f
        for key, result in node.entries:
            compared = float(key) if node.of.kind in ("number", "integer") else key
            found = found.when(value == self._f.lit(compared), self._f.lit(result).cast(kind))
        if node.otherwise is None:
            return found if node.entries else self._f.lit(None).cast(kind)
        otherwise = self._f.lit(node.otherwise).cast(kind)
        found = found.otherwise(otherwise) if node.entries else otherwise
        certain = value.isNotNull()
        if node.of.kind in ("number", "integer"):
            certain = certain & (self._f.abs(value) < _EXACT)
        return self._f.when(certain, found)

    # --- texts

    def _concatenated(self, node: operations.Concatenation) -> Column:
        pieces: list[Column] = []
        for each in node.of:
            if pieces and node.separator:
                pieces.append(self._f.lit(node.separator))
            pieces.append(self.column(each))
        return self._f.concat(*pieces)

    def _cut(self, node: operations.Cut) -> Column:
        quoted = "".join(f"\\x{{{ord(each):x}}}" for each in node.separator)
        pieces = self._f.split(self.column(node.of), quoted, node.pieces)
        return self._f.when(
            self._f.size(pieces) == node.pieces, self._f.get(pieces, self._f.lit(node.number))
        )

    def _unless(self, node: operations.Unless) -> Column:
        value = self.column(node.of)
        return self._f.when(~value.isin(*node.words), value)

    # --- tables and Python

    def _joined(self, node: operations.InTable, name: str) -> str:
        """The columns of a table beside the row, by a broadcast join; all numbers of one look-up
        come from one join.
        """
        of = self._names[id(node.of)]
        kind = (operations.InTable, id(node.rows), (of,))
        names = [name if n == node.number else f"{name}_{n}" for n in range(len(node.kinds))]
        self._alive.append(node)
        columns = ", ".join(
            f"{each} {_SPARK[kind]}" for each, kind in zip(names, node.kinds, strict=True)
        )
        on = f"{name}_key"
        table = self._spark.createDataFrame(list(node.rows), f"{on} string, {columns}")
        joined = self._f.broadcast(table)
        self.frame = self.frame.join(joined, self._f.col(of) == self._f.col(on), "left")
        for number, each in enumerate(names):
            self._shared[(*kind, number)] = each
        if not node.may_miss:
            self.doubts.append(self._f.col(of).isNotNull() & self._f.col(on).isNull())
        return name

    def _stepped(self, node: operations.StepResult) -> Column:
        from pyspark.sql.functions import arrow_udf

        inputs = tuple(self._names[id(each)] for each in node.of)
        key = (StepRunner, node.step, inputs)
        if key not in self._shared:
            name = self._shared[key] = f"m{len(self._shared)}"
            types = (f"r{number}:{_SPARK[kind]}" for number, kind in enumerate(node.kinds))
            runner = StepRunner(node.step, node.kinds)
            function = arrow_udf(runner.run, f"struct<{','.join(types)}>")
            called = function(*map(self._f.col, inputs))
            self.frame = self.frame.withColumn(name, called)
        return self._f.col(self._shared[key])[f"r{node.number}"]


def _all(conditions: list[Column]) -> Column:
    found = conditions[0]
    for each in conditions[1:]:
        found = found & each
    return found
