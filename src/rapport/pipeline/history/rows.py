"""Rows of a history on their way to operators: Arrow columns in which numbers stand for texts.
[PI-5, PO-2]

Columns: time, id, stream, source and key (numbers), clock (the largest time of the series up to
the row), series, position in the series, then the parts of the streams that plans read. Rows that
are not usable are reported as the reader of recorded files reports them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Problem
from rapport.core.schema import PARTS
from rapport.pipeline.history.files import READING_COLUMNS, Series, not_readings
from rapport.policy.readings import part_type
from rapport.policy.recordings.formats import Report, convert_columns, usable_rows

TIME, ID, STREAM, SOURCE, KEY, CLOCK, SERIES, POSITION = range(8)
FIRST_PART = 8
_FIELDS = [
    ("time", pa.int64()),
    ("id", pa.string()),
    ("stream", pa.int32()),
    ("source", pa.int32()),
    ("key", pa.int32()),
    ("clock", pa.int64()),
    ("series", pa.int32()),
    ("position", pa.int64()),
]
_MANY_TIES = 4
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")
"""Spark copies the bytes of a shuffle about ten times: fewer bytes cost less than packing them."""
_FEW_TEXTS = 4_096
"""Up to so many different texts operators get them as a dictionary, beyond as plain text: looking
all of them up for every batch would cost more than the batch."""

TextCodes = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


class Texts:
    """Numbers texts in the order in which they appear. Grows with the number of different ones."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._codes: dict[str, int] = {}
        self._array: pa.Array = pa.array([], pa.string())

    def code(self, text: str) -> int:
        """The number of one text."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.known)
            self.known.append(text)
        return found

    def codes(self, column: pa.Array) -> TextCodes:
        """The numbers of a column without nulls, plain text or a dictionary."""
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        numbers = np.fromiter(map(self.code, texts), np.int32, len(texts))
        found: TextCodes = numbers[encoded.indices.to_numpy()]
        return found

    def column(self, codes: pa.Array) -> pa.Array:
        """The texts of numbers: a dictionary if there are few, else plain text."""
        if len(self.known) <= _FEW_TEXTS:
            return pa.DictionaryArray.from_arrays(codes, self._texts())
        return self.plain(codes)

    def plain(self, codes: pa.Array) -> pa.Array:
        """The texts of numbers as plain text."""
        return self._texts().take(codes)

    def _texts(self) -> pa.Array:
        if len(self._array) < len(self.known):
            self._array = pa.array(self.known, pa.string())
        return self._array


class Codes(msgspec.Struct):
    """The texts of one task's rows."""

    streams: Texts
    sources: Texts
    keys: Texts

    @staticmethod
    def none() -> Codes:
        """Empty."""
        return Codes(Texts(), Texts(), Texts())


def rows_schema(series: Iterable[Series], streams: Collection[str]) -> pa.Schema:
    """The columns of rows in which the values of these streams are needed."""
    parts: dict[str, pa.DataType] = {}
    for one in series:
        if one.stream in streams:
            parts |= {f"{one.stream}.{part}": part_type(one.kind) for part in PARTS[one.kind]}
        elif not one.stream:
            for field in (field for file in one.files for field in file.arrow_schema()):
                if field.name.rpartition(".")[0] in streams:
                    parts[field.name] = field.type
    # Operators take the parts of a stream in the order of the columns: that must not change.
    by_stream = sorted(parts.items(), key=lambda part: part[0].rpartition(".")[0])
    return pa.schema([*_FIELDS, *by_stream])


