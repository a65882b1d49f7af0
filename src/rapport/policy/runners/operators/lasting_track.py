"""One stream in a portion of readings: the last reading of anybody at any moment. [PO-3, PO-6]"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.state_values import LastValues, texts_at
from rapport.policy.runners.operators.table import Array, Mask, Rows

_NONE = np.zeros(0, np.int64)
EXPIRED = -1


class HeldValues(NamedTuple):
    """The last reading of some identities at some moments."""

    known: Mask
    """False before the first reading, and while the last is stale."""
    seen: Mask
    values: Array
    codes: Rows
    rows: Rows
    """Where it stands in the track; -1: it came before this portion."""

    def at(self, rows: Rows) -> HeldValues:
        """What is held in the chosen rows."""
        return HeldValues(
            self.known[rows], self.seen[rows], self.values[rows], self.codes[rows], self.rows[rows]
        )


class Track:
    """What one stream brings in a portion, sorted by identity, then in order of time.

    `readings` says for each step which of the stream's rows it is, EXPIRED where a value ends.
    """

    def __init__(
        self, last: LastValues, rows: StreamRows, readings: Rows, codes: Rows, times: Rows
    ) -> None:
        self.last, self.rows = last, rows
        self.readings, self.codes, self.times = readings, codes, times
        self.order: Rows = _NONE
        self._keys: Rows = _NONE
        self._span = 1

    def arrange(self, order: Rows, span: int) -> None:
        """Sorts the steps, given the place of each among all of the portion."""
        if not len(self.codes):
            return
        self._span = span
        keys = self.codes * span + order
        sorting = np.argsort(keys, kind="stable")
        self._keys, self.order = keys[sorting], order[sorting]
        self.readings, self.codes = self.readings[sorting], self.codes[sorting]
        self.times = self.times[sorting]

    def held(self, codes: Rows, order: Rows) -> HeldValues:
        """The last readings of identities up to places in the order, those included."""
        last = self.last
        last.grow(int(codes.max()) + 1 if len(codes) else 0, self.rows.values)
        assert last.values is not None
        values, known, seen = last.values[codes], last.known[codes], last.seen[codes]
        if not len(self.codes):
            return HeldValues(known, seen, values, codes, np.full(len(codes), -1))
        found = np.searchsorted(self._keys, codes * self._span + order, side="right") - 1
        here = found >= 0
        here[here] = self.codes[found[here]] == codes[here]
        found[~here] = -1
        readings = self.readings[found]
        now = here & (readings != EXPIRED)
        if now.any():
            if values.dtype != self.rows.values.dtype:
                values = values.astype(object)
            values[now] = self.rows.values[readings[now]]
        return HeldValues(np.where(here, now, known), here | seen, values, codes, found)

    def causes(self, held: HeldValues, chosen: Rows, ids: pa.Array) -> tuple[Rows, Array, Rows]:
        """Time, id and clock uncertainty of the readings held in the chosen rows."""
        codes, found = held.codes[chosen], held.rows[chosen]
        last = self.last
        times, names, blurs = last.times[codes], last.ids[codes], last.blurs[codes]
        now = found >= 0
        if now.any():
            readings = self.readings[found[now]]
            times[now] = self.rows.times[readings]
            names[now] = texts_at(ids, self.rows.ordinals[readings])
            if self.rows.blurs is not None:
                blurs[now] = self.rows.blurs[readings]
        return times, names, blurs

    def settle(self, stale: Rows, ids: pa.Array) -> None:
        """The last readings of this portion become those to go on from."""
        if not len(self.codes):
            return
        is_reading = self.readings != EXPIRED
        newest = np.flatnonzero(is_last(self.codes[is_reading]))
        steps = np.flatnonzero(is_reading)[newest]
        ended = self.codes[is_last(self.codes) & ~is_reading]
        steps = steps[np.argsort(self.times[steps], kind="stable")]
        codes, readings = self.codes[steps], self.readings[steps]
        if len(codes):
            after = np.where(np.isin(codes, ended), 0, stale[readings]) if len(ended) else None
            blurs = self.rows.blurs
            self.last.note(
                codes,
                self.times[steps],
                self.rows.values[readings],
                texts_at(ids, self.rows.ordinals[readings]),
                stale[readings] if after is None else after,
                np.zeros(len(codes), np.int64) if blurs is None else blurs[readings],
            )
        if len(ended):
            self.last.forget_value(ended)


def is_last(codes: Rows) -> Mask:
    """Which of the rows sorted by code are the last of theirs."""
    found = np.ones(len(codes), np.bool_)
    found[:-1] = codes[1:] != codes[:-1]
    return found
