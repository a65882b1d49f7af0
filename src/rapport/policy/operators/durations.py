"""`C for D`: finds the intervals in which a state held that long. [PO-3, PO-6, PO-7]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Cause
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import Array, Columns, Mask, Rows, concatenate, take
from rapport.policy.operators.identities import Identities, IdentityFilter
from rapport.policy.operators.state_bindings import (
    BindingRows,
    Bindings,
    PairBindings,
    SingleAliasBindings,
    StateEnd,
    StateTruth,
    TableBindings,
)
from rapport.policy.operators.timeline import (
    FAR,
    NOT_ENDED,
    IntervalRows,
    LastValues,
    OpenIntervals,
    Timeline,
    Track,
    TrueRows,
    find_runs,
)
from rapport.policy.plan import LastingTerm, streams_of_term


class DurationStep:
    """One `for`. Costs the readings and the rows that are true; remembers the last reading of every
    identity and the open intervals.

    Readings are processed in portions: the past of a portion is in the last values and open
    intervals, its changes are evaluated in columns.
    """

    def __init__(
        self,
        term: LastingTerm,
        identities: Mapping[str, Identities],
        pull: PullData,
        sources: Mapping[str, PushSource],
    ) -> None:
        self._term, self._identities = term, identities
        self._duration = term.duration_ms
        self._truth = StateTruth(term, identities, pull)
        self._id_filters = tuple(
            IdentityFilter(side, identities[side.concept]) for side in (term.first, term.second)
        )
        self._timed = sorted({end.place for end in self._truth.ends})
        self._paired = len(self._timed) == 2
        own = [one for one in sources.values() if one.streams & streams_of_term(term)]
        self._blurs = {one.name: one.uncertainty_ms for one in own if one.uncertainty_ms}
        self._timeline = Timeline(
            self._streams(),
            identities,
            {one.name: one.stale_after_ms for one in own if one.stale_after_ms},
            self._blurs,
        )
        self._stretches = OpenIntervals(term.duration_ms, paired=self._paired)
        self._bindings = self._make_bindings()

    def take(self, readings: pa.RecordBatch, watermark: int) -> Columns:
        return concatenate(
            [self._advance(part, limit) for part, limit in self._portions(readings, watermark)]
        )

    def pending_until(self) -> int | None:
        """When the first open interval reaches the duration."""
        return self._stretches.first_due()

    def lasted(self) -> list[tuple[Cause, ...]]:
        return self._stretches.lasted()

    def advance_to(self, watermark: int) -> None:
        """Nothing to do: every interval begins with a reading."""

    def state(self) -> Any:
        last = {stream: values.state() for stream, values in self._timeline.last.items()}
        return {"last": last, "stretches": self._stretches.state()}

    def restore(self, state: Any) -> None:
        """Restores a state after the identities.

        Intervals of identities that no longer satisfy the constraints, or that disappeared from the
        tables without readings of their own, have ended.
        """
        for stream, kept in state["last"].items():
            self._timeline.last[stream] = LastValues.restored(kept)
        self._stretches = OpenIntervals.restored(
            self._duration, state["stretches"], paired=self._paired
        )
        for id_filter in self._id_filters:
            id_filter.forget()
        self._stretches.forget(self._invalid)
        self._bindings = self._make_bindings()

    def _invalid(self, own: Rows, partner: Rows) -> Mask:
        """Bindings that are invalid by the current tables."""
        codes = (own, partner) if self._timed[0] == 0 else (partner, own)
        invalid = np.zeros(len(own), np.bool_)
        for place, side in enumerate((self._term.first, self._term.second)):
            invalid |= ~self._id_filters[place].allowed()[codes[place]]
            if side.alias not in self._aliases_with_readings():
                known = self._identities[side.concept]
                invalid |= known.instances.rows(known.texts(codes[place]).tolist()) < 0
        return invalid

    def _aliases_with_readings(self) -> set[str]:
        """The aliases with readings; tables give the others."""
        sides = (self._term.first, self._term.second)
        return {sides[place].alias for place in self._timed}

    def _streams(self) -> dict[str, list[IdentityFilter]]:
        streams: dict[str, list[IdentityFilter]] = {}
        for end in self._truth.ends:
            streams.setdefault(end.stream, []).append(self._id_filters[end.place])
        return streams

    def _make_bindings(self) -> Bindings:
        first, second = self._id_filters
        if self._paired:
            return PairBindings(self._truth, (first, second), self._timeline.last)
        if self._term.first.alias == self._term.second.alias:
            return SingleAliasBindings(self._truth)
        other = 1 - self._timed[0]
        concept = (self._term.first, self._term.second)[other].concept
        return TableBindings(
            self._truth, self._timed[0], self._id_filters[other], self._identities[concept]
        )

    def _portions(
        self, readings: pa.RecordBatch, watermark: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Parts of the readings, each with the time up to which everything is known. Values that
        become stale by the last reading's time belong to the earlier part."""
        first = 0
        while len(readings) - first > (most := self._bindings.most_readings()):
            part = readings.slice(first, most)
            yield part, part.column("time")[most - 1].as_py() + 1
            first += most
        yield readings.slice(first), watermark

    def _advance(self, readings: pa.RecordBatch, limit: int) -> Columns:
        tracks = self._timeline.tracks(readings, limit)
        look = self._bindings.look(tracks, self._stretches)
        found = [] if look is None else [self._update_intervals(look, tracks)]
        self._timeline.settle(tracks)
        lasted = self._stretches.pop_due(limit)
        if len(lasted.own) or not found:
            found.append(self._occurrences(lasted))
        occurrences = concatenate(found)
        if len(occurrences["end"]) < 2:
            return occurrences
        order = np.lexsort((occurrences["second"], occurrences["first"], occurrences["end"]))
        return take(occurrences, order)

    def _update_intervals(self, look: BindingRows, tracks: Mapping[str, Track]) -> Columns:
        """Ends and begins intervals; returns those that had reached the duration when
        they ended."""
        own = look.moments.own[look.rows]
        codes = (own, look.partners) if self._timed[0] == 0 else (look.partners, own)
        true, shown = self._truth.evaluate(codes, look.held)
        rows = TrueRows(look.rows[true], look.partners[true])
        opened, groups = self._stretches.of(look.moments.keys)
        partners = self._stretches.columns["partner"][opened]
        runs = find_runs(look.moments, rows, groups, partners)
        ended, when = runs.ends_of_opened()
        lasted = self._stretches.end(opened[ended], when)
        chosen, when = self._kept_intervals(look.moments.times[rows.moments], *runs.begun())
        started = self._new_intervals(
            look, tracks, true[chosen], {e: m[chosen] for e, m in shown.items()}
        )
        over = when < NOT_ENDED
        self._stretches.add(_some(started, ~over))
        return concatenate([self._occurrences(lasted), self._occurrences(_some(started, over))])

    def _kept_intervals(self, times: Rows, started: Rows, ended: Rows) -> tuple[Rows, Rows]:
        """Of the intervals that began, those that are open or long enough, in order of time."""
        since = times[started]
        kept = np.flatnonzero((ended == NOT_ENDED) | (ended >= since + self._duration))
        kept = kept[np.argsort(since[kept], kind="stable")]
        return started[kept], ended[kept]

    def _new_intervals(
        self,
        look: BindingRows,
        tracks: Mapping[str, Track],
        rows: Rows,
        shown: Mapping[StateEnd, Mask],
    ) -> IntervalRows:
        """The intervals that begin in some rows, with the readings of their true terms."""
        at = look.rows[rows]
        start, blur = np.full(len(rows), FAR), np.zeros(len(rows), np.int64)
        causes = _objects([()] * len(rows))
        for end, mask in shown.items():
            reads = np.flatnonzero(mask)
            if len(reads):
                track, held = tracks[end.stream], look.held[end]
                times, ids, blurs = self._timeline.causes(track, held, rows[reads])
                start[reads] = np.minimum(start[reads], times)
                blur[reads] = np.maximum(blur[reads], blurs)
                pairs = zip(causes[reads], times.tolist(), ids.tolist(), strict=True)
                causes[reads] = _objects([(*known, (time, id)) for known, time, id in pairs])
        own, since = look.moments.own[at], look.moments.times[at]
        return IntervalRows(own, look.partners[rows], since, start, blur, causes)

    def _occurrences(self, started: IntervalRows) -> Columns:
        end = started.since + self._duration
        first, second = started.own, started.partner
        if self._timed[0] == 1:
            first, second = second, first
        found: Columns = {
            "first": first,
            "second": second,
            "end": end,
            "start": np.where(started.start == FAR, end, started.start),
            "causes": _objects([tuple(sorted(set(causes))) for causes in started.causes]),
        }
        if self._blurs:
            found["uncertainty"] = started.blur
        return found


def _some(started: IntervalRows, chosen: Mask) -> IntervalRows:
    return IntervalRows(*(column[chosen] for column in started))


def _objects(items: list[Any]) -> Array:
    """A column of tuples, which numpy would split."""
    return np.fromiter(items, object, len(items))
