"""Recorded files of a site as readings: canonical ones unchanged, raw ones through the transformer
of their source. [ME-14, UX-3, ME-5, PO-8]

Raw CSV files are converted by whole columns where the result is the same: numbers are parsed and
converted as columns, times and identities by the source's own transformer once for each different
text. A doubtful block goes through the transformer row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from rapport.core.errors import Problem, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.mediation.conversion.conversions import Chain, Conversion
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.fields_compiler import ResolvedFields, resolve
from rapport.mediation.formats.csv_format import CsvJoin, CsvOptions, joins_of
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.memory import feed_types
from rapport.mediation.reader import SourceTransformer, build_transformer
from rapport.mediation.reading_times import RepeatedHours, repeated_after_ms
from rapport.mediation.site_functions import WorkerConversions
from rapport.policy.readings import FARTHEST_MS, readings_schema, split_events
from rapport.policy.recordings.files import as_readings, in_batches
from rapport.policy.recordings.formats import FieldMapping, Report
from rapport.policy.replay.replay import Recording, recordings_of
from rapport.site.interpretations import interpretations_in_site, source_bindings
from rapport.site.raw_files import CsvLayout, RawFile, naming_of
from rapport.units.quantities import DecimalMark

if TYPE_CHECKING:
    from rapport.site.site import Site

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
    interpretation = resolved.interpretation
    fields = [interpretation.identity.field, *(each.rule.field for each in resolved.values)]
    return (
        interpretation.time is not None
        and len(interpretation.time.field) == 1
        and all(len(field) == 1 for field in fields)
        and all(each.kind == "number" for each in resolved.values)
        and not (
            interpretation.conversions
            or interpretation.origin
            or interpretation.identity.otherwise
            or resolved.polar
        )
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
            return  # read again from here on, row by row, which finds the fault


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
        interpretation = self._resolved.interpretation
        assert interpretation.time is not None
        times = self._texts(rows, interpretation.time.field[0])
        keys = self._texts(rows, interpretation.identity.field[0])
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


_AT_ONCE = 5_000
_ENCODE = msgspec.json.Encoder().encode


def recordings_in_site(
    site: Site,
    files: Sequence[str] = (),
    *,
    in_force: ActiveInterpretations | None = None,
    strict: bool = False,
) -> list[Recording]:
    """The files to replay, each with what makes readings of it; see `recordings_of`.

    `in_force`: the interpretations; None: as the site's files have them. Raises
    InterpretationError for a source without a usable interpretation, Unsupported for one whose
    values depend on other sources.
    """
    found = recordings_of(site.ontology, site.directory, files)
    if any(item.source.interpretation for item in found):
        in_force = in_force or meanings_in_files(site)
    return [
        msgspec.structs.replace(item, read=_reader(site, item, in_force), strict=strict)
        for item in found
    ]


def meanings_in_files(site: Site) -> ActiveInterpretations:
    found = interpretations_in_site(site.file, site.directory, site.ontology, site.tables.columns())
    return found.files.activate()[0]


def version_of_meanings(
    recordings: Sequence[Recording], in_force: ActiveInterpretations | None
) -> str:
    """A digest of the interpretations of these files."""
    names = {item.source.interpretation for item in recordings} - {""}
    stamps = {} if in_force is None else in_force.stamps
    return " ".join(stamps.get(name, name) for name in sorted(names))


def _reader(
    site: Site, item: Recording, in_force: ActiveInterpretations | None
) -> partial[Iterator[pa.RecordBatch]] | None:
    name = item.source.interpretation
    if not name or in_force is None:
        return None
    _check_alone(item, in_force)
    _built(site, item.source.name, in_force).close()  # raises its faults at once
    return partial(_readings, site, item, in_force)


def _readings(
    site: Site, item: Recording, in_force: ActiveInterpretations, batch: int, report: Report
) -> Iterator[pa.RecordBatch]:
    """The rows of a raw file as readings; memory does not grow with the file."""
    with closing(_built(site, item.source.name, in_force)) as built:
        work = _Reading(site, item, in_force, built.meaning, report)
        yield from in_batches((rows for rows in work.batches() if len(rows)), batch)


class _Reading:
    """One raw file being read: by columns as far as that goes, then row by row."""

    def __init__(
        self,
        site: Site,
        item: Recording,
        in_force: ActiveInterpretations,
        meaning: SourceTransformer,
        report: Report,
    ) -> None:
        self._naming = naming_of(site.file, item.source.name)
        self._site, self._item, self._in_force = site, item, in_force
        self._meaning, self._report = meaning, report
        self._hours = RepeatedHours(meaning.local_zone)
        choice = in_force.format_of(item.source.interpretation)
        self._file = RawFile(item.path, choice, self._naming)
        self._found: list[Problem] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Readings; rows that cannot be used are reported in their order."""
        quick = self._quick()
        if quick is not None:
            yield from quick.batches(self._convert, self._by_rows, self._finished)
            if quick.is_whole:
                return
        done = 0 if quick is None else quick.done
        raws = (one for one in self._file.events(self._found.append) if one.position > done)
        while some := list(islice(raws, _AT_ONCE)):
            yield self._by_rows(some)
        self._report_faults()

    def _finished(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        ontology, source = self._site.ontology, self._item.source
        wanted = FieldMapping.of(source, ontology.streams()[source.stream])
        return as_readings(rows, source, wanted, readings_schema(ontology))

    def _by_rows(self, raws: list[StoredEvent]) -> pa.RecordBatch:
        events, rejections = self._meaning.apply_many(raws)
        events, path = self._hours.settle(events), self._item.path
        self._found.extend(
            _problem(path, one.position, one.code, one.message, one.hint) for one in rejections
        )
        rows = _rows(self._site, path, events, self._found.append)
        self._report_faults()
        return rows

    def _convert(self, raws: list[StoredEvent]) -> list[Event] | None:
        events, rejections = self._meaning.apply_many(raws)
        zone = self._meaning.local_zone
        if rejections or (zone and any(repeated_after_ms(one.time, zone) for one in events)):
            return None  # of an hour that comes twice, the order of rows says which it is
        return events

    def _quick(self) -> QuickFile | None:
        """The file by columns, where its interpretation and what it holds allow that."""
        interpretation = self._in_force.fields.get(self._item.source.interpretation)
        layout = self._file.csv_layout()
        if interpretation is None or layout is None or self._naming.id:
            return None
        binding = source_bindings(self._site.ontology, self._site.file)[self._item.source.name]
        resolved = resolve(interpretation, binding)
        if not is_columnar(resolved, layout.options) or not is_plain(self._item.path):
            return None
        columns = Columns(resolved, layout.options, self._item.path.name)
        return QuickFile(self._item.path, layout, columns, partial(self._raws, layout))

    def _raws(self, layout: CsvLayout, rows: pa.RecordBatch, line: int) -> list[StoredEvent]:
        """Rows without a filled cell do not count, as when read row by row."""
        nulls = layout.options.nulls
        return [
            self._file.stored(
                line + place,
                _ENCODE({name: None if cell in nulls else cell for name, cell in row.items()}),
            )
            for place, row in enumerate(rows.to_pylist())
            if any(row.values())
        ]

    def _report_faults(self) -> None:
        """In the order of the rows."""
        for problem in sorted(self._found, key=lambda one: one.line):
            self._report(problem)
        self._found.clear()


class _Built:
    """A transformer and the process that carries out the site's functions for it."""

    def __init__(self, meaning: SourceTransformer, conversions: WorkerConversions) -> None:
        self.meaning, self._conversions = meaning, conversions

    def close(self) -> None:
        """Ends the process, if one was started."""
        self._conversions.close()


def _built(site: Site, source: str, in_force: ActiveInterpretations) -> _Built:
    conversions = WorkerConversions(SystemClock(), [str(site.directory.resolve())])
    binding = source_bindings(site.ontology, site.file)[source]
    meaning = build_transformer(binding, in_force, lookups=site.tables, conversions=conversions)
    return _Built(meaning, conversions)


def _rows(site: Site, path: Path, events: list[Event], report: Report) -> pa.RecordBatch:
    """Readings of what has a meaning; what says no time, or is no reading, is reported."""
    timed = [event for event in events if event.time > -FARTHEST_MS]
    if len(timed) < len(events):
        for event in events:
            if event.time <= -FARTHEST_MS:
                report(_untimed(path, _line(event)))
    rows, rejected = split_events(timed, site.ontology)
    for event, fault in rejected:
        report(_problem(path, _line(event), fault.code, fault.message, fault.hint))
    return rows


def _line(event: Event) -> int:
    return int(event.headers.get("rawposition", "0"))


def _problem(path: Path, line: int, code: str, message: str, hint: str) -> Problem:
    return Problem(file=path.name, line=line, code=code, message=message, hint=hint)


def _untimed(path: Path, line: int) -> Problem:
    return _problem(
        path,
        line,
        "events.no_time",
        "nothing says when this was",
        "declare the field in the interpretation, or time = FIELD of the source when it is in "
        "milliseconds or ISO 8601",
    )


def _check_alone(item: Recording, in_force: ActiveInterpretations) -> None:
    """Files are read one by one: concurrent values of other sources are unknown."""
    name = item.source.interpretation
    if name not in in_force.typed or name in in_force.refused:
        return
    declared = [one for each in in_force.typed.chain(name) for one in each.conversions]
    asking = [one.name for one in declared if _depends_on_others(one, in_force)]
    if asking:
        raise Unsupported(
            f"{item.path.name}: {asking[0]}, which depends on what other sources say at the time,",
            "replaying recorded files",
            hint="import the files and use rapport replay --from-log",
        )


def _depends_on_others(conversion: Conversion, in_force: ActiveInterpretations) -> bool:
    if any(name in in_force.concepts for name, _ in feed_types(conversion)):
        return True
    steps = conversion.how.steps if isinstance(conversion.how, Chain) else (conversion,)
    return any(isinstance(step.how, ContextLookup) for step in steps)
