"""Explanations of a site's policies from its log or from recorded files. [PO-11, PO-2]

Of Parquet files only the row groups that touch the time in question are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import UnknownName
from rapport.core.release import CORRECTS
from rapport.policy.explain.answer import AnswerNote, WhyNotAnswer
from rapport.policy.explain.evidence import (
    LateReading,
    NeededRange,
    Reading,
    needed_range,
    needs_last_values,
    readings_of,
)
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.situation_evidence import check_bindings, situation_at
from rapport.policy.explain.why_not import WhyNotQuestion, check_aliases, why_not
from rapport.policy.ontology import Ontology
from rapport.policy.plan import conditions_plan
from rapport.policy.readings import readings_schema
from rapport.policy.recordings.files import as_readings
from rapport.policy.recordings.formats import FieldMapping, Report, convert_columns
from rapport.policy.replay.replay import DEFAULT_BATCH, Recording, RowFaults, replay
from rapport.policy.runner.local import in_event_order
from rapport.policy.situation_plan import SituationPlan, longest_look_back_ms
from rapport.site.context import check_without_context
from rapport.site.interpretations import terms_of_policies
from rapport.site.past_tables import tables_at
from rapport.site.policies import policy_files, read_policy
from rapport.site.recordings import recordings_in_site

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.core.detection import Detection
    from rapport.policy.compiler.compile import CompiledPolicy
    from rapport.policy.plan import Plan
    from rapport.site.site import Site

_NEVER = -(2**62)


class FileReadings(msgspec.Struct, kw_only=True):
    """What files hold around a time."""

    readings: list[Reading] = []
    late: list[Reading] = []
    """Readings of the time that came after their file had gone on by more than the lateness."""
    last: dict[tuple[str, str], Reading] = {}
    """The last reading of each key before the time, if requested."""
    first: int | None = None
    """The earliest time in any of the files."""

    def take_in(self, other: FileReadings) -> None:
        self.readings += other.readings
        self.late += other.late
        for reading in other.last.values():
            self.keep_last(reading)
        if other.first is not None:
            self.note_first(other.first)

    def note_first(self, time: int) -> None:
        self.first = time if self.first is None else min(self.first, time)

    def keep_last(self, reading: Reading) -> None:
        """Takes in a reading from before."""
        known = self.last.get((reading.stream, reading.key))
        if known is None or (known.time, known.id) <= (reading.time, reading.id):
            self.last[reading.stream, reading.key] = reading


class _Slice(msgspec.Struct):
    """Some rows of a file, and the largest time before them in it."""

    rows: pa.RecordBatch
    clock: int


class _CloserLook(Exception):
    """A row of a file cannot be converted by column; reading by row reports it."""


class FilesAround:
    """Reads what recorded files hold around a time, judged as a replay judges it."""

    def __init__(
        self,
        ontology: Ontology,
        reach: NeededRange,
        *,
        lateness_ms: int,
        with_last: bool,
        report: Report,
    ) -> None:
        """`with_last`: of everybody the last reading before the reach counts, for which all that is
        earlier must be read.
        """
        self._ontology, self._reach, self._report = ontology, reach, report
        self._lateness_ms, self._with_last = lateness_ms, with_last

    def read(self, recordings: list[Recording]) -> FileReadings:
        found = FileReadings()
        for item in recordings:
            found.take_in(self._of_file(item))
        return found

    def _of_file(self, item: Recording) -> FileReadings:
        by_groups = self._by_groups(item)
        if by_groups is not None:
            return by_groups
        found = FileReadings()
        for part in self._whole(item, found):
            self._add_slice(part, found)
        return found

    def _by_groups(self, item: Recording) -> FileReadings | None:
        """None where the file must be read as a whole; then unusable rows are reported."""
        groups, found = _row_groups(item), FileReadings()
        if groups is None:
            return None
        try:
            for part in self._touched(item, groups, found):
                self._add_slice(part, found)
        except _CloserLook:
            return None
        return found

    def _touched(
        self, item: Recording, groups: list[tuple[int, int]], found: FileReadings
    ) -> Iterator[_Slice]:
        """The row groups that touch the reach, and with `with_last` those before."""
        start = _NEVER if self._with_last else self._reach.start
        clock = _NEVER
        for number, (low, high) in enumerate(groups):
            found.note_first(low)
            if high >= start and low <= self._reach.end:
                yield _Slice(_group_rows(item, self._ontology, number), clock)
            clock = max(clock, high)

    def _whole(self, item: Recording, found: FileReadings) -> Iterator[_Slice]:
        """All of a file, in its order."""
        clock = _NEVER
        for rows in item.batches(self._ontology, DEFAULT_BATCH, self._report):
            times = rows.column("time")
            found.note_first(pc.min(times).as_py())
            yield _Slice(rows, clock)
            clock = max(clock, pc.max(times).as_py())

    def _add_slice(self, part: _Slice, found: FileReadings) -> None:
        rows, late = _judged(part, self._lateness_ms)
        found.late += readings_of(_between(late, self._reach), self._ontology)
        found.readings += readings_of(_between(rows, self._reach), self._ontology)
        if self._with_last:
            for reading in _last_before(rows, self._reach.start, self._ontology):
                found.keep_last(reading)


def _row_groups(item: Recording) -> list[tuple[int, int]] | None:
    """The times of each row group by the footer; None where the footer lacks them."""
    if item.read is not None or item.path.suffix.lower() != ".parquet":
        return None
    try:
        with pq.ParquetFile(item.path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (pa.ArrowInvalid, OSError):
        return None  # reported by the reader of the rows
    fields = set(FieldMapping.of(item.source, "text").fields())
    if CORRECTS in schema.names or not fields <= set(schema.names):
        return None
    kind = schema.field(item.source.time).type
    if not pa.types.is_integer(kind) and not pa.types.is_timestamp(kind):
        return None
    numbers = range(metadata.num_row_groups)
    bounds = [_bounds(metadata.row_group(number), item.source.time, kind) for number in numbers]
    known = [one for one in bounds if one is not None]
    return known if len(known) == len(bounds) else None


def _bounds(group: pq.RowGroupMetaData, field: str, kind: pa.DataType) -> tuple[int, int] | None:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema == field:
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return None
            return _milliseconds(statistics.min, kind), _milliseconds(statistics.max, kind)
    return None


def _milliseconds(value: object, kind: pa.DataType) -> int:
    scalar = pa.scalar(value, kind)
    if pa.types.is_timestamp(kind):
        scalar = scalar.cast(pa.timestamp("ms", kind.tz), safe=False)
    return int(scalar.cast(pa.int64()).as_py())


def _group_rows(item: Recording, ontology: Ontology, number: int) -> pa.RecordBatch:
    source = item.source
    wanted = FieldMapping.of(source, ontology.streams()[source.stream])
    with pq.ParquetFile(item.path) as file:
        table = file.read_row_group(number, columns=list(dict.fromkeys(wanted.fields())))
    rows = convert_columns(table.combine_chunks().to_batches()[0], wanted)
    if rows is None:
        raise _CloserLook
    return as_readings(rows, source, wanted, readings_schema(ontology))


def _judged(part: _Slice, lateness_ms: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows in time, and those that are late."""
    times = part.rows.column("time").to_numpy()
    clocks = np.maximum(np.maximum.accumulate(times), part.clock)
    late = pa.array(times < clocks - lateness_ms)
    return part.rows.filter(pc.invert(late)), part.rows.filter(late)


