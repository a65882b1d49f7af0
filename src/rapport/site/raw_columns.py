"""Raw CSV files through an interpretation by whole columns, where that gives the same. [ME-14,
UX-3]

Numbers are read and converted as columns. Times and identities are given their meaning by the
source's own transformer, once for each different text. A block in which anything is doubtful goes
through the transformer row by row, so nothing is decided here that is not decided there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from rapport.core.event import Event, StoredEvent
from rapport.mediation.fields_compiler import ResolvedFields
from rapport.mediation.formats.csv_format import CsvJoin, CsvOptions, joins_of
from rapport.site.raw_csv import CsvLayout
from rapport.units.quantities import DecimalMark

Convert = Callable[[list[StoredEvent]], list[Event] | None]
"""Readings of raw events through the transformer; None when it rejects one of them."""
ToRaw = Callable[[pa.RecordBatch, int], list[StoredEvent]]
"""The rows of a block as raw events, given the line of the first."""
ByRows = Callable[[list[StoredEvent]], pa.RecordBatch]

_BLOCK_BYTES = 1 << 20
_CHUNK = 1 << 22
_DOUBTFUL = re.compile(rb'["\x00-\x08\x0b\x0c\x0e-\x1f]')
"""Quotes and control characters: two readers of CSV may differ on them."""
_NUMBERS = {"point": r"\A-?\d{1,300}(\.\d{1,90})?\z", "comma": r"\A-?\d{1,300}(,\d{1,90})?\z"}
_DIGITS = r"\A\d+\z"
_MOST_KNOWN = 1_000_000
_WORTHWHILE = 3
"""So many rows for each different text make columns quicker than rows."""
_COLUMNS = ("time", "id", "key")


class _Data(msgspec.Struct):
    key: str
    value: list[float]


_READ = msgspec.json.Decoder(_Data)


def is_columnar(resolved: ResolvedFields, options: CsvOptions) -> bool:
    """Whether numbers are all that the interpretation calculates, each from a column of its own."""
    said = resolved.interpretation
    fields = [said.identity.field, *(each.rule.field for each in resolved.values)]
    return (
        said.time is not None
        and len(said.time.field) == 1
        and all(len(field) == 1 for field in fields)
        and all(each.kind == "number" for each in resolved.values)
        and not (said.conversions or said.origin or said.identity.otherwise or resolved.polar)
        and options.thousands == "none"
        and not options.metadata
    )


def is_plain(path: Path) -> bool:
    """Whether the file holds nothing that readers of CSV may take differently; reads all of it."""
    with path.open("rb") as file:
        return not any(_DOUBTFUL.search(chunk) for chunk in iter(lambda: file.read(_CHUNK), b""))


class QuickFile:
    """A file by columns, block by block, as far as its rows have the cells they should have.

    `done` is the last line that was read; `is_whole` says that there are no more.
    """

    def __init__(self, path: Path, layout: CsvLayout, columns: Columns, raw: ToRaw) -> None:
        self._path, self._layout, self._columns, self._raw = path, layout, columns, raw
        self.done, self.is_whole = layout.before, False

    def batches(
        self, convert: Convert, by_rows: ByRows, finish: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Readings: what `finish` makes of time, id, key and parts, or `by_rows` of a doubtful
        block.
        """
        try:
            for rows in _blocks(self._path, self._layout):
                made = self._columns.convert(rows, self.done + 1, convert, self._raw)
                if made is None:
                    yield by_rows(self._raw(rows, self.done + 1))
                else:
                    yield finish(made)
                self.done += len(rows)
            self.is_whole = True
        except (pa.ArrowInvalid, UnicodeError):
            return  # read again from here on, row by row, which finds what is wrong


def _blocks(path: Path, layout: CsvLayout) -> Iterator[pa.RecordBatch]:
    """Columns of text, spaces around them taken off."""
    reading = pyarrow.csv.ReadOptions(
        use_threads=False,
        block_size=_BLOCK_BYTES,
        skip_rows=layout.before,
        column_names=list(layout.heading),
        encoding=layout.options.encoding,
    )
    parsing = pyarrow.csv.ParseOptions(delimiter=layout.delimiter, ignore_empty_lines=False)
    converting = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(layout.heading, pa.string()), strings_can_be_null=False
    )
    with pyarrow.csv.open_csv(
        path, read_options=reading, parse_options=parsing, convert_options=converting
    ) as reader:
        for rows in reader:
            trimmed = [pc.utf8_trim_whitespace(column) for column in rows.columns]
            yield pa.RecordBatch.from_arrays(trimmed, names=rows.schema.names)


