"""What a run over a history gives: detections in files that executors wrote, and reports. [PI-5,
PO-8]

Executors write both as Parquet in one job: detections under `kind=detection`, reports (facts of
row groups, late readings, faults, failed policies) under `kind=report`. The driver reads the
reports; detections stay in their files until somebody needs rows of them.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from rapport.core.detection import Cause, Detection, Undecided, unique_undecided
from rapport.core.errors import Problem, SiteError
from rapport.pipeline.history.arrival import GroupFacts, Late
from rapport.pipeline.history.detection_table import (
    DETECTION_COLUMNS,
    DETECTIONS,
    detections_from,
    encode_detections,
    in_output_order,
    undecided_from,
)
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.partitions import Layout
from rapport.policy.replay.replay import FaultyRows, ReplayResult
from rapport.policy.runner.deployed_plans import SituationCounts

OUTPUT_COLUMNS = f"{DETECTION_COLUMNS}, report STRING, body BINARY, kind STRING"
"""The columns that executors write, as Spark names them."""
OUTPUT = pa.schema(
    [*DETECTIONS, ("report", pa.string()), ("body", pa.binary()), ("kind", pa.string())]
)
"""The same as Arrow names them."""
_REPORTS = pa.schema([OUTPUT.field("report"), OUTPUT.field("body")])
DETECTION, REPORT = "detection", "report"
_AT_ONCE = 2_048
_DETECTIONS_AT_ONCE = 1 << 14
_MOST_PROBLEMS = 1_000
_MOST_LINES = 4
_STRUCTS_AT_ONCE = 8_192


class PolicyFailure(msgspec.Struct, frozen=True, array_like=True):
    """A policy that failed, and from when on nothing of it counts."""

    policy: str
    since: int
    problem: Problem


class WorkerRefusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a worker could not do its part: a damaged file, a function it does not have."""

    problem: Problem


class DetectionCount(msgspec.Struct, frozen=True, array_like=True):
    """How many detections of a policy a part found, how many `at most once per` left out, and how
    many situations are open and pending at the end.
    """

    policy: str
    found: int
    suppressed: int
    open: int = 0
    pending: int = 0


class Faulty(msgspec.Struct, frozen=True, array_like=True):
    """Rows that could not be used: the first of them, and all by file and reason."""

    problems: list[Problem]
    by_reason: list[FaultyRows]


Report = Late | GroupFacts | PolicyFailure | Faulty | WorkerRefusal | DetectionCount

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Report)}
_READ = {name: msgspec.msgpack.Decoder(list[kind]) for name, kind in _KINDS.items()}  # type: ignore[valid-type]
_WRITE = msgspec.msgpack.Encoder()


def packed(reports: Sequence[Report]) -> Iterator[tuple[str, bytes]]:
    """Reports of one kind as names and bodies; nothing if there are none."""
    for first in range(0, len(reports), _AT_ONCE):
        some = reports[first : first + _AT_ONCE]
        yield type(some[0]).__name__, _WRITE.encode(some)


def report_rows(reports: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    """Packed reports as rows of OUTPUT."""
    columns = {
        "report": pa.array([name for name, _ in reports], pa.string()),
        "body": pa.array([body for _, body in reports], pa.binary()),
        "kind": pa.array([REPORT] * len(reports), pa.string()),
    }
    return _as_output(columns, len(reports))


def detection_rows(found: Sequence[Detection | Undecided]) -> Iterator[pa.RecordBatch]:
    """Detections and undecided ones as rows of OUTPUT."""
    for first in range(0, len(found), _DETECTIONS_AT_ONCE):
        part = encode_detections(found[first : first + _DETECTIONS_AT_ONCE])
        columns = dict(zip(DETECTIONS.names, part.columns, strict=True))
        columns["kind"] = pa.array([DETECTION] * len(part), pa.string())
        yield _as_output(columns, len(part))


def _as_output(columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in OUTPUT]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTPUT)


