"""A site's tables as plain data that travels to workers with a job, and is kept with the state that
was computed from it. [PI-5, PI-10]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import Corrupt, UnknownName
from rapport.policy.operators.base import PullData
from rapport.policy.operators.plan_shape import looked_up
from rapport.policy.plan import PolicyPlan
from rapport.policy.runner.situation_group import looked_up_functions
from rapport.policy.situation_plan import SituationPlan, TableDays, TimeWindow, condition_nodes
from rapport.tables.instances import Instances

Pairs = Mapping[str, Mapping[tuple[str, ...], float]]


class WorkerTables:
    """An immutable `PullData`."""

    def __init__(
        self,
        instances: Mapping[str, Instances],
        pairs: Pairs,
        days: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._instances, self._pairs, self._days = instances, pairs, days or {}

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty when no table gives any."""
        known = self._instances.get(concept)
        return Instances(concept, [], {}) if known is None else known

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """The values of a looked-up function; raises UnknownName."""
        if function not in self._pairs:
            raise UnknownName("looked-up function", function, list(self._pairs))
        return self._pairs[function]

    def days(self, table: str) -> Collection[str]:
        """The days of a table; raises UnknownName."""
        if table not in self._days:
            raise UnknownName("table of days", table, list(self._days))
        return self._days[table]

    def held(self) -> Iterable[Instances]:
        return self._instances.values()

    @cached_property
    def encoded(self) -> bytes:
        """Encoded for `decode_tables`; equal tables have equal bytes."""
        instances = [
            _Table(concept, one.ids, {name: _column(values) for name, values in _sorted(one)})
            for concept, one in sorted(self._instances.items())
        ]
        pairs = {name: sorted(found.items()) for name, found in sorted(self._pairs.items())}
        days = {name: sorted(found) for name, found in sorted(self._days.items())}
        return msgspec.msgpack.encode(_Tables(instances, pairs, days))


def tables_for(plans: Sequence[PolicyPlan], pull: PullData) -> WorkerTables:
    """A copy of the tables that the plans use."""
    concepts = sorted({concept for plan in plans for concept in plan.concepts()})
    functions = sorted({name for plan in plans for name in _functions(plan)})
    days = sorted({name for plan in plans for name in _days(plan)})
    return WorkerTables(
        {concept: pull.instances(concept) for concept in concepts},
        {name: dict(pull.pairs(name)) for name in functions},
        {name: frozenset(pull.days(name)) for name in days},
    )


def _functions(plan: PolicyPlan) -> Collection[str]:
    found = looked_up_functions(plan.conditions())
    return found if isinstance(plan, SituationPlan) else found | looked_up(plan)


def _days(plan: PolicyPlan) -> Iterable[str]:
    """The tables of days that its times name."""
    for node in condition_nodes(plan.conditions()):
        if isinstance(node, TimeWindow):
            yield from (day.table for day in node.days if isinstance(day, TableDays))


def decode_tables(raw: bytes) -> WorkerTables:
    """The tables as they were; raises Corrupt."""
    try:
        tables = msgspec.msgpack.decode(raw, type=_Tables)
        instances = {one.concept: _instances(one) for one in tables.instances}
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Corrupt(f"kept tables cannot be read: {error}", code="tables.bad_copy") from None
    pairs = {name: dict(found) for name, found in tables.pairs.items()}
    return WorkerTables(instances, pairs, tables.days)


class _Column(msgspec.Struct, array_like=True):
    """Texts and booleans as they are, numbers as 64-bit floats: `width` in a row, 0 for one."""

    values: list[str | bool | None]
    numbers: bytes = b""
    width: int | None = None


class _Table(msgspec.Struct, array_like=True):
    concept: str
    ids: list[str]
    columns: dict[str, _Column]


class _Tables(msgspec.Struct, array_like=True):
    instances: list[_Table]
    pairs: dict[str, list[tuple[tuple[str, ...], float]]]
    days: dict[str, list[str]] = {}


def _sorted(instances: Instances) -> list[tuple[str, npt.NDArray[Any]]]:
    return sorted(instances.columns.items())


def _column(values: npt.NDArray[Any]) -> _Column:
    if values.dtype == object:
        return _Column(values.tolist())
    numbers = np.ascontiguousarray(values, "<f8")
    return _Column([], numbers.tobytes(), numbers.shape[1] if numbers.ndim > 1 else 0)


def _instances(table: _Table) -> Instances:
    columns = {name: _values(column, len(table.ids)) for name, column in table.columns.items()}
    return Instances(table.concept, table.ids, columns)


def _values(column: _Column, rows: int) -> npt.NDArray[Any]:
    """Raises ValueError for another number of rows."""
    if column.width is None:
        if len(column.values) != rows:
            raise ValueError(f"{len(column.values)} values for {rows} rows")
        found = np.empty(rows, object)
        found[:] = column.values
        return found
    numbers = np.frombuffer(column.numbers, "<f8")
    return numbers.reshape((rows, column.width) if column.width else rows)
