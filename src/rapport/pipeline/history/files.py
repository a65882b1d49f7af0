"""History as Parquet files: which files and columns hold readings, and what their footers say.
[PI-5, PO-8]

Files of one series stand in arrival order, and so do their rows. Series are merged by the largest
time each has shown so far, so lateness is decided within a series.

Other packages give a history to Spark through this module: a `Series` for each stream, with a
`ReadingsFile` for each file. A time column is an integer of milliseconds or a timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.core.errors import InvalidInput, Problem, SiteError, Unsupported, nearest_names
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import FARTHEST_MS
from rapport.policy.recordings.files import superseded_in
from rapport.policy.recordings.formats import FieldMapping, unreadable
from rapport.policy.replay.replay import Recording

READING_COLUMNS = ("time", "id", "stream", "source", "key")
"""Columns of files that hold readings of any stream (`policy/readings.py`)."""


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of a file: a row group of Parquet, or the whole file of a judged series."""

    rows: int
    first: int | None = None
    """Smallest time of its rows; None: no rows, or unknown."""
    last: int | None = None
    """Largest time."""
    is_known: bool = False
    """Whether first and last can be relied on."""


class ReadingsFile(msgspec.Struct, frozen=True):
    """A Parquet file as it was when its footer was read."""

    path: str
    """An absolute path, or a URI that Spark can read."""
    size: int
    """Bytes; a file whose size changed was rewritten."""
    groups: tuple[RowGroup, ...]
    schema: pa.Schema | None = None
    """Columns of the file; None: they are read from the footer when needed."""

    @property
    def rows(self) -> int:
        """Of all row groups."""
        return sum(group.rows for group in self.groups)

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        """Whether this process can look at the file itself."""
        return "://" not in self.path

    def arrow_schema(self) -> pa.Schema:
        """The columns of the file; raises SiteError when it cannot be read."""
        if self.schema is not None:
            return self.schema
        try:
            return pyarrow.parquet.read_schema(self.path)
        except (OSError, pa.ArrowException) as error:
            raise cannot_read(Path(self.path), error) from None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Files whose rows arrived one after the other, and the meaning of their columns."""

    files: tuple[ReadingsFile, ...]
    source: str = ""
    """The name of the source, if no column names it."""
    stream: str = ""
    """`concept.attribute`; empty: the files hold readings of any stream (READING_COLUMNS)."""
    kind: AttributeType = "number"
    time: str = "time"
    id: str = "id"
    key: str = "key"
    value: tuple[str, ...] = ()
    zone: str = ""
    """Zone of local times as text; empty: they are UTC."""
    source_column: str = ""
    """The column that names the source of each row; empty: it is `source`."""
    only_column: str = ""
    """Rows count only if this column has one of `only`; empty: all count."""
    only: tuple[str, ...] = ()
    is_judged: bool = False
    """True: late rows are already left out, so rows may stand in any order."""
    left_out: frozenset[str] = frozenset()
    """Ids of rows that corrections replace."""

    def wanted(self) -> FieldMapping:
        """The columns as readers of recorded files name them."""
        return FieldMapping(self.id, self.time, self.key, self.value, self.kind, self.zone)

    def columns(self) -> tuple[str, ...]:
        """The columns that make a reading of one stream."""
        more = [name for name in (self.source_column, self.only_column) if name]
        return tuple(dict.fromkeys([*self.wanted().fields(), *more]))

    def parts(self) -> dict[str, str]:
        """The columns of readings by their names in the files."""
        names = [f"{self.stream}.{part}" for part in PARTS[self.kind]]
        return dict(zip(self.value, names, strict=True))


class ReadingsFiles(msgspec.Struct, frozen=True):
    """All series of a history."""

    series: tuple[Series, ...]
    window: tuple[int, int] | None = None
    """Only readings from the first to before the second time are counted and run; None: all."""

    @property
    def rows(self) -> int:
        """How many rows the footers name."""
        return sum(file.rows for one in self.series for file in one.files)

    def check_unchanged(self) -> None:
        """Raises SiteError for a local file that is gone or was rewritten since its footer was
        read.
        """
        for file in (file for one in self.series for file in one.files if file.is_local):
            path = Path(file.path)
            try:
                size = path.stat().st_size
            except OSError as error:
                raise SiteError([unreadable(path, error)]) from None
            if size != file.size:
                raise changed(path)


def recorded_files(
    ontology: Ontology, recordings: Iterable[tuple[PushSource, Path | Sequence[Path]]]
) -> ReadingsFiles:
    """Recorded files of sources in canonical form, one series for each source; several files of one
    are read in the order given. A folder stands for its Parquet files by name.

    Raises Unsupported for a source with an interpretation or another format, SiteError for a file
    that is missing, damaged or without a column the source names.
    """
    return ReadingsFiles(tuple(_recorded(ontology, *one) for one in recordings))


def why_not_files(recordings: Sequence[Recording]) -> str:
    """Why Spark cannot scan the recordings as files; empty when it can."""
    for item in recordings:
        if item.read is not None or item.source.interpretation:
            return f"{item.source.name} needs its interpretation"
        if item.strict:
            return "the first faulty row is to end the replay"
        if item.path.suffix.lower() != ".parquet":
            return f"{item.path.name} is no Parquet file"
    return "" if recordings else "there are none"


def readings_files(
    paths: Iterable[Path], *, source: str = "", is_judged: bool = False
) -> ReadingsFiles:
    """Files that hold readings of any streams, as one series."""
    files = tuple(file for path in paths for file in _files(path, ("time", "id", "stream", "key")))
    return ReadingsFiles((Series(files=files, source=source, is_judged=is_judged),))


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or the Parquet files below a folder by name, without hidden ones."""
    if not path.is_dir():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not found:
        raise InvalidInput(
            f"there is no Parquet file in {path}",
            code="history.no_files",
            hint="name a file that ends in .parquet, or a folder that holds some",
        )
    return found