class OutputFiles:
    """The directory that executors wrote."""

    def __init__(self, directory: str, load: Callable[[str], pa.Table] | None = None) -> None:
        """`load` reads a directory that this process cannot open, such as one in a cloud store."""
        self.directory, self._load = directory, load

    @staticmethod
    def temporary() -> OutputFiles:
        """A new directory that is removed with this object."""
        made = OutputFiles(tempfile.mkdtemp(prefix="rapport-history-"))
        weakref.finalize(made, shutil.rmtree, made.directory, ignore_errors=True)
        return made

    def detections(self) -> pa.Table:
        """All detections and undecided ones, as DETECTIONS."""
        return self._read(DETECTION, DETECTIONS)

    def reports(self) -> Reports:
        """All reports; raises SiteError if a worker could not do its part."""
        found = Reports(
            self._read(REPORT, pa.schema([OUTPUT.field("report"), OUTPUT.field("body")]))
        )
        reasons = {
            (one.problem.code, one.problem.file): one.problem for one in found.of(WorkerRefusal)
        }
        if reasons:
            raise SiteError(list(reasons.values()))
        return found

    def mapped(self) -> pa.Table:
        """The same without taking memory for them: as one Arrow file that is mapped. The system
        reads what is looked at, and drops it again.
        """
        if self._load is not None:
            return self.detections()
        with tempfile.NamedTemporaryFile(prefix="rapport-detections-") as place:
            with pa.ipc.new_file(place, DETECTIONS) as writer:
                if Path(self._folder(DETECTION)).is_dir():
                    files = pyarrow.dataset.dataset(self._folder(DETECTION), format="parquet")
                    for batch in files.to_batches(columns=_known(files, DETECTIONS)):
                        writer.write_table(
                            _with_columns(pa.Table.from_batches([batch]), DETECTIONS)
                        )
            place.flush()
            return pa.ipc.open_file(pa.memory_map(place.name)).read_all()  # stays after its name

    def _read(self, kind: str, schema: pa.Schema) -> pa.Table:
        folder = self._folder(kind)
        if self._load is not None:
            return _with_columns(self._load(folder), schema)
        if not Path(folder).is_dir():
            return schema.empty_table()
        files = pyarrow.dataset.dataset(folder, format="parquet")
        return _with_columns(files.to_table(columns=_known(files, schema)), schema)

    def _folder(self, kind: str) -> str:
        return f"{self.directory}/kind={kind}"


def _known(files: pyarrow.dataset.Dataset, schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name in files.schema.names]


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of the schema; nulls for those that files of an older release do not have."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


class Reports:
    """Reports of all tasks of a run."""

    def __init__(self, table: pa.Table) -> None:
        self._bodies: dict[str, list[pa.Buffer]] = {}
        names = table.column("report").to_pylist()
        for name, body in zip(names, table.column("body"), strict=True):
            self._bodies.setdefault(name, []).append(body.as_buffer())

    def of(self, kind: type[Any]) -> Iterator[Any]:
        """All reports of a kind."""
        for body in self._bodies.get(kind.__name__, ()):
            yield from _READ[kind.__name__].decode(body)