def _between(rows: pa.RecordBatch, reach: NeededRange) -> pa.RecordBatch:
    times = rows.column("time")
    return rows.filter(
        pc.and_(pc.greater_equal(times, reach.start), pc.less_equal(times, reach.end))
    )


def _last_before(batch: pa.RecordBatch, start: int, ontology: Ontology) -> list[Reading]:
    """Of everybody the last reading before a time; the others are not even looked at."""
    earlier = batch.filter(pc.less(batch.column("time"), start))
    if not len(earlier):
        return []
    ordered = earlier.sort_by([("time", "ascending"), ("id", "ascending")])
    rows = pa.table(
        {
            "stream": ordered.column("stream"),
            "key": ordered.column("key"),
            "row": pa.array(range(len(ordered))),
        }
    )
    chosen = rows.group_by(["stream", "key"]).aggregate([("row", "max")]).column("row_max")
    return readings_of(ordered.take(chosen.combine_chunks()), ontology)


_MOST_LATE = 8


def explainer_of(
    site: Site, channels: Channels, *, may_read: Callable[[str], bool] | None = None
) -> Explainer:
    """The explainer of a site's log; `may_read` decides which raw channels may be shown, and
    whether past rows of tables and past context may.
    """
    return Explainer(
        channels,
        site.ontology,
        site.tables,
        policy_texts(site),
        lambda name, text: plan_of_text(site, name, text),
        situation_of=lambda name, text: situation_of_text(site, name, text),
        lateness_ms=site.lateness_ms,
        may_read=may_read,
        tables_at=tables_at(
            site.tables,
            site.ontology,
            channels,
            lateness_ms=site.lateness_ms,
            may_read=may_read,
        ),
    )


def policy_texts(site: Site) -> dict[str, str]:
    """The policy texts of the site's readable files."""
    files, _window, _problems = policy_files(site.file, site.directory)
    read = {name: read_policy(file)[0] for name, file in files.items()}
    return {name: text for name, text in read.items() if text is not None}


def plan_of_text(site: Site, name: str, text: str) -> Plan:
    """The plan of any version of a policy; raises PolicyError."""
    return conditions_plan(compiled_of_text(site, name, text).plan, "explain")


def situation_of_text(site: Site, name: str, text: str) -> SituationPlan | None:
    """The plan of any version of a policy with a situation, else None; raises PolicyError."""
    plan = compiled_of_text(site, name, text).plan
    return plan if isinstance(plan, SituationPlan) else None


