"""`no X of S for D`: finds identities without a reading for that long. [PO-3, PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Columns,
    Mask,
    Rows,
    concatenate,
    take,
    widened,
)
from rapport.policy.operators.identities import Identities, IdentityFilter, blurs_of, rows_of_stream
from rapport.policy.operators.timeline import DueQueue, texts_at
from rapport.policy.plan import SilentTerm

_FIRST_SIZE = 64
_COLUMNS = ("times", "ids", "blurs", "marks", "waiting")


class LastHeard:
    """The last reading by code, in columns that grow by doubling with the number of identities."""

    def __init__(self) -> None:
        self.times: Rows = np.zeros(0, np.int64)
        self.ids: Array = np.zeros(0, object)
        """The id of the last reading; None: none yet, and `times` is the start of waiting."""
        self.blurs: Rows = np.zeros(0, np.int64)
        self.marks: Rows = np.zeros(0, np.int64)
        """Changes with every reading; 0: never seen nor expected."""
        self.waiting: Mask = np.zeros(0, np.bool_)
        """False once its silence was reported."""
        self._last_mark = 0

    def note(self, codes: Rows, times: Rows, ids: Array, blurs: Rows) -> None:
        """Sets the last reading of some codes, each once."""
        self._grow(int(codes.max()) + 1 if len(codes) else 0)
        self.times[codes], self.ids[codes], self.blurs[codes] = times, ids, blurs
        self.waiting[codes] = True
        self.marks[codes] = np.arange(self._last_mark + 1, self._last_mark + 1 + len(codes))
        self._last_mark += len(codes)

    def forget(self, codes: Rows) -> None:
        """As if never seen nor expected."""
        self.waiting[codes] = False
        self.marks[codes] = 0

    def has(self, codes: Rows) -> Mask:
        """Which codes were seen or are expected."""
        return self._at(self.marks > 0, codes)

    def waits(self, codes: Rows) -> Mask:
        """Which codes have an unreported silence."""
        return self._at(self.waiting, codes)

    def is_waiting(self, codes: Rows, marks: Rows) -> Mask:
        """Which codes have an unreported silence and no reading since a mark."""
        return np.asarray(self.waiting[codes] & (self.marks[codes] == marks))

    def state(self) -> dict[str, Any]:
        codes = np.flatnonzero(self.marks)
        kept = {name: getattr(self, name)[codes] for name in ("times", "ids", "blurs", "waiting")}
        return {"codes": codes, **kept}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> LastHeard:
        made, codes = cls(), state["codes"]
        made.note(codes, state["times"], state["ids"], state["blurs"])
        made.waiting[codes] = state["waiting"]
        return made

    def _at(self, column: Mask, codes: Rows) -> Mask:
        known = codes < len(column)
        found = np.zeros(len(codes), np.bool_)
        found[known] = column[codes[known]]
        return found

    def _grow(self, size: int) -> None:
        if size > len(self.times):
            wider = max(2 * len(self.times), size, _FIRST_SIZE)
            for name in _COLUMNS:
                setattr(self, name, widened(getattr(self, name), wider))


class SilenceRows(NamedTuple):
    """Identities that became silent, and their last readings."""

    codes: Rows
    since: Rows
    ids: Array
    """None: no reading since the policy's start."""
    blurs: Rows


