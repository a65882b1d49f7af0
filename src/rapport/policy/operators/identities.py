"""Identities as small integers, and the readings of a stream with their codes: text is compared
once per batch, later steps use codes. [PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import identity_order
from rapport.policy.operators.columns import (
    OPERATIONS,
    Mask,
)
from rapport.policy.plan import Constraint, Side
from rapport.tables.instances import Instances

Codes = npt.NDArray[np.int64]


class ValueNumbering(Protocol):
    def of(self, values: npt.NDArray[Any]) -> Codes:
        """The number of each value, -1 without one."""


_FEW = 16
"""Below this many rows Python is faster than a call into Arrow."""
_MANY_TIMES = 4
"""Up to so many times as many identities as keys, looking all up in Arrow is faster."""


class OneOfConstraint(Constraint, frozen=True, kw_only=True):
    """The attribute has one of the values that the members of a family ask for."""

    choice: ValueNumbering


class Identities:
    """The identities of one concept seen so far, table instances first; a code is an index into
    `ids`.

    Grows with the number of identities, not with the stream.
    """

    def __init__(self, instances: Instances) -> None:
        self.instances = instances
        self.ids: list[str] = []
        self._codes: dict[str, int] = {}
        self._ranks: Codes = np.zeros(0, np.int64)
        self._rows: Codes = np.zeros(0, np.int64)
        self._rows_known = 0
        self._column: pa.Array = pa.nulls(0, pa.string())
        self.encode_list(instances.ids)

    def encode_list(self, ids: Sequence[str]) -> Codes:
        """Codes of the ids; adds new ones."""
        codes, known = self._codes, self.ids
        found = np.empty(len(ids), np.int64)
        for place, identity in enumerate(ids):
            code = codes.get(identity)
            if code is None:
                code = codes[identity] = len(known)
                known.append(identity)
            found[place] = code
        return found

    def code(self, identity: str) -> int:
        """The code of an id; -1 if it was not seen."""
        return self._codes.get(identity, -1)

    def encode(self, keys: pa.Array) -> Codes:
        """Codes of a text column; Python handles only its distinct values."""
        if len(keys) < _FEW:
            return self.encode_list(keys.to_pylist())
        if len(self.ids) <= _MANY_TIMES * len(keys):
            places = pc.index_in(keys, value_set=self._as_column())
            if not places.null_count:
                known: Codes = places.to_numpy().astype(np.int64)
                return known
        encoded = keys.dictionary_encode()
        codes = self.encode_list(encoded.dictionary.to_pylist())
        found: Codes = codes[encoded.indices.to_numpy()]
        return found

    def _as_column(self) -> pa.Array:
        """The ids as a column; cached until an identity is added."""
        if len(self._column) != len(self.ids):
            self._column = pa.array(self.ids, pa.string())
        return self._column

    def begins_with(self, ids: Sequence[str] | None) -> bool:
        """Whether these ids have the codes 0, 1, 2, ...; true for None."""
        return ids is None or self.ids[: len(ids)] == ids

    def restore(self, ids: list[str]) -> None:
        """Restores the codes of a snapshot; adds instances that are new since then."""
        self.ids, self._codes, self._rows_known = [], {}, 0
        self._column = pa.nulls(0, pa.string())
        self.encode_list(ids)
        self.encode_list(self.instances.ids)

    def ranks(self) -> Codes:
        """The rank of each code in output order; cached until an identity is added."""
        if len(self._ranks) != len(self.ids):
            order = sorted(range(len(self.ids)), key=lambda code: identity_order(self.ids[code]))
            self._ranks = np.empty(len(order), np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks

    def texts(self, codes: Codes) -> npt.NDArray[Any]:
        """The ids of codes, as objects."""
        found = np.empty(len(codes), object)
        found[:] = [self.ids[code] for code in codes.tolist()]
        return found

    def has(self, attribute: str) -> bool:
        """Whether tables give the attribute; `id` is the identity itself."""
        return attribute == "id" or attribute in self.instances.columns

    def values(self, attribute: str, codes: Codes) -> npt.NDArray[Any]:
        """The table values (n, parts) of an attribute; None or NaN where missing."""
        if attribute == "id":
            return self.texts(codes).reshape(-1, 1)
        column = self.instances.columns.get(attribute)
        if column is None or not len(column):
            parts = 1 if column is None or column.ndim == 1 else column.shape[1]
            return np.full((len(codes), parts), None if _is_object(column) else np.nan)
        column = column if column.ndim == 2 else column.reshape(-1, 1)
        rows = self._table_rows()[codes]
        found: npt.NDArray[Any] = column[rows]
        unknown = rows < 0
        if unknown.any():
            found[unknown] = None if _is_object(column) else np.nan
        return found

    def _table_rows(self) -> Codes:
        """The table row of each code, -1 if unknown; grows by doubling."""
        if self._rows_known < len(self.ids):
            if len(self._rows) < len(self.ids):
                wider = np.full(2 * len(self.ids), -1, np.int64)
                wider[: self._rows_known] = self._rows[: self._rows_known]
                self._rows = wider
            known, self._rows_known = self._rows_known, len(self.ids)
            self._rows[known : self._rows_known] = self.instances.rows(self.ids[known:])
        return self._rows


def _is_object(column: npt.NDArray[Any] | None) -> bool:
    return column is None or column.dtype == object


class IdentityFilter:
    """Which identities satisfy the constraints of a side, by code."""

    def __init__(self, side: Side, identities: Identities) -> None:
        self._side, self._identities = side, identities
        self._allowed = np.zeros(0, np.bool_)

    def allowed(self) -> Mask:
        """One boolean per code. An identity without a table row satisfies only an empty list."""
        missing = len(self._identities.ids) - len(self._allowed)
        if missing:
            self._allowed = np.concatenate(
                (self._allowed, self._judge(self._identities.ids[len(self._allowed) :]))
            )
        return self._allowed

    def among(self, codes: Codes) -> Codes:
        """The distinct codes that satisfy the constraints."""
        distinct = np.unique(codes) if len(codes) > 1 else codes
        return distinct[self.allowed()[distinct]]

    def forget(self) -> None:
        """Evaluates again at the next query, because the codes changed."""
        self._allowed = np.zeros(0, np.bool_)

    def _judge(self, ids: list[str]) -> Mask:
        if not self._side.constraints:
            return np.ones(len(ids), np.bool_)
        instances = self._identities.instances
        known = satisfies(instances, self._side.constraints)
        rows = instances.rows(ids)
        found = np.zeros(len(ids), np.bool_)
        found[rows >= 0] = known[rows[rows >= 0]]
        return found


def satisfies(instances: Instances, constraints: Sequence[Constraint]) -> Mask:
    """Which instances satisfy all constraints; a missing value satisfies none, not even `!=`."""
    mask = np.ones(len(instances), np.bool_)
    for constraint in constraints:
        column = instances.columns.get(constraint.attribute)
        if column is None:
            return np.zeros(len(instances), np.bool_)
        mask &= _compare(column, constraint)
    return mask


def _compare(column: npt.NDArray[Any], constraint: Constraint) -> Mask:
    if isinstance(constraint, OneOfConstraint):
        return np.asarray(constraint.choice.of(column) >= 0)
    if column.dtype == object:
        return np.fromiter((_holds(value, constraint) for value in column), np.bool_, len(column))
    with np.errstate(invalid="ignore"):
        mask = OPERATIONS[constraint.operator](column, float(constraint.value))
    return np.asarray(mask & ~np.isnan(column), np.bool_)


def _holds(value: Any, constraint: Constraint) -> bool:
    if value is None:
        return False
    wanted: Any = constraint.value
    if isinstance(value, bool | np.bool_):
        wanted = wanted.lower() == "true" if isinstance(wanted, str) else bool(wanted)
    elif isinstance(value, str):
        wanted = str(wanted)
    return bool(OPERATIONS[constraint.operator](value, wanted))


class StreamRows:
    """The readings of one stream in a batch: key codes, times, ordinals, values (n, parts), and
    clock uncertainty if a source declares one."""

    __slots__ = ("blurs", "codes", "made", "ordinals", "times", "values")

    def __init__(
        self, codes: Codes, times: Codes, ordinals: Codes, values: npt.NDArray[Any]
    ) -> None:
        self.codes, self.times, self.ordinals, self.values = codes, times, ordinals, values
        self.blurs: Codes | None = None
        self.made: dict[Hashable, Any] = {}
        """Results of steps for these rows, shared by operators."""


def rows_of_stream(
    readings: pa.RecordBatch, stream: str, identities: Identities, first_ordinal: int
) -> StreamRows | None:
    """The rows of a stream; None if the batch has none. Ordinals count events in (time,
    id) order."""
    ordinals = np.arange(first_ordinal, first_ordinal + len(readings))
    mask = _is_of(stream, readings.column("stream"))
    if not mask.all():
        if not mask.any():
            return None
        ordinals = ordinals[mask]
        readings = readings.filter(pa.array(mask))
    return StreamRows(
        identities.encode(readings.column("key")),
        readings.column("time").to_numpy(),
        ordinals,
        _values(readings, stream),
    )


def blurs_of(readings: pa.RecordBatch, by_source: Mapping[str, int]) -> Codes:
    """The clock uncertainty of each reading's source."""
    encoded = readings.column("source").dictionary_encode()
    known = [by_source.get(name, 0) for name in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
    found: Codes = np.array([*known, 0], np.int64)[places]
    return found


def _is_of(stream: str, column: pa.Array) -> npt.NDArray[np.bool_]:
    if len(column) < _FEW:
        return np.array([name == stream for name in column.to_pylist()])
    mask: npt.NDArray[np.bool_] = pc.equal(column, stream).to_numpy(zero_copy_only=False)
    return mask


def _values(readings: pa.RecordBatch, stream: str) -> npt.NDArray[Any]:
    prefix = f"{stream}."
    names = [name for name in readings.schema.names if name.startswith(prefix)]
    parts = [readings.column(name) for name in names if "." not in name[len(prefix) :]]
    return np.column_stack([part.to_numpy(zero_copy_only=False) for part in parts])
