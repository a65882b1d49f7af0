"""Which sources were silent, and which detections that makes uncertain. [PO-7]

A source with a declared period promises an event at least that often. Absence is uncertain if a
source was silent that could have refuted it. Only gaps longer than the period are kept, so the
state is small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import BEGIN_OF_TIME
from rapport.policy.operators.columns import Columns
from rapport.policy.operators.plan_shape import (
    ClauseShape,
    NotFollowed,
    NotPreceded,
    PlanShape,
    longest_window_ms,
)
from rapport.policy.plan import Plan

_WINDOWS_BACK = 8
"""A detection is found at most two windows after its time and depends on the window before that;
the rest is a reserve."""


class SilenceState(msgspec.Struct):
    """The gaps of one source."""

    period_ms: int
    last: int | None = None
    """Its newest event; before its first, the first event of any source."""
    gaps: list[tuple[int, int]] = []
    """From one event to the next, where that exceeded the period."""


def watched_sources(plan: Plan, sources: Mapping[str, PushSource]) -> tuple[str, ...]:
    """The sources with a period on which the plan's absence depends, sorted; empty for `when unsure
    fire`."""
    if plan.when_unsure == "fire":
        return ()
    streams = plan.absent_streams()
    return tuple(
        sorted(name for name, one in sources.items() if one.period_ms > 0 and one.streams & streams)
    )


class SourceSilence:
    """Tracks the readings of all sources in event order."""

    def __init__(self, sources: Mapping[str, PushSource], *, began: int | None = None) -> None:
        """Only sources with a period are tracked.

        Args:
            began: time of the first event of any source, where not all readings are taken here.
        """
        watched = {name: one for name, one in sources.items() if one.period_ms > 0}
        self.streams = {name: one.streams for name, one in watched.items()}
        """Of the tracked sources."""
        self.states = {
            name: SilenceState(one.period_ms, began, []) for name, one in watched.items()
        }
        self._back_ms = 0
        self._seen_until: int | None = None

    def watches(self, streams: Collection[str]) -> bool:
        """Whether a source with a period gives one of the streams."""
        return any(not own.isdisjoint(streams) for own in self.streams.values())

    def reach_back(self, window_ms: int) -> None:
        """Keeps gaps long enough for a plan with this window."""
        self._back_ms = max(self._back_ms, _WINDOWS_BACK * window_ms)

    def take(self, readings: pa.RecordBatch) -> None:
        """Takes readings sorted by time, none older than those before."""
        if not self.states or not len(readings):
            return
        times = readings.column("time").to_numpy()
        if self._seen_until is not None:
            # Not up to the newest reading: detections may lie anywhere within the batch.
            self._forget(self._seen_until - self._back_ms)
        self._seen_until = int(times[-1])
        sources = readings.column("source")
        for name, state in self.states.items():
            if state.last is None:
                state.last = int(times[0])
            own = pc.equal(sources, name).to_numpy(zero_copy_only=False)
            _note_readings(state, times[own])

    def silent(self, streams: Collection[str], start: int, end: int) -> tuple[str, ...]:
        """The sources of these streams that were silent in [start, end), sorted; needs all readings
        before `end`."""
        return tuple(
            sorted(
                name
                for name, state in self.states.items()
                if not self.streams[name].isdisjoint(streams) and _was_silent(state, start, end)
            )
        )

    def periods(self) -> dict[str, int]:
        """The periods by source."""
        return {name: state.period_ms for name, state in self.states.items()}

    def restore(self, states: Mapping[str, SilenceState], watermark: int) -> None:
        """Restores states; a source with a new or changed period counts from the watermark."""
        began = watermark if watermark > BEGIN_OF_TIME else None
        self._seen_until = None
        for name, state in self.states.items():
            saved = states.get(name)
            if saved is not None and saved.period_ms == state.period_ms:
                self.states[name] = saved
            else:
                self.states[name] = SilenceState(state.period_ms, began, [])

    def adopt(self, other: SourceSilence, streams: Collection[str]) -> None:
        """Copies the states of the sources of these streams from another instance that has taken
        the same readings and more."""
        for name, state in other.states.items():
            if not self.streams[name].isdisjoint(streams):
                self.states[name] = state

    def _forget(self, before: int) -> None:
        for state in self.states.values():
            if state.gaps and state.gaps[0][1] <= before:
                state.gaps = [gap for gap in state.gaps if gap[1] > before]


def _note_readings(state: SilenceState, times: npt.NDArray[Any]) -> None:
    if not len(times):
        return
    edges: npt.NDArray[Any] = np.concatenate((np.array([state.last], np.int64), times))
    for place in np.flatnonzero(np.diff(edges) > state.period_ms).tolist():
        state.gaps.append((int(edges[place]), int(edges[place + 1])))
    state.last = int(times[-1])


def _was_silent(state: SilenceState, start: int, end: int) -> bool:
    """A gap counts up to `end`: later events were not known."""
    if state.last is None:
        return False
    gaps = [*state.gaps, (state.last, end)]
    return any(
        min(until, end) - since > state.period_ms and min(until, end) > start
        for since, until in gaps
    )


class AbsenceUncertainty:
    """The streams on which a plan's absence depends."""

    def __init__(
        self, plan: Plan, shape: PlanShape, silence: SourceSilence, uncertainty_ms: int
    ) -> None:
        self._window_ms, self._silence = longest_window_ms(plan), silence
        clauses = (*shape.positive, *shape.mixed)
        terms = {term for clause in shape.absent for term in _refuting(clause)}
        terms |= {term for clause in clauses for term in _negated(clause)}
        self._always = plan.streams_of(terms)
        self._by_clause = [plan.streams_of(_refuting(clause)) for clause in shape.mixed]
        silence.reach_back(self._window_ms + uncertainty_ms)

    def silent(self, found: list[Detection], frame: Columns) -> list[tuple[str, ...]]:
        """The silent sources of each detection; `frame` has the mixed clauses that absence
        satisfied."""
        streams = [set(self._always) for _ in found]
        for number, own in enumerate(self._by_clause):
            for place in frame[f"bare{number}"].nonzero()[0].tolist():
                streams[place] |= own
        return [
            self._silence.silent(own, item.time - self._window_ms, item.time)
            for item, own in zip(found, streams, strict=True)
        ]


def absence_uncertainty(
    plan: Plan, shape: PlanShape, silence: SourceSilence | None, uncertainty_ms: int = 0
) -> AbsenceUncertainty | None:
    """None if nothing can be uncertain: no such source, no absence, or `when unsure fire`."""
    if silence is None or plan.when_unsure == "fire":
        return None
    if not silence.watches(plan.absent_streams()):
        return None
    return AbsenceUncertainty(plan, shape, silence, uncertainty_ms)


def _refuting(clause: ClauseShape) -> Iterable[int]:
    return {term for terms in clause.counterexamples for term in terms}


def _negated(clause: ClauseShape) -> Iterable[int]:
    """Terms that must not follow or precede another."""
    parts = [part for part in clause.parts if isinstance(part, NotFollowed | NotPreceded)]
    return {term for part in parts for term in part.absent}