class HistoryFound(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a history. Detections stay in their files until they are needed."""

    output: OutputFiles
    layout: Layout
    counts: dict[str, int]
    """How many detections each policy has."""
    events: int
    late: list[Cause]
    """In the order of arrival; of many perhaps the first only."""
    late_count: int
    problems: list[Problem]
    faulty: list[FaultyRows]
    failed: dict[str, PolicyFailure]
    first: int | None
    last: int | None
    """The smallest and the largest time of a reading."""
    suppressed: dict[str, int] = {}
    """What `at most once per` left out, of every policy that did not fail."""
    situations: dict[str, SituationCounts] = {}
    """Of each policy with a situation, what is open and pending when recorded time ends."""
    ended: int | None = None
    """When recorded time ends for situations, if there are any."""

    def columns(self) -> pa.Table:
        """All detections and undecided ones as DETECTIONS, in any order, mapped from a file;
        without those that failed policies found after they failed.
        """
        table = self.output.mapped()
        for policy, failed in self.failed.items():
            before = pc.less(table.column("time"), failed.since)
            table = table.filter(pc.or_(before, pc.not_equal(table.column("policy"), policy)))
        return table

    def detections(self) -> Iterator[Detection]:
        """All detections as structs, made part by part."""
        for batch in self.columns().to_batches(max_chunksize=_STRUCTS_AT_ONCE):
            yield from detections_from(pa.Table.from_batches([batch]))

    def in_order(self) -> list[Detection]:
        """All detections in the order of the output."""
        return in_output_order(list(self.detections()))

    def undecided(self) -> list[Undecided]:
        """What silent sources left open, each once."""
        return unique_undecided(undecided_from(self.output.detections()))


class SparkReplay(ReplayResult, frozen=True, kw_only=True):
    """What a replay on Spark found."""

    layout: Layout
    late_count: int = 0
    """All late readings; of many `late` has perhaps the first only."""

    @staticmethod
    def of(found: HistoryFound) -> SparkReplay:
        """All that was found, in memory."""
        return SparkReplay(
            detections=found.in_order(),
            undecided=found.undecided(),
            late=found.late,
            late_count=found.late_count,
            events=found.events,
            layout=found.layout,
            problems=[*found.problems, *(one.problem for one in found.failed.values())],
            faulty=found.faulty,
            first=found.first,
            last=found.last,
            suppressed=found.suppressed,
            situations=found.situations,
        )


def found_of(
    output: OutputFiles,
    reports: Reports,
    layout: Layout,
    history: ReadingsFiles,
    policies: Sequence[str],
    situations: Collection[str] = (),
    ended: int | None = None,
) -> HistoryFound:
    """The reports of all tasks put together; `situations`: the policies with a situation."""
    late = sorted(reports.of(Late), key=lambda one: (one.clock, one.series, one.position))
    faulty = list(reports.of(Faulty))
    failed: dict[str, PolicyFailure] = {}
    for one in reports.of(PolicyFailure):
        known = failed.get(one.policy)
        if known is None or one.since < known.since:
            failed[one.policy] = one
    counts, suppressed = Counter[str](), Counter[str]()
    still_open, pending = Counter[str](), Counter[str]()
    for counted in reports.of(DetectionCount):
        still_open[counted.policy] += counted.open
        pending[counted.policy] += counted.pending
        counts[counted.policy] += counted.found
        suppressed[counted.policy] += counted.suppressed
    groups = list(reports.of(GroupFacts))
    found = HistoryFound(
        output=output,
        layout=layout,
        counts={name: counts[name] for name in policies},
        events=sum(one.usable for one in groups),
        late=[(one.time, one.id) for one in late],
        late_count=sum(one.late for one in groups),
        problems=_in_place(history, faulty),
        faulty=_joined(faulty),
        failed=failed,
        suppressed={name: suppressed[name] for name in policies if name not in failed},
        situations={
            name: SituationCounts(still_open[name], pending[name])
            for name in policies
            if name in situations and name not in failed
        },
        ended=ended,
        first=min((g.first_inside for g in groups if g.first_inside is not None), default=None),
        last=max((g.last_inside for g in groups if g.last_inside is not None), default=None),
    )
    if not failed:
        return found
    table = found.columns()
    kept = Counter(table.filter(table.column("silent").is_null()).column("policy").to_pylist())
    return msgspec.structs.replace(found, counts={name: kept[name] for name in policies})


def _in_place(history: ReadingsFiles, faulty: Sequence[Faulty]) -> list[Problem]:
    """The first problems in the order of files and rows."""
    files = [file.name for one in history.series for file in one.files]
    places = {name: place for place, name in reversed(list(enumerate(files)))}
    problems = [problem for one in faulty for problem in one.problems]
    problems.sort(key=lambda one: (places.get(one.file, 0), one.line))
    return problems[:_MOST_PROBLEMS]


def _joined(faulty: Sequence[Faulty]) -> list[FaultyRows]:
    """Rows of one file with one reason as one."""
    found: dict[tuple[str, str], list[FaultyRows]] = {}
    for rows in (rows for one in faulty for rows in one.by_reason):
        found.setdefault((rows.first.file, rows.first.code), []).append(rows)
    return [
        FaultyRows(
            first=min(own, key=lambda rows: rows.first.line).first,
            lines=sorted(line for rows in own for line in rows.lines)[:_MOST_LINES],
            count=sum(rows.count for rows in own),
        )
        for own in found.values()
    ]