def compiled_of_text(site: Site, name: str, text: str) -> CompiledPolicy:
    """What any version of a policy means now; raises PolicyError."""
    from rapport.policy.compiler.compile import compile_policy

    terms, _problems = terms_of_policies(site.file, site.directory, site.ontology, [name])
    return compile_policy(
        text,
        name=name,
        ontology=site.ontology,
        window_ms=site.window_ms,
        terms=terms.terms.get(name),
    )


def recorded_answer(
    site: Site, policy: str, question: WhyNotQuestion, events: Sequence[str]
) -> WhyNotAnswer:
    """The same from recorded files, by the interpretations of the site's files. Of Parquet in root
    form the row groups that touch the time are read, others once from beginning to end; only the
    readings around the time are kept. For a situation all that is before the time counts.
    """
    texts = policy_texts(site)
    if policy not in texts:
        raise UnknownName("policy", policy, sorted(texts), code="policy.unknown")
    situation = situation_of_text(site, policy, texts[policy])
    if situation is not None:
        recordings = recordings_in_site(site, events)
        found = _recorded_situation(site, situation, question, recordings)
        return msgspec.structs.replace(found, text=texts[policy])
    plan = plan_of_text(site, policy, texts[policy])
    check_without_context(site.tables, [plan], "recorded files")
    check_aliases(plan, question.given)
    recordings = recordings_in_site(site, events)
    reach = needed_range(plan, site.ontology.sources, question.span(plan))
    faults = RowFaults()
    files = FilesAround(
        site.ontology,
        reach,
        lateness_ms=site.lateness_ms,
        with_last=needs_last_values(plan),
        report=faults.report,
    )
    around = files.read(recordings)
    readings = [*around.last.values(), *around.readings]
    late = [LateReading(one.time, one.stream, one.key) for one in around.late]
    answer = why_not(
        plan,
        site.ontology,
        site.tables,
        readings,
        question,
        reported=_reported(site, plan, recordings),
        began=around.first,
        late=late,
    )
    notes = (*_late(around.late), *_unread(faults))
    return msgspec.structs.replace(answer, text=texts[policy], notes=notes)


def _recorded_situation(
    site: Site,
    plan: SituationPlan,
    question: WhyNotQuestion,
    recordings: Sequence[Recording],
) -> WhyNotAnswer:
    """How a situation stood at the time: all readings before it count, as in a replay."""
    check_without_context(site.tables, [plan], "recorded files")
    check_bindings(plan, question.given)
    at, faults, late = question.at, RowFaults(), list[Reading]()
    kept = [pa.RecordBatch.from_pylist([], schema=readings_schema(site.ontology))]
    began: int | None = None
    streams = pa.array(plan.streams(), pa.string())
    for item in recordings:
        clock = _NEVER
        for batch in item.batches(site.ontology, DEFAULT_BATCH, faults.report):
            rows, too_late = _judged(_Slice(batch, clock), site.lateness_ms)
            clock = max(clock, pc.max(batch.column("time")).as_py())
            first = pc.min(rows.column("time")).as_py()
            began = min((time for time in (began, first) if time is not None), default=None)
            is_own = pc.is_in(rows.column("stream"), streams)
            kept.append(rows.filter(pc.and_(is_own, pc.less_equal(rows.column("time"), at))))
            near = NeededRange(at - longest_look_back_ms(plan), at)
            late += readings_of(_between(too_late, near), site.ontology)
    readings = in_event_order(pa.concat_batches(kept))
    evidence = situation_at(
        plan, site.ontology, site.tables, readings, question.given, at, began=began
    )
    return WhyNotAnswer(
        policy=plan.policy,
        version=plan.version(),
        at=at,
        within_ms=0,
        given=question.given,
        fired=(),
        situation=evidence,
        notes=(*_late(late), *_unread(faults)),
    )


def _reported(site: Site, plan: Plan, recordings: Sequence[Recording]) -> list[Detection] | None:
    """What a replay of the files reports, for `at most once per`: whether something is suppressed
    depends on everything before it. None where it does not matter.
    """
    if plan.once_per_ms is None:
        return None
    found = replay(site.ontology, site.tables, [plan], recordings, lateness_ms=site.lateness_ms)
    return found.detections


def _late(late: Sequence[Reading]) -> list[AnswerNote]:
    """The readings of the time that a replay does not count, some of them."""
    return [
        AnswerNote(
            kind="late",
            text=f"the {one.stream.partition('.')[2]} of {one.key} stands too far behind others in "
            "its file, too late to count",
            time=one.time,
            event=one.id,
        )
        for one in late[:_MOST_LATE]
    ]


def _unread(faults: RowFaults) -> list[AnswerNote]:
    """What of the files could not be used, by reason."""
    return [
        AnswerNote(
            kind="reach",
            text=f"{rows.count:,} rows of {rows.first.file} could not be read, the first in line "
            f"{rows.first.line}: {rows.first.message}",
        )
        for rows in faults.by_reason()
    ]
