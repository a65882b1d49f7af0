"""What a back-test found, policy by policy: rows in the order of the fixed output. [PI-9]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import (
    Detection,
    Undecided,
    detection_line,
    detection_order,
    identity_order,
)
from rapport.pipeline.history.detection_table import detections_from, encode_detections, joined

_CHUNK = 10_000

Numbers = npt.NDArray[np.int64]


class DetectionColumns:
    """Takes what a policy found, piece by piece; holds about 100 bytes for each."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._waiting: list[Detection | Undecided] = []

    def add(self, found: Iterable[Detection | Undecided]) -> None:
        """Takes more; the structs are let go every ten thousand."""
        for one in found:
            self._waiting.append(one)
            if len(self._waiting) >= _CHUNK:
                self._pack()

    def add_columns(self, rows: pa.Table) -> None:
        """Takes more that are columns already."""
        self._tables.append(rows)

    @property
    def table(self) -> pa.Table:
        """All rows, as they came."""
        self._pack()
        self._tables = [joined(self._tables)]
        return self._tables[0]

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._tables) + len(self._waiting)

    def of(self, policy: str, begin: int | None, end: int | None) -> Findings:
        """What one policy found in [begin, end), sorted, each once."""
        rows = self.table
        chosen = pc.equal(rows.column("policy"), policy)
        if begin is not None:
            chosen = pc.and_(chosen, pc.greater_equal(rows.column("time"), begin))
        if end is not None:
            chosen = pc.and_(chosen, pc.less(rows.column("time"), end))
        rows = rows.filter(chosen)
        is_found = pc.is_null(rows.column("silent"))
        return Findings(ordered(rows.filter(is_found)), undecided=rows.filter(pc.invert(is_found)))

    def _pack(self) -> None:
        if self._waiting:
            self._tables.append(pa.Table.from_batches([encode_detections(self._waiting)]))
            self._waiting = []


class Findings:
    """What one policy found: rows in the order of the fixed output."""

    def __init__(self, rows: pa.Table, undecided: pa.Table | None = None) -> None:
        self.rows = rows
        self.undecided = rows.slice(0, 0) if undecided is None else undecided

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def times(self) -> Numbers:
        """When each was found."""
        return np.asarray(self.rows.column("time").to_numpy(), np.int64)

    def aliases(self) -> list[str]:
        """Every alias that some finding binds, sorted."""
        keys = [chunk.keys for chunk in self.rows.column("bindings").chunks]
        names: set[str] = set()
        for each in keys:
            names |= set(each.unique().to_pylist())
        return sorted(names)

    def identities(self, alias: str) -> pa.ChunkedArray:
        """Who each finding is about under an alias; null where it has none."""
        return pc.map_lookup(self.rows.column("bindings"), pa.scalar(alias), "first")

    def first(self, count: int) -> list[Detection]:
        """The first few as structs."""
        return detections_from(self.rows.slice(0, max(count, 0)))

    def at(self, places: Sequence[int]) -> list[Detection]:
        """Those in some rows as structs."""
        return detections_from(self.rows.take(pa.array(places, pa.int64())))

    def silent(self) -> list[str]:
        """The sources whose silence left something undecided, sorted."""
        names = [chunk.values for chunk in self.undecided.column("silent").chunks]
        return sorted({name for each in names for name in each.unique().to_pylist()})

    def lines(self, policy: str) -> Iterator[bytes]:
        """The fixed output in pieces, under the name `policy`."""
        last = b""
        for start in range(0, len(self), _CHUNK):
            piece: list[bytes] = []
            for one in detections_from(self.rows.slice(start, _CHUNK)):
                line = detection_line(msgspec.structs.replace(one, policy=policy))
                if line != last:  # rests on other readings of the same names
                    piece.append(line + b"\n")
                last = line
            yield b"".join(piece)


def ordered(rows: pa.Table) -> pa.Table:
    """Rows of one policy in the order of the fixed output, each once. Mostly a time stands alone;
    only rows that share one are looked at closely.
    """
    times = np.asarray(rows.column("time").to_numpy(), np.int64)
    order = np.argsort(times, kind="stable")
    times = times[order]
    same = np.flatnonzero(np.diff(times) == 0)
    if len(same):
        order = _untied(rows, order, times)
    return rows.take(pa.array(order)).combine_chunks()


def _untied(
    rows: pa.Table,
    order: Numbers,
    times: Numbers,
) -> Numbers:
    edges = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
    kept: list[Numbers] = []
    for start, end in zip(edges, [*edges[1:], len(order)], strict=True):
        group = order[start:end]
        if len(group) > 1:
            found = detections_from(rows.take(pa.array(group)))
            keyed = {detection_order(one): place for one, place in zip(found, group, strict=True)}
            group = np.array([keyed[key] for key in sorted(keyed)], np.int64)
        kept.append(group)
    return np.concatenate(kept)


def by_identity(pair: tuple[str, int]) -> tuple[int, tuple[int, int, str]]:
    """Most first, then by identity: the order of top lists."""
    return -pair[1], identity_order(pair[0])
