"""Which sources kept their promise to be heard: absence is only as good as those who would have
told. [PO-7]

A source with a declared period promises an event at least that often. Only gaps longer than the
period are kept, so the state stays small however many events there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME

_WINDOWS_BACK = 8
"""A detection is found at most two windows after its time and rests on the window before that;
the rest is to spare."""


class SilenceState(msgspec.Struct):
    """What is known of one source: how far it was heard, and where it was not."""

    period_ms: int
    last: int | None = None
    """Its newest event; before its first, the first event of any source."""
    gaps: list[tuple[int, int]] = []
    """From one event to the next, where that took longer than the period."""


def watched_sources(plan: Plan, sources: Mapping[str, PushSource]) -> tuple[str, ...]:
    """The sources with a period on which the plan's absence depends, sorted; none when it fires
    even if unsure.
    """
    if plan.when_unsure == "fire":
        return ()
    streams = plan.absent_streams()
    return tuple(
        sorted(name for name, one in sources.items() if one.period_ms > 0 and one.streams & streams)
    )


class SourceSilence:
    """Hears the readings of all sources in event order and tells who was silent when."""

    def __init__(self, sources: Mapping[str, PushSource], *, began: int | None = None) -> None:
        """Only sources with a period are watched.

        Args:
            began: time of the first event of any source, where not all readings are taken here.
        """
        watched = {name: one for name, one in sources.items() if one.period_ms > 0}
        self._streams = {name: one.streams for name, one in watched.items()}
        self._states = {
            name: SilenceState(one.period_ms, began, []) for name, one in watched.items()
        }
        self._back_ms = 0
        self._seen_until: int | None = None

    def watches(self, streams: Collection[str]) -> bool:
        """Whether some source with a period gives one of the streams."""
        return any(not own.isdisjoint(streams) for own in self._streams.values())

    def reach_back(self, window_ms: int) -> None:
        """Makes sure that what a plan with this window asks for is still known."""
        self._back_ms = max(self._back_ms, _WINDOWS_BACK * window_ms)

    def take(self, readings: pa.RecordBatch) -> None:
        """Takes readings sorted by time, none older than those before."""
        if not self._states or not len(readings):
            return
        times = readings.column("time").to_numpy()
        if self._seen_until is not None:
            # Not by the newest of these: what they decide may lie anywhere among them.
            self._forget(self._seen_until - self._back_ms)
        self._seen_until = int(times[-1])
        sources = readings.column("source")
        for name, state in self._states.items():
            if state.last is None:
                state.last = int(times[0])
            own = pc.equal(sources, name).to_numpy(zero_copy_only=False)
            _hear(state, times[own])

    def silent(self, streams: Collection[str], start: int, end: int) -> tuple[str, ...]:
        """The sources of these streams that were silent in [start, end), sorted; all readings
        before `end` must have been taken.
        """
        return tuple(
            sorted(
                name
                for name, state in self._states.items()
                if not self._streams[name].isdisjoint(streams) and _was_silent(state, start, end)
            )
        )

    def state(self) -> dict[str, SilenceState]:
        """All that must be kept to go on elsewhere."""
        return self._states

    def periods(self) -> dict[str, int]:
        """The period of every source that is watched."""
        return {name: state.period_ms for name, state in self._states.items()}

    def restore(self, states: Mapping[str, SilenceState], watermark: int) -> None:
        """Takes over what is known; a source whose period is new or another is heard from the
        watermark on.
        """
        began = watermark if watermark > -END_OF_TIME else None
        self._seen_until = None
        for name, state in self._states.items():
            saved = states.get(name)
            if saved is not None and saved.period_ms == state.period_ms:
                self._states[name] = saved
            else:
                self._states[name] = SilenceState(state.period_ms, began, [])

    def adopt(self, other: SourceSilence, streams: Collection[str]) -> None:
        """Takes over what another one heard of the sources of these streams; it has taken the same
        readings and more.
        """
        for name, state in other._states.items():
            if not self._streams[name].isdisjoint(streams):
                self._states[name] = state

    def _forget(self, before: int) -> None:
        for state in self._states.values():
            if state.gaps and state.gaps[0][1] <= before:
                state.gaps = [gap for gap in state.gaps if gap[1] > before]


def _hear(state: SilenceState, times: npt.NDArray[Any]) -> None:
    if not len(times):
        return
    edges: npt.NDArray[Any] = np.concatenate((np.array([state.last], np.int64), times))
    for place in np.flatnonzero(np.diff(edges) > state.period_ms).tolist():
        state.gaps.append((int(edges[place]), int(edges[place + 1])))
    state.last = int(times[-1])


def _was_silent(state: SilenceState, start: int, end: int) -> bool:
    """A gap counts as far as it goes before `end`: what came later was not known to come."""
    if state.last is None:
        return False
    gaps = [*state.gaps, (state.last, end)]
    return any(
        min(until, end) - since > state.period_ms and min(until, end) > start
        for since, until in gaps
    )