class Columns:
    """Blocks of one source as time, id, key and the parts of the value."""

    def __init__(self, resolved: ResolvedFields, options: CsvOptions, file: str) -> None:
        """`file`: by which rows are named."""
        self._resolved, self._file = resolved, file
        self._nulls = pa.array(options.nulls, pa.string())
        self._decimal: DecimalMark = options.decimal
        self._joins: dict[str, CsvJoin] = {join.name: join for join in joins_of(options)}
        self._times: dict[str, int] = {}
        self._keys: dict[str, str] = {}

    def convert(
        self, rows: pa.RecordBatch, line: int, convert: Convert, raw: ToRaw
    ) -> pa.RecordBatch | None:
        """The block whose first row stands in `line`; None when a row needs a closer look."""
        said = self._resolved.interpretation
        assert said.time is not None
        times = self._texts(rows, said.time.field[0])
        keys = self._texts(rows, said.identity.field[0])
        parts = self._parts(rows)
        if times is None or keys is None or parts is None:
            return None
        times, keys = times.dictionary_encode(), keys.dictionary_encode()
        if not self._learn(rows, line, times, keys, parts, partial(_explain, convert, raw)):
            return None
        known_times = pa.array(map(self._times.get, times.dictionary.to_pylist()), pa.int64())
        known_keys = pa.array(map(self._keys.get, keys.dictionary.to_pylist()), pa.string())
        numbers = pa.array(np.arange(line, line + len(rows))).cast(pa.string())
        ids = pc.binary_join_element_wise(self._file, numbers, ":")
        columns = [known_times.take(times.indices), ids, known_keys.take(keys.indices), *parts]
        names = [*_COLUMNS, *(f"part{place}" for place in range(len(parts)))]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _texts(self, rows: pa.RecordBatch, name: str) -> pa.Array | None:
        """A column, or several joined; None when a cell says nothing."""
        if name in rows.schema.names:
            column = rows.column(name)
            return None if pc.any(pc.is_in(column, self._nulls)).as_py() else column
        pieces = []
        join = self._joins.get(name)
        for piece in join.pieces if join is not None else ():
            if isinstance(piece, str):
                pieces.append(pa.scalar(piece))
                continue
            column = self._texts(rows, piece[0])
            if column is None or (piece[1] and not _all_match(column, _DIGITS)):
                return None
            pieces.append(pc.utf8_lpad(column, piece[1], "0") if piece[1] else column)
        return pc.binary_join_element_wise(*pieces, "") if pieces else None

    def _parts(self, rows: pa.RecordBatch) -> list[pa.Array] | None:
        found: dict[str, pa.Array] = {}
        for value in self._resolved.values:
            decimal = value.rule.decimal or self._decimal
            texts = self._texts(rows, value.rule.field[0])
            if texts is None or not _all_match(texts, _NUMBERS[decimal]):
                return None
            pointed = pc.replace_substring(texts, ",", ".") if decimal == "comma" else texts
            numbers = pointed.cast(pa.float64()).to_numpy()
            if value.affine is not None and not value.affine.is_identity:
                numbers = value.affine.apply(numbers)
            if not np.isfinite(numbers).all():
                return None
            found[value.rule.name] = pa.array(numbers)
        parts = [found.get(part) for part in self._resolved.binding.parts]
        return None if any(part is None for part in parts) else parts

    def _learn(
        self,
        rows: pa.RecordBatch,
        line: int,
        times: pa.DictionaryArray,
        keys: pa.DictionaryArray,
        parts: list[pa.Array],
        explain: Callable[[pa.RecordBatch, list[int], int], list[Event] | None],
    ) -> bool:
        """Has new times and identities explained by the transformer, and compares its numbers."""
        if max(len(self._times), len(self._keys)) > _MOST_KNOWN:
            self._times.clear()
            self._keys.clear()
        places = {*_first_of_new(times, self._times), *_first_of_new(keys, self._keys)}
        if len(places) * _WORTHWHILE > len(rows):
            return False
        ordered = sorted(places)
        readings = explain(rows, ordered, line)
        if readings is None:
            return False
        for place, reading in zip(ordered, readings, strict=True):
            data = _READ.decode(reading.data)
            if data.value != [part[place].as_py() for part in parts]:
                return False
            self._times[times[place].as_py()] = reading.time
            self._keys[keys[place].as_py()] = data.key
        return True


def _explain(
    convert: Convert, raw: ToRaw, rows: pa.RecordBatch, places: list[int], line: int
) -> list[Event] | None:
    """The readings of some rows, one for each; None when a row has none."""
    if not places:
        return []
    readings = convert(raw(rows.take(pa.array(places)), line))
    return readings if readings is not None and len(readings) == len(places) else None


def _first_of_new(texts: pa.DictionaryArray, known: Mapping[str, object]) -> list[int]:
    """A row for each text that is not known yet."""
    _codes, first = np.unique(texts.indices.to_numpy(), return_index=True)
    every = texts.dictionary.to_pylist()
    return [
        int(place) for text, place in zip(every, first.tolist(), strict=True) if text not in known
    ]


def _all_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern)).as_py())