class SilenceStep:
    """One `no`. Costs the readings of its streams and the silences; remembers the last reading of
    every identity.

    A silence that a reading ended is found between two readings, an ongoing one when due.
    """

    def __init__(
        self,
        term: SilentTerm,
        identities: Identities,
        sources: Mapping[str, PushSource],
        began: int | None = None,
    ) -> None:
        self._term, self._identities = term, identities
        self._id_filter = IdentityFilter(term.first, identities)
        own = [one for one in sources.values() if one.streams & frozenset(term.streams)]
        self._blurs = {one.name: one.uncertainty_ms for one in own if one.uncertainty_ms}
        self._last_heard = LastHeard()
        self._due = DueQueue(self._last_heard.is_waiting)
        self._began: int | None = None
        self._until = 0
        if began is not None:
            self._begin(began)

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        found = []
        if len(readings):
            if self._began is None:
                self._begin(readings.column("time")[0].as_py())
            found.append(self._process_readings(readings))
        if self._began is not None:
            self._until = watermark
        _, codes, _ = self._due.pop_before(watermark)
        self._last_heard.waiting[codes] = False
        found.append(self._occurrences(self._last(codes)))
        occurrences = concatenate(found)
        return take(occurrences, np.lexsort((occurrences["first"], occurrences["end"])))

    def pending_until(self) -> int | None:
        """When the first identity has been silent long enough."""
        return self._due.first()

    def advance_to(self, watermark: int) -> None:
        """New table instances count from this watermark."""
        if self._began is not None:
            self._until = max(self._until, watermark)

    def lasted(self) -> list[tuple[Cause, ...]]:
        """Always empty: a silence is not a state."""
        return []

    def state(self) -> Any:
        return {"began": self._began, "until": self._until, "heard": self._last_heard.state()}

    def restore(self, state: Any) -> None:
        """Restores a state after the identities.

        New table instances count from the restored time; identities that no longer satisfy the
        constraints, or that disappeared from the tables without a reading, are no longer expected.
        """
        self._id_filter.forget()
        self._last_heard = LastHeard.restored(state["heard"])
        self._last_heard.forget(self._invalid(np.flatnonzero(self._last_heard.waiting)))
        self._due = DueQueue(self._last_heard.is_waiting)
        self._began, self._until = state["began"], state["until"]
        self._wait(np.flatnonzero(self._last_heard.waiting))
        if self._began is not None:
            self._expect(max(self._began, self._until))

    def _invalid(self, codes: Rows) -> Rows:
        """Identities that are invalid by the current tables."""
        ids = self._identities.texts(codes)
        is_known = self._identities.instances.rows(ids.tolist()) >= 0
        has_reading = np.array([id is not None for id in self._last_heard.ids[codes]], np.bool_)
        return codes[~(self._id_filter.allowed()[codes] & (is_known | has_reading))]

    def _begin(self, time: int) -> None:
        self._began = self._until = time
        self._expect(time)

    def _expect(self, time: int) -> None:
        """Table instances without a reading are silent from a time on."""
        known = self._identities.encode_list(self._identities.instances.ids)
        codes = known[self._id_filter.allowed()[known]]
        codes = codes[~self._last_heard.has(codes)]
        self._last_heard.note(
            codes, np.full(len(codes), time), _no_ids(codes), np.zeros_like(codes)
        )
        self._wait(codes)

    def _wait(self, codes: Rows) -> None:
        """Queues due times; last readings are no earlier than those already queued."""
        codes = codes[np.argsort(self._last_heard.times[codes], kind="stable")]
        due = self._last_heard.times[codes] + self._term.duration_ms
        self._due.push(due, codes, self._last_heard.marks[codes])

    def _process_readings(self, readings: pa.RecordBatch) -> Columns:
        """The silences that readings ended too late."""
        codes, places = self._steps(readings)
        if not len(codes):
            return self._occurrences(self._last(NO_ROWS))
        times = readings.column("time").to_numpy()[places]
        ids = readings.column("id")
        blurs = blurs_of(readings, self._blurs)[places] if self._blurs else np.zeros_like(codes)
        begins = np.append(True, codes[1:] != codes[:-1])
        first = np.flatnonzero(begins)
        waited = first[self._last_heard.waits(codes[first])]
        old = waited[
            times[waited] >= self._last_heard.times[codes[waited]] + self._term.duration_ms
        ]
        before = np.flatnonzero(~begins) - 1
        before = before[times[before + 1] >= times[before] + self._term.duration_ms]
        found = [
            self._occurrences(self._last(codes[old])),
            self._occurrences(
                SilenceRows(
                    codes[before], times[before], texts_at(ids, places[before]), blurs[before]
                )
            ),
        ]
        last = np.append(first[1:], len(codes)) - 1
        self._last_heard.note(codes[last], times[last], texts_at(ids, places[last]), blurs[last])
        self._wait(codes[last])
        return concatenate(found)

    def _steps(self, readings: pa.RecordBatch) -> tuple[Rows, Rows]:
        """Codes and batch positions of readings, by code, then in order."""
        codes, places = [NO_ROWS], [NO_ROWS]
        for stream in self._term.streams:
            rows = rows_of_stream(readings, stream, self._identities, 0)
            if rows is not None:
                suits = self._id_filter.allowed()[rows.codes]
                codes.append(rows.codes[suits])
                places.append(rows.ordinals[suits])
        all_codes, all_places = np.concatenate(codes), np.concatenate(places)
        order = np.argsort(all_codes * (len(readings) + 1) + all_places)
        return all_codes[order], all_places[order]

    def _last(self, codes: Rows) -> SilenceRows:
        last = self._last_heard
        return SilenceRows(codes, last.times[codes], last.ids[codes], last.blurs[codes])

    def _occurrences(self, silences: SilenceRows) -> Columns:
        end = silences.since + self._term.duration_ms
        without_reading = np.array([id is None for id in silences.ids], np.bool_)
        causes = (
            () if id is None else ((time, id),)
            for time, id in zip(silences.since.tolist(), silences.ids.tolist(), strict=True)
        )
        found: Columns = {
            "first": silences.codes,
            "second": silences.codes,
            "end": end,
            "start": np.where(without_reading, end, silences.since),
            "causes": np.fromiter(causes, object, len(end)),
        }
        if self._blurs:
            found["uncertainty"] = silences.blurs
        return found


def _no_ids(codes: Rows) -> Array:
    return np.full(len(codes), None, object)