class RowMaker:
    """Makes coded rows of scanned columns; keeps what is the same for all batches of a task."""

    def __init__(self, schema: pa.Schema, codes: Codes) -> None:
        self._schema, self._codes = schema, codes
        self._parts = list(schema)[FIRST_PART:]

    def usable(
        self,
        series: Series,
        file: str,
        names: list[str],
        batch: pa.RecordBatch,
        index: Numbers,
        report: Report,
    ) -> tuple[list[pa.Array], Numbers]:
        """The arrays time, id, stream, source, key and parts of the usable rows, and their places
        in the file. `index`: the places of all rows; `names`: all columns of the file.
        """
        if not series.stream:
            columns = self._as_they_are(series, file, batch)
        else:
            columns, index = self._of_stream(series, file, names, batch, index, report)
        if series.left_out:
            gone = pa.array(sorted(series.left_out), pa.string())
            kept = pc.invert(pc.is_in(columns[ID], gone))
            columns = [column.filter(kept) for column in columns]
            index = index[kept.to_numpy(zero_copy_only=False)]
        return columns, index

    def complete(
        self, columns: Sequence[pa.Array], clock: Numbers, series: int, position: Numbers
    ) -> pa.RecordBatch:
        """Rows with their clock, series and position."""
        numbers = pa.array(np.full(len(clock), series, np.int32))
        arrays = [*columns[:5], pa.array(clock), numbers, pa.array(position), *columns[5:]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _of_stream(
        self,
        series: Series,
        file: str,
        names: list[str],
        batch: pa.RecordBatch,
        index: Numbers,
        report: Report,
    ) -> tuple[list[pa.Array], Numbers]:
        mapping = series.wanted()
        good = convert_columns(batch, mapping)
        if good is None:
            # Some row is faulty: row by row, with the line of each in the file.
            faulty: list[int] = []

            def tell(problem: Problem) -> None:
                place = problem.line - 1
                faulty.append(place)
                report(msgspec.structs.replace(problem, line=int(index[place]) + 1))

            good = usable_rows(Path(file), mapping, batch, 0, names, tell)
            left = np.delete(np.arange(len(index)), faulty)
            batch, index = batch.take(pa.array(left)), index[left]
        time, id, key, *parts = good.columns
        own = dict(zip(series.parts().values(), parts, strict=True))
        count, codes = len(good), self._codes
        if series.source_column:
            sources = codes.sources.codes(
                batch.column(series.source_column).cast(pa.string()).fill_null(series.source)
            )
        else:
            sources = np.full(count, codes.sources.code(series.source), np.int32)
        columns = [
            time,
            id,
            pa.array(np.full(count, codes.streams.code(series.stream), np.int32)),
            pa.array(sources),
            pa.array(codes.keys.codes(key)),
        ]
        return columns + [_part(own.get(field.name), field, count) for field in self._parts], index

    def _as_they_are(self, series: Series, file: str, batch: pa.RecordBatch) -> list[pa.Array]:
        """Readings that a program wrote: a null where none may be is damage."""
        if any(batch.column(name).null_count for name in ("time", "id", "stream", "key")):
            raise not_readings(file)
        codes, given, count = self._codes, set(batch.schema.names), len(batch)
        source = (
            batch.column("source").fill_null(series.source)
            if "source" in given
            else pa.repeat(pa.scalar(series.source), count)
        )
        columns = [
            in_milliseconds(batch.column("time")),
            batch.column("id").cast(pa.string()),
            pa.array(codes.streams.codes(batch.column("stream"))),
            pa.array(codes.sources.codes(source)),
            pa.array(codes.keys.codes(batch.column("key"))),
        ]
        own = {name: batch.column(name) for name in given - set(READING_COLUMNS)}
        return columns + [_part(own.get(field.name), field, count) for field in self._parts]


def in_milliseconds(times: pa.Array) -> pa.Array:
    """Times as integers; timestamps are truncated."""
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return times.cast(pa.int64())


def _part(column: pa.Array | None, field: pa.Field, count: int) -> pa.Array:
    return pa.nulls(count, field.type) if column is None else column.cast(field.type)


def as_readings(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """Rows as operators take them."""
    columns = rows.columns
    arrays = [
        columns[TIME],
        columns[ID],
        codes.streams.column(columns[STREAM]),
        codes.sources.column(columns[SOURCE]),
        codes.keys.column(columns[KEY]),
        *columns[FIRST_PART:],
    ]
    names = [*rows.schema.names[:CLOCK], *rows.schema.names[FIRST_PART:]]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def in_event_order(rows: pa.RecordBatch, codes: Codes) -> pa.RecordBatch:
    """Rows by time, then id (code points), stream and key, then arrival."""
    times = rows.column(TIME).to_numpy()
    order = None
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times = times[order]
    ties = np.flatnonzero(times[1:] == times[:-1])
    if len(ties) * _MANY_TIES > len(times):
        return rows.take(_sorted_by_all(rows, codes))
    if len(ties):
        places = np.union1d(ties, ties + 1)
        tied = places if order is None else order[places]
        sorting = _sorted_by_all(rows.take(pa.array(tied)), codes).to_numpy()
        if (sorting[1:] < sorting[:-1]).any():  # else ids rise with time, the usual case
            order = np.arange(len(times)) if order is None else order
            order[places] = tied[sorting]
    return rows if order is None else rows.take(pa.array(order))


def _sorted_by_all(rows: pa.RecordBatch, codes: Codes) -> pa.Array:
    columns = {
        "time": rows.column(TIME),
        "id": rows.column(ID),
        "stream": codes.streams.plain(rows.column(STREAM)),
        "key": codes.keys.plain(rows.column(KEY)),
        "clock": rows.column(CLOCK),
        "series": rows.column(SERIES),
        "position": rows.column(POSITION),
    }
    table = pa.RecordBatch.from_pydict(columns)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])


def packed_rows(rows: pa.RecordBatch, codes: Codes) -> pa.Buffer:
    """Rows as bytes that cross a shuffle: texts instead of numbers."""
    columns = list(rows.columns)
    for place, texts in ((STREAM, codes.streams), (SOURCE, codes.sources), (KEY, codes.keys)):
        few = len(texts.known) * 4 <= len(rows)
        columns[place] = (texts.column if few else texts.plain)(columns[place])
    batch = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_COMPRESSED) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def unpacked_rows(body: pa.Buffer, schema: pa.Schema, codes: Codes) -> pa.RecordBatch:
    """The rows of `packed_rows`, numbered by the receiver's own codes."""
    [batch] = _batches(body)
    columns = list(batch.columns)
    for place, texts in ((STREAM, codes.streams), (SOURCE, codes.sources), (KEY, codes.keys)):
        columns[place] = pa.array(texts.codes(columns[place]))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _batches(body: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(body) as reader:
        yield from reader
