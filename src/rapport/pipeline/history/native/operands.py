"""The condition of a term as columns of Spark; what is missing is null, and never holds. [PI-5]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rapport.pipeline.history.native.grid import squared_distance
from rapport.policy import measures, relations
from rapport.policy.language.tree import Operator
from rapport.policy.plan import (
    Compared,
    Constant,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    SideValue,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

_COMPARISONS: dict[Operator, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}


class Operands:
    """Finds the columns of a term's values in a table that has them all.

    Args:
        columns: of each attribute of a side, the names of its parts.
        looked_up: of each looked-up function, the column with its number.
        kinds: the type of every column, as Spark names it.
    """

    def __init__(
        self,
        columns: Mapping[SideValue, list[str]],
        looked_up: Mapping[LookedUp, str],
        kinds: Mapping[str, str],
    ) -> None:
        self._columns, self._looked_up, self._kinds = columns, looked_up, kinds

    def condition(self, term: QueryTerm | ReadingTerm) -> Column:
        """Whether the term holds; null where something is missing."""
        if term.compared is not None:
            return self._compared(term.compared)
        first = self._parts(SideValue(0, term.first.attribute))
        second = self._parts(SideValue(1, term.second.attribute))
        return _related(term, first, second)

    def _compared(self, compared: Compared) -> Column:
        left, right = self._operand(compared.left), self._operand(compared.right)
        booleans = [self._is_boolean(one) for one in (compared.left, compared.right)]
        if booleans == [True, False]:
            left, right = _beside(left, compared.right, right)
        elif booleans == [False, True]:
            right, left = _beside(right, compared.left, left)
        found: Column = _COMPARISONS[compared.operator](left, right)
        return found

    def _operand(self, operand: Operand) -> Column:
        from pyspark.sql import functions as sql

        if isinstance(operand, Constant):
            value = sql.lit(operand.value)
            return known(value) if isinstance(operand.value, float) else value
        if isinstance(operand, SideValue):
            return self._parts(operand)[0]
        if isinstance(operand, LookedUp):
            return sql.col(self._looked_up[operand])
        ends = [part for value in operand.of for part in self._parts(value)]
        return known(sql.sqrt(squared_distance(ends[0], ends[1], ends[2], ends[3])))

    def _parts(self, value: SideValue) -> list[Column]:
        from pyspark.sql import functions as sql

        found = []
        for name in self._columns[value]:
            column = sql.col(name)
            found.append(known(column) if self._kinds[name] == "double" else column)
        return found

    def _is_boolean(self, operand: Operand) -> bool:
        if not isinstance(operand, SideValue):
            return False
        return self._kinds[self._columns[operand][0]] == "boolean"


def known(number: Column) -> Column:
    """The number, null where it is none: Spark holds NaN to be larger than anything."""
    from pyspark.sql import functions as sql

    return sql.when(~sql.isnan(number), number)


def why_not_a_condition(term: QueryTerm | ReadingTerm) -> str:
    """The function of a term that only Python can compute; empty where there is none."""
    if term.compared is None:
        relation = relations.get(term.function)
        is_known = (
            relation.name in relations.BUILT_IN and relation is relations.BUILT_IN[relation.name]
        )
        return "" if is_known else term.function
    for operand in (term.compared.left, term.compared.right):
        if isinstance(operand, Measure) and measures.get(operand.function) is not measures.DISTANCE:
            return operand.function
    return ""


def _related(term: QueryTerm | ReadingTerm, first: list[Column], second: list[Column]) -> Column:
    from pyspark.sql import functions as sql

    relation = relations.get(term.function)
    if relation is relations.INSIDE:
        (x, y), (left, bottom, right, top) = first, second
        return (left <= x) & (x <= right) & (bottom <= y) & (y <= top)
    if relation is relations.WITHIN:
        reach = float(term.parameter or 0.0)
        return known(squared_distance(*first, *second)) <= sql.lit(reach * reach)
    if relation is relations.SAME:
        return first[0] == second[0]
    return sql.array_contains(sql.split(first[0], "\n", -1), second[0])


def _beside(boolean: Column, other: Operand, column: Column) -> tuple[Column, Column]:
    """A boolean and what it is compared with, alike: a constant is a number, or written out."""
    from pyspark.sql import functions as sql

    if isinstance(other, Constant) and isinstance(other.value, str):
        return boolean, sql.lit(other.value.lower() == "true")
    return boolean.cast("double"), column
