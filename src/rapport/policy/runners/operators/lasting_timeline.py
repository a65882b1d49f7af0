"""A portion of readings as the steps by which states change: what came, and what grew too old.
[PO-3, PO-6]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from rapport.policy.runners.operators.identities import Identities, IdentityFilter
from rapport.policy.runners.operators.intake import StreamRows, blurs_of, rows_of_stream
from rapport.policy.runners.operators.lasting_track import EXPIRED, HeldValues, Track, is_last
from rapport.policy.runners.operators.state_values import LastValues
from rapport.policy.runners.operators.table import Array, Rows

_NONE = np.zeros(0, np.int64)


class Timeline:
    """Keeps the last readings of some streams and turns portions of readings into tracks."""

    def __init__(
        self,
        streams: Mapping[str, Sequence[IdentityFilter]],
        identities: Mapping[str, Identities],
        stale: Mapping[str, int],
        blurs: Mapping[str, int],
    ) -> None:
        """
        Args:
            streams: each with who it may be about: readings that suit nobody are passed over.
            stale: how long the readings of a source count, where that is limited.
            blurs: how far the clock of a source may be wrong, where it may.
        """
        self._streams, self._identities = streams, identities
        self._stale, self._blurs = stale, blurs
        self.last = {stream: LastValues() for stream in streams}
        self._ids: pa.Array = pa.array([], pa.string())
        self._stale_of: dict[str, Rows] = {}

    def tracks(self, readings: pa.RecordBatch, limit: int) -> dict[str, Track]:
        """The steps of a portion, in which time runs up to `limit` (exclusive), by stream; only
        streams of which something was ever seen.
        """
        if len(readings):
            self._ids = readings.column("id")
        made = {}
        for stream in self._streams:
            track = self._track(stream, readings, limit)
            if track is not None:
                made[stream] = track
        _arrange(list(made.values()), len(readings))
        return made

    def settle(self, tracks: Mapping[str, Track]) -> None:
        """Goes on from the end of a portion."""
        for stream, track in tracks.items():
            track.settle(self._stale_of[stream], self._ids)

    def causes(self, track: Track, held: HeldValues, chosen: Rows) -> tuple[Rows, Array, Rows]:
        """Time, id and clock uncertainty of the readings held in the chosen rows."""
        return track.causes(held, chosen, self._ids)

    def _track(self, stream: str, readings: pa.RecordBatch, limit: int) -> Track | None:
        last = self.last[stream]
        rows = self._rows(stream, readings)
        if rows is None:
            if last.values is None:
                return None
            rows = StreamRows(_NONE, _NONE, _NONE, last.values[:0])
        stale = self._stale_of[stream] = self._of_source(readings, rows, self._stale)
        if self._blurs:
            rows.blurs = self._of_source(readings, rows, self._blurs)
        expired_at, expired = _expiries(rows, stale, last, limit) if self._stale else (_NONE, _NONE)
        numbers = np.arange(len(rows.codes))
        if not len(expired):
            return Track(last, rows, numbers, rows.codes, rows.times)
        return Track(
            last,
            rows,
            np.concatenate((numbers, np.full(len(expired), EXPIRED))),
            np.concatenate((rows.codes, expired)),
            np.concatenate((rows.times, expired_at)),
        )

    def _rows(self, stream: str, readings: pa.RecordBatch) -> StreamRows | None:
        if not len(readings):
            return None
        rows = rows_of_stream(readings, stream, self._identities[stream.partition(".")[0]], 0)
        if rows is None:
            return None
        leaves = self._streams[stream]
        suits = np.logical_or.reduce([leaf.allowed()[rows.codes] for leaf in leaves])
        if suits.all():
            return rows
        chosen = np.flatnonzero(suits)
        return StreamRows(
            rows.codes[chosen], rows.times[chosen], rows.ordinals[chosen], rows.values[chosen]
        )

    def _of_source(
        self, readings: pa.RecordBatch, rows: StreamRows, by_source: Mapping[str, int]
    ) -> Rows:
        if not by_source or not len(rows.codes):
            return np.zeros(len(rows.codes), np.int64)
        found: Rows = blurs_of(readings, by_source)[rows.ordinals]
        return found


def _expiries(rows: StreamRows, stale: Rows, last: LastValues, limit: int) -> tuple[Rows, Rows]:
    """Times and codes of the values that grow stale before `limit`: of last readings from before
    this portion, and of this portion's. What a newer reading replaces in time does not.
    """
    old_times, old_codes = last.pop_stale(limit)
    sorting = np.argsort(rows.codes, kind="stable")
    codes, times = rows.codes[sorting], rows.times[sorting]
    after = stale[sorting]
    until = np.full(len(codes), limit - 1)
    followed = ~is_last(codes)
    until[followed] = times[np.flatnonzero(followed) + 1]
    gone = (after > 0) & (times + after <= until)
    if len(old_codes) and len(codes):
        first = np.minimum(np.searchsorted(codes, old_codes), len(codes) - 1)
        kept = (codes[first] != old_codes) | (times[first] >= old_times)
        old_times, old_codes = old_times[kept], old_codes[kept]
    return (
        np.concatenate((old_times, times[gone] + after[gone])),
        np.concatenate((old_codes, codes[gone])),
    )


def _arrange(tracks: list[Track], readings: int) -> None:
    """Gives every step its place: by time, what ends before what comes, then as the readings
    came.
    """
    if all(len(track.readings) == len(track.rows.codes) for track in tracks):
        for track in tracks:
            track.arrange(track.rows.ordinals, readings + 1)
        return
    times = np.concatenate([track.times for track in tracks])
    came = np.concatenate([_places_in_batch(track) for track in tracks])
    order = np.empty(len(times), np.int64)
    order[np.lexsort((came, times))] = np.arange(len(times))
    edges = np.cumsum([len(track.times) for track in tracks])[:-1]
    for track, places in zip(tracks, np.split(order, edges), strict=True):
        track.arrange(places, len(times) + 1)


def _places_in_batch(track: Track) -> Rows:
    return np.concatenate(
        (track.rows.ordinals, np.full(len(track.readings) - len(track.rows.codes), EXPIRED))
    )
