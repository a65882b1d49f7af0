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
)
from rapport.policy.operators.identities import Identities, IdentityFilter, blurs_of, rows_of_stream
from rapport.policy.operators.timeline import LastValues, texts_at
from rapport.policy.plan import SilentTerm


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
        self._last = LastValues()
        """The last reading of every identity, or the start of waiting for one without a reading
        (its id is None). It becomes stale when its silence is due."""
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
        _, codes = self._last.pop_stale(watermark)
        self._last.forget_value(codes)
        found.append(self._occurrences(self._silences(codes)))
        occurrences = concatenate(found)
        return take(occurrences, np.lexsort((occurrences["first"], occurrences["end"])))

    def pending_until(self) -> int | None:
        """When the first identity has been silent long enough."""
        return self._last.first_stale()

    def advance_to(self, watermark: int) -> None:
        """New table instances count from this watermark."""
        if self._began is not None:
            self._until = max(self._until, watermark)

    def lasted(self) -> list[tuple[Cause, ...]]:
        """Always empty: a silence is not a state."""
        return []

    def state(self) -> Any:
        kept = self._last.state()
        heard = {name: kept[name] for name in ("codes", "times", "ids", "blurs")}
        return {
            "began": self._began,
            "until": self._until,
            "heard": heard | {"waiting": kept["known"]},
        }

    def restore(self, state: Any) -> None:
        """Restores a state after the identities.

        New table instances count from the restored time; identities that no longer satisfy the
        constraints, or that disappeared from the tables without a reading, are no longer expected.
        """
        self._id_filter.forget()
        self._began, self._until, heard = state["began"], state["until"], state["heard"]
        codes, ids, waiting = heard["codes"], heard["ids"], heard["waiting"]
        kept = ~waiting | self._is_expected(codes, ids)
        duration = np.where(waiting, self._term.duration_ms, 0)
        columns = {
            "codes": codes,
            "known": waiting,
            "times": heard["times"],
            "stale": duration,
            "blurs": heard["blurs"],
            "ids": ids,
            "values": np.zeros((len(codes), 0)),
        }
        self._last = LastValues.restored(take(columns, kept))
        if self._began is not None:
            self._expect(max(self._began, self._until))

    def _is_expected(self, codes: Rows, ids: Array) -> Mask:
        """Which identities are valid by the current tables; `ids`: of their last readings."""
        names = self._identities.texts(codes).tolist()
        is_known = self._identities.instances.rows(names) >= 0
        has_reading = np.array([id is not None for id in ids], np.bool_)
        return np.asarray(self._id_filter.allowed()[codes] & (is_known | has_reading))

    def _begin(self, time: int) -> None:
        self._began = self._until = time
        self._expect(time)

    def _expect(self, time: int) -> None:
        """Table instances without a reading are silent from a time on."""
        known = self._identities.encode_list(self._identities.instances.ids)
        codes = known[self._id_filter.allowed()[known]]
        self._last.grow(len(self._identities.ids))
        codes = codes[~self._last.seen[codes]]
        none = np.full(len(codes), None, object)
        self._note(codes, np.full(len(codes), time), none, np.zeros_like(codes))

    def _note(self, codes: Rows, times: Rows, ids: Array, blurs: Rows) -> None:
        """Sets the last reading of some codes, each once."""
        order = np.argsort(times, kind="stable")
        duration = np.full(len(codes), self._term.duration_ms)
        values = np.zeros((len(codes), 0))
        self._last.note(codes[order], times[order], values, ids[order], duration, blurs[order])

    def _process_readings(self, readings: pa.RecordBatch) -> Columns:
        """The silences that readings ended too late."""
        codes, places = self._steps(readings)
        if not len(codes):
            return self._occurrences(self._silences(NO_ROWS))
        times = readings.column("time").to_numpy()[places]
        ids = readings.column("id")
        blurs = blurs_of(readings, self._blurs)[places] if self._blurs else np.zeros_like(codes)
        begins = np.append(True, codes[1:] != codes[:-1])
        first = np.flatnonzero(begins)
        self._last.grow(len(self._identities.ids))
        waited = first[self._last.known[codes[first]]]
        old = waited[times[waited] >= self._last.times[codes[waited]] + self._term.duration_ms]
        before = np.flatnonzero(~begins) - 1
        before = before[times[before + 1] >= times[before] + self._term.duration_ms]
        found = [
            self._occurrences(self._silences(codes[old])),
            self._occurrences(
                SilenceRows(
                    codes[before], times[before], texts_at(ids, places[before]), blurs[before]
                )
            ),
        ]
        last = np.append(first[1:], len(codes)) - 1
        self._note(codes[last], times[last], texts_at(ids, places[last]), blurs[last])
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

    def _silences(self, codes: Rows) -> SilenceRows:
        last = self._last
        last.grow(len(self._identities.ids))
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