def read_file(path: Path, columns: Sequence[str], time: str) -> ReadingsFile:
    """A file with what its footer says; raises SiteError for a file that is missing, damaged or
    half written, or without one of the columns.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow.remove_metadata()
            _check_columns(path, columns, schema.names)
            groups = tuple(_groups(file.metadata, time, schema.field(time).type))
            return ReadingsFile(str(path.resolve()), path.stat().st_size, groups, schema)
    except (OSError, pa.ArrowException) as error:
        raise cannot_read(path, error) from None


def read_footer(path: Path, columns: Sequence[str], time: str) -> tuple[int, tuple[RowGroup, ...]]:
    """The size and the row groups of `read_file`."""
    file = read_file(path, columns, time)
    return file.size, file.groups


def cannot_read(path: Path, error: Exception) -> SiteError:
    """The error of a file that cannot be opened, or that is not Parquet; Arrow raises an OSError
    without a number for the latter.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return SiteError([unreadable(path, error)])
    return bad_file(path, error)


def bad_file(path: Path, error: Exception) -> SiteError:
    """The error of a damaged or incomplete file."""
    said = str(error).strip().rstrip(".")
    problem = Problem(
        file=path.name,
        code="events.bad_file",
        message=f"{path} cannot be read; it is damaged or half written: {said}",
        hint="move the file aside, or write it again",
    )
    return SiteError([problem])


def changed(path: Path) -> SiteError:
    """The error of a file that was rewritten after its footer was read."""
    problem = Problem(
        file=path.name,
        code="history.changed",
        message=f"{path} was changed while it was read",
        hint="run again when nobody writes to it",
    )
    return SiteError([problem])


def not_readings(name: str) -> SiteError:
    """The error of a file of readings in which a column has nulls that must not be there."""
    problem = Problem(
        file=name,
        code="events.bad_file",
        message=f"{name} has rows without time, id, stream or key, so they are no readings",
        hint="write the file again",
    )
    return SiteError([problem])


def _recorded(ontology: Ontology, source: PushSource, paths: Path | Sequence[Path]) -> Series:
    if source.interpretation:
        raise Unsupported(
            f"source {source.name!r}, which needs an interpretation,",
            "history scanned by Spark",
            hint="read it through the site, or from the lake's silver, which is mediated",
        )
    kind = ontology.concepts[source.concept][source.attribute]
    wanted = FieldMapping.of(source, kind)
    given = [paths] if isinstance(paths, Path) else list(paths)
    chosen = [file for path in given for file in parquet_files(path)]
    files = tuple(file for path in chosen for file in _files(path, wanted.fields(), wanted.time))
    gone = superseded_in(chosen, wanted.id)
    return Series(
        files=files,
        source=source.name,
        stream=source.stream,
        kind=kind,
        time=wanted.time,
        id=wanted.id,
        key=wanted.key,
        value=wanted.value,
        zone=wanted.zone,
        left_out=gone,
    )


def _files(path: Path, columns: Sequence[str], time: str = "time") -> Iterator[ReadingsFile]:
    for file in parquet_files(path):
        yield read_file(file, columns, time)


def _check_columns(path: Path, columns: Sequence[str], known: Sequence[str]) -> None:
    problems = []
    for name in dict.fromkeys(columns):
        if name not in known:
            nearest = nearest_names(name, known, 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are: {known[:12]}"
            problems.append(
                Problem(
                    file=path.name,
                    code="events.missing_column",
                    message=f"there is no column {name!r}",
                    hint=hint,
                )
            )
    if problems:
        raise SiteError(problems)


def _groups(metadata: Any, time: str, kind: pa.DataType) -> Iterator[RowGroup]:
    place = _place(metadata, time)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            yield RowGroup(0, None, None, True)
            continue
        span = None if place is None else _span(group.column(place).statistics, kind)
        if span is None:
            yield RowGroup(group.num_rows)
        else:
            yield RowGroup(group.num_rows, *span, True)


def _place(metadata: Any, name: str) -> int | None:
    """The number of a column in the footer; nested columns have longer paths."""
    schema = metadata.schema
    places = [place for place in range(len(schema)) if schema.column(place).path == name]
    return places[0] if places else None


def _span(statistics: Any, kind: pa.DataType) -> tuple[int, int] | None:
    """The smallest and largest time in milliseconds; None: the statistics do not tell."""
    if statistics is None or not statistics.has_min_max or statistics.null_count:
        return None
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        return None
    ends = pa.array([statistics.min, statistics.max], kind)
    if pa.types.is_timestamp(kind):
        ends = ends.cast(pa.timestamp("ms", kind.tz), safe=False)
    first, last = ends.cast(pa.int64()).to_pylist()
    if not -FARTHEST_MS < first <= last < FARTHEST_MS:
        return None
    return first, last
