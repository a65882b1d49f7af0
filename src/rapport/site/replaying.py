"""Recorded files of a site as readings: those in root form as they are, raw ones through the
transformer that live events of their source go through. [ME-5, PO-8, UX-3]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.errors import Problem, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.mediation.conversion.conversions import Chain, Conversion
from rapport.mediation.conversion.lookups import ContextLookup
from rapport.mediation.fields_compiler import resolve
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.memory import feed_types
from rapport.mediation.reader import SourceTransformer, build_transformer
from rapport.mediation.reading_times import RepeatedHours, repeated_after_ms
from rapport.mediation.site_functions import WorkerConversions
from rapport.policy.readings import FARTHEST_MS, readings_schema, split_events
from rapport.policy.recordings.files import as_readings, in_batches
from rapport.policy.recordings.formats import FieldMapping, Report
from rapport.policy.replay.replay import Recording, recordings_of
from rapport.site.bindings import source_bindings
from rapport.site.interpreting import meanings_in_site
from rapport.site.raw_columns import Columns, QuickFile, is_columnar, is_plain
from rapport.site.raw_csv import CsvLayout
from rapport.site.raw_files import RawFile, naming_of

if TYPE_CHECKING:
    from rapport.site.site import Site

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
    InterpretationError for a source that nothing can be said in, Unsupported for one whose
    meaning depends on what other sources say.
    """
    found = recordings_of(site.ontology, site.directory, files)
    if any(item.source.interpretation for item in found):
        in_force = in_force or meanings_in_files(site)
    return [
        msgspec.structs.replace(item, read=_reader(site, item, in_force), strict=strict)
        for item in found
    ]


def meanings_in_files(site: Site) -> ActiveInterpretations:
    """The interpretations as the site's files have them."""
    found = meanings_in_site(site.file, site.directory, site.ontology, site.tables.columns())
    return found.files.activate()[0]


def version_of_meanings(
    recordings: Sequence[Recording], in_force: ActiveInterpretations | None
) -> str:
    """What tells the interpretations of these files from changed ones."""
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
    _built(site, item.source.name, in_force).close()  # what is wrong with it is said at once
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
        self._tell()

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
        self._tell()
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
        """Rows without a filled cell are none, as for whoever reads row by row."""
        nulls = layout.options.nulls
        return [
            self._file.stored(
                line + place,
                _ENCODE({name: None if cell in nulls else cell for name, cell in row.items()}),
            )
            for place, row in enumerate(rows.to_pylist())
            if any(row.values())
        ]

    def _tell(self) -> None:
        """In the order of the rows, so that the first told is the first there is."""
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
    """Files are read one by one: what others say at the same time is not known."""
    name = item.source.interpretation
    if name not in in_force.typed or name in in_force.refused:
        return
    declared = [one for each in in_force.typed.chain(name) for one in each.conversions]
    asking = [one.name for one in declared if _asks_others(one, in_force)]
    if asking:
        raise Unsupported(
            f"{item.path.name}: {asking[0]}, which depends on what other sources say at the time,",
            "replaying recorded files",
            hint="import the files and use rapport replay --from-log",
        )


def _asks_others(conversion: Conversion, in_force: ActiveInterpretations) -> bool:
    if any(name in in_force.concepts for name, _ in feed_types(conversion)):
        return True
    steps = conversion.how.steps if isinstance(conversion.how, Chain) else (conversion,)
    return any(isinstance(step.how, ContextLookup) for step in steps)
