"""Row groups of Parquet files as rows for operators, read by the worker that needs them. [PI-5,
PO-2]

Only the columns that matter are read. Usual types are taken as they are; everything else goes the
way of recorded files, row by row where it must, so that the same rows are usable and the same
faults are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from rapport.core.errors import Problem, SiteError
from rapport.core.schema import PARTS
from rapport.pipeline.history.files import Series
from rapport.pipeline.history.footers import cannot_read
from rapport.pipeline.history.lateness import GroupAt, Times, clocks
from rapport.pipeline.history.rows import FIRST_PART, ID, TIME, Codes
from rapport.pipeline.history.texts import Codes as Numbers
from rapport.policy.readings import FARTHEST_MS, part_type
from rapport.policy.recordings.formats import Report, in_ms, usable_rows

BATCH_ROWS = 1 << 17
_READINGS = ("time", "id", "stream", "source", "key")


class Reader:
    """Reads row groups of some series for one task, a batch of rows at a time."""

    def __init__(
        self,
        series: Sequence[Series],
        schema: pa.Schema,
        codes: Codes,
        *,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """`schema`: from `rows_schema`; only the parts in it are read."""
        self._series, self._schema, self._codes = series, schema, codes
        self._batch_rows = batch_rows

    def read(self, at: GroupAt, report: Report) -> Iterator[pa.RecordBatch]:
        """The usable rows of a row group in their order; the others are reported. Raises SiteError
        when the file is gone, damaged, or not what it was.
        """
        series = self._series[at.series]
        file = series.files[at.file]
        path = Path(file.path)
        newest = at.before
        try:
            if path.stat().st_size != file.size:
                raise changed(path)
            for rows in self._batches(series, path, at, report):
                clock = clocks(rows.column(TIME).to_numpy(), newest)
                newest = int(clock[-1])
                yield self._complete(rows, clock, at.series)
        except (OSError, pa.ArrowException) as error:
            raise cannot_read(path, error) from None

    def nothing(self) -> pa.RecordBatch:
        """No rows."""
        arrays = [pa.nulls(0, field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _batches(
        self, series: Series, path: Path, at: GroupAt, report: Report
    ) -> Iterator[pa.RecordBatch]:
        texts = [series.key] if series.stream else ["stream", "source", "key"]
        with pyarrow.parquet.ParquetFile(
            path, read_dictionary=texts, pre_buffer=True, memory_map=True
        ) as file:
            known = file.schema_arrow.names
            wanted = series.columns() if series.stream else (*_READINGS, *self._parts())
            columns = [name for name in wanted if name in known]
            done = at.row
            for batch in file.iter_batches(
                self._batch_rows, row_groups=[at.group], columns=columns, use_threads=False
            ):
                rows = self._usable(series, path, batch, done, known, report)
                done += len(batch)
                if series.left_out:
                    gone = pa.array(sorted(series.left_out), pa.string())
                    rows = rows.filter(pc.invert(pc.is_in(rows.column(ID), gone)))
                if len(rows):
                    yield rows

    def _usable(
        self,
        series: Series,
        path: Path,
        batch: pa.RecordBatch,
        done: int,
        known: list[str],
        report: Report,
    ) -> pa.RecordBatch:
        """Time, id, stream, source, key and the parts in the schema."""
        if series.only_column:
            allowed = pa.array(series.only, pa.string())
            batch = batch.filter(pc.is_in(batch.column(series.only_column), allowed))
        if not series.stream:
            return self._as_they_are(series, path, batch)
        batch = _with_milliseconds(series, batch)
        if _is_usual(series, batch):
            columns = [batch.column(name) for name in series.wanted().fields()]
            return self._rows(series, columns, self._sources(series, batch))
        found = []
        for part, first in _of_one_source(series, _without_dictionaries(batch)):
            good = usable_rows(path, series.wanted(), part, done + first, known, report)
            name = _source_of(series, part)
            sources = np.full(len(good), self._codes.sources.code(name), np.int32)
            found.append(self._rows(series, good.columns, sources))
        return pa.concat_batches(found)

    def _rows(
        self,
        series: Series,
        columns: Sequence[pa.Array],
        sources: Numbers,
    ) -> pa.RecordBatch:
        """Rows of one stream; `columns` are time, id, key and the parts."""
        codes, count = self._codes, len(sources)
        names = (f"{series.stream}.{part}" for part in PARTS[series.kind])
        own = dict(zip(names, columns[3:], strict=True))
        arrays = [
            columns[0],
            columns[1],
            pa.array(np.full(count, codes.streams.code(series.stream), np.int32)),
            pa.array(sources),
            pa.array(codes.keys.codes(columns[2])),
        ]
        for field in list(self._schema)[FIRST_PART:]:
            has = field.name in own
            arrays.append(own[field.name] if has else pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, names=[*_READINGS, *self._parts()])

    def _as_they_are(self, series: Series, path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Readings that a program wrote: a null where none may be is damage."""
        if any(batch.column(name).null_count for name in ("time", "id", "stream", "key")):
            raise _no_readings(path)
        codes, given = self._codes, batch.schema.names
        none = pa.repeat(pa.scalar(series.source), len(batch))
        sources = batch.column("source").fill_null(series.source) if "source" in given else none
        arrays = [
            batch.column("time").cast(pa.int64()),
            batch.column("id").cast(pa.string()),
            pa.array(codes.streams.codes(batch.column("stream"))),
            pa.array(codes.sources.codes(sources)),
            pa.array(codes.keys.codes(batch.column("key"))),
        ]
        for field in list(self._schema)[FIRST_PART:]:
            has = field.name in given
            own = batch.column(field.name).cast(field.type) if has else None
            arrays.append(pa.nulls(len(batch), field.type) if own is None else own)
        return pa.RecordBatch.from_arrays(arrays, names=[*_READINGS, *self._parts()])

    def _sources(self, series: Series, batch: pa.RecordBatch) -> Numbers:
        sources = self._codes.sources
        if series.source_column:
            return sources.codes(batch.column(series.source_column).fill_null(series.source))
        return np.full(len(batch), sources.code(series.source), np.int32)

    def _complete(self, rows: pa.RecordBatch, clock: Times, series: int) -> pa.RecordBatch:
        numbers = pa.array(np.full(len(rows), series, np.int32))
        arrays = [*rows.columns[:5], pa.array(clock), numbers, *rows.columns[5:]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _parts(self) -> list[str]:
        names: list[str] = self._schema.names[FIRST_PART:]
        return names


def _with_milliseconds(series: Series, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times of silver are timestamps; readings have milliseconds."""
    place = batch.schema.get_field_index(series.time)
    times = batch.column(place)
    if not series.is_judged or not pa.types.is_timestamp(times.type):
        return batch
    columns = list(batch.columns)
    columns[place] = in_ms(times).cast(pa.int64())
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_usual(series: Series, batch: pa.RecordBatch) -> bool:
    """Whether the columns have the types of readings and no value is doubtful."""
    time, id, key = (batch.column(name) for name in (series.time, series.id, series.key))
    parts = [batch.column(name) for name in series.value]
    kind = part_type(series.kind)
    if time.type != pa.int64() or id.type != pa.string() or not _is_text(key.type):
        return False
    if len(parts) != len(PARTS[series.kind]) or any(part.type != kind for part in parts):
        return False
    if not len(batch) or any(column.null_count for column in (time, id, key, *parts)):
        return False
    times = time.to_numpy()
    if not -FARTHEST_MS < times.min() <= times.max() < FARTHEST_MS:
        return False
    if _has_empty(id) or "" in key.dictionary.to_pylist():
        return False
    if kind == pa.float64():
        return all(np.isfinite(part.to_numpy()).all() for part in parts)
    return kind != pa.string() or not any(_has_empty(part) for part in parts)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) and kind.value_type == pa.string())


def _has_empty(column: pa.Array) -> bool:
    return bool(pc.min(pc.binary_length(column)).as_py() == 0)


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _of_one_source(series: Series, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Stretches of rows that have one source, with the place of the first."""
    if not series.source_column or len(batch) < 2:
        yield batch, 0
        return
    names = batch.column(series.source_column).fill_null(series.source).dictionary_encode()
    edges = np.flatnonzero(np.diff(names.indices.to_numpy())) + 1
    for first, end in zip([0, *edges], [*edges, len(batch)], strict=True):
        yield batch.slice(first, end - first), int(first)


def _source_of(series: Series, part: pa.RecordBatch) -> str:
    if not series.source_column or not len(part):
        return series.source
    return part.column(series.source_column)[0].as_py() or series.source


def changed(path: Path) -> SiteError:
    """The error of a file that is not what its footer said before."""
    problem = Problem(
        file=path.name,
        code="history.changed",
        message=f"{path} was changed while it was read",
        hint="run again when nobody writes to it",
    )
    return SiteError([problem])


def _no_readings(path: Path) -> SiteError:
    problem = Problem(
        file=path.name,
        code="events.bad_file",
        message=f"{path} has rows without time, id, stream or key, so they are no readings",
        hint="write the file again",
    )
    return SiteError([problem])
